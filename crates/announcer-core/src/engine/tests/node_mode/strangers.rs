//! Hosts that answer for an address or claim it and are no announcers.

use super::*;

const STRANGER: [u8; 6] = [2, 9, 9, 9, 9, 9];

/// For so long `who` answers whatever is asked about the address; those named renew their Leases.
fn while_answered(cluster: &mut Cluster, milliseconds: u64, who: [u8; 6], renewing: &[&str]) {
    for step in 0..milliseconds / 25 {
        cluster.answers("node-2", "10.0.0.2");
        let frame = Frame {
            link: 2,
            address: "10.0.0.5".parse().unwrap(),
            mac: who.into(),
            what: Heard::Answer,
            to_us: true,
            payload: None,
        };
        cluster.node.feed(Input::Heard(frame));
        if step % 200 == 0 {
            cluster.renew(renewing);
        }
        cluster.node.pass_ms(25);
    }
}

#[test]
fn whoever_answers_for_a_dead_owner_delays_its_successor_until_its_lease_has_run_out_and_is_told() {
    for (who, part) in [(STRANGER, "02:09:09:09:09:09"), (mac("node-2"), "strictARP")] {
        let mut cluster = Cluster::new(&ALL, &[seated("web", "10.0.0.5", "node-3", 4)]);
        cluster.quiet(3000, &[("node-3", "10.0.0.5"), ("node-2", "10.0.0.2")], &ALL);
        // It is dead from now on, and somebody speaks for it.
        while_answered(&mut cluster, 14_000, who, &["node-1", "node-2"]);
        assert_eq!(cluster.node.swaps, [], "{part}");
        let conflict = |cluster: &Cluster| {
            cluster.node.told.iter().filter(|(_, told)| told.reason == Reason::AddressConflict).count()
        };
        // A node may be a successor whose record is on its way.
        assert_eq!(conflict(&cluster), usize::from(who == STRANGER), "{:?}", cluster.node.told);
        while_answered(&mut cluster, 8_000, who, &["node-1", "node-2"]);
        assert_eq!(
            cluster.node.swaps.last().map(|(_, swap)| swap.owner_record.host.as_str()),
            Some("node-1"),
            "{part}"
        );
        let told = |text: &str| cluster.node.told.iter().any(|(_, told)| told.text.contains(text));
        assert!(told(part) && told("although"), "{:?}", cluster.node.told);
        cluster.won();
        assert!(cluster.has(), "{part}");
    }
}

/// The record that explains the other MAC may be on its way, as after an outage of the API. Bursts follow after 0.5 s,
/// 1 s and 2 s.
#[test]
fn a_stranger_is_told_of_that_answers_when_a_newer_record_would_have_come() {
    let mut cluster = Cluster::new(&ALL, &[seated("web", "10.0.0.5", "node-3", 4)]);
    cluster.quiet(3000, &[("node-3", "10.0.0.5"), ("node-2", "10.0.0.2")], &ALL);
    while_answered(&mut cluster, 2500, STRANGER, &ALL);
    assert!(cluster.node.told.is_empty(), "{:?}", cluster.node.told);
    while_answered(&mut cluster, 1800, STRANGER, &ALL);
    assert_eq!(cluster.node.reasons(), ["AddressConflict"]);
}

/// It was the former owner, which serves the address for a last moment.
#[test]
fn whoever_does_not_answer_any_more_when_a_newer_record_would_have_come_is_not_told_of() {
    let mut cluster = Cluster::new(&ALL, &[seated("web", "10.0.0.5", "node-3", 4)]);
    cluster.quiet(3000, &[("node-3", "10.0.0.5"), ("node-2", "10.0.0.2")], &ALL);
    while_answered(&mut cluster, 2200, STRANGER, &ALL);
    cluster.quiet(2200, &[("node-2", "10.0.0.2")], &ALL);
    assert_eq!(cluster.node.swaps.len(), 1, "{:?}", cluster.node.log);
    assert!(
        cluster.node.told.iter().all(|(_, told)| told.reason != Reason::AddressConflict),
        "{:?}",
        cluster.node.told
    );
}

#[test]
fn an_owner_in_doubt_reads_its_record_before_it_believes_a_stranger() {
    for who in [STRANGER, mac("node-2")] {
        let mut cluster = owner(&ALL);
        cluster.node.now += Duration::from_millis(1600);
        cluster.node.tick();
        cluster.node.heard(2, "10.0.0.5", who, Heard::Answer);
        assert!(cluster.has(), "{who:?}");
        assert_eq!(cluster.node.swaps.len(), 1, "the record is read");
        let (key, swap) = cluster.node.swaps.pop().unwrap();
        let other = OwnerRecord { host: "node-2".into(), term: Term(5) };
        cluster.answered((key, swap), Swapped::Other(other));
        assert!(!cluster.has(), "it says so: {who:?}");
    }
}

/// Its card in this LAN is dead and the one by which it reaches the API is not.
#[test]
fn whoever_answers_for_a_silent_owner_that_goes_on_renewing_its_lease_delays_its_successor_for_as_long_as_a_lease() {
    for (who, alone) in [(STRANGER, false), (mac("node-2"), false), (STRANGER, true)] {
        let mut cluster = Cluster::new(&ALL, &[seated("web", "10.0.0.5", "node-3", 4)]);
        cluster.quiet(3000, &[("node-3", "10.0.0.5"), ("node-2", "10.0.0.2")], &ALL);
        let mut speaks = |milliseconds| {
            for step in 0..milliseconds / 25 {
                if !alone {
                    cluster.answers("node-2", "10.0.0.2");
                }
                let (address, mac) = ("10.0.0.5".parse().unwrap(), who.into());
                let frame = Frame { link: 2, address, mac, what: Heard::Answer, to_us: true, payload: None };
                cluster.node.feed(Input::Heard(frame));
                if step % 200 == 0 {
                    cluster.renew(&ALL);
                }
                cluster.node.pass_ms(25);
            }
            cluster.node.swaps.len()
        };
        assert_eq!(speaks(19_000), 0);
        assert_eq!(speaks(6_000) > 0, !alone, "{who:?}");
        let told = |text: &str| cluster.node.told.iter().any(|(_, told)| told.text.contains(text));
        assert_eq!(told("though it renews its Lease"), !alone, "{:?}", cluster.node.told);
    }
}

/// A Service with two addresses. node-3 owns it, and clients know 10.0.0.5.
fn with_two_addresses() -> ServiceView {
    let mut service = seated("web", "10.0.0.5", "node-3", 4);
    service.wanted = view("web", &["10.0.0.5", "10.0.0.6"]).wanted;
    service
}

/// For so long these answer, a stranger answers for 10.0.0.6 if there is one, and those named renew their Leases.
fn pass(cluster: &mut Cluster, milliseconds: u64, answering: &[(&str, &str)], stranger: bool, renewing: &[&str]) {
    let address = "10.0.0.6".parse().unwrap();
    let (what, payload) = (Heard::Answer, None);
    let frame = Frame { link: 2, address, mac: STRANGER.into(), what, to_us: true, payload };
    for step in 0..milliseconds / 25 {
        for (node, address) in answering {
            cluster.answers(node, address);
        }
        if stranger {
            cluster.node.feed(Input::Heard(frame));
        }
        if step % 200 == 0 {
            cluster.renew(renewing);
        }
        cluster.node.pass_ms(25);
    }
}

/// The loss of power of node-3 is found within the usual time, and its successor is node-1.
fn dies(cluster: &mut Cluster, answering: &[(&str, &str)], stranger: bool) {
    let died = cluster.node.now;
    while cluster.node.swaps.is_empty() {
        pass(cluster, 25, answering, stranger, &[]);
        assert!(cluster.node.now < died + Duration::from_millis(300), "{:?}", cluster.node.log);
    }
    assert_eq!(cluster.node.swaps[0].1.owner_record.host, "node-1");
}

/// A stranger has the second one, or every kernel refuses it: no node announces it, and each owner says so.
#[test]
fn an_address_that_never_came_up_takes_the_others_of_its_group_from_no_owner() {
    for stranger in [true, false] {
        let mut cluster = Cluster::new(&ALL, &[with_two_addresses()]);
        let alive = [("node-3", "10.0.0.5"), ("node-2", "10.0.0.2")];
        pass(&mut cluster, 60_000, &alive, stranger, &ALL);
        assert_eq!(cluster.node.swaps, [], "a stranger has it: {stranger}");
        assert!(!cluster.node.reasons().contains(&"AddressConflict"), "{:?}", cluster.node.told);
        dies(&mut cluster, &alive[1..], stranger);
    }
}

/// Clients knew both under an earlier owner.
fn known_by_both_addresses() -> Cluster {
    let mut service = with_two_addresses();
    service.published.ingress.push(Ingress { ip: "10.0.0.6".parse().ok(), ports: service.ports.clone() });
    Cluster::new(&ALL, &[service])
}

/// By now every kernel refuses the second one, as after a change of a setting.
#[test]
fn what_its_owner_has_never_had_takes_nothing_from_it_though_clients_know_it() {
    for stranger in [true, false] {
        let mut cluster = known_by_both_addresses();
        let alive = [("node-3", "10.0.0.5"), ("node-2", "10.0.0.2")];
        pass(&mut cluster, 60_000, &alive, stranger, &ALL);
        assert_eq!(cluster.node.swaps, [], "a stranger has it: {stranger}");
        dies(&mut cluster, &alive[1..], stranger);
    }
}

#[test]
fn what_its_owner_has_had_and_lost_is_taken_with_its_group() {
    let mut cluster = known_by_both_addresses();
    let alive = [("node-3", "10.0.0.6"), ("node-3", "10.0.0.5"), ("node-2", "10.0.0.2")];
    pass(&mut cluster, 3000, &alive, false, &ALL);
    assert_eq!(cluster.node.swaps, []);
    pass(&mut cluster, 1000, &alive[1..], false, &[]);
    assert_eq!(cluster.node.swaps.len(), 1);
}

#[test]
fn a_stranger_at_an_address_that_never_came_up_holds_up_no_node_that_takes_the_others_of_its_group() {
    let mut service = with_two_addresses();
    (service.published.vip_host, service.published.term) = (None, None);
    let mut cluster = Cluster::new(&["node-1"], &[service]);
    pass(&mut cluster, 500, &[], true, &["node-1"]);
    assert_eq!(cluster.node.swaps.len(), 1);
    cluster.won();
    pass(&mut cluster, 500, &[], true, &[]);
    assert_eq!(cluster.node.kernel.own(), ["eth0 10.0.0.5/32"], "the other one is probed before it is used");
}
