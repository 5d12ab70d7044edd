//! `generate-addon` against a real Harvester-shaped API: what it prints drives a guest cluster, a second run changes
//! nothing, rotation and revocation do what they say.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use e2e::{Bed, VM_NAMESPACE, product, service, wait_for};
use harvester_api::load_balancer::LoadBalancer;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use kube::api::{ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};

const ACCOUNT: &str = "addon-demo";

/// Runs the command where an administrator would: on a host that reaches Harvester.
fn run(bed: &Bed, words: &[&str]) -> Output {
    let mut command = std::process::Command::new(product::binary().unwrap());
    command.env("KUBECONFIG", bed.harvester.admin().unwrap().inside).arg("generate-addon").args(words);
    bed.lan.host(1).run(move || command.output()).unwrap()
}

fn succeed(bed: &Bed, words: &[&str]) -> String {
    let output = run(bed, words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refused(bed: &Bed, words: &[&str], part: &str) {
    let output = run(bed, words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        (output.status.code(), said.contains(part)),
        (Some(1), true),
        "{words:?}: {part:?} is missing in\n{said}"
    );
}

/// Names and versions of everything the command could have written.
async fn written(client: &Client) -> Vec<String> {
    let all = ListParams::default();
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), VM_NAMESPACE).list(&all).await.unwrap();
    let secrets = Api::<Secret>::namespaced(client.clone(), VM_NAMESPACE).list(&all).await.unwrap();
    let bindings = Api::<RoleBinding>::namespaced(client.clone(), VM_NAMESPACE).list(&all).await.unwrap();
    let wide = Api::<ClusterRoleBinding>::all(client.clone()).list(&all).await.unwrap();
    let metadata = accounts.items.into_iter().map(|object| object.metadata);
    let metadata = metadata.chain(secrets.items.into_iter().map(|object| object.metadata));
    let metadata = metadata.chain(bindings.items.into_iter().map(|object| object.metadata));
    metadata
        .chain(wide.items.into_iter().map(|object| object.metadata))
        .filter(|metadata| metadata.name.as_deref().is_some_and(|name| name.contains(ACCOUNT)))
        .map(|metadata| format!("{}@{}", metadata.name.unwrap(), metadata.resource_version.unwrap()))
        .collect()
}

/// Whether Harvester answers a guest with this cloud-config.
fn is_accepted(bed: &Bed, kubeconfig: &str) -> Result<(), String> {
    let kubeconfig = kubeconfig.to_owned();
    let ask = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let kubeconfig = Kubeconfig::from_yaml(&kubeconfig).unwrap();
            let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
            let client = Client::try_from(config).unwrap();
            let load_balancers: Api<LoadBalancer> = Api::default_namespaced(client);
            load_balancers.list(&ListParams::default()).await.map(drop).map_err(|error| error.to_string())
        })
    };
    bed.lan.host(1).run(ask)
}

fn token_of(kubeconfig: &str) -> String {
    let document: Value = serde_saphyr::from_str(kubeconfig).unwrap();
    document["users"][0]["user"]["token"].as_str().unwrap().to_owned()
}

/// An account that lost its place in the binding gets it back beside the one who took it; a patch for an older state is
/// a conflict.
async fn keeps_what_others_write(bed: &Bed, harvester: &Client) {
    let bindings: Api<RoleBinding> = Api::namespaced(harvester.clone(), VM_NAMESPACE);
    let name = format!("{VM_NAMESPACE}-{ACCOUNT}");
    let somebody = json!([{"kind": "User", "name": "somebody", "apiGroup": "rbac.authorization.k8s.io"}]);
    let before = bindings.get(&name).await.unwrap();
    let taken = Patch::Merge(json!({"subjects": somebody}));
    bindings.patch(&name, &PatchParams::default(), &taken).await.unwrap();
    let stale = json!([
        {"op": "replace", "path": "/metadata/resourceVersion", "value": before.metadata.resource_version},
        {"op": "add", "path": "/subjects", "value": []}
    ]);
    let stale = Patch::<RoleBinding>::Json(serde_json::from_value(stale).unwrap());
    let refused = bindings.patch(&name, &PatchParams::default(), &stale).await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 409), "{refused:?}");

    succeed(bed, &[ACCOUNT, VM_NAMESPACE, "-o", "kubeconfig"]);
    let subjects = bindings.get(&name).await.unwrap().subjects.unwrap();
    let names: Vec<&str> = subjects.iter().map(|subject| subject.name.as_str()).collect();
    assert_eq!(names, ["somebody", ACCOUNT]);
    let alone = Patch::Merge(json!({"subjects": [subjects[1]]}));
    bindings.patch(&name, &PatchParams::default(), &alone).await.unwrap();
}

/// W-49.
#[tokio::test]
async fn what_generate_addon_prints_drives_a_guest_cluster_until_it_is_revoked() {
    if e2e::skip() {
        return;
    }
    let bed = Bed::builder().nodes(1).not_started().start().await.unwrap();
    let harvester = bed.harvester_client().await.unwrap();
    let config_file: PathBuf = bed.dir().path().join("generated-cloud-config");
    let path = config_file.display().to_string();

    // Mistakes first: nothing may be written for them.
    refused(&bed, &[ACCOUNT, "nowhere"], "namespace nowhere does not exist");
    refused(&bed, &[ACCOUNT, VM_NAMESPACE, "--server", "https://127.0.0.1:6443"], "leads a guest to itself");
    let closed = bed.harvester.url_inside().replace(":6443", ":1");
    refused(&bed, &[ACCOUNT, VM_NAMESPACE, "--server", &closed], "refuses connections: ");
    refused(&bed, &[ACCOUNT, VM_NAMESPACE, "--credentials", "harvester"], "the API server itself does not have it");
    let planned = succeed(&bed, &[ACCOUNT, VM_NAMESPACE, "--dry-run", "-o", "json"]);
    let planned: Value = serde_json::from_str(&planned).unwrap();
    assert_eq!(planned["steps"].as_array().unwrap().len(), 3, "{planned}");
    assert_eq!(written(&harvester).await, Vec::<String>::new());

    succeed(&bed, &[ACCOUNT, VM_NAMESPACE, "-o", "kubeconfig", "--output-file", &path]);
    assert_eq!(std::fs::metadata(&config_file).unwrap().permissions().mode() & 0o777, 0o600);
    let first = written(&harvester).await;
    assert_eq!(first.len(), 3, "account, token and one narrow binding: {first:?}");
    let kubeconfig = std::fs::read_to_string(&config_file).unwrap();
    assert_eq!(succeed(&bed, &[ACCOUNT, VM_NAMESPACE, "-o", "kubeconfig"]), kubeconfig);
    assert_eq!(written(&harvester).await, first, "a second run writes nothing");

    keeps_what_others_write(&bed, &harvester).await;

    // The file drives the cloud provider.
    bed.ccm().set_arg(&format!("--cloud-config={path}"));
    bed.ccm().start().unwrap();
    bed.announcer(1).start().unwrap();
    bed.wait_until_initialized().await.unwrap();
    let case = bed.case("addon").await.unwrap();
    let web = case.expose(service("web").tcp(80)).await.unwrap();
    web.reply(web.address().await.unwrap(), 80).await.unwrap();

    // A further token, then the first one goes, then all of it.
    let rotated = succeed(&bed, &[ACCOUNT, VM_NAMESPACE, "--rotate", "-o", "kubeconfig"]);
    assert_ne!(token_of(&rotated), token_of(&kubeconfig));
    is_accepted(&bed, &kubeconfig).unwrap();
    is_accepted(&bed, &rotated).unwrap();
    // Nobody has asked with the new token yet: whoever leads in the guest would be locked out.
    refused(&bed, &[ACCOUNT, VM_NAMESPACE, "--revoke-old", "--watch-tokens-for", "6s"], "nothing was revoked");
    is_accepted(&bed, &kubeconfig).unwrap();
    let tried = succeed(&bed, &[ACCOUNT, VM_NAMESPACE, "--revoke-old", "--skip-checks", "-o", "json"]);
    let tried: Value = serde_json::from_str(&tried).unwrap();
    assert!(tried["checks"].as_array().unwrap().iter().any(|check| check["name"] == "token"), "{tried}");
    // The API server believes in a token for up to ten seconds.
    let locked_out = |kubeconfig: String| {
        let bed = &bed;
        async move {
            wait_for("the token to be refused", Duration::from_mins(1), || async {
                match is_accepted(bed, &kubeconfig) {
                    Ok(()) => Err("still accepted".to_owned()),
                    Err(_) => Ok(()),
                }
            })
            .await
            .unwrap();
        }
    };
    locked_out(kubeconfig).await;
    is_accepted(&bed, &rotated).unwrap();
    succeed(&bed, &[ACCOUNT, VM_NAMESPACE, "--revoke"]);
    locked_out(rotated).await;
    assert_eq!(written(&harvester).await, Vec::<String>::new());
    succeed(&bed, &[ACCOUNT, VM_NAMESPACE, "--revoke"]);
}
