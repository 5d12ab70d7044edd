//! What is not ours: users who make and delete Services, pods that move, hosts that use our addresses, a kube-vip.

use std::time::Duration;

use announcer_core::claim::{Key, tag};
use announcer_core::frames;
use announcer_core::ownership::node::{ForeignLock, Term};
use announcer_core::view::Uid;

use super::lan::thief;
use super::node::name;
use super::{Event, World};
use crate::api::{Change, key, service, uid};
use crate::kernel::lan_of;
use crate::scenario::KUBE_VIP_LEASE;

/// How often a kube-vip renews.
const KUBE_VIP_RENEWS: Duration = Duration::from_secs(2);

impl World<'_> {
    pub(super) fn create(&mut self, n: usize) {
        if self.now >= self.scenario.deletion || !self.wanted.insert(n) {
            return;
        }
        self.generation[n] += 1;
        // What a node still has is no new address.
        let is_new = !self.judge.is_answered(self.judge.index_of(n));
        self.made[n] = if is_new { self.now } else { Duration::ZERO };
        let local = self.scenario.services[n].local.is_some();
        let object = service(n, self.generation[n], self.scenario.address(n), local);
        let change = self.api.put(key(n), object);
        self.judge.changed = true;
        self.publish(&change);
    }

    pub(super) fn delete(&mut self, n: usize) {
        self.wanted.remove(&n);
        self.judge.changed = true;
        let index = self.judge.index_of(n);
        if !self.judge.services(index).iter().any(|service| self.wanted.contains(service)) {
            self.clients.begin_anew(index);
        }
        if let Some(change) = self.api.delete(&key(n)) {
            self.publish(&change);
        }
    }

    pub(super) fn tell_endpoints(&mut self, service: usize) {
        if self.scenario.services[service].local.is_some() {
            let nodes = self.endpoints[service].iter().map(|n| name(*n)).collect();
            let change = self.api.note(Change::Endpoints(key(service), nodes));
            self.publish(&change);
        }
    }

    pub(super) fn rob(&mut self, service: usize, fault: usize) {
        if !self.scenario.faults[fault].is_on(self.now) {
            return;
        }
        self.thief_announces(service);
        let after = self.between(500_000, 3_000_000);
        self.schedule(after, Event::Rob { service, fault });
    }

    /// A host that is none of ours says that it has the address of this Service.
    pub(super) fn thief_announces(&mut self, service: usize) {
        let address = self.scenario.address(service);
        for frame in frames::announcement(thief(), address) {
            self.transmit(lan_of(address), None, frame);
        }
    }

    /// Sends the owner a claim with a good tag, from the MAC of another node.
    pub(super) fn lie(&mut self, service: usize, ahead: u64) {
        let address = self.scenario.address(service);
        let Some(record) = self.api.owner(&key(service)) else { return };
        let Some(owner) = self.nodes.iter().find(|node| node.name == record.host) else { return };
        let Some(other) = self.nodes.iter().find(|node| node.name != record.host) else { return };
        let (to, mac) = (owner.kernel.mac(), other.kernel.mac());
        let tag_key = Key::from(&Uid(uid(service, self.generation[service])));
        let payload = tag::seal(&tag_key, address, mac, Term(record.term.0 + ahead));
        self.transmit(lan_of(address), None, frames::claim(mac, address, to, &payload));
    }

    pub(super) fn renew_kube_vip(&mut self, fault: usize) {
        if !self.scenario.faults[fault].is_on(self.now) {
            return;
        }
        self.kube_vip = Some(self.now + KUBE_VIP_LEASE);
        self.write_lock("kube-vip-host");
        for service in self.wanted.clone() {
            // It goes on with the lease, which is for the tests of a migration.
            if self.scenario.address(service).is_unspecified() {
                continue;
            }
            self.thief_announces(service);
        }
        self.schedule(KUBE_VIP_RENEWS, Event::KubeVip { fault });
    }

    pub(super) fn end_kube_vip(&mut self, hands_back: bool) {
        if self.kube_vips == 0 && hands_back {
            self.write_lock("");
            self.kube_vip = self.kube_vip.map(|_| self.now);
        }
        // Whatever is judged by its end is judged anew then.
        if let Some(until) = self.kube_vip {
            self.schedule(until.saturating_sub(self.now), Event::Look);
        }
    }

    /// A node counts from when its process has read the Lease: at its start, after an outage, or as soon as it may run.
    pub(super) fn honour(&mut self, n: usize, lock: Option<&ForeignLock>) {
        let clock = self.clock(n);
        let node = &mut self.nodes[n];
        match lock.filter(|lock| !lock.holder.is_empty()) {
            Some(lock) if node.honours.as_ref().is_some_and(|(renewal, _)| *renewal == lock.renewal) => return,
            Some(lock) => {
                node.honours = Some((lock.renewal.clone(), clock + lock.duration));
                self.schedule(lock.duration, Event::Look);
            }
            None => node.honours = None,
        }
        self.judge.changed = true;
    }

    fn write_lock(&mut self, holder: &str) {
        let renewal = format!("{:?}", self.now);
        let lock = ForeignLock { holder: holder.to_owned(), renewal, duration: KUBE_VIP_LEASE, leftover: false };
        let change = self.api.note(Change::Lock(lock));
        self.publish(&change);
        self.judge.changed = true;
    }
}
