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

/// A Service changes each millisecond of a second, and more always waits. Questions to the owner, and whether its VIP
/// was asked for.
fn storm(cluster: &mut Cluster, alive: bool) -> (usize, bool) {
    let (mut asked, mut taken) = (0, false);
    for number in 0..1000 {
        cluster.node.now += Duration::from_millis(1);
        let now = cluster.node.now;
        let engine = &mut cluster.node.engine;
        let new = view(&format!("{number:03}x"), &["10.0.1.1"]);
        let changed = Input::Service(new.key.clone(), Some(Box::new(new)));
        assert!(engine.handle(now, changed).is_empty(), "taking in costs nothing");
        for action in engine.poll(now, true) {
            taken |= matches!(&action, Action::Swap(key, _) if key.name == "web");
            if let Action::Ask { ask, .. } = action
                && ask.address.to_string() == "10.0.0.5"
            {
                asked += 1;
                let from_owner = alive.then(|| answer("node-3", "10.0.0.5"));
                for heard in from_owner.into_iter().chain([answer("node-2", "10.0.0.2")]) {
                    assert!(engine.handle(now, heard).is_empty());
                }
            }
        }
        engine.wake_at(now);
    }
    (asked, taken)
}

#[test]
fn a_thousand_services_that_change_in_a_second_keep_no_question_from_an_owner() {
    let mut cluster = standby();
    let (asked, taken) = storm(&mut cluster, true);
    assert!((19..=21).contains(&asked), "every 50 ms, and no burst: {asked}");
    assert!(!taken);
}

#[test]
fn an_owner_that_dies_in_a_storm_is_found_and_planned_for_at_once() {
    let mut cluster = standby();
    let (_, taken) = storm(&mut cluster, false);
    assert!(taken, "the plan may not wait");
    assert!(!cluster.node.engine.out.is_urgent());
}

/// The send queue of the first in line is full, and questions to everybody do not leave it.
#[test]
fn an_owner_that_could_not_be_asked_keeps_its_address() {
    for refused in [true, false] {
        let mut cluster = standby();
        let mut taken = false;
        for _ in 0..1000 {
            cluster.node.now += Duration::from_millis(1);
            let now = cluster.node.now;
            let engine = &mut cluster.node.engine;
            for action in engine.poll(now, false) {
                match action {
                    Action::Swap(key, _) => taken |= key.name == "web",
                    Action::Ask { ask, .. } if refused && ask.to == Mac::BROADCAST => {
                        assert!(engine.handle(now, Input::NotSent(ask)).is_empty());
                    }
                    Action::Ask { .. } => assert!(engine.handle(now, answer("node-2", "10.0.0.2")).is_empty()),
                    _ => {}
                }
            }
            engine.wake_at(now);
        }
        assert_eq!(taken, !refused);
    }
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
        engine.handle(now, Input::Endpoints(ServiceKey::new("default", "web"), nodes(node)));
        plans += usize::from(engine.out.plans());
        engine.poll(now, false);
    }
    assert_eq!(plans, 1);
}

/// node-1 serves so many addresses, and the others know it.
fn owner_of_many(count: u64) -> Cluster {
    let mut cluster = Cluster::new(&["node-1"], &[]);
    for node in ["node-2", "node-3"] {
        cluster.node.feed(Input::Node(node.into(), Some(FACTS)));
        cluster.member(node, Card { term: Term(count), ..card(node) });
    }
    let now = cluster.node.now;
    for number in 0..count {
        let address = format!("10.0.{}.{}", 1 + number / 250, 1 + number % 250);
        let view = seated(&format!("{number:03}x"), &address, "node-1", number + 1);
        cluster.node.engine.handle(now, Input::Service(view.key.clone(), Some(Box::new(view))));
    }
    cluster.node.tick();
    cluster.quiet(5000, &[], &["node-1"]);
    cluster
}

/// Its process was kept waiting for so long beyond the moment at which it extends its addresses.
fn stand_still(cluster: &mut Cluster, late: Duration) {
    let due = cluster.node.engine.refresh.deadline();
    cluster.node.pass(due.duration_since(cluster.node.now).saturating_sub(Duration::from_millis(1)));
    cluster.node.log.clear();
    cluster.node.now = due + late;
    cluster.node.tick();
    cluster.node.pass_ms(1000);
}

/// Each probe is a broadcast, which every host of the LAN receives. So a sixteenth of the addresses is asked about at a
/// time, three times within 30 ms, and all of them within half a second.
#[test]
fn an_owner_that_stood_still_asks_about_a_thousand_addresses_in_sixteen_turns_and_announces_none() {
    const COUNT: usize = 1000;
    for (late, probes) in [(NODE_PAUSE, 0), (NODE_PAUSE + Duration::from_millis(10), 3 * COUNT)] {
        let mut cluster = owner_of_many(COUNT as u64);
        assert_eq!(cluster.node.kernel.own().len(), COUNT);
        stand_still(&mut cluster, late);
        let mut sent: BTreeMap<u64, usize> = BTreeMap::new();
        for line in &cluster.node.log {
            let (at, what) = line.split_once(' ').unwrap();
            assert!(!what.starts_with("announce"), "{late:?}: {line}");
            if what.starts_with("probe") {
                *sent.entry(at.parse().unwrap()).or_default() += 1;
            }
        }
        assert_eq!(sent.values().sum::<usize>(), probes, "{late:?}");
        assert!(sent.values().all(|at_once| *at_once <= COUNT.div_ceil(16)), "{late:?}: {sent:?}");
        let first = sent.keys().next().copied().unwrap_or_default();
        assert!(sent.keys().all(|at| at - first < 500), "{late:?}: {sent:?}");
        assert_eq!(cluster.node.kernel.own().len(), COUNT, "{late:?}: nobody else answers, so all are kept");
    }
}

/// As under a limit of processor time that is far too low. The timer that extends its address is late each time.
#[test]
fn an_owner_whose_process_seldom_runs_keeps_what_nobody_else_answers_for() {
    let mut cluster = owner(&ALL);
    for _ in 0..30 {
        cluster.node.now += Duration::from_millis(700);
        cluster.node.expire();
        cluster.node.tick();
    }
    let journal = &cluster.node.kernel.journal;
    assert!(cluster.has() && !journal.iter().any(|entry| entry.starts_with("expired")), "{journal:?}");
}

#[test]
fn an_owner_that_stands_still_again_while_it_asks_goes_on_only_after_one_more_question() {
    let mut cluster = owner(&ALL);
    let valid = |cluster: &Cluster| cluster.node.kernel.valid("10.0.0.5/32", cluster.node.now).unwrap();
    cluster.node.now = cluster.node.engine.refresh.deadline() + Duration::from_millis(1600);
    cluster.node.tick();
    // All three questions are sent.
    cluster.node.pass_ms(25);
    cluster.node.take_log();
    cluster.node.now += Duration::from_secs(2);
    cluster.node.tick();
    let asked = cluster.node.take_log().iter().filter(|line| line.starts_with("probe eth0 10.0.0.5")).count();
    assert_eq!((asked, valid(&cluster) < Duration::from_secs(1)), (1, true), "another node may have it by now");
    cluster.node.pass_ms(15);
    assert!(valid(&cluster) > Duration::from_secs(4));
}
