//! The end of a process: what is handed over, what stays for the next one, and who comes after it.

use super::*;

#[test]
fn the_end_hands_over_by_name_and_waits_until_the_successor_is_heard() {
    let mut cluster = owner(&["node-1", "node-2"]);
    cluster.leaves();
    assert_eq!(cluster.node.swaps[0].1.owner_record, OwnerRecord { host: "node-2".into(), term: Term(5) });
    assert!(cluster.node.cards.last().unwrap().leaving);
    cluster.won();
    cluster.node.pass_ms(100);
    assert!(cluster.has() && !cluster.node.exited, "make before break");
    cluster.claims("node-2", "10.0.0.5", "web", 5);
    assert!(!cluster.has());
    assert!(cluster.node.exited);
}

/// The group is the successor's once it has claimed all of it; from then on nothing here is in doubt.
#[test]
fn what_was_handed_over_is_served_until_each_address_was_claimed_and_is_the_successors_from_then_on() {
    let mut service = seated("web", "10.0.0.5", "node-1", 4);
    service.wanted = view("web", &["10.0.0.5", "10.0.0.6"]).wanted;
    let mut cluster = Cluster::new(&ALL, &[service]);
    cluster.quiet(3000, &[], &ALL);
    cluster.node.feed(Input::Node("node-1".into(), Some(NodeFacts { shut_out: true, ..FACTS })));
    let to = cluster.node.swaps[0].1.owner_record.host.clone();
    cluster.won();
    cluster.node.pass_ms(100);
    cluster.claims(&to, "10.0.0.5", "web", 5);
    assert_eq!(cluster.node.kernel.own(), ["eth0 10.0.0.6/32"], "it sets them one by one");
    assert!(!cluster.node.engine.plan.undecided.is_empty());
    cluster.claims(&to, "10.0.0.6", "web", 5);
    assert!(cluster.node.kernel.own().is_empty());
    assert!(cluster.node.engine.plan.undecided.is_empty(), "nothing holds up the sweep any more");
    cluster.node.kernel.network.addresses.push(crate::network::fixtures::own_address(3, "10.1.0.99/32"));
    cluster.node.feed(Input::NetworkChanged);
    cluster.node.pass_ms(100);
    assert!(cluster.node.kernel.own().is_empty());
}

#[test]
fn a_successor_that_is_not_heard_is_waited_for_only_so_long() {
    let mut cluster = owner(&["node-1", "node-2"]);
    cluster.leaves();
    cluster.won();
    cluster.node.pass_ms(2500);
    assert!(!cluster.has() && cluster.node.exited);
}

#[test]
fn the_end_of_the_only_node_leaves_the_address_for_the_next_process() {
    let mut cluster = owner(&["node-1"]);
    cluster.node.feed(Input::Stop);
    assert!(cluster.node.exited && cluster.has());
    assert!(cluster.node.kernel.valid("10.0.0.5/32", cluster.node.now).unwrap() > Duration::from_secs(290));
}

/// A hand-over would reset every connection, and the next process is here in seconds.
#[test]
fn a_process_that_is_replaced_on_its_node_hands_nothing_over() {
    for (what, env, facts, proxy, stays) in [
        ("an upgrade", &[][..], Some(FACTS), true, true),
        ("it is told to", &[("vip_handover", "true")], Some(FACTS), true, false),
        ("cordoned", &[], Some(NodeFacts { cordoned: true, ..FACTS }), true, false),
        ("shut down gracefully", &[], Some(NodeFacts { ready: false, ..FACTS }), true, false),
        ("the Node is gone", &[], None, true, false),
        ("kube-proxy is ill", &[], Some(FACTS), false, false),
    ] {
        let nodes = ["node-1", "node-2"];
        let mut cluster = Cluster::with(env, &nodes, &[seated("web", "10.0.0.5", "node-1", 4)]);
        cluster.quiet(3000, &[], &nodes);
        cluster.node.take_log();
        cluster.node.feed(Input::KubeProxy(proxy));
        cluster.node.feed(Input::Node("node-1".into(), facts));
        cluster.node.feed(Input::Stop);
        assert_eq!((cluster.node.exited, cluster.node.swaps.is_empty(), cluster.has()), (stays, stays, true), "{what}");
        if stays {
            assert!(cluster.node.cards.last().unwrap().leaving, "nobody gives it anything meanwhile");
            assert!(cluster.node.kernel.valid("10.0.0.5/32", cluster.node.now).unwrap() > Duration::from_secs(290));
            assert!(!cluster.node.take_log().iter().any(|line| line.starts_with("remove")), "{what}");
        }
    }
}

/// A process whose node has the address of a former one, and nothing heard of kube-proxy yet. It may be replaced by the
/// same upgrade, or be slow.
fn next_process() -> Cluster {
    let mut network = network();
    network.addresses.push(crate::network::fixtures::own_address(2, "10.0.0.5/32"));
    let node = Node::new(&[("election_mode", "node")], network);
    Cluster::start(node, &ALL, &[seated("web", "10.0.0.5", "node-1", 4)], None)
}

/// A hand-over would reset every connection, and the way back a minute later would do so again.
#[test]
fn a_next_process_decides_nothing_and_writes_no_card_before_it_has_heard_of_kube_proxy() {
    let mut cluster = next_process();
    cluster.quiet(1000, &[], &ALL);
    assert_eq!(cluster.node.engine.unknown(), Some("whether kube-proxy is healthy"));
    assert_eq!((cluster.node.cards.len(), cluster.node.swaps.len()), (0, 0));
    cluster.node.feed(Input::KubeProxy(true));
    assert_eq!(cluster.node.engine.unknown(), None);
    assert!(!cluster.node.cards.is_empty(), "at once");
    cluster.quiet(10_000, &[], &ALL);
    assert!(cluster.node.cards.iter().all(|card| card.serving), "{:?}", cluster.node.cards);
    assert_eq!(cluster.node.swaps, []);
    let log = cluster.node.take_log();
    assert!(cluster.has() && !log.iter().any(|line| line.starts_with("remove")), "{log:?}");
}

#[test]
fn a_kube_proxy_of_which_nothing_is_heard_for_ten_seconds_counts_as_ill_until_it_is_heard_of() {
    let mut cluster = next_process();
    cluster.quiet(9900, &[], &ALL);
    assert_eq!((cluster.node.cards.len(), cluster.node.swaps.len()), (0, 0));
    cluster.quiet(200, &[], &ALL);
    let said = |cluster: &Cluster| cluster.node.cards.last().map(|card| card.serving);
    assert_eq!(said(&cluster), Some(false));
    assert!(cluster.node.swaps.iter().any(|(_, swap)| swap.owner_record.host != "node-1"), "others are better off");
    cluster.node.feed(Input::KubeProxy(true));
    cluster.quiet(100, &[], &ALL);
    assert_eq!(said(&cluster), Some(true));
}

#[test]
fn an_owner_whose_next_process_does_not_come_is_succeeded_when_its_kernel_drops_the_address() {
    let mut cluster = Cluster::new(&ALL, &[seated("web", "10.0.0.5", "node-3", 4)]);
    cluster.member("node-3", Card { leaving: true, ..card("node-3") });
    cluster.quiet(60_000, &[("node-3", "10.0.0.5"), ("node-2", "10.0.0.2")], &["node-1", "node-2"]);
    assert_eq!(cluster.node.swaps, [], "its Lease has run out, and nobody else answers");
    cluster.quiet(500, &[("node-2", "10.0.0.2")], &["node-1", "node-2"]);
    assert_eq!(cluster.node.swaps[0].1.owner_record.host, "node-1");
}

#[test]
fn an_api_that_is_away_at_the_end_leaves_the_address_too() {
    let mut cluster = owner(&["node-1", "node-2"]);
    cluster.leaves();
    let mut failures = 0;
    for _ in 0..200 {
        if let Some(asked) = cluster.node.swaps.pop() {
            cluster.answered(asked, Swapped::Failed("away".into()));
            failures += 1;
        }
        cluster.node.pass_ms(50);
    }
    assert!(cluster.node.exited && cluster.has());
    assert!(failures > 1, "it is tried again");
    assert!(cluster.node.kernel.valid("10.0.0.5/32", cluster.node.now).unwrap() > Duration::from_secs(290));
    assert_eq!(cluster.node.engine.observations().failed_swaps, failures);
}

/// An etcd that elects a leader answers after seven seconds, and has written it then.
#[test]
fn a_hand_over_that_the_api_has_not_answered_leaves_the_address_for_no_longer_than_a_dead_process() {
    let mut cluster = owner(&["node-1", "node-2"]);
    cluster.leaves();
    assert_eq!(cluster.node.swaps.len(), 1);
    cluster.node.pass_ms(5900);
    assert!(cluster.has() && !cluster.node.exited);
    cluster.node.pass_ms(200);
    assert!(cluster.has() && cluster.node.exited);
    assert!(cluster.node.kernel.valid("10.0.0.5/32", cluster.node.now).unwrap() <= Duration::from_secs(5));
}

/// A stranger claims the address just before the end, so the record is being read again.
#[test]
fn a_record_that_is_being_read_is_given_away_when_the_answer_is_there() {
    let reading = || {
        let mut cluster = owner(&["node-1", "node-2"]);
        cluster.node.heard(2, "10.0.0.5", [2, 9, 9, 9, 9, 9], Heard::Claim);
        assert_eq!(cluster.node.swaps[0].1.owner_record.host, "node-1", "a read");
        cluster.leaves();
        assert!(!cluster.node.exited && cluster.has(), "nothing is given yet, and nothing left");
        cluster
    };
    let mut cluster = reading();
    cluster.won();
    assert_eq!(cluster.node.swaps[0].1.owner_record.host, "node-2");
    let mut unanswered = reading();
    unanswered.node.pass_ms(6500);
    assert!(unanswered.node.exited, "an API that does not answer holds nobody up for ever");
}
