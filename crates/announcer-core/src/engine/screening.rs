//! What Services ask for and do not get: taken out of what they want before anybody plans with it.

use std::net::IpAddr;
use std::time::Instant;

use super::{Engine, Owner, Owners, Ownership};
use crate::annotations::Wanted;
use crate::reason::Reason;
use crate::screen::{Refusal, Teller, refusals};
use crate::view::ServiceKey;

/// A Service that does not get all that it asks for.
#[derive(Debug)]
pub(super) struct Refused {
    /// What it asks for.
    pub asked: Vec<Wanted>,
    refusals: Vec<Refusal>,
}

impl Engine {
    /// After each change of a Service or of the machines.
    pub(super) fn screen(&mut self) {
        for (key, refused) in std::mem::take(&mut self.refused) {
            if let Some(view) = self.services.get_mut(&key) {
                view.wanted = refused.asked;
            }
        }
        for (key, refusals) in refusals(&self.services, &self.machines, &self.cluster_ips) {
            let Some(view) = self.services.get_mut(&key) else { continue };
            let asked = view.wanted.clone();
            view.wanted.retain(|wanted| !refusals.iter().any(|refusal| *wanted == Wanted::Static(refusal.address)));
            self.refused.insert(key, Refused { asked, refusals });
        }
    }

    /// `node` mode: what is known of the addresses of machines.
    pub(super) fn note_machines(&mut self) {
        let Owners::Node(cluster) = &self.ownership else { return };
        let machines = cluster.machines();
        if machines != self.machines {
            self.machines = machines;
            self.regroup = true;
        }
    }

    pub(super) fn note_cluster_ips(&mut self, key: &ServiceKey, addresses: Vec<IpAddr>) {
        let changed = self.cluster_ips.note(key, addresses);
        let asked = self.services.values().flat_map(|view| &view.wanted);
        let refused = self.refused.values().flat_map(|refused| &refused.asked);
        let concerns = |wanted: &Wanted| matches!(wanted, Wanted::Static(address) if changed.contains(address));
        if !changed.is_empty() && asked.chain(refused).any(concerns) {
            self.dirty = true;
            self.regroup = true;
        }
    }

    pub(super) fn tell_refused(&mut self, now: Instant) {
        let ours = |teller: &Teller| match teller {
            Teller::Node(node) => *node == self.config.node_name,
            Teller::OwnerOf(key) => self.services.get(key).is_some_and(|view| self.ownership.of(view) == Owner::Mine),
        };
        let all = self.refused.iter().flat_map(|(key, refused)| refused.refusals.iter().map(move |it| (key, it)));
        let told: Vec<_> =
            all.filter(|(_, it)| ours(&it.teller)).map(|(key, it)| (key.clone(), it.text.clone())).collect();
        for (key, text) in told {
            self.tell(now, &key, true, Reason::CannotAnnounce, &text);
        }
    }
}
