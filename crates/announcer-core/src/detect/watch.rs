//! One owner on one interface, round by round.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use l2_types::Mac;

use super::confirm::{Burst, Outcome, Step, Suspect};
use super::landmarks::{Before, Side};
use super::verdict::{Target, Verdict, Watched};
use super::vip::Vip;
use super::{Ask, Context, Counters, Output, Subject};
use crate::frames::{Frame, Heard};
use crate::node_watch::Finding;

/// After a verdict the same VIP is put to the test again after this, then after twice as long, and so on: the take-over
/// may have failed because the API is away, or we were cut off. Nothing else that we send is a broadcast.
const FIRST_REST: Duration = Duration::from_millis(500);
const LONGEST_REST: u32 = 5;
/// The same for what somebody else answers for.
const LONGEST_TAKEN_REST: u32 = 2;
/// Landmarks that missed a burst are asked again this often while the owner stays silent (routers police ARP).
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// An answer of one of them still counts in a burst that begins within this.
const STILL_COUNTS: Duration = Duration::from_millis(300);

/// How often a node is asked that was found silent.
const SELDOM: Duration = Duration::from_millis(500);
/// A VIP to watch, and our place in its line.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub vip: Watched,
    pub rank: u8,
    pub ahead: Option<String>,
}

/// One owner on one interface.
#[derive(Debug)]
pub(super) struct Watch {
    vips: BTreeMap<IpAddr, Vip>,
    /// Periods in a row in which it answered nothing.
    silent: u32,
    /// It answered something since the last round.
    alive: bool,
    /// Whose turn it was last.
    last: Option<IpAddr>,
    /// Who answered last: with this one a single missing VIP is told from a silent node within one period.
    good: Option<IpAddr>,
    /// Every other round goes to VIPs that did not answer, if there are any.
    odd: bool,
    burst: Option<Burst>,
    /// Nodes that are no landmarks for this owner: itself, and those that would be lost with it.
    apart: BTreeSet<String>,
    /// MACs of its cards in this LAN.
    cards: BTreeSet<Mac>,
    /// Who was heard when it was missed first. It stays while the owner is silent: whoever is cut off hears fewer and
    /// fewer.
    before: Option<Before>,
    doubt: Option<Doubt>,
    subject: Subject,
    /// A node that was found silent is not asked before.
    seldom: Option<Instant>,
    /// What rested was put to the test early, and is not again before.
    released_until: Option<Instant>,
    /// An answer before this may be one to a question that everybody was asked.
    called_until: Option<Instant>,
}

/// The last burst has shown that we are not on the clients' side, or that we may not be.
#[derive(Debug)]
struct Doubt {
    side: Side,
    found: BTreeSet<Mac>,
    /// Who has answered since.
    since: BTreeMap<Mac, Instant>,
    ask_at: Instant,
}

impl Watch {
    pub fn new(subject: Subject) -> Self {
        Self {
            vips: BTreeMap::new(),
            silent: 0,
            alive: false,
            last: None,
            good: None,
            odd: false,
            burst: None,
            apart: BTreeSet::new(),
            cards: BTreeSet::new(),
            before: None,
            doubt: None,
            subject,
            seldom: None,
            released_until: None,
            called_until: None,
        }
    }

    /// Watches these and no others.
    pub fn want(&mut self, now: Instant, target: &Target, wanted: &[Wanted]) {
        self.apart.clone_from(&target.apart);
        self.cards.clone_from(&target.cards);
        let keep: BTreeSet<IpAddr> = wanted.iter().map(|wanted| wanted.vip.address).collect();
        self.vips.retain(|address, _| keep.contains(address));
        for Wanted { vip: Watched { address, mac, term }, rank, ahead } in wanted {
            let before = self.vips.remove(address);
            let mut vip = match before {
                Some(vip) if (vip.named, vip.term) == (*mac, *term) => vip,
                // What was reported of it is taken back when it answers, whatever MAC it has by then.
                before => {
                    let mut vip = Vip::new(now, *mac, *term);
                    vip.verdicts = before.filter(|vip| vip.term == *term).map_or(0, |vip| vip.verdicts);
                    vip
                }
            };
            vip.rank = *rank;
            vip.ahead.clone_from(ahead);
            self.vips.insert(*address, vip);
        }
        self.good = self.good.filter(|address| keep.contains(address));
        if let Some(burst) = &mut self.burst {
            burst.keep(&keep);
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.burst.as_ref().map(Burst::deadline)
    }

    /// A frame that may end a burst. Anybody's claim counts there: what has a new owner must not get a second one.
    pub fn testify(&mut self, now: Instant, frame: &Frame) {
        if let (Some(doubt), Some(before)) = (&mut self.doubt, &self.before)
            && frame.what == Heard::Answer
            && frame.to_us
            && !self.vips.contains_key(&frame.address)
        {
            doubt.since.insert(before.whose(frame), now);
        }
        if let Some(burst) = &mut self.burst {
            burst.on_frame(frame);
        }
    }

    /// An answer to us. True if that settles what it was reported for.
    ///
    /// Announcements prove nothing here: an owner that hears nobody still sends, and clients still lose it.
    pub fn answered(&mut self, now: Instant, address: IpAddr, mac: Mac) -> bool {
        let cards = &self.cards;
        // On a macvlan it has a MAC of its own, and what the card beneath answers proves nothing.
        let is_its = |vip: &Vip| vip.mac == mac || (cards.contains(&vip.named) && cards.contains(&mac));
        let Some(vip) = self.vips.get_mut(&address).filter(|vip| is_its(vip)) else { return false };
        let called = self.burst.is_some() || self.called_until.is_some_and(|until| now < until);
        if called && self.subject == Subject::Owner && !vip.note_called() {
            return false;
        }
        let was_reported = vip.verdicts > 0;
        vip.answered(mac, called);
        self.silent = 0;
        self.alive = true;
        self.good = Some(address);
        self.seldom = None;
        (self.before, self.doubt) = (None, None);
        was_reported
    }

    /// One period is over and was counted: asks the next question.
    pub fn round(&mut self, context: &Context<'_>, counters: &mut Counters, out: &mut Vec<Output>) {
        if self.seldom.is_some_and(|at| context.now < at) {
            return;
        }
        if self.subject == Subject::Node && self.vips.values().any(|vip| vip.verdicts > 0) {
            self.seldom = Some(context.now + SELDOM);
        }
        if self.burst.is_none() {
            self.ask_landmarks(context, out);
            let suspects = self.suspects(context);
            if !suspects.is_empty() {
                counters.bursts += 1;
                self.begin_burst(context, suspects);
            }
        }
        let Some(address) = self.next() else { return };
        let vip = self.vips.get_mut(&address).expect("it was just chosen");
        vip.asked = true;
        self.last = Some(address);
        counters.asked += 1;
        out.push(Output::Ask(Ask { link: context.link, address, to: vip.mac }));
    }

    /// The MACs that have to answer, or may.
    fn macs(&self) -> BTreeSet<Mac> {
        self.vips.values().map(|vip| vip.mac).chain(self.cards.iter().copied()).collect()
    }

    fn begin_burst(&mut self, context: &Context<'_>, suspects: BTreeMap<IpAddr, Suspect>) {
        let macs = self.macs();
        let before = || context.landmarks.before(context.now, context.link, &self.apart, &macs);
        let before = self.before.clone().unwrap_or_else(before);
        let counts = |(_, at): &(&Mac, &Instant)| context.now < **at + STILL_COUNTS;
        let doubt = self.doubt.take();
        let found = doubt.iter().flat_map(|doubt| &doubt.since).filter(counts).map(|(mac, _)| *mac).collect();
        self.before = Some(before.clone());
        let by_unicast = self.subject == Subject::Node;
        let owner = (macs, self.cards.clone());
        self.burst = Some(Burst::begin(context.now, suspects, owner, before, found, by_unicast));
    }

    /// Those that did not answer in the last burst are asked again. If they do, what rests is put to the test at once,
    /// but not more often than after the first verdict: frames that are lost in one direction let hosts be heard now
    /// and then.
    fn ask_landmarks(&mut self, context: &Context<'_>, out: &mut Vec<Output>) {
        let (Some(doubt), Some(before)) = (&mut self.doubt, &self.before) else { return };
        let since = doubt.since.iter().filter(|(_, at)| context.now < **at + STILL_COUNTS).map(|(mac, _)| mac);
        let found: BTreeSet<Mac> = doubt.found.iter().chain(since).copied().collect();
        // On the clients' side by now; or there already, and hearing more hosts, which may be as many as the owner
        // hears.
        let better = doubt.side != Side::Greater || found.len() > doubt.found.len();
        let released = self.released_until.is_some_and(|until| context.now < until);
        if before.side(&found) == Side::Greater && better && !released {
            self.released_until = Some(context.now + FIRST_REST);
            self.vips.values_mut().filter(|vip| vip.verdicts > 0).for_each(|vip| vip.rest_until = None);
        } else if context.now >= doubt.ask_at {
            doubt.ask_at = context.now + ASK_AGAIN;
            let asks = context.landmarks.asks_again(context.link, before, &before.missing(&found));
            out.extend(asks.into_iter().map(Output::Ask));
        }
    }

    /// R2: after a late timer the answer may have been lost with our own processor time; it is asked again instead.
    pub fn count(&mut self, trusted: bool, counters: &mut Counters) {
        let asked = self.last.and_then(|address| self.vips.get_mut(&address)).filter(|vip| vip.asked);
        let alive = std::mem::take(&mut self.alive);
        let Some(vip) = asked else { return };
        vip.asked = false;
        if !trusted {
            counters.late += 1;
            return;
        }
        counters.unanswered += 1;
        vip.misses += 1;
        if !alive {
            self.silent += 1;
        }
    }

    /// It was heard, and has answered nothing for so many periods.
    pub fn is_silent(&self, periods: u32) -> bool {
        self.silent >= periods && self.vips.values().any(|vip| vip.heard)
    }

    /// VIPs that have been silent for as long as our place in their line says.
    fn suspects(&self, context: &Context<'_>) -> BTreeMap<IpAddr, Suspect> {
        // A node that was never heard may be in another LAN, or filter what it is asked: nothing is said of it.
        let may_be_unheard = self.subject == Subject::Owner;
        let armed = |vip: &Vip| vip.heard || may_be_unheard && vip.is_armed(context.now, context.timers.grace);
        // One VIP that was heard is enough to know that the node and the way to it were there.
        let node_armed = self.vips.values().any(armed);
        self.vips
            .iter()
            .filter(|(_, vip)| !vip.rests(context.now))
            .filter(|(_, vip)| {
                let patience = vip.patience(context);
                (node_armed && self.silent >= patience) || (armed(vip) && vip.misses >= patience)
            })
            .map(|(address, vip)| (*address, Suspect { mac: vip.mac, only_called: vip.answers_only_calls() }))
            .collect()
    }

    /// Whose turn it is.
    fn next(&mut self) -> Option<IpAddr> {
        self.odd = !self.odd;
        if self.silent == 1
            && let Some(good) = self.good.filter(|good| Some(*good) != self.last)
        {
            return Some(good);
        }
        let after = |last: Option<IpAddr>, wanted: &dyn Fn(&Vip) -> bool| {
            let behind = self.vips.iter().filter(|(address, _)| last.is_none_or(|last| **address > last));
            let all = behind.chain(self.vips.iter());
            all.filter(|(_, vip)| wanted(vip)).map(|(address, _)| *address).next()
        };
        let missing = if self.odd { after(self.last, &|vip| vip.misses > 0) } else { None };
        missing.or_else(|| after(self.last, &|_| true))
    }

    /// Goes on with a burst, if one is due.
    pub fn burst(&mut self, context: &Context<'_>, owner: &str, counters: &mut Counters, out: &mut Vec<Output>) {
        let Some(burst) = &mut self.burst else { return };
        if context.now < burst.deadline() {
            return;
        }
        counters.worst_lateness = counters.worst_lateness.max(context.now - burst.deadline());
        match burst.step(context) {
            Step::Ask { asks, late } => {
                counters.late += u64::from(late);
                out.extend(asks.into_iter().map(Output::Ask));
            }
            Step::Over(outcome) => {
                self.burst = None;
                self.called_until = Some(context.now + context.timers.period);
                self.judge(context.now, owner, outcome, counters, out);
            }
        }
    }

    fn judge(&mut self, now: Instant, owner: &str, outcome: Outcome, counters: &mut Counters, out: &mut Vec<Output>) {
        let heard = self.vips.values().any(|vip| vip.heard);
        let Outcome { mut silent, mut taken, refuted, side, certain, outside, gateway, found } = outcome;
        silent.retain(|address| self.vips.contains_key(address));
        taken.retain(|(address, _)| self.vips.contains_key(address));
        if silent.is_empty() {
            counters.refuted += 1;
        } else {
            counters.isolated += u64::from(side == Side::Alone);
        }
        for (_, vip) in self.vips.iter_mut().filter(|(address, _)| refuted.contains(address)) {
            // Everybody else on the LAN hears these questions, too.
            let longest = FIRST_REST * 2_u32.pow(LONGEST_TAKEN_REST);
            vip.rest_until = vip.rest_after_calls(FIRST_REST, longest).map(|rest| now + rest);
        }
        if silent.is_empty() && taken.is_empty() {
            return;
        }
        let witnesses = u8::try_from(found.len()).unwrap_or(u8::MAX);
        if !certain {
            self.doubt = Some(Doubt { side, found, since: BTreeMap::new(), ask_at: now });
        }
        // What somebody else answers for: the record will say who, and until then asking every period is no use.
        let rests = silent.iter().map(|address| (*address, LONGEST_REST));
        for (address, longest) in rests.chain(taken.iter().map(|(address, _)| (*address, LONGEST_TAKEN_REST))) {
            let vip = self.vips.get_mut(&address).expect("only those that are watched are left");
            vip.rest_until = Some(now + FIRST_REST * 2_u32.pow(vip.verdicts.min(longest)));
            vip.verdicts += 1;
        }
        let watched =
            |address: IpAddr| Watched { address, mac: self.vips[&address].named, term: self.vips[&address].term };
        let vips: Vec<Watched> = silent.into_iter().map(watched).collect();
        let taken = taken.into_iter().map(|(address, by)| (watched(address), by)).collect();
        let owner = owner.to_owned();
        if self.subject == Subject::Node {
            // On the lesser side of a broken LAN, or alone, nothing is known of others.
            let said = vips.first().filter(|_| side == Side::Greater).map(|vip: &Watched| Finding::Silent {
                node: owner,
                address: vip.address,
                gateway,
                witnesses,
            });
            out.extend(said.map(Output::Node));
            return;
        }
        out.push(Output::Verdict(Verdict::Silent { owner, vips, taken, side, certain, heard, outside }));
    }
}
