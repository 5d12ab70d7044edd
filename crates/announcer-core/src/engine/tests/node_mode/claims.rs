//! What others claim of ours: proven or not, of a member or of a stranger.

use super::*;

#[test]
fn a_proven_newer_claim_withdraws_at_once_and_the_record_is_asked_later() {
    let mut cluster = owner(&ALL);
    cluster.claims("node-2", "10.0.0.5", "web", 5);
    assert!(!cluster.has());
    // Only now the watch shows it.
    cluster.shows("web", "node-2", 5);
    cluster.quiet(3000, &[("node-2", "10.0.0.5")], &ALL);
    assert!(!cluster.has());
}

/// Whoever may read a Service can make a good tag.
#[test]
fn a_stranger_with_a_good_tag_has_the_record_read_once_a_second_and_gets_nothing() {
    let mut cluster = owner(&ALL);
    let (address, stranger) = (IpAddr::from([10, 0, 0, 5]), Mac::new([2, 9, 9, 9, 9, 9]));
    for term in 5..25 {
        let payload = Some(tag::seal(&Key::from(&uid("web")), address, stranger, Term(term)));
        cluster.node.feed(Input::Heard(Frame {
            link: 2,
            address,
            mac: stranger,
            what: Heard::Claim,
            to_us: true,
            payload,
        }));
        if let Some((key, swap)) = cluster.node.swaps.first() {
            assert_eq!(
                (term, swap.expect.as_ref()),
                (5, Some(&swap.owner_record)),
                "a swap that changes nothing, and only one"
            );
            let asked = (key.clone(), swap.clone());
            cluster.node.swaps.clear();
            cluster.answered(asked, Swapped::Won);
        }
    }
    assert!(cluster.has());
}

/// Keys of a Secret, old and new: whoever reads Services alone proves nothing any more.
#[test]
fn with_keys_of_a_secret_a_claim_by_each_of_them_counts_and_one_by_the_uid_does_not() {
    let texts = ["an old key of some bytes", "a new key of some bytes"];
    let key = |text: &str| Key::of(text.as_bytes(), &uid("web"));
    for (name, sealed, withdraws) in [
        ("the old key", key(texts[0]), true),
        ("the new key", key(texts[1]), true),
        ("a key that is none", key("another key of some bytes"), false),
        ("the UID", Key::from(&uid("web")), false),
    ] {
        let mut cluster = owner(&ALL);
        let secrets = texts.iter().filter_map(|text| ClaimSecret::new(text.as_bytes().to_vec())).collect();
        cluster.node.feed(Input::ClaimKeys(secrets));
        let (address, mac) = (IpAddr::from([10, 0, 0, 5]), Mac::new(mac("node-2")));
        let payload = Some(tag::seal(&sealed, address, mac, Term(5)));
        cluster.node.feed(Input::Heard(Frame { link: 2, address, mac, what: Heard::Claim, to_us: true, payload }));
        assert_eq!(!cluster.has(), withdraws, "{name}");
    }
}

#[test]
fn an_unproven_claim_is_defended_against_while_the_record_stands() {
    let mut cluster = owner(&ALL);
    cluster.node.heard(2, "10.0.0.5", [2, 9, 9, 9, 9, 9], Heard::Claim);
    cluster.claims("node-2", "10.0.0.5", "other", 9);
    cluster.claims("node-2", "10.0.0.5", "web", 3);
    assert!(cluster.has());
    assert!(cluster.node.reasons().contains(&"AddressConflict"));
}

#[test]
fn an_unproven_claim_has_the_record_read_again_and_not_more_often_than_once_a_second() {
    let mut cluster = owner(&ALL);
    let thief = [2, 9, 9, 9, 9, 9];
    for _ in 0..50 {
        cluster.node.heard(2, "10.0.0.5", thief, Heard::Claim);
    }
    let (key, swap) = cluster.node.swaps.pop().expect("it is read again");
    assert!(cluster.node.swaps.is_empty(), "once");
    assert_eq!(swap.expect.as_ref(), Some(&swap.owner_record), "a swap that changes nothing");
    cluster.answered((key, swap), Swapped::Won);
    assert!(cluster.has(), "it stands as we know it");
    cluster.quiet(1025, &[], &ALL);
    cluster.node.heard(2, "10.0.0.5", thief, Heard::Claim);
    let other = OwnerRecord { host: "node-2".into(), term: Term(9) };
    assert_eq!(cluster.node.swaps.len(), 1);
    let asked = cluster.node.swaps.pop().unwrap();
    cluster.answered(asked, Swapped::Other(other));
    assert!(!cluster.has(), "somebody else stands there, whatever the watch says");
}

#[test]
fn what_was_given_up_for_a_proven_claim_is_not_wanted_back_from_the_claimant_however_long_the_api_is_away() {
    let mut cluster = owner(&ALL);
    cluster.claims("node-2", "10.0.0.5", "web", 5);
    assert!(!cluster.has());
    cluster.node.told.clear();
    cluster.quiet(60_000, &[("node-2", "10.0.0.5")], &[]);
    assert!(cluster.node.swaps.iter().all(|(_, swap)| swap.is_read()), "{:?}", cluster.node.swaps);
    assert!((1..10).contains(&cluster.node.swaps.len()) && cluster.node.told.is_empty(), "{:?}", cluster.node.told);
}

/// A term that no announcer has counted, as a liar may choose it.
const FAR: u64 = 1 << 41;

impl Cluster {
    /// The API answers the read that is under way.
    fn read(&mut self, swapped: Swapped) {
        let asked = self.node.swaps.pop().expect("the record is read");
        assert!(asked.1.is_read() && self.node.swaps.is_empty(), "{:?}", self.node.swaps);
        self.answered(asked, swapped);
    }
}

/// Whoever may read Services can make a good tag and send it in a member's name.
#[test]
fn a_lie_in_the_name_of_a_member_takes_the_address_until_the_record_is_read_and_once() {
    let mut cluster = owner(&ALL);
    cluster.claims("node-2", "10.0.0.5", "web", 900);
    assert!(!cluster.has(), "an honest claim must be obeyed at once");
    cluster.read(Swapped::Failed("no answer".into()));
    cluster.quiet(1000, &[], &ALL);
    cluster.read(Swapped::Won);
    assert!(cluster.has(), "nobody stands behind it");
    for _ in 0..100 {
        cluster.claims("node-2", "10.0.0.5", "web", 901);
        assert!(cluster.has(), "the next one has the record read first");
    }
    cluster.read(Swapped::Won);
    cluster.quiet(2000, &[], &ALL);
    cluster.claims("node-2", "10.0.0.5", "web", 5);
    cluster.read(Swapped::Other(OwnerRecord { host: "node-2".into(), term: Term(5) }));
    assert!(!cluster.has(), "an honest one is obeyed all the same");
}

#[test]
fn a_claim_under_a_term_to_which_nobody_can_have_counted_has_the_record_read_first() {
    for term in [2000, 1 << 32, FAR] {
        let mut cluster = owner(&ALL);
        cluster.claims("node-2", "10.0.0.5", "web", term);
        assert!(cluster.has(), "{term}");
        cluster.read(Swapped::Other(OwnerRecord { host: "node-2".into(), term: Term(term) }));
        assert!(!cluster.has(), "{term}: it was written after all, while this node was away");
    }
}

/// While the API is away a claim is believed whatever its term is. Another node takes the address under the next term.
#[test]
fn after_a_lie_the_record_that_the_api_shows_counts_whatever_the_lie_said() {
    for host in ["node-3", "node-1"] {
        let mut cluster = owner(&ALL);
        cluster.node.pass(LEASE * 2);
        cluster.node.swaps.clear();
        cluster.claims("node-2", "10.0.0.5", "web", FAR);
        assert!(!cluster.has());
        cluster.shows("web", host, 5);
        assert!(!cluster.has());
        cluster.read(Swapped::Other(OwnerRecord { host: host.into(), term: Term(5) }));
        assert_eq!(cluster.has(), host == "node-1");
        if host == "node-1" {
            continue;
        }
        // It is watched like any other owner, and the count goes on where it was.
        cluster.quiet(3000, &[("node-2", "10.0.0.2"), ("node-3", "10.0.0.5")], &ALL);
        cluster.quiet(2000, &[("node-2", "10.0.0.2")], &[]);
        let (_, swap) = cluster.node.swaps.pop().expect("its new owner is silent");
        assert_eq!(swap.owner_record, OwnerRecord { host: "node-1".into(), term: Term(6) });
    }
}

/// Another writer has removed the record or put an older one back: that says nothing of the claimant.
#[test]
fn what_was_given_up_is_taken_back_without_its_record_only_if_nobody_answers() {
    let older = Swapped::Other(OwnerRecord { host: "node-1".into(), term: Term(3) });
    for (shown, term) in [(Swapped::Unrecorded, 5), (older, 5), (Swapped::Unrecorded, FAR)] {
        for answers in [true, false] {
            let mut cluster = owner(&["node-1", "node-2"]);
            cluster.node.pass(if term == FAR { LEASE * 2 } else { Duration::ZERO });
            cluster.node.swaps.clear();
            cluster.claims("node-2", "10.0.0.5", "web", term);
            assert!(!cluster.has(), "{shown:?} {term}");
            cluster.read(shown.clone());
            assert!(!cluster.has(), "{shown:?} {term}");
            let answering: &[(&str, &str)] =
                if answers { &[("node-2", "10.0.0.5")] } else { &[("node-2", "10.0.0.2")] };
            cluster.quiet(30_000, answering, &["node-1", "node-2"]);
            let taken: Vec<&OwnerRecord> = cluster.node.swaps.iter().map(|(_, swap)| &swap.owner_record).collect();
            if answers {
                assert!(taken.is_empty() && !cluster.has(), "{shown:?}: {taken:?}");
                continue;
            }
            assert_eq!(taken.first(), Some(&&OwnerRecord { host: "node-1".into(), term: Term(6) }), "{shown:?}");
        }
    }
}

#[test]
fn a_claim_from_a_mac_of_this_node_is_nobodys() {
    let own = network().link(2).and_then(|link| link.mac).unwrap();
    for away in [false, true] {
        let mut cluster = owner(&ALL);
        if away {
            cluster.node.pass(LEASE * 2);
        }
        for term in [5, FAR] {
            let address = IpAddr::from([10, 0, 0, 5]);
            let payload = Some(tag::seal(&Key::from(&uid("web")), address, own, Term(term)));
            let claim = Frame { link: 2, address, mac: own, what: Heard::Claim, to_us: true, payload };
            cluster.node.feed(Input::Heard(claim));
            assert!(cluster.has(), "{term}, the API is away: {away}");
        }
    }
}
