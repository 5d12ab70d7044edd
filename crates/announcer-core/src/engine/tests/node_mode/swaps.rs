//! Answers to changes of owner that are late, lost, or overtaken by the watch.

use super::*;

/// node-3 has fallen silent and node-1 has asked for its record, under this term; node-2 is well.
fn asked_for_the_record_of_a_silent_owner() -> (Cluster, (ServiceKey, Swap)) {
    let views = [seated("web", "10.0.0.5", "node-3", 4), seated("other", "10.0.0.6", "node-2", 3)];
    let mut cluster = Cluster::new(&ALL, &views);
    let alive = [("node-2", "10.0.0.2"), ("node-2", "10.0.0.6")];
    cluster.quiet(2000, &[&[("node-3", "10.0.0.5")][..], &alive].concat(), &ALL);
    let died = cluster.node.now;
    while cluster.node.swaps.is_empty() {
        cluster.quiet(25, &alive, &[]);
        assert!(cluster.node.now < died + Duration::from_secs(1), "{:?}", cluster.node.log);
    }
    let asked = cluster.node.swaps.pop().unwrap();
    assert_eq!(asked.1.owner_record, OwnerRecord { host: "node-1".into(), term: Term(5) });
    (cluster, asked)
}

/// Why node-1 says that it has what it has, each time that it came to it.
fn reasons_of_changes(cluster: &Cluster) -> Vec<(&'static str, u64)> {
    cluster.node.engine.observations().changes.into_iter().collect()
}

const SILENT: &str = "its node does not answer any more";

#[test]
fn a_take_over_whose_answer_was_lost_is_recognised_under_a_later_term() {
    let (mut cluster, asked) = asked_for_the_record_of_a_silent_owner();
    let owner_record = asked.1.owner_record.clone();
    cluster.answered(asked, Swapped::Failed("no answer".into()));
    // The next attempt has a newer term, because others have moved on.
    cluster.shows("other", "node-2", 7);
    cluster.quiet(75, &[("node-2", "10.0.0.2"), ("node-2", "10.0.0.6")], &[]);
    let again = cluster.node.swaps.pop().expect("it is tried again");
    assert_eq!(again.1.owner_record.term, Term(8));
    cluster.answered(again, Swapped::Other(owner_record));
    assert!(cluster.has());
    assert_eq!(reasons_of_changes(&cluster), [(SILENT, 1)]);
    let text = &cluster.node.told.last().unwrap().1.text;
    assert!(text.contains(&format!("before by node node-3: {SILENT}; nobody answered for about")), "{text}");
    cluster.node.pass_ms(10);
    assert!(
        cluster.node.take_log().iter().any(|line| line.starts_with("claim eth0 10.0.0.5")),
        "node-3 has to learn it"
    );
}

/// Of the record by which the engine goes.
fn term(cluster: &mut Cluster) -> Option<Term> {
    let engine = cluster.node.engine.cluster()?;
    engine.owner_record(&ServiceKey::new("default", "web")).map(|owner_record| owner_record.term)
}

#[test]
fn an_answer_that_comes_when_the_next_attempt_is_under_way_says_nothing_about_that_one() {
    let (mut cluster, first) = asked_for_the_record_of_a_silent_owner();
    cluster.answered(first.clone(), Swapped::Failed("no answer".into()));
    cluster.shows("other", "node-2", 7);
    cluster.quiet(75, &[("node-2", "10.0.0.2"), ("node-2", "10.0.0.6")], &[]);
    let second = cluster.node.swaps.pop().expect("it is tried again");
    cluster.answered(first, Swapped::Won);
    assert!(cluster.has(), "it was written after all");
    assert_eq!(term(&mut cluster), Some(Term(5)), "nobody has written {}", second.1.owner_record.term);
    cluster.answered(second.clone(), Swapped::Won);
    assert_eq!(term(&mut cluster), Some(second.1.owner_record.term));
}

#[test]
fn a_record_that_names_us_under_a_term_that_we_never_asked_for_was_handed_over() {
    let (mut cluster, asked) = asked_for_the_record_of_a_silent_owner();
    let other = OwnerRecord { term: Term(9), ..asked.1.owner_record.clone() };
    cluster.answered(asked, Swapped::Other(other));
    assert!(cluster.has());
    assert_eq!(reasons_of_changes(&cluster), [("it was handed over", 1)]);
}

#[test]
fn a_watch_that_is_faster_than_the_answer_makes_no_second_take_over() {
    for answer in [Swapped::Won, Swapped::Failed("no answer".into())] {
        let (mut cluster, asked) = asked_for_the_record_of_a_silent_owner();
        cluster.shows("web", "node-1", 5);
        assert!(cluster.has());
        cluster.answered(asked, answer.clone());
        assert_eq!(reasons_of_changes(&cluster), [(SILENT, 1)], "{answer:?}");
        // Nothing is under way any more: a stranger's claim has the record read again.
        cluster.node.heard(2, "10.0.0.5", [2, 9, 9, 9, 9, 9], Heard::Claim);
        assert_eq!(cluster.node.swaps.len(), 1, "{answer:?}");
    }
}

#[test]
fn what_is_handed_over_is_served_on_when_the_watch_is_faster_than_the_answer() {
    let mut cluster = owner(&["node-1", "node-2"]);
    cluster.leaves();
    let asked = cluster.node.swaps.pop().unwrap();
    cluster.shows("web", "node-2", 5);
    assert!(cluster.has(), "make before break");
    cluster.answered(asked, Swapped::Won);
    assert!(cluster.has());
    cluster.claims("node-2", "10.0.0.5", "web", 5);
    assert!(!cluster.has() && cluster.node.exited);
}
