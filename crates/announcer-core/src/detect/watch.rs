//! One owner on one interface, round by round; `watch/judge.rs`: what follows from a burst.

mod judge;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use l2_types::Mac;

use super::confirm::{Burst, Step, Suspect};
use super::landmarks::{Before, Landmarks, Side};
use super::verdict::{Target, Watched};
use super::vip::{ONLY_CALLS, Vip};
use super::{Ask, Context, Counters, Output, Subject, Timers};
use crate::frames::{Frame, Heard};
use crate::ownership::node::Term;

/// Pause after a verdict before the same VIP is tested again; it doubles with each verdict. The test is repeated
/// because the take-over may have failed while the API was down, or this node was cut off. The pause limits the
/// broadcasts.
const FIRST_REST: Duration = Duration::from_millis(500);
/// How often landmarks that missed a burst are asked again while the owner stays silent; routers rate-limit ARP.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// How long an answer of such a landmark counts for a burst that begins later.
const STILL_COUNTS: Duration = Duration::from_millis(300);

/// How often a node is asked after it was found silent.
const SELDOM: Duration = Duration::from_millis(500);
/// How long an answer of an owner that is a landmark shows that it lives. It is asked each 5 s, and in each burst.
const LIVES_FOR: Duration = Duration::from_secs(6);
/// A VIP to watch, and this node's place among the successors.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub vip: Watched,
    pub rank: u8,
    pub ahead: Option<String>,
}

/// Addresses that were reported as silent, with the terms of their records.
pub(super) type Reported = BTreeSet<(IpAddr, Term)>;

/// One owner on one interface.
#[derive(Debug)]
pub(super) struct Watch {
    vips: BTreeMap<IpAddr, Vip>,
    /// Consecutive periods in which the owner answered nothing.
    silent: u32,
    /// When the first of these periods ended.
    silent_since: Option<Instant>,
    /// The owner answered something since the last round.
    alive: bool,
    /// The VIP that was asked about last.
    last: Option<IpAddr>,
    /// The VIP that answered last. Asking about it tells a single missing VIP from a silent node within one period.
    good: Option<IpAddr>,
    /// Toggles with each round: every other round goes to VIPs that did not answer, if there are any.
    odd: bool,
    burst: Option<Burst>,
    /// Nodes that are no landmarks for this owner: the owner, and the nodes that fail together with it.
    apart: BTreeSet<String>,
    nic_macs: BTreeSet<Mac>,
    /// The landmarks that this node heard when the owner was first missed. It stays unchanged while the owner is
    /// silent, because a node that is cut off hears fewer and fewer hosts.
    before: Option<Before>,
    doubt: Option<Doubt>,
    subject: Subject,
    /// A node that was found silent is not asked before this time.
    seldom: Option<Instant>,
    /// The pauses were cut short once; this does not happen again before this time.
    released_until: Option<Instant>,
    /// An answer before this time may answer a broadcast.
    called_until: Option<Instant>,
    /// The last burst began because the owner answered nothing at all, not because single VIPs were missing.
    silent_as_a_whole: bool,
    /// Such bursts in a row that were answered. The owner has not answered a question to itself since the first one.
    calls: u32,
}

/// The last burst has not shown for certain that this node is on the clients' side.
#[derive(Debug)]
struct Doubt {
    side: Side,
    found: BTreeSet<Mac>,
    /// Landmarks that have answered since, and when.
    since: BTreeMap<Mac, Instant>,
    ask_at: Instant,
}

impl Watch {
    pub fn new(subject: Subject) -> Self {
        Self {
            vips: BTreeMap::new(),
            silent: 0,
            silent_since: None,
            alive: false,
            last: None,
            good: None,
            odd: false,
            burst: None,
            apart: BTreeSet::new(),
            nic_macs: BTreeSet::new(),
            before: None,
            doubt: None,
            subject,
            seldom: None,
            released_until: None,
            called_until: None,
            silent_as_a_whole: false,
            calls: 0,
        }
    }

    /// What was reported as silent and has not answered since.
    pub fn reported(&self) -> impl Iterator<Item = (IpAddr, Term)> + '_ {
        self.vips.iter().filter(|(_, vip)| vip.is_reported()).map(|(address, vip)| (*address, vip.term))
    }

    /// Watches these VIPs and no others. `reported`: what was reported of this owner on any interface.
    pub fn want(&mut self, now: Instant, target: &Target, wanted: &[Wanted], reported: Option<&Reported>) {
        self.apart.clone_from(&target.apart);
        self.nic_macs.clone_from(&target.nic_macs);
        let keep: BTreeSet<IpAddr> = wanted.iter().map(|wanted| wanted.vip.address).collect();
        self.vips.retain(|address, _| keep.contains(address));
        for Wanted { vip: Watched { address, mac, term }, rank, ahead } in wanted {
            let before = self.vips.remove(address);
            let mut vip = match before {
                Some(vip) if (vip.named, vip.term) == (*mac, *term) => vip,
                // What was reported of it is taken back when it answers, whatever MAC it has by then, and on whichever
                // interface. A verdict from another interface arms nothing here (R5).
                before => {
                    let mut vip = Vip::new(now, *mac, *term);
                    vip.verdicts = before.filter(|vip| vip.term == *term).map_or(0, |vip| vip.verdicts);
                    vip.reported_elsewhere = reported.is_some_and(|all| all.contains(&(*address, *term)));
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

    /// Takes in a frame that may end a burst. A claim from any host counts there, because a VIP with a new owner must
    /// not get a second one.
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

    /// Takes in an answer to this node. Returns true if the VIP was reported as silent before.
    ///
    /// Announcements prove nothing here: an owner that hears nobody still sends, and clients still lose it.
    pub fn answered(&mut self, now: Instant, address: IpAddr, mac: Mac) -> bool {
        let nic_macs = &self.nic_macs;
        // A VIP on a macvlan has a MAC of its own, and an answer from the NIC beneath proves nothing.
        let is_its = |vip: &Vip| vip.mac == mac || (nic_macs.contains(&vip.named) && nic_macs.contains(&mac));
        let Some(vip) = self.vips.get_mut(&address).filter(|vip| is_its(vip)) else { return false };
        let called = self.subject == Subject::Owner
            && (self.burst.is_some() || self.called_until.is_some_and(|until| now < until));
        if !called {
            self.calls = 0;
        } else if self.calls.max(vip.calls) >= ONLY_CALLS {
            return false;
        }
        let was_reported = vip.is_reported();
        vip.answered(mac, called);
        (self.silent, self.silent_since) = (0, None);
        self.alive = true;
        self.good = Some(address);
        self.seldom = None;
        (self.before, self.doubt) = (None, None);
        was_reported
    }

    /// Starts a new period after the last one was counted: begins a burst if one is due, and asks the next question.
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

    /// The MACs from which the owner has to answer or may answer.
    fn macs(&self) -> BTreeSet<Mac> {
        self.vips.values().map(|vip| vip.mac).chain(self.nic_macs.iter().copied()).collect()
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
        self.silent_as_a_whole = self.silent >= context.timers.patience(0);
        let owner = (macs, self.nic_macs.clone());
        let whole = self.silent_as_a_whole;
        self.burst = Some(Burst::begin(context.now, suspects, owner, before, found, by_unicast, whole));
    }

    /// Asks the landmarks again that did not answer in the last burst. When they answer, the pauses end and the VIPs
    /// are tested at once. This happens at most once per [`FIRST_REST`], because with frame loss in one direction hosts
    /// are heard now and then.
    fn ask_landmarks(&mut self, context: &Context<'_>, out: &mut Vec<Output>) {
        let (Some(doubt), Some(before)) = (&mut self.doubt, &self.before) else { return };
        let since = doubt.since.iter().filter(|(_, at)| context.now < **at + STILL_COUNTS).map(|(mac, _)| mac);
        let found: BTreeSet<Mac> = doubt.found.iter().chain(since).copied().collect();
        // This node is on the clients' side now. Or it was there before and hears more hosts, perhaps as many as the
        // owner.
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

    /// R2: after a late timer the answer may have been lost because this process had no processor time. The question is
    /// not counted, and is asked again.
    pub fn count(&mut self, now: Instant, trusted: bool, timers: &Timers, counters: &mut Counters) {
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
        if alive {
            return;
        }
        self.silent += 1;
        self.silent_since.get_or_insert(now);
        if self.silent == timers.patience(0) {
            // The owner answers for nothing any more. What is known of VIPs that never came up may be minutes old.
            self.vips.values_mut().filter(|vip| !vip.heard).for_each(|vip| vip.rest_until = None);
        }
    }

    /// Takes in that a question could not be sent. It counts neither way, as after a late timer (R2).
    pub fn not_sent(&mut self, ask: &Ask) {
        let last = self.last == Some(ask.address);
        // A question to everybody belongs to the burst.
        if let Some(vip) = self.vips.get_mut(&ask.address).filter(|vip| last && vip.mac == ask.to) {
            vip.asked = false;
        }
        if let Some(burst) = &mut self.burst {
            burst.not_sent(ask);
        }
    }

    /// Whether the owner was heard before and has answered nothing for so many periods.
    pub fn is_silent(&self, periods: u32) -> bool {
        self.silent >= periods && self.vips.values().any(|vip| vip.heard)
    }

    /// Whether a node that is watched for its own sake answers. A single question may be lost. `None`: it was never
    /// heard.
    pub fn answers(&self) -> Option<bool> {
        self.vips.values().any(|vip| vip.heard).then_some(self.silent < 2)
    }

    /// Whether the owner has answered as a landmark since it answers for no VIP. `None`: it never has, or it is none.
    pub fn answers_as_landmark(&self, now: Instant, link: u32, landmarks: &Landmarks) -> Option<bool> {
        let last = landmarks.last_answer(link, &self.macs())?;
        Some(self.silent_since.is_none_or(|since| last >= since) && now < last + LIVES_FOR)
    }

    /// VIPs that have been silent for as long as our place in their line says.
    fn suspects(&self, context: &Context<'_>) -> BTreeMap<IpAddr, Suspect> {
        // A node that was never heard may be in another LAN, or filter what it is asked: nothing is said of it.
        let may_be_unheard = self.subject == Subject::Owner;
        let armed = |vip: &Vip| vip.heard || may_be_unheard && vip.is_armed(context.now, context.timers.grace);
        // One VIP that was heard proves that the node and the path to it worked.
        let node_armed = self.vips.values().any(armed);
        self.vips
            .iter()
            .filter(|(_, vip)| !vip.rests(context.now))
            .filter(|(_, vip)| {
                let patience = vip.patience(context);
                (node_armed && self.silent >= patience) || (armed(vip) && vip.misses >= patience)
            })
            .map(|(address, vip)| (*address, Suspect::new(vip.mac, self.calls.max(vip.calls) >= ONLY_CALLS)))
            .collect()
    }

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

    /// Continues the burst, if a step is due.
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
                self.judge(context, owner, outcome, counters, out);
            }
        }
    }
}
