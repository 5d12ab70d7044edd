use super::*;
use crate::test_support::node;

fn with(ready: Option<Ready>) -> NodeView {
    NodeView { ready, provider_id: Some("harvester://vm".into()), ..node("n") }
}

fn gone() -> CloudAnswers {
    CloudAnswers { existence: Some(Existence::Gone("404 for guests/n".into())), power: None }
}

fn exists(power: Power) -> CloudAnswers {
    CloudAnswers { existence: Some(Existence::Exists), power: Some(power) }
}

fn unknown() -> CloudAnswers {
    CloudAnswers { existence: Some(Existence::Unknown("no answer".into())), power: None }
}

/// One pass: what was decided is remembered.
fn pass(node: &NodeView, answers: CloudAnswers, history: &mut MachineHistory, circumstances: Circumstances) -> Action {
    let decision = decide(node, answers, history, circumstances);
    *history = decision.history;
    decision.action
}

fn run(node: &NodeView, answers: impl IntoIterator<Item = CloudAnswers>) -> Action {
    let mut history = MachineHistory::default();
    let look = |answers| pass(node, answers, &mut history, at(Instant::now(), None));
    answers.into_iter().map(look).last().unwrap()
}

fn at(now: Instant, out_of_service_after: Option<Duration>) -> Circumstances {
    Circumstances { out_of_service_after, steady_since: now.checked_sub(Duration::from_hours(1)), now }
}

fn shutdown() -> Taint {
    Taint { key: SHUTDOWN.into(), value: None, effect: "NoSchedule".into(), time_added: None }
}

/// Framework spec 5.3, Test_NodesDeleted; but twice instead of once.
#[test]
fn a_node_is_deleted_only_if_not_ready_and_its_machine_is_proven_absent_twice_in_a_row() {
    let evidence = || "404 for guests/n".to_owned();
    for ready in [Some(Ready::False), Some(Ready::Unknown), None] {
        assert_eq!(run(&with(ready), [gone()]), Action::Watch(evidence()));
        assert_eq!(run(&with(ready), [gone(), gone()]), Action::Delete(evidence()));
        assert_eq!(
            run(&with(ready), [gone(), gone(), gone()]),
            Action::Delete(evidence()),
            "a failed deletion is repeated"
        );
        assert_eq!(run(&with(ready), [gone(), unknown(), gone()]), Action::Watch(evidence()));
        assert_eq!(run(&with(ready), [gone(), exists(Power::On), gone()]), Action::Watch(evidence()));
        assert_eq!(run(&with(ready), [unknown()]), Action::Keep("no answer".into()));
        let other = || CloudAnswers { existence: Some(Existence::Unknown("a time-out".into())), power: None };
        assert_eq!(run(&with(ready), [unknown(), other()]), Action::Nothing, "it is told once, in whatever words");
        assert_eq!(run(&with(ready), [unknown(), exists(Power::On), unknown()]), Action::Keep("no answer".into()));
        assert_eq!(run(&with(ready), [exists(Power::On), exists(Power::On)]), Action::Nothing);
    }
    assert_eq!(run(&with(Some(Ready::True)), [gone(), gone(), gone()]), Action::Nothing);
}

/// A machine that was restored from a backup has another UID, and may have another name than its Node.
#[test]
fn a_node_whose_machine_is_probably_another_one_is_kept_for_as_long_as_that_is_so() {
    let elsewhere =
        |vm: &str| CloudAnswers { existence: Some(Existence::Elsewhere(format!("{vm} runs"))), power: None };
    let lost = with(Some(Ready::Unknown));
    let told = |vm: &str| Action::KeepElsewhere(format!("{vm} runs"));
    assert_eq!(run(&lost, [elsewhere("a")]), told("a"));
    assert_eq!(run(&lost, [elsewhere("a"), elsewhere("a")]), Action::Nothing, "it is told once");
    assert_eq!(run(&lost, [elsewhere("a"), elsewhere("b")]), told("b"), "another one is news");
    assert_eq!(run(&lost, [gone(), elsewhere("a"), gone()]), Action::Watch("404 for guests/n".into()));
}

#[test]
fn a_node_that_was_never_initialised_is_never_deleted() {
    // The Go framework does: a VM whose host name differs from its own loses its Node within seconds.
    let unknown = NodeView { provider_id: None, ..with(Some(Ready::False)) };
    assert_eq!(run(&unknown, [gone(), gone(), gone()]), Action::Nothing);
}

#[test]
fn a_node_that_was_registered_anew_starts_from_nothing() {
    let mut history = MachineHistory::default();
    pass(&with(Some(Ready::False)), gone(), &mut history, at(Instant::now(), None));
    let anew = NodeView { uid: Uid("another".into()), ..with(Some(Ready::False)) };
    assert!(matches!(pass(&anew, gone(), &mut history, at(Instant::now(), None)), Action::Watch(_)));
}

#[test]
fn becoming_ready_takes_the_suspicion_back() {
    let mut history = MachineHistory::default();
    pass(&with(Some(Ready::False)), gone(), &mut history, at(Instant::now(), None));
    pass(&with(Some(Ready::True)), CloudAnswers::default(), &mut history, at(Instant::now(), None));
    assert!(matches!(
        pass(&with(Some(Ready::False)), gone(), &mut history, at(Instant::now(), None)),
        Action::Watch(_)
    ));
}

/// Framework spec 5.3, Test_NodesShutdown.
#[test]
fn a_machine_that_is_off_marks_its_node_until_the_node_is_ready() {
    let mut off = with(Some(Ready::Unknown));
    off.taints = vec![Taint { key: "other".into(), ..shutdown() }];
    let Action::SetTaints(taints) = run(&off, [exists(Power::Off)]) else { panic!("marked") };
    assert_eq!(taints, [off.taints[0].clone(), shutdown()]);
    off.taints = taints;
    assert_eq!(run(&off, [exists(Power::Off)]), Action::Nothing, "once");
    assert_eq!(run(&off, [exists(Power::On)]), Action::Nothing, "the taint stays until the kubelet answers");
    assert_eq!(run(&off, [exists(Power::Unknown("?".into()))]), Action::Nothing);
    off.ready = Some(Ready::True);
    assert_eq!(run(&off, [exists(Power::Off)]), Action::SetTaints(vec![off.taints[0].clone()]));
}

#[test]
fn h9_a_replica_that_knows_nothing_lifts_the_shutdown_taint_of_a_node_that_is_ready() {
    let back = NodeView { taints: vec![shutdown()], ..with(Some(Ready::True)) };
    assert_eq!(run(&back, [CloudAnswers::default()]), Action::SetTaints(Vec::new()));
}

#[test]
fn a_machine_that_was_off_for_long_is_out_of_service_if_that_is_wanted_and_until_its_node_is_ready() {
    let after = Duration::from_mins(5);
    let start = Instant::now();
    let mut off = NodeView { taints: vec![shutdown()], ..with(Some(Ready::Unknown)) };
    let mut history = MachineHistory::default();
    let mut look = |node: &NodeView, power, wanted, seconds| {
        pass(node, exists(power), &mut history, at(start + Duration::from_secs(seconds), wanted))
    };
    assert_eq!(look(&off, Power::Off, Some(after), 0), Action::Nothing);
    assert_eq!(look(&off, Power::Off, Some(after), 299), Action::Nothing);
    assert_eq!(look(&off, Power::Unknown("?".into()), Some(after), 300), Action::Nothing);
    assert_eq!(look(&off, Power::Off, Some(after), 301), Action::Nothing, "it may have run in between");
    let Action::Confirm(Power::Off, taints) = look(&off, Power::Off, Some(after), 601) else { panic!("due") };
    assert_eq!((taints[1].key.as_str(), taints[1].effect.as_str()), (OUT_OF_SERVICE, "NoExecute"));
    off.taints = taints;
    assert_eq!(look(&off, Power::Off, Some(after), 700), Action::Nothing, "once");
    off.ready = Some(Ready::True);
    assert_eq!(look(&off, Power::On, Some(after), 701), Action::SetTaints(Vec::new()));
    // An administrator's stays.
    off.taints = vec![Taint { value: Some("nodeshutdown".into()), key: OUT_OF_SERVICE.into(), ..shutdown() }];
    assert_eq!(look(&off, Power::On, Some(after), 702), Action::Nothing);
    let by_hand = NodeView { ready: Some(Ready::Unknown), taints: vec![shutdown()], ..off };
    for seconds in [800, 8000] {
        assert_eq!(look(&by_hand, Power::Off, None, seconds), Action::Nothing, "opt-in");
    }
}

/// Seen: a machine that was started while the API was away, tainted although it ran.
#[test]
fn what_a_cache_says_while_it_is_out_of_date_counts_for_nothing() {
    let after = Duration::from_secs(15);
    let start = Instant::now();
    let off = NodeView { taints: vec![shutdown()], ..with(Some(Ready::Unknown)) };
    let mut history = MachineHistory::default();
    let mut look = |seconds, steady: Option<u64>| {
        let instant = |seconds| start + Duration::from_secs(seconds);
        let circumstances = Circumstances {
            out_of_service_after: Some(after),
            steady_since: steady.map(instant),
            now: instant(seconds),
        };
        pass(&off, exists(Power::Off), &mut history, circumstances)
    };
    assert_eq!(look(0, Some(0)), Action::Nothing);
    assert_eq!(look(10, None), Action::Nothing, "the API is away");
    assert_eq!(look(60, None), Action::Nothing);
    assert_eq!(look(61, Some(61)), Action::Nothing, "back, and it has to be off for the whole time from now");
    assert_eq!(look(75, Some(61)), Action::Nothing);
    assert!(matches!(look(76, Some(61)), Action::Confirm(Power::Off, _)));
    // An outage between two looks, which nobody has seen, counts too.
    assert_eq!(look(80, Some(78)), Action::Nothing);
}

#[test]
fn a_node_is_deleted_on_proofs_that_the_watches_have_not_failed_between() {
    let start = Instant::now();
    let lost = with(Some(Ready::Unknown));
    let mut history = MachineHistory::default();
    let mut look = |seconds, steady: Option<u64>| {
        let instant = |seconds| start + Duration::from_secs(seconds);
        let (steady_since, now) = (steady.map(instant), instant(seconds));
        pass(&lost, gone(), &mut history, Circumstances { out_of_service_after: None, steady_since, now })
    };
    assert!(matches!(look(0, Some(0)), Action::Watch(_)));
    assert_eq!(look(5, None), Action::Nothing, "the API is away");
    assert!(matches!(look(10, Some(8)), Action::Watch(_)), "and back");
    assert!(matches!(look(15, Some(12)), Action::Watch(_)), "an outage between two looks");
    assert!(matches!(look(20, Some(12)), Action::Delete(_)));
}

#[test]
fn a_machine_that_runs_again_is_taken_back_when_the_cloud_says_so_itself() {
    let ours =
        Taint { key: OUT_OF_SERVICE.into(), value: Some(OURS.into()), effect: "NoExecute".into(), time_added: None };
    let node = NodeView { taints: vec![shutdown(), ours], ..with(Some(Ready::Unknown)) };
    for power in [Power::On, Power::Unknown("the watch is away".into())] {
        assert_eq!(run(&node, [exists(power)]), Action::Confirm(Power::On, vec![shutdown()]));
    }
    assert_eq!(run(&node, [exists(Power::Off)]), Action::Nothing);
    assert_eq!(run(&node, [unknown()]), Action::Keep("no answer".into()), "its taints stay");
}

#[test]
fn after_a_refusal_a_node_rests_for_longer_each_time_until_it_is_ready_or_another_one() {
    let start = Instant::now();
    let lost = with(Some(Ready::Unknown));
    let mut history = MachineHistory::default();
    for (times, seconds) in [(1, 30), (2, 60), (3, 120), (4, 240), (7, 1920), (8, 3600), (20, 3600)] {
        while history.refused.as_ref().map_or(0, |refused| refused.times) < times {
            pass(&lost, gone(), &mut history, at(start, None));
            history.refuse(start);
        }
        let pause = Duration::from_secs(seconds);
        assert!(history.rests(&lost, start + pause - Duration::from_secs(1)), "{times}");
        assert!(!history.rests(&lost, start + pause), "{times}");
    }
    assert!(!history.rests(&with(Some(Ready::True)), start), "its taints are lifted at once");
    assert!(!history.rests(&NodeView { uid: Uid("other".into()), ..lost.clone() }, start));
    assert_eq!(pass(&lost, gone(), &mut history, at(start, None)), Action::Watch("404 for guests/n".into()));
}

#[test]
fn a_taint_of_the_same_key_and_another_effect_is_another_taint() {
    let mut view = with(Some(Ready::True));
    view.taints = vec![Taint { effect: "NoExecute".into(), ..shutdown() }];
    assert_eq!(run(&view, [CloudAnswers::default()]), Action::Nothing);
}

#[test]
fn the_cloud_is_asked_no_more_than_needed() {
    let empty = CloudAnswers::default();
    assert_eq!(next_question(&with(Some(Ready::True)), &empty), None);
    assert_eq!(next_question(&NodeView { deleting: true, ..with(None) }, &empty), None);
    assert_eq!(next_question(&with(None), &empty), Some(Question::Existence));
    assert_eq!(next_question(&with(None), &gone()), None);
    assert_eq!(next_question(&with(None), &unknown()), None);
    let there = CloudAnswers { existence: Some(Existence::Exists), power: None };
    assert_eq!(next_question(&with(None), &there), Some(Question::Power));
    assert_eq!(next_question(&with(None), &exists(Power::On)), None);
}
