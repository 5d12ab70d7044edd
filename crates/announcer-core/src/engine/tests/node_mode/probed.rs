//! Services that this node asks as a client would: which, and what becomes of the answers.

use super::*;
use crate::prober::{Outcome, ProbeFinding, Target};

const PROBES: &[(&str, &str)] = &[("vip_probe", "true")];
const NO_PROBES: &[(&str, &str)] = &[];

/// Who is asked, and whether this node is the first to.
fn asked(cluster: &Cluster) -> Vec<(String, bool)> {
    cluster.node.probed.values().map(|target| (target.at.to_string(), target.first)).collect()
}

fn found(cluster: &mut Cluster, outcome: Outcome, failures: u32) {
    let target: Target = cluster.node.probed.values().next().expect("somebody is asked").clone();
    cluster.node.feed(Input::Probed(ProbeFinding { target, outcome, failures }));
}

#[test]
fn the_two_nodes_behind_the_owner_ask_what_is_wanted_and_told_and_has_a_tcp_port() {
    let web = || seated("web", "10.0.0.5", "node-3", 4);
    let said = |probe| ServiceView { probe: Some(probe), ..web() };
    let udp = |number: u16| {
        let udp = crate::view::Port { port: 53, protocol: "UDP".into() };
        let tcp = crate::view::Port { port: number.into(), protocol: "TCP".into() };
        ServiceView { ports: if number == 0 { vec![udp] } else { vec![udp, tcp] }, ..web() }
    };
    let mut untold = web();
    untold.published.ingress.clear();
    let first = |at: &str| vec![(at.to_owned(), true)];
    for (name, env, view, expected) in [
        ("all are to be asked", PROBES, web(), first("10.0.0.5:80")),
        ("none is", NO_PROBES, web(), vec![]),
        ("this one is", NO_PROBES, said(true), first("10.0.0.5:80")),
        ("this one is not", PROBES, said(false), vec![]),
        ("our own", PROBES, seated("web", "10.0.0.5", "node-1", 4), vec![]),
        ("we are the second", PROBES, seated("web", "10.0.0.5", "node-2", 4), vec![("10.0.0.5:80".to_owned(), false)]),
        ("UDP alone", PROBES, udp(0), vec![]),
        ("the first TCP port", PROBES, udp(8443), first("10.0.0.5:8443")),
        ("clients do not know it yet", PROBES, untold, vec![]),
        ("nobody owns it", PROBES, view("web", &["10.0.0.5"]), vec![]),
    ] {
        let cluster = Cluster::with(env, &ALL, &[view]);
        assert_eq!(asked(&cluster), expected, "{name}");
    }
    let cluster = Cluster::with(PROBES, &["node-1"], &[seated("web", "10.0.0.5", "node-1", 4)]);
    assert_eq!(asked(&cluster), [], "a single node asks nobody");
}

#[test]
fn who_has_no_endpoint_of_a_service_with_policy_local_asks_all_the_same() {
    let local = ServiceView { local_traffic: true, ..seated("web", "10.0.0.5", "node-3", 4) };
    let mut cluster = Cluster::with(PROBES, &ALL, &[local]);
    cluster.node.feed(Input::Endpoints(ServiceKey::new("default", "web"), Some(["node-3".to_owned()].into())));
    assert_eq!(asked(&cluster), [("10.0.0.5:80".to_owned(), true)]);
}

#[test]
fn of_four_nodes_two_ask() {
    let mut cluster = Cluster::with(PROBES, &["node-1", "node-2", "node-3", "node-4"], &[]);
    for (owner, term, first) in [("node-2", 4, None), ("node-3", 5, Some(false)), ("node-4", 6, Some(true))] {
        cluster.node.upsert(seated("web", "10.0.0.5", owner, term));
        assert_eq!(asked(&cluster).first().map(|(_, first)| *first), first, "{owner}");
    }
}

#[test]
fn what_is_found_out_goes_with_the_next_renewal_and_to_the_author() {
    let mut cluster = Cluster::with(PROBES, &ALL, &[seated("web", "10.0.0.5", "node-3", 4)]);
    cluster.quiet(6000, &[("node-3", "10.0.0.5")], &ALL);
    let written = cluster.node.cards.len();
    found(&mut cluster, Outcome::Silent, 3);
    assert_eq!(
        (cluster.node.reasons(), cluster.node.cards.len()),
        (vec!["AddressNotServed"], written),
        "no write of its own"
    );
    cluster.quiet(6000, &[("node-3", "10.0.0.5")], &ALL);
    assert!(cluster.node.cards.len() <= written + 2, "as many as at rest");
    let at = "10.0.0.5:80".parse().unwrap();
    assert!(cluster.node.cards.last().unwrap().probed.silent.contains(&at));
    found(&mut cluster, Outcome::Served, 0);
    assert_eq!(cluster.node.reasons(), ["AddressNotServed", "AddressServedAgain"]);
    cluster.quiet(6000, &[("node-3", "10.0.0.5")], &ALL);
    assert!(cluster.node.cards.last().unwrap().probed.served.contains(&at));
}

#[test]
fn the_second_in_line_is_quiet_while_the_card_of_the_first_says_it() {
    for (knows, told) in [(true, vec![]), (false, vec!["AddressNotServed"])] {
        let mut cluster = Cluster::with(PROBES, &ALL, &[seated("web", "10.0.0.5", "node-2", 4)]);
        cluster.quiet(1000, &[("node-2", "10.0.0.5")], &ALL);
        let silent = if knows { ["10.0.0.5:80".parse().unwrap()].into() } else { BTreeSet::new() };
        let probed = contract::Probed { silent, ..contract::Probed::default() };
        cluster.member("node-3", Card { probed, ..card("node-3") });
        found(&mut cluster, Outcome::Silent, 3);
        found(&mut cluster, Outcome::Silent, 6);
        assert_eq!(cluster.node.reasons(), told);
    }
}
