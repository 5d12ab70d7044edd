//! What happens in one run, made from one seed. Data only: a run is repeated exactly from it, and shrunk by taking
//! faults away.

use std::fmt;
use std::time::Duration;

use announcer::ElectionMode;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Faults begin after this: by then every node has started and every Service is announced.
pub const WARM_UP: Duration = Duration::from_secs(15);
/// From here on nothing goes wrong any more.
pub const CALM: Duration = Duration::from_mins(1);
/// All must have come to rest by then; Services are deleted.
pub const DELETION: Duration = Duration::from_secs(100);
/// The end.
pub const END: Duration = Duration::from_secs(112);

/// One run.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Of delays and losses.
    pub seed: u64,
    /// Of all announcers.
    pub mode: ElectionMode,
    /// Lease duration, renew deadline and retry period in seconds.
    pub lease: [u64; 3],
    /// How many nodes.
    pub nodes: usize,
    /// How many Services with an address of their own.
    pub services: usize,
    /// Frames lost between warm-up and calm.
    pub loss: f64,
    /// Requests answered with 500 or 409, or performed without an answer, between warm-up and calm.
    pub refusals: f64,
    /// Up to this long until the scheduler lets a process run.
    pub busy_us: u64,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

/// Something that goes wrong for a while.
#[derive(Debug, Clone)]
pub struct Fault {
    /// From when.
    pub at: Duration,
    /// How long.
    pub lasts: Duration,
    /// What.
    pub kind: Kind,
}

/// What goes wrong. Nodes are counted from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// This node does not reach the API.
    ApiAway(usize),
    /// Nobody does.
    ApiDown,
    /// This node's watches stand still.
    Stale(usize),
    /// This node's cable carries nothing, without a carrier event.
    Cut(usize),
    /// What this node sends is lost.
    Mute(usize),
    /// This node receives nothing.
    Deaf(usize),
    /// The switch of these nodes has lost its uplink: they hear one another and nobody else.
    Split(Vec<usize>),
    /// The cable of this node is out, and its kernel knows it.
    Carrier(usize),
    /// SIGKILL of the process, which is started again afterwards.
    Kill(usize),
    /// SIGTERM of the process, which is started again afterwards.
    Terminate(usize),
    /// SIGSTOP, then SIGCONT.
    Freeze(usize),
    /// The whole machine stands still; its clocks show it afterwards, or do not.
    Pause(usize, bool),
    /// Power loss; the machine boots afterwards.
    PowerLoss(usize),
    /// The wall clock of this node jumps by so many seconds, there and back.
    WallJump(usize, i64),
    /// This Service is deleted, and made again afterwards.
    Deleted(usize),
    /// A host uses the address of this Service and announces it.
    Thief(usize),
}

impl Kind {
    /// The node that alone suffers.
    pub fn node(&self) -> Option<usize> {
        match self {
            Self::ApiAway(n)
            | Self::Stale(n)
            | Self::Cut(n)
            | Self::Mute(n)
            | Self::Deaf(n)
            | Self::Carrier(n)
            | Self::Kill(n)
            | Self::Terminate(n)
            | Self::Freeze(n)
            | Self::Pause(n, _)
            | Self::PowerLoss(n)
            | Self::WallJump(n, _) => Some(*n),
            Self::ApiDown | Self::Split(_) | Self::Deleted(_) | Self::Thief(_) => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9.3} s, for {:.3} s: {:?}", self.at.as_secs_f64(), self.lasts.as_secs_f64(), self.kind)
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "mode {}, Lease {:?} s, {} nodes, {} Services, {:.0} % of frames lost, {:.0} % of requests refused, processes late by up to {:.1} ms",
            self.mode.as_str(),
            self.lease,
            self.nodes,
            self.services,
            self.loss * 100.0,
            self.refusals * 100.0,
            Duration::from_micros(self.busy_us).as_secs_f64() * 1000.0
        )?;
        for fault in &self.faults {
            write!(f, "\n  {fault}")?;
        }
        Ok(())
    }
}

impl Scenario {
    /// The run of this seed.
    pub fn of(seed: u64, mode: ElectionMode) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x5eed_0000_0000);
        let nodes = rng.random_range(1..=5);
        let services = rng.random_range(1..=3);
        let mut faults: Vec<Fault> = Vec::new();
        for _ in 0..rng.random_range(0..=8) {
            let last = faults.last().cloned();
            let mut next = fault(&mut rng, nodes, services);
            // Troubles come together: often one begins while another lasts or has just ended.
            if let Some(last) = last.filter(|_| rng.random_bool(0.6)) {
                let at = last.at + last.lasts.mul_f64(rng.random_range(0.0..1.5));
                next.at = at.min(CALM.saturating_sub(next.lasts));
            }
            faults.push(next);
        }
        faults.sort_by_key(|fault| fault.at);
        // Its Services are deleted while a process is down: the next one finds what nobody wants any more.
        if rng.random_bool(0.5) {
            let lasts = Duration::from_millis(rng.random_range(1500..4000));
            let at = DELETION.saturating_sub(Duration::from_secs(1));
            faults.push(Fault { at, lasts, kind: Kind::Kill(rng.random_range(0..nodes)) });
        }
        Self {
            seed,
            mode,
            lease: if rng.random_bool(0.5) { [15, 10, 2] } else { [5, 3, 1] },
            nodes,
            services,
            loss: if rng.random_bool(0.3) { rng.random_range(0.0..0.2) } else { 0.0 },
            refusals: if rng.random_bool(0.3) { rng.random_range(0.0..0.3) } else { 0.0 },
            busy_us: if rng.random_bool(0.3) { 40_000 } else { 300 },
            faults,
        }
    }
}

fn fault(rng: &mut SmallRng, nodes: usize, services: usize) -> Fault {
    let node = rng.random_range(0..nodes);
    let kind = match rng.random_range(0..18) {
        0 => Kind::ApiAway(node),
        1 => Kind::ApiDown,
        2 => Kind::Stale(node),
        3 => Kind::Cut(node),
        4 => Kind::Mute(node),
        5 => Kind::Deaf(node),
        6 => Kind::Split((0..nodes).filter(|_| rng.random_bool(0.5)).collect()),
        7 => Kind::Carrier(node),
        8 | 9 => Kind::Kill(node),
        10 => Kind::Terminate(node),
        11 => Kind::Freeze(node),
        12 | 13 => Kind::Pause(node, rng.random()),
        14 => Kind::PowerLoss(node),
        15 => Kind::WallJump(node, rng.random_range(-3600..3600)),
        16 => Kind::Deleted(rng.random_range(0..services)),
        _ => Kind::Thief(rng.random_range(0..services)),
    };
    // From a blink to half a minute, short ones as often as long ones.
    let lasts = Duration::from_millis(50).mul_f64(2_f64.powf(rng.random_range(0.0..9.3)));
    let latest = CALM.saturating_sub(lasts);
    let at = Duration::from_micros(rng.random_range(micros(WARM_UP)..micros(latest)));
    Fault { at, lasts, kind }
}

/// Whole microseconds.
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("a run is short")
}
