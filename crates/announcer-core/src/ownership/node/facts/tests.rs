use super::*;

const LEASE: Duration = Duration::from_secs(15);

#[allow(clippy::unnecessary_wraps)] // as the watch has it
fn member(renewal: u32) -> Option<Member> {
    Some(Member { renewal: renewal.to_string(), duration: LEASE, card: Card { serving: true, ..Card::default() } })
}

struct Clock(Instant);

impl Clock {
    fn at(&self, seconds: u64) -> Instant {
        self.0 + Duration::from_secs(seconds)
    }
}

fn facts() -> (ApiFacts, Clock) {
    let clock = Clock(Instant::now());
    let mut facts = ApiFacts::new("node-1".into(), LEASE);
    for node in ["node-1", "node-2"] {
        facts.member(clock.at(0), node.into(), member(0));
    }
    facts.members_synced(clock.at(0));
    (facts, clock)
}

#[test]
fn what_cards_say_of_the_gateway_counts_from_the_first_of_those_that_follow_one_another() {
    for (name, cards, since) in [
        ("one after the other", &[(0, 1, true), (5, 2, true), (10, 3, true)][..], Some(0)),
        ("a late one", &[(0, 1, true), (9, 2, true)], Some(0)),
        ("after a gap", &[(0, 1, true), (10, 2, true)], Some(10)),
        ("the same one, read again", &[(0, 1, true), (30, 1, true)], Some(0)),
        ("it was away", &[(0, 1, true), (5, 2, false), (9, 3, true)], Some(9)),
        ("it is away", &[(0, 1, true), (5, 2, false)], None),
    ] {
        let (mut facts, clock) = facts();
        for (second, renewal, answers) in cards {
            let card = Card { gateways: [("eth0".to_owned(), *answers)].into(), ..Card::default() };
            let member = Member { card, ..member(*renewal).unwrap() };
            facts.member(clock.at(*second), "node-3".into(), Some(member));
        }
        let found = facts.members["node-3"].gateways_since.get("eth0").copied();
        assert_eq!(found, since.map(|second| clock.at(second)), "{name}");
    }
}

#[test]
fn a_lease_that_stands_for_its_duration_has_expired() {
    let (mut facts, clock) = facts();
    for second in (5..=15).step_by(5) {
        assert!(!facts.is_expired(clock.at(second - 1), "node-2"));
        facts.member(clock.at(second), "node-1".into(), member(u32::try_from(second).unwrap()));
    }
    assert!(facts.is_expired(clock.at(15), "node-2"));
    assert_eq!(facts.deadline(clock.at(14)), Some(clock.at(30)), "of our own");
    for second in (20..=70).step_by(5) {
        facts.member(clock.at(second), "node-1".into(), member(u32::try_from(second).unwrap()));
    }
    assert_eq!(facts.deadline(clock.at(70)), Some(clock.at(75)), "node-2 may be a host without an announcer by then");
}

#[test]
fn time_without_the_api_counts_against_nobody() {
    let (mut facts, clock) = facts();
    // The API is away for a minute: even our own renewals do not come back.
    assert!(!facts.in_touch(clock.at(60)));
    assert!(!facts.is_expired(clock.at(60), "node-2"));
    facts.member(clock.at(61), "node-1".into(), member(1));
    assert!(!facts.is_expired(clock.at(62), "node-2"), "the clock starts anew at the first good read (R8)");
    for second in (65..=75).step_by(5) {
        facts.member(clock.at(second), "node-1".into(), member(u32::try_from(second).unwrap()));
    }
    assert!(!facts.is_expired(clock.at(79), "node-2"), "the watch may have stood still since");
    facts.member(clock.at(80), "node-1".into(), member(80));
    assert!(facts.is_expired(clock.at(80), "node-2"));
}

#[test]
fn reading_the_same_renewal_again_is_no_sign_of_life() {
    let (mut facts, clock) = facts();
    for second in (5..=20).step_by(5) {
        facts.member(clock.at(second), "node-1".into(), member(u32::try_from(second).unwrap()));
        facts.member(clock.at(second), "node-2".into(), member(0));
    }
    assert!(facts.is_expired(clock.at(20), "node-2"));
}

#[test]
fn a_renewal_in_time_is_no_news_and_everything_else_is() {
    let (mut facts, clock) = facts();
    let mut tell = |second, node: &str, member| facts.member(clock.at(second), node.into(), member);
    assert!(!tell(5, "node-1", member(1)) && !tell(5, "node-2", member(1)));
    assert!(!tell(5, "node-2", member(1)), "the same once more");
    assert!(tell(6, "node-3", member(1)), "a new one");
    let card = Card { serving: false, ..Card::default() };
    assert!(tell(7, "node-3", Some(Member { card, ..member(2).unwrap() })), "another card");
    let longer = Member { duration: LEASE * 2, ..member(3).unwrap() };
    assert!(tell(8, "node-2", Some(longer.clone())) && !tell(9, "node-2", Some(longer)));
    assert!(tell(9, "node-3", None) && !tell(9, "node-3", None), "gone, once");
    for second in [10, 20, 30, 37] {
        assert!(!tell(second, "node-1", member(u32::try_from(second).unwrap())));
    }
    assert!(tell(39, "node-1", member(39)), "it shows that node-2 renews no more");
    assert!(tell(40, "node-2", member(4)), "it had expired");
    assert!(tell(60, "node-1", member(60)), "we were out of touch");
    assert!(!tell(65, "node-1", member(65)));
}

#[test]
fn the_interfaces_of_a_member_are_remembered_when_its_card_drops_them() {
    let link = |name: &str, last: u8, net: &str| {
        let addresses = if net.is_empty() { Vec::new() } else { vec![net.parse().unwrap()] };
        CardLink { name: name.into(), mac: l2_types::Mac::new([2, 0, 0, 0, 0, last]), addresses, no_ipv6: false }
    };
    let lan = || link("ens3", 9, "10.0.0.9/24");
    for (name, cards, expected) in [
        ("on the card", vec![vec![lan()]], Some(9)),
        ("dropped", vec![vec![lan()], vec![]], Some(9)),
        ("dropped, and another one is left", vec![vec![lan()], vec![link("ens4", 8, "10.9.0.9/16")]], Some(9)),
        ("dropped, and one of the same MAC is left", vec![vec![lan()], vec![link("bond0", 9, "")]], Some(9)),
        ("dropped for longer", vec![vec![lan()], vec![], vec![]], Some(9)),
        ("it has come back with another MAC", vec![vec![lan()], vec![], vec![link("ens3", 7, "10.0.0.9/24")]], Some(7)),
        ("another one leads here now", vec![vec![lan()], vec![link("ens4", 8, "10.0.0.9/24")]], Some(8)),
        ("it never led here", vec![vec![link("ens3", 9, "10.9.0.9/16")], vec![]], None),
        ("nothing was ever on it", vec![vec![]], None),
    ] {
        let (mut facts, clock) = facts();
        for links in cards {
            let card = Card { links, serving: true, ..Card::default() };
            let member = Member { renewal: "1".into(), duration: LEASE, card };
            facts.member(clock.at(1), "node-2".into(), Some(member));
        }
        let network = crate::network::fixtures::network();
        let found = facts.towards("node-2", &network, 2).map(|link| link.mac);
        assert_eq!(found, expected.map(|last| l2_types::Mac::new([2, 0, 0, 0, 0, last])), "{name}");
        facts.member(clock.at(2), "node-2".into(), None);
        assert_eq!(facts.towards("node-2", &network, 2), None, "{name}: forgotten with its Lease");
    }
}

#[test]
fn a_foreign_holder_counts_while_it_renews_and_a_leftover_does_not() {
    let (mut facts, clock) = facts();
    let lock = |renewal: u32, holder: &str, leftover| ForeignLock {
        holder: holder.into(),
        renewal: renewal.to_string(),
        duration: LEASE,
        leftover,
    };
    facts.foreign(clock.at(0), Some(lock(1, "node-1", false)));
    assert!(facts.foreign_holder(clock.at(14)).is_some(), "foreign whatever its name");
    assert!(facts.foreign_holder(clock.at(15)).is_none());
    facts.foreign(clock.at(16), Some(lock(2, "node-1", false)));
    assert!(facts.foreign_holder(clock.at(30)).is_some());
    facts.foreign(clock.at(20), Some(lock(3, "", false)));
    assert!(facts.foreign_holder(clock.at(20)).is_none(), "released");
    facts.foreign(clock.at(22), None);
    assert!(facts.foreign_holder(clock.at(22)).is_none());
    facts.foreign(clock.at(23), Some(lock(4, "node-9", true)));
    assert!(facts.foreign_holder(clock.at(23)).is_none(), "an old kube-vip's, never released");
    facts.foreign(clock.at(24), Some(lock(4, "node-9", false)));
    assert!(facts.foreign_holder(clock.at(24)).is_none(), "read again");
}

#[test]
fn a_holder_that_is_seen_to_renew_lives_however_wrong_our_clock_is() {
    let (mut facts, clock) = facts();
    // By a clock that is two minutes ahead every renewal is old.
    let lock = |renewal: u32| ForeignLock {
        holder: "node-9".into(),
        renewal: renewal.to_string(),
        duration: LEASE,
        leftover: true,
    };
    facts.foreign(clock.at(0), Some(lock(1)));
    assert!(facts.foreign_holder(clock.at(0)).is_none());
    for renewal in 2..5 {
        let at = u64::from(renewal) * 2;
        facts.foreign(clock.at(at), Some(lock(renewal)));
        facts.foreign(clock.at(at + 1), Some(lock(renewal)));
        assert_eq!(facts.foreign_holder(clock.at(at + 1)), Some(("node-9", clock.at(at) + LEASE)));
    }
}
