//! Groups of Services that share one address: which member holds it, and which ones follow (docs/decisions.md).

use std::cmp::Reverse;
use std::sync::Arc;

use cloud_provider::view::ServiceView;

use super::super::sharing::{self, Group};
use super::super::view::LbView;
use super::HarvesterLoadBalancers;
use crate::config::LoadBalancerConfig;

impl HarvesterLoadBalancers {
    /// All Services that name the group, the oldest first.
    fn grouped(&self, group: &Group) -> Vec<Arc<ServiceView>> {
        let mut all: Vec<_> =
            self.neighbours.grouped(group).iter().map(|service| Arc::new(self.patched.see(service))).collect();
        all.sort_by(|a, b| (a.created, &a.key).cmp(&(b.created, &b.key)));
        all
    }

    /// The object of a member, unless it was handed over or is being deleted.
    fn held(&self, service: &ServiceView, config: &LoadBalancerConfig) -> Option<Arc<LbView>> {
        let named = (service.key.namespace.as_str(), service.key.name.as_str());
        let lb = self.owned(service, config).lb?;
        (!lb.terminating && lb.service().is_none_or(|owner| owner == named)).then_some(lb)
    }

    /// The member whose address the others share. That is a member with an object on Harvester, even while the member
    /// is being deleted, so that no other one creates an object before the hand-over. If there is none, the oldest
    /// member creates the object and stays the leader.
    ///
    /// Two members have an object after a former leader process sent a POST for a member that the new process does not
    /// choose, or when a Service joins that already had an address. Then the address stays that most members show,
    /// whichever member is older.
    pub(super) fn leader(&self, group: &Group, config: &LoadBalancerConfig) -> Option<Arc<ServiceView>> {
        let all = self.grouped(group);
        let users = |lb: &LbView| all.iter().filter(|member| sharing::shows_address_of(member, lb)).count();
        let holders = all.iter().filter_map(|service| Some((service, self.held(service, config)?)));
        if let Some((holder, _)) = holders.min_by_key(|(_, lb)| Reverse(users(lb))) {
            return Some(Arc::clone(holder));
        }
        let members: Vec<_> = all.into_iter().filter(|service| sharing::is_member(service)).collect();
        self.memory().founder(group, &members).cloned()
    }

    /// Services that share with `primary`: by its name, and by its group. If another member leads the group, these are
    /// the Services that still show this one's address: it is not released before they have switched.
    pub(super) fn sharers(&self, primary: &ServiceView, config: &LoadBalancerConfig) -> Vec<Arc<ServiceView>> {
        let mut sharers = sharing::sharers(&primary.key, self.neighbours.naming(&primary.key));
        // A Service that was refused neither occupies ports nor keeps the address in use.
        sharers.retain(|sharer| sharing::may_share(sharer, primary, config.share_across_namespaces));
        let mut sharers: Vec<_> = sharers.iter().map(|service| Arc::new(self.patched.see(service))).collect();
        if let Some(group) = sharing::group_of(primary) {
            let leads = self.leader(&group, config).is_some_and(|leader| leader.key == primary.key);
            let own = if leads { None } else { self.held(primary, config) };
            let shares =
                |other: &ServiceView| leads || own.as_ref().is_some_and(|lb| sharing::shows_address_of(other, lb));
            let others = self.grouped(&group).into_iter().filter(|other| other.key != primary.key);
            sharers.extend(others.filter(|other| sharing::is_member(other) && shares(other)));
        }
        sharers
    }
}
