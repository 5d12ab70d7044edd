//! What a node hands over because it is not well goes back to it when it is well; and what does not move at all.

use super::*;

fn name(number: u8) -> String {
    format!("web{number}")
}

fn address(number: u8) -> String {
    format!("10.0.0.{}", 50 + number)
}

fn has(cluster: &Cluster, number: u8) -> bool {
    cluster.node.kernel.has("eth0", &format!("{}/32", address(number)))
}

fn ready(cluster: &mut Cluster, node: &str, ready: bool) {
    cluster.node.feed(Input::Node(node.to_owned(), Some(NodeFacts { ready, ..FACTS })));
}

/// node-2 answers for the first `count` addresses, as far as they are not here, and everybody renews.
fn pass(cluster: &mut Cluster, count: u8, milliseconds: u64) {
    let elsewhere: Vec<String> = (0..count).filter(|number| !has(cluster, *number)).map(address).collect();
    let answering: Vec<(&str, &str)> = elsewhere.iter().map(|address| ("node-2", address.as_str())).collect();
    cluster.quiet(milliseconds, &answering, &ALL);
}

/// node-2 was not ready for ten seconds, and has handed node-1 what it had.
fn lent(count: u8) -> Cluster {
    let views: Vec<ServiceView> =
        (0..count).map(|number| seated(&name(number), &address(number), "node-2", 1 + u64::from(number))).collect();
    let mut cluster = Cluster::new(&ALL, &views);
    ready(&mut cluster, "node-2", false);
    pass(&mut cluster, count, 10_500);
    for number in 0..count {
        cluster.shows(&name(number), "node-1", 100 + u64::from(number));
    }
    pass(&mut cluster, count, 1000);
    assert!((0..count).all(|number| has(&cluster, number)), "{:?}", cluster.node.kernel.own());
    cluster.node.log.clear();
    cluster
}

/// For so long the API accepts what node-1 gives away, and its new owner claims it.
fn give(cluster: &mut Cluster, count: u8, time: Duration) {
    let end = cluster.node.now + time;
    while cluster.node.now < end {
        pass(cluster, count, 25);
        while let Some((key, swap)) = cluster.node.swaps.last().cloned() {
            cluster.won();
            let number = (0..count).find(|number| name(*number) == key.name).unwrap();
            cluster.claims("node-2", &address(number), &key.name, swap.owner_record.term.0);
        }
    }
}

/// When node-1 gave something away, in milliseconds since then, and to whom.
fn given(cluster: &Cluster, since: Instant) -> Vec<(u64, String)> {
    let since = u64::try_from((since - cluster.node.start).as_millis()).unwrap();
    let swaps = cluster.node.log.iter().filter_map(|line| line.split_once(" swap "));
    swaps
        .map(|(at, what)| {
            let at: u64 = at.parse().unwrap();
            (at - since, what.split(' ').nth(1).unwrap().to_owned())
        })
        .collect()
}

#[test]
fn what_came_from_a_node_that_was_not_well_goes_back_one_by_one_when_it_has_been_well_for_a_minute() {
    let mut cluster = lent(5);
    ready(&mut cluster, "node-2", true);
    let well = cluster.node.now;
    give(&mut cluster, 5, Duration::from_secs(80));
    let given = given(&cluster, well);
    assert_eq!(given.len(), 5, "{given:?}");
    assert!(given.iter().all(|(_, to)| to == "node-2"), "{given:?}");
    assert!((60_000..60_100).contains(&given[0].0), "{given:?}");
    assert!(given.windows(2).all(|pair| (2000..2100).contains(&(pair[1].0 - pair[0].0))), "{given:?}");
    assert!((0..5).all(|number| !has(&cluster, number)), "{:?}", cluster.node.kernel.own());
}

/// For so long node-2 answers nobody, and its Lease stands. Whatever node-1 asks for is written.
fn without_an_answer(cluster: &mut Cluster, milliseconds: u64) {
    for step in 0..milliseconds / 25 {
        cluster.answers("node-3", "10.0.0.3");
        if step % 200 == 0 {
            cluster.renew(&ALL);
        }
        cluster.node.pass_ms(25);
        if cluster.node.log.iter().any(|line| line.ends_with("ask kubelet node-2")) {
            cluster.node.feed(Input::Kubelet { node: "node-2".into(), answers: false });
        }
        while !cluster.node.swaps.is_empty() {
            cluster.won();
        }
    }
}

/// It is found silent as a node, or, where its Node is not known, as the owner of what it got back.
#[test]
fn nothing_more_goes_back_to_a_home_that_has_lost_its_power_though_its_lease_stands() {
    for uid in ["", "u-2"] {
        let mut cluster = lent(5);
        cluster.node.feed(Input::Node("node-2".into(), Some(NodeFacts { uid: uid.into(), ..FACTS })));
        let well = cluster.node.now;
        cluster.quiet(59_500, &[("node-2", "10.0.0.2"), ("node-3", "10.0.0.3")], &ALL);
        cluster.node.log.clear();
        while given(&cluster, well).is_empty() {
            cluster.answers("node-2", "10.0.0.2");
            cluster.answers("node-3", "10.0.0.3");
            give(&mut cluster, 5, Duration::from_millis(25));
            assert!(cluster.node.now < well + Duration::from_secs(61), "{uid}");
        }
        let alive = [("node-2", "10.0.0.50"), ("node-2", "10.0.0.2"), ("node-3", "10.0.0.3")];
        cluster.quiet(1000, &alive, &ALL);
        without_an_answer(&mut cluster, 20_000);
        let back = given(&cluster, well).into_iter().filter(|(_, to)| to == "node-2").count();
        assert_eq!(back, 1, "{uid}: {:?}", given(&cluster, well));
        assert!((0..5).all(|number| has(&cluster, number)), "{uid}: {:?}", cluster.node.kernel.own());
    }
}

/// While node-2 is ill the hash would choose node-3 for some of them, and from there nothing goes home.
#[test]
fn what_was_lent_rests_while_its_lender_is_ill_and_goes_home_after_that() {
    let mut cluster = lent(5);
    cluster.quiet(180_000, &[], &ALL);
    assert_eq!(given(&cluster, cluster.node.start), []);
    ready(&mut cluster, "node-2", true);
    give(&mut cluster, 5, Duration::from_secs(75));
    let to: Vec<String> = given(&cluster, cluster.node.start).into_iter().map(|(_, to)| to).collect();
    assert_eq!(to, ["node-2"; 5]);
}

#[test]
fn a_borrower_that_falls_ill_gives_what_it_was_lent_to_its_lender_that_is_well_again() {
    let mut cluster = lent(5);
    ready(&mut cluster, "node-2", true);
    pass(&mut cluster, 5, 5000);
    assert_eq!(recipients(&cluster), [""; 0]);
    cluster.node.feed(Input::KubeProxy(false));
    assert_eq!(recipients(&cluster), ["node-2"; 5]);
}

#[test]
fn nothing_goes_back_while_many_nodes_are_not_ready_nor_for_a_minute_after_that() {
    let mut cluster = lent(3);
    ready(&mut cluster, "node-2", true);
    give(&mut cluster, 3, Duration::from_secs(30));
    for node in ALL {
        ready(&mut cluster, node, false);
        give(&mut cluster, 3, Duration::from_millis(500));
    }
    give(&mut cluster, 3, Duration::from_mins(2));
    // With the second of the three not many are left.
    ready(&mut cluster, "node-1", true);
    give(&mut cluster, 3, Duration::from_secs(3));
    ready(&mut cluster, "node-2", true);
    let well = cluster.node.now;
    assert_eq!(given(&cluster, cluster.node.start), [], "not yet");
    give(&mut cluster, 3, Duration::from_secs(3));
    ready(&mut cluster, "node-3", true);
    give(&mut cluster, 3, Duration::from_secs(130));
    let given = given(&cluster, well);
    // A minute of rest, and another one in which its home is well.
    assert!((120_000..120_100).contains(&given[0].0), "{given:?}");
    assert_eq!(given.len(), 3, "{given:?}");
}

#[test]
fn when_many_nodes_are_not_ready_together_an_owner_gives_nothing_away_then_or_later() {
    for nodes in [&["node-1", "node-2", "node-3"][..], &["node-3", "node-2", "node-1"], &["node-1", "node-2"]] {
        let mut cluster = owner(&ALL);
        for node in nodes {
            ready(&mut cluster, node, false);
            cluster.quiet(500, &[], &ALL);
        }
        cluster.quiet(60_000, &[], &ALL);
        for node in nodes {
            ready(&mut cluster, node, true);
            cluster.quiet(3000, &[], &ALL);
        }
        cluster.quiet(200_000, &[], &ALL);
        assert!(cluster.node.swaps.is_empty() && cluster.has(), "{nodes:?}: {:?}", cluster.node.swaps);
    }
}

/// The record comes by another watch than the Lease with the card.
#[test]
fn it_is_lent_also_where_its_defect_becomes_known_after_the_record() {
    for (name, before, after, returns) in [
        ("known before the record", true, false, true),
        ("known a moment later", false, true, true),
        ("its node was well", false, false, false),
    ] {
        let mut cluster = Cluster::new(&ALL, &[seated("web0", "10.0.0.50", "node-2", 4)]);
        pass(&mut cluster, 1, 1000);
        let ill = |cluster: &mut Cluster| cluster.member("node-2", Card { serving: false, ..card("node-2") });
        if before {
            ill(&mut cluster);
        }
        cluster.shows("web0", "node-1", 5);
        cluster.node.pass_ms(200);
        if after {
            ill(&mut cluster);
        }
        cluster.quiet(5000, &[], &["node-1", "node-3"]);
        assert!(has(&cluster, 0), "{name}");
        cluster.quiet(62_000, &[], &ALL);
        let to: Vec<&str> = cluster.node.swaps.iter().map(|(_, swap)| swap.owner_record.host.as_str()).collect();
        assert_eq!(to, if returns { vec!["node-2"] } else { vec![] }, "{name}");
    }
}

/// Reviews may be a minute apart. What becomes of the former owner meanwhile was not the reason for the hand-over.
#[test]
fn it_is_not_lent_where_its_former_owner_falls_ill_long_after_the_record() {
    let mut cluster = Cluster::new(&ALL, &[seated("web0", "10.0.0.50", "node-2", 4)]);
    pass(&mut cluster, 1, 1000);
    cluster.shows("web0", "node-1", 5);
    cluster.node.pass_ms(40_000);
    cluster.member("node-2", Card { serving: false, ..card("node-2") });
    cluster.quiet(5000, &[], &["node-1", "node-3"]);
    cluster.quiet(62_000, &[], &ALL);
    assert!(has(&cluster, 0) && cluster.node.swaps.is_empty(), "{:?}", cluster.node.swaps);
}

/// `node` falls ill and hands web0 to node-1 under this term. For five seconds only the nodes `well` renew.
fn receives(cluster: &mut Cluster, node: &str, term: u64, well: &[&str]) {
    cluster.member(node, Card { serving: false, ..card(node) });
    cluster.shows("web0", "node-1", term);
    cluster.quiet(5000, &[], well);
    assert!(has(cluster, 0), "from {node}");
}

/// node-1 falls ill and hands web0 to the returned node, which claims it. Then node-1 is well again.
fn hands_on(cluster: &mut Cluster) -> String {
    cluster.node.feed(Input::KubeProxy(false));
    let record = cluster.node.swaps.last().expect("another node is better off").1.owner_record.clone();
    cluster.won();
    cluster.claims(&record.host, "10.0.0.50", "web0", record.term.0);
    assert!(!has(cluster, 0), "{record:?}");
    cluster.node.feed(Input::KubeProxy(true));
    record.host
}

/// The nodes to which node-1 wants to give something.
fn recipients(cluster: &Cluster) -> Vec<&str> {
    cluster.node.swaps.iter().map(|(_, swap)| swap.owner_record.host.as_str()).collect()
}

/// The node that got it falls ill later. Its place was here all along.
#[test]
fn what_comes_back_from_the_node_that_got_it_stays() {
    let mut cluster = Cluster::new(&ALL, &[seated("web0", "10.0.0.50", "node-1", 4)]);
    cluster.quiet(1000, &[], &ALL);
    let to = hands_on(&mut cluster);
    cluster.quiet(1000, &[(to.as_str(), "10.0.0.50")], &ALL);
    let well: Vec<&str> = ALL.into_iter().filter(|node| *node != to).collect();
    receives(&mut cluster, &to, 6, &well);
    cluster.quiet(62_000, &[], &ALL);
    assert!(has(&cluster, 0) && cluster.node.swaps.is_empty(), "{:?}", cluster.node.swaps);
}

#[test]
fn what_was_given_back_is_lent_again_when_its_home_falls_ill_again() {
    let both = ["node-1", "node-2"];
    let mut cluster = Cluster::new(&both, &[seated("web0", "10.0.0.50", "node-2", 4)]);
    cluster.quiet(1000, &[("node-2", "10.0.0.50")], &both);
    receives(&mut cluster, "node-2", 5, &["node-1"]);
    cluster.renew(&["node-2"]);
    assert_eq!(hands_on(&mut cluster), "node-2");
    cluster.quiet(1000, &[("node-2", "10.0.0.50")], &both);
    receives(&mut cluster, "node-2", 7, &["node-1"]);
    cluster.quiet(62_000, &[], &both);
    assert_eq!(recipients(&cluster), ["node-2"]);
}

/// node-2 lends it to node-1, which falls ill too and passes it on to node-3.
#[test]
fn a_loan_that_was_passed_on_and_comes_back_goes_home() {
    let mut cluster = Cluster::new(&ALL, &[seated("web0", "10.0.0.50", "node-2", 4)]);
    cluster.quiet(1000, &[("node-2", "10.0.0.50")], &ALL);
    receives(&mut cluster, "node-2", 5, &["node-1", "node-3"]);
    assert_eq!(hands_on(&mut cluster), "node-3", "node-2 is still ill");
    cluster.quiet(1000, &[("node-3", "10.0.0.50")], &["node-1", "node-3"]);
    receives(&mut cluster, "node-3", 7, &["node-1"]);
    cluster.quiet(62_000, &[], &ALL);
    assert_eq!(recipients(&cluster), ["node-2"]);
}
