//! Questions that do not leave this node, because its send queue is full.

use super::*;

/// As many as are asked about in one turn.
const MANY: u8 = 32;
/// Three questions, and three that are asked again.
const BURST: Duration = ms(60);

/// A LAN in which node 2 has so many VIPs, and dies now.
fn dead_owner() -> Lan {
    let vips: Vec<u8> = (1..=MANY).collect();
    let mut lan = Lan::new(&[target(2, 0, &vips)]);
    lan.run(Duration::from_secs(1));
    lan.kill(2);
    lan
}

/// For whom verdicts say that nobody answers. Each was asked three times within this time before: the longest burst.
pub(super) fn earned(lan: &Lan, within: Duration) -> BTreeSet<IpAddr> {
    let mut silent = BTreeSet::new();
    for (at, verdict) in &lan.verdicts {
        let OwnerVerdict::Silent { vips, .. } = verdict else { panic!("{verdict:?}") };
        for vip in addresses(vips) {
            let to_all = lan.asks.iter().filter(|(_, ask)| ask.to == Mac::BROADCAST && ask.address == vip);
            let asked = to_all.filter(|(sent, _)| sent < at && *sent + within >= *at).count();
            assert!(asked >= 3, "{vip} at {at:?}: asked {asked} times");
            silent.insert(vip);
        }
    }
    silent
}

#[test]
fn what_a_full_queue_refuses_is_asked_again_before_the_burst_ends() {
    let mut lan = dead_owner();
    lan.queue = 20;
    while lan.verdicts.is_empty() {
        lan.run(ms(1));
    }
    assert_eq!(earned(&lan, BURST).len(), usize::from(MANY));
    assert_eq!(lan.broadcasts(), 3 * usize::from(MANY), "nobody is asked more often");
    assert_eq!(lan.silent().len(), 1);
    assert!(lan.silent()[0].2, "the gateway was asked, too");
}

#[test]
fn who_was_not_asked_is_not_silent_and_is_asked_in_the_next_burst() {
    let mut lan = dead_owner();
    lan.queue = 6;
    while lan.verdicts.is_empty() {
        lan.run(ms(1));
    }
    let first = earned(&lan, BURST).len();
    assert!(first < usize::from(MANY), "the queue took too few questions for all: {first}");
    lan.queue = usize::MAX;
    lan.run(ms(200));
    assert_eq!(earned(&lan, BURST).len(), usize::from(MANY));
}

#[test]
fn a_queue_that_stays_full_keeps_no_address_from_its_verdict_for_ever() {
    let mut lan = dead_owner();
    lan.queue = 12;
    lan.run(Duration::from_secs(10));
    assert_eq!(earned(&lan, BURST).len(), usize::from(MANY));
}

/// Nothing leaves this node. Whether others are silent it does not know.
#[test]
fn an_interface_that_sends_nothing_calls_nobody_silent() {
    let mut lan = dead_owner();
    lan.queue = 0;
    let before = lan.detector.counters();
    lan.run(Duration::from_secs(20));
    let after = lan.detector.counters();
    assert_eq!((lan.verdicts.len(), lan.broadcasts()), (0, 0));
    assert_eq!(after.unanswered, before.unanswered);
    assert!(after.unsent > 390, "each period one to the owner: {after:?}");
    lan.queue = usize::MAX;
    lan.run(ms(260));
    assert_eq!(earned(&lan, BURST).len(), usize::from(MANY), "and then it finds the owner dead as soon as ever");
}

#[test]
fn a_burst_that_cannot_be_sent_is_repeated_with_pauses_until_it_can() {
    let mut lan = dead_owner();
    lan.refused.insert(Mac::BROADCAST);
    lan.run(Duration::from_secs(10));
    assert_eq!((lan.verdicts.len(), lan.broadcasts()), (0, 0));
    let counters = lan.detector.counters();
    assert!((4..=9).contains(&counters.bursts), "{counters:?}");
    assert_eq!((counters.refuted, counters.isolated), (0, 0), "it has shown nothing");
    lan.refused.clear();
    lan.run(ms(2300));
    assert_eq!(earned(&lan, BURST).len(), usize::from(MANY));
}

/// Nodes are asked by unicast alone, in the burst, too.
#[test]
fn a_node_that_could_not_be_asked_in_the_burst_is_not_called_silent() {
    let mut lan = Lan::new(&[]);
    lan.holders.insert(vip(12), [mac(2)].into());
    lan.detector.watch_nodes(lan.start, &[target(2, 0, &[12])]);
    lan.run(Duration::from_secs(1));
    lan.kill(2);
    while lan.detector.counters().unanswered < 2 {
        lan.run(ms(1));
    }
    lan.run(ms(10));
    lan.refused.insert(mac(2));
    lan.run(ms(500));
    assert!(lan.detector.counters().bursts > 0);
    assert!(lan.findings.is_empty(), "{:?}", lan.findings);
    lan.refused.clear();
    lan.run(ms(500));
    assert_eq!(lan.findings.len(), 1, "{:?}", lan.findings);
}
