//! kube-vip's modes: reactions to elections, and the elections to take part in.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::vip::{Announcing, Phase};
use super::{Action, Engine, LeaseState, Owners};
use crate::ownership::service::LeaseKey;
use crate::plan::VipId;
use crate::reason::Reason;
use crate::view::{ServiceKey, ServiceView};

/// How long a question about a contested address waits for the Lease to be confirmed.
const CONFIRMED_BY_THEN: Duration = Duration::from_secs(1);

impl Engine {
    /// The state of an election has changed; without a key it is the election for all Services.
    pub(super) fn lease_changed(&mut self, now: Instant, key: Option<LeaseKey>, state: &LeaseState) {
        let Owners::Elected(leases) = &mut self.ownership else { return };
        let Some(key) = key.or_else(|| leases.for_all().cloned()) else { return };
        if !leases.lease(&key, state.clone()) {
            return;
        }
        match state {
            LeaseState::Held { confirmed: true } => {
                self.conceded.cut_short(now);
                self.end_doubts_of(now, &key);
            }
            LeaseState::Held { confirmed: false } => self.doubt_what_is_contested(now, &key),
            // From here on, a node that takes the Lease takes it over from another owner.
            LeaseState::Unknown | LeaseState::Other(_) => {
                let (leases, plan) = (&*leases, &self.plan);
                let member = |id: &VipId| plan.vips.get(id).and_then(|planned| planned.members.first());
                self.conceded.retain(|id| member(id).and_then(|member| leases.deciding(member)) != Some(&key));
            }
        }
        self.out.replan();
    }

    /// A Lease is confirmed, which ends the doubts about what it decides. What another host has claimed is announced
    /// again: that host may have held the Lease, and serves until it hears this node, even if it has given the Lease
    /// back. The others are not: after an outage of the API a thousand broadcasts would tell nobody anything. What was
    /// given up is counted anew: a host that answered in the doubt may have held the Lease.
    fn end_doubts_of(&mut self, now: Instant, lease: &LeaseKey) {
        let Owners::Elected(leases) = &self.ownership else { return };
        for vip in self.vips.values_mut() {
            if vip.members.iter().all(|member| leases.deciding(member) != Some(lease)) {
                continue;
            }
            if !vip.is_up() {
                vip.conflicts = 0;
                continue;
            }
            vip.phase = Phase::Up { doubt: None };
            let claims = (vip.claimed.take(), vip.contested.take());
            if claims != (None, None) && !matches!(vip.announcing, Announcing::AwaitingStatus { .. }) {
                vip.announce_now(now);
            }
        }
    }

    /// A Lease is in doubt. A host that claimed one of its addresses while it could be renewed may hold it by now: it
    /// has announced, and says nothing more. The network tells whether it answers. The question waits for a moment,
    /// because the next renewal may confirm the Lease.
    fn doubt_what_is_contested(&mut self, now: Instant, lease: &LeaseKey) {
        let Owners::Elected(leases) = &self.ownership else { return };
        for vip in self.vips.values_mut() {
            let decided = vip.members.iter().any(|member| leases.deciding(member) == Some(lease));
            if decided && vip.contested.is_some_and(|at| now < at + self.config.lease.duration) {
                vip.doubt(now + CONFIRMED_BY_THEN);
            }
        }
    }

    /// `service` mode: Services that ask for a Lease which they may not have.
    pub(super) fn lease_problems(&self) -> Vec<(ServiceKey, String)> {
        let Owners::Elected(leases) = &self.ownership else { return Vec::new() };
        let problems = self.services.values().filter(|view| !view.retired);
        problems.filter_map(|view| Some((view.key.clone(), leases.problem(view)?.to_string()))).collect()
    }

    /// `service` mode: reports elections that have had no result for longer than a Lease lasts. No node announces their
    /// Services.
    pub(super) fn tell_stuck(&mut self, now: Instant) {
        let stuck = match &mut self.ownership {
            Owners::Elected(leases) if self.services.are_listed() && !self.shutdown.has_begun() => leases.stuck(now),
            _ => return,
        };
        for (service, lease) in stuck {
            let text = format!(
                "this node can neither read nor take Lease {lease}, which says which node announces the address: the \
                log of the announcer has the answer of the API server"
            );
            self.out.warn(now, &service, Reason::CannotAnnounce, &text);
        }
    }

    /// `service` mode: the API server says that this Service is gone, and the watch does not show it yet. If its Lease
    /// decides, another node may go by another Lease and announce the address. The network tells whether one does.
    pub(super) fn said_to_be_gone(&mut self, now: Instant, key: &ServiceKey) {
        let (Owners::Elected(leases), Some(view)) = (&self.ownership, self.services.get(key)) else { return };
        if leases.for_all().is_some() || !leases.decides_itself(view) {
            return;
        }
        for id in self.plan.of_service.get(key).into_iter().flatten() {
            if let Some(vip) = self.vips.get_mut(id) {
                vip.doubt(now);
            }
        }
    }

    /// `service` mode: Leases that were kept for long enough are given back.
    pub(super) fn give_back_kept(&mut self, now: Instant) {
        let over = matches!(&self.ownership, Owners::Elected(leases) if leases.has_kept_enough(now));
        self.out.replan_if(over);
    }

    /// Whether a VIP may be set up. Where the Lease is in doubt, it waits for the Lease, except an address that clients
    /// know from this node: this process or an earlier one had it here. Otherwise a new holder of the Lease would find
    /// its address in use. A VIP with a lease begins with the address of which clients were told.
    pub(super) fn may_start(&self, id: &VipId) -> bool {
        let known = |view: &ServiceView| match id {
            VipId::Static(address) => view.published.has(*address),
            VipId::Dhcp(_) | VipId::Dhcp6(_) => {
                let mut told = self.services.values().flat_map(ServiceView::told_leases);
                told.any(|(address, lease)| lease == *id && view.published.has(address))
            }
        };
        self.may_serve(id, known)
    }

    /// The same for the address that the lease of a VIP has by now: the server may have answered late, or given another
    /// one.
    pub(super) fn may_go_up(&self, id: &VipId, address: IpAddr) -> bool {
        self.may_serve(id, |view| view.published.has(address))
    }

    fn may_serve(&self, id: &VipId, is_known: impl Fn(&ServiceView) -> bool) -> bool {
        let Owners::Elected(leases) = &self.ownership else { return true };
        let Some(planned) = self.plan.vips.get(id) else { return true };
        let mut views = planned.members.iter().filter_map(|key| self.services.get(key));
        let node = &self.config.node_name;
        views.any(|view| leases.holds(view) || (is_known(view) && view.published.names(node)))
    }

    /// Whether this node may write on a Service. While the Lease is in doubt, another node may hold it, and takes what
    /// is recorded for known to clients. So only a record that names this node is kept up.
    pub(super) fn may_record(&self, view: &ServiceView) -> bool {
        let Owners::Elected(leases) = &self.ownership else { return true };
        leases.holds(view) || view.published.names(&self.config.node_name)
    }

    /// Updates the elections to take part in.
    pub(super) fn campaign(&mut self, now: Instant) {
        let Owners::Elected(leases) = &mut self.ownership else { return };
        let one = leases.for_all().is_some();
        if !one && !self.services.are_listed() {
            return;
        }
        let Some(wanted) = leases.join(now, &self.services, self.services.endpoints(), self.shutdown.has_begun())
        else {
            return;
        };
        self.out.push(if one { Action::ReleaseLease } else { Action::Campaign(wanted.clone()) });
    }
}
