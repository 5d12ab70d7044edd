//! kube-vip's modes: what the elections say, and in which ones to take part.

use std::time::Instant;

use super::{Action, Engine, LeaseState, Owners};
use crate::ownership::service::LeaseKey;
use crate::reason::Reason;
use crate::view::ServiceKey;

impl Engine {
    /// `global` mode: the election says something new.
    pub(super) fn lease_changed(&mut self, now: Instant, state: LeaseState) {
        let Owners::Global(lease) = &mut self.ownership else { return };
        if lease.state == state {
            return;
        }
        match &state {
            LeaseState::Held { confirmed: true } => {
                self.yielded.values_mut().for_each(|yielded| yielded.cut_short(now));
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
                self.yielded.values_mut().for_each(|yielded| yielded.cut_short(now));
            }
            self.dirty = true;
        }
    }

    /// `service` mode: Services that ask for a Lease that they cannot have.
    pub(super) fn lease_problems(&self) -> Vec<(ServiceKey, String)> {
        let Owners::Service(leases) = &self.ownership else { return Vec::new() };
        let problems = self.services.values().filter(|view| !view.retired);
        problems.filter_map(|view| Some((view.key.clone(), leases.problem(view)?.to_string()))).collect()
    }

    /// `service` mode: an election that comes to nothing for longer than a Lease lasts is told to the authors of its
    /// Services, which nobody announces.
    pub(super) fn tell_stuck(&mut self, now: Instant) {
        let patience = self.config.lease.duration;
        let stuck = match &mut self.ownership {
            Owners::Service(leases) if self.synced && self.stopping.is_none() => leases.stuck(now, patience),
            _ => return,
        };
        for (service, lease) in stuck {
            let text = format!(
                "Lease {lease}, which says what node announces it, can be neither read nor taken here: the log of the announcer has the answer of the API"
            );
            self.tell(now, &service, true, Reason::CannotAnnounce, &text);
        }
    }

    /// `service` mode: in which elections to take part.
    pub(super) fn campaign(&mut self) {
        let Owners::Service(leases) = &mut self.ownership else { return };
        let wanted = leases.campaign(&self.services, &self.endpoints, self.stopping.is_some());
        if *wanted != self.campaigning {
            self.campaigning.clone_from(wanted);
            self.handing_back = wanted.is_empty();
            self.out.push(Action::Campaign(wanted.clone()));
        }
    }
}
