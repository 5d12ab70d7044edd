//! Much happens at once, and the owners are asked all the same.

use super::*;

/// node-1 is the first in line after node-3, which has answered for a while.
fn standby() -> Cluster {
    let mut cluster = Cluster::new(&ALL, &[seated("web", "10.0.0.5", "node-3", 4)]);
    cluster.quiet(2000, &[("node-3", "10.0.0.5"), ("node-2", "10.0.0.2")], &ALL);
    cluster
}

fn answer(node: &str, address: &str) -> Input {
    let (mac, address) = (mac(node).into(), address.parse().unwrap());
    Input::Heard(Frame { link: 2, address, mac, what: Heard::Answer, to_us: true, payload: None })
}

/// A Service changes each millisecond of a second, and nothing is planned meanwhile. Questions to the owner, and whether
/// it was found silent.
fn storm(cluster: &mut Cluster, alive: bool) -> (usize, bool) {
    let (mut asked, mut silent) = (0, false);
    for number in 0..1000 {
        cluster.node.now += Duration::from_millis(1);
        let now = cluster.node.now;
        let engine = &mut cluster.node.engine;
        let new = view(&format!("{number:03}x"), &["10.0.1.1"]);
        let changed = Input::Service(new.key.clone(), Some(Box::new(new)));
        assert!(engine.hear(now, changed).is_empty(), "taking in costs nothing");
        for action in engine.look_out(now) {
            let Action::Ask { ask, .. } = action else { panic!("{action:?}") };
            if ask.address.to_string() == "10.0.0.5" {
                asked += 1;
                let from_owner = alive.then(|| answer("node-3", "10.0.0.5"));
                for heard in from_owner.into_iter().chain([answer("node-2", "10.0.0.2")]) {
                    assert!(engine.hear(now, heard).is_empty());
                }
            }
        }
        silent |= engine.is_urgent();
    }
    (asked, silent)
}

#[test]
fn a_thousand_services_that_change_in_a_second_keep_no_question_from_an_owner() {
    let mut cluster = standby();
    let (asked, silent) = storm(&mut cluster, true);
    assert!((19..=21).contains(&asked), "every 50 ms, and no burst: {asked}");
    assert!(!silent);
    assert_eq!(cluster.node.swaps, []);
}

#[test]
fn an_owner_that_dies_in_a_storm_is_found_and_planned_for_at_once() {
    let mut cluster = standby();
    let (_, silent) = storm(&mut cluster, false);
    assert!(silent, "the next plan may not wait");
    cluster.node.feed(Input::Tick);
    assert!(!cluster.node.engine.is_urgent());
    let swapped: Vec<&str> = cluster.node.swaps.iter().map(|(key, _)| key.name.as_str()).collect();
    assert!(swapped.contains(&"web"), "{swapped:?}");
}

#[test]
fn endpoint_slices_that_change_nothing_cost_no_plan() {
    let mut cluster = standby();
    let now = cluster.node.now;
    let nodes = |name: &str| Some(BTreeSet::from([name.to_owned()]));
    let engine = &mut cluster.node.engine;
    engine.step(now, Input::Endpoints(ServiceKey::new("default", "web"), nodes("node-3")));
    let mut plans = 0;
    for number in 0..1000 {
        // A pod on the same node becomes ready or not; in between a real move.
        let node = if number < 500 { "node-3" } else { "node-2" };
        engine.hear(now, Input::Endpoints(ServiceKey::new("default", "web"), nodes(node)));
        plans += usize::from(engine.out.plans());
        engine.step(now, Input::Tick);
    }
    assert_eq!(plans, 1);
}
