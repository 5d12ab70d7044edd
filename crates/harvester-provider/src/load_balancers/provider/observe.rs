//! Gathers everything that a decision depends on, for `plan`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use cloud_provider::service::wants_load_balancer;
use cloud_provider::view::{ServiceKey, ServiceView};
use harvester_api::keys::cloudprovider::CLUSTER_UID;
use harvester_api::keys::{kube_vip, loadbalancer};

use super::super::choice::{self, AddressHolder, Source};
use super::super::owned::Owned;
use super::super::plan::{self, Plan, World};
use super::super::sharing;
use super::super::view::LbView;
use super::HarvesterLoadBalancers;
use super::memory::{DecisionInputs, Now, ProviderState};
use crate::config::LoadBalancerConfig;
use crate::identity::proof::{cluster_of, is_proven};

/// The address that no other Service may have: the static one that the Service requests, or the one that was allocated
/// for it. True: only a Service with this static address conflicts.
fn address_in_question(service: &ServiceView, lb: Option<&LbView>) -> Option<(IpAddr, bool)> {
    match choice::source(service).ok()? {
        Source::Static(address) => Some((address, false)),
        Source::Pool(_) => Some((lb?.usable_address.as_deref()?.parse().ok()?, true)),
        Source::Dhcp => None,
    }
}

/// Whether the Service already shows the address, or is served at it.
fn is_shown(service: &ServiceView, address: IpAddr) -> bool {
    sharing::shows_ip(service, address) || service.ingress.contains(&address)
}

/// Another Service whose pass is about to publish that address; no object shows it yet.
fn address_claimed(service: &ServiceView, memory: &ProviderState, lb: Option<&LbView>) -> Option<ServiceKey> {
    let (address, only_static) = address_in_question(service, lb)?;
    // Harvester may have booked one address twice, for two Services that come at the same time. Who shows it already
    // does not wait for somebody who is about to.
    let only_static = only_static && is_shown(service, address);
    memory.passes.under_way.publisher(&service.key, address, only_static).cloned()
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

    /// Services that have an address of these objects, whatever they request.
    pub(super) fn users(
        &self,
        service: &ServiceView,
        owned: &Owned,
        config: &LoadBalancerConfig,
    ) -> Vec<Arc<ServiceView>> {
        let lbs: Vec<&LbView> = owned.lb.iter().chain(&owned.others).map(Arc::as_ref).collect();
        let addresses: Vec<&str> = lbs.iter().filter_map(|lb| lb.usable_address.as_deref()).collect();
        let mut there = service.clone();
        there.annotations.insert(kube_vip::LOADBALANCER_IPS, &addresses.join(","));
        sharing::users(service, &lbs, self.beside(&there), config.share_across_namespaces)
    }

    /// Another Service that has the static address which this one requests, or one with a static address that was also
    /// allocated for this one.
    pub(super) fn address_user(
        &self,
        service: &ServiceView,
        lb: Option<&LbView>,
        objects: impl Fn(&ServiceView) -> Vec<Arc<LbView>>,
    ) -> Option<ServiceKey> {
        let (address, only_static) = address_in_question(service, lb)?;
        let mut there = service.clone();
        there.annotations.insert(kube_vip::LOADBALANCER_IPS, &address.to_string());
        there.ingress = Vec::new();
        let mut others = self.beside(&there);
        // A Service that shared this one's address and now requests it as a static one has it from here, and is refused
        // itself.
        let has_it = |other: &ServiceView| {
            choice::static_address(other) == Some(address) && !sharing::wears_label_of(other, &service.key)
        };
        // An address that another Service shows takes precedence over an allocation. After a restore of the host, or if
        // the pool was created again, the host does not know which addresses are in use. The Service that showed the
        // address first keeps it; this one waits until that Service has left the address.
        let shows_it = |other: &ServiceView| {
            !is_shown(service, address)
                && wants_load_balancer(other)
                && sharing::shows_ip(other, address)
                && !sharing::wears_label_of(other, &service.key)
        };
        others.retain(|other| !only_static || has_it(other) || shows_it(other));
        sharing::other_user(service, &[address].into(), &others, objects)
    }

    /// The Node, ClusterIP or gateway that has the static address which this Service requests. If the Service is
    /// already served at the address it keeps it: its clients know the address, and taking it away would help no one.
    pub(super) fn address_holder(&self, service: &ServiceView) -> Option<AddressHolder> {
        let address = choice::static_address(service).filter(|address| !service.ingress.contains(address))?;
        let gateway = || {
            let lbs = self.lbs.all().into_iter().filter(|lb| lb.gateway == Some(address));
            // The order of the objects must not show in the text.
            lbs.map(|lb| lb.annotation(loadbalancer::NETWORK).to_owned()).max()
        };
        choice::holder(address, &self.given.server, &self.nodes.all(), &self.services.all())
            .or_else(|| gateway().map(AddressHolder::Gateway))
    }

    /// The limit, if one more load balancer would exceed it. Two kinds count besides those in the watch: objects that
    /// the watch does not show yet, unless they were deleted before they had an address, and objects that are just
    /// being created for other Services.
    pub(super) fn quota_reached(
        &self,
        service: &ServiceKey,
        memory: &ProviderState,
        config: &LoadBalancerConfig,
    ) -> Option<usize> {
        let limit = config.max_load_balancers?;
        let of_this_cluster = |lb: &LbView| {
            config.cluster_uids.is_empty()
                || lb.annotation(CLUSTER_UID).is_empty()
                || config.cluster_uids.iter().any(|uid| uid == lb.annotation(CLUSTER_UID))
                // The object is from before Service default/kubernetes was created again.
                || lb.service_key().and_then(|key| self.services.get(&key)).is_some_and(|owner| is_proven(lb, &owner))
        };
        let ours = |lb: &Arc<LbView>| cluster_of(lb).as_ref() == Some(&config.cluster_name) && of_this_cluster(lb);
        let shown = self.lbs.all().iter().filter(|lb| ours(lb)).count();
        let created = memory.unpublished().filter(|name| self.objects.get(name).is_some());
        let unseen: BTreeSet<&String> = created.chain(memory.passes.under_way.objects(service)).collect();
        let unseen = unseen.into_iter().filter(|name| self.lbs.get(name).is_none()).count();
        (shown + unseen >= limit).then_some(limit)
    }

    /// Observes, decides and stores the decision in one step. If two Services decide concurrently, the second one sees
    /// what the first one is about to take.
    pub(super) fn decide(&self, service: &ServiceView, config: &LoadBalancerConfig, owned: &Owned, now: Now) -> Plan {
        let (name, lb) = (owned.name.as_str(), &owned.lb);
        let primary = sharing::shared_with(service, |key| self.service(key), |group| self.leader(group, config));
        let shared = primary.as_ref().ok().and_then(Clone::clone);
        let primary_lb = shared.as_ref().and_then(|primary| self.owned(primary, config).lb);
        let sharers = self.sharers(service, config);
        let users = self.users(service, owned, config);
        let beside_primary = shared.as_ref().map(|primary| self.sharers(primary, config)).unwrap_or_default();
        let mapping = self.mapping.get();
        let ages = owned.lb.iter().chain(&owned.others).map(|lb| (lb.uid.clone(), self.objects.age(lb))).collect();

        let mut memory = self.memory();
        let occupants = match &shared {
            Some(primary) => plan::occupants(primary, &beside_primary, memory.passes.claims(&primary.key)),
            None => plan::occupants(service, &sharers, Vec::new()),
        };
        let creates = owned.lb.as_deref().is_none_or(|lb| {
            choice::source(service).is_ok_and(|source| plan::needs_object(lb, &owned.others, &source))
        });
        let quota_reached = if creates { self.quota_reached(&service.key, &memory, config) } else { None };
        let unserved = memory.unserved(service, now);
        let to_be_shown = to_be_shown(service, owned);
        let objects = |other: &ServiceView| {
            let owned = self.owned_as_remembered(other, config, &memory);
            owned.lb.into_iter().chain(owned.others).collect()
        };
        let world = World {
            config,
            name,
            lb: lb.as_deref(),
            others: &owned.others,
            address_user: self.address_user(service, to_be_shown, objects),
            address_claimed: address_claimed(service, &memory, to_be_shown),
            address_holder: self.address_holder(service),
            quota_reached,
            unserved: unserved.as_ref().map(|unserved| unserved.elapsed(now.monotonic)),
            mapping: mapping.as_deref(),
            primary,
            primary_lb: primary_lb.as_deref(),
            sharers: &sharers,
            users: &users,
            taken: lb.is_none() && sharing::is_taken(service, &self.beside(service), objects),
            occupants: &occupants,
            now: now.unix,
            idle: memory.idle(name, lb.as_deref(), now),
            ages: &ages,
        };
        let plan = plan::ensure(service, &world);
        let primary = shared.as_ref().map(|primary| &primary.key);
        memory.decided(service, DecisionInputs { name, lb: lb.as_deref(), unserved, primary, now }, &plan);
        plan
    }

    /// Removes all state about an object that gets no more requests.
    pub(super) fn forget_object(&self, name: &str) {
        self.pacer.forget(name);
        self.memory().forget_object(name);
    }

    /// Removes all state about a Service of which nothing is left on Harvester.
    pub(super) fn forget(&self, service: &ServiceView, name: &str) {
        self.owners.forget(service);
        let service = &service.key;
        self.objects.forget(name);
        self.patched.forget(service);
        self.forget_object(name);
        self.pacer.wants_only(service, &[]);
        self.metrics.waits(service, None);
        self.breaker.lock().done(service);
        self.memory().forget_service(service);
    }
}
