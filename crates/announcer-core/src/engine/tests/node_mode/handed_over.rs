//! What was handed over is served for a last moment only where that serves somebody.

use super::*;

/// node-1 serves it and may not any more: it belongs to this node, which has not been heard yet.
fn handed_over() -> (Cluster, String) {
    let mut cluster = owner(&ALL);
    cluster.node.feed(Input::Node("node-1".into(), Some(NodeFacts { shut_out: true, ..FACTS })));
    let to = cluster.node.swaps[0].1.owner_record.host.clone();
    cluster.won();
    cluster.node.pass_ms(100);
    assert!(cluster.has(), "make before break");
    (cluster, to)
}

#[test]
fn what_a_third_node_has_taken_from_the_successor_is_withdrawn_at_once() {
    let (mut cluster, to) = handed_over();
    let third = if to == "node-2" { "node-3" } else { "node-2" };
    // The successor was dead. The third node claims from that one, and never heard us: nobody will tell us but the API.
    cluster.shows("web", third, 6);
    assert!(!cluster.has());
}

#[test]
fn what_was_handed_over_is_withdrawn_at_once_without_a_cable() {
    let (mut cluster, _) = handed_over();
    let links = &mut cluster.node.kernel.network.links;
    links.iter_mut().filter(|link| link.name == "eth0").for_each(|link| link.carrier = false);
    cluster.node.feed(Input::NetworkChanged);
    cluster.node.pass_ms(50);
    assert!(!cluster.has(), "when the cable is back, another node has long been serving it");
}

#[test]
fn what_comes_back_after_a_claim_that_was_older_is_served_at_once() {
    let mut cluster = owner(&ALL);
    // Our machine stood still; node-2 took it, and has handed it back before we hear a word. Then we hear all of it.
    let (address, now) = (IpAddr::from([10, 0, 0, 5]), cluster.node.now);
    let payload = Some(tag::seal(&Key::from(&uid("web")), address, mac("node-2").into(), Term(5)));
    let claim = Frame { link: 2, address, mac: mac("node-2").into(), what: Heard::Claim, to_us: true, payload };
    let removed = cluster.node.engine.handle(now, Input::Heard(claim));
    assert!(removed.iter().any(|action| matches!(action, Action::Kernel(KernelOp::Remove(_)))), "{removed:?}");
    cluster.shows("web", "node-1", 6);
    let set = |log: &[String]| log.iter().any(|line| line.starts_with("announce"));
    cluster.node.pass_ms(50);
    assert!(set(&cluster.node.take_log()), "not only when a Lease has passed");
}

/// At whom claims were sent since the last look.
fn claimed_at(cluster: &mut Cluster) -> Vec<&'static str> {
    let log = cluster.node.take_log();
    let at = |node: &str| {
        let to = Mac::from(mac(node)).to_string();
        log.iter().any(|line| line.starts_with("claim") && line.contains(&to))
    };
    ALL.into_iter().filter(|node| at(node)).collect()
}

#[test]
fn who_was_owner_before_the_last_one_is_told_too_unless_his_card_says_that_he_knows() {
    for (known, told) in [(4, true), (5, false)] {
        let mut cluster = Cluster::new(&ALL, &[seated("web", "10.0.0.5", "node-3", 4)]);
        // node-3 sees nothing of the API, and its successor did not get as far as to claim anything.
        cluster.shows("web", "node-2", 5);
        cluster.member("node-3", Card { term: Term(known), ..card("node-3") });
        cluster.node.pass_ms(6000);
        while cluster.node.swaps.is_empty() {
            cluster.node.pass_ms(5);
            cluster.answers("node-3", "10.0.0.3");
        }
        cluster.node.take_log();
        cluster.won();
        cluster.node.pass_ms(100);
        let expected = if told { vec!["node-2", "node-3"] } else { vec!["node-2"] };
        assert!(cluster.has());
        assert_eq!(claimed_at(&mut cluster), expected);
    }
}

/// What the process before has told, and to whom, died with it.
#[test]
fn what_was_ours_before_this_process_is_claimed_at_those_who_do_not_know() {
    let mut cluster = Cluster::new(&["node-1"], &[]);
    cluster.member("node-2", Card { term: Term(5), ..card("node-2") });
    cluster.member("node-3", Card { term: Term(6), ..card("node-3") });
    cluster.node.take_log();
    cluster.node.upsert(seated("web", "10.0.0.5", "node-1", 6));
    cluster.node.pass_ms(200);
    assert!(cluster.has());
    assert_eq!(claimed_at(&mut cluster), ["node-2"]);
}
