//! Reads Harvester's API with the cloud-config of the cloud controller.

use std::path::Path;
use std::time::Duration;

use harvester_api::cloud_config::CloudConfig;
use harvester_api::load_balancer::LoadBalancer;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ListParams;
use kube::config::KubeConfigOptions;
use kube::{Api, Client, Config, ResourceExt};
use runtime::Product;
use runtime::client::{Settings, connect};
use runtime::error::{api_code, chain};

use super::{CollectOptions, certificates, clock, host, list, mounted, rights, side, trouble, why};
use crate::facts;
use crate::snapshot::{Snapshot, Trouble, TroubleKind, Unread};

/// Time-out for everything that is read there.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where the search for the cloud-config has ended.
enum CloudConfigSearch {
    /// Its content, and where it was found.
    Bytes(Vec<u8>, String),
    /// It should exist, but does not.
    Missing(String),
    /// The Secret exists, without the key; the text, and the Secret.
    NoKey(String, String),
    /// It is in a place that this program cannot read.
    Elsewhere(String),
}

pub async fn read(guest: &Client, asked: &CollectOptions, product: &Product, snapshot: &mut Snapshot) {
    let (bytes, origin) = match find(guest, asked, snapshot).await {
        CloudConfigSearch::Bytes(bytes, origin) => (bytes, origin),
        CloudConfigSearch::Missing(text) => {
            snapshot.harvester = side("", TroubleKind::NoCredentials, text);
            return;
        }
        CloudConfigSearch::NoKey(text, origin) => {
            snapshot.harvester = side("", TroubleKind::NoKey, text);
            snapshot.cloud_config = origin;
            return;
        }
        CloudConfigSearch::Elsewhere(why) => {
            snapshot.unread.push(Unread { what: "Harvester".to_owned(), why });
            return;
        }
    };
    snapshot.cloud_config.clone_from(&origin);
    let parsed = match CloudConfig::parse(&bytes) {
        Ok(parsed) => parsed,
        Err(error) => {
            snapshot.harvester = side("", TroubleKind::NoCredentials, format!("{origin}: {}", chain(&error)));
            return;
        }
    };
    snapshot.namespace.clone_from(&parsed.namespace);
    snapshot.account = parsed.account();
    let endpoint = &parsed.endpoints[0];
    let server = endpoint.server.clone();
    let config = Config::from_custom_kubeconfig(parsed.kubeconfig(endpoint), &KubeConfigOptions::default()).await;
    if let Ok(config) = &config
        && asked.thorough
    {
        snapshot.harvester.certificates = certificates::read(config).await;
    }
    let client = match config {
        Ok(config) => connect(config, &Settings::new("harvester", product)).map_err(|error| chain(&error)),
        Err(error) => Err(chain(&error)),
    };
    let client = match client {
        Ok(client) => client,
        Err(text) => {
            snapshot.harvester.trouble =
                Some(Trouble { kind: TroubleKind::NoCredentials, text: format!("{origin}: {text}") });
            snapshot.harvester.server = server;
            return;
        }
    };
    snapshot.harvester.server.clone_from(&server);
    if tokio::time::timeout(PATIENCE, objects(&client, asked, snapshot)).await.is_err() {
        let text = format!("no answer within {} s", PATIENCE.as_secs());
        snapshot.harvester.trouble = Some(Trouble { kind: TroubleKind::Unreachable, text });
    }
}

async fn objects(client: &Client, asked: &CollectOptions, snapshot: &mut Snapshot) {
    let namespace = snapshot.namespace.clone();
    let lbs: Api<LoadBalancer> = Api::namespaced(client.clone(), &namespace);
    match lbs.list(&ListParams::default()).await {
        Ok(list) => snapshot.load_balancers = list.items,
        // The server has answered, so only a right or the kind is missing.
        Err(error) if matches!(api_code(&error), Some(403 | 404)) => {
            snapshot.unread.push(Unread { what: "LoadBalancers on Harvester".to_owned(), why: why(&error) });
        }
        Err(error) => {
            snapshot.harvester.trouble = Some(trouble(&error));
            return;
        }
    }
    // Most servers show their version to every client, and nothing depends on it.
    snapshot.harvester.version =
        client.apiserver_version().await.map(|version| version.git_version).unwrap_or_default();
    let unread = &mut snapshot.unread;
    snapshot.machines =
        list(Api::namespaced(client.clone(), &namespace), "VirtualMachines on Harvester", "", unread).await;
    let instances = Api::namespaced(client.clone(), &namespace);
    snapshot.instances = list(instances, "VirtualMachineInstances on Harvester", "", unread).await;
    snapshot.pools = list(Api::all(client.clone()), "IPPools on Harvester", "", unread).await;
    if asked.thorough {
        snapshot.harvester.clock_ahead = clock::ahead(client).await;
        snapshot.host = host::read(client, &snapshot.load_balancers).await;
        rights::harvester(client, snapshot).await;
    }
}

/// Finds the cloud-config: from the flag; else, in the controller's own pod, from its command line; else from its
/// Deployment.
async fn find(guest: &Client, asked: &CollectOptions, snapshot: &Snapshot) -> CloudConfigSearch {
    if let Some(path) = &asked.cloud_config {
        return file(path);
    }
    if let Some(path) = of_the_first_process() {
        return file(Path::new(&path));
    }
    let controller = facts::controllers(snapshot).next();
    let Some(deployment) = controller else {
        return CloudConfigSearch::Elsewhere(
            "no Deployment of the cloud controller can be seen: give --cloud-config".to_owned(),
        );
    };
    let Some(mounted) = mounted::cloud_config(deployment) else {
        return CloudConfigSearch::Elsewhere(
            "the cloud-config lies on the nodes: give --cloud-config with a copy of it".to_owned(),
        );
    };
    let namespace = deployment.namespace().unwrap_or_default();
    let origin = format!("Secret {namespace}/{}", mounted.secret);
    match Api::<Secret>::namespaced(guest.clone(), &namespace).get_opt(&mounted.secret).await {
        Ok(Some(secret)) => match mounted.of(&secret.data.unwrap_or_default()) {
            Ok(bytes) => CloudConfigSearch::Bytes(bytes.to_vec(), origin),
            Err(text) => CloudConfigSearch::NoKey(format!("{origin} {text}"), origin),
        },
        Ok(None) => CloudConfigSearch::Missing(format!("{origin}, which the cloud controller mounts, does not exist")),
        Err(error) => CloudConfigSearch::Elsewhere(format!("{origin}: {}; give --cloud-config", why(&error))),
    }
}

fn file(path: &Path) -> CloudConfigSearch {
    let origin = path.display().to_string();
    match std::fs::read(path) {
        Ok(bytes) => CloudConfigSearch::Bytes(bytes, origin),
        Err(error) => CloudConfigSearch::Missing(format!("{origin}: {error}")),
    }
}

/// The cloud-config of the first process, which in the controller's pod is the controller.
fn of_the_first_process() -> Option<String> {
    let line = std::fs::read("/proc/1/cmdline").ok()?;
    let words: Vec<String> =
        line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    words.first().filter(|word| word.ends_with("harvester-cloud-provider"))?;
    words.iter().find_map(|word| word.strip_prefix("--cloud-config=").map(str::to_owned))
}
