//! How long each kind of trouble may last, and why no shorter.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use announcer_core::ElectionMode;

use crate::scenario::{Scenario, ServerFault};

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// When, from the start.
    pub at: Duration,
    /// Which promise: the same for the same kind of trouble.
    pub promise: &'static str,
    /// What was seen.
    pub seen: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} s: {}: {}", self.at.as_secs_f64(), self.promise, self.seen)
    }
}

/// Something that may last for a while, and no longer. Nodes and addresses are counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// These nodes run, hear each other, and both answer for this address; the wire has told them so, or will.
    Split(usize, usize, usize),
    /// The same where the former owner was told on the wire once, when it could not hear: only the API tells it again.
    Torn(usize, usize, usize),
    /// The same where one of them has not seen yet that the Service was deleted and made anew.
    Unproven(usize, usize, usize),
    /// The same where one of them has handed it over and did not hear the other then.
    Lingering(usize, usize, usize),
    /// The same for the leased address of a Service, which has one MAC on all nodes.
    SplitLease(usize, usize, usize),
    /// This node has an address for this Service that the DHCP server has never leased to it, or not for so long.
    Unleased(usize, usize),
    /// The DHCP server has refused this node, which hears it, the address that it has for this Service.
    Refused(usize, usize),
    /// Nobody answers for this address, and a node is there that could.
    Unanswered(usize),
    /// The same where the owner and both of its successors are ill.
    Orphaned(usize),
    /// The same where a stranger answers for it.
    Contested(usize),
    /// This node, which is well, has an address of a Service that is gone.
    LeftBehind(usize),
    /// The process on this node is dead or hangs, and its addresses are still there.
    Unfenced(usize),
    /// This node answers for this address, which another one may serve and this one may not.
    Misplaced(usize, usize),
    /// This node, which is well, says something else of itself, in its membership Lease.
    Misjudged(usize),
    /// This node answers while a kube-vip holds the Lease for all Services.
    BesideKubeVip(usize),
    /// These nodes both believe to hold the Lease.
    TwoLeaders(usize, usize),
}

impl Trouble {
    /// The promise that it breaks.
    pub fn promise(self) -> &'static str {
        match self {
            Self::Split(..) => "two nodes that hear each other do not answer for one address",
            Self::Torn(..) => "two nodes that see the API do not answer for one address",
            Self::Unproven(..) => "two nodes do not answer for the address of a Service that was made anew",
            Self::Lingering(..) => "what was handed over out of hearing is served for a last moment only",
            Self::SplitLease(..) => "two nodes that hear each other do not use one lease",
            Self::Unleased(..) => "a leased address is used as long as it is leased",
            Self::Refused(..) => "a leased address is given up when the server refuses it",
            Self::Unanswered(_) => "an address with a healthy node is answered",
            Self::Orphaned(_) => "an address with a healthy node is answered, once Leases have expired",
            Self::Contested(_) => {
                "an address for which a stranger answers is answered by us, once its owner's Lease has run out"
            }
            Self::LeftBehind(_) => "nothing is left behind",
            Self::Unfenced(_) => "addresses do not outlive their process",
            Self::Misplaced(..) => "an address is where it may be served",
            Self::Misjudged(_) => "what a node says of itself is so",
            Self::BesideKubeVip(_) => "a living kube-vip is left alone",
            Self::TwoLeaders(..) => "one node at a time holds the Lease",
        }
    }
}

/// How long each may last in one run. The figures are what the protocol needs, plus what the model takes for the way:
/// up to 0.3 ms for a frame (20 ms more in a storm), up to 0.5 ms for each request to the kernel, up to 30 ms for a
/// watch event, up to 20 ms for a request and its answer, and up to [`Scenario::busy_us`] whenever a process has to
/// wake.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    split: Duration,
    torn: Duration,
    unproven: Duration,
    lingering: Duration,
    split_lease: Duration,
    unleased: Duration,
    refused: Duration,
    unanswered: Duration,
    orphaned: Duration,
    contested: Duration,
    left_behind: Duration,
    unfenced: Duration,
    misplaced: Duration,
    misjudged: Duration,
    beside_kube_vip: Duration,
    two_leaders: Duration,
}

impl Limits {
    /// For this run.
    pub fn of(scenario: &Scenario) -> Self {
        let (ms, seconds) = (Duration::from_millis, Duration::from_secs);
        let late = Duration::from_micros(scenario.busy_us);
        let [duration, deadline, retry] = scenario.lease.map(seconds);
        // A list that broke off begins anew within a second and its way back.
        let relisted = ms(1050) + late;
        let node = scenario.mode == ElectionMode::Node;
        let addresses = u32::try_from(scenario.services.len()).expect("there are few");
        // A swap reads and writes, and so does what it follows: a renewal, or a record.
        let api = scenario.api_late();
        // The kernel counts whole seconds, and is up to 0.3 s late.
        let kernel = ms(310);
        let split = if node {
            // decisions.md 23: a claim comes every 50 ms until the former owner has heard one, then of each of its
            // addresses within 10, or in turn of those for which it is silent. Both processes have to wake, the former
            // owner's kernel has to do it. In a storm each claim may be lost: eight in a row never are.
            ms(50) * addresses
                + ms(10)
                + ms(5)
                + 3 * late
                + if scenario.loss > 0.0 { ms(50) * 8 + ms(40) } else { Duration::ZERO }
        } else {
            // decisions.md 23: without a tag, 150 ms: the announcements come after 0, 20, 60, 150 and 500 ms, and in
            // a storm the last one counts.
            3 * late + if scenario.loss > 0.0 { ms(540) } else { ms(150) }
        };
        Self {
            split,
            // The claims of the new owner carry a tag that the old one cannot prove: it hears the announcement, which
            // waits for the status for up to a second, and reads the record.
            unproven: 4 * api
                + seconds(1)
                + ms(150)
                + 3 * late
                + if scenario.loss > 0.0 { ms(540) } else { Duration::ZERO },
            // From when the former owner learns that the record is written; the claims go to those whom the records
            // have named.
            lingering: 4 * api + seconds(2) + relisted + ms(500) + 3 * late,
            // The address is on the macvlan before that is up; then the client begins, says that it goes on with the
            // lease, and the kernel is asked again, before anything is claimed.
            split_lease: split + 3 * late + ms(5),
            // Leases end by the asker's count, before the server thinks so.
            unleased: kernel + late,
            refused: 3 * late + ms(20),
            // A request that was under way is given up after half the deadline; then the Lease is read each retry
            // period.
            torn: 4 * api + deadline / 2 + retry + retry / 5 + ms(100) + late,
            unanswered: if node {
                // Node mode's worst: a process that has just started needs five seconds to suspect an owner that it has
                // never heard (R5), and detection, swap and the kernel 0.3 s; a swap that fails is tried again.
                seconds(7) + 4 * api
            } else {
                // The Lease expires, and is read each 1 to 2.2 retry periods.
                duration + retry.mul_f64(2.2) + seconds(1) + 4 * api
            },
            // R8: the Leases of those in line expire first, counted from a renewal of our own that has come back. A
            // majority that is cut off keeps it until its own cards show that it hears fewer hosts: 13 s, and a
            // renewal.
            orphaned: (duration + seconds(7)).max(seconds(17 + 7)) + duration / 3 + 4 * api,
            // decisions.md 24: five seconds after the Lease has run out, counted from a renewal of our own; and the
            // wait for whoever comes first.
            contested: duration + duration / 3 + seconds(5) + seconds(7) + 4 * api,
            left_behind: relisted + ms(100) + 2 * late,
            unfenced: scenario.fence() + kernel,
            // From when another node has said that it may serve: what makes it so is seen in the watch, the successor
            // is written, sees that, and announces. One that gets no lease is waited for as long as for one that is not
            // heard.
            misplaced: 4 * api
                + relisted
                + ms(500)
                + 6 * late
                + if [ServerFault::Silent, ServerFault::Slow, ServerFault::Refuses, ServerFault::GivesAway]
                    .iter()
                    .any(|fault| scenario.has(*fault))
                {
                    seconds(2)
                } else {
                    Duration::ZERO
                },
            // A write that was under way is given up after three seconds, and done again after one.
            misjudged: 4 * api + seconds(4) + ms(100) + 3 * late,
            // decisions.md 19.
            beside_kube_vip: seconds(2) + relisted + ms(100) + 2 * late,
            // The old one believes in it for the renew deadline, the new one waits for the longer duration; with a
            // clock that has stood still it is told by the API.
            two_leaders: 4 * api + deadline / 2 + retry + retry / 5 + ms(100) + late,
        }
    }

    fn of_trouble(&self, trouble: Trouble) -> Duration {
        match trouble {
            Trouble::Split(..) => self.split,
            Trouble::Torn(..) => self.torn,
            Trouble::Unproven(..) => self.unproven,
            Trouble::Lingering(..) => self.lingering,
            Trouble::SplitLease(..) => self.split_lease,
            Trouble::Unleased(..) => self.unleased,
            Trouble::Refused(..) => self.refused,
            Trouble::Unanswered(_) => self.unanswered,
            Trouble::Orphaned(_) => self.orphaned,
            Trouble::Contested(_) => self.contested,
            Trouble::LeftBehind(_) => self.left_behind,
            Trouble::Unfenced(_) => self.unfenced,
            Trouble::Misplaced(..) => self.misplaced,
            Trouble::Misjudged(_) => self.misjudged,
            Trouble::BesideKubeVip(_) => self.beside_kube_vip,
            Trouble::TwoLeaders(..) => self.two_leaders,
        }
    }
}

/// Since when each trouble has lasted.
#[derive(Debug)]
pub struct Checks {
    limits: Limits,
    lasting: BTreeMap<Trouble, Duration>,
    longest: BTreeMap<&'static str, Duration>,
    /// When the first of them has lasted too long.
    next: Option<Duration>,
}

impl Checks {
    /// Nothing is wrong yet.
    pub fn new(scenario: &Scenario) -> Self {
        Self { limits: Limits::of(scenario), lasting: BTreeMap::new(), longest: BTreeMap::new(), next: None }
    }

    /// Follows what is the case at `now`; `troubles` must be complete.
    pub fn follow(&mut self, now: Duration, troubles: impl IntoIterator<Item = Trouble>) {
        let before = std::mem::take(&mut self.lasting);
        for trouble in troubles {
            self.lasting.insert(trouble, before.get(&trouble).copied().unwrap_or(now));
        }
        for (trouble, since) in before {
            let longest = self.longest.entry(trouble.promise()).or_default();
            *longest = (*longest).max(now.saturating_sub(since));
        }
        self.next = self.lasting.iter().map(|(trouble, since)| *since + self.limits.of_trouble(*trouble)).min();
    }

    /// Whether one has lasted too long at `now`, unless it has ended without a change that made anybody look.
    pub fn is_due(&self, now: Duration) -> bool {
        self.next.is_some_and(|next| now > next)
    }

    /// The first trouble that has lasted too long at `now`.
    pub fn broken(&self, now: Duration) -> Option<Violation> {
        self.lasting.iter().find_map(|(trouble, since)| {
            let (limit, promise) = (self.limits.of_trouble(*trouble), trouble.promise());
            (now.saturating_sub(*since) > limit).then(|| Violation {
                at: now,
                promise,
                seen: format!(
                    "{trouble:?} since {:.3} s, allowed are {:.3} s",
                    since.as_secs_f64(),
                    limit.as_secs_f64()
                ),
            })
        })
    }

    /// The longest that a trouble of each kind has lasted.
    pub fn longest(&self) -> BTreeMap<&'static str, Duration> {
        self.longest.clone()
    }
}
