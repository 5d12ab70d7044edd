//! Watches EndpointSlices, but only while a Service needs them. Most clusters have no Service with policy Local, and
//! then no request is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use announcer_core::endpoints::{Endpoints, SliceView, nodes_with_endpoints};
use announcer_core::engine::Input;
use announcer_core::view::{SeenService, ServiceKey, ServiceView};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client};
use runtime::cache::{Cache, Touched};
use runtime::health::{Check, Health, OnFailure};
use runtime::reflect::Reflector;
use tokio::sync::mpsc;

/// Label selector; kube-proxy skips the other slices too.
const OURS: &str = "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name";

/// Name of the health check of this cache, which exists only while a Service needs it.
const FRESH: &str = "endpointslices-fresh";

type SliceKey = (String, String);

/// Tells the engine the nodes with endpoints of Services with policy Local. It ends only with `services`.
pub async fn run(
    client: Client,
    namespace: Option<String>,
    services: Cache<ServiceKey, SeenService>,
    inputs: mpsc::UnboundedSender<Input>,
    health: Health,
) {
    let api = || match &namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let mut touched = services.subscribe();
    let mut locals = LocalServices::new(inputs);
    loop {
        if locals.wanted.is_empty() {
            health.forget(FRESH);
            let Some(key) = touched.next().await else { return };
            locals.service(&key, services.get(&key).as_deref().and_then(|seen| seen.view.as_deref()));
            continue;
        }
        let slices: Cache<SliceKey, SliceView> = Cache::new(|old, new| old != new);
        let reflector = reflector(api(), &slices);
        health.register(FRESH, OnFailure::NotReady, freshness(&reflector));
        tokio::select! {
            never = reflector.run() => match never {},
            ended = follow(&mut locals, &services, &mut touched, &slices) => if ended { return },
        }
        locals.index = Index::default();
    }
}

/// The health check. A cache that was never complete does not count as stale, because without the right to read slices
/// everything else works.
fn freshness(reflector: &Reflector<EndpointSlice, SliceKey, SliceView>) -> Check {
    let (status, fresh) = (reflector.status(), reflector.freshness());
    Arc::new(move || if status.borrow().synced { fresh() } else { Ok(()) })
}

fn reflector(
    api: Api<EndpointSlice>,
    slices: &Cache<SliceKey, SliceView>,
) -> Reflector<EndpointSlice, SliceKey, SliceView> {
    let key = |meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
        (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
    };
    Reflector::new("endpointslices", api, slices.clone(), key, SliceView::of).labels(OURS)
}

/// Follows the slices until no Service needs them any more, or (returns true) until `services` ends.
async fn follow(
    locals: &mut LocalServices,
    services: &Cache<ServiceKey, SeenService>,
    touched: &mut Touched<ServiceKey>,
    slices: &Cache<SliceKey, SliceView>,
) -> bool {
    let synced = async {
        slices.wait_synced().await;
        // Subscribed only after the list is complete: half a list would look like lost endpoints.
        slices.subscribe()
    };
    let mut synced = std::pin::pin!(synced);
    let mut changes: Option<Touched<SliceKey>> = None;
    while !locals.wanted.is_empty() {
        let change = async {
            match &mut changes {
                Some(changes) => changes.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            key = touched.next() => {
                let Some(key) = key else { return true };
                locals.service(&key, services.get(&key).as_deref().and_then(|seen| seen.view.as_deref()));
            }
            subscribed = &mut synced, if !locals.index.complete => {
                changes = Some(subscribed);
                for key in slices.keys() {
                    let view = slices.get(&key);
                    locals.index.take(key, view);
                }
                locals.complete();
            }
            Some(key) = change => {
                let view = slices.get(&key);
                for service in locals.index.take(key, view) {
                    locals.tell(&service);
                }
            }
        }
    }
    false
}

/// All slices, by Service.
#[derive(Debug, Default)]
struct Index {
    complete: bool,
    slices: BTreeMap<SliceKey, Arc<SliceView>>,
    of: BTreeMap<ServiceKey, BTreeSet<SliceKey>>,
}

impl Index {
    /// Takes in a slice; `None`: it was deleted. Returns the Services that it belonged to and belongs to.
    fn take(&mut self, key: SliceKey, view: Option<Arc<SliceView>>) -> BTreeSet<ServiceKey> {
        let mut services = BTreeSet::new();
        if let Some(old) = self.slices.remove(&key) {
            if let Some(all) = self.of.get_mut(&old.service) {
                all.remove(&key);
                if all.is_empty() {
                    self.of.remove(&old.service);
                }
            }
            services.insert(old.service.clone());
        }
        if let Some(view) = view {
            self.of.entry(view.service.clone()).or_default().insert(key.clone());
            services.insert(view.service.clone());
            self.slices.insert(key, view);
        }
        services
    }

    fn nodes(&self, service: &ServiceKey) -> BTreeSet<String> {
        let slices: Vec<&SliceView> = self
            .of
            .get(service)
            .into_iter()
            .flatten()
            .filter_map(|key| self.slices.get(key))
            .map(Arc::as_ref)
            .collect();
        nodes_with_endpoints(&slices)
    }
}

/// Services with policy Local, and what the engine knows of their endpoints.
#[derive(Debug)]
struct LocalServices {
    wanted: BTreeSet<ServiceKey>,
    told: Endpoints,
    index: Index,
    inputs: mpsc::UnboundedSender<Input>,
}

impl LocalServices {
    fn new(inputs: mpsc::UnboundedSender<Input>) -> Self {
        Self { wanted: BTreeSet::new(), told: Endpoints::new(), index: Index::default(), inputs }
    }

    fn service(&mut self, key: &ServiceKey, view: Option<&ServiceView>) {
        if view.is_some_and(|view| view.local_traffic) {
            if self.wanted.insert(key.clone()) {
                self.tell(key);
            }
        } else if self.wanted.remove(key) && self.told.remove(key).is_some() {
            let _ = self.inputs.send(Input::Endpoints(key.clone(), None));
        }
    }

    /// The list of slices is complete.
    fn complete(&mut self) {
        self.index.complete = true;
        for key in self.wanted.clone() {
            self.tell(&key);
        }
    }

    /// Tells the engine the nodes with endpoints of `key`, if they are known, wanted and new.
    fn tell(&mut self, key: &ServiceKey) {
        if !self.index.complete || !self.wanted.contains(key) {
            return;
        }
        let nodes = self.index.nodes(key);
        if self.told.get(key) != Some(&nodes) {
            self.told.insert(key.clone(), nodes.clone());
            let _ = self.inputs.send(Input::Endpoints(key.clone(), Some(nodes)));
        }
    }
}

#[cfg(test)]
mod tests;
