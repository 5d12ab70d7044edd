//! Seeds from [`LIES`] on: a LAN whose ports are kept apart, a fabric that answers for the dead, an API that lets a
//! node read and not write, many Nodes that are not ready, and strangers from the first second on.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;

use super::wide::{LATEST, NOTHING, millis};
use super::{Address, Fault, Kind, Scenario, WARM_UP};

/// The first seed of these. What older seeds do stays as it was.
pub const LIES: u64 = 40_000_000;

/// How many of them [`one`] knows.
const LIES_OF_THE_LAN: u32 = 4;

/// One more lie beside what the run has; or instead of the one fault of a run.
pub(super) fn more(rng: &mut SmallRng, scenario: &mut Scenario) {
    if scenario.blip {
        return;
    }
    if scenario.bound.is_some() {
        if rng.random_bool(0.25) {
            alone(rng, scenario);
        }
        return;
    }
    for _ in 0..rng.random_range(0..=2) {
        let at = WARM_UP + millis(rng, 0, 30_000);
        let lasts = millis(rng, 300, 25_000).min(LATEST.saturating_sub(at));
        match rng.random_range(0..7) {
            lie @ 0..LIES_OF_THE_LAN => one(lie, rng, scenario, at, lasts),
            4 => many_not_ready(rng, scenario, at, lasts),
            _ => stranger(rng, scenario),
        }
    }
}

/// No client may feel it.
fn alone(rng: &mut SmallRng, scenario: &mut Scenario) {
    let (at, lasts) = (WARM_UP + WARM_UP, millis(rng, 5_000, 30_000));
    scenario.faults.clear();
    one(rng.random_range(0..LIES_OF_THE_LAN), rng, scenario, at, lasts);
    scenario.bound = Some(NOTHING);
}

/// A lie of the LAN, or of the API, that no client may feel where it is alone.
fn one(lie: u32, rng: &mut SmallRng, scenario: &mut Scenario, at: Duration, lasts: Duration) {
    let kind = match lie {
        0 => return isolated_ports(rng, scenario, at, lasts),
        1 => return pair(rng, scenario, at, lasts),
        2 => Kind::ReadOnly(rng.random_range(0..scenario.nodes)),
        _ => Kind::Fabric,
    };
    scenario.faults.push(Fault { at, lasts, kind });
}

/// Each node hears the gateway and no other node: a private VLAN, or ports of a switch that are isolated.
fn isolated_ports(rng: &mut SmallRng, scenario: &mut Scenario, at: Duration, lasts: Duration) {
    // Sometimes it was so before the first process has started.
    let (at, lasts) =
        if scenario.bound.is_none() && rng.random_bool(0.3) { (Duration::ZERO, LATEST) } else { (at, lasts) };
    for a in 0..scenario.nodes {
        scenario.faults.extend((a + 1..scenario.nodes).map(|b| Fault { at, lasts, kind: Kind::Apart(a, b) }));
    }
}

/// Two nodes do not hear each other, and hear all others.
fn pair(rng: &mut SmallRng, scenario: &mut Scenario, at: Duration, lasts: Duration) {
    let a = rng.random_range(0..scenario.nodes);
    let b = rng.random_range(0..scenario.nodes);
    if a != b {
        scenario.faults.push(Fault { at, lasts, kind: Kind::Apart(a.min(b), a.max(b)) });
    }
}

/// At least half of the Nodes, within a second, and back one after another. All are back by [`LATEST`].
fn many_not_ready(rng: &mut SmallRng, scenario: &mut Scenario, at: Duration, lasts: Duration) {
    let (fall, rise) = (1_000, 5_000);
    let lasts = lasts.min(LATEST.saturating_sub(at + Duration::from_millis(fall + rise)));
    let spared = rng.random_range(0..scenario.nodes);
    let half = scenario.nodes.div_ceil(2);
    for n in (0..scenario.nodes).filter(|n| *n != spared).take(half) {
        let at = at + millis(rng, 0, fall);
        scenario.faults.push(Fault { at, lasts: lasts + millis(rng, 0, rise), kind: Kind::NotReady(n) });
    }
}

/// At any time: also before a node has started.
fn stranger(rng: &mut SmallRng, scenario: &mut Scenario) {
    let service = rng.random_range(0..scenario.services.len());
    let given = scenario.services[service].address != Address::Dhcp;
    let kind = match rng.random_range(0..5) {
        0 if given => Kind::Duplicate(service),
        1 if given => Kind::Thief(service),
        2 if given => Kind::Claims(service),
        3 => Kind::ProxyArp,
        _ => Kind::Ipvs,
    };
    let at = millis(rng, 0, 45_000);
    scenario.faults.push(Fault { at, lasts: millis(rng, 300, 20_000).min(LATEST.saturating_sub(at)), kind });
}

#[cfg(test)]
mod tests {
    use announcer_core::ElectionMode;

    use super::*;

    #[test]
    fn nodes_that_are_not_ready_are_ready_again_when_faults_are_over() {
        let ends = |seed: u64| {
            let faults = Scenario::of(seed, ElectionMode::Node).faults;
            faults.iter().filter(|fault| matches!(fault.kind, Kind::NotReady(_))).map(Fault::end).max()
        };
        let last = (LIES..LIES + 2000).filter_map(ends).max();
        assert!(last.is_some_and(|end| end <= LATEST), "{last:?}");
    }
}
