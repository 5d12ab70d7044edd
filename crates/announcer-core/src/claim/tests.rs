use std::collections::BTreeSet;

use super::*;
use crate::view::Uid;

const OURS: Mac = Mac::new([2, 0, 0, 0, 0, 1]);
const LOSER: Mac = Mac::new([2, 0, 0, 0, 0, 2]);
const LINK: u32 = 3;

fn vip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn former_owner() -> FormerOwner {
    FormerOwner { owner: "node-2".into(), link: LINK }
}

fn won(last: u8, term: u64) -> TakenOverVip {
    let key = Key::from(&Uid("uid-1".into()));
    TakenOverVip {
        address: vip(last),
        mac: OURS,
        loser_mac: LOSER,
        on_macvlan: false,
        term: Term(term),
        uid: Uid("uid-1".into()),
        key,
        suspected: false,
    }
}

/// A former owner on the wire: which VIPs it still has, and since when it hears.
struct Wire {
    now: Instant,
    claims: Claims,
    held: BTreeSet<IpAddr>,
    hears: bool,
    obeys: bool,
    claimed: Vec<(Duration, IpAddr)>,
    announced: Vec<IpAddr>,
    start: Instant,
}

impl Wire {
    fn new(vips: &[u8]) -> Self {
        let start = Instant::now();
        let mut claims = Claims::default();
        for last in vips {
            claims.begin(start, former_owner(), &won(*last, 5));
        }
        Self {
            now: start,
            start,
            claims,
            held: vips.iter().map(|last| vip(*last)).collect(),
            hears: false,
            obeys: true,
            claimed: Vec::new(),
            announced: Vec::new(),
        }
    }

    /// Runs for this time; the former owner answers at once.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.claims.deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            for output in self.claims.tick(self.now) {
                match output {
                    Output::Claim(Claim { link, mac, address, to, .. }) => {
                        assert_eq!((link, mac, to), (LINK, OURS, LOSER), "by unicast, to the former owner alone");
                        self.claimed.push((self.now - self.start, address));
                        if self.hears && self.obeys {
                            self.held.remove(&address);
                        }
                    }
                    Output::Ask(ask) => {
                        assert_eq!((ask.link, ask.to), (LINK, LOSER));
                        if self.hears && self.held.contains(&ask.address) {
                            let frame = Frame {
                                link: LINK,
                                address: ask.address,
                                mac: LOSER,
                                what: Heard::Answer,
                                to_us: true,
                                payload: None,
                            };
                            self.claims.on_frame(self.now, &frame);
                        }
                    }
                    Output::Announce(address) => self.announced.push(address),
                }
            }
        }
        self.now = end;
    }

    fn claims_per_second(&mut self) -> usize {
        self.claimed.clear();
        self.run(Duration::from_secs(1));
        self.claimed.len()
    }
}

#[test]
fn a_silent_loser_is_claimed_from_every_50_ms_and_every_10_ms_for_a_second_once_it_answers() {
    let mut wire = Wire::new(&[5]);
    assert_eq!(wire.claims_per_second(), 20);
    (wire.hears, wire.obeys) = (true, false);
    assert!((95..=101).contains(&wire.claims_per_second()));
    // It answers on and does not obey: one second after the other.
    assert!(wire.claims_per_second() > 50);
}

#[test]
fn a_loser_that_comes_back_from_a_pause_has_heard_all_of_two_hundred_claims_within_50_ms() {
    let vips: Vec<u8> = (1..=200).collect();
    let mut wire = Wire::new(&vips);
    wire.run(Duration::from_secs(3));
    assert_eq!(wire.held.len(), 200);
    wire.hears = true;
    // A VIP that the former owner does not answer for any more shows nothing: at worst the first question comes 50 ms
    // later.
    wire.obeys = false;
    wire.run(Duration::from_millis(50));
    wire.obeys = true;
    wire.run(Duration::from_millis(50));
    assert_eq!(wire.held, BTreeSet::new());
}

#[test]
fn however_many_vips_a_dead_node_costs_twenty_claims_per_second_and_one_after_ten_minutes() {
    let vips: Vec<u8> = (1..=200).collect();
    let mut wire = Wire::new(&vips);
    wire.run(Duration::from_secs(1));
    assert!(wire.claims_per_second() <= 21);
    let turns: BTreeSet<IpAddr> = {
        wire.claimed.clear();
        wire.run(Duration::from_secs(10));
        wire.claimed.iter().map(|(_, address)| *address).collect()
    };
    assert_eq!(turns.len(), 200, "each has its turn");
    wire.run(SWITCHED_OFF);
    assert!(wire.claims_per_second() <= 2);
}

#[test]
fn a_take_over_is_finished_when_the_loser_is_silent_and_its_node_knows() {
    let mut wire = Wire::new(&[5]);
    wire.hears = true;
    wire.run(HAND_OVER + SLOW * 2);
    assert!(!wire.claims.is_empty(), "silent, but its node may not know: it could set the address again");
    wire.claims.known("node-2", Term(4));
    assert!(!wire.claims.is_empty(), "that was an older term");
    wire.claims.known("node-3", Term(5));
    assert!(!wire.claims.is_empty(), "that was another node");
    wire.claims.known("node-2", Term(5));
    assert!(wire.claims.is_empty());
    assert_eq!(wire.claims.deadline(), None);
}

/// All members that do not know the term of what was ours before this process began.
#[test]
fn who_is_only_suspected_is_told_ever_less_often_until_it_answers_or_its_lease_is_gone() {
    let suspect =
        |claims: &mut Claims, now| claims.begin(now, former_owner(), &TakenOverVip { suspected: true, ..won(5, 5) });
    let mut wire = Wire::new(&[]);
    suspect(&mut wire.claims, wire.start);
    assert_eq!((wire.claims_per_second(), wire.claims.len()), (20, 0), "it is nobody's loss as far as we know");
    wire.run(HAND_OVER);
    assert!(wire.claims_per_second() <= 2);
    wire.run(SWITCHED_OFF * 6);
    assert!(!wire.claims.is_empty(), "a machine may be paused for longer than any limit");
    let pause = wire.claims.deadline().unwrap().saturating_duration_since(wire.now);
    assert!(pause <= RAREST, "{pause:?}");
    let before = wire.claimed.len();
    wire.run(Duration::from_mins(1));
    let told = wire.claimed.len() - before;
    assert!((6..=12).contains(&told), "{told} claims in a minute after an hour");
    // It goes on at last, and hears us within a moment.
    wire.held.insert(vip(5));
    (wire.hears, wire.obeys) = (true, true);
    wire.run(RAREST + Duration::from_secs(1));
    assert!(!wire.held.contains(&vip(5)));
    wire.claims.gone("node-2");
    assert!(wire.claims.is_empty());

    let mut wire = Wire::new(&[]);
    suspect(&mut wire.claims, wire.start);
    wire.held.insert(vip(5));
    (wire.hears, wire.obeys) = (true, false);
    wire.run(HAND_OVER);
    assert!(wire.claims_per_second() > 50);
    assert_eq!(wire.claims.len(), 1);
}

#[test]
fn a_node_that_knows_but_still_answers_is_claimed_from() {
    let mut wire = Wire::new(&[5]);
    (wire.hears, wire.obeys) = (true, false);
    wire.claims.known("node-2", Term(5));
    wire.run(Duration::from_secs(5));
    assert!(!wire.claims.is_empty());
    wire.obeys = true;
    wire.run(Duration::from_secs(1));
    assert!(wire.claims.is_empty());
}

#[test]
fn a_loser_that_speaks_and_does_not_hear_is_claimed_from_without_a_pause() {
    let mut wire = Wire::new(&[5, 6]);
    // It announces one of them again and again, so it is always just back.
    for _ in 0..40 {
        let frame = Frame { link: LINK, address: vip(5), mac: LOSER, what: Heard::Claim, to_us: false, payload: None };
        wire.claims.on_frame(wire.now, &frame);
        wire.run(Duration::from_millis(50));
    }
    let turns: Vec<Duration> =
        wire.claimed.iter().filter(|(_, address)| *address == vip(6)).map(|(at, _)| *at).collect();
    let longest = turns.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap();
    assert!(longest <= SLOW * 2, "{longest:?}");
}

#[test]
fn on_a_macvlan_the_word_of_the_node_is_enough_and_nothing_is_asked() {
    let (mut claims, now) = (Claims::default(), Instant::now());
    claims.begin(now, former_owner(), &TakenOverVip { on_macvlan: true, ..won(5, 5) });
    assert!(matches!(claims.tick(now + FIRST)[..], [Output::Claim(_)]));
    claims.known("node-2", Term(5));
    assert!(matches!(claims.tick(now + HAND_OVER)[..], [Output::Claim(_)]));
    assert!(claims.is_empty());
}

#[test]
fn who_has_handed_over_and_is_cut_off_is_claimed_from_for_as_long_as_he_may_serve() {
    let mut wire = Wire::new(&[5]);
    // He wrote the record himself.
    wire.claims.known("node-2", Term(5));
    wire.run(HAND_OVER_LINGER);
    wire.hears = true;
    wire.run(Duration::from_millis(60));
    assert!(wire.held.is_empty(), "two answer as soon as he is back on the LAN");
}

#[test]
fn what_is_gone_is_not_claimed() {
    let (mut claims, now) = (Claims::default(), Instant::now());
    claims.begin(now, former_owner(), &won(5, 5));
    claims.begin(now, former_owner(), &won(6, 5));
    assert_eq!(claims.take(vip(5)), [(former_owner(), LOSER, Term(5), false)]);
    assert_eq!(claims.len(), 1);
    claims.gone("node-2");
    assert!(claims.is_empty());
}

#[test]
fn after_the_loser_has_answered_everybody_is_told_once_more() {
    let mut wire = Wire::new(&[5]);
    wire.run(Duration::from_secs(1));
    assert!(wire.announced.is_empty(), "it never answered: nobody believed it");
    wire.hears = true;
    wire.obeys = false;
    wire.run(Duration::from_millis(300));
    wire.obeys = true;
    wire.run(Duration::from_secs(2));
    assert_eq!(wire.announced, [vip(5)]);
}

#[test]
fn answers_of_others_are_no_sign_of_the_loser() {
    let (mut claims, now) = (Claims::default(), Instant::now());
    claims.begin(now, former_owner(), &won(5, 5));
    claims.tick(now + FIRST);
    let answer = |link, mac| Frame { link, address: vip(5), mac, what: Heard::Answer, to_us: true, payload: None };
    claims.on_frame(now, &answer(LINK, Mac::new([2, 0, 0, 0, 0, 7])));
    claims.on_frame(now, &answer(LINK + 1, LOSER));
    assert_eq!(claims.deadline(), Some(now + FIRST + SLOW));
    claims.on_frame(now, &answer(LINK, LOSER));
    assert_eq!(claims.deadline(), Some(now), "at once");
}

#[test]
fn the_claim_that_is_sent_is_believed_by_its_reader() {
    let (mut claims, now) = (Claims::default(), Instant::now());
    claims.begin(now, former_owner(), &won(5, 5));
    let [Output::Claim(claim), Output::Ask(_)] = claims.tick(now + FIRST)[..] else { panic!() };
    let bytes = crate::frames::claim(claim.mac, claim.address, LOSER, &claim.payload);
    let frame = crate::frames::read(LINK, &bytes).unwrap();
    let key = Key::from(&Uid("uid-1".into()));
    assert_eq!(Judge::default().judge(now, &frame, &[key], Term(4)), Judgement::Concede(Term(5)));
}
