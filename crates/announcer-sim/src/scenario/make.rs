//! From a seed to a run: mostly any mixture of faults, and sometimes a sequence in which one protection alone stands
//! between the users and an outage.

use std::collections::BTreeSet;
use std::time::Duration;

use announcer_core::ElectionMode;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::lies::{self, LIES};
use super::nics::{self, TWO_NICS};
use super::wide::{self, LATEST, WIDE, millis};
use super::{Address, CONFLICT, DhcpServer, Fault, Kind, REST, Scenario, ServerFault, WARM_UP, Wish};

/// Time after a conflict until the address is set again.
const MARGIN: Duration = Duration::from_secs(5);
/// The longest pause of a DHCP client. A client that was refused, or got no answer for half of this time, asks again
/// within it.
const BACK_OFF: Duration = Duration::from_secs(66);
/// An address that moved because its node was not well goes back when the node has been well for a minute. If many
/// nodes were not well, it takes another minute.
const RETURN: Duration = Duration::from_secs(135);
/// Addresses go back one by one, at this pause: many of them need longer than [`RETURN`].
const RETURN_EACH: Duration = Duration::from_secs(2);
/// An address goes back when its home has been well for a minute, and in touch with the others.
const FAIL_BACK: Duration = Duration::from_secs(80);

impl Scenario {
    /// The run of this seed.
    pub fn of(seed: u64, mode: ElectionMode) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x5eed_0000_0000);
        // Alone there is nobody to quarrel with.
        let wide = seed >= WIDE;
        let nodes = if wide {
            wide::nodes(&mut rng)
        } else if rng.random_bool(0.05) {
            1
        } else {
            rng.random_range(2..=5)
        };
        let count = wide.then(|| wide::services(&mut rng)).flatten();
        let services = services(&mut rng, nodes, mode, count);
        let lease: [u64; 3] = if rng.random_bool(0.5) { [15, 10, 2] } else { [5, 3, 1] };
        let mut scenario = Self {
            seed,
            mode,
            lease,
            nodes,
            nics: 1,
            hosts: Vec::new(),
            services,
            loss: if rng.random_bool(0.3) { rng.random_range(0.0..0.2) } else { 0.0 },
            refusals: if rng.random_bool(0.3) { rng.random_range(0.0..0.3) } else { 0.0 },
            busy_us: if rng.random_bool(0.3) { 40_000 } else { 300 },
            // Drawn apart: a seed stays the run that it was.
            fail_back: mode == ElectionMode::Node && SmallRng::seed_from_u64(seed ^ 0xfa11_0000_0000).random_bool(0.1),
            bound: None,
            blip: false,
            dhcp: DhcpServer { lease_seconds: 120, authoritative: true },
            faults: Vec::new(),
            calm: Duration::ZERO,
            deletion: Duration::ZERO,
            end: Duration::ZERO,
        };
        let leases = scenario.leasing().next().is_some();
        if leases {
            let lease_seconds = [20, 60, 120, 600][rng.random_range(0..4)];
            scenario.dhcp = DhcpServer { lease_seconds, authoritative: rng.random() };
        }
        match rng.random_range(0..10) {
            0 => former_life(&mut rng, &mut scenario),
            1 => scenario.faults = race(&mut rng, nodes),
            2 | 3 if leases => silent_server(&mut rng, &mut scenario),
            _ => scenario.faults = mixture(&mut rng, &scenario),
        }
        if leases {
            scenario.faults.extend(server_faults(&mut rng));
        }
        let alone = wide && wide::is_alone(&mut rng, mode);
        if wide {
            wide::more(&mut rng, &mut scenario);
        }
        // Drawn apart: what a seed did before it still does.
        if mode == ElectionMode::Node {
            hostilities(&mut SmallRng::seed_from_u64(seed ^ 0x057a_6e00_0000), &mut scenario);
        }
        if alone {
            wide::alone(&mut rng, &mut scenario);
        }
        if seed >= TWO_NICS && mode == ElectionMode::Node {
            let mut rng = SmallRng::seed_from_u64(seed ^ 0xca4d_0000_0000);
            nics::split_up(&mut rng, &mut scenario);
            nics::blip(&mut rng, &mut scenario);
        }
        if seed >= LIES && mode == ElectionMode::Node {
            lies::more(&mut SmallRng::seed_from_u64(seed ^ 0x11e5_0000_0000), &mut scenario);
        }
        scenario.faults.sort_by_key(|fault| fault.at);
        scenario.calm = scenario.faults.iter().map(Fault::is_over_at).max().unwrap_or_default().max(WARM_UP);
        // Whoever has lost something in the last moment waits for a Lease to expire, and asks again after that long.
        let leases = scenario.leasing().next().is_some();
        let back_off = if leases { BACK_OFF } else { Duration::ZERO };
        let back_off = if scenario.fail_back { back_off + FAIL_BACK } else { back_off };
        let ill = |fault: &Fault| matches!(fault.kind, Kind::ProxyIll(_) | Kind::NotReady(_) | Kind::AllNotReady);
        let moved = mode == ElectionMode::Node && scenario.faults.iter().any(ill);
        let all_return = Duration::from_mins(2) + RETURN_EACH * u32::try_from(scenario.services.len()).expect("few");
        let back_off = if moved { back_off.max(RETURN).max(all_return) } else { back_off };
        scenario.deletion =
            scenario.calm + Duration::from_secs(2 * lease[0]).max(CONFLICT + MARGIN).max(back_off) + REST;
        // Services are deleted while a process is down: the next one finds what nobody wants any more.
        if rng.random_bool(0.5) {
            let lasts = millis(&mut rng, 1500, 4000);
            let at = scenario.deletion.saturating_sub(Duration::from_secs(1));
            scenario.faults.push(Fault { at, lasts, kind: Kind::Kill(rng.random_range(0..nodes)) });
        }
        scenario.end = scenario.deletion + scenario.fence() + Duration::from_secs(2);
        scenario
    }
}

fn services(rng: &mut SmallRng, nodes: usize, mode: ElectionMode, count: Option<usize>) -> Vec<Wish> {
    let mut services: Vec<Wish> = Vec::new();
    let count = count.unwrap_or_else(|| rng.random_range(1..=3));
    for n in 0..count {
        // Only whole groups: what policy Local means for an address of two Services is for table tests.
        let primaries: Vec<usize> = (0..n)
            .filter(|other| services[*other].local.is_none() && services[*other].address == Address::V4)
            .collect();
        let address = match rng.random_range(0..10) {
            0 | 1 => Address::V6,
            2 | 3 if !primaries.is_empty() => Address::SharedWith(primaries[rng.random_range(0..primaries.len())]),
            4..=6 if mode == ElectionMode::Node => Address::Dhcp,
            _ => Address::V4,
        };
        let alone = !matches!(address, Address::SharedWith(_));
        let local = (alone && rng.random_bool(0.2)).then(|| some_nodes(rng, nodes));
        services.push(Wish { address, local });
    }
    services
}

/// At least one.
fn some_nodes(rng: &mut SmallRng, nodes: usize) -> BTreeSet<usize> {
    let sure = rng.random_range(0..nodes);
    (0..nodes).filter(|n| *n == sure || rng.random_bool(0.4)).collect()
}

/// A process is killed; while it is away its Services go, or it does not come back before they would.
fn former_life(rng: &mut SmallRng, scenario: &mut Scenario) {
    let at = |rng: &mut SmallRng| WARM_UP + millis(rng, 0, 3000);
    let killed = at(rng);
    // All of them, so that whoever had the address is among them.
    for node in 0..scenario.nodes {
        scenario.faults.push(Fault { at: killed, lasts: millis(rng, 1000, 2500), kind: Kind::Kill(node) });
    }
    for service in 0..scenario.services.len() {
        let (at, lasts) = (killed + millis(rng, 100, 800), millis(rng, 8000, 12_000));
        scenario.faults.push(Fault { at, lasts, kind: Kind::Deleted(service) });
    }
    // And one who stays away for longer than its addresses may.
    let node = rng.random_range(0..scenario.nodes);
    let (at, lasts) = (killed + Duration::from_secs(14), millis(rng, 16_000, 20_000));
    scenario.faults.push(Fault { at, lasts, kind: Kind::Kill(node) });
}

/// The owner goes while both of its successors are slow to write: both want the same term.
fn race(rng: &mut SmallRng, nodes: usize) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut at = WARM_UP;
    for _ in 0..3 {
        let lasts = millis(rng, 8000, 9000);
        for node in 0..nodes {
            faults.push(Fault { at, lasts, kind: Kind::ApiSlow(node) });
        }
        let kind = match rng.random_range(0..3) {
            0 => Kind::Cut(rng.random_range(0..nodes)),
            1 => Kind::Freeze(rng.random_range(0..nodes)),
            _ => Kind::PowerLoss(rng.random_range(0..nodes)),
        };
        faults.push(Fault { at: at + millis(rng, 200, 2000), lasts: millis(rng, 4000, 6000), kind });
        at += Duration::from_secs(9);
    }
    faults
}

/// One node after another loses power while the DHCP server is silent: whoever comes next has to go on with the lease
/// that it finds on the Service.
fn silent_server(rng: &mut SmallRng, scenario: &mut Scenario) {
    scenario.dhcp.lease_seconds = 120;
    let mut at = WARM_UP + millis(rng, 0, 1000);
    for node in 0..scenario.nodes {
        scenario.faults.push(Fault {
            at: at + millis(rng, 200, 1000),
            lasts: millis(rng, 2000, 3000),
            kind: Kind::PowerLoss(node),
        });
        at += Duration::from_secs(5);
    }
    scenario.faults.push(Fault { at: WARM_UP, lasts: BACK_OFF / 2, kind: Kind::Server(ServerFault::Silent) });
}

fn server_faults(rng: &mut SmallRng) -> Vec<Fault> {
    let faults = rng.random_range(0..=2);
    let fault = |_| {
        let kind = match rng.random_range(0..6) {
            0 => ServerFault::Silent,
            1 => ServerFault::Slow,
            2 => ServerFault::Refuses,
            3 => ServerFault::Forgets,
            4 => ServerFault::GivesAway,
            _ => ServerFault::Short,
        };
        let lasts = millis(rng, 1000, 15_000);
        Fault { at: WARM_UP + millis(rng, 0, 30_000), lasts, kind: Kind::Server(kind) }
    };
    (0..faults).map(fault).collect()
}

fn mixture(rng: &mut SmallRng, scenario: &Scenario) -> Vec<Fault> {
    let mut faults: Vec<Fault> = Vec::new();
    for _ in 0..rng.random_range(0..=8) {
        let last = faults.last().cloned();
        let mut next = fault(rng, scenario);
        // Troubles come together: often one begins while another lasts or has just ended.
        if let Some(last) = last.filter(|_| rng.random_bool(0.6)) {
            let at = last.at + last.lasts.mul_f64(rng.random_range(0.0..1.5));
            next.at = at.min(LATEST.saturating_sub(next.lasts));
        }
        faults.push(next);
    }
    faults
}

/// Strangers of each kind, groups that are cut off together, hypervisors that take several nodes with them.
fn hostilities(rng: &mut SmallRng, scenario: &mut Scenario) {
    let nodes = scenario.nodes;
    if rng.random_bool(0.5) {
        scenario.hosts = (0..nodes).map(|node| node / 2).collect();
    }
    if rng.random_bool(0.6) {
        return;
    }
    for _ in 0..rng.random_range(1..=2) {
        let service = rng.random_range(0..scenario.services.len());
        let leased = scenario.services[service].address == Address::Dhcp;
        let kind = match rng.random_range(0..8) {
            0 if !leased => Kind::Duplicate(service),
            1 => Kind::ProxyArp,
            2 => Kind::Ipvs,
            3 if !leased => Kind::Claims(service),
            4 => Kind::AllNotReady,
            5 => {
                // A whole hypervisor.
                let host = rng.random_range(0..nodes) / 2;
                let (at, lasts) = (WARM_UP + millis(rng, 0, 30_000), millis(rng, 1000, 20_000));
                for node in (0..nodes).filter(|node| node / 2 == host) {
                    scenario.faults.push(Fault { at, lasts, kind: Kind::PowerLoss(node) });
                }
                continue;
            }
            // A switch with several nodes, without its uplink.
            _ => Kind::Split((0..nodes).filter(|_| rng.random_bool(0.6)).collect()),
        };
        let lasts = millis(rng, 500, 30_000);
        let at = WARM_UP + millis(rng, 0, 25_000);
        scenario.faults.push(Fault { at, lasts, kind });
    }
}

fn fault(rng: &mut SmallRng, scenario: &Scenario) -> Fault {
    let (nodes, services) = (scenario.nodes, scenario.services.len());
    let node = rng.random_range(0..nodes);
    let service = rng.random_range(0..services);
    let kind = match rng.random_range(0..26) {
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
        16 => Kind::Deleted(service),
        // What becomes of a leased one is for the tests of the client.
        17 if scenario.services[service].address != Address::Dhcp => Kind::Thief(service),
        18 => Kind::ApiSlow(node),
        19 => Kind::NotReady(node),
        20 => Kind::Cordoned(node),
        21 => Kind::ShutOut(node),
        22 => Kind::ProxyIll(node),
        // In the other modes they compete for the same Lease.
        23 if scenario.mode == ElectionMode::Node => Kind::KubeVip(rng.random()),
        _ if scenario.services[service].local.is_some() => Kind::Endpoints(service, some_nodes(rng, nodes)),
        _ => Kind::PowerLoss(node),
    };
    // From a blink to half a minute, short ones as often as long ones.
    let lasts = Duration::from_millis(50).mul_f64(2_f64.powf(rng.random_range(0.0..9.3)));
    let latest = LATEST.saturating_sub(lasts);
    let at = Duration::from_micros(rng.random_range(micros(WARM_UP)..micros(latest)));
    Fault { at, lasts, kind }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("a run is short")
}
