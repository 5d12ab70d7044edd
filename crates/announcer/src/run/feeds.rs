//! The inputs of the engine from the API server, the kernel and the end of the process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use announcer_core::config::{Config, ElectionMode};
use announcer_core::engine::Input;
use announcer_core::view::{SeenService, ServiceKey};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client};
use l2::Netlink;
use runtime::cache::{Cache, CacheEvent};
use runtime::client::Servers;
use runtime::health::OnFailure;
use runtime::reflect::Reflector;
use runtime::shutdown::Token;
use runtime::tasks::Tasks;
use tokio::sync::{Notify, mpsc};

use super::{Shared, at_most_until, plain, until};
use crate::claim_keys;
use crate::endpoint_watch;
use crate::node;

/// Interval between two lists of the API servers in mode `node`.
const API_SERVERS_EVERY: Duration = Duration::from_mins(1);

/// Feeds Services, and the endpoints of those that need them.
pub(super) fn services(tasks: &mut Tasks, shared: &Shared<'_>) {
    let Shared { config, client, inputs, health, .. } = shared;
    let cache: Cache<ServiceKey, SeenService> = Cache::new(|old, new| old != new);
    let services = reflector(client, config, &cache);
    health.register("services", OnFailure::NotReady, services.check());
    health.register("services-fresh", OnFailure::NotReady, services.freshness());
    tasks.spawn_endless("watch of Services", services.run());
    let namespace = config.watch_namespace.clone();
    let slices = endpoint_watch::run(client.clone(), namespace, cache.clone(), inputs.clone(), health.clone());
    tasks.spawn("watch of EndpointSlices", at_most_until(tasks.stop(), slices));
    tasks.spawn("feed of Services", plain(feed_services(cache, inputs.clone(), tasks.stop())));
}

/// Keeps the list of API servers current: for the client itself, and in mode `node` for swaps and as landmarks.
pub(super) fn api_servers(tasks: &mut Tasks, shared: &Shared<'_>, direct: Option<Servers>) -> Servers {
    let often = (shared.config.election_mode == ElectionMode::Node).then_some(API_SERVERS_EVERY);
    let is_used = direct.is_some() || often.is_some();
    let servers = direct.unwrap_or_default();
    let (mut list, inputs) = (servers.list(), shared.inputs.clone());
    let follow = servers.clone().follow(shared.client.clone(), often);
    let feed = async move {
        while list.changed().await.is_ok() {
            let hosts = list.borrow_and_update().iter().map(SocketAddr::ip).collect();
            let _ = inputs.send(Input::ApiServers(hosts));
        }
    };
    if is_used {
        let both = async {
            tokio::join!(follow, feed);
        };
        tasks.spawn("list of API servers", until(tasks.stop(), both));
    }
    servers
}

/// Notifies `changed` when another program changes the node's network. `connection` carries the requests of `netlink`.
pub(super) fn network(
    tasks: &mut Tasks,
    changed: Arc<Notify>,
    netlink: Netlink,
    connection: impl Future<Output = ()> + Send + 'static,
) {
    let stop = tasks.stop();
    tasks.spawn("watch of the network", async move {
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            result = node::watch_network(changed) => result,
        }
    });
    let stop = tasks.stop();
    tasks.spawn("netlink connection", async move {
        // The connection ends with its last handle. One is kept here, so that the end of the engine is no failure.
        let _handle = netlink;
        tokio::select! {
            () = stop.cancelled() => Ok::<(), std::io::Error>(()),
            () = connection => Err(std::io::Error::other("the netlink socket broke")),
        }
    });
}

/// Feeds the keys of claims as they were read at the start, and whenever they change.
pub(super) fn claim_keys(tasks: &mut Tasks, shared: &Shared<'_>, found: Option<claim_keys::ClaimKeyFiles>) {
    if let (Some(directory), Some(found)) = (shared.config.claim_keys.clone(), found) {
        let _ = shared.inputs.send(Input::ClaimKeys(found.keys.clone()));
        let follow = claim_keys::follow(directory, found, shared.inputs.clone());
        tasks.spawn("keys of claims", until(tasks.stop(), follow));
    }
}

/// Feeds the request to end the process.
pub(super) fn shutdown(tasks: &mut Tasks, inputs: &mpsc::UnboundedSender<Input>, shutdown: Token) {
    tasks.spawn("shutdown", plain(relay_shutdown(shutdown, inputs.clone(), tasks.stop())));
}

fn reflector(
    client: &Client,
    config: &Config,
    cache: &Cache<ServiceKey, SeenService>,
) -> Reflector<Service, ServiceKey, SeenService> {
    let api = match &config.watch_namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let rules = config.class.clone();
    let key = |meta: &ObjectMeta| {
        ServiceKey::new(meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
    };
    // An owner with an outdated view of its Services withdraws too late, and its successor starts too late.
    Reflector::new("services", api, cache.clone(), key, move |service: &Service| SeenService::of(service, &rules))
        .longest_pause(Duration::from_secs(1))
}

async fn feed_services(cache: Cache<ServiceKey, SeenService>, inputs: mpsc::UnboundedSender<Input>, stop: Token) {
    let lists = cache.clone();
    let feed = cache.follow(|told| match told {
        CacheEvent::Object(key, seen) => {
            let cluster_ips = seen.map(|seen| seen.cluster_ips.clone()).unwrap_or_default();
            let macvlan = seen.and_then(|seen| seen.macvlan.clone());
            let _ = inputs.send(Input::Seen { key: key.clone(), cluster_ips, macvlan });
            // A lease is given back only if its Service was seen to go.
            let _ = inputs.send(match seen {
                None if lists.is_missing(key) => Input::Missing(key.clone()),
                seen => Input::Service(key.clone(), seen.and_then(|seen| seen.view.clone())),
            });
        }
        CacheEvent::Listed => {
            let _ = inputs.send(Input::Synced);
        }
    });
    tokio::select! {
        () = stop.cancelled() => {}
        () = feed => {}
    }
}

async fn relay_shutdown(shutdown: Token, inputs: mpsc::UnboundedSender<Input>, stop: Token) {
    tokio::select! {
        () = stop.cancelled() => return,
        () = shutdown.cancelled() => {}
    }
    let _ = inputs.send(Input::Stop);
    stop.cancelled().await;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[tokio::test]
    async fn a_service_that_is_there_at_the_start_is_told_once() {
        let cache = Cache::new(|old: &SeenService, new| old != new);
        let web = announcer_core::fixtures::view("web", &["10.0.0.5"]);
        let cluster_ips = vec!["10.96.0.7".parse().unwrap()];
        let seen = SeenService { cluster_ips: cluster_ips.clone(), macvlan: None, view: Some(Box::new(web.clone())) };
        cache.replace(BTreeMap::from([(web.key.clone(), seen)]));
        let (inputs, mut told) = mpsc::unbounded_channel();
        let stop = Token::new();
        let feeding = tokio::spawn(feed_services(cache.clone(), inputs, stop.clone()));
        let first = told.recv().await;
        assert!(matches!(&first, Some(Input::Seen { cluster_ips: known, .. }) if *known == cluster_ips), "{first:?}");
        assert!(matches!(told.recv().await, Some(Input::Service(_, Some(_)))));
        assert!(matches!(told.recv().await, Some(Input::Synced)));
        cache.remove(&web.key);
        assert!(matches!(told.recv().await, Some(Input::Seen { cluster_ips, .. }) if cluster_ips.is_empty()));
        let next = told.recv().await;
        assert!(matches!(next, Some(Input::Service(_, None))), "{next:?}");
        stop.cancel();
        feeding.await.unwrap();
        assert!(told.recv().await.is_none());
    }

    #[tokio::test]
    async fn a_service_that_only_a_new_list_does_not_have_is_told_as_missing() {
        let cache = Cache::new(|old: &SeenService, new| old != new);
        let web = announcer_core::fixtures::view("web", &["10.0.0.5"]);
        let seen = SeenService { cluster_ips: Vec::new(), macvlan: None, view: Some(Box::new(web.clone())) };
        cache.replace(BTreeMap::from([(web.key.clone(), seen)]));
        let (inputs, mut told) = mpsc::unbounded_channel();
        let stop = Token::new();
        let feeding = tokio::spawn(feed_services(cache.clone(), inputs, stop.clone()));
        while !matches!(told.recv().await, Some(Input::Synced)) {}
        cache.replace(BTreeMap::new());
        assert!(matches!(told.recv().await, Some(Input::Seen { .. })));
        let next = told.recv().await;
        assert!(matches!(&next, Some(Input::Missing(key)) if *key == web.key), "{next:?}");
        stop.cancel();
        feeding.await.unwrap();
    }
}
