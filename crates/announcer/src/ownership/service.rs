//! `service` mode: one Lease per Service, kube-vip's names and identity (kube-vip spec 4), so that a kube-vip on another
//! node and this announcer exclude each other.
//!
//! Services that share an address follow the Lease of the oldest one: kube-vip's Leases know nothing of one another, and
//! the address ends up on two nodes (kube-vip spec 3.9). The Leases of the others are taken too, by whoever has the first
//! one, so that no kube-vip announces the address for their sake.

use std::collections::{BTreeMap, BTreeSet};

use super::{LeaseState, Owner, Ownership};
use crate::endpoints::{Endpoints, eligible_nodes};
use crate::group::groups;
use crate::view::{ServiceKey, ServiceView};

/// A Lease by namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl LeaseKey {
    /// kube-vip spec 4: `kubevip-<service>` beside the Service, unless its annotation names another one, as `name` or
    /// `namespace/name`.
    pub fn of(view: &ServiceView) -> Self {
        let own = || (view.key.namespace.clone(), format!("kubevip-{}", view.key.name));
        let (namespace, name) = match view.lease_name.as_deref().map(|text| text.split_once('/').ok_or(text)) {
            None => own(),
            Some(Ok((namespace, name))) => (namespace.to_owned(), name.to_owned()),
            Some(Err(name)) => (view.key.namespace.clone(), name.to_owned()),
        };
        Self { namespace, name }
    }
}

/// kube-vip's Leases per Service.
#[derive(Debug, Default)]
pub(crate) struct ServiceLeases {
    node: String,
    states: BTreeMap<LeaseKey, LeaseState>,
    /// The Lease that decides about each Service; absent: this node takes no part.
    decides: BTreeMap<ServiceKey, LeaseKey>,
    wanted: BTreeSet<LeaseKey>,
}

impl ServiceLeases {
    /// Knows nothing.
    pub fn new(node: String) -> Self {
        Self { node, ..Self::default() }
    }

    /// An election says something new; true if it is.
    pub fn lease(&mut self, key: LeaseKey, state: LeaseState) -> bool {
        if !self.wanted.contains(&key) {
            return false;
        }
        self.states.insert(key, state.clone()) != Some(state)
    }

    /// In which elections to take part. kube-vip competes for a Service with policy Local only where it has endpoints.
    pub fn campaign(
        &mut self,
        services: &BTreeMap<ServiceKey, ServiceView>,
        endpoints: &Endpoints,
        stopping: bool,
    ) -> &BTreeSet<LeaseKey> {
        if stopping {
            self.wanted.clear();
            return &self.wanted;
        }
        self.decides.clear();
        self.wanted.clear();
        for members in groups(services).members.values() {
            let views: Vec<&ServiceView> = members.iter().filter_map(|key| services.get(key)).collect();
            let eligible = eligible_nodes(views.iter().copied(), endpoints);
            if !eligible.includes(&self.node) {
                continue;
            }
            let Some(first) = views.iter().find(|view| !view.retired).or(views.first()) else { continue };
            let decides = LeaseKey::of(first);
            self.decides.extend(members.iter().map(|key| (key.clone(), decides.clone())));
            if matches!(self.states.get(&decides), Some(LeaseState::Held { .. })) {
                self.wanted.extend(views.iter().map(|view| LeaseKey::of(view)));
            }
            self.wanted.insert(decides);
        }
        self.states.retain(|key, _| self.wanted.contains(key));
        &self.wanted
    }

    fn state(&self, service: &ServiceView) -> Option<&LeaseState> {
        self.states.get(self.decides.get(&service.key)?)
    }
}

impl Ownership for ServiceLeases {
    fn of(&self, service: &ServiceView) -> Owner {
        if !self.decides.contains_key(&service.key) {
            return Owner::Theirs;
        }
        self.state(service).map_or(Owner::Undecided, |state| state.owner(&self.node))
    }

    fn confirmed(&self, service: &ServiceView) -> bool {
        self.state(service) == Some(&LeaseState::Held { confirmed: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::view;

    const MINE: LeaseState = LeaseState::Held { confirmed: true };

    fn services(views: &[ServiceView]) -> BTreeMap<ServiceKey, ServiceView> {
        views.iter().map(|view| (view.key.clone(), view.clone())).collect()
    }

    fn names(wanted: &BTreeSet<LeaseKey>) -> Vec<String> {
        wanted.iter().map(|key| format!("{}/{}", key.namespace, key.name)).collect()
    }

    #[test]
    fn leases_have_kube_vips_names() {
        for (annotation, expected) in
            [(None, "default/kubevip-web"), (Some("common"), "default/common"), (Some("infra/common"), "infra/common")]
        {
            let view = ServiceView { lease_name: annotation.map(str::to_owned), ..view("web", &["10.0.0.5"]) };
            let key = LeaseKey::of(&view);
            assert_eq!(format!("{}/{}", key.namespace, key.name), expected);
        }
    }

    #[test]
    fn each_service_has_its_own_owner() {
        let all = services(&[view("a", &["10.0.0.5"]), view("b", &["10.0.0.6"])]);
        let mut leases = ServiceLeases::new("node-1".into());
        assert_eq!(names(leases.campaign(&all, &Endpoints::new(), false)), ["default/kubevip-a", "default/kubevip-b"]);
        let owner = |leases: &ServiceLeases, name: &str| leases.of(&view(name, &[]));
        assert_eq!(owner(&leases, "a"), Owner::Undecided);
        let key = |name: &str| LeaseKey { namespace: "default".into(), name: format!("kubevip-{name}") };
        assert!(leases.lease(key("a"), MINE) && !leases.lease(key("a"), MINE), "news once");
        assert!(leases.lease(key("b"), LeaseState::Other("node-2".into())));
        assert_eq!((owner(&leases, "a"), owner(&leases, "b")), (Owner::Mine, Owner::Theirs));
        assert!(!leases.lease(key("c"), MINE), "a Lease of nobody here");
    }

    #[test]
    fn services_on_one_address_follow_the_oldest_and_its_holder_takes_the_other_leases_too() {
        let old = ServiceView { created: 1, ..view("old", &["10.0.0.5"]) };
        let young = ServiceView { created: 2, ..view("young", &["10.0.0.5"]) };
        let all = services(&[old.clone(), young.clone()]);
        let mut leases = ServiceLeases::new("node-1".into());
        assert_eq!(names(leases.campaign(&all, &Endpoints::new(), false)), ["default/kubevip-old"]);
        leases.lease(LeaseKey::of(&old), MINE);
        assert_eq!(leases.of(&young), Owner::Mine);
        assert_eq!(leases.campaign(&all, &Endpoints::new(), false).len(), 2);
        leases.lease(LeaseKey::of(&young), LeaseState::Other("node-2".into()));
        assert_eq!(leases.of(&young), Owner::Mine, "never on two nodes");
    }

    #[test]
    fn where_a_local_service_has_no_endpoint_no_part_is_taken() {
        let web = ServiceView { local_traffic: true, ..view("web", &["10.0.0.5"]) };
        let all = services(std::slice::from_ref(&web));
        let mut leases = ServiceLeases::new("node-1".into());
        let endpoints = Endpoints::from([(web.key.clone(), BTreeSet::from(["node-2".to_owned()]))]);
        assert!(leases.campaign(&all, &endpoints, false).is_empty());
        assert_eq!(leases.of(&web), Owner::Theirs);
    }

    #[test]
    fn the_end_leaves_all_elections_and_keeps_what_is_served() {
        let web = view("web", &["10.0.0.5"]);
        let all = services(std::slice::from_ref(&web));
        let mut leases = ServiceLeases::new("node-1".into());
        leases.campaign(&all, &Endpoints::new(), false);
        leases.lease(LeaseKey::of(&web), MINE);
        assert!(leases.campaign(&all, &Endpoints::new(), true).is_empty());
        assert_eq!(leases.of(&web), Owner::Mine);
    }
}
