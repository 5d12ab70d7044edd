//! What is held against an owner, and what in its favour: hosts that it says it hears, answers for other addresses,
//! verdicts under an older record, cards of an older version.

use super::*;

/// What node-3 says of itself: it hears so many hosts.
fn hearing(node: &str, hosts: u8) -> Card {
    Card { hears: [("eth0".to_owned(), hosts)].into(), ..card(node) }
}

/// node-3 is the owner and hears eight hosts; node-1 hears the gateway, if any.
fn beside_an_owner_that_hears_many(views: &[ServiceView]) -> Cluster {
    let mut cluster = Cluster::new(&ALL, views);
    cluster.member("node-3", hearing("node-3", 8));
    cluster
}

fn gateway_answers(cluster: &mut Cluster) {
    let (address, mac) = ("10.0.0.254".parse().unwrap(), [2, 0, 0, 0, 9, 9].into());
    cluster.node.feed(Input::Heard(Frame { link: 2, address, mac, what: Heard::Answer, to_us: true, payload: None }));
}

/// For so long these answer, and the gateway if it is there.
fn pass(cluster: &mut Cluster, milliseconds: u64, answering: &[(&str, &str)], gateway: bool) {
    for _ in 0..milliseconds / 5 {
        if gateway {
            gateway_answers(cluster);
        }
        for (node, address) in answering {
            cluster.answers(node, address);
        }
        cluster.node.pass_ms(5);
    }
}

#[test]
fn a_node_that_knows_few_hosts_takes_from_a_dead_owner_at_once_unless_it_has_lost_the_gateway() {
    for (gateway, takes) in [(true, true), (false, false)] {
        let mut cluster = beside_an_owner_that_hears_many(&[seated("web", "10.0.0.5", "node-3", 4)]);
        pass(&mut cluster, 2000, &[("node-3", "10.0.0.5"), ("node-2", "10.0.0.2")], true);
        pass(&mut cluster, 300, &[("node-2", "10.0.0.2")], gateway);
        assert_eq!(cluster.node.swaps.len(), usize::from(takes), "gateway {gateway}");
    }
}

#[test]
fn an_owner_that_answers_for_one_address_and_not_for_another_loses_that_whomever_it_hears() {
    let views = [seated("web", "10.0.0.5", "node-3", 4), seated("other", "10.0.0.6", "node-3", 3)];
    let mut cluster = beside_an_owner_that_hears_many(&views);
    let alive = [("node-3", "10.0.0.6"), ("node-2", "10.0.0.2")];
    pass(&mut cluster, 2000, &[&[("node-3", "10.0.0.5")][..], &alive].concat(), false);
    pass(&mut cluster, 1000, &alive, false);
    let taken: Vec<&str> = cluster.node.swaps.iter().map(|(key, _)| key.name.as_str()).collect();
    assert_eq!(taken, ["web"]);
}

#[test]
fn an_address_that_answers_again_is_left_alone_though_another_one_of_its_owner_is_still_missing() {
    let views = [seated("web", "10.0.0.5", "node-3", 4), seated("other", "10.0.0.6", "node-3", 3)];
    let mut cluster = Cluster::new(&ALL, &views);
    let (both, other) =
        ([("node-3", "10.0.0.5"), ("node-3", "10.0.0.6"), ("node-2", "10.0.0.2")], [("node-2", "10.0.0.2")]);
    cluster.quiet(2000, &both, &ALL);
    cluster.quiet(300, &other, &[]);
    let asked: Vec<_> = cluster.node.swaps.drain(..).collect();
    assert_eq!(asked.len(), 2);
    // It was only paused, and has one of the two still. The API was away for a moment.
    for (key, swap) in asked {
        cluster.answered((key, swap), Swapped::Failed("no answer".into()));
    }
    cluster.node.swaps.clear();
    cluster.answers("node-3", "10.0.0.5");
    cluster.quiet(1000, &both[..1], &[]);
    let taken: BTreeSet<String> = cluster.node.swaps.iter().map(|(key, _)| key.name.clone()).collect();
    assert_eq!(taken, BTreeSet::from(["other".to_owned()]));
}

#[test]
fn a_verdict_under_an_older_record_takes_nothing_from_the_owner_under_a_newer_one() {
    let mut cluster = Cluster::new(&ALL, &[seated("web", "10.0.0.5", "node-3", 4)]);
    cluster.quiet(2000, &[("node-3", "10.0.0.5"), ("node-2", "10.0.0.2")], &ALL);
    cluster.quiet(300, &[("node-2", "10.0.0.2")], &[]);
    let asked = cluster.node.swaps.pop().expect("it is silent");
    cluster.answered(asked, Swapped::Failed("no answer".into()));
    cluster.node.swaps.clear();
    // Somebody had removed the annotations, and it has written them again.
    cluster.shows("web", "node-3", 6);
    cluster.quiet(3000, &[("node-3", "10.0.0.5"), ("node-2", "10.0.0.2")], &ALL);
    assert_eq!(cluster.node.swaps, []);
}

/// The owner's hypervisor has lost its power, and with it two other machines that both nodes heard: by the owner's last
/// card it hears more than this node does.
#[test]
fn an_owner_that_lives_shows_it_by_a_new_card_and_a_dead_one_does_not_keep_its_address_by_an_old_one() {
    for (lives, takes) in [(true, false), (false, true)] {
        let mut cluster = Cluster::new(&ALL, &[seated("web", "10.0.0.5", "node-3", 4)]);
        cluster.member("node-3", hearing("node-3", 3));
        let hosts = [200_u8, 201].map(|last| Frame {
            link: 2,
            address: [10, 0, 0, last].into(),
            mac: [2, 0, 0, 0, 8, last].into(),
            what: Heard::Answer,
            to_us: true,
            payload: None,
        });
        for host in &hosts {
            let asks = Frame { what: Heard::Claim, to_us: false, ..*host };
            cluster.node.feed(Input::Heard(asks));
        }
        for _ in 0..40 {
            for host in hosts {
                cluster.node.feed(Input::Heard(host));
            }
            pass(&mut cluster, 50, &[("node-3", "10.0.0.5"), ("node-2", "10.0.0.2")], true);
        }
        let mut taken = None;
        for second in 1..=12 {
            cluster.renew(&["node-1", "node-2"]);
            if lives && second % 4 == 0 {
                cluster.member("node-3", hearing("node-3", 3));
            }
            pass(&mut cluster, 1000, &[("node-2", "10.0.0.2")], true);
            taken = taken.or((!cluster.node.swaps.is_empty()).then_some(second));
        }
        // A third of a Lease of 15 s and a second after it fell silent, so in the seventh second.
        assert_eq!(taken, takes.then_some(7), "lives: {lives}");
    }
}

/// Ports of a switch that are kept apart: each node hears the gateway and no other node.
#[test]
fn an_owner_that_was_never_heard_keeps_its_address_while_it_renews_its_lease_and_hears_hosts() {
    for (heard, hears, renews, takes) in [
        (false, 2, true, None),
        (false, 0, true, Some(6)),
        (false, 2, false, Some(8)),
        // It answered for its own address a moment before: it was in reach, and is cut off.
        (true, 2, true, Some(6)),
    ] {
        let mut cluster = Cluster::new(&ALL, &[seated("web", "10.0.0.5", "node-3", 4)]);
        cluster.member("node-3", hearing("node-3", hears));
        let mut taken = None;
        for second in 1..=20 {
            cluster.renew(&["node-1", "node-2"]);
            if renews && second % 4 == 0 {
                cluster.member("node-3", hearing("node-3", hears));
            }
            let answers: &[(&str, &str)] = if heard && second == 1 { &[("node-3", "10.0.0.3")] } else { &[] };
            pass(&mut cluster, 1000, answers, true);
            taken = taken.or((!cluster.node.swaps.is_empty()).then_some(second));
        }
        assert_eq!(taken, takes, "heard: {heard}, hears {hears}, renews: {renews}");
    }
}

/// Isolated ports, or an uplink that the owner lost before this process could hear it: no node can tell.
#[test]
fn that_an_owner_lives_and_is_not_heard_is_told_once_by_the_first_in_line() {
    for (name, owner, hears, renews_until, told) in [
        ("it hears hosts", "node-3", 2, 60, true),
        ("another node comes first", "node-2", 2, 60, false),
        ("it hears nobody, and loses it", "node-3", 0, 60, false),
        ("it is dead, and loses it", "node-3", 2, 0, false),
        ("it died soon after it had fallen silent, and loses it", "node-3", 2, 8, false),
    ] {
        let mut cluster = Cluster::new(&ALL, &[seated("web", "10.0.0.5", owner, 4)]);
        cluster.member(owner, hearing(owner, hears));
        let mut since = None;
        for second in 1..=60 {
            cluster.renew(&ALL.map(|node| if node == owner { "node-1" } else { node }));
            if second <= renews_until && second % 4 == 0 {
                cluster.member(owner, hearing(owner, hears));
            }
            pass(&mut cluster, 1000, &[], true);
            since = since.or(cluster.node.reasons().contains(&"OwnerNotHeard").then_some(second));
        }
        // It is suspected after 5 s, a Lease is waited for, and then the next renewal.
        assert_eq!(since, told.then_some(20), "{name}: {:?}", cluster.node.told);
        let texts: Vec<&str> = cluster.node.told.iter().map(|(_, tell)| tell.text.as_str()).collect();
        let [text] = &texts[..] else {
            assert!(!told, "{name}: once: {texts:?}");
            continue;
        };
        for part in ["10.0.0.5", "node-3 renews its Lease", "node-1", "uplink of node-3", "private VLAN"] {
            assert!(text.contains(part), "{name}: {part:?} is missing in {text}");
        }
        assert_eq!(cluster.node.swaps, [], "{name}");
    }
}

/// The other nodes are with the owner, the gateway is here, and both sides see the API.
#[test]
fn an_owner_whose_card_does_not_say_whom_it_hears_is_not_believed_to_hear_nobody() {
    for (owner, takes) in [(card("node-5"), false), (hearing("node-5", 0), true)] {
        let mut cluster =
            Cluster::new(&["node-1", "node-2", "node-3", "node-4"], &[seated("web", "10.0.0.5", "node-5", 4)]);
        cluster.member("node-5", owner.clone());
        let others = [("node-2", "10.0.0.2"), ("node-3", "10.0.0.3"), ("node-4", "10.0.0.4")];
        pass(&mut cluster, 2000, &[&[("node-5", "10.0.0.5")][..], &others].concat(), true);
        for _ in 0..5 {
            cluster.renew(&["node-1", "node-2", "node-3", "node-4"]);
            cluster.member("node-5", owner.clone());
            pass(&mut cluster, 4000, &[], true);
        }
        assert_eq!(!cluster.node.swaps.is_empty(), takes, "{:?}", owner.hears);
    }
}

#[test]
fn each_renewal_says_whom_this_node_hears_by_then_and_that_it_hears_nobody() {
    let mut cluster = owner(&ALL);
    let said = |cluster: &Cluster| cluster.node.cards.last().unwrap().hears.get("eth0").copied();
    assert_eq!(said(&cluster), Some(0));
    for hears in [true, false] {
        for _ in 0..4 {
            cluster.renew(&ALL);
            pass(&mut cluster, 5000, &[], hears);
        }
        assert_eq!(said(&cluster), Some(u8::from(hears)));
    }
}

/// Eight of them are landmarks. The others ask for somebody and answer, as clients do.
#[test]
fn fellow_nodes_are_not_said_to_be_other_hosts_however_many_there_are() {
    let nodes =
        ["node-1", "node-2", "node-3", "node-4", "node-5", "node-6", "node-7", "node-8", "node-9", "node-a", "node-b"];
    for count in [3, 9, 10, 11] {
        let nodes = &nodes[..count];
        let mut cluster = Cluster::new(nodes, &[seated("web", "10.0.0.200", "node-1", 4)]);
        for _ in 0..20 {
            cluster.renew(nodes);
            for node in &nodes[1..] {
                let own = card(node).links[0].addresses[0].addr().to_string();
                cluster.node.heard(2, &own, mac(node), Heard::Claim);
                cluster.answers(node, &own);
            }
            gateway_answers(&mut cluster);
            cluster.node.pass_ms(1000);
        }
        let said = cluster.node.cards.last().unwrap().hears.get("eth0").copied();
        assert_eq!(said, Some(1), "the gateway beside {} nodes", count - 1);
    }
}

/// Nodes of the version before go by the names alone and leave node-5 to node-1; by hypervisors node-1 is not among the
/// first two.
#[test]
fn beside_nodes_of_an_older_version_an_owner_is_watched_by_whom_either_version_names() {
    for (older, takes) in [(true, true), (false, false)] {
        let nodes = ["node-1", "node-2", "node-3", "node-4", "node-5"];
        let mut cluster = Cluster::new(&[], &[seated("web", "10.0.0.5", "node-5", 4)]);
        for (node, host) in nodes.into_iter().zip(["a", "b", "c", "d", "a"]) {
            cluster.node.feed(Input::Node(node.to_owned(), Some(NodeFacts { host: Some(host.to_owned()), ..FACTS })));
            cluster.member(node, if older { card(node) } else { hearing(node, 1) });
        }
        let others = [("node-2", "10.0.0.2"), ("node-3", "10.0.0.3"), ("node-4", "10.0.0.4")];
        cluster.quiet(2000, &[&[("node-5", "10.0.0.5")][..], &others].concat(), &[]);
        cluster.quiet(700, &others, &[]);
        assert_eq!(!cluster.node.swaps.is_empty(), takes, "older {older}");
    }
}

/// For so long these answer when they are asked, and these renew.
fn answer_when_asked(cluster: &mut Cluster, milliseconds: u64, answering: &[(&str, &str)], renewing: &[&str]) {
    for step in 0..milliseconds / 5 {
        if step % 1000 == 0 {
            cluster.renew(renewing);
        }
        cluster.node.pass_ms(5);
        let log = cluster.node.take_log();
        for (node, address) in answering {
            let asked = format!("ask eth0 {address} ");
            if log.iter().any(|line| line.starts_with(&asked)) {
                cluster.answers(node, address);
            }
        }
    }
}

/// The announcer of node-2 was removed, and its Lease stays. No gateway answers, so no other host can tell.
#[test]
fn a_node_whose_announcer_was_removed_is_a_landmark_while_its_machine_answers() {
    for (name, machine, while_it_dies, takes) in [
        ("its machine goes on", true, true, true),
        ("its machine was switched off long ago", false, false, false),
        ("its machine is lost with the owner", true, false, false),
    ] {
        let mut cluster = Cluster::new(&ALL, &[seated("web", "10.0.0.5", "node-3", 4)]);
        let answering = [("node-3", "10.0.0.5"), ("node-2", "10.0.0.2")];
        let answering = if machine { &answering[..] } else { &answering[..1] };
        answer_when_asked(&mut cluster, 95_000, answering, &["node-1", "node-3"]);
        assert_eq!(cluster.node.swaps, [], "{name}");
        let answering = [("node-2", "10.0.0.2")];
        let answering = if while_it_dies { &answering[..] } else { &[] };
        answer_when_asked(&mut cluster, 400, answering, &["node-1"]);
        assert_eq!(cluster.node.swaps.len(), usize::from(takes), "{name}");
    }
}
