//! Leases that change under the hands of several nodes: all have them with one MAC, and each may have got another
//! address.

use super::*;
use crate::engine::tests::dhcp::leased;

/// Clients know it at 10.0.0.50, and this is its owner.
pub(super) fn leasing(host: &str, term: u64) -> ServiceView {
    let mut view = seated("web", "10.0.0.50", host, term);
    let lease = Some(facts("10.0.0.50"));
    view.wanted = super::view("web", &["dhcp"]).wanted;
    (view.dhcp.lease, view.published.lease) = (lease.clone(), lease);
    view
}

fn bind(cluster: &mut Cluster, address: &str) {
    let lease = leased(&cluster.node, address, 600);
    cluster.node.dhcp("web", DhcpEvent::Bound(lease));
    cluster.node.pass_ms(50);
}

/// The MAC that the Service has on all nodes.
fn shared_mac(cluster: &Cluster) -> Mac {
    let view = &cluster.node.engine.services[&ServiceKey::new("default", "web")];
    view.dhcp.mac.unwrap_or_else(|| crate::network::mac_of(&view.uid))
}

/// A node that has it too says so, from the MAC of the macvlan.
fn claimed(cluster: &mut Cluster, address: &str, term: u64) {
    let (address, mac): (IpAddr, _) = (address.parse().unwrap(), shared_mac(cluster));
    let payload = Some(tag::seal(&Key::from(&uid("web")), address, mac, Term(term)));
    cluster.node.feed(Input::Heard(Frame { link: 2, address, mac, what: Heard::Claim, to_us: true, payload }));
}

fn is_up(cluster: &Cluster, net: &str) -> bool {
    cluster.node.kernel.has("vip-web00000", net)
}

#[test]
fn a_newer_claim_of_a_lease_counts_whatever_address_either_has_got() {
    for bound in [None, Some("10.0.0.50"), Some("10.0.0.60")] {
        let mut cluster = Cluster::new(&ALL, &[leasing("node-1", 4)]);
        cluster.node.pass_ms(100);
        if let Some(address) = bound {
            bind(&mut cluster, address);
        }
        cluster.node.take_log();
        claimed(&mut cluster, "10.0.0.50", 3);
        assert!(!cluster.node.log.iter().any(|line| line.starts_with("stop")), "{bound:?}: older");
        claimed(&mut cluster, "10.0.0.50", 5);
        let log = cluster.node.take_log();
        assert!(log.contains(&"stop dhcp web00000-uid release false".to_owned()), "{bound:?}: {log:?}");
        assert!(cluster.node.kernel.own().is_empty());
    }
}

#[test]
fn what_somebody_else_claims_with_this_mac_and_no_proof_is_nothing_to_a_lease_that_is_not_there_yet() {
    let mut cluster = Cluster::new(&ALL, &[leasing("node-1", 4)]);
    cluster.node.pass_ms(100);
    cluster.node.take_log();
    let (address, mac) = (IpAddr::from([10, 0, 0, 50]), shared_mac(&cluster));
    // As ARP frames are: padded with zeros.
    let payload = Some([0; 18]);
    cluster.node.feed(Input::Heard(Frame { link: 2, address, mac, what: Heard::Claim, to_us: false, payload }));
    assert!(cluster.node.take_log().is_empty());
    assert!(cluster.node.swaps.is_empty());
}

#[test]
fn whoever_has_lost_a_lease_is_told_of_the_address_that_it_gets_and_only_while_it_has_one() {
    let mut cluster = Cluster::new(&ALL, &[leasing("node-3", 4)]);
    cluster.shows("web", "node-1", 5);
    cluster.node.take_log();
    let claims = |cluster: &mut Cluster| -> BTreeSet<String> {
        cluster.node.pass_ms(200);
        let log = cluster.node.take_log();
        let claims = log.iter().filter(|line| line.starts_with("claim"));
        claims.map(|line| line.split(' ').nth(2).unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(claims(&mut cluster), BTreeSet::new(), "nothing is up");
    bind(&mut cluster, "10.0.0.60");
    assert!(is_up(&cluster, "10.0.0.60/32"));
    assert_eq!(claims(&mut cluster), BTreeSet::from(["10.0.0.60".to_owned()]));
    cluster.node.dhcp("web", DhcpEvent::Lost { address: "10.0.0.60".parse().unwrap(), why: "NAK".into() });
    cluster.node.take_log();
    assert_eq!(claims(&mut cluster), BTreeSet::new(), "the address is anybody's");
    bind(&mut cluster, "10.0.0.70");
    assert_eq!(claims(&mut cluster), BTreeSet::from(["10.0.0.70".to_owned()]));
}

/// The machine stood still; meanwhile the lease has ended and the server has given the address to somebody else.
#[test]
fn a_lease_that_is_over_is_not_defended() {
    let mut cluster = Cluster::new(&ALL, &[leasing("node-1", 4)]);
    cluster.node.pass_ms(100);
    bind(&mut cluster, "10.0.0.50");
    cluster.node.pass_ms(1000);
    let after = cluster.node.now + Duration::from_secs(601);
    let claim = Frame {
        link: 2,
        address: "10.0.0.50".parse().unwrap(),
        mac: Mac::new([2, 9, 9, 9, 9, 9]),
        what: Heard::Claim,
        to_us: true,
        payload: None,
    };
    let actions = cluster.node.engine.handle(after, Input::Heard(claim));
    assert!(!actions.iter().any(|action| matches!(action, Action::Tell(..) | Action::Announce { .. })), "{actions:?}");
}
