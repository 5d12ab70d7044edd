use std::sync::Arc;

use super::*;
use crate::test_support::node;

fn nodes(count: usize) -> Vec<Arc<NodeView>> {
    (1..=count).map(|number| Arc::new(node(&format!("node-{number}")))).collect()
}

fn silence(of: &str, gateway: bool) -> (String, Silence) {
    let unanswered = vec![format!("arp {of}"), format!("tcp {of}:10250")];
    (of.to_owned(), Silence { uid: format!("uid-{of}"), ms: 200, unanswered, gateway, witnesses: 1 })
}

/// Each watcher with those whom it calls silent.
fn reports(now: Instant, words: &[(&str, &[&str])]) -> BTreeMap<String, SeenReport> {
    let report = |watcher: &str, silent: &[&str]| Report {
        watcher: watcher.to_owned(),
        renewal: "1".into(),
        duration: Duration::from_secs(15),
        silent: silent.iter().map(|name| silence(name, true)).collect(),
    };
    let seen = |(watcher, silent): &(&str, &[&str])| {
        ((*watcher).to_owned(), SeenReport { report: report(watcher, silent), renewed: Some(now) })
    };
    words.iter().map(seen).collect()
}

#[test]
fn two_watchers_are_believed_and_one_only_in_a_cluster_of_two_with_the_gateway() {
    let now = Instant::now();
    for (name, count, words, expected) in [
        ("two agree", 3, &[("node-1", &["node-2"][..]), ("node-3", &["node-2"])][..], Some(true)),
        ("one of three", 3, &[("node-1", &["node-2"])], Some(false)),
        ("one of two", 2, &[("node-1", &["node-2"])], Some(true)),
        ("they accuse each other", 2, &[("node-1", &["node-2"]), ("node-2", &["node-1"])], None),
        (
            "whoever is silent himself is no witness",
            4,
            &[("node-1", &["node-2"]), ("node-3", &["node-2"]), ("node-4", &["node-3"])],
            Some(false),
        ),
        (
            "a watcher that is no node of this cluster",
            3,
            &[("node-1", &["node-2"]), ("node-9", &["node-2"])],
            Some(false),
        ),
        ("nobody", 3, &[], None),
    ] {
        let found = agreed(now, &nodes(count), &reports(now, words));
        assert_eq!(found.get("node-2").map(|word| word.enough), expected, "{name}: {found:?}");
    }
    let found = agreed(now, &nodes(3), &reports(now, &[("node-1", &["node-2"])]));
    assert!(found["node-2"].evidence.contains("node-1 asked by arp node-2 and tcp node-2:10250"), "{found:?}");
}

#[test]
fn without_a_gateway_as_witness_one_word_is_not_enough_even_in_a_cluster_of_two() {
    let now = Instant::now();
    let mut reports = reports(now, &[("node-1", &["node-2"])]);
    let seen = reports.get_mut("node-1").unwrap();
    seen.report.silent = [silence("node-2", false)].into();
    assert!(!agreed(now, &nodes(2), &reports)["node-2"].enough);
}

#[test]
fn a_word_counts_for_the_node_that_is_meant_and_while_its_author_lives() {
    let now = Instant::now();
    let words = reports(now, &[("node-1", &["node-2"]), ("node-3", &["node-2"])]);
    let later = now + Duration::from_secs(15);
    assert!(agreed(later, &nodes(3), &words).is_empty(), "nobody has renewed");
    let mut left_behind = words.clone();
    for seen in left_behind.values_mut() {
        seen.renewed = None;
    }
    assert!(agreed(now, &nodes(3), &left_behind).is_empty(), "nobody was seen to renew");
    let mut registered_anew = nodes(3);
    Arc::make_mut(&mut registered_anew[1]).uid = crate::view::Uid("another".into());
    assert!(agreed(now, &registered_anew, &words).is_empty());
}

#[test]
fn what_keeps_a_silent_node_from_being_called_lost() {
    let since = Instant::now();
    let word = |enough| Agreed { uid: "u".into(), evidence: String::new(), enough };
    let many = |count: usize| (0..count).map(|number| format!("n{number}")).collect::<BTreeSet<_>>();
    let second = Duration::from_secs(1);
    let too_many = |silent, nodes| LossVerdict::Refused(LossDoubt::TooMany { silent, nodes });
    let still = LossVerdict::Wait(since + STILL, LossDoubt::Still("paused"));
    for (name, enough, after, silent, nodes, upgrade, machine, expected) in [
        ("two agree", true, 0, 1, 3, false, MachineState::Running, LossVerdict::Lost),
        ("Harvester does not answer", true, 0, 1, 3, false, MachineState::Unknown, LossVerdict::Lost),
        ("one watcher", false, 0, 1, 3, false, MachineState::Running, LossVerdict::Refused(LossDoubt::OneWatcher)),
        ("one watcher, and the machine is off", false, 0, 1, 3, false, MachineState::Off, LossVerdict::Lost),
        ("two of three", true, 0, 2, 3, false, MachineState::Running, too_many(2, 3)),
        ("two of three, and this one is off", true, 0, 2, 3, false, MachineState::Off, too_many(2, 3)),
        ("a third of nine", true, 0, 3, 9, false, MachineState::Running, LossVerdict::Lost),
        ("more than a third of nine", true, 0, 4, 9, false, MachineState::Running, too_many(4, 9)),
        ("the only node", true, 0, 1, 1, false, MachineState::Running, too_many(1, 1)),
        (
            "an upgrade of hosts",
            true,
            60,
            1,
            3,
            true,
            MachineState::Running,
            LossVerdict::Refused(LossDoubt::HostUpgrade),
        ),
        ("an upgrade of hosts that has switched it off", true, 0, 1, 3, true, MachineState::Off, LossVerdict::Lost),
        ("paused", true, 0, 1, 3, false, MachineState::Still("paused"), still.clone()),
        ("paused for long", true, 10, 1, 3, false, MachineState::Still("paused"), LossVerdict::Lost),
    ] {
        let known = LossFacts {
            now: since + second * after,
            since,
            silent: &many(silent),
            nodes,
            host_upgrade: upgrade,
            machine,
        };
        assert_eq!(decide(&word(enough), known), expected, "{name}");
    }
    assert_eq!([1, 2, 3, 4, 6, 9, 50].map(limit), [0, 1, 1, 1, 2, 3, 16]);
}

#[test]
fn only_patience_is_taken_from_what_is_older_than_a_missing_answer() {
    let (migrated, paused) = (MachineState::Still("being migrated"), MachineState::Still("paused"));
    for (answer, cached, former, expected) in [
        (MachineState::Unknown, MachineState::Unknown, None, MachineState::Unknown),
        (MachineState::Unknown, MachineState::Running, Some(MachineState::Running), MachineState::Unknown),
        (MachineState::Unknown, MachineState::Off, Some(MachineState::Off), MachineState::Unknown),
        (MachineState::Unknown, MachineState::Unknown, Some(migrated), migrated),
        (MachineState::Unknown, paused, Some(migrated), paused),
        (MachineState::Unknown, MachineState::Running, Some(migrated), migrated),
        (MachineState::Running, paused, Some(migrated), MachineState::Running),
        (MachineState::Off, paused, Some(migrated), MachineState::Off),
        (paused, MachineState::Unknown, None, paused),
    ] {
        assert_eq!(settle(answer, cached, former), expected, "{answer:?} {cached:?} {former:?}");
    }
}
