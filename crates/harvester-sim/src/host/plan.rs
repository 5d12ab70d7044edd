//! What the LoadBalancer controller decides. Harvester spec 3.2, 4.2, 4.3

use harvester_api::keys::{harvester::LB_FINALIZER, loadbalancer};
use harvester_api::load_balancer::{AllocatedAddress, Condition, DHCP_ADDRESS, LoadBalancer, LoadBalancerStatus};

use crate::selector::Requirement;

/// First step of a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddressStep {
    /// The guest asks a DHCP server.
    Dhcp,
    /// A booking is there, or was asked to be in this pool; it is trusted as it is.
    Keep,
    /// `spec.ipPool` has changed: release in the old pool, blank the address, report success; the next pass books.
    Switch {
        /// Pool of the booking.
        from: String,
        /// Pool that is wanted now.
        to: String,
    },
    /// Book in this pool, without any matching.
    BookIn(String),
    /// Select a pool and book there.
    SelectAndBook(Requirement),
}

/// Reads the first step off the object. Selection happens only while there is no booking.
pub fn address_step(lb: &LoadBalancer) -> AddressStep {
    if lb.spec.ipam.as_deref() == Some("dhcp") {
        return AddressStep::Dhcp;
    }
    let wanted = lb.spec.ip_pool.as_deref().filter(|pool| !pool.is_empty());
    match (lb.allocated_pool(), wanted) {
        (Some(from), Some(to)) if from != to => AddressStep::Switch { from: from.to_owned(), to: to.to_owned() },
        (Some(_), _) => AddressStep::Keep,
        (None, Some(pool)) => AddressStep::BookIn(pool.to_owned()),
        (None, None) => AddressStep::SelectAndBook(requirement(lb)),
    }
}

/// What the annotations ask of a pool; the namespace falls back to the object's own. Harvester spec 3.1
pub fn requirement(lb: &LoadBalancer) -> Requirement {
    let annotation = |key| lb.annotation(key).unwrap_or_default().to_owned();
    let namespace = annotation(loadbalancer::NAMESPACE);
    Requirement {
        network: annotation(loadbalancer::NETWORK),
        project: annotation(loadbalancer::PROJECT),
        namespace: if namespace.is_empty() { lb.metadata.namespace.clone().unwrap_or_default() } else { namespace },
        cluster: annotation(loadbalancer::CLUSTER),
    }
}

/// `workloadType: cluster`; everything else is a VM load balancer.
pub fn is_cluster(lb: &LoadBalancer) -> bool {
    lb.spec.workload_type.as_deref() == Some("cluster")
}

/// The only identity that the allocator knows.
pub fn owner_key(lb: &LoadBalancer) -> String {
    let namespace = lb.metadata.namespace.as_deref().unwrap_or_default();
    let name = lb.metadata.name.as_deref().unwrap_or_default();
    format!("{namespace}/{name}")
}

/// `status.allocatedAddress` in DHCP mode: exactly this.
pub fn dhcp_address() -> AllocatedAddress {
    AllocatedAddress { ip: Some(DHCP_ADDRESS.to_owned()), ..AllocatedAddress::default() }
}

/// The object to write after a pass: the new address if there is one, and the condition. `None`: the status is right
/// already. The time of the condition changes only with its content, so a repeated failure writes nothing.
pub fn report(
    lb: &LoadBalancer,
    outcome: &Result<Option<AllocatedAddress>, String>,
    now: &str,
) -> Option<LoadBalancer> {
    let mut new = lb.clone();
    let status = new.status.get_or_insert_with(LoadBalancerStatus::default);
    if let Ok(Some(address)) = outcome {
        status.allocated_address = address.clone();
    }
    let (value, message) = match outcome {
        Ok(_) => ("True", None),
        Err(text) => ("False", Some(text.clone())),
    };
    let index = status.conditions.iter().position(|condition| condition.kind == "Ready").unwrap_or_else(|| {
        status.conditions.push(Condition { kind: "Ready".to_owned(), ..Condition::default() });
        status.conditions.len() - 1
    });
    let condition = &mut status.conditions[index];
    if condition.status != value || condition.message != message {
        value.clone_into(&mut condition.status);
        condition.message = message;
        condition.last_update_time = Some(now.to_owned());
    }
    (new != *lb).then_some(new)
}

/// What to do with an object that is being deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deletion {
    /// Not ours to finish.
    Nothing,
    /// Drop the finalizer; nothing is booked as far as the object says.
    DropFinalizer,
    /// Release in this pool, then drop the finalizer.
    Release(String),
}

/// Release happens only for an explicit `pool` with a pool in the status; otherwise the address leaks, as on the host.
pub fn deletion(lb: &LoadBalancer) -> Deletion {
    if !lb.has_host_finalizer() {
        return Deletion::Nothing;
    }
    match lb.allocated_pool() {
        Some(pool) if lb.spec.ipam.as_deref() == Some("pool") => Deletion::Release(pool.to_owned()),
        _ => Deletion::DropFinalizer,
    }
}

/// The object with our finalizer; `None` when it is there.
pub fn with_finalizer(lb: &LoadBalancer) -> Option<LoadBalancer> {
    if lb.has_host_finalizer() {
        return None;
    }
    let mut new = lb.clone();
    new.metadata.finalizers.get_or_insert_default().push(LB_FINALIZER.to_owned());
    Some(new)
}

/// The object without our finalizer.
pub fn without_finalizer(lb: &LoadBalancer) -> LoadBalancer {
    let mut new = lb.clone();
    if let Some(finalizers) = &mut new.metadata.finalizers {
        finalizers.retain(|finalizer| finalizer != LB_FINALIZER);
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn lb(object: Value) -> LoadBalancer {
        serde_json::from_value(object).unwrap()
    }

    fn with(spec: &Value, status: &Value) -> LoadBalancer {
        lb(json!({"metadata": {"namespace": "guests", "name": "web",
                   "annotations": {"loadbalancer.harvesterhci.io/network": "guests/mgmt",
                       "loadbalancer.harvesterhci.io/cluster": "demo"}},
                  "spec": spec, "status": status}))
    }

    #[test]
    fn a_pass_begins_with_what_ipam_pool_and_booking_say() {
        let booked = json!({"allocatedAddress": {"ipPool": "edge", "ip": "10.0.0.1"}});
        let requirement = Requirement {
            network: "guests/mgmt".to_owned(),
            namespace: "guests".to_owned(),
            cluster: "demo".to_owned(),
            project: String::new(),
        };
        let table = [
            (json!({"ipam": "dhcp", "ipPool": "edge"}), json!({}), AddressStep::Dhcp),
            (json!({"ipam": "pool"}), json!({}), AddressStep::SelectAndBook(requirement.clone())),
            (json!({}), json!(null), AddressStep::SelectAndBook(requirement)),
            (json!({"ipPool": "edge"}), json!({}), AddressStep::BookIn("edge".to_owned())),
            (json!({"ipam": "pool"}), booked.clone(), AddressStep::Keep),
            (json!({"ipPool": "edge"}), booked.clone(), AddressStep::Keep),
            (json!({"ipPool": ""}), booked.clone(), AddressStep::Keep),
            (
                json!({"ipPool": "other"}),
                booked,
                AddressStep::Switch { from: "edge".to_owned(), to: "other".to_owned() },
            ),
        ];
        for (spec, status, expected) in table {
            assert_eq!(address_step(&with(&spec, &status)), expected, "{spec} {status}");
        }
    }

    #[test]
    fn the_same_outcome_twice_writes_once() {
        let fresh = with(&json!({"ipam": "pool"}), &json!(null));
        let failed = Err("no matched IPPool with requirement".to_owned());
        let written = report(&fresh, &failed, "t1").expect("a first status");
        assert_eq!(
            serde_json::to_value(&written.status).unwrap(),
            json!({"allocatedAddress": {}, "conditions": [{"type": "Ready", "status": "False", "lastUpdateTime": "t1",
                   "message": "no matched IPPool with requirement"}]})
        );
        assert_eq!(report(&written, &failed, "t2"), None);
        let other = report(&written, &Err("x".to_owned()), "t2").unwrap();
        assert_eq!(other.ready_condition().unwrap().last_update_time.as_deref(), Some("t2"));
    }

    #[test]
    fn success_keeps_the_mailbox_and_clears_the_message() {
        let before = with(
            &json!({"ipam": "dhcp"}),
            &json!({"address": "10.9.9.9", "conditions": [{"type": "Ready", "status": "False", "message": "x"}]}),
        );
        let after = report(&before, &Ok(Some(dhcp_address())), "t").unwrap();
        assert_eq!(
            serde_json::to_value(&after.status).unwrap(),
            json!({"address": "10.9.9.9", "allocatedAddress": {"ip": "0.0.0.0"},
                   "conditions": [{"type": "Ready", "status": "True", "lastUpdateTime": "t"}]})
        );
        assert_eq!(report(&after, &Ok(Some(dhcp_address())), "t2"), None);
        assert_eq!(report(&after, &Ok(None), "t2"), None);
    }

    #[test]
    fn only_an_explicit_pool_with_a_recorded_booking_is_released() {
        let booked = json!({"allocatedAddress": {"ipPool": "edge", "ip": "10.0.0.1"}});
        let table = [
            (json!({"ipam": "pool"}), booked.clone(), true, Deletion::Release("edge".to_owned())),
            (json!({}), booked.clone(), true, Deletion::DropFinalizer),
            (json!({"ipam": "pool"}), json!({}), true, Deletion::DropFinalizer),
            (json!({"ipam": "dhcp"}), json!({"allocatedAddress": {"ip": "0.0.0.0"}}), true, Deletion::DropFinalizer),
            (json!({"ipam": "pool"}), booked, false, Deletion::Nothing),
        ];
        for (spec, status, finalizer, expected) in table {
            let mut lb = with(&spec, &status);
            if finalizer {
                lb = with_finalizer(&lb).unwrap();
                assert_eq!(with_finalizer(&lb), None);
            }
            assert_eq!(deletion(&lb), expected, "{spec} {status}");
            assert!(!without_finalizer(&lb).has_host_finalizer());
        }
    }
}
