//! A fixed set of seeds. One again, with its trace: `cargo run -p announcer-sim --bin sim -- --mode global --seed 17`;
//! many: `make sim SEEDS=100000`.

use announcer::ElectionMode;
use announcer_sim::{Sabotage, Scenario, run, shrink};

/// Sixty seconds without optimisation, on two busy cores.
const fn seeds(mode: ElectionMode) -> u64 {
    match mode {
        // Owners are asked twenty times a second.
        ElectionMode::Node => 20,
        ElectionMode::Global | ElectionMode::Service => 200,
    }
}

/// The first seed that breaks a promise, shrunk and told.
fn first_broken(mode: ElectionMode, sabotage: Option<Sabotage>) -> Option<(u64, String)> {
    let seed = (0..seeds(mode)).find(|seed| run(&Scenario::of(*seed, mode), sabotage, false).violation.is_some())?;
    let small = shrink(&Scenario::of(seed, mode), sabotage);
    let outcome = run(&small, sabotage, true);
    let violation = outcome.violation.map_or_else(String::new, |violation| violation.to_string());
    Some((seed, format!("{}\nseed {seed}, shrunk to: {small}\n{violation}", outcome.trace.join("\n"))))
}

#[test]
fn no_seed_breaks_a_promise_in_global_mode() {
    if let Some((_, story)) = first_broken(ElectionMode::Global, None) {
        panic!("{story}");
    }
}

#[test]
fn no_seed_breaks_a_promise_in_node_mode() {
    if let Some((_, story)) = first_broken(ElectionMode::Node, None) {
        panic!("{story}");
    }
}

#[test]
fn a_seed_makes_the_same_run_each_time() {
    for seed in 0..5 {
        let scenario = Scenario::of(seed, ElectionMode::Global);
        let [first, second] = [(), ()].map(|()| run(&scenario, None, true));
        assert_eq!(first.events, second.events);
        assert_eq!(first.trace, second.trace);
        assert!(first.events > 1000 && first.moves < 100, "{} events, {} moves", first.events, first.moves);
    }
}

#[test]
fn an_engine_without_fence_is_found_out() {
    let (_, story) = first_broken(ElectionMode::Global, Some(Sabotage::NoFence)).expect("a broken promise");
    assert!(story.contains("two nodes that hear each other"), "{story}");
}

#[test]
fn an_engine_without_sweep_is_found_out() {
    let (_, story) = first_broken(ElectionMode::Global, Some(Sabotage::NoSweep)).expect("a broken promise");
    assert!(story.contains("nothing is left behind") || story.contains("two nodes"), "{story}");
}

#[test]
fn an_election_without_compare_and_swap_is_found_out() {
    let (_, story) = first_broken(ElectionMode::Global, Some(Sabotage::NoCompareAndSwap)).expect("a broken promise");
    assert!(story.contains("ownership is taken only from whom it may be taken"), "{story}");
}
