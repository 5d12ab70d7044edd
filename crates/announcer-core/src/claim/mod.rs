//! Claims: how a former owner that was only paused learns within milliseconds that it has lost (failover-protocol.md 1
//! item 5, decisions.md 23). No I/O and no clock.
//!
//! * [`Claims`]: the winner's side. A take-over is finished when the former owner knows: until then it hears, by
//!   unicast, the claim of one of the VIPs after the other, each followed by a question whether it still answers.
//! * [`tag`]: what the claim carries beside the announcement. [`Judge`]: the other side, what a heard claim is worth.

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

/// While the former owner is silent, one claim in this time: it meets a VM in the first moments of its new life.
const SLOW: Duration = Duration::from_millis(50);
/// For [`SPELL`] after the former owner began to answer: until it knows, two nodes answer.
const FAST: Duration = Duration::from_millis(10);
const SPELL: Duration = Duration::from_secs(1);
/// No VM is paused for so long on purpose; from then on the former owner is taken for switched off. Switches forget its
/// port and send our claims to everybody, so they become rare, and ever rarer: one in a [`RARER`]th of the time for
/// which nothing was heard of it, until its Lease or its Node is gone.
const SWITCHED_OFF: Duration = Duration::from_mins(10);
const RARE: Duration = Duration::from_secs(1);
const RAREST: Duration = Duration::from_secs(10);
const RARER: u32 = 600;
/// The first one, after the announcement that everybody hears.
const FIRST: Duration = Duration::from_millis(1);
/// Questions in a row without an answer after which a former owner is silent about a VIP.
const SILENT: u32 = 5;
/// Whoever has handed a VIP over knows the term from the start, and serves it until he hears its new owner or for
/// [`HAND_OVER_LINGER`], from when he learns that the API has taken it.
const HAND_OVER: Duration = HAND_OVER_LINGER.saturating_add(Duration::from_millis(500));
/// VIPs claimed in one go: two hundred in four steps of ten milliseconds, without a burst that a switch would drop.
const AT_ONCE: usize = 64;

/// Who has lost VIPs to us.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FormerOwner {
    /// Name of its node.
    pub owner: String,
    /// Our interface towards it.
    pub link: u32,
}

/// A VIP that we have taken over.
#[derive(Debug, Clone)]
pub(crate) struct Won {
    /// Which.
    pub address: IpAddr,
    /// Where it is now: our interface's MAC or our macvlan's.
    pub mac: Mac,
    /// The MAC under which the former owner hears us: that of its interface, also where the VIP has one of its own.
    pub loser_mac: Mac,
    /// It has a MAC of its own, the same on every node. A question to that one would come to ourselves, and one to the
    /// former owner's interface is not answered: there only counts what the former owner's node says.
    pub on_macvlan: bool,
    /// Since when it is ours.
    pub term: Term,
    /// Of its Service.
    pub uid: Uid,
    /// What its claims are sealed with.
    pub key: Key,
    /// The former owner may never have had it, as far as a process knows that has just begun: unless it answers it is
    /// told less often soon.
    pub suspected: bool,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// Send the claim: [`crate::frames::claim`] makes the frame.
    Claim {
        /// On which interface.
        link: u32,
        /// Where the VIP is.
        mac: Mac,
        /// The VIP.
        address: IpAddr,
        /// To whom.
        to: Mac,
        /// Term and tag.
        payload: Payload,
    },
    /// Ask whether the former owner still answers.
    Ask(Ask),
    /// The former owner has answered for a while and has stopped: clients may have believed it, so say to everybody
    /// again where the VIP is.
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
    /// The former owner's node was seen alive since, and knows who the owner is.
    known: bool,
    /// Questions since its last answer, or since it began to answer for others.
    unanswered: u32,
    has_answered: bool,
    last: Option<Instant>,
    begun: Instant,
    /// Nobody serves for so long what he has given away.
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
    /// When the former owner began to answer.
    spell: Option<Instant>,
    /// When it answered last, or this began.
    last_sign: Instant,
    next: Instant,
    /// During a spell: when the next of those VIPs has its turn for which it is silent.
    next_silent: Instant,
}

/// All VIPs whose former owners may not know yet.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    former_owners: BTreeMap<FormerOwner, Claiming>,
}

impl Claims {
    /// Claims nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// A VIP was taken over from `former owner`, who may be one of several. Once more for the same VIP: the newer term
    /// counts.
    pub fn begin(&mut self, now: Instant, former_owner: FormerOwner, won: &Won) {
        self.forget(won.address, |claimed| claimed.term != won.term);
        let claiming = self.former_owners.entry(former_owner).or_insert_with(|| Claiming {
            vips: BTreeMap::new(),
            spell: None,
            last_sign: now,
            next: now + FIRST,
            next_silent: now,
        });
        let claimed = Claimed {
            uid: won.uid.clone(),
            mac: won.mac,
            loser_mac: won.loser_mac,
            on_macvlan: won.on_macvlan,
            term: won.term,
            payload: tag::seal(&won.key, won.address, won.mac, won.term),
            known: false,
            unanswered: 0,
            has_answered: false,
            last: None,
            begun: now,
            settled: false,
            suspected: won.suspected,
        };
        claiming.vips.insert(won.address, claimed);
        claiming.next = claiming.next.min(now + FIRST);
    }

    /// The VIP is not up any more: who has lost it, and under which MAC each is reached, since which term, and whether
    /// it is only suspected.
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

    /// From now on claims are sealed with other keys.
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

    /// The Lease of a former owner says that its watch has shown this term. That it was another record's is possible,
    /// where two have the same: then it learns of this one from its watch alone.
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

    /// The nodes that are claimed at.
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

    /// Claims what is due.
    pub fn tick(&mut self, now: Instant) -> Vec<Output> {
        let mut out = Vec::new();
        self.former_owners.retain(|former_owner, claiming| {
            claiming.tick(now, former_owner.link, &mut out);
            !claiming.vips.is_empty()
        });
        out
    }

    /// When to tick again; absent: nothing is claimed.
    pub fn deadline(&self) -> Option<Instant> {
        self.former_owners.values().map(|claiming| claiming.next).min()
    }

    /// How many VIPs are being claimed from those who had them.
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
        // From now, not from when it was due: what was missed is not made up for.
        self.next = now
            + if answering {
                FAST
            } else if only_suspected || now >= self.last_sign + SWITCHED_OFF {
                (now.saturating_duration_since(self.last_sign) / RARER).clamp(RARE, RAREST)
            } else {
                SLOW
            };
        // Those first that had to wait longest. Silent is also who does not hear us, though we hear him: during a spell
        // such a VIP must not wait until it is over.
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
            out.push(Output::Claim { link, mac, address, to, payload: vip.payload });
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
