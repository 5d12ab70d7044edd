//! Every state that can be reached, each looked at.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::mem::{Discriminant, discriminant};

use super::{Bound, Event, HIGHEST_TERM, World};

/// What leads to each state first, and how many steps it takes.
type Predecessors = HashMap<World, (Option<(usize, Event)>, usize)>;

#[derive(Debug, Default)]
struct Explored {
    states: usize,
    depth: usize,
    /// The kinds of events that have happened.
    kinds: HashSet<Discriminant<Event>>,
}

impl Explored {
    /// The kinds of events that have never happened.
    fn missing(&self, bound: Bound) -> BTreeSet<String> {
        let (steps, faults) = events(bound);
        let missing = steps.into_iter().chain(faults).filter(|event| !self.kinds.contains(&discriminant(event)));
        missing.map(|event| format!("{event:?}").split('(').next().unwrap_or_default().to_owned()).collect()
    }
}

/// All events, in the order in which they happen if nothing delays them.
fn events(bound: Bound) -> (Vec<Event>, Vec<Event>) {
    let each = || 0..bound.nodes;
    let of = |event: fn(usize) -> Event| each().map(event).collect::<Vec<_>>();
    let claims = each().flat_map(|a| each().filter(move |b| *b != a).map(move |b| Event::Claim(a, b)));
    let mut steps = Vec::new();
    for event in [Event::Performed, Event::WriteLost, Event::Answered, Event::AnswerLost, Event::Watched, Event::Up] {
        steps.extend(of(event));
    }
    steps.extend(claims);
    for event in [Event::Expires, Event::Renewed, Event::LingerEnds, Event::Look, Event::LeaseRunsOut] {
        steps.extend(of(event));
    }
    let mut faults: Vec<Event> = (0..1 << bound.nodes).map(Event::Split).collect();
    for event in [
        Event::PowerLoss,
        Event::PowerBack,
        Event::Crash,
        Event::Restart,
        Event::ApiAway,
        Event::ApiBack,
        Event::Excluded,
    ] {
        faults.extend(of(event));
    }
    (steps, faults)
}

/// Every state that can be reached, each looked at.
fn explore(bound: Bound) -> Explored {
    let (steps, faults) = events(bound);
    let recoveries =
        |event: &Event| matches!(event, Event::Split(0) | Event::PowerBack(_) | Event::Restart(_) | Event::ApiBack(_));
    let heal: Vec<Event> = faults.iter().copied().filter(recoveries).chain(steps.iter().copied()).collect();
    let start = World::new(bound);
    let mut seen: Predecessors = HashMap::from([(start.clone(), (None, 0))]);
    let mut order = vec![start];
    let mut queue = VecDeque::from([0_usize]);
    let mut found = Explored::default();
    while let Some(index) = queue.pop_front() {
        let world = order[index].clone();
        let depth = seen[&world].1;
        found.depth = found.depth.max(depth);
        for schedule in [&steps, &heal] {
            if let Err(wrong) = world.at_rest(bound, schedule) {
                panic!("{wrong}\n{}", story(&seen, &order, index));
            }
        }
        for event in steps.iter().chain(&faults).copied().filter(|event| world.can(bound, *event)) {
            assert!(
                !world.robs(bound, event),
                "{event:?} takes it from an owner whom clients hear\n{}",
                story(&seen, &order, index)
            );
            found.kinds.insert(discriminant(&event));
            let next = world.after(bound, event);
            assert!(next.record.1 >= world.record.1, "an older record is written over a newer one");
            assert!(next.record.1 < HIGHEST_TERM, "the record goes to and fro\n{}", story(&seen, &order, index));
            if !seen.contains_key(&next) {
                seen.insert(next.clone(), (Some((index, event)), depth + 1));
                queue.push_back(order.len());
                order.push(next);
            }
        }
    }
    found.states = order.len();
    found
}

/// How it came to this.
fn story(seen: &Predecessors, order: &[World], index: usize) -> String {
    let mut lines = vec![format!("{:#?}", order[index])];
    let mut at = index;
    while let Some((before, event)) = seen[&order[at]].0 {
        lines.push(format!("{event:?}"));
        at = before;
    }
    lines.reverse();
    lines.join("\n")
}

fn explore_all(bounds: &[(usize, u8)]) -> Vec<(Bound, Explored)> {
    let mut all = Vec::new();
    for (nodes, faults) in bounds {
        for gateway in [true, false] {
            let bound = Bound { nodes: *nodes, faults: *faults, gateway, blind: false };
            let found = explore(bound);
            let gateway = if gateway { "a" } else { "no" };
            let Explored { states, depth, .. } = found;
            println!("{nodes} nodes, {faults} faults, {gateway} gateway: {states} states, up to {depth} steps deep");
            all.push((bound, found));
        }
    }
    all
}

#[test]
fn in_every_order_of_one_fault_and_the_steps_that_follow_the_address_has_one_owner_whom_clients_hear() {
    for (bound, found) in explore_all(&[(2, 1), (3, 1)]) {
        assert!(found.states > 100, "{bound:?}: {} states", found.states);
        // No write begins before the only fault, and only another fault could lose it or its answer.
        let expected = BTreeSet::from(["AnswerLost".to_owned(), "WriteLost".to_owned()]);
        assert_eq!(found.missing(bound), expected, "{bound:?}");
    }
}

/// Two and three nodes, several faults. The manual says how many states these are.
#[test]
#[ignore = "minutes: `make model` runs it"]
fn in_every_order_of_several_faults_and_the_steps_that_follow_the_address_has_one_owner_whom_clients_hear() {
    let manual = include_str!("../../../../../../docs/announcer.md");
    let manual = manual.split_whitespace().collect::<Vec<_>>().join(" ");
    for (bound, found) in explore_all(&[(2, 2), (2, 3), (3, 2)]) {
        assert_eq!(found.missing(bound), BTreeSet::new(), "{bound:?}");
        let Explored { states, depth, .. } = found;
        let states = format!("{},{:03}", states / 1000, states % 1000);
        let sentence = match (bound.nodes, bound.faults) {
            (2, 3) => format!("two nodes with up to three of these faults ({states} states, up to {depth} steps deep)"),
            (3, 2) => format!("three nodes with up to two ({states} states, up to {depth} steps)"),
            _ => continue,
        };
        assert!(manual.contains(&sentence), "docs/announcer.md does not say: {sentence}");
    }
}

#[test]
#[should_panic(expected = "it does not come to rest")]
fn nodes_that_ask_no_landmark_take_it_to_and_fro_and_are_found_out() {
    explore(Bound { nodes: 3, faults: 1, gateway: true, blind: true });
}
