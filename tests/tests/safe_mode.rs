//! Safe mode on real API servers: it costs no write whatever changes, and announcers of its cluster take nothing new.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::net::IpAddr;
use std::time::Duration;

use e2e::churn::{wait_for_safe_mode, wait_for_the_end_of_safe_mode};
use e2e::host::{CCM_LEASE, OtherHarvester};
use e2e::watch::{ask, at_most, let_it_happen};
use e2e::{Bed, Case, Exposed, PATIENCE, service, wait_for};
use harvester_api::keys::kube_vip;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, ResourceExt};
use serde_json::json;
use testbed::Traffic;

/// What nobody answers for any more is served again within this time: everybody is asked before it is taken.
const CAREFUL: Duration = Duration::from_millis(1500);
/// What an announcer would take up is taken up by then: a new Service falls to the next node after 2 s.
const LONG_ENOUGH: u64 = 6;

/// So long everything changes; ten minutes by `HCP_SAFE_MODE_SECONDS=600`, or by the benchmark `ccm-safe-mode`.
fn churn() -> Duration {
    let seconds = std::env::var("HCP_SAFE_MODE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(25))
}

/// The machines were made anew by a restore of the host; docs/backup.md has the command that ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn safe_mode_writes_nothing_while_everything_changes_and_all_is_served_after_a_humans_word() {
    if e2e::skip() {
        return;
    }
    let bed = Bed::one_node().start().await.unwrap();
    let case = bed.case("churn").await.unwrap();
    let mut addresses = Vec::new();
    for name in ["one", "two", "three"] {
        addresses.push(case.create(service(name).tcp(80)).await.unwrap().published().await.unwrap());
    }
    bed.wait_for_identity_card().await.unwrap();
    let_it_happen(2).await;

    let endured = bed.endure_safe_mode(case.namespace(), churn()).await.unwrap();
    eprintln!("{} changes in {:?}", endured.changes, churn());
    assert!(endured.changes > 100, "{}", endured.changes);
    assert_eq!(endured.costs.total(), 0, "{}", endured.costs);
    assert!(bed.node("node1").await.unwrap().is_some(), "no Node is deleted");

    let shown = bed.ccm().exec(&["identity", "show"]).unwrap();
    assert!(shown.contains("MachinesNotSeen: "), "{shown}");
    let would = bed.ccm().exec(&["identity", "confirm", "--dry-run"]).unwrap();
    assert!(would.contains("Nothing was changed"), "{would}");
    wait_for_safe_mode(case.client(), "MachinesNotSeen").await.unwrap();
    let shown = bed.ccm().exec(&["identity", "confirm"]).unwrap();
    assert!(shown.contains("safe mode   no"), "{shown}");
    for (name, address) in ["one", "two", "three"].iter().zip(&addresses) {
        assert_eq!(case.named(name).published().await.unwrap(), *address, "{name} keeps its address");
    }
    let late = case.create(service("late").tcp(80)).await.unwrap();
    late.published().await.unwrap();
}

/// A Service as a restored backup has it: its cloud controller has published an address.
async fn restored<'a>(case: &'a Case<'_>, name: &str, last: u8) -> (Exposed<'a>, IpAddr) {
    let address = IpAddr::from(case.bed().lan.ipv4(last));
    let web = case.expose(service(name).at(&address.to_string()).tcp(80)).await.unwrap();
    let finalizer = json!({"metadata": {"finalizers": ["service.kubernetes.io/load-balancer-cleanup"]}});
    web.patch(finalizer).await.unwrap();
    (web, address)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announcers_of_a_cluster_in_safe_mode_take_nothing_new_and_keep_what_they_hold() {
    if e2e::skip() {
        return;
    }
    let bed = Bed::builder().nodes(3).announcer_env("election_mode", "node").start().await.unwrap();
    let case = bed.case("safe").await.unwrap();
    let held = case.expose(service("held").tcp(80)).await.unwrap();
    let address = held.settled().await.unwrap();
    let owner = bed.wait_for_owner(address).await.unwrap();
    let others: Vec<_> = bed.pods().into_iter().filter(|pod| pod.node != bed.lan.host(owner).name()).collect();
    held.publish(&others).await.unwrap();
    held.wait_until_every_node_serves(80).await.unwrap();
    bed.wait_for_identity_card().await.unwrap();

    // Out of safe mode it is announced.
    bed.ccm().stop().unwrap();
    let (_control, taken) = restored(&case, "control", 160).await;
    bed.wait_for_owner(taken).await.unwrap();

    let (right, other) = (bed.fresh_cloud_config().unwrap(), OtherHarvester::start(&bed).unwrap());
    bed.write_cloud_config(&other.cloud_config(&bed).unwrap()).unwrap();
    bed.ccm().start().unwrap();
    wait_for_safe_mode(case.client(), "WrongHarvester").await.unwrap();
    let leases: Api<Lease> = Api::namespaced(case.client().clone(), "kube-system");
    wait_for("safe mode on the Lease", PATIENCE, || async {
        let lease = leases.get(CCM_LEASE).await.map_err(|error| error.to_string())?;
        let told = lease.annotations().get("cloudprovider.harvesterhci.io/safe-mode").cloned();
        if told.as_deref() == Some("WrongHarvester") { Ok(()) } else { Err(format!("{told:?}")) }
    })
    .await
    .unwrap();
    let_it_happen(1).await;

    let probe = ask(&bed, Traffic::http((address, 80).into())).unwrap();
    let (_new, new) = restored(&case, "new", 161).await;
    // Clients know this one, and it is the original that answers.
    let original = bed.lan.add_host("original", 77).unwrap();
    let (copied, known) = restored(&case, "copied", 162).await;
    original.ip([format!("addr add {known}/24 dev eth0")]).unwrap();
    copied.patch_status(json!({"status": {"loadBalancer": {"ingress": [{"ip": known}]}}})).await.unwrap();
    let_it_happen(LONG_ENOUGH).await;
    assert_eq!(bed.owner_of(new).unwrap(), None, "nothing new");
    assert_eq!(bed.owner_of(known).unwrap(), None, "not beside the original");
    assert_eq!(bed.owner_of(address).unwrap(), Some(owner), "what is held is kept");
    bed.wait_for_mac(known, &original.mac()).await.unwrap();

    // The original is gone, and so is the node that had the other one.
    original.ip([format!("addr del {known}/24 dev eth0")]).unwrap();
    bed.wait_for_owner(known).await.unwrap();
    bed.power_off(owner).unwrap();
    held.wait_for_other_vip_host(owner).await.unwrap();
    at_most(CAREFUL, "power loss in safe mode", [probe]).unwrap();
    assert_eq!(bed.owner_of(new).unwrap(), None, "nothing new");

    bed.power_on(owner).unwrap();
    if bed.ccm().check().is_err() {
        bed.ccm().start().unwrap();
    }
    bed.write_cloud_config(&right).unwrap();
    wait_for_the_end_of_safe_mode(case.client()).await.unwrap();
    let web = case.named("new");
    let served = web.address().await.unwrap();
    bed.wait_for_owner(served).await.unwrap();
    assert!(web.annotation(kube_vip::VIP_HOST).await.unwrap().starts_with("node"));
    assert_eq!(other.writes(), Vec::<String>::new());
}
