//! The LAN is split, and only the smaller part of it reaches the API: one node, without clients and gateway. The owner
//! is on the clients' side and cannot renew its Lease. When that Lease has run out, the node that is cut off takes the
//! record and announces the address on its own side. Clients notice nothing of that. What they notice afterwards
//! depends on which of the two faults ends first.

use std::sync::Arc;
use std::time::Duration;

use contract::leases::MEMBER_PREFIX;
use e2e::lan_faults::{ObservedOutage, answers_of};
use e2e::watch::{FAILOVER, OVERLAP, end, let_it_happen};
use e2e::{Bed, Case};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use testbed::{Fault, Nic};

use super::alone;
use super::vip::{Vip, at_most};

/// P8 of docs/announcer.md: an owner that was never heard under its record is replaced within 8 s. A node counts from
/// when it has seen the record. After an outage the watches of two nodes, or two of one node, are back some seconds
/// apart: the longest pause between two attempts is 3 s, with jitter.
const NEVER_HEARD: Duration = Duration::from_secs(8 + 4);
/// How often [`Vip::watch`] asks who has the address.
const ASKED_EVERY: Duration = Duration::from_millis(20);

/// A VIP that two nodes announce, each on its side of the LAN.
struct Divided<'a> {
    vip: Vip<'a>,
    /// The node that is cut off and has the API and the record, counted from 1.
    minority: usize,
    /// The term of the owner that clients reach.
    term: u64,
    split: Fault,
    /// The cables of the other nodes to the API.
    management: Vec<Arc<Nic>>,
}

impl<'a> Divided<'a> {
    /// The first in line is cut off. Until its record counts, and afterwards, clients lose nothing and hear the owner
    /// alone.
    async fn begin(bed: &'a Bed, case: &'a Case<'_>, last: u8) -> Self {
        let vip = Vip::new(bed, case, last).await;
        // Pods are reached over the LAN too. This one stays on the clients' side.
        vip.web.publish(&[bed.pod(vip.owner)]).await.unwrap();
        vip.web.wait_until_every_node_serves(80).await.unwrap();
        // The nodes have heard gateway and client by then.
        let_it_happen(3).await;
        let (term, watch) = (vip.term().await, vip.watch());
        let minority = vip.owner % 3 + 1;
        let others = (1..=3).filter(|n| *n != minority);
        let management: Vec<Arc<Nic>> = others.map(|n| bed.lan.host(n).nic("mgmt0")).collect();
        management.iter().try_for_each(|nic| nic.cut()).unwrap();
        let split = bed.lan.segment().split(&[bed.lan.host(minority).nic("eth0")]).unwrap();
        vip.web.wait_for_vip_host(bed.lan.host(minority).name()).await.unwrap();
        // P21: as long as the Lease is valid, a node that is cut off takes nothing from an owner that clients hear.
        let run_out = run_out_for(bed, vip.owner).await;
        assert!(run_out >= 0, "the record was taken {} s before the owner's Lease has run out", -run_out);
        let_it_happen(3).await;
        let announced = [vip.owner, minority].map(|n| bed.lan.host(n).has_address(vip.address).unwrap());
        assert_eq!(announced, [true, true], "the owner and the node that is cut off have the address");
        ObservedOutage::nothing("a node that is cut off alone has the API", watch).unwrap();
        assert_eq!(vip.term().await, term + 1, "one node has taken the record, once");
        Self { vip, minority, term, split, management }
    }
}

/// For how many seconds the membership Lease of node `n` has run out, as it stands in the API. Negative: it is valid.
async fn run_out_for(bed: &Bed, n: usize) -> i64 {
    let leases: Api<Lease> = Api::namespaced(bed.client().await.unwrap(), "kube-system");
    let lease = leases.get(&format!("{MEMBER_PREFIX}{}", bed.lan.host(n).name())).await.unwrap().spec.unwrap();
    let since = Timestamp::now().as_second() - lease.renew_time.unwrap().0.as_second();
    since - i64::from(lease.lease_duration_seconds.unwrap())
}

/// The owner that clients have hears the claim, and needs no API to withdraw.
#[tokio::test]
async fn clients_stay_with_their_owner_until_they_hear_the_cut_off_node_that_alone_has_the_api() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("lan-first").await.unwrap();
    let Divided { vip, minority, term, split, management } = Divided::begin(&bed, &case, 196).await;
    let watch = vip.watch();
    drop(split);
    vip.is_announced_by(minority).await;
    vip.is_gone_from(vip.owner).await;
    let_it_happen(3).await;
    at_most(FAILOVER, "the LAN is whole before the API is back", watch).unwrap();

    management.iter().try_for_each(|nic| nic.plug()).unwrap();
    for n in 1..=3 {
        bed.wait_until_announcing(n).await.unwrap();
    }
    let_it_happen(5).await;
    vip.is_announced_by(minority).await;
    vip.is_gone_from(vip.owner).await;
    assert_eq!(vip.term().await, term + 1, "nobody has taken it back");
    vip.is_deleted().await;
    bed.restart_proxies().unwrap();
}

/// The owner that clients have reads that it has lost, and withdraws. The node in the record renews its Lease, and
/// neither clients nor nodes hear it.
#[tokio::test]
async fn clients_of_nodes_that_have_the_api_again_do_not_wait_for_a_cut_off_node_that_was_never_heard() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("api-first").await.unwrap();
    let Divided { vip, minority, term, split, management } = Divided::begin(&bed, &case, 197).await;
    let (probe, answerers) = vip.watch();
    management.iter().try_for_each(|nic| nic.plug()).unwrap();
    let second = vip.moved_from(minority).await;
    let_it_happen(3).await;
    let what = "the API is back before the LAN is whole";
    let report = end(what, probe, Some(NEVER_HEARD)).unwrap();
    let answers = answers_of(what, &answerers).unwrap();
    assert!(report.outage < NEVER_HEARD, "{report}");
    // A client that knows the owner's MAC may still be served there, where kube-proxy translates the address. One that
    // asks for it is not answered.
    let unanswered = ASKED_EVERY * u32::try_from(answers.unanswered).unwrap();
    assert!(unanswered < NEVER_HEARD && answers.overlap < OVERLAP, "{answers}");

    // The node that is cut off has read that it has lost, so nothing happens when it is heard again.
    vip.is_gone_from(minority).await;
    let watch = vip.watch();
    drop(split);
    let_it_happen(5).await;
    ObservedOutage::nothing("the LAN is whole after the API is back", watch).unwrap();
    vip.is_announced_by(second).await;
    assert_eq!(vip.term().await, term + 2, "the record went to the node that was cut off, and from there once");
    vip.is_deleted().await;
    bed.restart_proxies().unwrap();
}
