//! Irreversible actions are based on fresh facts only: [`runtime::freshness`].

use cloud_provider::view::ServiceKey;
use runtime::freshness::{Freshness, Health};

use super::super::wait_reason::Wait;
use super::{HarvesterLoadBalancers, soon};

impl HarvesterLoadBalancers {
    /// Why an object of the Service must not be deleted yet; `None` if the facts are fresh.
    pub(super) fn not_fresh(&self, service: &ServiceKey) -> Option<Wait> {
        let (harvester, guest) = (self.watched.borrow().clone(), self.guest.borrow().clone());
        let watches = [("Harvester", &harvester), ("the guest cluster", &guest)];
        let broken = watches.iter().find_map(|(which, status)| Some((*which, status.error.as_ref()?.1.clone())));
        // Without the right to read the record, the state of the watch on the guest cluster is unknown.
        let all = if guest.forbidden { vec![harvester] } else { vec![harvester, guest] };
        match self.memory().doomed(service, Health::of(&all)) {
            Freshness::Fresh => None,
            Freshness::SeenAnew => Some(soon(format!(
                "watches were interrupted after the controller saw that service {service} needs its load balancer no \
                more: the controller looks once more before it deletes the load balancer"
            ))),
            Freshness::Interrupted => {
                let (which, error) = broken.unwrap_or_default();
                Some(soon(format!(
                    "the load balancer of service {service} is not deleted while watches on {which} fail: {error}"
                )))
            }
        }
    }
}
