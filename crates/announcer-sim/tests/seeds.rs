//! A fixed set of seeds, as many as each run of the tests can afford. One again, with its trace:
//! `cargo run -p announcer-sim --bin sim -- --mode node --seed 17`; many: `make sim SEEDS=100000`.

use std::ops::Range;
use std::time::Duration;

use announcer_core::ElectionMode;
use announcer_sim::scenario::{Address, Fault, Kind, LIES, TWO_NICS, WIDE};
use announcer_sim::{Outcome, Sabotage, Scenario, run, shrink};

const ALL: [ElectionMode; 3] = [ElectionMode::Global, ElectionMode::Service, ElectionMode::Node];

/// What is run of each mode. In `node` mode owners are asked twenty times a second: a seed costs ten times as much.
const fn seeds(mode: ElectionMode) -> Range<u64> {
    match mode {
        ElectionMode::Node => 0..40,
        ElectionMode::Global | ElectionMode::Service => 0..150,
    }
}

/// The first seed that breaks a promise, shrunk and told.
fn first_broken(mode: ElectionMode, sabotage: Option<Sabotage>) -> Option<(u64, String)> {
    let seed = seeds(mode).find(|seed| run(&Scenario::of(*seed, mode), sabotage, false).violation.is_some())?;
    let small = shrink(&Scenario::of(seed, mode), sabotage);
    let outcome = run(&small, sabotage, true);
    let violation = outcome.violation.map_or_else(String::new, |violation| violation.to_string());
    Some((seed, format!("{}\nseed {seed}, shrunk to: {small}\n{violation}", outcome.trace.join("\n"))))
}

/// A few that nobody has seen yet: `make test` takes `HCP_SEED` from the commit.
fn seeds_of_the_commit(mode: ElectionMode) -> Range<u64> {
    let first: u64 = std::env::var("HCP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1_000_000);
    first..first + if mode == ElectionMode::Node { 10 } else { 40 }
}

#[test]
fn no_seed_of_the_commit_breaks_a_promise() {
    for mode in ALL {
        for seed in seeds_of_the_commit(mode) {
            keeps_its_promises(seed, mode);
        }
    }
}

fn no_seed_breaks_a_promise(mode: ElectionMode) {
    if let Some((_, run)) = first_broken(mode, None) {
        panic!("{run}");
    }
}

/// A seed that broke a promise once.
fn keeps_its_promises(seed: u64, mode: ElectionMode) {
    kept(&Scenario::of(seed, mode));
}

/// What came of a run that keeps all promises. One that breaks any runs again for its trace: nobody reads in words what
/// happened in the others.
fn kept(scenario: &Scenario) -> Outcome {
    let outcome = run(scenario, None, false);
    if let Some(violation) = &outcome.violation {
        panic!("{}\n{violation}", run(scenario, None, true).trace.join("\n"));
    }
    outcome
}

#[test]
fn no_seed_breaks_a_promise_in_global_mode() {
    no_seed_breaks_a_promise(ElectionMode::Global);
}

#[test]
fn no_seed_breaks_a_promise_in_service_mode() {
    no_seed_breaks_a_promise(ElectionMode::Service);
}

#[test]
fn no_seed_breaks_a_promise_in_node_mode() {
    no_seed_breaks_a_promise(ElectionMode::Node);
}

#[test]
fn a_service_made_anew_while_its_lease_is_being_handed_back_keeps_the_one_owner_that_takes_it() {
    keeps_its_promises(1953, ElectionMode::Service);
}

#[test]
fn an_address_given_up_to_a_node_that_reads_its_lease_too_late_is_back_when_that_one_has_read_it() {
    keeps_its_promises(4887, ElectionMode::Service);
}

/// The first of two Services at one address is deleted, and a node does not hear of it: for a moment, and for longer
/// than its owner keeps the Lease.
#[test]
fn the_lease_of_a_service_that_is_gone_takes_no_address_from_the_services_that_share_it() {
    // While the Lease is kept, nobody else can take it: two nodes do not answer even for a moment.
    let longest = kept(&Scenario::of(11_110_494, ElectionMode::Service)).longest;
    assert_eq!(longest.keys().copied().collect::<Vec<_>>(), ["nothing is left behind"], "{longest:?}");
    for seed in 0..3 {
        for node in 0..3 {
            let faults =
                vec![Fault::in_seconds(20, 31, Kind::Stale(node)), Fault::in_seconds(21, 35, Kind::Deleted(0))];
            kept(&Scenario::of_three(seed, ElectionMode::Service, &[Address::V4, Address::SharedWith(0)], faults));
        }
    }
}

/// It stood still together with its clock, and another node had taken the Lease when it wanted to give it back.
#[test]
fn a_node_that_ends_after_a_pause_withdraws_what_another_node_has_taken_meanwhile() {
    keeps_its_promises(12_042_095, ElectionMode::Service);
}

#[test]
fn a_leader_that_has_not_heard_of_its_loss_takes_no_new_address() {
    keeps_its_promises(12_003_268, ElectionMode::Global);
}

/// It was claimed while the node stood still, and the answers to the node's three questions are lost.
#[test]
fn a_node_without_a_confirmed_lease_does_not_go_on_with_what_was_claimed_during_its_pause() {
    keeps_its_promises(12_061_871, ElectionMode::Service);
}

#[test]
fn a_lease_that_ends_because_its_server_has_forgotten_it_may_be_replaced_when_all_else_is_at_rest() {
    keeps_its_promises(356, ElectionMode::Node);
}

#[test]
fn a_node_that_a_server_has_refused_a_lease_does_not_go_on_with_it_when_the_service_comes_back() {
    keeps_its_promises(375, ElectionMode::Node);
}

#[test]
fn what_is_handed_over_to_a_node_that_stands_still_is_not_served_beside_the_third_one_that_takes_it() {
    keeps_its_promises(1707, ElectionMode::Node);
}

#[test]
fn a_node_that_is_well_again_while_the_api_is_away_is_known_to_be_well_soon_after() {
    keeps_its_promises(1944, ElectionMode::Node);
}

/// Racks keep owner and third node apart, and the second node loses its power together with the owner.
#[test]
fn an_owner_that_loses_power_and_that_nobody_left_has_ever_heard_is_succeeded_when_its_lease_expires() {
    keeps_its_promises(50_000_290, ElectionMode::Node);
}

/// The two are apart, so the second one has never heard the owner, whose kernel drops the address.
#[test]
fn an_owner_that_stands_still_and_was_never_heard_is_succeeded_when_its_lease_expires() {
    keeps_its_promises(70_000_014, ElectionMode::Node);
}

/// Twelve nodes fall apart into nine and three, the gateway is with the three, and both watchers are with the owner.
#[test]
fn an_owner_cut_off_from_the_gateway_together_with_its_watchers_hands_over_to_the_other_side() {
    keeps_its_promises(50_000_309, ElectionMode::Node);
}

#[test]
fn a_process_that_is_to_start_while_its_machine_stands_still_starts_when_that_goes_on() {
    keeps_its_promises(1017, ElectionMode::Node);
    keeps_its_promises(1821, ElectionMode::Node);
}

#[test]
fn a_kube_vip_is_left_alone_from_when_its_lease_could_be_read() {
    keeps_its_promises(1532, ElectionMode::Node);
    keeps_its_promises(1880, ElectionMode::Node);
}

#[test]
fn what_is_given_back_before_its_loss_was_heard_is_served_at_once() {
    keeps_its_promises(4675, ElectionMode::Node);
}

#[test]
fn an_owner_that_answers_for_a_service_made_anew_is_no_stranger_and_gives_way() {
    for seed in [6688, 9324, 9695] {
        keeps_its_promises(seed, ElectionMode::Node);
    }
}

#[test]
fn a_lease_that_changes_while_nodes_do_not_see_the_api_has_one_user_and_no_stranger() {
    for seed in [633, 3497, 7156, 8174, 16445] {
        keeps_its_promises(seed, ElectionMode::Node);
    }
}

#[test]
fn who_served_an_address_unseen_is_told_by_whoever_gets_it() {
    for seed in [14_024, 21_849] {
        keeps_its_promises(seed, ElectionMode::Node);
    }
}

#[test]
fn what_was_given_up_in_doubt_comes_back_when_the_doubt_is_over() {
    keeps_its_promises(5603, ElectionMode::Node);
}

#[test]
fn an_owner_whose_lease_was_not_read_yet_is_not_asked_for_by_everybody() {
    keeps_its_promises(18_880, ElectionMode::Node);
}

#[test]
fn an_address_is_not_given_to_a_node_that_still_leaves_everything_to_a_kube_vip() {
    for seed in [5_010_240, 5_016_139] {
        keeps_its_promises(seed, ElectionMode::Node);
    }
}

#[test]
fn what_the_record_says_is_somebody_elses_is_not_served_for_a_last_moment_beside_a_kube_vip() {
    keeps_its_promises(5_016_550, ElectionMode::Node);
}

#[test]
fn a_lease_that_its_server_has_shortened_is_used_by_a_successor_no_longer_than_that() {
    keeps_its_promises(5_008_426, ElectionMode::Node);
}

/// What these had shown was the model's: watches stood still for a fault that had not begun, and a DHCP server that
/// refuses, gives away or is slow was not given the time that a silent one was given.
#[test]
fn a_hand_over_is_given_the_time_that_its_watch_and_its_lease_take() {
    for seed in [5_007_146, 5_015_793, 5_016_706] {
        keeps_its_promises(seed, ElectionMode::Node);
    }
}

/// A process that started while the API was away keeps what it found; the first in line is cut off with the owner.
#[test]
fn what_wider_seeds_have_shown_is_judged_by_what_can_be_known() {
    for seed in [20_100_112, 20_100_305] {
        keeps_its_promises(seed, ElectionMode::Node);
    }
}

#[test]
fn a_node_that_hears_nobody_takes_what_a_dead_owner_had_after_those_that_hear_somebody() {
    keeps_its_promises(6_000_145, ElectionMode::Node);
}

#[test]
fn a_lease_that_a_watch_does_not_show_has_not_run_out() {
    keeps_its_promises(6_000_561, ElectionMode::Node);
}

/// The gateway was lost long before the second address, which was handed over to the owner meanwhile, was missed.
#[test]
fn a_node_that_has_lost_the_gateway_does_not_forget_that_when_it_begins_to_watch_another_address() {
    keeps_its_promises(9_002_068, ElectionMode::Node);
}

/// Swaps that followed each other in an outage had taught each other to wait for ten seconds.
#[test]
fn an_api_that_is_back_after_a_long_outage_is_asked_soon() {
    keeps_its_promises(9_002_620, ElectionMode::Node);
}

#[test]
fn a_successor_whose_record_is_on_its_way_is_no_stranger() {
    for seed in [157, 6_000_933, 6_000_941] {
        keeps_its_promises(seed, ElectionMode::Node);
    }
}

/// Of the first fifty scenarios of each range, in [`ALL`] modes. Who changes the generator on purpose pastes here what
/// the test below prints.
const DIGESTS: [(&str, u64, [u64; 3]); 4] = [
    ("0", 0, [0xbca2_bd09_efe6_74dc, 0xe518_ea7d_2669_3136, 0xbf97_2981_8d78_dde9]),
    ("WIDE", WIDE, [0xa2f8_fa6b_b6ee_c2d2, 0xcfc0_eee5_3109_659e, 0x0cc2_fbb9_65ed_4e97]),
    ("TWO_NICS", TWO_NICS, [0xdaed_d396_aba3_99d8, 0x11ba_4168_fac9_99c0, 0x8845_155d_3182_4711]),
    ("LIES", LIES, [0xe93a_8766_d961_66e8, 0xc525_cb80_dd3b_ed1c, 0x388a_4c01_b6ab_9fab]),
];

/// FNV-1a of all that these scenarios say.
fn digest(seeds: Range<u64>, mode: ElectionMode) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for seed in seeds {
        for byte in format!("{:?}", Scenario::of(seed, mode)).bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

/// A seed stands for what once broke a promise only as long as the generator makes the same of it. Whoever changes the
/// generator draws apart (`scenario/make.rs`), or finds other seeds for the tests here. A field or a name that alone is
/// new changes the digests, too, and no run.
#[test]
fn a_seed_is_the_scenario_that_it_was_when_its_test_was_written() {
    let found = DIGESTS.map(|(_, first, _)| ALL.map(|mode| digest(first..first + 50, mode)));
    let lines = DIGESTS.iter().zip(found).map(|((name, ..), digests)| {
        let digits = digests.map(|digest| {
            let parts = [48, 32, 16, 0].map(|shift| format!("{:04x}", (digest >> shift) & 0xffff));
            format!("0x{}", parts.join("_"))
        });
        format!("    (\"{name}\", {name}, [{}]),", digits.join(", "))
    });
    let lines = lines.collect::<Vec<_>>().join("\n");
    assert_eq!(found, DIGESTS.map(|(.., expected)| expected), "they are now\n{lines}");
}

#[test]
fn a_seed_makes_the_same_run_each_time() {
    for mode in ALL {
        for seed in 0..3 {
            let scenario = Scenario::of(seed, mode);
            let [first, second] = [(), ()].map(|()| run(&scenario, None, true));
            assert_eq!(first.events, second.events);
            assert_eq!(first.trace, second.trace);
            assert!(first.events > 500 && first.moves < 100, "{} events, {} moves", first.events, first.moves);
        }
    }
}

/// Each of three nodes loses power, one after the other, while each request to the API takes this much longer.
fn power_losses_with_an_api_late_by(milliseconds: u64) {
    for seed in 0..3 {
        let mut faults = vec![Fault::in_seconds(15, 75, Kind::ApiLate(milliseconds))];
        faults.extend((0..3).map(|node| Fault::in_seconds(20 + 20 * node as u64, 10, Kind::PowerLoss(node))));
        let scenario = Scenario::of_three(seed, ElectionMode::Node, &[Address::V4], faults);
        assert!(kept(&scenario).moves > 0, "somebody had it, and lost power");
    }
}

#[test]
fn an_api_that_is_slow_for_everybody_lets_owners_change() {
    power_losses_with_an_api_late_by(400);
    power_losses_with_an_api_late_by(1000);
}

/// How often the only address of three nodes moves while this lasts for half a minute, and afterwards.
fn moves_while(seed: u64, kind: Kind) -> u64 {
    kept(&Scenario::of_three(seed, ElectionMode::Node, &[Address::V4], vec![Fault::in_seconds(20, 30, kind)])).moves
}

#[test]
fn a_node_that_loses_one_direction_of_the_lan_moves_an_address_once_if_it_has_it_and_else_never() {
    for seed in 0..4 {
        for lost in [Kind::Mute, Kind::Deaf] {
            let moves: Vec<u64> = (0..3).map(|node| moves_while(seed, lost(node))).collect();
            assert_eq!(moves.iter().sum::<u64>(), 1, "seed {seed}, {:?} on each node: {moves:?} moves", lost(0));
        }
    }
}

/// A switch with two of three nodes loses its uplink: clients and the gateway are with the third one, or are lost to
/// the owner.
#[test]
fn a_group_that_is_cut_off_together_takes_nothing_and_loses_what_it_has_once() {
    for seed in 0..3 {
        let moves = [vec![0, 1], vec![0, 2], vec![1, 2]].map(|group| moves_while(seed, Kind::Split(group)));
        let mut sorted = moves;
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 1], "seed {seed}: {moves:?} moves");
    }
}

#[test]
fn while_all_nodes_are_not_ready_and_when_they_come_back_nothing_moves() {
    for seed in 0..3 {
        assert_eq!(moves_while(seed, Kind::AllNotReady), 0, "seed {seed}");
    }
}

/// How often six addresses move while one node of three is not ready for half a minute, and when it is well again.
fn moves_of_six_while_not_ready(seed: u64, node: usize) -> u64 {
    let fault = Fault::in_seconds(20, 30, Kind::NotReady(node));
    let mut scenario = Scenario::of_three(seed, ElectionMode::Node, &[Address::V4; 6], vec![fault]);
    // A minute until the first one goes back, and two seconds for each of the others.
    scenario.deletion += Duration::from_secs(25);
    scenario.end += Duration::from_secs(25);
    kept(&scenario).moves
}

#[test]
fn what_a_node_had_that_was_not_ready_moves_twice_there_and_back() {
    for seed in 0..3 {
        let moves: Vec<u64> = (0..3).map(|node| moves_of_six_while_not_ready(seed, node)).collect();
        assert_eq!(moves.iter().sum::<u64>(), 12, "seed {seed}: {moves:?} moves");
    }
}

#[test]
fn no_stranger_makes_an_owner_withdraw() {
    for seed in 0..2 {
        for kind in [Kind::Thief(0), Kind::Duplicate(0), Kind::ProxyArp, Kind::Ipvs, Kind::Claims(0)] {
            assert_eq!(moves_while(seed, kind.clone()), 0, "seed {seed}, {kind:?}");
        }
    }
}

/// Whoever may read Services knows their UIDs. The record that the API shows counts: the owner has its address back
/// when it has read that, and a node that loses power afterwards is followed as ever.
#[test]
fn a_claim_that_nobody_stands_behind_costs_a_moment() {
    for seed in 0..4 {
        for ahead in [1, 900, 1 << 40] {
            let lie = |at| Fault::in_seconds(at, 1, Kind::Lie(0, ahead));
            let lost = |at, node| Fault::in_seconds(at, 10, Kind::PowerLoss(node));
            let faults = vec![lie(20), lie(25), lost(40, 0), lost(70, 1)];
            let mut scenario = Scenario::of_three(seed, ElectionMode::Node, &[Address::V4], faults);
            scenario.nodes = 2;
            let moves = kept(&scenario).moves;
            assert!(moves <= 2, "seed {seed}, {ahead} ahead: {moves} moves");
        }
    }
}

#[test]
fn what_breaks_a_promise_is_told_as_a_short_story() {
    let (_, run) = first_broken(ElectionMode::Global, Some(Sabotage::NoFence)).expect("a broken promise");
    let faults = run.lines().filter(|line| line.contains(" s, for ")).count();
    assert!(faults <= 2 && run.contains("BROKEN: P15, addresses do not outlive their process"), "{run}");
}

/// Chooses kinds of faults.
type IsKind = fn(&Kind) -> bool;

#[test]
fn on_a_lan_that_keeps_nodes_apart_or_answers_for_others_no_seed_breaks_a_promise() {
    let kinds: [(&str, IsKind); 3] = [
        ("apart", |kind| matches!(kind, Kind::Apart(..))),
        ("fabric", |kind| *kind == Kind::Fabric),
        ("read only", |kind| matches!(kind, Kind::ReadOnly(_))),
    ];
    for (name, is) in kinds {
        let shows = |seed: &u64| {
            let run = Scenario::of(*seed, ElectionMode::Node);
            run.nodes <= 5 && run.faults.iter().any(|fault| is(&fault.kind))
        };
        let seeds: Vec<u64> = (LIES..LIES + 400).filter(shows).take(8).collect();
        assert_eq!(seeds.len(), 8, "{name}: {seeds:?}");
        for seed in seeds {
            keeps_its_promises(seed, ElectionMode::Node);
        }
    }
}

#[test]
fn two_nodes_that_hear_everybody_but_each_other_do_not_take_an_address_from_each_other_for_ever() {
    keeps_its_promises(40_000_086, ElectionMode::Node);
}

/// The first card of that process lacked the second interface, and a node that started later read no other card of it.
#[test]
fn a_node_whose_process_started_while_the_api_was_away_is_no_stranger_on_its_second_nic() {
    keeps_its_promises(40_010_903, ElectionMode::Node);
}

#[test]
fn an_owner_that_was_heard_shortly_before_its_record_and_is_cut_off_loses_its_address_after_five_seconds() {
    keeps_its_promises(40_000_779, ElectionMode::Node);
}

/// It gave the address to the node that hears the gateway and went on answering on its own side of the split, where the
/// switch was simulated as if it knew the successor's port on the other side.
#[test]
fn a_former_owner_that_answers_on_the_macvlan_until_it_hears_its_successor_is_no_fabric() {
    keeps_its_promises(3298, ElectionMode::Node);
}

/// The API refused the owner's renewals for longer than its Lease, and the next one came 5 ms before the other side of
/// a split decided. That side could not know of it yet.
#[test]
fn a_lease_that_was_renewed_again_a_moment_ago_had_run_out_for_a_node_that_is_cut_off() {
    keeps_its_promises(2191, ElectionMode::Node);
}

/// The Service was made anew while the API was away, and its owner knew of it before its successor did: the macvlan of
/// the new one answered with a MAC of its own.
#[test]
fn the_macvlan_of_a_service_made_anew_is_no_stranger_to_a_successor_that_does_not_know_it_yet() {
    keeps_its_promises(5912, ElectionMode::Node);
}

/// The process of the only node on the gateway's side started during the split. The owner renews its Lease, and its
/// card says only 12 s after the split that it hears no host.
#[test]
fn an_owner_that_is_cut_off_and_was_never_heard_falls_under_p9() {
    keeps_its_promises(6275, ElectionMode::Node);
}

/// The owner lost its power and three of five nodes were cut off with a new owner among them, while a proxy answered
/// for every address: the majority hands over only after it has lost the gateway for 18 s.
#[test]
fn a_majority_without_clients_takes_no_less_time_to_see_it_while_a_stranger_answers() {
    keeps_its_promises(6603, ElectionMode::Node);
}

/// The owner's process was dead when an excluded node gave it a second address, and answered for that for 2 s more. The
/// address that had proved the owner silent was taken meanwhile, so the second one was not tested again, and its former
/// owner was told of as a stranger.
#[test]
fn a_former_owner_that_serves_for_a_last_moment_is_no_stranger_when_its_successor_is_dead() {
    keeps_its_promises(7445, ElectionMode::Node);
}

/// The DHCP server gave away an address while the node was dead. What the others knew of it was forgotten in the 0.1 s
/// without an address, and no watch that began then could hear the dead node.
#[test]
fn what_is_known_of_a_lost_node_outlives_a_moment_without_addresses() {
    keeps_its_promises(7990, ElectionMode::Node);
}
