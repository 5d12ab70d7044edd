//! Which nodes an owner that is ill has to take for well.

use announcer_core::ownership::node::Member;

use super::*;
use crate::api::Request;
use crate::scenario::{Address, Scenario, Wish};

/// Four nodes on two LANs.
fn four() -> Scenario {
    let mut scenario = Scenario::of(0, ElectionMode::Node);
    (scenario.nodes, scenario.nics) = (4, 2);
    scenario.services = vec![Wish { address: Address::V4, local: None }];
    scenario.hosts.clear();
    scenario.faults.clear();
    scenario
}

/// The card of node `by` says that node `of` is silent.
fn accuse(world: &mut World<'_>, by: usize, of: usize) {
    let name = &world.nodes[of].name;
    let card = Card::parse(&format!("{{\"silent\":{{\"{name}\":{{\"uid\":\"u\",\"ms\":0,\"unanswered\":[]}}}}}}"));
    assert!(card.silent.contains_key(name));
    let member = Member { renewal: "1".into(), duration: Duration::from_secs(15), card };
    world.api.perform(world.now, &Request::WriteMember(world.nodes[by].name.clone(), None, member));
}

#[test]
fn a_node_counts_as_silent_by_the_own_card_of_the_owner_or_by_those_of_two_others() {
    for (name, accusers, known) in [
        ("nobody says so", &[][..], true),
        ("one other may be wrong", &[2], true),
        ("the owner says so", &[0], false),
        ("two others say so", &[2, 3], false),
    ] {
        let scenario = four();
        let mut world = World::new(&scenario, None, false);
        for by in accusers {
            accuse(&mut world, *by, 1);
        }
        world.look();
        assert!(!world.is_known_to_answer(1, 0), "{name}: it was heard just now");
        world.now += ASKED_AGAIN;
        assert_eq!(world.is_known_to_answer(1, 0), known, "{name}");
    }
}

#[test]
fn a_node_has_to_answer_only_in_lans_where_the_same_process_has_heard_it_before() {
    for (name, heard_before, restarted, known) in [
        ("it was heard in the second LAN", true, false, false),
        ("it was never heard there", false, false, true),
        ("a process before has heard it there", true, true, true),
    ] {
        let scenario = four();
        let mut world = World::new(&scenario, None, false);
        if heard_before {
            world.look();
        }
        world.splits.insert(0, (Some(1), [1].into()));
        world.nodes[0].life += u64::from(restarted);
        world.look();
        world.now += ASKED_AGAIN;
        assert_eq!(world.is_known_to_answer(1, 0), known, "{name}");
    }
}
