//! Decides which Services have to be reconciled when something changes (W-16). Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use cloud_provider::view::{NodeView, Protocol, ServiceKey, ServiceView};
use harvester_api::keys::{cloudprovider, kube_vip, loadbalancer};

use super::choice::node_addresses;
use super::neighbours::addresses;
use super::network::wanted_network;
use super::sharing::{Group, group_of, named_primary};
use super::view::LbView;
use crate::config::LoadBalancerConfig;
use crate::identity::proof::is_proven;

/// The parts of a Service that others depend on.
#[derive(Debug, PartialEq, Eq)]
struct Digest {
    primary: Option<ServiceKey>,
    group: Option<Group>,
    chained: bool,
    /// Namespaces that may share its address.
    shares_with: Option<String>,
    is_ours: bool,
    deleting: bool,
    ingress: Vec<IpAddr>,
    network: String,
    shows: Option<String>,
    /// Addresses that no other Service may take as a static one.
    holds: BTreeSet<IpAddr>,
    label: Option<String>,
    ports: BTreeSet<(Protocol, u16)>,
}

impl From<&ServiceView> for Digest {
    fn from(service: &ServiceView) -> Self {
        Self {
            primary: named_primary(service).and_then(Result::ok),
            group: group_of(service),
            chained: service.annotations.get(cloudprovider::PRIMARY_SERVICE).is_some_and(|value| !value.is_empty()),
            shares_with: service.annotations.get(cloudprovider::SHARE_WITH).map(str::to_owned),
            is_ours: service.is_load_balancer && !service.has_class,
            deleting: service.deleting,
            ingress: service.ingress.clone(),
            network: wanted_network(service).to_owned(),
            shows: service.annotations.get(kube_vip::LOADBALANCER_IPS).map(str::to_owned),
            holds: {
                let shown = service.is_load_balancer && !service.deleting;
                let shown = if shown { addresses(service) } else { BTreeSet::new() };
                shown.into_iter().chain(service.cluster_ips.iter().copied()).collect()
            },
            label: service.labels.get(cloudprovider::PRIMARY_SERVICE).map(str::to_owned),
            ports: service.ports.clone(),
        }
    }
}

/// Stores what Services looked like, to find those that depend on a change.
#[derive(Debug, Default)]
pub struct ServiceWakes {
    seen: BTreeMap<ServiceKey, Arc<ServiceView>>,
}

impl ServiceWakes {
    /// The Services to reconcile after `key` changed, appeared or is gone. These are: the Service itself if its ingress
    /// changed (the framework ignores the status), the Services that share its address, the Service whose address it
    /// shares and the others that share that one, and Services that want an address which it has given up. `naming`
    /// finds Services that name a Service as primary, `grouped` those that name a group, `wanting` those that want a
    /// static address.
    pub fn touched(
        &mut self,
        key: &ServiceKey,
        now: Option<&Arc<ServiceView>>,
        naming: impl Fn(&ServiceKey) -> Vec<Arc<ServiceView>>,
        grouped: impl Fn(&Group) -> Vec<Arc<ServiceView>>,
        wanting: impl Fn(IpAddr) -> BTreeSet<ServiceKey>,
    ) -> BTreeSet<ServiceKey> {
        let digest = |service: &Arc<ServiceView>| Digest::from(&**service);
        let new = now.map(digest);
        let old = match now {
            Some(now) => self.seen.insert(key.clone(), Arc::clone(now)),
            None => self.seen.remove(key),
        };
        let old = old.as_ref().map(digest);
        if old == new {
            return BTreeSet::new();
        }
        let mut primaries: BTreeSet<ServiceKey> =
            [&old, &new].into_iter().flatten().filter_map(|digest| digest.primary.clone()).collect();
        let mut wake = primaries.clone();
        primaries.insert(key.clone());
        wake.extend(primaries.iter().flat_map(naming).map(|service| service.key.clone()));
        let groups = [&old, &new].into_iter().flatten().filter_map(|digest| digest.group.as_ref());
        wake.extend(groups.flat_map(grouped).map(|service| service.key.clone()));
        let holds = |digest: &Option<Digest>| digest.as_ref().map(|digest| digest.holds.clone()).unwrap_or_default();
        wake.extend(holds(&old).difference(&holds(&new)).copied().flat_map(wanting));
        wake.remove(key);
        let ingress =
            |digest: &Option<Digest>| digest.as_ref().map(|digest| digest.ingress.clone()).unwrap_or_default();
        if ingress(&old) != ingress(&new) {
            wake.insert(key.clone());
        }
        wake
    }
}

/// Stores the addresses of Nodes, to find addresses that a Node has given up.
#[derive(Debug, Default)]
pub struct NodeWakes {
    seen: BTreeMap<String, BTreeSet<IpAddr>>,
}

impl NodeWakes {
    /// The Services to reconcile after the Node called `name` changed, appeared or is gone: those that want an address
    /// which it has given up.
    pub fn touched(
        &mut self,
        name: &str,
        now: Option<&NodeView>,
        wanting: impl Fn(IpAddr) -> BTreeSet<ServiceKey>,
    ) -> BTreeSet<ServiceKey> {
        let new = now.map(node_addresses).unwrap_or_default();
        let old = self.seen.remove(name).unwrap_or_default();
        let wake = old.difference(&new).copied().flat_map(wanting).collect();
        if !new.is_empty() {
            self.seen.insert(name.to_owned(), new);
        }
        wake
    }
}

/// Stores which Service owns the object of a name, for when the object is gone.
#[derive(Debug, Default)]
pub struct ObjectWakes {
    owners: BTreeMap<String, ServiceKey>,
}

impl ObjectWakes {
    /// The Service of the object called `name`, which changed, appeared or is gone. Guest clusters may share a
    /// namespace, and objects of other clusters wake no Service. `all` Services are searched only if the labels do not
    /// tell.
    pub fn touched(
        &mut self,
        name: &str,
        now: Option<&LbView>,
        config: &LoadBalancerConfig,
        all: impl FnOnce() -> Vec<Arc<ServiceView>>,
    ) -> Option<ServiceKey> {
        let Some(lb) = now else { return self.owners.remove(name) };
        // An object may be handed over from one Service to another, so its present labels decide.
        let as_named = |owner: &ServiceKey| {
            lb.service().is_none_or(|named| named == (owner.namespace.as_str(), owner.name.as_str()))
        };
        let remembered = self.owners.get(name).filter(|owner| as_named(owner)).cloned();
        let owner = remembered.or_else(|| owner(lb, config, all))?;
        self.owners.insert(name.to_owned(), owner.clone());
        Some(owner)
    }
}

fn owner(lb: &LbView, config: &LoadBalancerConfig, all: impl FnOnce() -> Vec<Arc<ServiceView>>) -> Option<ServiceKey> {
    let ours = config.cluster_name.as_str();
    let named = lb.annotations.get(loadbalancer::CLUSTER).or_else(|| lb.labels.get(cloudprovider::CLUSTER));
    if named.is_some_and(|cluster| cluster != ours) {
        // Unless it belongs to this cluster under a former name.
        return all().into_iter().find(|service| is_proven(lb, service)).map(|service| service.key.clone());
    }
    if let Some(service) = lb.service_key() {
        return Some(service);
    }
    all().into_iter().find(|service| object_name(config, service) == lb.name).map(|service| service.key.clone())
}

/// Name of the Service's own LoadBalancer object (CCM spec 3.1).
pub fn object_name(config: &LoadBalancerConfig, service: &ServiceView) -> String {
    config.cluster_name.load_balancer_name(&service.key.namespace, &service.key.name, &service.uid.0)
}

/// Services that depend on the NAD mapping.
pub fn with_network(all: &[Arc<ServiceView>]) -> BTreeSet<ServiceKey> {
    all.iter().filter(|service| !wanted_network(service).is_empty()).map(|service| service.key.clone()).collect()
}

#[cfg(test)]
mod tests {
    use cloud_provider::view::Tags;

    use super::super::build::{config, key, lb, service};
    use super::*;

    fn names(keys: BTreeSet<ServiceKey>) -> Vec<String> {
        keys.into_iter().map(|key| key.to_string()).collect()
    }

    fn naming(all: &[Arc<ServiceView>]) -> impl Fn(&ServiceKey) -> Vec<Arc<ServiceView>> {
        let all = all.to_vec();
        move |primary| {
            let names_it =
                |service: &Arc<ServiceView>| matches!(named_primary(service), Some(Ok(named)) if named == *primary);
            all.iter().filter(|service| names_it(service)).cloned().collect()
        }
    }

    fn no_group(_: &Group) -> Vec<Arc<ServiceView>> {
        Vec::new()
    }

    fn nobody(_: IpAddr) -> BTreeSet<ServiceKey> {
        BTreeSet::new()
    }

    fn arcs(services: &[ServiceView]) -> Vec<Arc<ServiceView>> {
        services.iter().cloned().map(Arc::new).collect()
    }

    /// W-16.
    #[test]
    fn a_new_ingress_wakes_the_service_itself_and_who_shares_its_address() {
        let sharer = |name| service(name).short(&[("primary", "default/web")]).done();
        let before = Arc::new(service("default/web").done());
        let after = Arc::new(service("default/web").ingress("10.0.0.1").done());
        let all = arcs(&[ServiceView::clone(&after), sharer("default/a"), sharer("x/b"), service("default/c").done()]);
        let mut wakes = ServiceWakes::default();
        wakes.touched(&before.key, Some(&before), naming(&all), no_group, nobody);
        assert_eq!(
            names(wakes.touched(&after.key, Some(&after), naming(&all), no_group, nobody)),
            ["default/a", "default/web", "x/b"]
        );
        assert!(wakes.touched(&after.key, Some(&after), naming(&all), no_group, nobody).is_empty(), "nothing changed");
        assert_eq!(
            names(wakes.touched(&after.key, None, naming(&all[1..]), no_group, nobody)),
            ["default/a", "default/web", "x/b"]
        );
    }

    #[test]
    fn a_sharer_that_leaves_wakes_its_primary_and_the_other_applicants() {
        let sharer = |name| service(name).short(&[("primary", "default/web")]).done();
        let all = arcs(&[service("default/web").done(), sharer("default/a"), sharer("default/b")]);
        let mut wakes = ServiceWakes::default();
        let a = Arc::new(sharer("default/a"));
        wakes.touched(&a.key, Some(&a), naming(&all), no_group, nobody);
        let turned = Arc::new(service("default/a").done());
        assert_eq!(
            names(wakes.touched(&a.key, Some(&turned), naming(&all), no_group, nobody)),
            ["default/b", "default/web"]
        );
    }

    #[test]
    fn an_address_that_is_given_up_wakes_who_was_refused_it() {
        let ip: IpAddr = "10.0.0.1".parse().unwrap();
        let wanting = |address: IpAddr| if address == ip { [key("default/fixed")].into() } else { BTreeSet::new() };
        let had = Arc::new(service("default/web").short(&[("ip", "10.0.0.1")]).ingress("10.0.0.1").done());
        let moved = Arc::new(service("default/web").short(&[("ip", "10.0.0.2")]).ingress("10.0.0.2").done());
        let shows_another = Arc::new(service("default/web").short(&[("ip", "10.0.0.2")]).ingress("10.0.0.1").done());
        let deleting = Arc::new(ServiceView { deleting: true, ..ServiceView::clone(&had) });
        let no_balancer = Arc::new(ServiceView { is_load_balancer: false, ..ServiceView::clone(&had) });
        for (now, free) in [
            (None, true),
            (Some(&moved), true),
            (Some(&deleting), true),
            (Some(&no_balancer), true),
            (Some(&shows_another), false),
        ] {
            let mut wakes = ServiceWakes::default();
            let first = wakes.touched(&had.key, Some(&had), naming(&[]), no_group, wanting);
            assert!(!first.contains(&key("default/fixed")), "nothing was given up yet");
            let woken = wakes.touched(&had.key, now, naming(&[]), no_group, wanting);
            assert_eq!(woken.contains(&key("default/fixed")), free, "{now:?}");
        }
    }

    #[test]
    fn a_label_or_annotation_that_nobody_depends_on_wakes_nobody() {
        let web = Arc::new(service("default/web").done());
        let mut wakes = ServiceWakes::default();
        wakes.touched(&web.key, Some(&web), naming(&[]), no_group, nobody);
        let mut other = Arc::clone(&web);
        Arc::make_mut(&mut other).annotations.insert("example/x", "1");
        assert!(wakes.touched(&web.key, Some(&other), naming(&[]), no_group, nobody).is_empty());
    }

    #[test]
    fn an_object_wakes_the_service_that_its_labels_name_also_when_it_is_gone() {
        let mut wakes = ObjectWakes::default();
        let mut view = lb("x").done();
        assert_eq!(wakes.touched("x", Some(&view), &config(), Vec::new), Some(key("default/web")));
        assert_eq!(wakes.touched("x", None, &config(), Vec::new), Some(key("default/web")));
        assert_eq!(wakes.touched("x", None, &config(), Vec::new), None);
        view.annotations.insert(loadbalancer::CLUSTER, "other");
        assert_eq!(wakes.touched("x", Some(&view), &config(), Vec::new), None, "another cluster's");
    }

    #[test]
    fn a_change_of_one_member_wakes_its_group_and_an_object_that_changes_hands_its_new_owner() {
        let member = |name| service(name).short(&[("group", "edge")]);
        let all = arcs(&[member("default/a").done(), member("default/b").done(), member("default/web").done()]);
        let grouped = |_: &Group| all.clone();
        let mut wakes = ServiceWakes::default();
        let before = Arc::new(member("default/web").done());
        wakes.touched(&before.key, Some(&before), naming(&[]), grouped, nobody);
        let leaving = Arc::new(ServiceView { deleting: true, ..ServiceView::clone(&before) });
        let woken = wakes.touched(&leaving.key, Some(&leaving), naming(&[]), grouped, nobody);
        assert_eq!(names(woken), ["default/a", "default/b"]);

        let mut objects = ObjectWakes::default();
        let mut view = lb("x").done();
        objects.touched("x", Some(&view), &config(), Vec::new);
        view.labels.insert(cloudprovider::SERVICE_NAME, "a");
        assert_eq!(objects.touched("x", Some(&view), &config(), Vec::new), Some(key("default/a")));
    }

    #[test]
    fn an_object_without_labels_is_found_by_its_name() {
        let web = service("default/web").done();
        let name = object_name(&config(), &web);
        let view = LbView { labels: Tags::default(), annotations: Tags::default(), ..lb(&name).done() };
        let mut wakes = ObjectWakes::default();
        assert_eq!(wakes.touched(&name, Some(&view), &config(), || arcs(&[web])), Some(key("default/web")));
    }

    #[test]
    fn a_new_mapping_wakes_services_with_a_network() {
        let all = arcs(&[service("default/web").done(), service("default/net").short(&[("net", "a/b")]).done()]);
        assert_eq!(names(with_network(&all)), ["default/net"]);
    }
}
