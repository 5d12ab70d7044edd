//! What nodes of ours say about an address is no conflict: one of the two does not know the newest record yet.

use super::*;

const STRANGER: [u8; 6] = [2, 9, 9, 9, 9, 9];

#[test]
fn the_announcement_of_another_node_has_the_record_read_and_neither_alarms_nor_is_answered() {
    for (who, alarms) in [(mac("node-2"), false), (STRANGER, true)] {
        let mut cluster = owner(&ALL);
        cluster.node.told.clear();
        // The first words of a successor to an owner that was only paused; his claim with the term comes behind them.
        cluster.node.heard(2, "10.0.0.5", who, Heard::Claim);
        assert!(cluster.has());
        assert_eq!(cluster.node.swaps.len(), 1, "the record is read again");
        assert_eq!(cluster.node.reasons().contains(&"AddressConflict"), alarms, "{who:?}");
        let announced = cluster.node.take_log().iter().any(|line| line.starts_with("announce"));
        assert_eq!(announced, alarms, "clients must not be led back to who has lost: {who:?}");
    }
}

#[test]
fn a_node_that_has_just_lost_its_cable_is_still_one_of_ours() {
    let mut cluster = owner(&ALL);
    cluster.node.told.clear();
    cluster.member("node-2", Card { links: Vec::new(), ..card("node-2") });
    cluster.node.heard(2, "10.0.0.5", mac("node-2"), Heard::Claim);
    assert!(cluster.has() && cluster.node.told.is_empty(), "{:?}", cluster.node.told);
}

#[test]
fn what_was_handed_over_is_taken_back_at_once_when_the_new_owner_dies() {
    let mut cluster = owner(&["node-1", "node-2"]);
    cluster.node.feed(Input::Node("node-1".into(), Some(NodeFacts { shut_out: true, ..FACTS })));
    cluster.won();
    cluster.claims("node-2", "10.0.0.5", "web", 5);
    assert!(!cluster.has());
    cluster.node.feed(Input::Node("node-1".into(), Some(FACTS)));
    cluster.quiet(500, &[("node-2", "10.0.0.5")], &["node-1", "node-2"]);
    // Its successor in the LAN's eyes is us again; the record says so before anything else.
    cluster.shows("web", "node-1", 6);
    cluster.node.pass_ms(50);
    assert!(cluster.has(), "not only when a Lease has passed");
}

#[test]
fn a_new_owner_takes_what_another_node_still_answers_for_and_not_what_a_stranger_has() {
    for (who, takes) in [(mac("node-2"), true), (STRANGER, false)] {
        let mut cluster = Cluster::new(&["node-1", "node-2"], &[view("web", &["10.0.0.5"])]);
        if cluster.node.swaps.is_empty() {
            cluster.shows("web", "node-1", 1);
        } else {
            cluster.won();
        }
        cluster.node.heard(2, "10.0.0.5", who, Heard::Answer);
        cluster.node.pass_ms(50);
        assert_eq!(cluster.has(), takes, "{who:?}");
        assert_eq!(cluster.node.reasons().contains(&"AddressConflict"), !takes, "{who:?}");
    }
}

#[test]
fn what_another_node_still_answers_for_is_no_conflict_just_after_an_outage_of_the_api() {
    let mut cluster = Cluster::new(&["node-1", "node-2"], &[seated("other", "10.0.0.6", "node-2", 1)]);
    // Out of touch: our own renewals do not come back.
    cluster.quiet(20_000, &[("node-2", "10.0.0.6")], &[]);
    let mut web = view("web", &["10.0.0.5"]);
    (web.published.vip_host, web.published.term) = (Some("node-1".into()), Some(Term(3)));
    cluster.node.upsert(web);
    cluster.node.heard(2, "10.0.0.5", mac("node-2"), Heard::Answer);
    cluster.node.pass_ms(100);
    assert!(cluster.has() && cluster.node.told.is_empty(), "{:?}", cluster.node.told);
}

#[test]
fn an_owner_that_has_not_seen_that_its_service_was_made_anew_gives_way_to_the_new_owner() {
    let mut cluster = owner(&ALL);
    // With the UID of another Service: nothing proves it here.
    cluster.claims("node-2", "10.0.0.5", "made-anew", 5);
    assert!(cluster.has());
    let asked = cluster.node.swaps.pop().expect("the record is read again");
    cluster.answered(asked, Swapped::Gone);
    assert!(!cluster.has());
    cluster.quiet(1000, &[], &ALL);
    assert_eq!(cluster.node.swaps, [], "what is gone is not taken back");
}

#[test]
fn the_mac_of_another_node_is_given_to_no_service() {
    let mut web = view("web", &["dhcp"]);
    web.published.vip_host = Some("node-1".into());
    web.published.term = Some(Term(4));
    web.dhcp.mac = Some(mac("node-2").into());
    let mut cluster = Cluster::new(&ALL, &[web]);
    cluster.quiet(5000, &[], &ALL);
    assert!(!cluster.node.log.iter().any(|line| line.contains("macvlan")), "{:?}", cluster.node.log);
    assert_eq!(cluster.node.reasons(), ["CannotAnnounce"]);
    assert!(cluster.node.told[0].1.text.contains("kube-vip.io/hwaddr"), "{:?}", cluster.node.told);
}
