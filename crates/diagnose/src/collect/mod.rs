//! Reads both APIs into a [`Snapshot`]. What cannot be read is noted and left out. The only requests that write are
//! access reviews.

mod certificates;
mod clock;
mod harvester;
mod host;
mod mounted;
mod pods;
mod rights;
mod validity;

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use contract::config_maps;
use jiff::SignedDuration;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace};
use kube::api::ListParams;
use kube::{Api, Client, Config, Resource, ResourceExt};
use runtime::Product;
use runtime::client::{KubeconfigFiles, Settings, connect};
use runtime::error::{api_code, chain};
use serde::de::DeserializeOwned;

use crate::facts;
use crate::snapshot::list::{LEASES, NODES, SERVICES};
use crate::snapshot::{Side, Snapshot, Trouble, TroubleKind, Unread};
pub(crate) use mounted::keys_named;

/// What to read, and with which credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CollectOptions {
    /// `--kubeconfig`.
    pub kubeconfig: Option<PathBuf>,
    /// `--context`.
    pub context: Option<String>,
    /// `--cloud-config`; without it, that of the cloud controller is used.
    pub cloud_config: Option<PathBuf>,
    /// Also read what only `doctor` needs: workloads, Events, rights.
    pub thorough: bool,
}

/// Reads everything. An API that does not answer is recorded in the result.
pub async fn collect(asked: &CollectOptions, announcer: &announcer_core::Config, product: &Product) -> Snapshot {
    let mut snapshot = Snapshot { now: jiff::Timestamp::now(), ..Snapshot::default() };
    let config = match guest_config(asked.kubeconfig.as_deref(), asked.context.as_deref()).await {
        Ok(config) => config,
        Err(text) => {
            snapshot.guest.trouble = Some(Trouble { kind: TroubleKind::NoCredentials, text });
            return snapshot;
        }
    };
    snapshot.guest.server = config.cluster_url.to_string();
    if asked.thorough {
        snapshot.guest.certificates = certificates::read(&config).await;
    }
    let client = match connect(config, &Settings::new("guest", product)) {
        Ok(client) => client,
        Err(error) => {
            snapshot.guest.trouble = Some(Trouble { kind: TroubleKind::NoCredentials, text: chain(&error) });
            return snapshot;
        }
    };
    if let Err(error) = client.apiserver_version().await.map(|version| snapshot.guest.version = version.git_version) {
        snapshot.guest.trouble = Some(trouble(&error));
        return snapshot;
    }
    snapshot.guest.clock_ahead = clock::ahead(&client).await;
    // Ages are computed with the API server's clock, which has written the times. This machine's clock may be wrong.
    snapshot.now += SignedDuration::from_secs(snapshot.guest.clock_ahead.unwrap_or_default());
    // Every client may read the version, so the credentials are tested with another request.
    let services: Api<k8s_openapi::api::core::v1::Service> = Api::all(client.clone());
    if let Err(error) = services.list(&ListParams::default().limit(1)).await
        && api_code(&error) == Some(401)
    {
        snapshot.guest.trouble = Some(trouble(&error));
        return snapshot;
    }
    guest(&client, asked, &mut snapshot).await;
    snapshot.announcer = Some(facts::announced(announcer, &snapshot, snapshot.now));
    harvester::read(&client, asked, product, &mut snapshot).await;
    if asked.thorough {
        rights::guest(&client, &mut snapshot).await;
    }
    snapshot
}

/// Credentials of the guest cluster as `kubectl` finds them: in this file, else in those that `KUBECONFIG` names, else
/// in `~/.kube/config`, and in a pod those of its account. A file that is named and cannot be read is an error: the
/// next place could belong to another cluster.
pub async fn guest_config(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Config, String> {
    let variable = || std::env::var_os("KUBECONFIG").is_some_and(|paths| !paths.is_empty());
    let failed = |error: &(dyn std::error::Error + 'static)| chain(error);
    match KubeconfigFiles::read(kubeconfig) {
        Ok(files) => files.config(context).await.map_err(|error| failed(&error)),
        Err(error) if kubeconfig.is_some() || context.is_some() || variable() => Err(failed(&error)),
        Err(error) => {
            Config::incluster().map_err(|_| format!("no credentials of the guest cluster: {}", failed(&error)))
        }
    }
}

async fn guest(client: &Client, asked: &CollectOptions, snapshot: &mut Snapshot) {
    let system = config_maps::NAMESPACE;
    snapshot.services = list(Api::all(client.clone()), SERVICES, "", &mut snapshot.unread).await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    match namespaces.get(system).await {
        Ok(namespace) => snapshot.cluster_uid = namespace.uid(),
        Err(error) => snapshot.unread.push(Unread { what: format!("Namespace {system}"), why: why(&error) }),
    }
    snapshot.nodes = list(Api::all(client.clone()), NODES, "", &mut snapshot.unread).await;
    let leases: Api<Lease> = Api::namespaced(client.clone(), system);
    snapshot.leases = list(leases, LEASES, "", &mut snapshot.unread).await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), system);
    for name in [facts::RECORD, facts::HOST_UPGRADE, "cilium-config"] {
        match maps.get_opt(name).await {
            Ok(found) => snapshot.config_maps.extend(found.map(|found| (name.to_owned(), found))),
            // A missing right to read Cilium's configuration is not worth a note.
            Err(_) if name == "cilium-config" => {}
            Err(error) => snapshot.unread.push(Unread { what: format!("ConfigMap {name}"), why: chain(&error) }),
        }
    }
    let deployments: Api<Deployment> = Api::all(client.clone());
    snapshot.deployments = list(deployments, "Deployments", "", &mut snapshot.unread).await;
    if asked.thorough {
        let sets: Api<DaemonSet> = Api::all(client.clone());
        snapshot.daemon_sets = list(sets, "DaemonSets", "", &mut snapshot.unread).await;
        let kubelets: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
        snapshot.kubelet_leases = list(kubelets, "Leases in kube-node-lease", "", &mut snapshot.unread).await;
        snapshot.endpoint_slices = list(Api::all(client.clone()), "EndpointSlices", "", &mut snapshot.unread).await;
        let events: Api<Event> = Api::all(client.clone());
        snapshot.events = list(events, "Events", "involvedObject.kind=Service", &mut snapshot.unread).await;
        pods::read(client, snapshot).await;
    }
}

/// All objects of a kind; none, and a note, if they cannot be read.
async fn list<K>(api: Api<K>, what: &str, fields: &str, unread: &mut Vec<Unread>) -> Vec<K>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let params = if fields.is_empty() { ListParams::default() } else { ListParams::default().fields(fields) };
    match api.list(&params).await {
        Ok(list) => list.items,
        Err(error) => {
            unread.push(Unread { what: what.to_owned(), why: why(&error) });
            Vec::new()
        }
    }
}

/// The reason in a few words.
fn why(error: &kube::Error) -> String {
    match api_code(error) {
        Some(403) => "these credentials may not read them".to_owned(),
        Some(404) => "there is no such kind".to_owned(),
        _ => chain(error),
    }
}

/// The reason why an API cannot be read.
fn trouble(error: &kube::Error) -> Trouble {
    let text = chain(error);
    let lower = text.to_lowercase();
    let certificate =
        ["certificate", "unknownissuer", "self-signed", "self signed"].iter().any(|word| lower.contains(word));
    let kind = match api_code(error) {
        Some(401) => TroubleKind::Unauthorized,
        _ if certificate => TroubleKind::Certificate,
        _ => TroubleKind::Unreachable,
    };
    Trouble { kind, text }
}

/// The result for an API that does not accept these credentials, or does not answer.
fn side(server: &str, kind: TroubleKind, text: impl Into<String>) -> Side {
    Side { server: server.to_owned(), trouble: Some(Trouble { kind, text: text.into() }), ..Side::default() }
}
