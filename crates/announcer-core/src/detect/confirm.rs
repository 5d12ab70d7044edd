//! The confirmation burst (R3) with its landmarks (R4). Three broadcast questions go out about the suspected VIPs. At
//! the same moments the landmarks are asked, to find out which hosts hear *this node*.
//!
//! Many VIPs are asked about in turns ([`crate::turns`]). A turn begins one step after the one before it, so that at
//! most three are under way. The landmarks are asked beside the first turn. One outcome for all comes at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use l2_types::Mac;

use super::landmarks::{Before, Side};
use super::profile::BURST;
use super::{Ask, Context};
use crate::frames::{Frame, Heard};
use crate::turns::addresses_per_turn;

/// How often a late timer of this process, or a question that was not sent, may postpone the end. A node without
/// processor time must not take over anything, but a busy node must be able to some day.
const PATIENCE: u32 = 3;

/// The questions about one address, or those to the landmarks.
#[derive(Debug, Clone, Copy)]
struct Questions {
    /// How many are still to be asked.
    left: u32,
    /// One was asked in the last step.
    open: bool,
}

impl Questions {
    /// None has been asked.
    const ALL: Self = Self { left: BURST, open: false };

    /// Asks the next one. Returns false if there is none.
    fn ask(&mut self) -> bool {
        self.open = self.left > 0;
        self.left -= u32::from(self.open);
        self.open
    }

    /// The question of the last step counts neither way, so it is asked again. Returns false if there was none.
    fn take_back(&mut self) -> bool {
        let open = std::mem::take(&mut self.open);
        self.left += u32::from(open);
        open
    }
}

/// Who has to answer for an address that is put to the test.
#[derive(Debug, Clone, Copy)]
pub(super) struct Suspect {
    mac: Mac,
    only_called: bool,
    /// The number of its turn.
    turn: u32,
    questions: Questions,
}

impl Suspect {
    /// `only_called`: what is asked of everybody is answered in its name, and what is asked of itself never. So it is
    /// somebody else who answers.
    pub fn new(mac: Mac, only_called: bool) -> Self {
        Self { mac, only_called, turn: 0, questions: Questions::ALL }
    }
}

#[derive(Debug)]
pub(super) struct Burst {
    begun: Instant,
    suspects: BTreeMap<IpAddr, Suspect>,
    answered: BTreeSet<IpAddr>,
    taken: BTreeMap<IpAddr, Mac>,
    /// MACs of the owner, those of its NICs, and those that have answered.
    owner: BTreeSet<Mac>,
    nic_macs: BTreeSet<Mac>,
    answering: BTreeSet<Mac>,
    /// The owner had answered nothing at all for a while when the burst began.
    whole: bool,
    /// The landmarks that this node heard before the burst, and those that have answered since.
    before: Before,
    found: BTreeSet<Mac>,
    /// Only the MAC that has to answer is asked, not the whole LAN.
    by_unicast: bool,
    landmarks: Questions,
    steps: u32,
    /// The turn that began last, and how many there are.
    turn: u32,
    turns: u32,
    /// Steps by which the end was postponed.
    put_off: u32,
    /// How many questions of the last step were not sent.
    unsent: u32,
    next: Instant,
}

/// Result of a burst.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Addresses for which no host answered.
    pub silent: Vec<IpAddr>,
    /// Addresses about which fewer questions could be sent than silence takes.
    pub unasked: Vec<IpAddr>,
    /// Addresses for which another MAC than the owner's answered or sent a claim.
    pub taken: Vec<(IpAddr, Mac)>,
    /// The owner answers for these, or somebody in its name.
    pub refuted: Vec<IpAddr>,
    /// On which side of the LAN we are.
    pub side: Side,
    /// This node hears the owner itself, or has lost no other host.
    pub certain: bool,
    /// How many landmarks that are not members have answered.
    pub outside: u8,
    /// Whether the gateway has answered.
    pub gateway: bool,
    /// The MACs of the landmarks that have answered.
    pub found: BTreeSet<Mac>,
    /// How much longer the burst took than one with a single turn in which nothing is asked again.
    pub longer: Duration,
}

pub(super) enum Step {
    Ask { asks: Vec<Ask>, late: bool },
    Over(Outcome),
}

impl Burst {
    /// `owner`: all MACs of the owner, and those of its NICs. `found`: landmarks that answered a moment ago. `whole`:
    /// the owner is silent as a whole.
    pub fn begin(
        now: Instant,
        mut suspects: BTreeMap<IpAddr, Suspect>,
        (owner, nic_macs): (BTreeSet<Mac>, BTreeSet<Mac>),
        before: Before,
        found: BTreeSet<Mac>,
        by_unicast: bool,
        whole: bool,
    ) -> Self {
        let per_turn = addresses_per_turn(suspects.len());
        let mut turn = 0;
        for (index, suspect) in suspects.values_mut().enumerate() {
            turn += u32::from(index > 0 && index % per_turn == 0);
            suspect.turn = turn;
        }
        Self {
            begun: now,
            suspects,
            answered: BTreeSet::new(),
            taken: BTreeMap::new(),
            owner,
            nic_macs,
            answering: BTreeSet::new(),
            whole,
            before,
            found,
            by_unicast,
            landmarks: Questions::ALL,
            steps: 0,
            turn: 0,
            turns: turn + 1,
            put_off: 0,
            unsent: 0,
            next: now,
        }
    }

    pub fn deadline(&self) -> Instant {
        self.next
    }

    /// Drops addresses that are not watched any more.
    pub fn keep(&mut self, wanted: &BTreeSet<IpAddr>) {
        self.suspects.retain(|address, _| wanted.contains(address));
    }

    pub fn on_frame(&mut self, frame: &Frame) {
        let heard_before = self.hears_owner();
        match (self.suspects.get(&frame.address), frame.what) {
            (_, Heard::Probe) => {}
            (Some(suspect), Heard::Answer)
                if !suspect.only_called && (suspect.mac == frame.mac || self.is_other_nic(suspect.mac, frame.mac)) =>
            {
                self.answered.insert(frame.address);
                self.answering.insert(frame.mac);
            }
            // The owner's own announcement: it sends, but whether it hears anybody is the question.
            (Some(suspect), Heard::Claim) if suspect.mac == frame.mac => {}
            (Some(_), _) => {
                self.taken.insert(frame.address, frame.mac);
            }
            // The suspected node answers for another address. So this node is not cut off, but the VIP is gone all the
            // same.
            (None, Heard::Answer) if frame.to_us && self.owner.contains(&frame.mac) => {
                self.answering.insert(frame.mac);
            }
            (None, Heard::Answer) if frame.to_us => {
                self.found.insert(self.before.whose(frame));
            }
            (None, _) => {}
        }
        if self.whole && !heard_before && self.hears_owner() {
            self.forget_missed();
        }
    }

    /// Whether the owner has answered anything since the burst began.
    fn hears_owner(&self) -> bool {
        !self.answering.is_empty()
    }

    /// Whether a NIC of the owner has answered. The MAC of a macvlan does not tell which node answers: the former owner
    /// of a leased address has the same one, and answers until it hears of its successor.
    fn hears_its_nic(&self) -> bool {
        !self.answering.is_disjoint(&self.nic_macs)
    }

    /// The owner answers again. It was away for a moment, in which it may have missed the turns that are over. So these
    /// say nothing, and the addresses get no verdict.
    fn forget_missed(&mut self) {
        let (answered, taken) = (&self.answered, &self.taken);
        self.suspects.retain(|address, Suspect { questions, .. }| {
            questions.left > 0 || questions.open || answered.contains(address) || taken.contains_key(address)
        });
    }

    /// An owner with two NICs in this LAN may have the address on the other NIC. The MAC of a macvlan belongs to no
    /// NIC.
    fn is_other_nic(&self, expected: Mac, mac: Mac) -> bool {
        self.nic_macs.contains(&expected) && self.nic_macs.contains(&mac)
    }

    /// Takes in that a question could not be sent. It is asked again in the next step.
    pub fn not_sent(&mut self, ask: &Ask) {
        let Some(suspect) = self.suspects.get_mut(&ask.address) else { return };
        let to = if self.by_unicast { suspect.mac } else { Mac::BROADCAST };
        if ask.to == to {
            self.unsent += u32::from(suspect.questions.take_back());
        }
    }

    pub fn step(&mut self, context: &Context<'_>) -> Step {
        // R2 holds here too: after a late timer answers may have been lost, so the last question is asked again.
        let patient = self.put_off < PATIENCE;
        let late = patient && self.steps > 0 && context.now - self.next > context.timers.tolerance();
        let refused = std::mem::take(&mut self.unsent) > 0;
        self.put_off += u32::from(late || (patient && refused));
        let addresses = self.suspects.values_mut().map(|suspect| &mut suspect.questions);
        for questions in addresses.chain([&mut self.landmarks]) {
            if late {
                questions.take_back();
            }
            questions.open = false;
        }
        if self.steps == self.turns - 1 + BURST + self.put_off {
            return Step::Over(self.outcome(context));
        }
        // What is asked again holds the next turn back, so that no more than three are ever under way.
        self.turn += u32::from(self.steps > 0 && !late && !refused);
        self.steps += 1;
        self.next = context.now + context.timers.burst_gap();
        Step::Ask { asks: self.asks(context), late }
    }

    fn asks(&mut self, context: &Context<'_>) -> Vec<Ask> {
        let (link, by_unicast) = (context.link, self.by_unicast);
        let mut asks = Vec::new();
        // Once by unicast: another router may have taken over the gateway's address since it was asked last.
        let gateway_is_there = self.landmarks.left == BURST || self.before.has_gateway(&self.found);
        // They come first, because a full queue refuses what comes last.
        if self.landmarks.ask() {
            asks = context.landmarks.asks(link, gateway_is_there);
            asks.retain(|ask| !self.suspects.contains_key(&ask.address));
        }
        for (address, suspect) in &mut self.suspects {
            let is_open = !self.answered.contains(address) && !self.taken.contains_key(address);
            if is_open && suspect.turn <= self.turn && suspect.questions.ask() {
                let to = if by_unicast { suspect.mac } else { Mac::BROADCAST };
                asks.push(Ask { link, address: *address, to });
            }
        }
        asks
    }

    fn outcome(&self, context: &Context<'_>) -> Outcome {
        let open = self
            .suspects
            .iter()
            .filter(|(address, _)| !self.answered.contains(address) && !self.taken.contains_key(address));
        let (asked, unasked): (Vec<_>, Vec<_>) = open.partition(|(_, suspect)| suspect.questions.left == 0);
        let taken = self.taken.iter().filter(|(address, _)| !self.answered.contains(address));
        // A node may answer for addresses with several MACs.
        let mut known = context.landmarks.among(context.link, &self.found);
        known.extend(self.before.among(&self.found));
        let found = if known.is_empty() { self.found.clone() } else { known };
        let sees_owner = self.hears_its_nic();
        let is_outside =
            |mac: &&Mac| self.before.is_gateway(**mac) || context.landmarks.is_outside(context.link, **mac);
        let outside = found.iter().filter(is_outside).count();
        Outcome {
            silent: asked.into_iter().map(|(address, _)| *address).collect(),
            unasked: unasked.into_iter().map(|(address, _)| *address).collect(),
            taken: taken.map(|(address, mac)| (*address, *mac)).collect(),
            refuted: self.answered.iter().copied().collect(),
            side: if sees_owner { Side::Greater } else { self.before.side(&found) },
            certain: sees_owner || self.before.is_certain(&found),
            gateway: self.before.hears_gateway(&self.found),
            outside: u8::try_from(outside).unwrap_or(u8::MAX),
            found,
            longer: (context.now - self.begun).saturating_sub(context.timers.confirm),
        }
    }
}
