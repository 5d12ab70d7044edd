//! An address that clients know and that has never come up at its owner: what is told and looked at for it.

use super::*;

/// node-3 has the first one of two and answers for that. A stranger has the second one, or the kernel refuses it.
fn beside_one_that_never_came_up() -> Cluster {
    let mut service = seated("web", "10.0.0.5", "node-3", 4);
    service.wanted = view("web", &["10.0.0.5", "10.0.0.6"]).wanted;
    let second = Ingress { ip: "10.0.0.6".parse().ok(), ports: service.ports.clone() };
    service.published.ingress.push(second);
    let mut cluster = Cluster::new(&ALL, &[service]);
    cluster.quiet(60_000, &[("node-3", "10.0.0.5"), ("node-2", "10.0.0.2")], &ALL);
    assert!(cluster.node.log.iter().any(|line| line.ends_with("ask eth0 10.0.0.6 everybody")), "it is missed");
    assert_eq!(cluster.node.swaps, []);
    cluster
}

#[test]
fn an_address_that_never_came_up_does_not_count_for_the_gap_when_its_owner_dies() {
    let mut cluster = beside_one_that_never_came_up();
    let died = cluster.node.now;
    while cluster.node.swaps.is_empty() {
        cluster.node.pass_ms(5);
        cluster.answers("node-2", "10.0.0.2");
        assert!(cluster.node.now < died + Duration::from_millis(300), "{:?}", cluster.node.log);
    }
    cluster.won();
    let gap = |text: &str| -> Option<u64> {
        text.split("nobody answered for about ").nth(1)?.split(' ').next()?.parse().ok()
    };
    let told: Vec<u64> = cluster.node.told.iter().filter_map(|(_, tell)| gap(&tell.text)).collect();
    assert!(matches!(told[..], [150..300]), "{told:?} ms: {:?}", cluster.node.told);
}

/// What a living owner writes of itself is looked at once, 13 s after an address of it fell silent.
#[test]
fn renewals_of_an_owner_that_is_silent_for_one_address_for_long_are_no_news() {
    let mut cluster = beside_one_that_never_came_up();
    let now = cluster.node.now;
    let member = Member { renewal: "the next".into(), duration: LEASE, card: card("node-3") };
    let engine = &mut cluster.node.engine;
    engine.take(now, Input::Member("node-3".into(), Some(member)));
    assert!(!engine.out.plans());
}
