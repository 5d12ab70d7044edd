//! What to do for one Service: pure. No await, no clock, no client; everything a reviewer must understand about load balancers.
//!
//! An unchanged world gives an empty plan. The only plans that delete are that of a Service that is gone or wants no load
//! balancer any more ([`delete`]) and that of a Service which shares another one's address now.

use std::sync::Arc;
use std::time::Duration;

use cloud_provider::provider::Waiting;
use cloud_provider::view::ServiceView;
use harvester_api::keys::cloudprovider::{self, NUDGED};
use harvester_api::load_balancer::{Ipam, LoadBalancer};

use super::booking::{When, when};
use super::desired::{self, Change};
use super::host_words::{self, Resend};
use super::network::{interface_for, wanted_network};
use super::quoted::Quoted;
use super::service_patch::{ServicePatch, publish, share};
use super::sharing::{self, Occupant, PortClash, ShareError, first_clash};
use super::view::LbView;
use super::wait_reason::WaitReason;
use crate::config::LoadBalancerConfig;
use crate::nad_mapping::NadMapping;

/// Everything that the decision about one Service depends on.
#[derive(Debug, Clone)]
pub struct World<'a> {
    /// Cluster name, management network, namespace.
    pub config: &'a LoadBalancerConfig,
    /// Name of the Service's own LoadBalancer object.
    pub name: &'a str,
    /// That object, if it exists.
    pub lb: Option<&'a LbView>,
    /// The NAD mapping, if its ConfigMap exists.
    pub mapping: Option<&'a NadMapping>,
    /// The Service whose address this one wants to share.
    pub primary: Result<Option<Arc<ServiceView>>, ShareError>,
    /// LoadBalancer object of that Service.
    pub primary_lb: Option<&'a LbView>,
    /// Services that want to share this one's address.
    pub sharers: &'a [Arc<ServiceView>],
    /// The address that the Service shows is another one's; see [`sharing::is_taken`].
    pub taken: bool,
    /// Who has a place at the address in question, this Service's own or its primary's.
    pub occupants: &'a [Occupant],
    /// Unix seconds.
    pub now: i64,
    /// Time since the object was last sent, or since we first saw it waiting.
    pub idle: Option<Duration>,
    /// Age of the object, see [`super::booking::age`].
    pub age: Duration,
}

/// One request.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Create the Service's LoadBalancer object.
    Create(Box<LoadBalancer>),
    /// Change it.
    Update {
        /// Only this one, not a successor of the same name.
        uid: String,
        /// What to change in the object as it is then.
        changes: Vec<Change>,
    },
    /// Send it again although nothing changes; see [`Resend::Readmit`].
    Readmit {
        /// Only this one.
        uid: String,
    },
    /// Delete it.
    Delete {
        /// Only this one.
        uid: String,
        /// The host had not finished booking.
        leaks: bool,
    },
    /// Change labels and annotations of the Service.
    Patch(ServicePatch),
}

/// What to do, and what to say about it when it is done.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// In this order.
    pub actions: Vec<Action>,
    /// The result, if all actions succeed.
    pub verdict: Verdict,
}

/// What is to be said about the Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The address is published.
    Ready,
    /// Something has to happen elsewhere first; with a reason for the metrics.
    Waiting(Waiting, WaitReason),
    /// Not as the user wants it.
    Refused(Refusal),
}

/// What the user has to change. Retrying is pointless until then, or until something wakes the Service.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Neither `pool` nor `dhcp`.
    #[error("annotation {key} has the value {value:?}, accepted are pool, dhcp", key = cloudprovider::IPAM, value = Quoted(.0))]
    UnknownIpam(String),
    /// The host does not change the mode of an object (harvester-side.md 5.2 F).
    #[error(
        "can't change the IPAM from {found} to {wanted} of load balancer {lb}: set annotation {key} back to {found}, or delete the \
         Service and create it again", key = cloudprovider::IPAM
    )]
    IpamChanged {
        /// `namespace/name` of the object.
        lb: String,
        /// The object's mode.
        found: String,
        /// What the annotation asks for now.
        wanted: Ipam,
    },
    /// The network is frozen at creation (ccm.md 3.5 step 2).
    #[error(
        "network annotation of service {service} is not same as the load balancer {lb}, service: '{}', lb: '{}'",
        Quoted(wanted),
        Quoted(found)
    )]
    NetworkChanged {
        /// The Service.
        service: String,
        /// `namespace/name` of the object.
        lb: String,
        /// What the Service asks for now.
        wanted: String,
        /// What the object was made with.
        found: String,
    },
    /// Somebody else's object has our name.
    #[error("load balancer {lb} belongs to service {owner} by its labels, so service {service} cannot use it")]
    Foreign {
        /// `namespace/name` of the object.
        lb: String,
        /// The Service that its labels name.
        owner: String,
        /// Ours.
        service: String,
    },
    /// The network has no interface on the nodes.
    #[error(transparent)]
    Network(#[from] super::network::NetworkError),
    /// The primary, or a port.
    #[error(transparent)]
    Share(#[from] ShareError),
}

impl Refusal {
    /// Reason of the condition on the Service.
    pub fn word(&self) -> &'static str {
        match self {
            Self::UnknownIpam(_) => "UnknownIPAM",
            Self::IpamChanged { .. } => "IPAMChanged",
            Self::NetworkChanged { .. } => "NetworkChanged",
            Self::Foreign { .. } => "NameTaken",
            Self::Network(_) => "NoSuchNetwork",
            Self::Share(ShareError::PortTaken(_)) => "PortTaken",
            Self::Share(_) => "NoSuchPrimary",
        }
    }
}

impl From<Refusal> for Verdict {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Plan {
    fn only(verdict: impl Into<Verdict>) -> Self {
        Self { actions: Vec::new(), verdict: verdict.into() }
    }
}

fn wait(message: String, reason: WaitReason) -> Verdict {
    Verdict::Waiting(Waiting { reason: reason.word(), message, needs_user: false, retry_after: None }, reason)
}

fn user_wait(message: String, reason: WaitReason) -> Verdict {
    Verdict::Waiting(Waiting { reason: reason.word(), message, needs_user: true, retry_after: None }, reason)
}

/// Plan of a Service that wants a load balancer. ccm.md 3.4.
pub fn ensure(service: &ServiceView, world: &World<'_>) -> Plan {
    let interface = match interface_for(service, world.mapping) {
        Ok(interface) => interface,
        Err(error) => return Plan::only(Refusal::from(error)),
    };
    match &world.primary {
        Err(error) => Plan::only(Refusal::from(error.clone())),
        Ok(Some(primary)) => ensure_secondary(service, primary, world),
        Ok(None) => ensure_primary(service, interface.as_deref(), world),
    }
}

/// ccm.md 3.5 and 3.7.
fn ensure_primary(service: &ServiceView, interface: Option<&str>, world: &World<'_>) -> Plan {
    let ipam = match wanted_ipam(service) {
        Ok(ipam) => ipam,
        Err(refusal) => return Plan::only(refusal),
    };
    let Some(lb) = world.lb else { return create(service, ipam, world) };
    if let Some(verdict) = unusable(service, lb, ipam, world) {
        return Plan::only(verdict);
    }

    let mut changes = if lb.is_settled() { desired::drift(world.config, lb, service, ipam) } else { Vec::new() };
    let mut actions = Vec::new();
    let verdict = if let Some(ip) = &lb.usable_address {
        let patch = publish(service, ip, interface);
        if patch.is_empty() {
            changes.extend(mailbox(service, lb));
        } else {
            actions.push(Action::Patch(patch));
        }
        clash_with_sharer(service, world).map_or(Verdict::Ready, |error| Refusal::from(error).into())
    } else {
        let (action, verdict) = without_address(lb, world);
        match action {
            Some(Resend::Readmit) if changes.is_empty() => actions.push(Action::Readmit { uid: lb.uid.clone() }),
            Some(Resend::Nudge) => changes.push(Change::Annotation(NUDGED, world.now.to_string())),
            Some(Resend::Readmit) | None => {}
        }
        verdict
    };
    if !changes.is_empty() {
        changes.extend(desired::missing_proof(world.config, lb, service));
        changes.extend(desired::leftovers(lb));
        actions.push(Action::Update { uid: lb.uid.clone(), changes });
    }
    Plan { actions, verdict }
}

/// `pool`, also where the annotation is missing or empty; anything else than the two is the user's mistake (W-33).
fn wanted_ipam(service: &ServiceView) -> Result<Ipam, Refusal> {
    match service.annotations.get(cloudprovider::IPAM).map(String::as_str) {
        None | Some("" | "pool") => Ok(Ipam::Pool),
        Some("dhcp") => Ok(Ipam::Dhcp),
        Some(other) => Err(Refusal::UnknownIpam(other.to_owned())),
    }
}

fn create(service: &ServiceView, ipam: Ipam, world: &World<'_>) -> Plan {
    let mut actions = Vec::new();
    // An address of an earlier life that nobody serves: an announcer must not take it before ours is known (W-34). One that is
    // served stays until then, its object may only have been lost; unless another Service has it by now.
    if service.ingress.is_empty() || world.taken {
        let stale = ServicePatch::forget_address(service);
        if !stale.is_empty() {
            actions.push(Action::Patch(stale));
        }
    }
    actions.push(Action::Create(Box::new(desired::new_object(world.config, world.name, service, ipam))));
    let message = format!("ip is not allocated, mode: {ipam}, message: load balancer {} was just created", key(world));
    Plan { actions, verdict: wait(message, WaitReason::Allocation) }
}

/// Why an object that is there cannot be used for the Service, now or ever.
fn unusable(service: &ServiceView, lb: &LbView, ipam: Ipam, world: &World<'_>) -> Option<Verdict> {
    if lb.terminating {
        // W-06: its address is about to be released. Its disappearance wakes the Service, a new object follows.
        let message =
            format!("load balancer {} is being deleted on Harvester, it is created again when it is gone", key(world));
        return Some(wait(message, WaitReason::Terminating));
    }
    if let Some(refusal) = foreign(service, lb, world.config) {
        return Some(refusal.into());
    }
    if lb.effective_ipam() != ipam.as_str() {
        let found = lb.effective_ipam().to_owned();
        return Some(Refusal::IpamChanged { lb: key(world), found, wanted: ipam }.into());
    }
    network_changed(service, lb, world.config).map(Verdict::from)
}

fn foreign(service: &ServiceView, lb: &LbView, config: &LoadBalancerConfig) -> Option<Refusal> {
    let (namespace, name) = lb.service()?;
    if (namespace, name) == (service.key.namespace.as_str(), service.key.name.as_str()) {
        return None;
    }
    let owner = format!("{namespace}/{name}");
    Some(Refusal::Foreign { lb: format!("{}/{}", config.namespace, lb.name), owner, service: service.key.to_string() })
}

/// Only a frozen copy that is present and different is a change: objects from before v0.2.7 have none (W-01).
fn network_changed(service: &ServiceView, lb: &LbView, config: &LoadBalancerConfig) -> Option<Refusal> {
    let found = lb.annotations.get(cloudprovider::LB_NETWORK)?;
    let wanted = wanted_network(service);
    (wanted != found).then(|| Refusal::NetworkChanged {
        service: service.key.to_string(),
        lb: format!("{}/{}", config.namespace, lb.name),
        wanted: wanted.to_owned(),
        found: found.clone(),
    })
}

/// `status.address`, the mailbox in which a Go provider after a roll-back expects the address (decision 5): once the host has
/// finished with the object, and the announcer has served the Service.
fn mailbox(service: &ServiceView, lb: &LbView) -> Option<Change> {
    let address = service.ingress.first()?.to_string();
    (lb.is_settled() && lb.address.as_ref() != Some(&address)).then_some(Change::Address(address))
}

fn without_address(lb: &LbView, world: &World<'_>) -> (Option<Resend>, Verdict) {
    let config = world.config;
    let told = host_words::no_address(lb, config.cluster_name.as_str(), &config.namespace, world.now);
    let mut waiting = told.waiting;
    let due = told.resend.filter(|resend| world.idle.is_some_and(|idle| idle >= resend.interval()));
    if let (Some(resend), None) = (told.resend, due) {
        waiting.retry_after = Some(resend.interval().saturating_sub(world.idle.unwrap_or_default()));
    }
    (due, Verdict::Waiting(waiting, told.reason))
}

/// A primary that has taken a port which one of those who share its address already had (W-20).
fn clash_with_sharer(service: &ServiceView, world: &World<'_>) -> Option<ShareError> {
    let (port, by) = first_clash(service, world.occupants)?;
    Some(Box::new(PortClash { primary: service.key.clone(), secondary: by.clone(), port, by }).into())
}

/// ccm.md 3.6.
fn ensure_secondary(service: &ServiceView, primary: &Arc<ServiceView>, world: &World<'_>) -> Plan {
    if primary.deleting {
        return Plan::only(wait(format!("primary service {} is being deleted", primary.key), WaitReason::Primary));
    }
    // A Service that is no load balancer any more gives its address up as soon as nobody who has it is left: nobody joins.
    let stays = primary.is_load_balancer && !primary.has_class;
    let Some(ip) = primary.ingress.first().filter(|_| stays || sharing::has_joined(service, primary)) else {
        let story = format!("primary service {} has no ingress IP", primary.key);
        return Plan::only(if stays {
            wait(story, WaitReason::Primary)
        } else {
            user_wait(
                format!("{story}: it is no Service of type LoadBalancer without loadBalancerClass, name another one"),
                WaitReason::Primary,
            )
        });
    };
    if let Some((port, by)) = first_clash(service, world.occupants) {
        let (primary, secondary) = (primary.key.clone(), service.key.clone());
        return Plan::only(Refusal::Share(Box::new(PortClash { primary, secondary, port, by }).into()));
    }
    if let Some(lb) = world.primary_lb {
        // A secondary without a network takes over its primary's.
        let inherits = wanted_network(service).is_empty();
        if let Some(refusal) = network_changed(service, lb, world.config).filter(|_| !inherits) {
            return Plan::only(refusal);
        }
    }
    if let Some(lb) = world.lb
        && let Some(story) = still_used(service, lb, world.sharers)
    {
        return Plan::only(user_wait(story, WaitReason::Shared));
    }

    let mut actions = Vec::new();
    let patch = share(service, primary, *ip);
    if !patch.is_empty() {
        actions.push(Action::Patch(patch));
    }
    // Its own object from a life as primary. After the annotation: an address must not be released while it is announced.
    if let Some(lb) = world.lb.filter(|lb| !lb.terminating && foreign(service, lb, world.config).is_none()) {
        match when(lb, world.age) {
            When::Now { leaks } => actions.push(Action::Delete { uid: lb.uid.clone(), leaks }),
            When::In(rest) => {
                return Plan {
                    actions,
                    verdict: Verdict::Waiting(still_booking(lb, world.config, rest), WaitReason::Booking),
                };
            }
        }
    }
    Plan { actions, verdict: Verdict::Ready }
}

fn still_booking(lb: &LbView, config: &LoadBalancerConfig, rest: Duration) -> Waiting {
    let message = format!(
        "load balancer {}/{} is deleted as soon as Harvester has finished booking its address",
        config.namespace, lb.name
    );
    Waiting { reason: WaitReason::Booking.word(), message, needs_user: false, retry_after: Some(rest) }
}

/// What to do for a Service that is gone or wants no load balancer any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeletePlan {
    /// Nothing is known of an object: ask the API itself before saying so (W-04).
    Verify,
    /// Delete it.
    Send {
        /// Only this one.
        uid: String,
        /// The host had not finished booking.
        leaks: bool,
    },
    /// Not now.
    Waiting(Waiting, WaitReason),
    /// Not ours to delete.
    Refused(Refusal),
}

/// ccm.md 3.9: by the Service's own name, whatever was ever published and whether its primary still exists (W-04, W-23).
pub fn delete(
    service: &ServiceView,
    config: &LoadBalancerConfig,
    lb: Option<&LbView>,
    sharers: &[Arc<ServiceView>],
    age: Duration,
) -> DeletePlan {
    let Some(lb) = lb else { return DeletePlan::Verify };
    if let Some(refusal) = foreign(service, lb, config) {
        return DeletePlan::Refused(refusal);
    }
    if lb.terminating {
        let message = format!("load balancer {}/{} is being deleted on Harvester", config.namespace, lb.name);
        // The watch tells when it is gone; the look in between is for a watch that is broken.
        let reason = WaitReason::Terminating.word();
        let waiting = Waiting { reason, message, needs_user: false, retry_after: Some(Duration::from_mins(1)) };
        return DeletePlan::Waiting(waiting, WaitReason::Terminating);
    }
    if let Some(message) = still_used(service, lb, sharers) {
        let waiting = Waiting { reason: WaitReason::Shared.word(), message, needs_user: true, retry_after: None };
        return DeletePlan::Waiting(waiting, WaitReason::Shared);
    }
    match when(lb, age) {
        When::Now { leaks } => DeletePlan::Send { uid: lb.uid.clone(), leaks },
        When::In(rest) => DeletePlan::Waiting(still_booking(lb, config, rest), WaitReason::Booking),
    }
}

/// Only who has got the address holds it: an applicant that was refused a port is no user of it.
fn still_used(service: &ServiceView, lb: &LbView, sharers: &[Arc<ServiceView>]) -> Option<String> {
    let uses = |sharer: &&Arc<ServiceView>| {
        sharing::has_joined(sharer, service)
            || lb.usable_address.as_deref().is_some_and(|ip| sharing::shows(sharer, ip))
    };
    let names: Vec<String> = sharers.iter().filter(uses).map(|sharer| sharer.key.to_string()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "could not delete load balancer for service {key}: service {key} is still used by other services [{}]",
            names.join(" "),
            key = service.key
        )
    })
}

fn key(world: &World<'_>) -> String {
    format!("{}/{}", world.config.namespace, world.name)
}

/// Who has a place at `primary`'s address: the primary, those who joined, and `claims` that the cache does not show yet.
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

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
