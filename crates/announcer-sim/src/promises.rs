//! What users are promised: how long each kind of trouble may last, and why no shorter.

use std::time::Duration;

use announcer_core::ElectionMode;

use crate::scenario::{Kind, Scenario, ServerFault};

/// Something that may last for a while, and no longer. Nodes and addresses are counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// These nodes run, hear each other, and both answer for this address; the wire has told them so, or will.
    Both(usize, usize, usize),
    /// The same where the former owner was told on the wire once, when it could not hear: only the API tells it again.
    Torn(usize, usize, usize),
    /// The same where one of them has not seen yet that the Service was deleted and made anew.
    Unproven(usize, usize, usize),
    /// The same where one of them has handed it over and did not hear the other then.
    Lingering(usize, usize, usize),
    /// The same for the leased address of a Service, which has one MAC on all nodes.
    BothLeased(usize, usize, usize),
    /// This node has an address for this Service that the DHCP server has never leased to it, or not for so long.
    Unleased(usize, usize),
    /// The DHCP server has refused this node, which hears it, the address that it has for this Service.
    Refused(usize, usize),
    /// Nobody answers for this address, and a node is there that could.
    Unanswered(usize),
    /// The same where the owner and both of its successors are ill.
    Orphaned(usize),
    /// The same as [`Trouble::Unanswered`] where a stranger answers for it.
    Contested(usize),
    /// The same as [`Trouble::Orphaned`] where a stranger answers for it.
    ContestedOrphan(usize),
    /// This client gets no answer for this address, though a node on its side answers for it.
    Misled(usize, usize),
    /// This client gets no answer for this address, after the one fault of the run.
    Outage(usize, usize),
    /// The same of an address in the LAN that the fault has spared.
    Spared(usize, usize),
    /// This node answers for this address, which was never announced before a stranger began to use it.
    BesideStranger(usize, usize),
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
    /// The first node says that the second one is silent, which answers it.
    Slandered(usize, usize),
    /// This node has lost its power, and two others that are well have not said that it is silent.
    Unmissed(usize),
}

impl Trouble {
    /// The promise that it breaks.
    pub const fn promise(self) -> &'static str {
        match self {
            Self::Both(..) => "two nodes that hear each other do not answer for one address",
            Self::Torn(..) => "two nodes that see the API do not answer for one address",
            Self::Unproven(..) => "two nodes do not answer for the address of a Service that was made anew",
            Self::Lingering(..) => "what was handed over out of hearing is served for a last moment only",
            Self::BothLeased(..) => "two nodes that hear each other do not use one lease",
            Self::Unleased(..) => "a leased address is used as long as it is leased",
            Self::Refused(..) => "a leased address is given up when the server refuses it",
            Self::Unanswered(_) => "an address with a healthy node is answered",
            Self::Orphaned(_) => "an address with a healthy node is answered, once Leases have expired",
            Self::Contested(_) | Self::ContestedOrphan(_) => {
                "an address for which a stranger answers is answered by us, once its owner's Lease has run out"
            }
            Self::Misled(..) => "a client finds the node that answers on its side of the LAN",
            Self::Outage(..) | Self::Spared(..) => "after one fault clients are answered within the bound for its kind",
            Self::BesideStranger(..) => "what nobody has used before is not announced beside a stranger",
            Self::LeftBehind(_) => "nothing is left behind",
            Self::Unfenced(_) => "addresses do not outlive their process",
            Self::Misplaced(..) => "an address is where it may be served",
            Self::Misjudged(_) => "what a node says of itself is so",
            Self::BesideKubeVip(_) => "a living kube-vip is left alone",
            Self::TwoLeaders(..) => "one node at a time holds the Lease",
            Self::Slandered(..) => "a node that answers at each of its interfaces is not called silent",
            Self::Unmissed(_) => "a node that is lost is called silent by two",
        }
    }
}

// No time is allowed for these: what breaks one is no trouble that lasts, but one step, or what a run is at its end.

/// Judged by each write of a record.
pub const ONLY_FROM_WHOM: &str = "ownership is taken only from whom it may be taken";
/// Judged by each taking over, from the side of the clients.
pub const NOT_CUT_OFF: &str = "nobody who is cut off takes an address from an owner whom clients hear";
/// Judged by what the DHCP server hears.
pub const LEASE_KEPT: &str = "a lease is given back when its Service goes, and not before";
/// Judged by each Event about a conflict.
pub const NO_FALSE_ALARM: &str = "no conflict is told of where no stranger is";
/// Judged by the steps of a process at one moment.
pub const NO_CIRCLES: &str = "no timer stays due";
/// Judged by how often an address has moved in a run.
pub const NO_FLAPPING: &str = "an address does not flap";
/// Judged at the end, by the nodes that have an address.
pub const ONE_AT_REST: &str = "when all is well, one node answers for each address";
/// Judged at the end, by what the API and the nodes have done meanwhile.
pub const NOTHING_AT_REST: &str = "when all is well, nothing is written and nothing moves";
/// Judged by each move, in a run with such a moment.
pub const BLIP: &str = "who was silent for a moment keeps what it has";

/// All promises, in the order of their numbers: `docs/announcer.md` lists them. New ones come last.
pub const PROMISES: [&str; 30] = [
    Trouble::Both(0, 0, 0).promise(),
    Trouble::Torn(0, 0, 0).promise(),
    Trouble::Unproven(0, 0, 0).promise(),
    Trouble::Lingering(0, 0, 0).promise(),
    Trouble::BothLeased(0, 0, 0).promise(),
    Trouble::Unleased(0, 0).promise(),
    Trouble::Refused(0, 0).promise(),
    Trouble::Unanswered(0).promise(),
    Trouble::Orphaned(0).promise(),
    Trouble::Contested(0).promise(),
    Trouble::Misled(0, 0).promise(),
    Trouble::Outage(0, 0).promise(),
    Trouble::BesideStranger(0, 0).promise(),
    Trouble::LeftBehind(0).promise(),
    Trouble::Unfenced(0).promise(),
    Trouble::Misplaced(0, 0).promise(),
    Trouble::Misjudged(0).promise(),
    Trouble::BesideKubeVip(0).promise(),
    Trouble::TwoLeaders(0, 0).promise(),
    ONLY_FROM_WHOM,
    NOT_CUT_OFF,
    LEASE_KEPT,
    NO_FALSE_ALARM,
    NO_CIRCLES,
    NO_FLAPPING,
    ONE_AT_REST,
    NOTHING_AT_REST,
    Trouble::Slandered(0, 0).promise(),
    Trouble::Unmissed(0).promise(),
    BLIP,
];

/// The number of a promise.
pub fn number(promise: &str) -> usize {
    PROMISES.iter().position(|other| *other == promise).map_or(0, |index| index + 1)
}

/// How long each trouble may last in one run: what the protocol needs, plus the delays of the model. These are up to
/// 0.3 ms for a frame (20 ms more in a storm), up to 0.5 ms for a request to the kernel, up to 30 ms for a watch event,
/// up to 20 ms for a request and its answer, and up to [`Scenario::busy_us`] whenever a process has to wake.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    node_mode: bool,
    /// Lease duration, renew deadline, retry period.
    lease: [Duration; 3],
    /// A process wakes, or its kernel has done what it was asked for.
    late: Duration,
    /// A swap reads and writes, and so does the renewal or the record before it. If the API refuses or loses up to
    /// three in ten requests, some requests are sent several times.
    api: Duration,
    /// Before a write that is tried again and again has come through.
    tries: Duration,
    /// A request that an outage of the API has left hanging is given up after half the renew deadline, and repeated a
    /// retry period later.
    hangs: Duration,
    /// How long an address is left alone where another host was found to use it, if a Service is made anew while a node
    /// that does not learn of it keeps what it had: 10 s, and 10 ms for each step of the last octet of its own MAC. For
    /// the last node that is 10 more than there are nodes.
    left_alone: Duration,
    /// A broken watch lists again after up to a second, and the answer needs its time.
    relisted: Duration,
    fence: Duration,
    addresses: u32,
    frames_are_lost: bool,
    /// How much longer an owner waits for its successor: the DHCP server may be silent or slow, refuse, or give leases
    /// away, or the two nodes do not hear each other.
    lingers: Duration,
    bound: Duration,
}

/// How often a client asks for each address. Its losses are known with this precision.
pub const CLIENT_ASKS: Duration = ms(20);
/// After this time without an answer a client discards the entry of its cache. Linux needs 8 s from its first doubt.
pub const DOUBT: Duration = seconds(8);

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The kernel counts whole seconds, and is up to 0.3 s late.
const KERNEL: Duration = ms(310);

impl Limits {
    /// For this run.
    pub fn of(scenario: &Scenario) -> Self {
        let late = Duration::from_micros(scenario.busy_us) + scenario.kernel_late();
        let [_, deadline, retry] = scenario.lease.map(seconds);
        let has = |is: &dyn Fn(&Kind) -> bool| scenario.faults.iter().any(|fault| is(&fault.kind));
        let outage = |kind: &Kind| matches!(kind, Kind::ApiAway(_) | Kind::ApiDown);
        let unaware = |kind: &Kind| outage(kind) || matches!(kind, Kind::Pause(..) | Kind::Freeze(_) | Kind::Stale(_));
        let anew = has(&unaware) && has(&|kind| matches!(kind, Kind::Deleted(_)));
        let last_octet = u32::try_from(scenario.nodes + 10).expect("there are few");
        let apart = has(&|kind| matches!(kind, Kind::Apart(..)));
        let ill = [ServerFault::Silent, ServerFault::Slow, ServerFault::Refuses, ServerFault::GivesAway];
        Self {
            node_mode: scenario.mode == ElectionMode::Node,
            lease: scenario.lease.map(seconds),
            late,
            api: 4 * scenario.api_late() + if scenario.refusals > 0.0 { seconds(10) } else { Duration::ZERO },
            tries: if scenario.refusals > 0.0 { seconds(20) } else { Duration::ZERO },
            hangs: if has(&outage) { deadline / 2 + retry } else { Duration::ZERO },
            left_alone: if anew { seconds(10) + ms(10) * last_octet } else { Duration::ZERO },
            relisted: ms(1050) + late,
            fence: scenario.fence(),
            addresses: u32::try_from(scenario.services.len()).expect("there are few"),
            frames_are_lost: scenario.loss > 0.0,
            lingers: if apart || ill.iter().any(|fault| scenario.has(*fault)) { seconds(2) } else { Duration::ZERO },
            bound: scenario.bound.unwrap_or(Duration::MAX),
        }
    }

    /// For this trouble.
    pub fn limit(&self, trouble: Trouble) -> Duration {
        let Self { late, api, relisted, .. } = *self;
        let [duration, deadline, retry] = self.lease;
        match trouble {
            Trouble::Both(..) => self.both(),
            // The old owner cannot verify the tag of the new owner's claims. So it acts on the announcement, which
            // waits for the status for up to a second, and reads the record.
            Trouble::Unproven(..) => api + seconds(1) + ms(150) + 3 * late + self.if_lost(ms(540)),
            // Counted from the moment when the former owner learns that the record is written. Claims are sent to the
            // owners that the records have named.
            Trouble::Lingering(..) => api + seconds(2) + relisted + ms(500) + 3 * late,
            // The address is on the macvlan before that is up. Then the client starts and confirms the lease, and the
            // kernel is asked again, all before the first claim.
            Trouble::BothLeased(..) => self.both() + 3 * late + ms(5),
            // A client counts its lease from its request, so for the client the lease ends before it ends for the
            // server.
            Trouble::Unleased(..) => KERNEL + late,
            Trouble::Refused(..) => 3 * late + ms(20),
            // A request that was under way is given up after half the deadline; then the Lease is read each retry
            // period. The old holder trusts it for the renew deadline, and the new one waits for the longer duration. A
            // holder whose clock was paused learns from the API.
            Trouble::Torn(..) | Trouble::TwoLeaders(..) => api + deadline / 2 + retry + retry / 5 + ms(100) + late,
            // The worst case of `node` mode: an owner that was never heard under its record is suspected after five
            // seconds (R5), and has to be seen to renew its Lease two seconds later. Detection, swap and the kernel
            // need 0.3 s. A swap that fails is tried again.
            Trouble::Unanswered(_) if self.node_mode => seconds(8) + api,
            // The Lease expires, and is read each 1 to 2.2 retry periods. Where requests are refused, the answer of the
            // node that takes it may be lost, and its next reads: then the Lease expires once more.
            Trouble::Unanswered(_) => {
                let expires = duration + retry.mul_f64(2.2);
                let again = if self.tries.is_zero() { Duration::ZERO } else { expires };
                (expires + again + self.hangs).max(self.left_alone) + seconds(1) + api
            }
            // R8: the Leases of the successors expire first, counted from a renewal of our own that has succeeded. A
            // majority that is cut off keeps the address until its own cards show that it hears fewer hosts, which
            // takes 13 s and a renewal.
            Trouble::Orphaned(_) => (duration + seconds(7)).max(seconds(17 + 7)) + duration / 3 + api,
            // A stranger does not make a majority that is cut off see sooner that it hears fewer hosts.
            Trouble::ContestedOrphan(index) => {
                self.limit(Trouble::Orphaned(index)).max(self.limit(Trouble::Contested(index)))
            }
            // decisions.md 24: five seconds after the Lease has expired, counted from a renewal of our own, and the
            // wait for the first successor.
            Trouble::Contested(_) => duration + duration / 3 + seconds(5) + seconds(7) + api,
            // The client has missed the announcement, or could not hear it. It asks again when the entry of its cache
            // is discarded. In a storm the question or the answer may be lost, too, but never eight in a row.
            Trouble::Misled(..) => DOUBT + seconds(1) + 2 * CLIENT_ASKS + 3 * late + self.if_lost(seconds(8)),
            Trouble::Outage(..) => self.bound,
            Trouble::Spared(..) => 3 * CLIENT_ASKS,
            // The node notices the stranger during its probe, or the next answer makes it give the address up.
            Trouble::BesideStranger(..) => ms(100) + 3 * late,
            // Whoever elects by Lease has to read its Lease first. After a read that failed, the next one is a retry
            // period later.
            Trouble::LeftBehind(_) => {
                let reads = if self.node_mode { Duration::ZERO } else { retry + retry / 5 + self.hangs };
                api + relisted + reads + ms(100) + 2 * late
            }
            Trouble::Unfenced(_) => self.fence + KERNEL,
            // Counted from the moment when another node has published that it may serve. Then the watch shows it, the
            // owner writes the successor, and the successor sees that and announces. The owner waits for a successor
            // without a lease as long as for one that is not heard.
            Trouble::Misplaced(..) => api + relisted + ms(500) + 6 * late + self.lingers,
            // After an outage: a write that was under way is given up after three seconds. The pause before the next
            // attempt has grown to a third of the Lease by then.
            Trouble::Misjudged(_) => api + seconds(3) + duration / 3 + ms(100) + 3 * late + self.tries,
            // It is asked again in its turn, and the card is written anew, after an outage of the API as above.
            Trouble::Slandered(..) => api + (seconds(3) + duration / 3).max(seconds(4)) + seconds(2) + 3 * late,
            // Three periods, a burst and the kubelet's port, then the card, as above.
            Trouble::Unmissed(_) => api + seconds(4) + seconds(1) + 3 * late,
            // decisions.md 19.
            Trouble::BesideKubeVip(_) => seconds(2) + relisted + ms(100) + 2 * late,
        }
    }

    /// While two nodes answer that hear each other.
    fn both(&self) -> Duration {
        if self.node_mode {
            // decisions.md 23: a claim comes every 50 ms until the former owner has heard one, then of each of its
            // addresses within 10, or in turn of those for which it is silent. Both processes have to wake, the former
            // owner's kernel has to do it. In a storm each claim may be lost: eight in a row never are.
            ms(50) * self.addresses + ms(10) + ms(5) + 3 * self.late + self.if_lost(ms(50) * 8 + ms(40))
        } else {
            // decisions.md 23: without a tag, 150 ms: the announcements come after 0, 20, 60, 150 and 500 ms, and in
            // a storm the last one counts.
            3 * self.late + if self.frames_are_lost { ms(540) } else { ms(150) }
        }
    }

    fn if_lost(&self, more: Duration) -> Duration {
        if self.frames_are_lost { more } else { Duration::ZERO }
    }
}
