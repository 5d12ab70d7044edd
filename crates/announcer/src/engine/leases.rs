//! kube-vip's modes: what the elections say, and in which ones to take part.

use std::time::Instant;

use super::{Action, Engine, LeaseState, Owners};
use crate::ownership::service::LeaseKey;

impl Engine {
    /// `global` mode: the election says something new.
    pub(super) fn lease_changed(&mut self, now: Instant, state: LeaseState) {
        let Owners::Global(lease) = &mut self.ownership else { return };
        if lease.state == state {
            return;
        }
        match &state {
            LeaseState::Held { confirmed: true } => {
                self.yielded.values_mut().for_each(|until| *until = until.map(|until| until.min(now)));
            }
            LeaseState::Held { confirmed: false } => {}
            // Whoever takes it from here on takes it over from another owner.
            LeaseState::Unknown | LeaseState::Other(_) => self.yielded.clear(),
        }
        lease.state = state;
        self.dirty = true;
    }

    /// `service` mode: one election says something new.
    pub(super) fn service_lease(&mut self, now: Instant, key: LeaseKey, state: LeaseState) {
        let Owners::Service(leases) = &mut self.ownership else { return };
        let confirmed = state == LeaseState::Held { confirmed: true };
        if leases.lease(key, state) {
            if confirmed {
                self.yielded.values_mut().for_each(|until| *until = until.map(|until| until.min(now)));
            }
            self.dirty = true;
        }
    }

    /// `service` mode: in which elections to take part.
    pub(super) fn campaign(&mut self) {
        let Owners::Service(leases) = &mut self.ownership else { return };
        let wanted = leases.campaign(&self.services, &self.endpoints, self.stopping.is_some());
        if *wanted != self.campaigning {
            self.campaigning.clone_from(wanted);
            self.out.push(Action::Campaign(wanted.clone()));
        }
    }
}
