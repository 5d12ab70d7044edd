//! What users were promised, looked at after every step in which something that matters has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use announcer_core::ownership::node::{Card, Swap};
use announcer_core::view::ServiceKey;
use announcer_core::{ElectionMode, Reason};

use super::World;
use super::node::Node;
use crate::api::{key, uid};
use crate::checks::{Checks, Trouble, Violation};
use crate::process::Process;
use crate::scenario::{Fault, Kind, REST, Scenario, ServerFault};

/// No fence is as long: an address with more was left in order, for the next process (decisions.md 26).
const LEFT_IN_ORDER: Duration = Duration::from_secs(20);

/// Who has handed an address over serves it for two seconds, from when he learns that the API has taken it.
const JUST: Duration = Duration::from_secs(4);

/// What one node at a time answers for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Vip {
    /// A given address.
    Given(IpAddr),
    /// Whatever DHCP gives this Service.
    Leased(usize),
}

impl fmt::Display for Vip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given(address) => write!(f, "{address}"),
            Self::Leased(service) => write!(f, "the leased address of Service {service}"),
        }
    }
}

/// What is known so far.
pub(super) struct Judge {
    /// The promise that was broken first.
    pub violation: Option<Violation>,
    pub checks: Checks,
    /// How often each address came to another node.
    pub moves: Vec<u64>,
    /// Something that is judged is not as it was.
    pub changed: bool,
    /// When everything has come to rest: how many moves and writes there may have been in the end.
    pub at_rest: Option<(u64, u64)>,
    /// The addresses, and the Services of each.
    addresses: Vec<(Vip, Vec<usize>)>,
    /// Which nodes answer for each address, and since when.
    answering: Vec<BTreeMap<usize, Duration>>,
    last_answerer: Vec<Option<usize>>,
    /// Since when each pair of nodes has heard each other.
    contact: BTreeMap<(usize, usize), Duration>,
    /// Since when each process has run without a pause, and since when all is right between each node and the others.
    runs_since: BTreeMap<usize, Duration>,
    well_since: BTreeMap<usize, Duration>,
    /// Services of which a host has claimed the address for a moment.
    pub alarmed: BTreeSet<usize>,
}

impl Judge {
    pub fn new(scenario: &Scenario) -> Self {
        let mut addresses: BTreeMap<Vip, Vec<usize>> = BTreeMap::new();
        for service in 0..scenario.services.len() {
            let address = scenario.address(service);
            let vip = if address.is_unspecified() { Vip::Leased(service) } else { Vip::Given(address) };
            addresses.entry(vip).or_default().push(service);
        }
        Self {
            violation: None,
            checks: Checks::new(scenario),
            moves: vec![0; addresses.len()],
            changed: true,
            at_rest: None,
            answering: vec![BTreeMap::new(); addresses.len()],
            last_answerer: vec![None; addresses.len()],
            addresses: addresses.into_iter().collect(),
            contact: BTreeMap::new(),
            runs_since: BTreeMap::new(),
            well_since: BTreeMap::new(),
            alarmed: BTreeSet::new(),
        }
    }
}

impl World<'_> {
    pub(super) fn broken(&mut self, promise: &'static str, seen: String) {
        let at = self.now;
        self.note(|| format!("BROKEN: {promise}: {seen}"));
        self.judge.violation.get_or_insert(Violation { at, promise, seen });
    }

    pub(super) fn check(&mut self) {
        if std::mem::take(&mut self.judge.changed) || self.judge.checks.is_due(self.now) {
            self.look();
            let troubles = self.troubles();
            self.judge.checks.follow(self.now, troubles);
        }
        if self.judge.checks.is_due(self.now)
            && let Some(found) = self.judge.checks.broken(self.now)
        {
            self.broken(found.promise, found.seen);
        }
        self.check_rest();
    }

    /// In `node` mode nodes tell each other from strangers. A server that has lost its book, or takes leases back, gives an
    /// address twice.
    pub(super) fn judge_alarm(&mut self, n: usize, reason: Reason, text: &str) {
        let twice = self.scenario.has(ServerFault::Forgets) || self.scenario.has(ServerFault::Refuses);
        let stranger = |kind: &Kind| {
            use Kind::{Claims, Duplicate, Ipvs, KubeVip, ProxyArp, Thief};
            matches!(kind, Thief(_) | KubeVip(_) | Duplicate(_) | ProxyArp | Ipvs | Claims(_))
        };
        // By a clock that has stood still a lease goes on that has ended, and the address is another Service's by now.
        let lease = Duration::from_secs(self.scenario.dhcp.lease_seconds.into());
        let deceived = self.nodes.iter().any(|node| node.deceived_at.is_some_and(|at| self.now < at + lease));
        let quiet = !twice && !deceived && self.scenario.faults.iter().all(|fault| !stranger(&fault.kind));
        if reason == Reason::AddressConflict && quiet && self.scenario.mode == ElectionMode::Node {
            let seen = format!("{} says: {text}", self.nodes[n].name);
            self.broken("no conflict is told of where no stranger is", seen);
        }
    }

    /// A node has taken an address from another: no group that is cut off takes it from an owner whom clients hear.
    pub(super) fn judge_taking(&mut self, n: usize, key: &ServiceKey, swap: &Swap) {
        let Some(from) = &swap.expect else { return };
        let Some(owner) = self.nodes.iter().position(|node| node.name == from.host).filter(|owner| *owner != n) else {
            return;
        };
        let is_of =
            |(_, services): &(Vip, Vec<usize>)| services.iter().any(|service| crate::api::key(*service) == *key);
        let Some(index) = self.judge.addresses.iter().position(is_of) else { return };
        // Its Lease is known to be fresh, and its card says whom it hears.
        let known = Duration::from_secs(2 * self.scenario.lease[0]).max(Duration::from_secs(15));
        let settled = |since: Option<&Duration>| since.is_some_and(|since| *since + known < self.now);
        let heard = settled(self.judge.well_since.get(&owner)) && settled(self.judge.answering[index].get(&owner));
        if swap.owner_record.host == self.nodes[n].name
            && heard
            && !self.is_heard_outside(n)
            && self.nodes[owner].deceived_at.is_none()
        {
            let seen = format!("{} takes {} from {}", self.nodes[n].name, self.judge.addresses[index].0, from.host);
            self.broken("nobody who is cut off takes an address from an owner whom clients hear", seen);
        }
    }

    /// Who answers for what, and who hears whom.
    fn look(&mut self) {
        for index in 0..self.judge.addresses.len() {
            self.look_for(index);
        }
        for a in 0..self.nodes.len() {
            for b in a + 1..self.nodes.len() {
                if self.hear_each_other(a, b) {
                    self.judge.contact.entry((a, b)).or_insert(self.now);
                } else {
                    self.judge.contact.remove(&(a, b));
                }
            }
            if self.nodes[a].runs() {
                self.judge.runs_since.entry(a).or_insert(self.now);
            } else {
                self.judge.runs_since.remove(&a);
            }
            if self.is_well(a) {
                self.judge.well_since.entry(a).or_insert(self.now);
            } else {
                self.judge.well_since.remove(&a);
            }
            let time = self.kernel_time(a);
            let node = &mut self.nodes[a];
            // A leased one is left until its lease ends, which may be sooner.
            node.left_in_order &= node
                .kernel
                .ours()
                .any(|own| own.lessee.is_some() || own.until.is_some_and(|until| until > time + LEFT_IN_ORDER));
        }
    }

    fn look_for(&mut self, index: usize) {
        let vip = self.judge.addresses[index].0;
        let has = |node: &Node| match vip {
            Vip::Given(address) => node.kernel.has(address),
            Vip::Leased(service) => node.kernel.leased(&uid(service, self.generation[service])).next().is_some(),
        };
        let answers = |node: &Node| node.powered && node.paused == 0 && has(node);
        let before = std::mem::take(&mut self.judge.answering[index]);
        let mut now = BTreeMap::new();
        for (n, _) in self.nodes.iter().enumerate().filter(|(_, node)| answers(node)) {
            now.insert(n, before.get(&n).copied().unwrap_or(self.now));
        }
        if let Some(new) = now.keys().find(|n| !before.contains_key(n)).copied()
            && self.judge.last_answerer[index].replace(new).is_some_and(|last| last != new)
        {
            self.judge.moves[index] += 1;
        }
        if !now.keys().eq(before.keys()) {
            self.note(|| format!("ANSWERS for {vip}: {:?}", now.keys().map(|n| n + 1).collect::<Vec<_>>()));
        }
        self.judge.answering[index] = now;
    }

    fn troubles(&self) -> Vec<Trouble> {
        let mut troubles = Vec::new();
        let well: Vec<bool> = (0..self.nodes.len()).map(|n| self.is_well(n)).collect();
        let kube_vip = self.kube_vip.is_some_and(|(_, until)| until > self.now);
        for (index, answering) in self.judge.answering.iter().enumerate() {
            let nodes: Vec<(usize, Duration)> = answering.iter().map(|(n, since)| (*n, *since)).collect();
            for (at, a) in nodes.iter().enumerate() {
                troubles.extend(nodes[at + 1..].iter().filter_map(|b| self.split(*a, *b, index)));
                if kube_vip && well[a.0] {
                    troubles.push(Trouble::BesideKubeVip(a.0));
                }
                if well[a.0] && self.is_misplaced(a.0, index, &well) {
                    troubles.push(Trouble::Misplaced(a.0, index));
                }
            }
            if !kube_vip {
                troubles.extend(self.missed(index, &well));
            }
        }
        for n in 0..self.nodes.len() {
            if well[n] && self.is_misjudged(n) {
                troubles.push(Trouble::Misjudged(n));
            }
            if well[n] && self.has_too_much(n) {
                troubles.push(Trouble::LeftBehind(n));
            }
            let unleased = self.scenario.leasing().filter(|service| self.is_unleased(n, *service));
            troubles.extend(unleased.map(|service| Trouble::Unleased(n, service)));
            let node = &self.nodes[n];
            if !node.runs() && node.paused == 0 && !node.left_in_order && node.kernel.ours().next().is_some() {
                troubles.push(Trouble::Unfenced(n));
            }
            for other in n + 1..self.nodes.len() {
                let leads = |n: usize| well[n] && self.nodes[n].process.as_ref().is_some_and(Process::leads);
                if leads(n) && leads(other) {
                    troubles.push(Trouble::TwoLeaders(n, other));
                }
            }
        }
        let refused = self.dhcp.refusals.iter().filter(|refusal| self.is_refused(refusal));
        troubles.extend(refused.map(|refusal| Trouble::Refused(refusal.node, refusal.service)));
        troubles
    }

    /// Everything that can be wrong between a node and the others is right.
    fn is_well(&self, n: usize) -> bool {
        let node = &self.nodes[n];
        node.runs()
            && !node.is_stopping()
            && self.reaches_api(n)
            && node.api_slow == 0
            && node.stale == 0
            && node.mute == 0
            && node.deaf == 0
            && if self.scenario.mode == ElectionMode::Node {
                self.splits.values().all(|group| !group.contains(&n))
            } else {
                self.splits.is_empty()
            }
            && !(self.stormy() && self.scenario.has_weather())
    }

    /// It may serve this address, as far as it is known outside of the node.
    fn may_serve(&self, n: usize, index: usize) -> bool {
        let node = &self.nodes[n];
        let services = &self.judge.addresses[index].1;
        let serves =
            |service: &usize| self.scenario.services[*service].local.is_none() || self.endpoints[*service].contains(&n);
        match self.scenario.mode {
            ElectionMode::Global => true,
            ElectionMode::Service => services.iter().all(serves),
            // What else is wrong with a node makes others better, and this one not useless.
            ElectionMode::Node => node.shut_out == 0 && services.iter().all(serves),
        }
    }

    /// It was not ready for ten seconds, which it could see, and not many were so together.
    fn counts_unready(&self, n: usize) -> bool {
        let unready = self.nodes.iter().filter(|node| node.unready_since.is_some()).count();
        let many = unready >= 2 && unready * 2 >= self.nodes.len();
        let seen = |since| self.judge.well_since.get(&n).is_some_and(|well| *well <= since);
        let since = self.nodes[n].unready_since.filter(|since| seen(*since));
        let counts = since.is_some_and(|since| self.now >= since + Duration::from_secs(10));
        counts && !many && self.now >= self.storm_until && self.nodes[n].deceived_at.is_none()
    }

    /// The same, and it may begin to.
    fn may_begin(&self, n: usize, index: usize) -> bool {
        self.nodes[n].honours.as_ref().is_none_or(|(_, until)| *until <= self.clock(n)) && self.may_serve(n, index)
    }

    /// What is wrong with a node, the worse the greater. `begins`: for an address that it does not have yet.
    fn defects(&self, n: usize, begins: bool) -> (bool, bool, bool) {
        let node = &self.nodes[n];
        (node.proxy_ill > 0, self.counts_unready(n), begins && node.cordoned > 0)
    }

    /// Its card says something else than is so, as after an outage of the API: others decide by that.
    fn is_misjudged(&self, n: usize) -> bool {
        let node = &self.nodes[n];
        let yields = node.honours.as_ref().is_some_and(|(_, until)| *until > self.clock(n));
        let is_so = |card: &Card| {
            card.serving == (node.proxy_ill == 0) && card.yields == yields && !card.leaving && !card.links.is_empty()
        };
        self.scenario.mode == ElectionMode::Node && !self.api.card(&node.name).is_some_and(is_so)
    }

    /// It should have handed over. In the other modes it stays where the Lease is, or until the pods have left.
    fn is_misplaced(&self, n: usize, index: usize, well: &[bool]) -> bool {
        let better = |other: usize| !self.may_serve(n, index) || self.defects(other, true) < self.defects(n, false);
        // Who has stood still without seeing it renews its Lease by a clock that is behind; until then it has run out.
        let renewal = Duration::from_secs(self.scenario.lease[0].div_ceil(3));
        let known = |other: usize| self.nodes[other].deceived_at.is_none_or(|at| self.now > at + renewal);
        let takes =
            |other: usize| well[other] && known(other) && self.may_begin(other, index) && !self.is_misjudged(other);
        self.scenario.mode == ElectionMode::Node
            && (0..self.nodes.len()).any(|other| other != n && takes(other) && better(other))
            // Who is ill may be the one to whom it was handed.
            && well.iter().all(|well| *well)
    }

    /// Whether somebody should answer and nobody does.
    fn missed(&self, index: usize, well: &[bool]) -> Option<Trouble> {
        let (_, services) = &self.judge.addresses[index];
        let wanted = services.iter().any(|service| self.wanted.contains(service));
        let conflict = |service: &usize| self.conflicts.get(service).is_some_and(|until| *until > self.now);
        let contested = |service: &usize| {
            let one = self.robbed.contains(service) || self.duplicated.contains(service) || conflict(service);
            one || self.proxies > 0 || self.ipvs > 0
        };
        let robbed = services.iter().any(contested);
        // RFC 5227: what nobody has used before is not announced beside a stranger. In the other modes owners yield.
        let used = self.scenario.mode == ElectionMode::Node && services.iter().all(|n| self.generation[*n] == 1);
        let someone = (0..self.nodes.len()).any(|n| well[n] && self.may_begin(n, index));
        // Without a lease that stands it may take as long as the server does.
        let given = match self.judge.addresses[index].0 {
            Vip::Given(_) => true,
            Vip::Leased(service) => self.lease_stands(service),
        };
        if !wanted || (robbed && !used) || !someone || !given {
            return None;
        }
        let answering = &self.judge.answering[index];
        match self.scenario.mode {
            // Whatever is wrong with the others: one that is well is enough.
            ElectionMode::Node => {
                let heard = |n: &usize| self.is_heard_outside(*n) && self.nodes[*n].deaf == 0;
                let ill = (0..self.nodes.len()).filter(|n| !(well[*n] && self.may_begin(*n, index))).count();
                let trouble = match ill {
                    _ if robbed => Trouble::Contested(index),
                    0..3 => Trouble::Unanswered(index),
                    _ => Trouble::Orphaned(index),
                };
                (!answering.keys().any(heard)).then_some(trouble)
            }
            // A holder of the Lease that nobody hears keeps it.
            ElectionMode::Global | ElectionMode::Service => {
                let all = (0..self.nodes.len()).all(|n| well[n] || !self.nodes[n].powered);
                (all && answering.is_empty()).then_some(Trouble::Unanswered(index))
            }
        }
    }

    /// How bad it is that these two both answer, since then.
    fn split(&self, a: (usize, Duration), b: (usize, Duration), index: usize) -> Option<Trouble> {
        let contact = *self.judge.contact.get(&(a.0, b.0))?;
        let pair = [a.0, b.0];
        // What a dead process has left is judged for itself.
        if !pair.iter().all(|n| self.nodes[*n].runs()) {
            return None;
        }
        let refused = self.stormy() && self.scenario.refusals > 0.0;
        if self.scenario.mode == ElectionMode::Node {
            if pair.iter().any(|n| self.is_behind(*n, index)) {
                // What its watch does not show it reads, once it has heard the announcement; there is only that one.
                let reads = |n: &usize| self.reaches_api(*n) && self.nodes[*n].api_slow == 0;
                let heard = contact <= a.1.max(b.1) && !refused && pair.iter().all(reads);
                return heard.then_some(Trouble::Unproven(a.0, b.0, index));
            }
            // They met when both had it already.
            if contact > a.1.max(b.1) && pair.iter().any(|n| self.has_just_handed_over(*n, index)) {
                return Some(Trouble::Lingering(a.0, b.0, index));
            }
            return Some(match self.judge.addresses[index].0 {
                Vip::Given(_) => Trouble::Split(a.0, b.0, index),
                Vip::Leased(_) => Trouble::SplitLease(a.0, b.0, index),
            });
        }
        // A Lease is no claim: the new one announces itself once, and whoever does not hear it learns from the API. One
        // that hears neither keeps the address: `node` mode is for that.
        let later = a.1.max(b.1);
        let ran = pair.iter().all(|n| self.judge.runs_since.get(n).is_some_and(|since| *since < later));
        // By a clock that has stood still a Lease is valid that has expired: what it says is defended until the API is read.
        let lease = Duration::from_secs(2 * self.scenario.lease[0]);
        let deceived = |n: &usize| self.nodes[*n].deceived_at.is_some_and(|at| self.now < at + lease);
        if contact <= later && ran && !pair.iter().any(deceived) {
            return Some(Trouble::Split(a.0, b.0, index));
        }
        let told = |n: &usize| self.reaches_api(*n) && self.nodes[*n].stale == 0 && self.nodes[*n].api_slow == 0;
        (!refused && pair.iter().all(told)).then_some(Trouble::Torn(a.0, b.0, index))
    }

    /// Its process knows a Service of this address that is not there any more, and not the one that was made in its place.
    fn has_just_handed_over(&self, n: usize, index: usize) -> bool {
        let at = |service: &usize| self.handed.get(&(n, key(*service)));
        self.judge.addresses[index].1.iter().filter_map(at).any(|at| self.now < *at + JUST)
    }

    fn is_behind(&self, n: usize, index: usize) -> bool {
        let seen = |service: usize| self.nodes[n].process.as_ref().and_then(|process| process.seen(&key(service)));
        let services = &self.judge.addresses[index].1;
        services
            .iter()
            .any(|service| seen(*service).is_some_and(|seen| seen.0 != uid(*service, self.generation[*service])))
    }

    /// An address of a Service that is gone.
    fn has_too_much(&self, n: usize) -> bool {
        let wanted: BTreeSet<IpAddr> = self.wanted.iter().map(|service| self.scenario.address(*service)).collect();
        let lessees: BTreeSet<String> =
            self.wanted.iter().map(|service| uid(*service, self.generation[*service])).collect();
        self.nodes[n].kernel.ours().any(|own| match own.lessee {
            Some(lessee) => !lessees.contains(lessee),
            None => !wanted.contains(&own.address),
        })
    }

    fn check_rest(&mut self) {
        // Where the network falls in two, each half misses the owner, takes the address back, and waits for longer each time
        // before it does so again.
        let halves = |fault: &Fault| if matches!(fault.kind, Kind::Split(_)) { fault.lasts.as_secs() / 20 } else { 0 };
        let faults: u64 = self.scenario.faults.iter().map(|fault| 1 + halves(fault)).sum();
        let limit = 2 + 3 * faults + if self.scenario.has_weather() { 6 } else { 0 };
        // Each time it may go back where it belongs.
        let limit = if self.scenario.fail_back { 2 * limit } else { limit };
        if let Some(index) = self.judge.moves.iter().position(|moves| *moves > limit) {
            let (address, moves) = (self.judge.addresses[index].0, self.judge.moves[index]);
            self.broken("an address does not flap", format!("{address} moved {moves} times"));
        }
        // The last seconds before the Services are deleted: nothing moves and nothing is written.
        let deletion = self.scenario.deletion;
        if self.now < deletion.saturating_sub(REST) || self.now >= deletion {
            return;
        }
        let (moves, writes) = (self.judge.moves.iter().sum::<u64>(), self.api.service_writes);
        match self.judge.at_rest {
            None => {
                let (more_moves, more_writes) = self.bearable_at_rest();
                self.judge.at_rest = Some((moves + more_moves, writes + more_writes));
                for index in 0..self.judge.addresses.len() {
                    let (address, nodes) = (self.judge.addresses[index].0, self.judge.answering[index].len());
                    let lost = matches!(address, Vip::Leased(service) if self.lease_is_due_to_change(service));
                    if nodes != 1 && !lost {
                        let seen = format!("{nodes} answer for {address}");
                        self.broken("when all is well, one node answers for each address", seen);
                    }
                }
            }
            Some((most_moves, most_writes)) => {
                if moves > most_moves || writes > most_writes {
                    let seen = format!(
                        "{} moves and {} writes too many",
                        moves.saturating_sub(most_moves),
                        writes.saturating_sub(most_writes)
                    );
                    self.broken("when all is well, nothing is written and nothing moves", seen);
                }
            }
        }
    }

    /// Moves and writes that are nobody's fault. The end of a lease is written again when it has moved far enough. A server
    /// that has lost its book, or given an address away, says so when it is asked for that lease, or never: then the lease
    /// ends, long after everything else has come to rest. The kernel, which counts whole seconds, drops the address a moment
    /// before; a successor may find the owner silent for it, and one of them writes the next lease, annotations and status.
    fn bearable_at_rest(&self) -> (u64, u64) {
        let of = |service| if self.lease_is_due_to_change(service) { (1, 4) } else { (0, 1) };
        self.scenario.leasing().map(of).fold((0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1))
    }

    /// The Services are gone, and so is the time that any kernel keeps an address for a dead process.
    pub(super) fn check_end(&mut self) {
        if self.judge.violation.is_some() {
            return;
        }
        for n in 0..self.nodes.len() {
            let marked = self.nodes[n].kernel.marked();
            if !marked.is_empty() {
                let seen = format!("{} still has {marked:?} at the end", self.nodes[n].name);
                self.broken("nothing is left behind", seen);
            }
        }
    }
}
