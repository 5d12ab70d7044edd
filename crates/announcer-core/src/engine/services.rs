//! The Services that are ours to announce, as they are planned with: without the addresses that they ask for and do not get,
//! and grouped by the addresses that they share.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Deref;

use crate::annotations::Wanted;
use crate::endpoints::Endpoints;
use crate::group::{Groups, groups};
use crate::screen::{ClusterIps, Machine, Refusal, refusals};
use crate::view::{ServiceKey, ServiceView, Uid};

/// A Service that does not get all that it asks for.
#[derive(Debug)]
struct Refused {
    /// What it asks for.
    asked: Vec<Wanted>,
    refusals: Vec<Refusal>,
}

/// See the module. Reads as a map of views.
#[derive(Debug, Default)]
pub(super) struct Services {
    views: BTreeMap<ServiceKey, ServiceView>,
    /// The first complete list is in.
    listed: bool,
    /// Which of them share an address, and whether one has changed since that was found out.
    groups: Groups,
    changed: bool,
    /// Addresses that Services ask for and do not get; of machines; inside the cluster.
    refused: BTreeMap<ServiceKey, Refused>,
    machines: BTreeMap<IpAddr, Machine>,
    cluster_ips: ClusterIps,
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
    /// A Service has changed, or is gone. Answers with the UID of the Service of this name that is gone now.
    pub fn change(&mut self, key: ServiceKey, view: Option<ServiceView>) -> Option<Uid> {
        self.changed = true;
        let refused = self.refused.remove(&key);
        let before = self.views.remove(&key).map(|before| match refused {
            Some(refused) => ServiceView { wanted: refused.asked, ..before },
            None => before,
        });
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

    /// The first complete list is in.
    pub fn set_listed(&mut self) {
        self.listed = true;
    }

    /// Whether it is.
    pub fn are_listed(&self) -> bool {
        self.listed
    }

    /// Where a Service has endpoints; absent: that is not known any more. True if that is news.
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

    /// Which addresses machines have.
    pub fn set_machines(&mut self, machines: BTreeMap<IpAddr, Machine>) {
        if machines != self.machines {
            self.machines = machines;
            self.changed = true;
        }
    }

    /// Which addresses machines have.
    pub fn machines(&self) -> &BTreeMap<IpAddr, Machine> {
        &self.machines
    }

    /// Which addresses a Service has inside the cluster. True if somebody here asks for one that has come or gone.
    pub fn set_cluster_ips(&mut self, key: &ServiceKey, addresses: Vec<IpAddr>) -> bool {
        let changed = self.cluster_ips.note(key, addresses);
        if changed.is_empty() {
            return false;
        }
        let asked = self.views.values().flat_map(|view| &view.wanted);
        let refused = self.refused.values().flat_map(|refused| &refused.asked);
        let concerns = |wanted: &Wanted| matches!(wanted, Wanted::Static(address) if changed.contains(address));
        let concerned = asked.chain(refused).any(concerns);
        self.changed |= concerned;
        concerned
    }

    /// Screens and groups them anew, if one has changed. Before each plan.
    pub fn settle(&mut self) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        for (key, refused) in std::mem::take(&mut self.refused) {
            if let Some(view) = self.views.get_mut(&key) {
                view.wanted = refused.asked;
            }
        }
        for (key, refusals) in refusals(&self.views, &self.machines, &self.cluster_ips) {
            let Some(view) = self.views.get_mut(&key) else { continue };
            let asked = view.wanted.clone();
            view.wanted.retain(|wanted| !refusals.iter().any(|refusal| *wanted == Wanted::Static(refusal.address)));
            self.refused.insert(key, Refused { asked, refusals });
        }
        self.groups = groups(&self.views);
    }

    /// Which Services share an address.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The Services that share an address with this one, itself included, by seniority.
    pub fn group_of(&self, key: &ServiceKey) -> impl Iterator<Item = &ServiceView> + Clone + '_ {
        let members = self.groups.of.get(key).and_then(|group| self.groups.members.get(group));
        members.into_iter().flatten().filter_map(|key| self.views.get(key))
    }

    /// What is refused to whom.
    pub fn refusals(&self) -> impl Iterator<Item = (&ServiceKey, &Refusal)> {
        self.refused.iter().flat_map(|(key, refused)| refused.refusals.iter().map(move |refusal| (key, refusal)))
    }

    /// Whether clients have been told before that one of `members` has `address`.
    pub fn was_in_use(&self, members: &[ServiceKey], address: IpAddr) -> bool {
        members
            .iter()
            .filter_map(|key| self.views.get(key))
            .any(|view| view.published.has(address) && view.published.vip_host.is_some())
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
