//! Seeds from [`TWO_NICS`] on: nodes with two NICs, each in a LAN of its own, of which one at a time fails; and faults
//! that are over before anybody may have drawn a conclusion.

use rand::RngExt;
use rand::rngs::SmallRng;

use super::wide::{ONE_NODE, millis};
use super::{Address, Cable, Fault, Kind, Scenario, WARM_UP};

/// The first seed of these. What older seeds do stays as it was.
pub const TWO_NICS: u64 = 30_000_000;

/// A node asks every 50 ms. After three questions without an answer it sends three more by broadcast, within 30 ms. The
/// owner is heard in time if its cable carries the last of them.
const BLIP_MS: std::ops::RangeInclusive<u64> = 60..=168;

/// Two NICs for some; what concerned the cable of a node, or the LAN, concerns one of two.
pub(super) fn split_up(rng: &mut SmallRng, scenario: &mut Scenario) {
    if rng.random_bool(0.4) {
        return;
    }
    scenario.nics = 2;
    for wish in &mut scenario.services {
        if wish.address == Address::V4 && rng.random_bool(0.5) {
            wish.address = Address::Second;
        }
    }
    let alone = scenario.bound.is_some();
    for fault in &mut scenario.faults {
        let lan = rng.random_range(0..2);
        if !rng.random_bool(0.6) {
            continue;
        }
        fault.kind = match fault.kind.clone() {
            Kind::Cut(n) => Kind::Nic(n, lan, Cable::Dead),
            Kind::Carrier(n) => Kind::Nic(n, lan, Cable::Out),
            Kind::Mute(n) => Kind::Nic(n, lan, Cable::Mute),
            Kind::Deaf(n) => Kind::Nic(n, lan, Cable::Deaf),
            Kind::Split(group) => Kind::SplitLan(lan, group),
            other => other,
        };
    }
    // More often than by chance: one NIC alone, with or without a word from the kernel.
    if alone && rng.random_bool(0.3) {
        let node = rng.random_range(0..scenario.nodes);
        let cable = [Cable::Dead, Cable::Out, Cable::Mute, Cable::Deaf][rng.random_range(0..4)];
        let kind = Kind::Nic(node, rng.random_range(0..2), cable);
        scenario.faults = vec![Fault { at: WARM_UP + WARM_UP, lasts: millis(rng, 5_000, 30_000), kind }];
        scenario.bound = Some(ONE_NODE);
    }
}

/// Instead of the one fault of a run: one that is over at once. Nothing may move for it.
pub(super) fn blip(rng: &mut SmallRng, scenario: &mut Scenario) {
    let Some(_) = scenario.bound.filter(|_| rng.random_bool(0.15)) else { return };
    let node = rng.random_range(0..scenario.nodes);
    let kind = match rng.random_range(0..5) {
        0 => Kind::Cut(node),
        1 => Kind::Mute(node),
        2 => Kind::Deaf(node),
        3 => Kind::Pause(node, true),
        _ => Kind::Split(vec![node]),
    };
    let lasts = millis(rng, *BLIP_MS.start(), *BLIP_MS.end());
    scenario.faults = vec![Fault { at: WARM_UP + WARM_UP, lasts, kind }];
    (scenario.bound, scenario.blip) = (Some(ONE_NODE), true);
}
