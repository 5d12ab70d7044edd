//! A copy of a whole virtual machine beside the original, told by the UUID of its firmware.

use super::*;
use crate::instances::machine_uuid::MachineUuid;

/// The same fact with the digit that the UUIDs end with: that of the kubelet, and that of the firmware.
fn uuids(fact: NodeFact, kubelet: &str, firmware: &str) -> NodeFact {
    let uuid = |digit: &str| MachineUuid::parse(&format!("00112233-4455-6677-8899-aabbccddeef{digit}"));
    NodeFact { system_uuid: uuid(kubelet), firmware: uuid(firmware), ..fact }
}

/// Cluster `prod` of the one server `a`, whose kubelet was seen to report the UUID of its machine.
fn server(fact: NodeFact) -> Case<'static> {
    let card = IdentityCard { started_on: ["a".to_owned()].into(), ..card(&["a"]) };
    Case { card: Some(card), nodes: vec![fact], ..prod() }
}

/// A copy of the whole virtual machine beside the original has its Node, its provider ID and its host name, and the
/// virtual machine of that provider ID runs: it was trusted at once, and deleted load balancers of the original.
#[test]
fn a_server_whose_whole_machine_was_copied_is_not_taken_for_the_original() {
    let own = || on("a", "a", "prod", OWN);
    let beside = |mut case: Case<'static>, others: &[NodeFact]| {
        let card = case.card.as_mut().unwrap();
        for machines in [&mut card.machines, &mut card.started_on] {
            machines.insert("b".into());
        }
        case.nodes.extend_from_slice(others);
        case
    };
    let early = |case: Case<'static>| Case { settled: false, ..case };
    let never = |case: Case<'static>| Case { card: Some(card(&["a"])), ..case };
    let restored = |kubelet: &str, firmware: &str| {
        let fact = NodeFact { namesake: Some("a".into()), ..lost("a", "before", OWN) };
        uuids(fact, kubelet, firmware)
    };
    let renamed = |fact: NodeFact| NodeFact { label: Some(name("before")), ..fact };
    for (what, case, expected) in [
        ("the original", server(uuids(own(), "1", "1")), "Normal"),
        ("the original, early", early(server(uuids(own(), "1", "1"))), "Normal"),
        ("a copy that has just started", early(server(uuids(own(), "2", "1"))), "Undecided"),
        ("a copy", server(uuids(own(), "2", "1")), "MachinesReplaced"),
        ("a copy of a renamed one, early", early(server(renamed(uuids(own(), "2", "1")))), "Undecided"),
        ("the UUIDs were never the same", never(server(uuids(own(), "2", "1"))), "Normal"),
        ("the kubelet reports none", server(uuids(own(), "", "1")), "Normal"),
        ("the firmware has none", server(uuids(own(), "2", "")), "Normal"),
        ("restored under its name", server(restored("1", "1")), "Normal"),
        ("a copy of what was restored under its name, early", early(server(restored("2", "1"))), "Undecided"),
        ("a copy of what was restored under its name", server(restored("2", "1")), "MachinesReplaced"),
        ("a copy of one of two", beside(server(uuids(own(), "2", "1")), &[on("b", "b", "", READY)]), "Undecided"),
        ("and later", beside(server(uuids(own(), "2", "1")), &[on("b", "b", "", SILENT)]), "MachinesReplaced"),
        (
            "copies of both",
            beside(server(uuids(own(), "2", "1")), &[uuids(on("b", "b", "", LIVES), "4", "3")]),
            "MachinesReplaced",
        ),
        ("one odd UUID of two", beside(server(uuids(own(), "2", "1")), &[on("b", "b", "", LIVES)]), "Normal"),
    ] {
        assert_eq!(case.word(), expected, "{what}");
    }
}

#[test]
fn the_reason_names_both_uuids_before_and_after_the_settling_time() {
    for settled in [false, true] {
        let case = Case { settled, ..server(uuids(on("a", "a", "prod", OWN), "2", "1")) };
        assert!(case.with(is_own_elsewhere));
        let text = match case.verdict() {
            IdentityVerdict::Undecided(text) => text,
            IdentityVerdict::SafeMode(contradiction) => contradiction.message(),
            other => panic!("{other:?}"),
        };
        for part in ["Node a", "00112233-4455-6677-8899-aabbccddeef2", "00112233-4455-6677-8899-aabbccddeef1"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

/// A human ends it, and a machine whose UUID changes with a restart ends it by itself.
#[test]
fn a_kubelet_that_runs_elsewhere_is_confirmed_like_everything_else_and_the_first_equal_uuid_is_noted_once() {
    let copy = uuids(on("a", "a", "prod", OWN), "2", "1");
    for confirmation in [OperatorConfirmation::Confirm, OperatorConfirmation::Copy(name("copy"))] {
        let confirmed = server(copy.clone()).with(|facts| confirmed_card(facts, &confirmation));
        assert!(confirmed.started_on.is_empty());
        let after = Case { card: Some(confirmed), ..server(copy.clone()) };
        assert_eq!(after.word(), "Normal", "{confirmation:?}");
    }
    let first = |case: &Case<'_>| match case.verdict() {
        IdentityVerdict::Normal(card) | IdentityVerdict::New(card) => card,
        other => panic!("{other:?}"),
    };
    for kubelet in [READY, LIVES, OWN] {
        let case = Case { card: None, ..server(uuids(on("a", "a", "prod", kubelet), "1", "1")) };
        let noted = first(&case);
        assert_eq!(noted.started_on, ["a".to_owned()].into(), "{kubelet:?}");
    }
    let equal = server(uuids(on("a", "a", "prod", OWN), "1", "1"));
    assert_eq!(Some(first(&equal)), equal.card, "nothing is written again");
    let silent = uuids(on("b", "b", "prod", SILENT), "9", "3");
    let mut both = server(uuids(on("a", "a", "prod", OWN), "1", "1"));
    both.nodes.push(silent);
    let card = both.card.as_mut().unwrap();
    (card.machines, card.started_on) = (["a", "b"].map(str::to_owned).into(), ["a", "b"].map(str::to_owned).into());
    assert_eq!(Some(first(&both)), both.card, "what a silent kubelet has reported may be old");
}
