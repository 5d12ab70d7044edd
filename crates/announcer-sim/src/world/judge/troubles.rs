//! What is not as it should be at a moment. How long each may last, `checks.rs` says.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use announcer_core::ElectionMode;
use announcer_core::ownership::node::Card;

use super::{Vip, World};
use crate::api::{key, uid};
use crate::kernel::Lan;
use crate::process::Process;
use crate::promises::Trouble;

/// Who has handed an address over serves it for two seconds, from when he learns that the API has taken it.
const JUST: Duration = Duration::from_secs(4);
/// A node that was silent is asked again within this time.
const ASKED_AGAIN: Duration = Duration::from_secs(2);

impl World<'_> {
    pub(super) fn troubles(&self) -> Vec<Trouble> {
        let mut troubles = Vec::new();
        let all_well: Vec<bool> = (0..self.nodes.len()).map(|n| self.is_well(n)).collect();
        let kube_vip = self.kube_vip.is_some_and(|until| until > self.now);
        for (index, answering) in self.judge.answering.iter().enumerate() {
            let lan = self.judge.vip(index).lan();
            let well: Vec<bool> = (0..self.nodes.len()).map(|n| self.is_well_in(lan, n)).collect();
            let nodes: Vec<(usize, Duration)> = answering.iter().map(|(n, since)| (*n, *since)).collect();
            for (at, a) in nodes.iter().enumerate() {
                troubles.extend(nodes[at + 1..].iter().filter_map(|b| self.both(*a, *b, index)));
                if kube_vip && well[a.0] {
                    troubles.push(Trouble::BesideKubeVip(a.0));
                }
                if well[a.0] && self.is_misplaced(a.0, index, &well) {
                    troubles.push(Trouble::Misplaced(a.0, index));
                }
            }
            if !kube_vip {
                troubles.extend(self.missed(index, &well));
                troubles.extend(self.missed_by_clients(index));
            }
            troubles.extend(nodes.iter().filter_map(|(n, _)| self.beside_stranger(*n, index)));
        }
        for n in 0..self.nodes.len() {
            if all_well[n] && self.is_misjudged(n) {
                troubles.push(Trouble::Misjudged(n));
            }
            if all_well[n] && self.has_too_much(n) {
                troubles.push(Trouble::LeftBehind(n));
            }
            let unleased = self.scenario.leasing().filter(|service| self.is_unleased(n, *service));
            troubles.extend(unleased.map(|service| Trouble::Unleased(n, service)));
            let node = &self.nodes[n];
            if !node.runs() && node.paused == 0 && !node.left_in_order && node.kernel.ours().next().is_some() {
                troubles.push(Trouble::Unfenced(n));
            }
            for other in n + 1..self.nodes.len() {
                let leads = |n: usize| all_well[n] && self.nodes[n].process.as_ref().is_some_and(Process::leads);
                if leads(n) && leads(other) {
                    troubles.push(Trouble::TwoLeaders(n, other));
                }
            }
        }
        troubles.extend(self.misheard(&all_well));
        let refused = self.dhcp.refusals.iter().filter(|refusal| self.is_refused(refusal));
        troubles.extend(refused.map(|refusal| Trouble::Refused(refusal.node, refusal.service)));
        troubles
    }

    /// Everything that can be wrong between a node and the others is right.
    pub(super) fn is_well(&self, n: usize) -> bool {
        self.lans().all(|lan| self.is_well_in(lan, n))
    }

    /// Since when that is so.
    pub(super) fn is_well_since(&self, n: usize) -> Option<Duration> {
        let since = |lan| self.judge.well_since.get(&(lan, n)).copied();
        self.lans().map(since).try_fold(Duration::ZERO, |last, since| Some(last.max(since?)))
    }

    /// The same, as far as the NIC towards one LAN counts.
    pub(super) fn is_well_in(&self, lan: Lan, n: usize) -> bool {
        let node = &self.nodes[n];
        node.runs()
            && !node.is_stopping()
            && self.reaches_api(n)
            && node.api_slow == 0
            && node.stale == 0
            && node.read_only == 0
            && node.mute[lan] == 0
            && node.deaf[lan] == 0
            && if self.scenario.mode == ElectionMode::Node {
                self.splits_of(lan).all(|(_, group)| !group.contains(&n))
            } else {
                self.splits.is_empty()
            }
    }

    /// Whether the node may serve this address, by what is known outside of the node.
    fn may_serve(&self, n: usize, index: usize) -> bool {
        let node = &self.nodes[n];
        let services = &self.judge.addresses[index].1;
        let serves =
            |service: &usize| self.scenario.services[*service].local.is_none() || self.endpoints[*service].contains(&n);
        match self.scenario.mode {
            ElectionMode::Global => true,
            ElectionMode::Service => services.iter().all(serves),
            // Other defects only make other nodes preferable; the node may still serve.
            ElectionMode::Node => node.shut_out == 0 && services.iter().all(serves),
        }
    }

    /// Whether the node has been not ready for ten seconds and could know it, and only few nodes were so at the same
    /// time.
    fn counts_unready(&self, n: usize) -> bool {
        let unready = self.nodes.iter().filter(|node| node.unready_since.is_some()).count();
        let many = unready >= 2 && unready * 2 >= self.nodes.len();
        let seen = |since| self.is_well_since(n).is_some_and(|well| well <= since);
        let since = self.nodes[n].unready_since.filter(|since| seen(*since));
        let counts = since.is_some_and(|since| self.now >= since + Duration::from_secs(10));
        counts && !many && self.now >= self.storm_until && self.nodes[n].deceived_at.is_none()
    }

    /// The same, and no Lease of a kube-vip keeps it from taking the address now.
    fn may_begin(&self, n: usize, index: usize) -> bool {
        self.nodes[n].honours.as_ref().is_none_or(|(_, until)| *until <= self.clock(n)) && self.may_serve(n, index)
    }

    /// The defects of a node; a greater value is worse. `begins`: for an address that it does not have yet.
    fn defects(&self, n: usize, begins: bool) -> (bool, bool, bool) {
        let node = &self.nodes[n];
        (node.proxy_ill > 0, self.counts_unready(n), begins && node.cordoned > 0)
    }

    /// Whether the node's card differs from its state, as after an outage of the API. The others decide by the card.
    fn is_misjudged(&self, n: usize) -> bool {
        let node = &self.nodes[n];
        let yields = node.honours.as_ref().is_some_and(|(_, until)| *until > self.clock(n));
        let is_so = |card: &Card| {
            card.serving == (node.proxy_ill == 0) && card.yields == yields && !card.leaving && !card.links.is_empty()
        };
        self.scenario.mode == ElectionMode::Node && !self.api.card(&node.name).is_some_and(is_so)
    }

    /// Whether node `by` must not take `node` for silent, by the rule of the engine. It may if its own card says so, or
    /// the cards of two others, or if it does not hear `node` in a LAN where the same process has heard it before.
    fn is_known_to_answer(&self, node: usize, by: usize) -> bool {
        let name = &self.nodes[node].name;
        let accuses =
            |n: &usize| self.api.card(&self.nodes[*n].name).is_some_and(|card| card.silent.contains_key(name));
        let others = (0..self.nodes.len()).filter(|n| *n != by).filter(accuses).count();
        let met = |lan: &Lan| self.judge.met.get(&(*lan, by, node)) == Some(&self.nodes[by].life);
        let since = |lan| self.judge.contact.get(&(lan, node.min(by), node.max(by)));
        let heard = self.lans().filter(met).all(|lan| since(lan).is_some_and(|since| *since + ASKED_AGAIN <= self.now));
        heard && !accuses(&by) && others < 2
    }

    /// Whether the node should have handed the address over. In the other modes the address stays where the Lease is,
    /// or until the pods have left.
    fn is_misplaced(&self, n: usize, index: usize, well: &[bool]) -> bool {
        // An owner that is only ill gives nothing to a node that may have lost its power.
        let better = |other: usize| {
            let well_off = || self.defects(other, true) < self.defects(n, false) && self.is_known_to_answer(other, n);
            !self.may_serve(n, index) || well_off()
        };
        // A process that has not noticed a pause renews its Lease late. Until then the others take the Lease as
        // expired.
        let renewal = Duration::from_secs(self.scenario.lease[0].div_ceil(3));
        let known = |other: usize| self.nodes[other].deceived_at.is_none_or(|at| self.now > at + renewal);
        let takes =
            |other: usize| well[other] && known(other) && self.may_begin(other, index) && !self.is_misjudged(other);
        self.scenario.mode == ElectionMode::Node
            && (0..self.nodes.len()).any(|other| other != n && takes(other) && better(other))
            // A node that is not well may be the one that was to take the address.
            && well.iter().all(|well| *well)
    }

    /// Whether somebody should answer and nobody does.
    fn missed(&self, index: usize, well: &[bool]) -> Option<Trouble> {
        let (_, services) = &self.judge.addresses[index];
        let wanted = services.iter().any(|service| self.wanted.contains(service));
        let conflict = |service: &usize| self.conflicts.get(service).is_some_and(|until| *until > self.now);
        let contested = |service: &usize| {
            let one = self.robbed.contains(service) || self.duplicated.contains(service) || conflict(service);
            one || self.everybody_answers(index)
        };
        let robbed = services.iter().any(contested);
        // RFC 5227: an address that nobody has used before is not announced while a stranger uses it.
        let used = services.iter().all(|n| self.generation[*n] == 1) && self.judge.first_use[index].is_some();
        let someone = (0..self.nodes.len()).any(|n| well[n] && self.may_begin(n, index));
        // Without a valid lease the server decides how long it takes.
        let given = match self.judge.addresses[index].0 {
            Vip::Given(_) => true,
            Vip::Leased(service) => self.lease_stands(service),
        };
        if !wanted || (robbed && !used) || !someone || !given {
            return None;
        }
        let answering = &self.judge.answering[index];
        match self.scenario.mode {
            // One node that is well is enough, whatever is wrong with the others.
            ElectionMode::Node => {
                let lan = self.judge.vip(index).lan();
                let heard = |n: &usize| self.is_heard_outside(lan, *n) && self.nodes[*n].deaf[lan] == 0;
                let ill = (0..self.nodes.len()).filter(|n| !(well[*n] && self.may_begin(*n, index))).count();
                // Only the first LAN has a gateway. Without one a minority waits until the owner's card shows its loss.
                let outnumbered = lan > 0 && ill * 2 >= self.nodes.len();
                let orphaned = ill >= 3 || outnumbered || self.is_lost_unheard(index, well);
                let trouble = match (robbed, orphaned) {
                    (true, true) => Trouble::ContestedOrphan(index),
                    (true, false) => Trouble::Contested(index),
                    (false, true) => Trouble::Orphaned(index),
                    (false, false) => Trouble::Unanswered(index),
                };
                (!answering.keys().any(heard)).then_some(trouble)
            }
            // A node that holds the Lease and is not heard keeps the Lease.
            ElectionMode::Global | ElectionMode::Service => {
                let all = (0..self.nodes.len()).all(|n| well[n] || !self.nodes[n].powered);
                let trouble = if robbed { Trouble::Contested(index) } else { Trouble::Unanswered(index) };
                (all && answering.is_empty()).then_some(trouble)
            }
        }
    }

    /// Whether the owner has lost its power, its process stands still or has ended, or it is cut off, and no process
    /// that could take the address has ever heard it: racks that are apart, or a process that started after the loss.
    /// These cannot tell a lost owner from one that the LAN keeps apart from them alone, so its Lease has to expire, or
    /// its card to say that it hears no host.
    fn is_lost_unheard(&self, index: usize, well: &[bool]) -> bool {
        let (lan, services) = (self.judge.vip(index).lan(), self.judge.services(index));
        let Some(record) = services.iter().find_map(|service| self.api.owner(&key(*service))) else { return false };
        let owner = self.nodes.iter().position(|node| node.name == record.host);
        let owner = owner.filter(|owner| !self.nodes[*owner].runs() || !self.is_heard_outside(lan, *owner));
        let met = |n: usize, owner| self.judge.met.get(&(lan, n, owner)) == Some(&self.nodes[n].life);
        owner.is_some_and(|owner| !(0..self.nodes.len()).any(|n| well[n] && self.may_begin(n, index) && met(n, owner)))
    }

    /// Clients that get no answer though they could.
    fn missed_by_clients(&self, index: usize) -> Vec<Trouble> {
        let services = self.judge.services(index);
        if !services.iter().any(|service| self.wanted.contains(service)) {
            return Vec::new();
        }
        let (given, lan) = (matches!(self.judge.vip(index), Vip::Given(_)), self.judge.vip(index).lan());
        let stranger = services.iter().any(|service| self.is_contested(*service));
        let mut troubles = Vec::new();
        for (client, entry) in self.clients.all.iter().map(|client| &client.entries[index]).enumerate() {
            if entry.lost_since.is_none() || !entry.served_once {
                continue;
            }
            let answering = || self.judge.answering[index].keys();
            // A leased address has one MAC on all nodes. Switches send frames to the port where they last saw it, so
            // this is judged there.
            if given && !stranger && answering().any(|n| self.client_reaches(lan, client, *n)) {
                troubles.push(Trouble::Misled(client, index));
            }
            let bound = self.scenario.bound.is_some() && self.now < self.scenario.deletion;
            if bound && self.clients.all[client].behind.is_none() {
                let spared = self.scenario.spared_lan() == Some(lan);
                troubles.push(if spared { Trouble::Spared(client, index) } else { Trouble::Outage(client, index) });
            }
        }
        troubles
    }

    /// A stranger uses the address of this Service, or clients may still feel that one did.
    fn is_contested(&self, service: usize) -> bool {
        let one = self.robbed.contains(&service) || self.duplicated.contains(&service);
        one || self.everybody_answers(self.judge.index_of(service)) || self.kube_vips > 0
    }

    /// Somebody answers for whatever is asked for by ARP.
    fn everybody_answers(&self, index: usize) -> bool {
        let by_arp = !matches!(self.judge.vip(index), Vip::Given(IpAddr::V6(_)));
        by_arp && (self.proxies > 0 || self.ipvs > 0 || self.fabrics > 0)
    }

    /// RFC 5227: it has begun with an address that a stranger uses.
    fn beside_stranger(&self, n: usize, index: usize) -> Option<Trouble> {
        let Vip::Given(IpAddr::V4(_)) = self.judge.vip(index) else { return None };
        let services = self.judge.services(index);
        // The stranger has answered since before the Service was created, and the node hears it.
        let used = |service: &usize| self.strange_since.get(service).is_some_and(|since| *since < self.made[*service]);
        let lan = self.judge.vip(index).lan();
        let in_lan = self.is_heard_outside(lan, n) && self.nodes[n].deaf[lan] == 0;
        let heard = in_lan && self.judge.well_since.contains_key(&(lan, n));
        // A stranger that the probes have not reached cannot have answered them.
        let probed = self.judge.first_use[index].is_some_and(|first| first.in_reach);
        let alone = services.len() == 1;
        (alone && heard && probed && services.iter().any(used)).then_some(Trouble::BesideStranger(n, index))
    }

    /// Which trouble it is that these two nodes both answer, and since when each does.
    fn both(&self, a: (usize, Duration), b: (usize, Duration), index: usize) -> Option<Trouble> {
        let contact = *self.judge.contact.get(&(self.judge.vip(index).lan(), a.0, b.0))?;
        let pair = [a.0, b.0];
        // What a dead process has left is another trouble.
        if !pair.iter().all(|n| self.nodes[*n].runs()) {
            return None;
        }
        let refused = self.stormy() && self.scenario.refusals > 0.0;
        if self.scenario.mode == ElectionMode::Node {
            if pair.iter().any(|n| self.is_behind(*n, index)) {
                // The node reads the Service when it hears the announcement, because its watch is late. There is only
                // one announcement.
                let reads = |n: &usize| self.reaches_api(*n) && self.nodes[*n].api_slow == 0;
                let heard = contact <= a.1.max(b.1) && !refused && pair.iter().all(reads);
                return heard.then_some(Trouble::Unproven(a.0, b.0, index));
            }
            // Both had the address before they could hear each other.
            if contact > a.1.max(b.1) && pair.iter().any(|n| self.has_just_handed_over(*n, index)) {
                return Some(Trouble::Lingering(a.0, b.0, index));
            }
            return Some(match self.judge.addresses[index].0 {
                Vip::Given(_) => Trouble::Both(a.0, b.0, index),
                Vip::Leased(_) => Trouble::BothLeased(a.0, b.0, index),
            });
        }
        // Without claims the new owner announces itself only once. A node that does not hear it learns from the API. A
        // node that has neither keeps the address; only `node` mode solves that.
        let later = a.1.max(b.1);
        let ran = pair.iter().all(|n| self.judge.runs_since.get(n).is_some_and(|since| *since < later));
        // A process with a clock that was paused takes an expired Lease for valid, and defends the address until it
        // reads the API.
        let lease = Duration::from_secs(2 * self.scenario.lease[0]);
        let deceived = |n: &usize| self.nodes[*n].deceived_at.is_some_and(|at| self.now < at + lease);
        if contact <= later && ran && !pair.iter().any(deceived) {
            return Some(Trouble::Both(a.0, b.0, index));
        }
        let told = |n: &usize| self.reaches_api(*n) && self.nodes[*n].stale == 0 && self.nodes[*n].api_slow == 0;
        (!refused && pair.iter().all(told)).then_some(Trouble::Torn(a.0, b.0, index))
    }

    /// Whether the node has handed the address over a moment ago.
    fn has_just_handed_over(&self, n: usize, index: usize) -> bool {
        let at = |service: &usize| self.handed.get(&(n, key(*service)));
        self.judge.addresses[index].1.iter().filter_map(at).any(|at| self.now < *at + JUST)
    }

    fn is_behind(&self, n: usize, index: usize) -> bool {
        let Some(process) = &self.nodes[n].process else { return false };
        // A process that has started during an outage of the API keeps what it finds, and knows no Service.
        let knows = |service: usize| match process.seen(&key(service)) {
            Some(seen) => seen.0 == uid(service, self.generation[service]),
            None => process.has_listed(),
        };
        !self.judge.services(index).iter().all(|service| knows(*service))
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
}

#[cfg(test)]
mod tests;
