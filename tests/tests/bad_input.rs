//! Mistakes of a user or an administrator, as far as the cloud controller manager meets them: each is named with its
//! remedy, nothing is lost meanwhile, and it goes on by itself when the cause is gone.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use e2e::case::seen;
use e2e::machines::is_initialized;
use e2e::{Bed, Exposed, PATIENCE, Shared, service, wait_for};
use harvester_api::keys::cloudprovider;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use serde_json::{Value, json};
use testbed::process::confined;
use testbed::{Process, RunDir};

static BED: Shared<Bed> = Shared::new();

/// The machines have further networks, so that tests can have pools of their own.
async fn bed() -> Arc<Bed> {
    let builder = Bed::builder().network("guests/data", "eth0").network("guests/tiny", "eth0");
    BED.get(|| builder.start()).await.unwrap()
}

/// Starts the cloud controller manager and waits for its end: exit status and what it said.
fn failed_start(args: &[&str]) -> (Option<i32>, String) {
    let dir = RunDir::new("start").unwrap();
    let mut command = Command::new(e2e::product::binary().unwrap());
    command.args(args).env_remove("KUBECONFIG");
    let process = Process::spawn("ccm", &confined(&command, &[]), &dir.log("ccm")).unwrap();
    let status = process.wait(PATIENCE);
    (status.and_then(|status| status.code()), process.log_tail(100))
}

fn assert_refused(what: &str, args: &[&str], parts: &[&str]) {
    let (status, said) = failed_start(args);
    assert_eq!(status, Some(1), "{what}: {said}");
    for part in parts.iter().chain(&["FATAL: cloudprovider.harvesterhci.io failed to start", "Error detail: "]) {
        assert!(said.contains(part), "{what}: {part:?} is missing in\n{said}");
    }
}

/// D-2.
#[test]
fn a_cloud_config_that_cannot_be_used_ends_the_start_with_the_file_and_the_reason() {
    if e2e::skip() {
        return;
    }
    let init = "Cloud provider harvester could not be initialized";
    // Without any flag a person gets help.
    assert_refused("no cloud-config", &["--v=0"], &[init, "--cloud-config"]);
    assert_refused(
        "no file",
        &["--cloud-config=/nowhere/cloud-config"],
        &[init, "/nowhere/cloud-config", "No such file"],
    );

    let dir = RunDir::new("cloud-configs").unwrap();
    let good = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "h", "cluster": {"server": "https://10.0.0.1:6443", "insecure-skip-tls-verify": true}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "h", "user": "u", "namespace": "guests"}}]}"#;
    let refused = |name: &str, content: &str, parts: &[&str]| {
        let path = dir.write(name, content).unwrap();
        let text = path.display().to_string();
        let mut all = vec![init, text.as_str()];
        all.extend(parts);
        assert_refused(name, &[&format!("--cloud-config={text}")], &all);
    };
    refused("empty", "", &["the file is empty", "expected a kubeconfig"]);
    refused("blank", "\n  \n", &["the file is empty"]);
    refused("malformed", "clusters: [", &["not valid YAML"]);
    refused("list", "- a\n- b\n", &["expected"]);
    refused("no-server", &good.replace("https://10.0.0.1:6443", ""), &["server"]);
    refused("bad-server", &good.replace("https://10.0.0.1:6443", "10.0.0.1"), &["\"10.0.0.1\"", "https://"]);
    refused(
        "wrong-context",
        &good.replace(r#""current-context": "c""#, r#""current-context": "x""#),
        &["\"x\"", "contexts: c"],
    );
    refused("no-user", &good.replace(r#""token": "t""#, ""), &["no credentials", "token"]);

    let unreadable = dir.write("unreadable", good).unwrap();
    std::fs::set_permissions(&unreadable, std::fs::Permissions::from_mode(0o000)).unwrap();
    let flag = format!("--cloud-config={}", unreadable.display());
    assert_refused("unreadable", &[&flag], &[init, "unreadable", "Permission denied"]);
}

/// A cloud-config like the bed's, with a change.
fn cloud_config(bed: &Bed, change: impl FnOnce(&mut Value)) -> String {
    let text = bed.harvester.cloud_config(e2e::VM_NAMESPACE, e2e::CLUSTER).unwrap();
    let mut config: Value = serde_saphyr::from_str(&text).unwrap();
    change(&mut config);
    let path = bed.dir().write("changed/cloud-config", config.to_string()).unwrap();
    format!("--cloud-config={}", path.display())
}

fn good_cloud_config(bed: &Bed) -> String {
    cloud_config(bed, |_| {})
}

/// Runs the cloud controller manager on a Harvester that it cannot use: the Node and a Service say why, with `parts`.
/// Then `mend`: both get what they waited for.
async fn unusable_harvester(bed: &Bed, parts: &[&str], mend: impl FnOnce(&Bed)) {
    let case = bed.case("unusable").await.unwrap();
    bed.ccm().start().unwrap();
    let web = case.create(service("web").tcp(80)).await.unwrap();
    let node = bed.wait_for_event("default", "Node", "node1", "NodeInitializationFailed", parts[0]).await.unwrap();
    for part in parts {
        assert!(node.message.contains(part), "{part:?} in {}", node.message);
    }
    assert!(!is_initialized(&bed.node("node1").await.unwrap().unwrap()));
    let told = web.wait_for_event("SyncLoadBalancerFailed", parts[0]).await.unwrap();
    for part in parts {
        assert!(told.message.contains(part), "{part:?} in {}", told.message);
    }
    bed.ccm().check().unwrap();
    mend(bed);
    bed.wait_until_initialized().await.unwrap();
    wait_for_annotation(&web).await;
}

/// Without announcers: the address is booked and handed over when the annotation is there.
async fn wait_for_annotation(web: &Exposed<'_>) {
    web.wait_for("an address for the announcer", |service: &Service| {
        service.annotations().get("kube-vip.io/loadbalancerIPs").map(drop).ok_or_else(|| seen(service))
    })
    .await
    .unwrap();
}

async fn bed_for_broken_harvester() -> Bed {
    Bed::builder().nodes(1).without_announcers().not_started().start().await.unwrap()
}

#[tokio::test]
async fn a_harvester_that_cannot_be_reached_is_told_and_used_when_it_can() {
    if e2e::skip() {
        return;
    }
    let bed = bed_for_broken_harvester().await;
    let ours = bed.ccm().host().nic("mgmt0");
    let fault = bed.control_plane.management().block(&ours, bed.harvester.nic()).unwrap();
    unusable_harvester(&bed, &["cloud-config", "https://10.99.0.3:6443"], |_| drop(fault)).await;
}

#[tokio::test]
async fn a_harvester_with_a_certificate_of_another_authority_is_told() {
    if e2e::skip() {
        return;
    }
    let bed = bed_for_broken_harvester().await;
    let other = bed.dir().path().join("other-ca.crt");
    std::fs::copy(bed.control_plane.ca_file(), &other).unwrap();
    let flag = cloud_config(&bed, |config| {
        let cluster = &mut config["clusters"][0]["cluster"];
        cluster.as_object_mut().unwrap().remove("certificate-authority-data");
        cluster["certificate-authority"] = json!(other.display().to_string());
    });
    bed.ccm().set_arg(&flag);
    unusable_harvester(&bed, &["invalid peer certificate", "https://10.99.0.3:6443"], |bed| {
        bed.ccm().set_arg(&good_cloud_config(bed));
        bed.ccm().restart().unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_cloud_config_without_a_namespace_says_which_one_is_used() {
    if e2e::skip() {
        return;
    }
    let bed = bed_for_broken_harvester().await;
    let flag = cloud_config(&bed, |config| {
        config["contexts"][0]["context"].as_object_mut().unwrap().remove("namespace");
    });
    bed.ccm().set_arg(&flag);
    // Its rights are for another namespace.
    unusable_harvester(&bed, &["forbidden", "namespace default", "cloud-config"], |bed| {
        bed.ccm().set_arg(&good_cloud_config(bed));
        bed.ccm().restart().unwrap();
    })
    .await;
}

/// An Event about a Service that names everything in `parts`.
async fn told(web: &Exposed<'_>, parts: &[&str]) {
    let event = web.wait_for_event("SyncLoadBalancerFailed", parts[0]).await.unwrap();
    assert_eq!(event.kind, "Warning");
    for part in parts {
        assert!(event.message.contains(part), "{part:?} is missing in: {}", event.message);
    }
}

async fn served(web: &Exposed<'_>, port: u16) {
    let address = web.address().await.unwrap();
    web.reply(address, port).await.unwrap();
}

#[tokio::test]
async fn an_unknown_ipam_value_is_refused_and_a_known_one_is_taken() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("ipam").await.unwrap();
    let web = case.expose(service("web").ipam("lottery").tcp(80)).await.unwrap();
    told(&web, &[cloudprovider::IPAM, "\"lottery\"", "pool", "dhcp"]).await;
    assert!(web.load_balancer().await.unwrap().is_none());
    web.patch(json!({"metadata": {"annotations": {cloudprovider::IPAM: "pool"}}})).await.unwrap();
    served(&web, 80).await;
}

#[tokio::test]
async fn a_primary_service_that_does_not_exist_is_waited_for() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("no-primary").await.unwrap();
    let primary = case.named("primary");
    let web = case.expose(service("web").sharing_with(&primary).tcp(81)).await.unwrap();
    told(&web, &[&primary.to_string(), "not found"]).await;
    let primary = case.expose(service("primary").tcp(80)).await.unwrap();
    served(&primary, 80).await;
    served(&web, 81).await;
    assert_eq!(web.address().await.unwrap(), primary.address().await.unwrap());
}

#[tokio::test]
async fn a_primary_service_that_is_no_name_is_refused_with_the_form_expected() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("odd-primary").await.unwrap();
    let web = case.expose(service("web").annotation(cloudprovider::PRIMARY_SERVICE, "Primary").tcp(80)).await.unwrap();
    told(&web, &[cloudprovider::PRIMARY_SERVICE, "\"Primary\"", "namespace/name"]).await;
    web.patch(json!({"metadata": {"annotations": {cloudprovider::PRIMARY_SERVICE: null}}})).await.unwrap();
    served(&web, 80).await;
}

#[tokio::test]
async fn a_primary_service_that_shares_itself_is_refused() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("chain").await.unwrap();
    let first = case.expose(service("first").tcp(80)).await.unwrap();
    let second = case.expose(service("second").sharing_with(&first).tcp(81)).await.unwrap();
    served(&second, 81).await;
    let third = case.expose(service("third").sharing_with(&second).tcp(82)).await.unwrap();
    told(&third, &[&second.to_string(), "is not a primary service"]).await;
    third
        .patch(json!({"metadata": {"annotations": {cloudprovider::PRIMARY_SERVICE: first.to_string()}}}))
        .await
        .unwrap();
    served(&third, 82).await;
    assert_eq!(third.address().await.unwrap(), first.address().await.unwrap());
}

#[tokio::test]
async fn a_port_that_is_taken_is_refused_until_it_is_free() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("clash").await.unwrap();
    let first = case.expose(service("first").tcp(80)).await.unwrap();
    let address = first.address().await.unwrap();
    let second = case.expose(service("second").sharing_with(&first).tcp(81)).await.unwrap();
    served(&second, 81).await;
    let third = case.expose(service("third").sharing_with(&first).tcp(81)).await.unwrap();
    told(&third, &["port 81", &second.to_string()]).await;
    first.reply(address, 80).await.unwrap();
    second.reply(address, 81).await.unwrap();
    second.delete().await.unwrap();
    second.wait_until_gone().await.unwrap();
    served(&third, 81).await;
    assert_eq!(third.address().await.unwrap(), address);
}

#[tokio::test]
async fn a_service_that_no_pool_matches_names_the_pool_it_needs_and_gets_an_address_when_it_is_made() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("no-pool").await.unwrap();
    let web = case.expose(service("web").annotation(cloudprovider::NETWORK, "guests/data").tcp(80)).await.unwrap();
    told(&web, &["no matched IPPool", "guests/data", "guests", "demo", "Make an IPPool"]).await;
    bed.set_pool("data", "guests/data", 150..=154).await.unwrap();
    served(&web, 80).await;
    web.wait_for_event("EnsuredLoadBalancer", "").await.unwrap();
}

#[tokio::test]
async fn a_service_that_names_a_pool_which_does_not_exist_is_told_and_served_when_the_name_is_taken_back() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("pool-name").await.unwrap();
    let web = case.expose(service("web").annotation(cloudprovider::IP_POOL, "nosuch").tcp(80)).await.unwrap();
    told(&web, &["IPPool nosuch does not exist on Harvester", "/ippool"]).await;
    web.annotate(cloudprovider::IP_POOL, None).await.unwrap();
    served(&web, 80).await;
}

#[tokio::test]
async fn a_service_that_finds_its_pool_exhausted_gets_an_address_when_it_is_enlarged() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("exhausted").await.unwrap();
    bed.set_pool("tiny", "guests/tiny", 160..=160).await.unwrap();
    let on_tiny = |name: &str| service(name).annotation(cloudprovider::NETWORK, "guests/tiny").tcp(80);
    let first = case.expose(on_tiny("first")).await.unwrap();
    served(&first, 80).await;
    let second = case.expose(on_tiny("second")).await.unwrap();
    told(&second, &["no IP addresses available", "tiny", "enlarge it"]).await;
    bed.set_pool("tiny", "guests/tiny", 160..=161).await.unwrap();
    // The host backs off for up to two minutes, and is woken once a minute.
    wait_for("the second Service's address", Duration::from_secs(150), || async {
        let object = second.get().await.map_err(|error| format!("{error:#}"))?;
        if e2e::case::ingress(&object).is_empty() { Err(seen(&object)) } else { Ok(()) }
    })
    .await
    .unwrap();
    served(&second, 80).await;
    served(&first, 80).await;
}
