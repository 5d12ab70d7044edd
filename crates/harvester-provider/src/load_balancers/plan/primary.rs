//! Plans for a Service with an address of its own (CCM spec 3.5 and 3.7).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cloud_provider::view::{Family, ServiceKey, ServiceView};
use harvester_api::keys::cloudprovider::{self, NUDGED};
use harvester_api::keys::{kube_vip, loadbalancer};
use harvester_api::load_balancer::{DHCP_ADDRESS, DHCP6_ADDRESS};

use super::super::booking::{When, when};
use super::super::choice::{self, Source};
use super::super::desired::{self, Change};
use super::super::host_words::{GETS_ONE, Resend};
use super::super::neighbours::addresses;
use super::super::network::wanted_network;
use super::super::service_patch::{ServicePatch, publish};
use super::super::sharing::{PortClash, ShareError, first_clash, shares_by};
use super::super::view::LbView;
use super::super::wait_reason::{Wait, WaitReason};
use super::delete::still_booking;
use super::object::{foreign, network_changed, over_quota, used_by_static, without_address, wrong_family};
use super::{Action, Plan, PlanRefusal, PlanVerdict, UNSERVED, World, key, moving, renamed, user_wait, wait};

/// Time for another Service's PATCH.
const CLAIM_PAUSE: Duration = Duration::from_secs(1);

pub(super) fn ensure(service: &ServiceView, interface: Option<&str>, world: &World<'_>) -> Plan {
    let (source, asked) = match choice::read(service) {
        Ok(choice) => choice,
        Err(error) => return Plan::only(PlanRefusal::from(error)),
    };
    if let (Source::Static(address), Some(by)) = (&source, &world.address_user) {
        return Plan::only(PlanRefusal::AddressTaken { address: *address, by: by.clone() });
    }
    if let Some(by) = &world.address_claimed {
        return Plan::only(claimed(service, by));
    }
    if let (Source::Static(address), Some(holder)) = (&source, &world.address_holder) {
        return Plan::only(PlanRefusal::AddressHeld { address: *address, holder: holder.clone() });
    }
    let Some(lb) = world.lb else { return create(service, &source, world) };
    if let Some(plan) = unusable(service, lb, &source, world) {
        return plan;
    }
    match moving::step(service, lb, &source, interface, world) {
        Some(step) => renamed::before_move(service, lb, step, world),
        None => serve(service, lb, (&source, asked), interface, world),
    }
}

/// Serves with a matching object: publishes its address, and keeps the object as it should be.
fn serve(
    service: &ServiceView,
    lb: &LbView,
    (source, asked): (&Source, Option<IpAddr>),
    interface: Option<&str>,
    world: &World<'_>,
) -> Plan {
    let mut changes =
        if lb.is_settled() { desired::drift(world.config, lb, service, source.ipam()) } else { Vec::new() };
    let mut actions = Vec::new();
    let verdict = if let Some(verdict) = used_by_static(service, source, lb, world) {
        verdict
    } else if let Some(refusal) = wrong_family(service, source, lb).filter(|_| service.ingress.is_empty()) {
        let stale = ServicePatch::forget_address(service);
        actions.extend((!stale.is_empty()).then_some(Action::Patch(stale)));
        refusal.into()
    } else if let Some(ip) = address(service, source, lb) {
        let mut patch = publish(service, &ip, interface);
        if let (Source::Dhcp, Some(asked)) = (source, asked) {
            patch.ask_dhcp_for(service, asked);
        }
        if patch.is_empty() {
            changes.extend(mailbox(service, lb));
        } else {
            actions.push(Action::Patch(patch));
        }
        actions.extend(moving::superseded(service, lb, world));
        let trouble = clash_with_sharer(service, world).map(|clash| PlanVerdict::from(PlanRefusal::from(clash)));
        let otherwise = || {
            let other = wrong_family(service, source, lb).or_else(|| network_not_kept(service, lb));
            let other = other.or_else(|| not_as_asked(service, source, asked?, &ip));
            other.or_else(|| single_stack(service, source)).map(PlanVerdict::Served)
        };
        trouble
            .or_else(|| unserved(service, source, &ip, interface, world))
            .or_else(otherwise)
            .unwrap_or(PlanVerdict::Ready)
    } else {
        match source.pool() {
            // The object has no address that could be lost.
            Some(pool) if lb.pool() != Some(pool) => changes.push(Change::Pool(pool.to_owned())),
            // Not while the host allocates: it would then choose another pool, although it has already recorded an
            // address.
            None if lb.wanted_pool.is_some() && lb.is_settled() => changes.push(Change::NoPool),
            _ => {}
        }
        let (action, verdict) = without_address(service, lb, GETS_ONE, world);
        match action {
            Some(Resend::Readmit) if changes.is_empty() => actions.push(Action::Readmit { uid: lb.uid.clone() }),
            Some(Resend::Nudge) => changes.push(Change::Annotation(NUDGED, world.now.to_string())),
            Some(Resend::Readmit) | None => {}
        }
        verdict
    };
    match renamed::others(service, lb, &actions, world) {
        Ok(renames) if lb.is_settled() => actions.extend(renames),
        // The name on this object proves the others.
        Ok(_) | Err(_) => changes.retain(|change| !change.names_cluster()),
    }
    if !changes.is_empty() {
        changes.extend(desired::missing_proof(world.config, lb, service));
        changes.extend(desired::leftovers(lb));
        actions.push(Action::Update { uid: lb.uid.clone(), changes });
    }
    Plan { actions, verdict }
}

/// The address to publish, after the host has accepted the object.
fn address(service: &ServiceView, source: &Source, lb: &LbView) -> Option<String> {
    let booked = lb.usable_address.clone()?;
    Some(match source {
        Source::Static(address) => address.to_string(),
        Source::Dhcp => leases(service),
        Source::Pool(_) => booked,
    })
}

/// The DHCP leases to request: one per family, in the Service's order. A Service that is served with one lease gets no
/// second one without `RequireDualStack`, so that a takeover from a Go provider changes nothing.
fn leases(service: &ServiceView) -> String {
    let shown = service.annotations.get(kube_vip::LOADBALANCER_IPS).unwrap_or_default();
    if shown == DHCP_ADDRESS && !service.ingress.is_empty() && !service.requires_both_families {
        return shown.to_owned();
    }
    let ask = |family: &Family| match family {
        Family::V4 => DHCP_ADDRESS,
        Family::V6 => DHCP6_ADDRESS,
    };
    let asked: Vec<&str> = service.families.iter().map(ask).collect();
    if asked.is_empty() { DHCP_ADDRESS.to_owned() } else { asked.join(",") }
}

/// The refusal, if the host replaced the requested network by another one (Harvester spec 8.5).
fn network_not_kept(service: &ServiceView, lb: &LbView) -> Option<PlanRefusal> {
    if lb.effective_ipam() != "pool" || lb.keeps_network()? {
        return None;
    }
    Some(PlanRefusal::NetworkNotKept {
        service: service.key.clone(),
        wanted: wanted_network(service).to_owned(),
        found: lb.annotation(loadbalancer::NETWORK).to_owned(),
    })
}

/// The refusal, if the Service has two families but the source provides only one.
fn single_stack(service: &ServiceView, source: &Source) -> Option<PlanRefusal> {
    let both = service.families.len() > 1;
    (both && *source != Source::Dhcp).then(|| PlanRefusal::SingleStack {
        service: service.key.clone(),
        required: service.requires_both_families,
        word: source.word(),
        annotated: service.annotations.get(cloudprovider::IPAM).is_some_and(|value| !value.is_empty()),
    })
}

/// The wait state while an earlier Service publishes the same address. It succeeds or fails, and the next
/// reconciliation decides accordingly.
fn claimed(service: &ServiceView, by: &ServiceKey) -> PlanVerdict {
    let message = format!("service {by} is about to publish the address that service {} asks for", service.key);
    let (reason, retry_after) = (WaitReason::Allocation, Some(CLAIM_PAUSE));
    PlanVerdict::Waiting(Wait { reason, message, needs_user: false, retry_after })
}

/// The verdict for an address that is allocated and published, but that no announcer serves.
fn unserved(
    service: &ServiceView,
    source: &Source,
    ip: &str,
    interface: Option<&str>,
    world: &World<'_>,
) -> Option<PlanVerdict> {
    world.unserved.filter(|since| *since > UNSERVED)?;
    let message = if service.annotations.get(kube_vip::IGNORE) == Some("true") {
        format!(
            "nobody serves this Service: annotation {} is true, so the announcer leaves it alone. Remove it",
            kube_vip::IGNORE
        )
    } else if *source == Source::Dhcp {
        let interface = interface.map(|name| format!(" (interface {name})")).unwrap_or_default();
        format!(
            "no address by DHCP yet: the announcer on the nodes asks a DHCP server on their network{interface}. Its \
             Events on this Service say what is in the way: no server, no free lease, no macvlan. Without any, see \
             whether the announcer runs"
        )
    } else {
        format!(
            "address {ip} is published, and nobody serves it: an Event of the announcer on this Service \
             (AddressConflict, CannotAnnounce) says why; without one see whether the announcer \
             (harvester-cloud-provider announcer, or kube-vip) runs on the nodes"
        )
    };
    Some(user_wait(message, WaitReason::Unserved))
}

/// What is served in the place of the requested address, if that is another one. A lease is known by the status.
fn not_as_asked(service: &ServiceView, source: &Source, asked: IpAddr, booked: &str) -> Option<PlanRefusal> {
    match source {
        Source::Pool(_) => {
            (booked.parse() != Ok(asked)).then(|| PlanRefusal::NotAsAsked { asked, booked: booked.to_owned() })
        }
        Source::Dhcp if service.ingress.contains(&asked) => None,
        Source::Dhcp => {
            let leased = service.ingress.iter().copied().find(|leased| leased.is_ipv4() == asked.is_ipv4())?;
            Some(PlanRefusal::NotLeased { asked, leased })
        }
        Source::Static(_) => None,
    }
}

fn create(service: &ServiceView, source: &Source, world: &World<'_>) -> Plan {
    let cluster = &world.config.cluster_name;
    if !cluster.can_name_objects() {
        return Plan::only(PlanRefusal::ClusterName(cluster.clone()));
    }
    // A Service that is already served continues: one missing address is no reason to lose the other.
    if let Some(refusal) =
        single_stack(service, source).filter(|_| service.requires_both_families && service.ingress.is_empty())
    {
        return Plan::only(refusal);
    }
    if let Some(limit) = world.quota_reached {
        return Plan::only(over_quota(limit));
    }
    let mut actions = Vec::new();
    // An old address at which the Service is not served: an announcer must not take it before the new one is known
    // (W-34). A served address stays until then, because perhaps only its object was lost; unless another Service has
    // the address now.
    if service.ingress.is_empty() || world.taken {
        let stale = ServicePatch::forget_address(service);
        if !stale.is_empty() {
            actions.push(Action::Patch(stale));
        }
    }
    actions.push(Action::Create(Box::new(desired::new_object(world.config, world.name, service, source))));
    let message =
        format!("ip is not allocated, mode: {}, message: load balancer {} was just created", source.ipam(), key(world));
    Plan { actions, verdict: wait(message, WaitReason::Allocation) }
}

/// Why an existing object cannot be used for the Service, now or ever.
fn unusable(service: &ServiceView, lb: &LbView, source: &Source, world: &World<'_>) -> Option<Plan> {
    if lb.terminating {
        // W-06: its address is about to be released. When the object is gone, the Service is woken and creates a new
        // one.
        let message =
            format!("load balancer {} is being deleted on Harvester, it is created again when it is gone", key(world));
        return Some(Plan::only(wait(message, WaitReason::Terminating)));
    }
    if let Some(refusal) = foreign(service, lb, world.config) {
        return Some(Plan::only(refusal));
    }
    if lb.effective_ipam() != source.ipam().as_str() {
        if nobody_uses_it(service, world) {
            return Some(make_anew(service, lb, source, world));
        }
        let found = lb.effective_ipam().to_owned();
        // The move has ended; the current address stays.
        let actions = moving::given_up(service, lb, world);
        let refusal = PlanRefusal::IpamChanged { lb: key(world), found, wanted: source.word() };
        return Some(Plan { actions, verdict: refusal.into() });
    }
    network_changed(service, lb, world.config).map(Plan::only)
}

/// Whether no address was ever published or used, so that the user can change the request without losing anything.
fn nobody_uses_it(service: &ServiceView, world: &World<'_>) -> bool {
    service.ingress.is_empty() && addresses(service).is_empty() && world.sharers.is_empty() && world.users.is_empty()
}

/// Deletes an object whose IPAM mode is wrong, because the host does not change the mode. The general rules of deletion
/// apply (decision 7). It is created again when it is gone.
fn make_anew(service: &ServiceView, lb: &LbView, source: &Source, world: &World<'_>) -> Plan {
    match when(lb, world.ages.of(lb)) {
        When::Now { leaks } => {
            // A published request for DHCP must not be answered by an announcer any more.
            let stale = ServicePatch::forget_address(service);
            let mut actions = if stale.is_empty() { Vec::new() } else { vec![Action::Patch(stale)] };
            actions.push(Action::Delete { name: lb.name.clone(), uid: lb.uid.clone(), leaks });
            let message = format!("load balancer {} is created again with IPAM {}", key(world), source.word());
            Plan { actions, verdict: wait(message, WaitReason::Terminating) }
        }
        When::In(rest) => Plan::only(PlanVerdict::Waiting(still_booking(lb, world.config, rest))),
    }
}

/// Writes `status.address`, where a Go provider expects the address after a roll-back (decision 5). Written once the
/// host has finished with the object and the announcer serves the Service.
fn mailbox(service: &ServiceView, lb: &LbView) -> Option<Change> {
    let address = service.ingress.first()?.to_string();
    // During a move, the Service is served at the old address for a moment.
    let booked = lb.usable_address.as_deref().filter(|booked| *booked != DHCP_ADDRESS);
    if booked.is_some_and(|booked| booked != address) {
        return None;
    }
    (lb.is_settled() && lb.address.as_ref() != Some(&address)).then_some(Change::Address(address))
}

/// The conflict, if a primary now uses a port that one of its sharers already had (W-20).
fn clash_with_sharer(service: &ServiceView, world: &World<'_>) -> Option<ShareError> {
    let (port, by) = first_clash(service, world.occupants)?;
    let secondary = world.sharers.iter().find(|sharer| sharer.key == by).map_or(service, Arc::as_ref);
    let shares_by = shares_by(secondary);
    Some(Box::new(PortClash { primary: service.key.clone(), secondary: by.clone(), port, by, shares_by }).into())
}
