//! Everything that a decision depends on, gathered for `plan`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use cloud_provider::view::{ServiceKey, ServiceView};
use harvester_api::keys::cloudprovider::CLUSTER_UID;
use harvester_api::keys::kube_vip;

use super::super::choice::{self, Holder, Source};
use super::super::owned::Owned;
use super::super::plan::{self, Action, Plan, World};
use super::super::sharing::{self, Occupant};
use super::super::view::LbView;
use super::memory::Memory;
use super::unserved::Unserved;
use super::{HarvesterLoadBalancers, unix_seconds, unserved};
use crate::config::LoadBalancerConfig;
use crate::identity::proof::{cluster_of, is_proven};

/// The address that nobody else may have: the static one that the Service asks for, or the one that was booked for it. True: only a
/// Service that chose it can be in its way.
fn address_in_question(service: &ServiceView, lb: Option<&LbView>) -> Option<(IpAddr, bool)> {
    match choice::source(service).ok()? {
        Source::Static(address) => Some((address, false)),
        Source::Pool(_) => Some((lb?.usable_address.as_deref()?.parse().ok()?, true)),
        Source::Dhcp => None,
    }
}

/// Another Service whose pass is about to publish that address; nothing shows it yet.
fn address_claimed(service: &ServiceView, memory: &Memory, lb: Option<&LbView>) -> Option<ServiceKey> {
    let (address, only_static) = address_in_question(service, lb)?;
    memory.under_way.publisher(&service.key, address, only_static).cloned()
}

/// The object whose address the Service is to show: that of a move, if there is one.
fn to_be_shown<'a>(service: &ServiceView, owned: &'a Owned) -> Option<&'a LbView> {
    let lb = owned.lb.as_deref()?;
    let source = choice::source(service).ok();
    let next = source.and_then(|source| plan::next_object(lb, &owned.others, &source));
    Some(next.map_or(lb, Arc::as_ref))
}

impl HarvesterLoadBalancers {
    pub(super) fn service(&self, key: &ServiceKey) -> Option<Arc<ServiceView>> {
        self.services.get(key).map(|service| Arc::new(self.patched.see(&service)))
    }

    /// Services that may show an address which this one shows.
    pub(super) fn beside(&self, service: &ServiceView) -> Vec<Arc<ServiceView>> {
        let services = self.neighbours.beside(service, self.patched.keys());
        services.into_iter().map(|service| Arc::new(self.patched.see(&service))).collect()
    }

    /// Who has an address of these objects of the Service, whatever it asks for.
    pub(super) fn users(&self, service: &ServiceView, owned: &Owned) -> Vec<Arc<ServiceView>> {
        let lbs: Vec<&LbView> = owned.lb.iter().chain(&owned.others).map(Arc::as_ref).collect();
        let addresses: Vec<&str> = lbs.iter().filter_map(|lb| lb.usable_address.as_deref()).collect();
        let mut there = service.clone();
        there.annotations.insert(kube_vip::LOADBALANCER_IPS, &addresses.join(","));
        sharing::users(service, &lbs, self.beside(&there))
    }

    /// Another Service that has the static address which this one asks for, or a static one that has what was booked for it.
    pub(super) fn address_user(&self, service: &ServiceView, lb: Option<&LbView>) -> Option<ServiceKey> {
        let (address, only_static) = address_in_question(service, lb)?;
        let mut there = service.clone();
        there.annotations.insert(kube_vip::LOADBALANCER_IPS, &address.to_string());
        there.ingress = Vec::new();
        let mut others = self.beside(&there);
        // Who shared this one's address and asks for it as a static one now has it from here, and is refused itself.
        let has_it = |other: &ServiceView| {
            choice::static_address(other) == Some(address) && !sharing::wears_label_of(other, &service.key)
        };
        others.retain(|other| !only_static || has_it(other));
        sharing::other_user(&there, &others)
    }

    /// Who has the static address that this one asks for, of the Nodes and inside the cluster. Clients who were told of it keep it:
    /// taking it away would help nobody.
    pub(super) fn address_holder(&self, service: &ServiceView) -> Option<Holder> {
        let address = choice::static_address(service).filter(|address| !service.ingress.contains(address))?;
        let gateway = || self.lbs.all().into_iter().find(|lb| lb.gateway == Some(address));
        choice::holder(address, &self.given.server, &self.nodes.all(), &self.services.all())
            .or_else(|| gateway().map(|lb| Holder::Gateway(lb.name.clone())))
    }

    /// The limit, if one more load balancer would exceed it. Those that the watch does not show yet count too, unless somebody has
    /// deleted them before they had an address, and those that are being created at this moment for others.
    pub(super) fn quota_reached(
        &self,
        service: &ServiceKey,
        memory: &Memory,
        config: &LoadBalancerConfig,
    ) -> Option<usize> {
        let limit = config.max_load_balancers?;
        let of_this_cluster = |lb: &LbView| {
            config.cluster_uid.as_deref().is_none_or(|uid| ["", uid].contains(&lb.annotation(CLUSTER_UID)))
                // From before default/kubernetes was made anew.
                || lb.service_key().and_then(|key| self.services.get(&key)).is_some_and(|owner| is_proven(lb, &owner))
        };
        let ours = |lb: &Arc<LbView>| cluster_of(lb).as_ref() == Some(&config.cluster_name) && of_this_cluster(lb);
        let shown = self.lbs.all().iter().filter(|lb| ours(lb)).count();
        let created = memory.created.keys().filter(|name| self.objects.get(name).is_some());
        let unseen: BTreeSet<&String> = created.chain(memory.under_way.objects(service)).collect();
        let unseen = unseen.into_iter().filter(|name| self.lbs.get(name).is_none()).count();
        (shown + unseen >= limit).then_some(limit)
    }

    /// Observes and decides. A secondary that is about to be patched holds its ports from here on.
    pub(super) fn decide(&self, service: &ServiceView, config: &LoadBalancerConfig, owned: &Owned) -> Plan {
        let (name, lb) = (owned.name.as_str(), &owned.lb);
        let primary = sharing::shared_with(service, |key| self.service(key), |group| self.leader(group, config));
        let shared = primary.as_ref().ok().and_then(Clone::clone);
        let primary_lb = shared.as_ref().and_then(|primary| self.owned(primary, config).lb);
        let sharers = self.sharers(service, config);
        let users = self.users(service, owned);
        let beside_primary = shared.as_ref().map(|primary| self.sharers(primary, config)).unwrap_or_default();
        let mapping = self.mapping.get();
        let ages = owned.lb.iter().chain(&owned.others).map(|lb| (lb.uid.clone(), self.objects.age(lb))).collect();

        let mut memory = self.memory();
        let occupants = match &shared {
            Some(primary) => {
                let claims = memory.claims.get(&primary.key).cloned().unwrap_or_default();
                plan::occupants(primary, &beside_primary, claims)
            }
            None => plan::occupants(service, &sharers, Vec::new()),
        };
        let idle = match lb {
            Some(lb) if lb.usable_address.is_none() && !lb.terminating => {
                Some(memory.sent.entry(name.to_owned()).or_insert_with(Instant::now).elapsed())
            }
            _ => {
                memory.sent.remove(name);
                None
            }
        };
        let creates = owned.lb.as_deref().is_none_or(|lb| {
            choice::source(service).is_ok_and(|source| plan::needs_object(lb, &owned.others, &source))
        });
        let quota_reached = if creates { self.quota_reached(&service.key, &memory, config) } else { None };
        let unserved = if unserved::is_unserved(service) {
            let known = memory.unserved.remove(&service.key);
            let unserved = Unserved::of(service, known);
            let elapsed = unserved.elapsed();
            memory.unserved.insert(service.key.clone(), unserved);
            Some(elapsed)
        } else {
            memory.unserved.remove(&service.key);
            None
        };
        let to_be_shown = to_be_shown(service, owned);
        let world = World {
            config,
            name,
            lb: lb.as_deref(),
            others: &owned.others,
            address_user: self.address_user(service, to_be_shown),
            address_claimed: address_claimed(service, &memory, to_be_shown),
            address_holder: self.address_holder(service),
            quota_reached,
            unserved,
            mapping: mapping.as_deref(),
            primary,
            primary_lb: primary_lb.as_deref(),
            sharers: &sharers,
            users: &users,
            taken: lb.is_none() && sharing::is_taken(service, &self.beside(service)),
            occupants: &occupants,
            now: unix_seconds(),
            idle,
            ages: &ages,
        };
        let plan = plan::ensure(service, &world);
        if let Some(primary) = &shared
            && plan.actions.iter().any(|action| matches!(action, Action::Patch(_)))
        {
            memory.claims.entry(primary.key.clone()).or_default().push(Occupant::from(service));
        }
        memory.under_way.begin(service, &plan);
        plan
    }

    /// The requests of the Service's plan are answered: what it took can be seen now.
    pub(super) fn end_pass(&self, service: &ServiceKey) {
        let mut memory = self.memory();
        memory.under_way.end(service);
        memory.claims.retain(|_, claims| {
            claims.retain(|claim| claim.key != *service);
            !claims.is_empty()
        });
    }

    /// We send nothing more for this object.
    pub(super) fn forget_object(&self, name: &str) {
        self.pacer.forget(name);
        let mut memory = self.memory();
        memory.created.remove(name);
        memory.sent.remove(name);
        memory.deleted.remove(name);
    }

    /// Nothing of the Service is left on Harvester, and after this call nothing of it is left here.
    pub(super) fn forget(&self, service: &ServiceView, name: &str) {
        self.owners.forget(service);
        let service = &service.key;
        self.objects.forget(name);
        self.patched.forget(service);
        self.forget_object(name);
        self.pacer.wants_only(service, &[]);
        self.metrics.waits(service, None);
        let mut memory = self.memory();
        memory.backlog.remove(service);
        memory.unserved.remove(service);
        memory.inherited.remove(service);
        memory.founders.retain(|_, founder| founder != service);
    }
}
