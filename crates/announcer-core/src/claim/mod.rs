//! Claims: a former owner that was only paused learns from them within milliseconds that it has lost a VIP
//! (fail-over spec 1 item 5, decisions.md 23). No I/O and no clock.
//!
//! * [`Claims`]: the side of the new owner. A take-over is finished when the former owner knows of it. Until then the
//!   new owner sends it unicast claims, one VIP after the other. Each claim is followed by a question that shows
//!   whether the former owner still answers.
//! * [`tag`]: what the claim carries beside the announcement. [`Judge`]: the receiving side, which decides what a claim
//!   is worth.

mod judge;
mod keys;
pub mod tag;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

pub use judge::{Judge, Judgement};
pub(crate) use keys::ClaimKeys;
pub use keys::ClaimSecret;
use l2_types::Mac;
use l2_types::ethernet::Payload;
pub use tag::Key;

use crate::detect::Ask;
use crate::frames::{Frame, Heard};
use crate::ownership::node::{HAND_OVER_LINGER, Term};
use crate::view::Uid;

/// Interval between claims while the former owner is silent. It is short, so that a claim meets a VM right after the
/// end of its pause.
const SLOW: Duration = Duration::from_millis(50);
/// Interval during [`SPELL`], which begins when the former owner answers: until it knows of the loss, two nodes answer.
const FAST: Duration = Duration::from_millis(10);
const SPELL: Duration = Duration::from_secs(1);
/// From then on the former owner is taken for switched off, because no VM is paused this long on purpose. Switches
/// forget its port and flood our claims, so they become rarer. The interval is a [`RARER`]th of the time for which
/// nothing was heard of it. Claims end when its Lease or its Node is gone.
const SWITCHED_OFF: Duration = Duration::from_mins(10);
const RARE: Duration = Duration::from_secs(1);
const RAREST: Duration = Duration::from_secs(10);
const RARER: u32 = 600;
/// Delay of the first claim after the broadcast announcement.
const FIRST: Duration = Duration::from_millis(1);
/// Consecutive questions without an answer after which a former owner counts as silent for a VIP.
const SILENT: u32 = 5;
/// Until then a node that handed a VIP over may still serve it. It knows the new term from the start, and serves for up
/// to [`HAND_OVER_LINGER`] after it learns that the API server has accepted the swap.
const HAND_OVER: Duration = HAND_OVER_LINGER.saturating_add(Duration::from_millis(500));
/// VIPs claimed in one step: 200 VIPs take four steps of 10 ms, without a burst that a switch would drop.
const AT_ONCE: usize = 64;

/// A former owner, and the interface towards it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FormerOwner {
    /// Name of the former owner's node.
    pub owner: String,
    /// Our interface towards it.
    pub link: u32,
}

/// A VIP that this node has taken over.
#[derive(Debug, Clone)]
pub(crate) struct TakenOverVip {
    /// The VIP.
    pub address: IpAddr,
    /// Its MAC now: that of our interface or of our macvlan.
    pub mac: Mac,
    /// The MAC at which the former owner receives claims: that of its interface, also if the VIP has a MAC of its own.
    pub loser_mac: Mac,
    /// The VIP has a MAC of its own, the same on every node. A question to that MAC would reach this node itself, and
    /// the former owner does not answer one at its interface. So only the card of the former owner's node shows what it
    /// knows.
    pub on_macvlan: bool,
    /// The term under which this node owns it.
    pub term: Term,
    /// UID of its Service.
    pub uid: Uid,
    /// The key for the tags of its claims.
    pub key: Key,
    /// The former owner may never have had the VIP; this node has just started and does not know. Unless the former
    /// owner answers, its claims soon become rare.
    pub suspected: bool,
}

/// A claim to send; [`crate::frames::claim`] makes the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Index of the interface.
    pub link: u32,
    /// The MAC where the VIP is now.
    pub mac: Mac,
    /// The VIP.
    pub address: IpAddr,
    /// MAC of the former owner.
    pub to: Mac,
    /// Term and tag.
    pub payload: Payload,
}

/// What the caller has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// Send the claim.
    Claim(Claim),
    /// Ask whether the former owner still answers.
    Ask(Ask),
    /// The former owner has answered for a while and has stopped. Clients may have learnt its MAC, so the VIP is
    /// announced to the whole LAN again.
    Announce(IpAddr),
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // five things that happen in any order
struct Claimed {
    uid: Uid,
    mac: Mac,
    loser_mac: Mac,
    on_macvlan: bool,
    term: Term,
    payload: Payload,
    /// The former owner's node has shown since then that it knows the term.
    known: bool,
    /// Questions since its last answer for this VIP, or since it began to answer for any VIP.
    unanswered: u32,
    has_answered: bool,
    last: Option<Instant>,
    begun: Instant,
    /// [`HAND_OVER`] is over, so the former owner does not serve the VIP any more after a hand-over.
    settled: bool,
    suspected: bool,
}

impl Claimed {
    fn is_over(&self) -> bool {
        self.known && self.settled && (self.on_macvlan || self.unanswered >= SILENT)
    }
}

#[derive(Debug)]
struct Claiming {
    vips: BTreeMap<IpAddr, Claimed>,
    /// When the former owner last began to answer.
    spell: Option<Instant>,
    /// When it last answered; at first the start of the claims.
    last_sign: Instant,
    next: Instant,
    /// During a spell: when the next VIP is claimed for which the former owner is silent.
    next_silent: Instant,
}

/// All VIPs whose former owners may not know of the loss.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    former_owners: BTreeMap<FormerOwner, Claiming>,
}

impl Claims {
    /// Starts to claim a VIP that this node has taken over from `former_owner`; there may be several former owners. For
    /// the same VIP the newer term replaces the older one.
    pub fn begin(&mut self, now: Instant, former_owner: FormerOwner, taken_over: &TakenOverVip) {
        self.forget(taken_over.address, |claimed| claimed.term != taken_over.term);
        let claiming = self.former_owners.entry(former_owner).or_insert_with(|| Claiming {
            vips: BTreeMap::new(),
            spell: None,
            last_sign: now,
            next: now + FIRST,
            next_silent: now,
        });
        let claimed = Claimed {
            uid: taken_over.uid.clone(),
            mac: taken_over.mac,
            loser_mac: taken_over.loser_mac,
            on_macvlan: taken_over.on_macvlan,
            term: taken_over.term,
            payload: tag::seal(&taken_over.key, taken_over.address, taken_over.mac, taken_over.term),
            known: false,
            unanswered: 0,
            has_answered: false,
            last: None,
            begun: now,
            settled: false,
            suspected: taken_over.suspected,
        };
        claiming.vips.insert(taken_over.address, claimed);
        claiming.next = claiming.next.min(now + FIRST);
    }

    /// Stops the claims of a VIP that this node does not have any more. Returns each former owner with the MAC at which
    /// it is reached, the term, and whether it was only suspected.
    pub fn take(&mut self, address: IpAddr) -> Vec<(FormerOwner, Mac, Term, bool)> {
        let mut taken = Vec::new();
        self.former_owners.retain(|former_owner, claiming| {
            let claimed = claiming.vips.remove(&address);
            taken.extend(
                claimed.map(|claimed| (former_owner.clone(), claimed.loser_mac, claimed.term, claimed.suspected)),
            );
            !claiming.vips.is_empty()
        });
        taken
    }

    /// Seals all claims with new keys.
    pub fn seal_anew(&mut self, key: impl Fn(&Uid) -> Key) {
        for (address, claimed) in self.former_owners.values_mut().flat_map(|claiming| &mut claiming.vips) {
            claimed.payload = tag::seal(&key(&claimed.uid), *address, claimed.mac, claimed.term);
        }
    }

    fn forget(&mut self, address: IpAddr, which: impl Fn(&Claimed) -> bool) {
        self.former_owners.retain(|_, claiming| {
            if claiming.vips.get(&address).is_some_and(&which) {
                claiming.vips.remove(&address);
            }
            !claiming.vips.is_empty()
        });
    }

    /// The card of a former owner says that its watch has shown this term. Two records may have the same term, so the
    /// watch may have shown the other one. Then the former owner learns of this one from its watch alone.
    pub fn known(&mut self, owner: &str, term: Term) {
        self.former_owners.retain(|former_owner, claiming| {
            if former_owner.owner == owner {
                claiming.vips.values_mut().for_each(|claimed| claimed.known |= term >= claimed.term);
                claiming.vips.retain(|_, claimed| !claimed.is_over());
            }
            !claiming.vips.is_empty()
        });
    }

    /// The node of a former owner is gone for good.
    pub fn gone(&mut self, owner: &str) {
        self.former_owners.retain(|former_owner, _| former_owner.owner != owner);
    }

    /// The nodes that are sent claims.
    pub fn former_owners(&self) -> Vec<String> {
        self.former_owners.keys().map(|former_owner| former_owner.owner.clone()).collect()
    }

    /// Takes in one frame; judges no timer.
    pub fn on_frame(&mut self, now: Instant, frame: &Frame) {
        if frame.what == Heard::Probe {
            return;
        }
        for (_, claiming) in self.former_owners.iter_mut().filter(|(former_owner, _)| former_owner.link == frame.link) {
            let Some(claimed) = claiming.vips.get_mut(&frame.address).filter(|vip| vip.loser_mac == frame.mac) else {
                continue;
            };
            claimed.unanswered = 0;
            claimed.has_answered = true;
            claimed.suspected = false;
            claiming.last_sign = now;
            if claiming.spell.is_none_or(|begun| now >= begun + SPELL) {
                claiming.spell = Some(now);
                // It is back, and very likely with all of them.
                claiming.vips.values_mut().for_each(|vip| vip.unanswered = 0);
                claiming.next = now;
            }
        }
    }

    /// Sends the claims that are due.
    pub fn tick(&mut self, now: Instant) -> Vec<Output> {
        let mut out = Vec::new();
        self.former_owners.retain(|former_owner, claiming| {
            claiming.tick(now, former_owner.link, &mut out);
            !claiming.vips.is_empty()
        });
        out
    }

    /// When to tick again; `None`: nothing is claimed.
    pub fn deadline(&self) -> Option<Instant> {
        self.former_owners.values().map(|claiming| claiming.next).min()
    }

    /// How many VIPs are claimed, without those of suspected former owners.
    pub fn len(&self) -> usize {
        self.former_owners
            .values()
            .flat_map(|claiming| claiming.vips.values())
            .filter(|claimed| !claimed.suspected)
            .count()
    }

    /// Whether nothing is claimed.
    pub fn is_empty(&self) -> bool {
        self.former_owners.is_empty()
    }
}

impl Claiming {
    fn tick(&mut self, now: Instant, link: u32, out: &mut Vec<Output>) {
        if now < self.next {
            return;
        }
        for vip in self.vips.values_mut() {
            vip.settled = now >= vip.begun + HAND_OVER;
        }
        let only_suspected = self.vips.values().all(|vip| vip.suspected && vip.settled);
        let answering = self.spell.is_some_and(|begun| now < begun + SPELL);
        // The next claim is one interval from now; missed claims are not caught up.
        self.next = now
            + if answering {
                FAST
            } else if only_suspected || now >= self.last_sign + SWITCHED_OFF {
                (now.saturating_duration_since(self.last_sign) / RARER).clamp(RARE, RAREST)
            } else {
                SLOW
            };
        // The VIPs that have waited longest go first. A former owner that does not receive our questions looks silent,
        // although it still sends. During a spell, VIPs for which it is silent must not wait until the spell is over.
        let (mut turn, mut silent) = (Vec::new(), Vec::new());
        for (address, vip) in &self.vips {
            let of = if answering && vip.unanswered >= SILENT { &mut silent } else { &mut turn };
            of.push((vip.last, *address));
        }
        turn.sort_unstable();
        turn.truncate(if answering { AT_ONCE } else { 1 });
        if now >= self.next_silent {
            self.next_silent = now + SLOW;
            turn.extend(silent.into_iter().min());
        }
        for (_, address) in turn {
            let vip = self.vips.get_mut(&address).expect("it was just listed");
            vip.last = Some(now);
            let (mac, to) = (vip.mac, vip.loser_mac);
            out.push(Output::Claim(Claim { link, mac, address, to, payload: vip.payload }));
            if !vip.on_macvlan {
                vip.unanswered = vip.unanswered.saturating_add(1);
                out.push(Output::Ask(Ask { link, address, to }));
            }
            if vip.unanswered == SILENT && std::mem::take(&mut vip.has_answered) {
                out.push(Output::Announce(address));
            }
        }
        self.vips.retain(|_, vip| !vip.is_over());
    }
}

#[cfg(test)]
mod tests;
