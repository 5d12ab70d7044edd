//! Decides what to do for one Service. Pure: no await, no clock, no client. This module contains all rules about load
//! balancers that a reviewer has to know.
//!
//! If nothing has changed, the plan is empty. Only these plans delete: that of a Service which is gone or no longer
//! wants a load balancer ([`delete`]), that of a Service which now shares the address of another one (`secondary`), and
//! the end of a move to another pool, completed or given up (`moving`).

mod delete;
mod moving;
mod object;
mod primary;
mod refusal;
mod renamed;
mod secondary;

use std::sync::Arc;
use std::time::Duration;

use cloud_provider::view::{ServiceKey, ServiceView};
use harvester_api::load_balancer::LoadBalancer;

pub use delete::{DeletePlan, Leaving, abandoned, delete};
pub use moving::{name_in_pool, needs_object, next_object};
pub use refusal::PlanRefusal;

use super::booking::Ages;
use super::choice::AddressHolder;
use super::desired::Change;
use super::network::interface_for;
use super::service_patch::ServicePatch;
use super::sharing::{self, Occupant, ShareError};
use super::view::LbView;
use super::wait_reason::{Wait, WaitReason};
use crate::config::LoadBalancerConfig;
use crate::nad_mapping::NadMapping;

/// After this time, an address that no announcer serves is reported as a problem for the user. An announcer needs a few
/// seconds, a DHCP server up to ten.
pub const UNSERVED: Duration = Duration::from_mins(1);

/// Everything that the decision about one Service depends on.
#[derive(Debug, Clone)]
pub struct World<'a> {
    /// Cluster name, management network, namespace.
    pub config: &'a LoadBalancerConfig,
    /// Name of the Service's own LoadBalancer object.
    pub name: &'a str,
    /// That object, if it exists.
    pub lb: Option<&'a LbView>,
    /// Further objects of the Service.
    pub others: &'a [Arc<LbView>],
    /// The NAD mapping, if its ConfigMap exists.
    pub mapping: Option<&'a NadMapping>,
    /// The Service whose address this one wants to share.
    pub primary: Result<Option<Arc<ServiceView>>, ShareError>,
    /// LoadBalancer object of that Service.
    pub primary_lb: Option<&'a LbView>,
    /// Services that want to share this one's address.
    pub sharers: &'a [Arc<ServiceView>],
    /// Services that have an address of this one's objects, whatever they request; see [`sharing::users`].
    pub users: &'a [Arc<ServiceView>],
    /// The address that the Service shows belongs to another one; see [`sharing::is_taken`].
    pub taken: bool,
    /// Another Service that has the address which this one requests, or one with a static address that was also
    /// allocated for this one.
    pub address_user: Option<ServiceKey>,
    /// Another Service whose reconciliation is about to publish that address.
    pub address_claimed: Option<ServiceKey>,
    /// The Node or ClusterIP that has the static address which this Service requests but does not have yet.
    pub address_holder: Option<AddressHolder>,
    /// Set to the limit if the cluster has as many load balancers as it may have.
    pub quota_reached: Option<usize>,
    /// How long the Service has shown an address that no announcer serves.
    pub unserved: Option<Duration>,
    /// The Services at the address in question: this Service's own address, or its primary's.
    pub occupants: &'a [Occupant],
    /// Unix seconds.
    pub now: i64,
    /// Time since the object was last sent, or since this process first saw it waiting.
    pub idle: Option<Duration>,
    /// How long the objects of the Service have been known.
    pub ages: &'a Ages,
}

/// One request to send.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Create a LoadBalancer object for the Service.
    Create(Box<LoadBalancer>),
    /// Change the object.
    Update {
        /// UID of the object, as precondition: not a successor of the same name.
        uid: String,
        /// The changes, which apply to the object as read then.
        changes: Vec<Change>,
    },
    /// Give another object of the Service the present name of the cluster.
    Rename {
        /// Its name, which stays.
        name: String,
        /// UID of the object, as precondition.
        uid: String,
        /// The changes, which apply to the object as read then.
        changes: Vec<Change>,
    },
    /// Send the object again without a change; see [`Resend::Readmit`].
    Readmit {
        /// UID of the object, as precondition.
        uid: String,
    },
    /// Delete one of the Service's objects.
    Delete {
        /// Its name.
        name: String,
        /// UID of the object, as precondition.
        uid: String,
        /// The host had not finished the allocation, so the address leaks.
        leaks: bool,
    },
    /// Change labels and annotations of the Service.
    Patch(ServicePatch),
}

impl Action {
    /// Name of the object that the action creates or deletes; both need a turn of the pacer.
    pub fn takes_turn_for(&self) -> Option<&str> {
        match self {
            Self::Create(object) => object.metadata.name.as_deref(),
            Self::Delete { name, .. } => Some(name),
            Self::Update { .. } | Self::Rename { .. } | Self::Readmit { .. } | Self::Patch(_) => None,
        }
    }
}

/// What to do, and what to report afterwards.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The requests, in this order.
    pub actions: Vec<Action>,
    /// The result, if all actions succeed.
    pub verdict: PlanVerdict,
}

/// What to report about the Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanVerdict {
    /// The address is published.
    Ready,
    /// The address is published, but the user requested more than that.
    Served(PlanRefusal),
    /// Something else has to happen first.
    Waiting(Wait),
    /// The request of the user cannot be fulfilled.
    Refused(PlanRefusal),
}

impl From<PlanRefusal> for PlanVerdict {
    fn from(refusal: PlanRefusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Plan {
    fn only(verdict: impl Into<PlanVerdict>) -> Self {
        Self { actions: Vec::new(), verdict: verdict.into() }
    }
}

fn wait(message: String, reason: WaitReason) -> PlanVerdict {
    PlanVerdict::Waiting(Wait { reason, message, needs_user: false, retry_after: None })
}

fn user_wait(message: String, reason: WaitReason) -> PlanVerdict {
    PlanVerdict::Waiting(Wait { reason, message, needs_user: true, retry_after: None })
}

/// Plans for a Service that wants a load balancer (CCM spec 3.4).
pub fn ensure(service: &ServiceView, world: &World<'_>) -> Plan {
    let interface = match interface_for(service, world.mapping) {
        Ok(interface) => interface,
        Err(error) => return Plan::only(PlanRefusal::from(error)),
    };
    match &world.primary {
        Err(error) => Plan::only(PlanRefusal::from(error.clone())),
        Ok(Some(primary)) => secondary::ensure(service, primary, world),
        Ok(None) => primary::ensure(service, interface.as_deref(), world),
    }
}

fn key(world: &World<'_>) -> String {
    format!("{}/{}", world.config.namespace, world.name)
}

/// The Services that occupy `primary`'s address: the primary, the sharers that have joined, and `claims` that the cache
/// does not show yet.
pub fn occupants(primary: &ServiceView, sharers: &[Arc<ServiceView>], claims: Vec<Occupant>) -> Vec<Occupant> {
    let joined = sharers.iter().filter(|sharer| sharing::has_joined(sharer, primary));
    let mut occupants: Vec<Occupant> =
        std::iter::once(primary).chain(joined.map(Arc::as_ref)).map(Occupant::from).collect();
    for claim in claims {
        if !occupants.iter().any(|occupant| occupant.key == claim.key) {
            occupants.push(claim);
        }
    }
    occupants
}

/// `namespace/name` of an object, for texts.
fn object(config: &LoadBalancerConfig, lb: &LbView) -> String {
    format!("{}/{}", config.namespace, lb.name)
}

#[cfg(test)]
mod tests;
