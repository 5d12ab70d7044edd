//! Seeds from [`WIDE`] on. Some have a single fault with a bound for the losses of clients. The others are mixtures:
//! clusters are larger, the API is slow for everybody or away for several nodes, kernels are slow, and strangers come
//! at any time.

use std::collections::BTreeSet;
use std::time::Duration;

use announcer_core::ElectionMode;
use rand::RngExt;
use rand::rngs::SmallRng;

use super::{Address, Fault, Kind, Scenario, WARM_UP, Wish};

/// The first seed of these. What older seeds do stays as it was.
pub const WIDE: u64 = 20_000_000;

/// Faults of a mixture are over by then.
pub(super) const LATEST: Duration = Duration::from_mins(1);
/// A client asks every 20 ms, so its losses are known to twice that.
pub(super) const NOTHING: Duration = Duration::from_millis(60);
/// One machine, or its cable.
pub(super) const ONE_NODE: Duration = Duration::from_millis(300);
/// A hypervisor with the owner and perhaps its first successor.
const ONE_HOST: Duration = Duration::from_millis(500);

/// How many nodes: mostly few.
pub(super) fn nodes(rng: &mut SmallRng) -> usize {
    match rng.random_range(0..100) {
        0..85 => rng.random_range(2..=5),
        85..98 => rng.random_range(6..=12),
        _ => rng.random_range(13..=50),
    }
}

/// Sometimes thirty Services, of which many share an address or a lease server.
pub(super) fn services(rng: &mut SmallRng) -> Option<usize> {
    (rng.random_range(0..50) == 0).then(|| rng.random_range(10..=30))
}

/// One fault alone. Nothing else is wrong: what clients lose is its doing.
pub(super) fn alone(rng: &mut SmallRng, scenario: &mut Scenario) {
    let nodes = scenario.nodes;
    (scenario.loss, scenario.refusals, scenario.busy_us, scenario.fail_back) = (0.0, 0.0, 300, false);
    for wish in &mut scenario.services {
        *wish = Wish { address: if wish.address == Address::Dhcp { Address::V4 } else { wish.address }, local: None };
    }
    scenario.hosts = if rng.random_bool(0.5) { (0..nodes).map(|node| node / 2).collect() } else { Vec::new() };
    let node = rng.random_range(0..nodes);
    let service = rng.random_range(0..scenario.services.len());
    // A kernel keeps the addresses of a dead process this long at least: it is told anew each second.
    let kept = scenario.fence().saturating_sub(Duration::from_secs(1));
    let mut faults = Vec::new();
    let (bound, kind, lasts) = match rng.random_range(0..20) {
        0 | 1 => (ONE_NODE, Kind::PowerLoss(node), millis(rng, 5_000, 30_000)),
        2 => (ONE_NODE, Kind::Cut(node), millis(rng, 5_000, 30_000)),
        3 => (ONE_NODE, Kind::Mute(node), millis(rng, 5_000, 30_000)),
        4 => (ONE_NODE, Kind::Deaf(node), millis(rng, 5_000, 30_000)),
        5 => (ONE_NODE, Kind::Pause(node, true), millis(rng, 5_000, 20_000)),
        6 if !scenario.hosts.is_empty() && nodes > 2 => {
            let lasts = millis(rng, 5_000, 20_000);
            faults.extend((0..nodes).filter(|other| other / 2 == node / 2 && *other != node).map(|other| Fault {
                at: WARM_UP + WARM_UP,
                lasts,
                kind: Kind::PowerLoss(other),
            }));
            (ONE_HOST, Kind::PowerLoss(node), lasts)
        }
        6 | 7 => {
            let group = minority(rng, nodes);
            // The first in line may be cut off with the owner.
            let bound = if group.len() > 1 { ONE_HOST } else { ONE_NODE };
            (bound, Kind::Split(group), millis(rng, 5_000, 20_000))
        }
        8 => (NOTHING, Kind::Kill(node), millis(rng, 300, 3_000).min(kept)),
        9 => (NOTHING, Kind::Terminate(node), millis(rng, 300, 3_000)),
        10 => (NOTHING, Kind::Freeze(node), millis(rng, 300, 3_000).min(kept)),
        11 => (NOTHING, Kind::ApiDown, millis(rng, 5_000, 60_000)),
        12 => (NOTHING, Kind::ApiAway(node), millis(rng, 5_000, 60_000)),
        13 => (NOTHING, Kind::AllNotReady, millis(rng, 5_000, 40_000)),
        14 => (NOTHING, Kind::Duplicate(service), millis(rng, 5_000, 30_000)),
        15 => (NOTHING, if rng.random() { Kind::ProxyArp } else { Kind::Ipvs }, millis(rng, 5_000, 30_000)),
        16 => (NOTHING, Kind::WallJump(node, rng.random_range(-3600..3600)), millis(rng, 5_000, 30_000)),
        17 => (NOTHING, Kind::SlowKernel(node, 400), millis(rng, 5_000, 20_000)),
        18 => (NOTHING, Kind::ProxyIll(node), millis(rng, 5_000, 20_000)),
        // Handed over through an API that is in no hurry.
        _ => {
            let late = Kind::ApiLate(rng.random_range(50..=500));
            faults.push(Fault { at: WARM_UP, lasts: Duration::from_secs(45), kind: late });
            (NOTHING, Kind::ShutOut(node), millis(rng, 5_000, 20_000))
        }
    };
    // After twice the warm-up everything has been heard and is known.
    faults.push(Fault { at: WARM_UP + WARM_UP, lasts, kind });
    (scenario.faults, scenario.bound) = (faults, Some(bound));
}

/// Nodes that lose their switch together: fewer than are left with the gateway.
fn minority(rng: &mut SmallRng, nodes: usize) -> Vec<usize> {
    let size = rng.random_range(1..=((nodes - 1) / 2).max(1));
    let mut group = BTreeSet::new();
    while group.len() < size {
        group.insert(rng.random_range(0..nodes));
    }
    group.into_iter().collect()
}

/// What a mixture has beside its other faults.
pub(super) fn more(rng: &mut SmallRng, scenario: &mut Scenario) {
    let nodes = scenario.nodes;
    let when = |rng: &mut SmallRng| (WARM_UP + millis(rng, 0, 30_000), millis(rng, 300, 25_000));
    for _ in 0..rng.random_range(0..=2) {
        let (at, lasts) = when(rng);
        let lasts = lasts.min(LATEST.saturating_sub(at));
        match rng.random_range(0..7) {
            0 | 1 => {
                let late = Kind::ApiLate(rng.random_range(20..=1000));
                scenario.faults.push(Fault { at, lasts, kind: late });
            }
            // The API's own network in parts.
            2 | 3 => {
                let group = (0..nodes).filter(|_| rng.random_bool(0.5)).collect::<Vec<_>>();
                scenario.faults.extend(group.into_iter().map(|node| Fault { at, lasts, kind: Kind::ApiAway(node) }));
            }
            4 => {
                let kind = Kind::SlowKernel(rng.random_range(0..nodes), rng.random_range(5..=400));
                scenario.faults.push(Fault { at, lasts, kind });
            }
            // Restarts on the spot, of all processes within a few seconds.
            5 => scenario.faults.extend((0..nodes).map(|node| {
                let at = at + millis(rng, 0, 3_000);
                Fault { at, lasts: millis(rng, 200, 1_500), kind: Kind::Terminate(node) }
            })),
            // A Service is made anew while a stranger has its address.
            _ => {
                let service = rng.random_range(0..scenario.services.len());
                if scenario.services[service].address == Address::V4 {
                    let kind = if rng.random() { Kind::Duplicate(service) } else { Kind::Thief(service) };
                    scenario.faults.push(Fault { at, lasts: lasts + Duration::from_secs(6), kind });
                    let kind = Kind::Deleted(service);
                    scenario.faults.push(Fault {
                        at: at + millis(rng, 300, 1_000),
                        lasts: Duration::from_secs(3),
                        kind,
                    });
                }
            }
        }
    }
}

/// Whether this seed has one fault alone.
pub(super) fn is_alone(rng: &mut SmallRng, mode: ElectionMode) -> bool {
    mode == ElectionMode::Node && rng.random_bool(0.4)
}

pub(super) fn millis(rng: &mut SmallRng, low: u64, high: u64) -> Duration {
    Duration::from_millis(rng.random_range(low..=high))
}
