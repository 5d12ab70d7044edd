//! `service` mode, and the way from one mode to another on a cluster that serves. Two nodes; the Lease has short
//! durations.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use e2e::lan_faults::answers_of;
use e2e::wire::Renewal;
use e2e::{Bed, Beds, Case, PATIENCE, service, wait_for, watch};
use harvester_api::keys::kube_vip;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use testbed::{Probe, Traffic};
use tokio::sync::MutexGuard;

static BEDS: Beds = Beds::new();

const DURATION: Duration = Duration::from_secs(5);
/// Another node has what has expired within this time, without the machine's stalls.
const MOVE: Duration = DURATION.saturating_add(Duration::from_secs(2));
/// docs/announcer.md says of the way to `service` that two nodes, both serving, answer for a second.
const TO_SERVICE: Duration = Duration::from_millis(1500);

/// The bed with all announcers in `mode`.
async fn alone(mode: &str) -> (MutexGuard<'static, ()>, Arc<Bed>) {
    let builder =
        Bed::builder().without_ccm().without_pool().not_started().chart_value("kube-vip.env.svc_election=true");
    let builder = builder.announcer_env("vip_leaseduration", "5").announcer_env("vip_renewdeadline", "3");
    let (guard, bed) = BEDS.alone(|| builder.announcer_env("vip_retryperiod", "1").start()).await.unwrap();
    bed.hold_announcer_lease("", Duration::from_secs(1)).await.unwrap();
    for n in 1..=2 {
        bed.announcer(n).kill();
        start_in(&bed, n, mode).await;
    }
    (guard, bed)
}

async fn start_in(bed: &Bed, n: usize, mode: &str) {
    bed.announcer(n).set_env("election_mode", mode);
    bed.announcer(n).start().unwrap();
    bed.wait_until_announcing(n).await.unwrap();
}

/// kube-vip's Lease of one Service.
#[derive(Clone)]
struct ServiceLease {
    leases: Api<Lease>,
    name: String,
}

impl ServiceLease {
    fn of(case: &Case<'_>, service: &str) -> Self {
        let leases = Api::namespaced(case.client().clone(), case.namespace());
        Self { leases, name: format!("kubevip-{service}") }
    }

    async fn holder(&self) -> Option<String> {
        self.leases.get_opt(&self.name).await.unwrap()?.spec?.holder_identity
    }

    /// Writes it as a kube-vip on node `identity` does; an empty name gives it back.
    async fn hold(&self, identity: &str) -> anyhow::Result<()> {
        let now = MicroTime(Timestamp::now());
        let spec = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": self.name}, "spec": {"holderIdentity": identity,
            "leaseDurationSeconds": DURATION.as_secs(), "renewTime": now, "acquireTime": now, "leaseTransitions": 1}});
        let params = PatchParams::apply("kube-vip").force();
        self.leases.patch(&self.name, &params, &Patch::Apply(&spec)).await?;
        Ok(())
    }
}

fn ask(bed: &Bed, address: IpAddr) -> Probe {
    watch::ask(bed, Traffic::http((address, 80).into())).unwrap()
}

async fn at(case: &Case<'_>, name: &str, last: u8) -> (String, IpAddr) {
    let address = IpAddr::from(case.bed().lan.ipv4(last));
    let web = case.expose(service(name).at(&address.to_string()).tcp(80)).await.unwrap();
    web.wait_for_addresses(&[address]).await.unwrap();
    web.reply(address, 80).await.unwrap();
    web.wait_until_every_node_serves(80).await.unwrap();
    (name.to_owned(), address)
}

#[tokio::test]
async fn each_service_has_a_lease_of_its_own_that_is_handed_on_and_lost_alone() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone("service").await;
    let case = bed.case("leases").await.unwrap();
    let (a, b) = (at(&case, "a", 170).await, at(&case, "b", 171).await);
    let services = [a, b].map(|(name, address)| (case.named(&name), ServiceLease::of(&case, &name), address));
    for (web, lease, address) in &services {
        let owner = bed.wait_for_owner(*address).await.unwrap();
        let node = bed.lan.host(owner).name();
        assert_eq!(lease.holder().await.as_deref(), Some(node), "kube-vip's name and identity");
        web.wait_for_vip_host(node).await.unwrap();
    }
    assert_eq!(bed.announcer_lease_holder().await.unwrap(), "", "nobody asks for the one Lease of all");

    // An orderly end: the other node has the Lease and the address before this one withdraws.
    let (web, lease, address) = &services[0];
    let owner = bed.wait_for_owner(*address).await.unwrap();
    let other = 3 - owner;
    let probe = ask(&bed, *address);
    bed.announcer(owner).stop().unwrap();
    let successor = bed.lan.host(other);
    web.wait_for_vip_host(successor.name()).await.unwrap();
    bed.wait_for_mac(*address, &successor.mac()).await.unwrap();
    assert_eq!(lease.holder().await.as_deref(), Some(successor.name()));
    web.reply(*address, 80).await.unwrap();
    watch::only_what_was_under_way_was_lost("orderly end", 1, probe).unwrap();
    for (.., address) in &services {
        assert_eq!(bed.wait_for_owner(*address).await.unwrap(), other, "it has both now");
    }

    // A crash: the Lease expires, the other node takes it, and the kernel has removed the address here by then.
    start_in(&bed, owner, "service").await;
    let probes = services.each_ref().map(|(.., address)| ask(&bed, *address));
    bed.announcer(other).kill();
    for (web, lease, address) in &services {
        web.wait_for_vip_host(bed.lan.host(owner).name()).await.unwrap();
        bed.wait_for_mac(*address, &bed.lan.host(owner).mac()).await.unwrap();
        assert_eq!(lease.holder().await.as_deref(), Some(bed.lan.host(owner).name()));
        web.reply(*address, 80).await.unwrap();
    }
    watch::at_most(MOVE, "crash", probes).unwrap();
    start_in(&bed, other, "service").await;
    for (web, _, address) in &services {
        web.delete_with(*address).await.unwrap();
    }
}

/// A kube-vip in per-service mode on another node, played by the Lease that it renews.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_holder_of_one_lease_is_respected_and_the_other_service_stays() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone("service").await;
    let case = bed.case("foreign").await.unwrap();
    let address = IpAddr::from(bed.lan.ipv4(172));
    let lease = ServiceLease::of(&case, "theirs");
    let renewed = lease.clone();
    let held = move || {
        let lease = renewed.clone();
        async move { lease.hold("kube-vip-node").await }
    };
    let foreign = Renewal::begin(held.clone()).await.unwrap();
    let theirs = case.expose(service("theirs").at(&address.to_string()).tcp(80)).await.unwrap();
    let (own, beside) = at(&case, "ours", 173).await;
    // It renews for longer than its duration.
    for _ in 0..DURATION.as_secs() + 2 {
        watch::let_it_happen(1).await;
        assert_eq!(bed.owner_of(address).unwrap(), None);
    }
    assert_eq!(lease.holder().await.as_deref(), Some("kube-vip-node"));

    foreign.end().await.unwrap();
    // It dies: taken after expiry. It comes back and takes the Lease by its own means: given up, and nothing else is.
    theirs.reply(address, 80).await.unwrap();
    let probe = ask(&bed, beside);
    let foreign = Renewal::begin(held).await.unwrap();
    theirs.wait_until_withdrawn(address).await.unwrap();
    foreign.end().await.unwrap();
    lease.hold("").await.unwrap();
    theirs.reply(address, 80).await.unwrap();
    watch::nothing_was_lost("the other Service", [probe]).unwrap();
    theirs.delete_with(address).await.unwrap();
    case.named(&own).delete_with(beside).await.unwrap();
}

/// Node by node, as a DaemonSet is replaced after the value was changed. The term that `node` mode has written stays on
/// the Service; it must mislead nobody.
#[tokio::test]
async fn a_cluster_goes_from_mode_to_mode_and_back_and_serves_all_the_time() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone("node").await;
    let case = bed.case("modes").await.unwrap();
    let address = IpAddr::from(bed.lan.ipv4(174));
    let (name, _) = at(&case, "web", 174).await;
    let web = case.named(&name);
    for (from, to) in [("node", "global"), ("global", "node"), ("node", "service"), ("service", "node")] {
        let probe = ask(&bed, address);
        let answerers = bed.lan.client().ask_who_has(bed.lan.ipv4(174), Duration::from_millis(20)).unwrap();
        for n in 1..=2 {
            bed.announcer(n).stop().unwrap();
            start_in(&bed, n, to).await;
        }
        // Beyond the end of everything that the old mode has left.
        tokio::time::sleep(DURATION * 2).await;
        let owner = wait_for("one node to have it", PATIENCE, || async {
            let owner = bed.owner_of(address).map_err(|error| format!("{error:#}"))?;
            owner.ok_or_else(|| "nobody has it".to_owned())
        })
        .await
        .unwrap();
        bed.wait_for_mac(address, &bed.lan.host(owner).mac()).await.unwrap();
        web.wait_for_vip_host(bed.lan.host(owner).name()).await.unwrap();
        web.wait_for_addresses(&[address]).await.unwrap();
        web.reply(address, 80).await.unwrap();
        let what = format!("{from} to {to}");
        // No page promises more: what the old mode has left may have to expire first.
        watch::at_most(MOVE, &what, [probe]).unwrap();
        let answers = answers_of(&what, &answerers).unwrap();
        let limit = if to == "service" { TO_SERVICE } else { watch::OVERLAP_OF_MODES };
        assert!(answers.overlap < limit, "{what}, at most {limit:?}: {answers}");
        assert!(!web.annotation(kube_vip::VIP_HOST).await.unwrap().is_empty());
    }
    web.delete_with(address).await.unwrap();
}
