//! The Services of this announcer as the plan sees them: without refused addresses, and grouped by the addresses that
//! they share.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Deref;
use std::time::{Duration, Instant};

use super::Engine;
use crate::annotations::AddressRequest;
use crate::endpoints::Endpoints;
use crate::group::{Groups, groups};
use crate::screen::{ClusterIps, ForbiddenAddress, ServiceRefusal, refusals};
use crate::view::{Giver, ServiceKey, ServiceView, Uid};

/// A Service that gets only a part of what it asks for.
#[derive(Debug)]
struct Refused {
    /// The Service as its author wrote it.
    asked: ServiceView,
    refusals: Vec<ServiceRefusal>,
}

/// How long a Service waits for a cloud controller before its author is told. A running controller needs a few seconds.
pub(super) const UNGRANTED: Duration = Duration::from_secs(30);

/// The Services; dereferences to the map of views.
#[derive(Debug, Default)]
pub(super) struct Services {
    views: BTreeMap<ServiceKey, ServiceView>,
    /// The first list is complete.
    listed: bool,
    /// The groups, and whether a Service has changed since they were computed.
    groups: Groups,
    changed: bool,
    /// Services whose addresses are partly refused.
    refused: BTreeMap<ServiceKey, Refused>,
    /// Services that wait for a grant, and since when.
    ungranted: BTreeMap<ServiceKey, Option<Instant>>,
    /// Whether a cloud controller gives addresses; `None`: not configured.
    controller: Option<bool>,
    forbidden: BTreeMap<IpAddr, ForbiddenAddress>,
    cluster_ips: ClusterIps,
    /// Macvlans that a kube-vip may have for Services of another class.
    macvlans_of_others: BTreeMap<ServiceKey, String>,
    /// Nodes with endpoints of Services with policy Local.
    endpoints: Endpoints,
}

impl Deref for Services {
    type Target = BTreeMap<ServiceKey, ServiceView>;

    fn deref(&self) -> &Self::Target {
        &self.views
    }
}

impl Services {
    /// Starts without Services. `controller`: whether a cloud controller gives addresses; `None`: not configured.
    pub fn new(controller: Option<bool>) -> Self {
        Self { controller, ..Self::default() }
    }

    /// A Service has changed; `None`: it is deleted. Returns the UID of the Service of this name that has gone.
    pub fn change(&mut self, key: ServiceKey, view: Option<ServiceView>) -> Option<Uid> {
        self.changed = true;
        let refused = self.refused.remove(&key);
        let before = self.views.remove(&key);
        let before = refused.map(|refused| refused.asked).or(before);
        let (view, gone) = match (view, before) {
            (Some(view), Some(before)) => {
                let gone = (view.uid != before.uid).then(|| before.uid.clone());
                (Some(view.following(&before)), gone)
            }
            (view, before) => (view, before.map(|before| before.uid)),
        };
        if let Some(view) = view {
            self.views.insert(key, view);
        }
        gone
    }

    /// The first list is complete.
    pub fn set_listed(&mut self) {
        self.listed = true;
    }

    /// Whether the first list is complete.
    pub fn are_listed(&self) -> bool {
        self.listed
    }

    /// Sets the nodes with endpoints of a Service; `None`: not known any more. Returns true if that is news.
    pub fn set_endpoints(&mut self, key: ServiceKey, nodes: Option<BTreeSet<String>>) -> bool {
        match nodes {
            Some(nodes) if self.endpoints.get(&key) == Some(&nodes) => false,
            Some(nodes) => {
                self.endpoints.insert(key, nodes);
                true
            }
            None => self.endpoints.remove(&key).is_some(),
        }
    }

    /// Nodes with endpoints of Services with policy Local.
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// Sets the addresses that no Service may have.
    pub fn set_forbidden(&mut self, forbidden: BTreeMap<IpAddr, ForbiddenAddress>) {
        if forbidden != self.forbidden {
            self.forbidden = forbidden;
            self.changed = true;
        }
    }

    /// The addresses that no Service may have.
    pub fn forbidden(&self) -> &BTreeMap<IpAddr, ForbiddenAddress> {
        &self.forbidden
    }

    /// Sets the cluster IPs of a Service. Returns true if a view asks for an address that was added or removed.
    pub fn set_cluster_ips(&mut self, key: &ServiceKey, addresses: Vec<IpAddr>) -> bool {
        let changed = self.cluster_ips.note(key, addresses);
        if changed.is_empty() {
            return false;
        }
        let asked = self.views.values().flat_map(|view| &view.wanted);
        let refused = self.refused.values().map(|refused| &refused.asked);
        let refused = refused.flat_map(|asked| asked.wanted.iter().chain(asked.granted.iter().flatten()));
        let concerns =
            |wanted: &AddressRequest| matches!(wanted, AddressRequest::Static(address) if changed.contains(address));
        let concerned = asked.chain(refused).any(concerns);
        self.changed |= concerned;
        concerned
    }

    /// Sets the macvlan that a kube-vip may have for a Service of another class; `None`: it is of ours, or gone.
    pub fn set_macvlan_of_others(&mut self, key: &ServiceKey, name: Option<String>) {
        match name {
            Some(name) => self.macvlans_of_others.insert(key.clone(), name),
            None => self.macvlans_of_others.remove(key),
        };
    }

    /// Whether a macvlan of this name is that of a Service of another class.
    pub fn is_macvlan_of_others(&self, name: &str) -> bool {
        self.macvlans_of_others.values().any(|other| other == name)
    }

    /// Screens and groups the Services again, if one has changed. Runs before each plan.
    pub fn settle(&mut self) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        for (key, refused) in std::mem::take(&mut self.refused) {
            self.views.insert(key, refused.asked);
        }
        self.apply_grants();
        for (key, refusals) in refusals(&self.views, &self.forbidden, &self.cluster_ips) {
            let Some(view) = self.views.get_mut(&key) else { continue };
            let asked = view.clone();
            view.wanted
                .retain(|wanted| !refusals.iter().any(|refusal| *wanted == AddressRequest::Static(refusal.address)));
            self.refused.entry(key).or_insert_with(|| Refused { asked, refusals: Vec::new() }).refusals = refusals;
        }
        self.groups = groups(&self.views);
    }

    /// Where a cloud controller gives addresses, a Service gets what was granted and nothing else.
    fn apply_grants(&mut self) {
        let mut waiting = BTreeMap::new();
        // Every node sees the same Services and comes to the same answer. A finalizer alone does not count, because
        // another controller may have left it.
        let managed =
            self.controller.unwrap_or_else(|| self.views.values().any(|view| view.giver == Giver::Controller));
        for (key, view) in &mut self.views {
            let Some(granted) = view.as_granted().filter(|_| managed) else { continue };
            if granted.wanted.is_empty() {
                waiting.insert(key.clone(), self.ungranted.get(key).copied().flatten());
            }
            let asked = std::mem::replace(view, granted);
            self.refused.insert(key.clone(), Refused { asked, refusals: Vec::new() });
        }
        self.ungranted = waiting;
    }

    /// Services that have waited for a grant for longer than [`UNGRANTED`], and what they ask for.
    pub fn long_ungranted(&mut self, now: Instant) -> Vec<(ServiceKey, Vec<AddressRequest>)> {
        let mut long = Vec::new();
        for (key, since) in &mut self.ungranted {
            if now >= *since.get_or_insert(now) + UNGRANTED {
                let asked = self.refused.get(key).map(|refused| refused.asked.wanted.clone());
                long.extend(asked.filter(|asked| !asked.is_empty()).map(|asked| (key.clone(), asked)));
            }
        }
        long
    }

    /// The groups of Services that share an address.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The Services of the group of `key`, including its own, by seniority.
    pub fn group_of(&self, key: &ServiceKey) -> impl Iterator<Item = &ServiceView> + Clone + '_ {
        let members = self.groups.of.get(key).and_then(|group| self.groups.members.get(group));
        members.into_iter().flatten().filter_map(|key| self.views.get(key))
    }

    /// The refused addresses of each Service.
    pub fn refusals(&self) -> impl Iterator<Item = (&ServiceKey, &ServiceRefusal)> {
        self.refused.iter().flat_map(|(key, refused)| refused.refusals.iter().map(move |refusal| (key, refusal)))
    }

    /// Whether clients were told before that one of `members` has `address`.
    pub fn was_in_use(&self, members: &[ServiceKey], address: IpAddr) -> bool {
        members
            .iter()
            .filter_map(|key| self.views.get(key))
            .any(|view| view.published.has(address) && view.published.vip_host.is_some())
    }
}

impl Engine {
    pub(super) fn service_changed(&mut self, now: Instant, key: &ServiceKey, view: Option<ServiceView>) {
        self.out.replan();
        if let Some(cluster) = self.cluster() {
            cluster.changed(now, key);
        }
        if let Some(view) = &view {
            self.service_present(key, view);
        }
        if let Some(gone) = self.services.change(key.clone(), view) {
            self.dhcp.forget(&gone);
            self.node_mode.changes.forget(key);
        }
    }

    /// A new list does not have this Service, and nobody has seen how it went. Its lease is not given back: etcd may
    /// have been restored, and the Service may come back with it. What was seen on its way out is gone.
    pub(super) fn service_missing(&mut self, now: Instant, key: &ServiceKey) {
        if let Some(view) = self.services.get(key).filter(|view| !view.retired) {
            self.dhcp.note_missing(&view.uid);
        }
        self.service_changed(now, key, None);
    }

    /// A Service is there. One of this name that it replaces was deleted, unless that one is the younger of the two:
    /// then etcd was restored.
    fn service_present(&mut self, key: &ServiceKey, view: &ServiceView) {
        self.dhcp.note_present(&view.uid);
        let replaced = self.services.get(key).filter(|before| before.uid != view.uid && before.created > view.created);
        if let Some(before) = replaced {
            self.dhcp.note_missing(&before.uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fixtures::view;

    fn key(name: &str) -> ServiceKey {
        ServiceKey::new("default", name)
    }

    fn services(views: &[ServiceView]) -> Services {
        let mut services = Services::default();
        for view in views {
            assert_eq!(services.change(view.key.clone(), Some(view.clone())), None);
        }
        services.settle();
        services
    }

    #[test]
    fn what_is_gone_is_told_by_its_uid() {
        let mut services = services(&[view("web", &["10.0.0.5"])]);
        let again = ServiceView { uid: Uid("later".into()), ..view("web", &["10.0.0.5"]) };
        assert_eq!(services.change(key("web"), Some(view("web", &["10.0.0.6"]))), None, "it has changed");
        assert_eq!(services.change(key("web"), Some(again)), Some(view("web", &[]).uid));
        assert_eq!(services.change(key("web"), None), Some(Uid("later".into())));
        assert_eq!(services.change(key("web"), None), None);
    }

    #[test]
    fn what_is_refused_is_not_planned_with_and_comes_back_when_it_is_free() {
        let mut services = services(&[view("web", &["10.0.0.5", "10.0.0.6"])]);
        let wanted = |services: &Services| services[&key("web")].wanted.len();
        assert!(services.set_cluster_ips(&key("dns"), vec!["10.0.0.5".parse().unwrap()]));
        assert!(!services.set_cluster_ips(&key("other"), vec!["10.0.0.7".parse().unwrap()]), "nobody asks for it");
        services.settle();
        assert_eq!((wanted(&services), services.refusals().count()), (1, 1));
        // A change of the Service itself is compared with all that it asked for.
        services.change(key("web"), Some(view("web", &["10.0.0.5", "10.0.0.6"])));
        services.settle();
        assert_eq!((wanted(&services), services.refusals().count()), (1, 1));
        assert!(services.set_cluster_ips(&key("dns"), Vec::new()));
        services.settle();
        assert_eq!((wanted(&services), services.refusals().count()), (2, 0));
    }

    #[test]
    fn a_wish_counts_where_nobody_gives_addresses_and_not_where_somebody_does() {
        let wish = ServiceView { granted: Some(Vec::new()), ..view("web", &["10.0.0.5"]) };
        let managed = ServiceView { giver: Giver::Controller, ..view("other", &["10.0.0.6"]) };
        for (what, controller, others, counts) in [
            ("nobody is known to give any", None, false, true),
            ("somebody is", None, true, false),
            ("there is said to be somebody", Some(true), false, false),
            ("there is said to be nobody", Some(false), true, true),
        ] {
            let mut services = Services::new(controller);
            services.change(key("web"), Some(wish.clone()));
            if others {
                services.change(key("other"), Some(managed.clone()));
            }
            services.settle();
            assert_eq!(services[&key("web")].wanted.is_empty(), !counts, "{what}");
            // Where nobody has said it, what is given shows that there is somebody: with its last Service that is over.
            services.change(key("other"), None);
            services.settle();
            let counts = counts || controller.is_none();
            assert_eq!(services[&key("web")].wanted.is_empty(), !counts, "{what}");
            let now = Instant::now();
            assert_eq!(services.long_ungranted(now), []);
            let waits = services.long_ungranted(now + UNGRANTED);
            assert_eq!(waits.is_empty(), counts, "{what}");
            assert!(counts || waits[0].1 == wish.wanted, "{what}");
            let given = ServiceView { granted: None, ..wish.clone() };
            services.change(key("web"), Some(given.clone()));
            services.settle();
            assert_eq!(services.long_ungranted(now + UNGRANTED), [], "{what}");
            assert_eq!(services[&key("web")], given, "{what}");
        }
    }

    #[test]
    fn what_was_given_is_screened_like_everything_else() {
        let wanted = vec![AddressRequest::Static("10.0.0.5".parse().unwrap())];
        let squatter = ServiceView { granted: Some(wanted.clone()), ..view("web", &["10.0.0.9"]) };
        let mut services = Services::new(Some(true));
        services.change(key("web"), Some(squatter));
        services.set_cluster_ips(&key("dns"), vec!["10.0.0.5".parse().unwrap()]);
        services.settle();
        assert_eq!((services[&key("web")].wanted.len(), services.refusals().count()), (0, 1));
        services.set_cluster_ips(&key("dns"), Vec::new());
        services.settle();
        assert_eq!((services[&key("web")].wanted.clone(), services.refusals().count()), (wanted, 0));
    }

    #[test]
    fn services_on_one_address_are_one_group() {
        let b = ServiceView { ports: Vec::new(), ..view("b", &["10.0.0.5"]) };
        let services = services(&[view("a", &["10.0.0.5"]), b, view("c", &["10.0.0.6"])]);
        let names = |name: &str| services.group_of(&key(name)).map(|view| view.key.name.clone()).collect::<Vec<_>>();
        assert_eq!((names("b"), names("c")), (vec!["a".to_owned(), "b".to_owned()], vec!["c".to_owned()]));
        assert!(names("nobody").is_empty());
    }

    #[test]
    fn only_other_endpoints_are_news() {
        let mut services = Services::default();
        let nodes = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>());
        assert!(services.set_endpoints(key("web"), nodes(&["node-1"])));
        assert!(!services.set_endpoints(key("web"), nodes(&["node-1"])));
        assert!(services.set_endpoints(key("web"), nodes(&[])) && services.set_endpoints(key("web"), None));
        assert!(!services.set_endpoints(key("web"), None));
    }
}
