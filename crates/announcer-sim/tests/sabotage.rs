//! Engines that are broken on purpose: one of the first seeds shows it, by the promise that the broken protection is
//! there for. Which seed, and how many it took, is printed.

use announcer_core::ElectionMode::{self, Global, Node, Service};
use announcer_sim::promises::{PROMISES, number};
use announcer_sim::scenario::{Address, Fault, Kind, TWO_NICS, WIDE};
use announcer_sim::{Sabotage, Scenario, Violation, run};

/// So many seeds have to be enough.
const ENOUGH: u64 = 1000;

/// Which runs can show it: the others are spared.
type Shows = fn(&Scenario) -> bool;

/// In each mode in which it can show, a seed breaks one of the promises with these numbers, and no other.
fn is_found_out(sabotage: Sabotage, modes: &[ElectionMode], promises: &[usize], (first, shows): (u64, Shows)) {
    for mode in modes {
        let broken = |seed: u64| {
            let scenario = Scenario::of(seed, *mode);
            let violation = shows(&scenario).then(|| run(&scenario, Some(sabotage), false).violation).flatten()?;
            // Where something breaks without the sabotage as well, this shows nothing of it.
            run(&scenario, None, false).violation.is_none().then_some(violation)
        };
        let found = (first..first + ENOUGH).find_map(|seed| broken(seed).map(|violation| (seed, violation)));
        let (seed, violation) =
            found.unwrap_or_else(|| panic!("{sabotage:?} goes unnoticed in mode {}", mode.as_str()));
        let tried = seed - first + 1;
        println!("{sabotage:?}, mode {}: found by seed {seed}, after {tried} of them: {violation}", mode.as_str());
        assert!(promises.contains(&number(violation.promise)), "mode {}, seed {seed}: {violation}", mode.as_str());
    }
}

fn has(scenario: &Scenario, kind: fn(&Kind) -> bool) -> bool {
    scenario.faults.iter().any(|fault| kind(&fault.kind)) && scenario.nodes <= 5 && scenario.services.len() <= 3
}

const ANY: (u64, Shows) = (0, |_| true);
/// An owner that is cut off and comes back.
const CUT: (u64, Shows) =
    (WIDE, |run| has(run, |kind| matches!(kind, Kind::Split(_) | Kind::Cut(_) | Kind::Pause(..))));
/// A node that is silent for a moment.
const BLIP: (u64, Shows) = (TWO_NICS, |run| run.blip && run.nodes <= 5 && run.services.len() <= 3);
/// One hand-over, and nothing else.
const HANDED_OVER: (u64, Shows) =
    (WIDE, |run| has(run, |kind| matches!(kind, Kind::ShutOut(_))) && run.bound.is_some());
/// A Service is made anew while a host answers for its address.
const TAKEN: (u64, Shows) = (WIDE, |run| {
    has(run, |kind| matches!(kind, Kind::Deleted(_))) && has(run, |kind| matches!(kind, Kind::Duplicate(_)))
});

#[test]
fn an_engine_without_fence_is_found_out() {
    is_found_out(Sabotage::NoFence, &[Global, Service, Node], &[15], ANY);
}

#[test]
fn an_engine_without_sweep_is_found_out() {
    is_found_out(Sabotage::NoSweep, &[Global, Service, Node], &[14], ANY);
}

#[test]
fn an_api_without_compare_and_swap_is_found_out() {
    is_found_out(Sabotage::NoCompareAndSwap, &[Global, Service, Node], &[20], ANY);
}

#[test]
fn a_successor_that_begins_with_discover_is_found_out() {
    is_found_out(Sabotage::NoInitReboot, &[Node], &[8], ANY);
}

#[test]
fn a_loser_that_gives_the_lease_back_is_found_out() {
    is_found_out(Sabotage::ReleaseAtHandOver, &[Node], &[22], ANY);
}

#[test]
fn nodes_that_ask_no_landmark_are_found_out() {
    is_found_out(Sabotage::NoWitness, &[Node], &[8, 12, 21, 25], CUT);
}

#[test]
fn nodes_that_do_not_ask_once_more_before_they_take_over_are_found_out() {
    is_found_out(Sabotage::NoBurst, &[Node], &[30], BLIP);
}

#[test]
fn an_owner_that_gives_up_before_its_successor_has_begun_is_found_out() {
    is_found_out(Sabotage::NoMakeBeforeBreak, &[Node], &[12], HANDED_OVER);
}

#[test]
fn a_new_owner_that_does_not_tell_the_former_one_is_found_out() {
    is_found_out(Sabotage::NoClaims, &[Node], &[1, 5], CUT);
}

#[test]
fn an_address_that_is_used_without_asking_is_found_out() {
    is_found_out(Sabotage::NoProbe, &[Node], &[13], TAKEN);
}

/// Three nodes are well for half a minute, and then one of them loses its power.
fn power_is_lost(seed: u64, sabotage: Option<Sabotage>) -> Option<Violation> {
    let node = usize::try_from(seed % 3).expect("less than three");
    let fault = Fault::in_seconds(30, 20, Kind::PowerLoss(node));
    let scenario = Scenario::of_three(seed, Node, &[Address::V4], vec![fault]);
    run(&scenario, sabotage, false).violation
}

#[test]
fn a_node_that_loses_its_power_is_called_silent_by_two_and_without_asking_kubelets_that_is_found_out() {
    for seed in 0..6 {
        assert_eq!(power_is_lost(seed, None), None, "seed {seed}");
        let found = power_is_lost(seed, Some(Sabotage::KubeletsAnswer)).expect("a broken promise");
        assert_eq!(number(found.promise), 29, "seed {seed}");
    }
}

#[test]
fn a_node_that_is_called_silent_and_answers_is_found_out() {
    is_found_out(Sabotage::Slander, &[Node], &[28], ANY);
}

#[test]
fn the_manual_lists_every_promise_under_its_number() {
    let manual = include_str!("../../../docs/announcer.md");
    let rows: Vec<&str> = manual.lines().filter(|line| line.starts_with("| P")).collect();
    assert_eq!(rows.len(), PROMISES.len());
    for (row, promise) in rows.iter().zip(PROMISES) {
        let listed = format!("| P{} | {promise} | ", number(promise));
        assert!(row.starts_with(&listed), "{row}\nis not\n{listed}");
    }
}
