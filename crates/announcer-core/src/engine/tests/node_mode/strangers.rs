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
