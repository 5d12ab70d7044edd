//! Nodes that answer nobody any more while their Leases stand: what is given away goes past them.

use contract::Silence;

use super::*;

fn own_address(node: &str) -> String {
    card(node).links[0].addresses[0].addr().to_string()
}

fn uid_of(node: &str) -> String {
    format!("uid of {node}")
}

fn facts_of(node: &str) -> NodeFacts {
    NodeFacts { uid: uid_of(node), ..FACTS }
}

/// For so long these nodes answer at addresses of their own, and the gateway does if it is there.
fn pass(cluster: &mut Cluster, milliseconds: u64, answering: &[&str], gateway: bool) {
    let address = "10.0.0.254".parse().unwrap();
    let (what, payload) = (Heard::Answer, None);
    let frame = Frame { link: 2, address, mac: Mac::new([2, 0, 0, 0, 9, 9]), what, to_us: true, payload };
    for _ in 0..milliseconds / 25 {
        if gateway {
            cluster.node.feed(Input::Heard(frame));
        }
        for node in answering {
            cluster.answers(node, &own_address(node));
        }
        cluster.node.pass_ms(25);
    }
}

/// node-1 owns 10.0.0.5 and has heard the other ones of these nodes.
fn among(nodes: &[&str]) -> Cluster {
    let mut cluster = Cluster::new(nodes, &[seated("web", "10.0.0.5", "node-1", 4)]);
    for node in nodes {
        cluster.node.feed(Input::Node((*node).to_owned(), Some(facts_of(node))));
    }
    pass(&mut cluster, 3000, &nodes[1..], true);
    assert!(cluster.has() && cluster.node.swaps.is_empty());
    cluster
}

/// Of three nodes these have lost their power, a moment ago.
fn beside_dead(dead: &[&str]) -> Cluster {
    let mut cluster = among(&ALL);
    let alive: Vec<&str> = ALL[1..].iter().copied().filter(|node| !dead.contains(node)).collect();
    pass(&mut cluster, 1000, &alive, true);
    for node in dead {
        assert!(cluster.node.log.iter().any(|line| line.ends_with(&format!("ask kubelet {node}"))), "{node}");
        cluster.node.feed(Input::Kubelet { node: (*node).to_owned(), answers: false });
    }
    let said: Vec<&str> = cluster.node.cards.last().unwrap().silent.keys().map(String::as_str).collect();
    assert_eq!(said, dead);
    assert_eq!(cluster.node.swaps, []);
    cluster
}

fn ends(cluster: &mut Cluster) {
    cluster.node.feed(Input::Node("node-1".into(), Some(NodeFacts { cordoned: true, ..facts_of("node-1") })));
    cluster.node.feed(Input::Stop);
}

fn falls_ill(cluster: &mut Cluster) {
    cluster.node.feed(Input::KubeProxy(false));
}

fn is_excluded(cluster: &mut Cluster) {
    cluster.node.feed(Input::Node("node-1".into(), Some(NodeFacts { shut_out: true, ..facts_of("node-1") })));
}

/// To whom node-1 gives it.
fn recipient(cluster: &Cluster) -> Option<&str> {
    cluster.node.swaps.first().map(|(_, swap)| swap.owner_record.host.as_str())
}

#[test]
fn what_is_given_away_goes_past_a_node_that_has_lost_its_power() {
    assert_eq!(crate::ownership::node::preferred("10.0.0.5", ["node-2", "node-3"]), Some("node-3"));
    for dead in [&[][..], &["node-3"]] {
        for (name, happens) in
            [("it ends", ends as fn(&mut Cluster)), ("it falls ill", falls_ill), ("it is excluded", is_excluded)]
        {
            let mut cluster = beside_dead(dead);
            happens(&mut cluster);
            let to = if dead.is_empty() { "node-3" } else { "node-2" };
            assert_eq!(recipient(&cluster), Some(to), "{name}, dead: {dead:?}");
        }
    }
}

/// Their Leases stand for a while. An owner that is ill may serve clients all the same.
#[test]
fn where_all_others_have_lost_their_power_an_owner_that_is_ill_keeps_it_and_one_that_may_not_gives_it_as_ever() {
    for (name, happens, to) in [
        ("it ends", ends as fn(&mut Cluster), Some("node-3")),
        ("it falls ill", falls_ill, None),
        ("it is excluded", is_excluded, Some("node-3")),
    ] {
        let mut cluster = beside_dead(&["node-2", "node-3"]);
        happens(&mut cluster);
        assert_eq!(recipient(&cluster), to, "{name}");
    }
}

/// node-3 has an address beside, and does not answer for that one any more.
#[test]
fn a_node_that_answers_at_its_own_address_is_not_lost_with_the_one_address_that_is_watched() {
    for (name, answering, renews, to) in [
        ("it answers at its own address and renews its Lease", &["node-2", "node-3"][..], true, "node-3"),
        ("its kernel answers, and its process may be dead", &["node-2", "node-3"], false, "node-2"),
        ("it answers for nothing", &["node-2"], true, "node-2"),
    ] {
        let views = [seated("web", "10.0.0.5", "node-1", 4), seated("other", "10.0.0.6", "node-3", 3)];
        let mut cluster = Cluster::new(&ALL, &views);
        for node in ALL {
            cluster.node.feed(Input::Node(node.to_owned(), Some(facts_of(node))));
        }
        for _ in 0..120 {
            cluster.answers("node-3", "10.0.0.6");
            pass(&mut cluster, 25, &ALL[1..], true);
        }
        pass(&mut cluster, 500, answering, true);
        assert!(cluster.node.swaps.iter().any(|(key, _)| key.name == "other"), "{name}: it is missed");
        cluster.renew(if renews { &ALL[..] } else { &ALL[..2] });
        falls_ill(&mut cluster);
        let given = cluster.node.swaps.iter().find(|(key, _)| key.name == "web");
        assert_eq!(given.map(|(_, swap)| swap.owner_record.host.as_str()), Some(to), "{name}");
    }
}

/// It is no silent node then, and its next card may be seconds away.
#[test]
fn an_owner_that_begins_to_answer_at_its_own_address_is_judged_anew_at_once() {
    for (answering, at_own) in [(&["node-2"][..], false), (&["node-2", "node-3"], true)] {
        let views = [seated("web", "10.0.0.5", "node-1", 4), seated("other", "10.0.0.6", "node-3", 3)];
        let mut cluster = Cluster::new(&ALL, &views);
        for _ in 0..120 {
            cluster.answers("node-3", "10.0.0.6");
            pass(&mut cluster, 25, &ALL[1..], true);
        }
        let judged = |cluster: &Cluster| cluster.node.engine.node_mode.at_own_addresses.get("node-3").copied();
        pass(&mut cluster, 1000, &["node-2"], true);
        assert_eq!(judged(&cluster), Some(false));
        pass(&mut cluster, 100, answering, true);
        assert_eq!(judged(&cluster), Some(at_own));
    }
}

/// It hears neither the gateway nor any node, and knows nothing about them.
#[test]
fn a_node_that_is_cut_off_itself_calls_nobody_silent_and_gives_away_as_ever() {
    let mut cluster = among(&ALL);
    pass(&mut cluster, 1000, &[], false);
    assert!(cluster.node.cards.last().unwrap().silent.is_empty());
    falls_ill(&mut cluster);
    assert_eq!(recipient(&cluster), Some("node-3"));
}

/// Two others watch node-2, and node-1 does not.
#[test]
fn what_the_two_say_that_watch_a_node_counts_too() {
    let nodes = ["node-1", "node-2", "node-3", "node-4"];
    for (name, watchers, uid, to) in [
        ("nobody says so", &[][..], uid_of("node-2"), "node-2"),
        ("one may be wrong", &["node-3"], uid_of("node-2"), "node-2"),
        ("both", &["node-3", "node-4"], uid_of("node-2"), "node-4"),
        ("an earlier Node of this name", &["node-3", "node-4"], "another".to_owned(), "node-2"),
    ] {
        let mut cluster = Cluster::new(&nodes, &[seated("web", "10.0.0.9", "node-1", 4)]);
        for node in nodes {
            cluster.node.feed(Input::Node(node.to_owned(), Some(facts_of(node))));
        }
        let silence = Silence { uid, ms: 230, unanswered: Vec::new(), gateway: true, witnesses: 2 };
        for node in watchers {
            let silent = [("node-2".to_owned(), silence.clone())].into();
            cluster.member(node, Card { silent, ..card(node) });
        }
        falls_ill(&mut cluster);
        assert_eq!(recipient(&cluster), Some(to), "{name}");
    }
}

/// A DHCP server gives another address, or the Service is made anew. A watch that begins then cannot hear the dead
/// node.
#[test]
fn what_is_known_of_a_silent_node_outlives_a_moment_in_which_no_service_has_an_address() {
    let is_silent = |cluster: &Cluster| cluster.node.cards.last().unwrap().silent.contains_key("node-3");
    let pass = |cluster: &mut Cluster, seconds: u64| {
        for _ in 0..seconds / 5 {
            cluster.renew(&["node-2"]);
            pass(cluster, 5000, &["node-2"], true);
        }
    };
    let mut cluster = beside_dead(&["node-3"]);
    cluster.node.gone("web");
    pass(&mut cluster, 10);
    assert!(is_silent(&cluster));
    cluster.node.upsert(seated("web", "10.0.0.5", "node-1", 4));
    pass(&mut cluster, 40);
    assert!(is_silent(&cluster), "as long as it answers nobody");
    cluster.node.gone("web");
    pass(&mut cluster, 40);
    assert!(!is_silent(&cluster), "nobody watches it any more");
}
