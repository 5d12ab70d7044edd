//! What the product writes to the two APIs: little for something new, nothing for something that is as it should be.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::ensure;
use e2e::watch::{let_it_happen, nothing_was_lost, nothing_was_written, one_of_three};
use e2e::{Bed, Beds, Case, Exposed, Mark, service, wait_for};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use testbed::{Probe, Traffic};
use tokio::sync::MutexGuard;

// These tests count the writes of the whole product, by the audit logs of their bed: one at a time on each.
static BEDS: Beds = Beds::new();

async fn alone() -> (MutexGuard<'static, ()>, Arc<Bed>) {
    BEDS.alone(|| Bed::builder().start()).await.unwrap()
}

async fn cost_of_a_new_service(ipam: &str, announcer_writes: usize) {
    let (_alone, bed) = alone().await;
    // An announcer that does not get its turn for two seconds is passed over: then two of them write.
    one_of_three(&format!("budget of a {ipam} Service"), async || {
        let case = bed.case(&format!("budget-{ipam}")).await?;
        let mark = bed.mark();
        let web = case.expose(service("web").ipam(ipam).tcp(80)).await?;
        let address = web.settled().await?;
        web.reply(address, 80).await?;
        let_it_happen(3).await;
        let costs = bed.costs(mark)?;
        web.delete().await?;
        web.wait_until_gone().await?;
        web.wait_until_withdrawn(address).await?;
        eprintln!("{costs}");
        ensure!(costs.ccm_guest.len() <= 3, "guest: finalizer, annotations, and that it is served\n{costs}");
        ensure!(costs.ccm_events.len() <= 2, "Events: ensuring and ensured\n{costs}");
        ensure!(costs.ccm_harvester.len() <= 2, "Harvester: the object and its mailbox\n{costs}");
        ensure!(costs.announcer.len() <= announcer_writes, "announcer: annotations and status\n{costs}");
        // The test counts something.
        ensure!(!costs.ccm_guest.is_empty() && !costs.ccm_events.is_empty(), "{costs}");
        ensure!(!costs.ccm_harvester.is_empty() && !costs.announcer.is_empty(), "{costs}");
        let refused = [costs.ccm_guest, costs.ccm_harvester, costs.announcer].concat();
        let refused: Vec<_> = refused.into_iter().filter(|request| request.code >= 400).collect();
        ensure!(refused.is_empty(), "{refused:?}");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_new_pool_service_costs_three_writes_here_two_on_harvester_and_two_events() {
    if !e2e::skip() {
        cost_of_a_new_service("pool", 2).await;
    }
}

#[tokio::test]
async fn a_new_dhcp_service_costs_one_write_more_for_its_lease() {
    if !e2e::skip() {
        // Who owns it is settled before the server is asked.
        cost_of_a_new_service("dhcp", 3).await;
    }
}

#[tokio::test]
async fn a_change_that_concerns_nobody_costs_nothing() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("unrelated").await.unwrap();
    let web = case.expose(service("web").tcp(80)).await.unwrap();
    web.settled().await.unwrap();
    let_it_happen(3).await;
    let mark = bed.mark();
    let change = serde_json::json!({"metadata": {"annotations": {"example/x": "1"}, "labels": {"example/y": "2"}}});
    web.patch(change).await.unwrap();
    bed.register_node(&e2e::NodeSketch { uninitialized: false, ..e2e::NodeSketch::new("bystander") }).await.unwrap();
    let_it_happen(3).await;
    bed.delete_node("bystander").await.unwrap();
    let_it_happen(3).await;
    let mut costs = bed.costs(mark).unwrap();
    // The new Node may get the addresses that the provider knows for it; this test is about Services.
    costs.ccm_guest.retain(|request| !request.resource.starts_with("nodes"));
    costs.ccm_events.retain(|request| request.namespace.as_deref() != Some("default"));
    assert_eq!(costs.total(), 0, "{costs}");
}

#[tokio::test]
async fn a_service_that_cannot_be_served_is_let_go_in_one_write_and_keeps_what_is_others() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("let-go").await.unwrap();
    let web = case.expose(service("web").ipam("none-such").tcp(80)).await.unwrap();
    let conditions = |service: &Service| {
        let status = service.status.clone().unwrap_or_default();
        status.conditions.unwrap_or_default().into_iter().map(|condition| condition.type_).collect::<Vec<_>>()
    };
    let told = |service: &Service| match conditions(service) {
        told if told == ["LoadBalancerReady"] => Ok(()),
        other => Err(format!("conditions {other:?}")),
    };
    web.wait_for("its condition", told).await.unwrap();
    let mut finalizers = web.get().await.unwrap().metadata.finalizers.unwrap_or_default();
    assert_eq!(finalizers.len(), 1, "{finalizers:?}");
    finalizers.push("example.com/other".to_owned());
    web.patch(serde_json::json!({"metadata": {"finalizers": finalizers}})).await.unwrap();
    let_it_happen(3).await;

    let mark = bed.mark();
    web.patch(serde_json::json!({"spec": {"type": "ClusterIP"}})).await.unwrap();
    let let_go = |service: &Service| match service.metadata.finalizers.as_deref().unwrap_or_default() {
        [other] if other == "example.com/other" => Ok(()),
        all => Err(format!("finalizers {all:?}")),
    };
    web.wait_for("being let go", let_go).await.unwrap();
    assert_eq!(conditions(&web.get().await.unwrap()), Vec::<String>::new());
    let_it_happen(3).await;
    let costs = bed.costs(mark).unwrap();
    assert!(costs.ccm_guest.len() == 1 && costs.ccm_guest[0].code < 400, "{costs}");
    assert_eq!(costs.ccm_harvester.len(), 0, "{costs}");
    web.patch(serde_json::json!({"metadata": {"finalizers": null}})).await.unwrap();
}

/// Services of every kind, all served.
struct Healthy<'a> {
    web: Exposed<'a>,
    addresses: BTreeSet<IpAddr>,
}

impl<'a> Healthy<'a> {
    async fn new(case: &'a Case<'_>) -> Self {
        let web = case.expose(service("web").tcp(80)).await.unwrap();
        let lease = case.expose(service("lease").ipam("dhcp").tcp(80)).await.unwrap();
        let local = case.expose(service("local").set("externalTrafficPolicy", "Local").tcp(80)).await.unwrap();
        let mut addresses = BTreeSet::new();
        for exposed in [&web, &lease, &local] {
            let address = exposed.settled().await.unwrap();
            exposed.reply(address, 80).await.unwrap();
            addresses.insert(address);
        }
        let shared = case.expose(service("shared").sharing_with(&web).udp(80)).await.unwrap();
        let address = shared.settled().await.unwrap();
        shared.udp_reply(address, 80).await.unwrap();
        let_it_happen(3).await;
        Self { web, addresses }
    }

    fn probes(&self, bed: &Bed) -> Vec<Probe> {
        let targets = self.addresses.iter().map(|address| SocketAddr::from((*address, 80)));
        targets.map(|target| e2e::watch::ask(bed, Traffic::Http(target)).unwrap()).collect()
    }
}

async fn holder(bed: &Bed, name: &str) -> String {
    let leases: Api<Lease> = Api::namespaced(bed.client().await.unwrap(), "kube-system");
    leases.get(name).await.unwrap().spec.and_then(|spec| spec.holder_identity).unwrap_or_default()
}

/// Waits until the restarted cloud controller manager leads and has looked at every Service, old and new.
async fn ccm_works_again(bed: &Bed, mark: Mark, former: &str) {
    wait_for("the cloud controller manager to lead again", e2e::PATIENCE, || async {
        bed.ccm().check().map_err(|error| format!("{error:#}"))?;
        let holder = holder(bed, "cloud-controller-manager").await;
        if holder.is_empty() || holder == former { Err(format!("the lease is held by {holder:?}")) } else { Ok(()) }
    })
    .await
    .unwrap();
    let audit = bed.harvester.audit();
    wait_for("its watch on LoadBalancers", e2e::PATIENCE, || async {
        let requests = audit.since(mark.harvester).map_err(|error| error.to_string())?;
        let watches = |request: &&testbed::Request| request.verb == "watch" && request.resource == "loadbalancers";
        requests.iter().find(watches).map(drop).ok_or_else(|| format!("{} requests", requests.len()))
    })
    .await
    .unwrap();
}

async fn restart_of_the_ccm(kill: bool) {
    let (_alone, bed) = alone().await;
    let case = bed.case(if kill { "ccm-crash" } else { "ccm-restart" }).await.unwrap();
    let healthy = Healthy::new(&case).await;
    let probes = healthy.probes(&bed);
    let former = holder(&bed, "cloud-controller-manager").await;
    let mark = bed.mark();
    if kill {
        bed.ccm().kill();
    } else {
        let status = bed.ccm().stop().unwrap();
        assert_eq!(status.code(), Some(0), "SIGTERM is a clean end");
    }
    bed.ccm().start().unwrap();
    ccm_works_again(&bed, mark, &former).await;
    let_it_happen(3).await;
    nothing_was_written(&bed, mark).unwrap();
    nothing_was_lost("restart of the cloud controller manager", probes).unwrap();
    // It is alive: a new port is served.
    let late = case.expose(service("late").tcp(80)).await.unwrap();
    let address = late.settled().await.unwrap();
    late.reply(address, 80).await.unwrap();
}

#[tokio::test]
async fn a_restart_of_the_ccm_writes_nothing_and_loses_no_reply() {
    if !e2e::skip() {
        restart_of_the_ccm(false).await;
    }
}

#[tokio::test]
async fn a_crash_of_the_ccm_writes_nothing_and_loses_no_reply() {
    if !e2e::skip() {
        restart_of_the_ccm(true).await;
    }
}

#[tokio::test]
async fn a_crash_of_the_owning_announcer_writes_nothing_and_loses_no_reply() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("announcer-crash").await.unwrap();
    let healthy = Healthy::new(&case).await;
    let address = healthy.web.address().await.unwrap();
    let owner = bed.owner_of(address).unwrap().unwrap();
    let probes = healthy.probes(&bed);
    let mark = bed.mark();
    bed.announcer(owner).kill();
    bed.announcer(owner).start().unwrap();
    bed.wait_until_announcing(owner).await.unwrap();
    let_it_happen(3).await;
    assert_eq!(bed.owner_of(address).unwrap(), Some(owner));
    nothing_was_written(&bed, mark).unwrap();
    nothing_was_lost("crash of the owner", probes).unwrap();
}

#[tokio::test]
async fn a_restart_of_an_announcer_that_owns_nothing_writes_nothing_and_loses_no_reply() {
    if e2e::skip() {
        return;
    }
    // In `global` mode one announcer owns all addresses, so the other one owns nothing.
    let bed = Bed::builder().announcer_env("election_mode", "global").start().await.unwrap();
    let case = bed.case("announcer-idle").await.unwrap();
    let healthy = Healthy::new(&case).await;
    let owner = bed.owner_of(healthy.web.address().await.unwrap()).unwrap().unwrap();
    let idle = if owner == 1 { 2 } else { 1 };
    let probes = healthy.probes(&bed);
    let mark = bed.mark();
    bed.announcer(idle).restart().unwrap();
    bed.wait_until_announcing(idle).await.unwrap();
    let_it_happen(3).await;
    nothing_was_written(&bed, mark).unwrap();
    nothing_was_lost("restart of an idle announcer", probes).unwrap();
}

/// Decision 26: where nobody can take over, addresses outlive the process.
#[tokio::test]
async fn a_restart_of_the_only_announcer_writes_nothing_and_loses_no_reply() {
    if e2e::skip() {
        return;
    }
    let bed = Bed::builder().nodes(1).start().await.unwrap();
    let case = bed.case("announcer-only").await.unwrap();
    let healthy = Healthy::new(&case).await;
    let probes = healthy.probes(&bed);
    let mark = bed.mark();
    let status = bed.announcer(1).stop().unwrap();
    assert_eq!(status.code(), Some(0), "SIGTERM is a clean end");
    bed.announcer(1).start().unwrap();
    bed.wait_until_announcing(1).await.unwrap();
    let_it_happen(3).await;
    nothing_was_written(&bed, mark).unwrap();
    nothing_was_lost("restart of the only announcer", probes).unwrap();
}
