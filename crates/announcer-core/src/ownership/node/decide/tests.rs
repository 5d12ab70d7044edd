use std::sync::LazyLock;

use super::super::candidates::Penalties;
use super::super::member::Defects;
use super::super::{Term, place};
use super::*;

const ALL: [&str; 3] = ["node-1", "node-2", "node-3"];

static LINE: LazyLock<Candidates<'static>> = LazyLock::new(|| candidates(&ALL));

fn candidates<'a>(nodes: &[&'a str]) -> Candidates<'a> {
    Candidates::new(nodes.iter().map(|node| (*node, Penalties::default())))
}

fn case<'a>(me: &'a str, owner_record: Option<&'a OwnerRecord>) -> Case<'a> {
    Case::quiet(me, owner_record, &LINE)
}

#[allow(clippy::unnecessary_wraps)] // as the case has it
fn silent(side: Side) -> Option<OwnerSilence> {
    Some(OwnerSilence { taken: None, side, certain: false, heard: true, last: None, outside: 0 })
}

fn owner_record(host: &str) -> OwnerRecord {
    OwnerRecord { host: host.into(), term: Term(3) }
}

#[test]
fn only_silence_on_the_wire_takes_an_address_from_its_owner() {
    let owner_record = owner_record("node-1");
    let (greater, lesser, alone) = (silent(Side::Greater), silent(Side::Lesser), silent(Side::Alone));
    for (silent, owner_state, me, takes) in [
        (None, OwnerState::Alive, "node-2", false),
        // R8: the wire wins.
        (None, OwnerState::Expired, "node-2", false),
        (None, OwnerState::Unseen, "node-2", false),
        (greater, OwnerState::Alive, "node-2", true),
        // The second in line has waited for K + 3 periods: its verdict counts too.
        (greater, OwnerState::Alive, "node-3", true),
        // decisions.md 24.
        (lesser, OwnerState::Alive, "node-2", false),
        (lesser, OwnerState::Expired, "node-2", true),
        (alone, OwnerState::Alive, "node-2", false),
        // Others may hear more.
        (alone, OwnerState::Expired, "node-2", false),
    ] {
        let step = decide(&Case { owner_state, silent, ..case(me, Some(&owner_record)) });
        assert_eq!(matches!(step, Step::Take(_)), takes, "{silent:?} {owner_state:?} {me}");
    }
}

#[test]
fn who_hears_nobody_takes_it_after_those_that_do() {
    let owner_record = owner_record("node-1");
    let alone =
        Case { silent: silent(Side::Alone), owner_state: OwnerState::Expired, ..case("node-2", Some(&owner_record)) };
    let only = candidates(&["node-2"]);
    for (name, case, takes) in [
        ("others may hear more", alone.clone(), false),
        ("they had their time", Case { others_had_their_time: true, ..alone.clone() }, true),
        ("there are no others", Case { candidates: &only, ..alone.clone() }, true),
    ] {
        assert_eq!(matches!(decide(&case), Step::Take(_)), takes, "{name}");
    }
}

#[test]
fn an_owner_that_hears_more_hosts_keeps_it_until_its_lease_has_run_out() {
    let owner_record = owner_record("node-1");
    for (owner_state, takes) in [(OwnerState::Alive, false), (OwnerState::Expired, true)] {
        let step = decide(&Case {
            owner_state,
            silent: silent(Side::Greater),
            owner_hears_more: true,
            ..case("node-2", Some(&owner_record))
        });
        assert_eq!(matches!(step, Step::Take(_)), takes, "{owner_state:?}");
    }
}

#[test]
fn an_owner_that_lives_and_was_never_heard_keeps_it_until_its_lease_has_run_out() {
    let owner_record = owner_record("node-1");
    for (owner_state, takes) in [(OwnerState::Alive, false), (OwnerState::Expired, true)] {
        let silent = silent(Side::Greater).map(|silence| OwnerSilence { heard: false, last: None, ..silence });
        let step = decide(&Case { owner_state, silent, unreached: true, ..case("node-2", Some(&owner_record)) });
        assert_eq!(matches!(step, Step::Take(_)), takes, "{owner_state:?}");
        assert_eq!(step == Step::LeaveUnreached, !takes, "{owner_state:?}");
    }
}

#[test]
fn an_owner_that_lives_and_hears_fewer_hosts_loses_it_though_more_nodes_are_with_it() {
    let owner_record = owner_record("node-1");
    for (side, takes) in [(Side::Lesser, true), (Side::Alone, false)] {
        let step =
            decide(&Case { silent: silent(side), owner_hears_fewer: true, ..case("node-2", Some(&owner_record)) });
        assert_eq!(matches!(step, Step::Take(_)), takes, "{side:?}");
    }
}

#[test]
fn the_veto_of_a_stranger_ends() {
    let owner_record = owner_record("node-1");
    let taken = silent(Side::Greater).map(|silence| OwnerSilence { taken: Some([2, 0, 0, 0, 0, 9].into()), ..silence });
    for over in [false, true] {
        let watched = Case { silent: taken, owner_state: OwnerState::Expired, ..case("node-2", Some(&owner_record)) };
        let asked = Case {
            asked: QuestionState::Answered,
            owner_state: OwnerState::Unseen,
            ..case("node-2", Some(&owner_record))
        };
        for case in [watched, asked] {
            let step = decide(&Case { others_had_their_time: over, ..case });
            assert_eq!(step, if over { Step::Take(Why::DespiteAStranger) } else { Step::Rest });
        }
    }
}

#[test]
fn the_veto_of_a_stranger_ends_too_while_the_silent_owner_renews_its_lease_but_only_on_the_clients_side() {
    let owner_record = owner_record("node-1");
    for (side, owner_hears_more, over, takes) in [
        (Side::Greater, false, false, false),
        (Side::Greater, false, true, true),
        (Side::Greater, true, true, false),
        (Side::Lesser, false, true, false),
        (Side::Alone, false, true, false),
    ] {
        let taken = silent(side).map(|silence| OwnerSilence { taken: Some([2, 0, 0, 0, 0, 9].into()), ..silence });
        let case = Case { silent: taken, owner_hears_more, ..case("node-2", Some(&owner_record)) };
        let step = decide(&Case { others_had_their_time: over, ..case });
        assert_eq!(step == Step::Take(Why::ThoughItRenews), takes, "{side:?} {owner_hears_more} {over}");
    }
    // The owner's own MAC answers broadcasts: only this node may not reach it by unicast.
    for (owner_hears_fewer, takes) in [(false, false), (true, true)] {
        let taken =
            silent(Side::Greater).map(|silence| OwnerSilence { taken: Some([2, 0, 0, 0, 0, 9].into()), ..silence });
        let case = Case { silent: taken, in_its_name: true, owner_hears_fewer, ..case("node-2", Some(&owner_record)) };
        let step = decide(&Case { others_had_their_time: true, ..case });
        assert_eq!(step == Step::Take(Why::ThoughItRenews), takes, "{owner_hears_fewer}");
    }
    // It hears nobody: it may be this node that is cut off.
    let alone = Case { silent: silent(Side::Alone), ..case("node-2", Some(&owner_record)) };
    assert_eq!(decide(&Case { others_had_their_time: true, ..alone }), Step::Rest);
}

#[test]
fn what_has_no_address_yet_follows_the_lease_of_its_owner() {
    let owner_record = owner_record("node-1");
    for (owner_state, me, takes) in [
        (OwnerState::Alive, "node-2", false),
        (OwnerState::Expired, "node-2", true),
        (OwnerState::Unseen, "node-2", true),
        (OwnerState::Expired, "node-3", false),
        (OwnerState::Unseen, "node-3", false),
    ] {
        let step = decide(&Case { owner_state, addressed: false, ..case(me, Some(&owner_record)) });
        assert_eq!(matches!(step, Step::Take(_)), takes, "{owner_state:?} {me}");
    }
}

#[test]
fn a_node_that_may_not_have_it_takes_nothing_over() {
    let owner_record = owner_record("node-1");
    let only = candidates(&["node-3"]);
    let silent = Case { silent: silent(Side::Greater), ..case("node-2", Some(&owner_record)) };
    assert_eq!(decide(&Case { candidates: &only, rank: None, ..silent.clone() }), Step::Rest);
    assert_eq!(decide(&Case { stopping: true, ..silent }), Step::Rest);
}

#[test]
fn an_owner_that_cannot_be_watched_is_asked_for_by_broadcast_by_the_first_in_line() {
    let owner_record = owner_record("node-1");
    for owner_state in [OwnerState::Absent, OwnerState::Unseen] {
        let step =
            |me, asked| decide(&Case { owner_state, asked, vacant_long_enough: true, ..case(me, Some(&owner_record)) });
        assert_eq!(step("node-2", QuestionState::NotYet), Step::Ask, "{owner_state:?}");
        assert_eq!(step("node-2", QuestionState::Waiting), Step::Rest, "{owner_state:?}");
        assert_eq!(step("node-2", QuestionState::Answered), Step::Rest, "{owner_state:?}");
        assert!(matches!(step("node-2", QuestionState::Silence), Step::Take(_)), "{owner_state:?}");
        assert_eq!(step("node-3", QuestionState::Silence), Step::Rest, "{owner_state:?}");
    }
    // Its Lease may not have come yet.
    let fresh = Case { owner_state: OwnerState::Absent, ..case("node-2", Some(&owner_record)) };
    assert_eq!(decide(&fresh), Step::Rest);
}

#[test]
fn who_has_the_address_writes_the_record_that_is_missing() {
    let held = Case { holding: true, candidates: &candidates(&[]), ..case("node-1", None) };
    assert!(matches!(decide(&held), Step::Take(_)), "whoever is preferred");
}

#[test]
fn without_a_record_the_preferred_node_asks_and_takes_only_what_nobody_answers_for() {
    let home = place::preferred("10.0.0.5", ALL).unwrap();
    for me in ALL {
        let step = decide(&case(me, None));
        assert_eq!(step == Step::Ask, me == home, "{me}: {step:?}");
    }
    assert_eq!(decide(&Case { asked: QuestionState::Answered, ..case(home, None) }), Step::Rest);
    assert!(matches!(decide(&Case { asked: QuestionState::Silence, ..case(home, None) }), Step::Take(_)));
    assert!(matches!(decide(&Case { published: false, ..case(home, None) }), Step::Take(_)), "nobody has begun");
}

#[test]
fn what_the_preferred_node_does_not_take_falls_to_the_next_in_turn() {
    for passed_over in 0..3 {
        let takers = ALL.into_iter().filter(|me| {
            let step = decide(&Case { published: false, passed_over, ..case(me, None) });
            matches!(step, Step::Take(_))
        });
        assert_eq!(takers.count(), passed_over + 1);
    }
    let only = candidates(&["node-2"]);
    let stranger = Case { passed_over: 9, candidates: &only, published: false, ..case("node-1", None) };
    assert_eq!(decide(&stranger), Step::Rest);
}

#[test]
fn the_node_where_kube_vip_had_it_is_preferred_if_it_may_have_it() {
    let home = place::preferred("10.0.0.5", ALL).unwrap();
    let other = ALL.into_iter().find(|node| *node != home).unwrap();
    let hinted = |me, hint| decide(&Case { hint: Some(hint), ..case(me, None) });
    assert_eq!(hinted(other, other), Step::Ask);
    assert_eq!(hinted(home, other), Step::Rest);
    assert_eq!(hinted(home, "node-9"), Step::Ask);
}

#[test]
fn an_owner_hands_over_when_it_ends_when_it_may_not_serve_and_when_fail_back_is_wanted() {
    let owner_record = owner_record("node-1");
    let own = case("node-1", Some(&owner_record));
    let (others, alone, nobody) = (candidates(&["node-2", "node-3"]), candidates(&["node-1"]), candidates(&[]));
    let not_ready = Penalties { defects: Defects { not_ready: true, ..Defects::default() }, ..Penalties::default() };
    let unready = Candidates::new([("node-1", not_ready), ("node-2", Penalties::default())]);
    let all_unready = Candidates::new(ALL.map(|node| (node, not_ready)));
    let nobody_answers = own.candidates.clone().with_silent(|_| true);
    for (name, case, gives) in [
        ("all well", own.clone(), false),
        ("ending", Case { stopping: true, ..own.clone() }, true),
        (
            "its next process will come",
            Case { stopping: true, node_stays: true, eligible: false, ..own.clone() },
            false,
        ),
        (
            "ending, and no other node is heard",
            Case { stopping: true, candidates: &nobody_answers, ..own.clone() },
            true,
        ),
        (
            "the same of a group that depends on endpoints, and the node stays in service",
            Case { stopping: true, node_stays: true, endpoint_bound: true, candidates: &nobody_answers, ..own.clone() },
            false,
        ),
        (
            "its next process will come, and does not follow the endpoints meanwhile",
            Case { stopping: true, node_stays: true, endpoint_bound: true, ..own.clone() },
            true,
        ),
        ("excluded", Case { eligible: false, candidates: &others, ..own.clone() }, true),
        ("not ready", Case { candidates: &unready, ..own.clone() }, true),
        ("nobody is ready", Case { candidates: &all_unready, ..own.clone() }, false),
        ("fail-back", Case { fail_back: true, ..own.clone() }, true),
        // decisions.md 26: nobody to give it to.
        ("ending alone", Case { stopping: true, candidates: &alone, ..own.clone() }, false),
        ("excluded, and all are", Case { eligible: false, candidates: &nobody, ..own.clone() }, false),
    ] {
        match decide(&case) {
            Step::Give(to, _) => assert!(gives && to != "node-1", "{name}"),
            step => assert!(!gives && step == Step::Rest, "{name}: {step:?}"),
        }
    }
}

#[test]
fn an_owner_that_has_lost_the_gateway_hands_over_to_a_node_that_hears_it_whatever_the_reason_is() {
    let owner_record = owner_record("node-1");
    let own = case("node-1", Some(&owner_record));
    let by_hash = own.candidates.home_elsewhere("10.0.0.5", "node-1", None, true).unwrap();
    let other = ["node-2", "node-3"].into_iter().find(|node| *node != by_hash);
    for (name, case, why) in [
        ("all is well but the gateway", own.clone(), Some(HEARS_THE_GATEWAY)),
        ("ending", Case { stopping: true, ..own.clone() }, Some("its announcer is ending")),
        ("excluded", Case { eligible: false, ..own.clone() }, Some("the node may not serve it any more")),
        (
            "its home has no gateway",
            Case { fail_back: true, home: Some(by_hash), ..own.clone() },
            Some(HEARS_THE_GATEWAY),
        ),
        ("its next process will come", Case { stopping: true, node_stays: true, ..own.clone() }, None),
    ] {
        let expected = why.map_or(Step::Rest, |why| give_to(other, Why::Told(why)));
        assert_eq!(decide(&Case { with_gateway: other, ..case }), expected, "{name}");
    }
}

/// A copy of the cluster has Services that show the original's addresses, and nodes of its own.
#[test]
fn in_safe_mode_only_what_nobody_answers_for_is_taken_and_nothing_new() {
    let owner_record = owner_record("node-1");
    let dead = Case {
        safe_mode: true,
        silent: silent(Side::Greater),
        owner_state: OwnerState::Expired,
        ..case("node-2", Some(&owner_record))
    };
    let new = Case { safe_mode: true, ..case("node-2", None) };
    let first = Case { passed_over: 9, ..new.clone() };
    for (what, case, expected) in [
        ("its node is silent: everybody is asked", dead.clone(), "ask"),
        ("the original answers", Case { asked: QuestionState::Answered, ..dead.clone() }, "rest"),
        (
            "also when all have had their time",
            Case { asked: QuestionState::Answered, others_had_their_time: true, ..dead.clone() },
            "rest",
        ),
        (
            "a member answers by proxy",
            Case { asked: QuestionState::Answered, answered_by_member: true, ..dead.clone() },
            "rest",
        ),
        (
            "a member answers by proxy, and all have had their time",
            Case {
                asked: QuestionState::Answered,
                answered_by_member: true,
                others_had_their_time: true,
                ..dead.clone()
            },
            "take",
        ),
        ("nobody answers", Case { asked: QuestionState::Silence, ..dead.clone() }, "take"),
        ("a new Service", Case { published: false, ..first.clone() }, "rest"),
        (
            "one whose owner nobody knows, and the original answers",
            Case { asked: QuestionState::Answered, ..first.clone() },
            "rest",
        ),
        ("the same, and nobody answers", Case { asked: QuestionState::Silence, ..first }, "take"),
        ("what is here stays", Case { holding: true, ..new }, "take"),
    ] {
        let step = match decide(&case) {
            Step::Rest | Step::LeaveUnreached => "rest",
            Step::Ask => "ask",
            Step::Take(_) => "take",
            Step::Give(..) => "give",
        };
        assert_eq!(step, expected, "{what}");
    }
}
