mod called;
mod never_up;
mod nodes;
mod sides;
mod turns;
mod unsent;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use proptest::prelude::*;

use super::landmarks::{Landmark, LandmarkKind, Side};
use super::*;
use crate::ownership::node::{Term, Watched};
use l2_types::Mac;

const LINK: u32 = 3;
const GATEWAY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 254));
const GATEWAY_MAC: Mac = Mac::new([2, 0, 0, 0, 0, 254]);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn vip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn mac(node: u8) -> Mac {
    Mac::new([2, 0, 0, 0, 1, node])
}

fn name(node: u8) -> String {
    format!("node-{node}")
}

fn target(node: u8, rank: u8, vips: &[u8]) -> Target {
    let vips = vips.iter().map(|last| Watched { address: vip(*last), mac: mac(node), term: Term(1) }).collect();
    let (apart, nic_macs) = ([name(node)].into(), [mac(node)].into());
    Target { owner: name(node), link: LINK, rank, ahead: None, apart, nic_macs, vips }
}

fn addresses(vips: &[Watched]) -> Vec<IpAddr> {
    vips.iter().map(|vip| vip.address).collect()
}

fn gateway() -> Landmark {
    Landmark { link: LINK, address: GATEWAY, mac: Some(GATEWAY_MAC), who: LandmarkKind::Gateway }
}

/// The cluster knows of these landmarks.
fn around(landmarks: &[Landmark]) -> Neighbourhood {
    Neighbourhood { named: landmarks.to_vec(), links: [LINK].into(), ..Neighbourhood::default() }
}

/// A LAN in which who has what is a table, and answers come at once or never.
struct Lan {
    start: Instant,
    now: Instant,
    detector: Detector,
    /// Who answers for what.
    holders: BTreeMap<IpAddr, BTreeSet<Mac>>,
    /// What we send is lost.
    deaf: bool,
    verdicts: Vec<(Duration, OwnerVerdict)>,
    findings: Vec<(Duration, NodeFinding)>,
    asks: Vec<(Duration, Ask)>,
    /// How late our own timers are.
    lateness: Duration,
    /// Landmarks beside the gateway.
    hosts: BTreeSet<IpAddr>,
    /// Late timers are drained first (R1), or what came meanwhile is lost.
    answers_are_lost: bool,
    /// In whose name a fabric answers broadcasts.
    fabric: BTreeMap<IpAddr, Mac>,
    /// How many questions our send queue takes at a time, and to whom it takes none.
    queue: usize,
    refused: BTreeSet<Mac>,
    /// How many questions to landmarks were sent.
    beside: usize,
}

impl Lan {
    fn new(targets: &[Target]) -> Self {
        Self::with(Profile::Default, targets)
    }

    fn with(profile: Profile, targets: &[Target]) -> Self {
        let start = Instant::now();
        let mut detector = Detector::new(start, profile.into());
        detector.watch(start, targets);
        detector.set_neighbourhood(start, &around(&[gateway()]));
        let mut holders: BTreeMap<IpAddr, BTreeSet<Mac>> = BTreeMap::new();
        holders.insert(GATEWAY, [GATEWAY_MAC].into());
        for vip in targets.iter().flat_map(|target| &target.vips) {
            holders.insert(vip.address, [vip.mac].into());
        }
        Self {
            start,
            now: start,
            detector,
            holders,
            deaf: false,
            verdicts: Vec::new(),
            findings: Vec::new(),
            asks: Vec::new(),
            lateness: Duration::ZERO,
            hosts: BTreeSet::new(),
            answers_are_lost: false,
            fabric: BTreeMap::new(),
            queue: usize::MAX,
            refused: BTreeSet::new(),
            beside: 0,
        }
    }

    fn run(&mut self, time: Duration) -> &mut Self {
        let end = self.now + time;
        while let Some(at) = self.detector.deadline().filter(|at| *at + self.lateness <= end) {
            self.now = self.now.max(at + self.lateness);
            self.tick();
        }
        self.now = end;
        self
    }

    fn tick(&mut self) {
        let outputs = self.detector.tick(self.now);
        let mut asks = Vec::new();
        for output in outputs {
            match output {
                Output::Verdict(verdict) => self.verdicts.push((self.now - self.start, verdict)),
                Output::Node(finding) => self.findings.push((self.now - self.start, finding)),
                Output::Ask(ask) => asks.push(ask),
            }
        }
        let mut sent = 0;
        for ask in asks {
            if sent == self.queue || self.refused.contains(&ask.to) {
                self.detector.not_sent(&ask);
                continue;
            }
            sent += 1;
            // Landmarks are asked beside what the tests count.
            if self.is_vip(ask.address) {
                self.asks.push((self.now - self.start, ask));
            } else {
                self.beside += 1;
            }
            self.deliver(ask);
        }
    }

    fn deliver(&mut self, ask: Ask) {
        if self.deaf || self.answers_are_lost {
            return;
        }
        let holders = self.holders.get(&ask.address).cloned().unwrap_or_default();
        for mac in holders.into_iter().filter(|mac| ask.to == Mac::BROADCAST || ask.to == *mac) {
            self.heard_on(ask.link, ask.address, mac, Heard::Answer);
        }
        if ask.to == Mac::BROADCAST
            && let Some(mac) = self.fabric.get(&ask.address).copied()
        {
            self.heard(ask.address, mac, Heard::Answer);
        }
    }

    fn is_vip(&self, address: IpAddr) -> bool {
        !(address == GATEWAY || self.hosts.contains(&address))
    }

    fn heard(&mut self, address: IpAddr, mac: Mac, what: Heard) {
        self.heard_on(LINK, address, mac, what);
    }

    fn heard_on(&mut self, link: u32, address: IpAddr, mac: Mac, what: Heard) {
        let to_us = what == Heard::Answer;
        self.detector.on_frame(self.now, &Frame { link, address, mac, what, to_us, payload: None });
    }

    /// This node answers for nothing any more.
    fn kill(&mut self, node: u8) -> Instant {
        self.holders.values_mut().for_each(|macs| macs.retain(|found| *found != mac(node)));
        self.now
    }

    fn silent(&self) -> Vec<(String, Vec<IpAddr>, bool)> {
        let silent = self.verdicts.iter().filter_map(|(_, verdict)| match verdict {
            OwnerVerdict::Silent { owner, vips, side, .. } if !vips.is_empty() => {
                Some((owner.clone(), addresses(vips), *side == Side::Greater))
            }
            OwnerVerdict::Silent { .. } | OwnerVerdict::Answers { .. } => None,
        });
        silent.collect()
    }

    fn broadcasts(&self) -> usize {
        self.asks.iter().filter(|(_, ask)| ask.to == Mac::BROADCAST).count()
    }
}

#[test]
fn an_owner_that_answers_is_asked_once_per_period_by_unicast_and_nothing_else_happens() {
    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    lan.run(Duration::from_mins(1));
    assert_eq!(lan.verdicts, []);
    assert_eq!(lan.broadcasts(), 0);
    assert_eq!(lan.asks.len(), 1200, "20 per second");
    assert!(lan.asks.iter().all(|(_, ask)| *ask == Ask { link: LINK, address: vip(5), to: mac(2) }));
}

#[test]
fn however_many_vips_an_owner_is_asked_once_per_period_each_in_its_turn() {
    let vips: Vec<u8> = (1..=200).collect();
    let mut lan = Lan::new(&[target(2, 0, &vips), target(3, 0, &[201, 202])]);
    lan.run(Duration::from_secs(10));
    assert_eq!(lan.asks.len(), 2 * 200);
    let asked: BTreeSet<IpAddr> = lan.asks.iter().map(|(_, ask)| ask.address).collect();
    assert_eq!(asked.len(), 202);
}

#[test]
fn a_dead_owner_is_found_silent_within_the_bound_of_each_profile() {
    for (profile, bound) in [(Profile::Default, 230), (Profile::Fast, 130), (Profile::Patient, 530)] {
        for phase in 0..20 {
            let mut lan = Lan::with(profile, &[target(2, 0, &[5])]);
            lan.run(ms(1000 + phase * 5));
            let died = lan.kill(2);
            lan.run(ms(bound));
            assert_eq!(lan.silent(), [(name(2), vec![vip(5)], true)], "{profile:?} {phase}");
            let timers = Timers::from(profile);
            let found = lan.start + lan.verdicts[0].0 - died;
            assert!(found + ms(1) >= timers.period * timers.periods, "not sooner than K periods: {found:?}");
        }
    }
}

#[test]
fn all_vips_of_a_dead_owner_are_confirmed_in_one_burst_and_reported_together() {
    let vips: Vec<u8> = (1..=200).collect();
    let mut lan = Lan::new(&[target(2, 0, &vips)]);
    lan.run(Duration::from_secs(1));
    lan.kill(2);
    // Seven turns end 60 ms later than one.
    lan.run(ms(300));
    let silent = lan.silent();
    assert_eq!(silent.len(), 1);
    assert_eq!(silent[0].1.len(), 200);
    assert_eq!(lan.broadcasts(), 600);
}

#[test]
fn the_second_in_line_waits_three_periods_longer() {
    let mut lan = Lan::new(&[target(2, 0, &[5]), target(2, 1, &[6])]);
    lan.run(Duration::from_secs(1));
    let died = lan.kill(2);
    lan.run(ms(400));
    let found: Vec<(Duration, Vec<IpAddr>)> = lan
        .verdicts
        .iter()
        .map(|(at, verdict)| match verdict {
            OwnerVerdict::Silent { vips, .. } => (lan.start + *at - died, addresses(vips)),
            OwnerVerdict::Answers { .. } => panic!("{verdict:?}"),
        })
        .collect();
    assert_eq!(found.iter().map(|(_, vips)| vips.clone()).collect::<Vec<_>>(), [[vip(5)], [vip(6)]]);
    let between = found[1].0.saturating_sub(found[0].0);
    assert!(between >= ms(150) && between <= ms(160), "{between:?}");
}

/// R3.
#[test]
fn an_owner_that_answers_the_burst_is_alive_whatever_was_lost_before() {
    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    lan.run(Duration::from_secs(1));
    lan.deaf = true;
    while lan.broadcasts() == 0 {
        lan.run(ms(1));
    }
    lan.deaf = false;
    lan.run(Duration::from_secs(1));
    assert_eq!(lan.verdicts, []);
    assert_eq!(lan.detector.counters().refuted, 1);
}

/// R4.
#[test]
fn who_is_cut_off_says_so_and_backs_off() {
    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    lan.run(Duration::from_secs(1));
    lan.deaf = true;
    lan.run(Duration::from_secs(30));
    let silent = lan.silent();
    assert!(silent.iter().all(|(_, _, witnessed)| !witnessed), "{silent:?}");
    assert!((5..=8).contains(&silent.len()), "0.5 s, 1 s, 2 s, ... and no more often: {}", silent.len());
    lan.verdicts.clear();
    lan.deaf = false;
    lan.run(ms(100));
    assert_eq!(
        lan.verdicts.iter().map(|(_, verdict)| verdict.clone()).collect::<Vec<_>>(),
        [OwnerVerdict::Answers { owner: name(2), vip: vip(5) }]
    );
}

#[test]
fn a_landmark_counts_only_if_it_answers_in_the_same_burst_and_not_for_a_suspected_vip() {
    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    // The gateway itself is a VIP of the suspected owner.
    let landmark = Landmark { address: vip(5), mac: None, ..gateway() };
    lan.detector.set_neighbourhood(lan.now, &around(&[landmark]));
    lan.run(Duration::from_secs(1));
    lan.heard(GATEWAY, GATEWAY_MAC, Heard::Answer);
    lan.kill(2);
    lan.run(ms(240));
    assert_eq!(lan.silent(), [(name(2), vec![vip(5)], false)]);
}

#[test]
fn another_owner_that_answers_is_a_landmark_too() {
    let mut lan = Lan::new(&[target(2, 0, &[5]), target(3, 0, &[6])]);
    lan.detector.set_neighbourhood(lan.now, &around(&[]));
    lan.run(Duration::from_secs(1));
    lan.kill(2);
    lan.run(ms(240));
    // Asked each period, not each burst: the burst of 30 ms may miss its turn, and the next one 0.5 s later does not.
    let first = lan.silent();
    lan.run(ms(1500));
    assert!(lan.silent().iter().any(|(_, _, witnessed)| *witnessed), "{first:?}");
}

/// R5.
#[test]
fn an_owner_that_was_never_heard_is_given_five_seconds() {
    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    lan.kill(2);
    lan.run(ms(4900));
    assert_eq!(lan.broadcasts(), 0);
    lan.run(ms(400));
    assert_eq!(lan.silent(), [(name(2), vec![vip(5)], true)]);
}

/// R5.
#[test]
fn a_new_record_has_to_be_heard_anew_and_an_old_one_not() {
    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    lan.run(Duration::from_secs(1));
    lan.kill(2);
    let mut renewed = target(2, 0, &[5]);
    renewed.vips[0].term = Term(2);
    lan.detector.watch(lan.now, &[renewed]);
    lan.run(Duration::from_secs(4));
    assert_eq!(lan.verdicts, []);

    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    lan.run(Duration::from_secs(1));
    lan.kill(2);
    lan.detector.watch(lan.now, &[target(2, 0, &[5])]);
    lan.run(ms(240));
    assert_eq!(lan.silent().len(), 1);
}

#[test]
fn a_single_missing_vip_is_found_while_its_owner_lives() {
    let vips: Vec<u8> = (1..=20).collect();
    let mut lan = Lan::new(&[target(2, 0, &vips)]);
    lan.run(Duration::from_secs(5));
    lan.holders.remove(&vip(7));
    lan.run(Duration::from_secs(2));
    assert_eq!(lan.silent()[0], (name(2), vec![vip(7)], true), "the owner itself is the witness");
    assert!(lan.silent().iter().all(|(_, vips, _)| *vips == [vip(7)]));
    assert!(lan.broadcasts() <= 9, "nobody else is asked about: {}", lan.broadcasts());
}

/// Its record was written a moment ago and its address is still being set.
#[test]
fn a_vip_that_an_owner_has_just_got_is_not_missing() {
    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    lan.run(Duration::from_secs(1));
    lan.detector.watch(lan.now, &[target(2, 0, &[5, 6])]);
    lan.run(Duration::from_secs(4));
    assert_eq!(lan.verdicts, []);
    // But it goes with the rest when the owner dies.
    lan.kill(2);
    lan.run(ms(260));
    assert_eq!(lan.silent()[0].1, [vip(5), vip(6)]);
}

/// Its former owner answers for a last moment. The VIP that had proved that the owner is silent has been taken by then.
#[test]
fn a_vip_with_a_verdict_is_tested_again_though_its_owner_was_never_heard_for_it() {
    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    lan.run(Duration::from_secs(1));
    lan.kill(2);
    lan.holders.insert(vip(6), [mac(4)].into());
    lan.detector.watch(lan.now, &[target(2, 0, &[5, 6])]);
    lan.run(ms(260));
    let OwnerVerdict::Silent { vips, taken, .. } = &lan.verdicts[0].1 else { panic!("{:?}", lan.verdicts) };
    assert_eq!((addresses(vips), taken.len()), (vec![vip(5)], 1));
    lan.detector.watch(lan.now, &[target(2, 0, &[6])]);
    lan.holders.remove(&vip(6));
    lan.run(ms(600));
    assert_eq!(lan.silent()[1..], [(name(2), vec![vip(6)], true)]);
}

/// The order of the loop (R1): with it a late timer is nothing that could be held against an owner.
#[test]
fn a_prober_without_processor_time_suspects_nobody() {
    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    for lateness in [0, 5, 40, 130, 3000, 12, 90] {
        lan.lateness = ms(lateness);
        lan.run(Duration::from_secs(10));
    }
    assert_eq!(lan.broadcasts(), 0);
    assert_eq!(lan.verdicts, []);
}

/// R1: a late round delays the next, it is not made up for.
#[test]
fn missed_rounds_are_not_caught_up() {
    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    lan.run(Duration::from_secs(1));
    let before = lan.asks.len();
    lan.now += Duration::from_secs(5);
    for _ in 0..10 {
        lan.tick();
    }
    assert_eq!(lan.asks.len(), before + 1);
}

/// R2.
#[test]
fn what_was_asked_before_a_late_timer_counts_neither_way() {
    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    lan.run(Duration::from_secs(1));
    lan.answers_are_lost = true;
    lan.lateness = ms(13);
    lan.run(Duration::from_secs(20));
    assert_eq!(lan.broadcasts(), 0);
    assert!(lan.detector.counters().late > 100);
    assert_eq!(lan.detector.counters().worst_lateness, ms(13));
}

/// R2, inside the burst; but a node that is always late must be able to take over some day.
#[test]
fn a_late_burst_asks_again_but_not_for_ever() {
    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    lan.run(Duration::from_secs(1));
    lan.kill(2);
    while lan.broadcasts() == 0 {
        lan.run(ms(1));
    }
    lan.lateness = ms(40);
    let begun = lan.now;
    while lan.verdicts.is_empty() {
        lan.run(ms(1));
        assert!(lan.now < begun + Duration::from_secs(1));
    }
    assert_eq!(lan.broadcasts(), 6, "each question that was asked before a late timer is asked again");
    assert!(lan.now > begun + ms(250));
}

#[test]
fn an_owner_that_only_sends_is_silent() {
    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    lan.run(Duration::from_secs(1));
    lan.kill(2);
    for _ in 0..24 {
        lan.heard(vip(5), mac(2), Heard::Claim);
        lan.run(ms(10));
    }
    assert_eq!(lan.silent(), [(name(2), vec![vip(5)], true)], "its announcements help no client");
}

#[test]
fn what_somebody_else_has_taken_is_not_free() {
    for what in [Heard::Answer, Heard::Claim] {
        let mut lan = Lan::new(&[target(2, 0, &[5, 6])]);
        lan.run(Duration::from_secs(1));
        lan.kill(2);
        while lan.broadcasts() == 0 {
            lan.run(ms(1));
        }
        lan.heard(vip(5), mac(4), what);
        lan.run(ms(60));
        assert_eq!(lan.silent(), [(name(2), vec![vip(6)], true)], "{what:?}");
        let OwnerVerdict::Silent { taken, .. } = &lan.verdicts[0].1 else { panic!("{:?}", lan.verdicts) };
        let taken: Vec<(IpAddr, Mac)> = taken.iter().map(|(vip, by)| (vip.address, *by)).collect();
        assert_eq!(taken, [(vip(5), mac(4))], "{what:?}");
    }
}

#[test]
fn a_probe_of_somebody_who_wants_the_address_neither_proves_nor_refutes() {
    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    lan.run(Duration::from_secs(1));
    lan.kill(2);
    for _ in 0..24 {
        lan.heard(vip(5), mac(4), Heard::Probe);
        lan.run(ms(10));
    }
    assert_eq!(lan.silent(), [(name(2), vec![vip(5)], true)]);
}

#[test]
fn who_is_not_watched_any_more_is_forgotten_in_the_middle_of_a_burst() {
    let mut lan = Lan::new(&[target(2, 0, &[5, 6])]);
    lan.run(Duration::from_secs(1));
    lan.kill(2);
    while lan.broadcasts() == 0 {
        lan.run(ms(1));
    }
    lan.detector.watch(lan.now, &[target(2, 0, &[6])]);
    lan.run(ms(60));
    assert_eq!(lan.silent(), [(name(2), vec![vip(6)], true)]);
    lan.detector.watch(lan.now, &[]);
    lan.detector.set_neighbourhood(lan.now, &Neighbourhood::default());
    assert_eq!(lan.detector.deadline(), None);
}

#[test]
fn a_verdict_is_repeated_with_patience_while_the_record_does_not_change() {
    let mut lan = Lan::new(&[target(2, 0, &[5])]);
    lan.run(Duration::from_secs(1));
    lan.kill(2);
    lan.run(Duration::from_mins(1));
    let at: Vec<u128> = lan.verdicts.iter().map(|(at, _)| at.as_millis()).collect();
    assert!((6..=9).contains(&at.len()), "{at:?}");
    assert!(at.windows(2).all(|pair| pair[1] - pair[0] >= 500), "{at:?}");
}

proptest! {
    /// Whatever is lost and late: no verdict against a VIP that answered after the burst had begun, none that is called
    /// witnessed without an answer to us in the burst, and after the death of an owner a verdict within the bound.
    #[test]
    fn verdicts_are_earned(
        seed in proptest::collection::vec((0..100_u8, 0..60_u64), 50..200),
        loss in 0..100_u8,
        vips in 1..6_u8,
    ) {
        let all: Vec<u8> = (1..=vips).collect();
        let mut lan = Lan::new(&[target(2, 0, &all)]);
        let mut answered: BTreeMap<IpAddr, Instant> = BTreeMap::new();
        let mut witness: Option<Instant> = None;
        for (dice, lateness) in seed {
            let Some(at) = lan.detector.deadline() else { break };
            lan.now = lan.now.max(at) + ms(if lateness > 50 { lateness } else { 0 });
            for output in lan.detector.tick(lan.now) {
                match output {
                    Output::Verdict(OwnerVerdict::Silent { vips, side, .. }) => {
                        let begun = lan.now.checked_sub(ms(30)).expect("the test has run for longer");
                        for vip in vips {
                            let before = answered.get(&vip.address).is_none_or(|at| *at <= begun);
                            prop_assert!(before, "{vip:?} had answered");
                        }
                        let last = answered.values().copied().chain(witness).max();
                        prop_assert!(side != Side::Greater || last.is_some_and(|at| at + ms(400) > lan.now));
                    }
                    Output::Ask(ask) if dice >= loss => {
                        let from = if ask.address == GATEWAY { GATEWAY_MAC } else { mac(2) };
                        if ask.address == GATEWAY {
                            witness = Some(lan.now);
                        } else {
                            answered.insert(ask.address, lan.now);
                        }
                        lan.heard(ask.address, from, Heard::Answer);
                    }
                    Output::Ask(_) | Output::Node(_) | Output::Verdict(OwnerVerdict::Answers { .. }) => {}
                }
            }
        }
        lan.lateness = Duration::ZERO;
        lan.run(Duration::from_secs(40));
        lan.verdicts.clear();
        lan.kill(2);
        lan.run(ms(240));
        prop_assert_eq!(lan.silent(), vec![(name(2), all.iter().map(|last| vip(*last)).collect::<Vec<_>>(), true)]);
    }
}
