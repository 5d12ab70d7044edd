//! Finds the LoadBalancer objects of a Service: by the name that the naming rule gives, and by proof (decision 11).
//! Usually there is one, with the name of the rule. There are others after a change of the cluster's name, and while an
//! address moves to another pool.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cloud_provider::view::{ServiceKey, ServiceView, Uid};
use futures::FutureExt;
use runtime::cache::Touched;

use super::own_writes::{LbCache, Objects};
use super::plan::name_in_pool;
use super::sharing::shown_addresses;
use super::view::LbView;
use super::wakes::object_name;
use crate::config::LoadBalancerConfig;
use crate::identity::proof::{is_handed_over, is_proven};

/// All objects of one Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owned {
    /// Name of the object that serves, or is to be created.
    pub name: String,
    /// That object, if it exists.
    pub lb: Option<Arc<LbView>>,
    /// The others.
    pub others: Vec<Arc<LbView>>,
}

/// Index of the objects by Service.
#[derive(Debug)]
pub struct Owners {
    cache: LbCache,
    index: Mutex<Index>,
}

#[derive(Debug)]
struct Index {
    touched: Touched<String>,
    /// Pairs of Service and object name, in order. A set per Service would need ten times the memory.
    named: BTreeSet<(ServiceKey, String)>,
    services: HashMap<String, ServiceKey>,
    /// By Service: the name of an object that deviates from the naming rule. When the object is gone, its absence has
    /// to be verified under this name.
    last: HashMap<Uid, String>,
}

impl Owners {
    /// Creates an index over this cache.
    pub fn new(cache: LbCache) -> Self {
        let index = Index {
            touched: cache.subscribe(),
            named: BTreeSet::new(),
            services: HashMap::new(),
            last: HashMap::new(),
        };
        Self { cache, index: Mutex::new(index) }
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        let mut index = self.index.lock();
        while let Some(Some(name)) = index.touched.next().now_or_never() {
            let key = self.cache.get(&name).and_then(|lb| lb.service_key());
            index.note(name, key);
        }
        index
    }

    /// The objects of the Service. `more`: names of objects that the watch may not show yet.
    pub fn of(
        &self,
        service: &ServiceView,
        objects: &Objects,
        config: &LoadBalancerConfig,
        more: impl IntoIterator<Item = String>,
    ) -> Owned {
        let by_rule = object_name(config, service);
        let mut names = self.index().names_of(&service.key);
        names.extend(more);
        names.remove(&by_rule);
        let handed_over = |lb: &Arc<LbView>| is_handed_over(lb, service);
        let own = objects.get(&by_rule);
        let (rule, own) = if own.as_ref().is_some_and(handed_over) {
            // The name stays taken as long as the Service that inherited the object lives. The watch may not yet show
            // an object that was created under the other name.
            let beside = name_in_pool(config, service, "");
            names.insert(beside.clone());
            (beside, None)
        } else {
            (by_rule.clone(), own)
        };
        let proven = names
            .iter()
            .filter_map(|name| objects.get(name))
            .filter(|lb| config.may_be_ours(lb) && is_proven(lb, service));
        let owned = choose(service, &rule, own, proven.collect());
        if owned.lb.is_some() && owned.name != by_rule {
            self.index().last.insert(service.uid.clone(), owned.name.clone());
        }
        owned
    }

    /// The name whose absence proves that the Service has no object left.
    pub fn last_name(&self, service: &ServiceView, config: &LoadBalancerConfig) -> String {
        self.index().last.get(&service.uid).cloned().unwrap_or_else(|| object_name(config, service))
    }

    /// Removes the entry of a Service that has no object left.
    pub fn forget(&self, service: &ServiceView) {
        self.index().last.remove(&service.uid);
    }

    #[cfg(test)]
    pub(super) fn remembers_nothing(&self) -> bool {
        self.index().last.is_empty()
    }
}

impl Index {
    fn note(&mut self, name: String, key: Option<ServiceKey>) {
        if self.services.get(&name) == key.as_ref() {
            return;
        }
        if let Some(old) = self.services.remove(&name) {
            self.named.remove(&(old, name.clone()));
        }
        if let Some(key) = key {
            self.named.insert((key.clone(), name.clone()));
            self.services.insert(name, key);
        }
    }

    fn names_of(&self, service: &ServiceKey) -> BTreeSet<String> {
        let first = (service.clone(), String::new());
        self.named.range(first..).take_while(|(key, _)| key == service).map(|(_, name)| name.clone()).collect()
    }
}

/// Chooses the object that serves: the one whose address the Service shows, else the one with the name of the rule,
/// else the oldest.
fn choose(service: &ServiceView, rule: &str, own: Option<Arc<LbView>>, proven: Vec<Arc<LbView>>) -> Owned {
    let shown = shown_addresses(service);
    let mut all: Vec<Arc<LbView>> = own.into_iter().chain(proven).collect();
    all.sort_by_key(|lb| {
        let address = lb.usable_address.as_deref().and_then(|address| address.parse().ok());
        let shows = address.is_some_and(|address| shown.contains(&address));
        (lb.terminating, !shows, lb.name != rule, lb.created, lb.name.clone())
    });
    let mut all = all.into_iter();
    let lb = all.next();
    Owned { name: lb.as_ref().map_or_else(|| rule.to_owned(), |lb| lb.name.clone()), lb, others: all.collect() }
}

#[cfg(test)]
mod tests {
    use harvester_api::keys::cloudprovider;
    use harvester_api::names::ClusterName;

    use super::super::build::{config, lb, service};
    use super::super::own_writes::lb_cache;
    use super::*;

    fn under(cluster: &str, address: &str) -> LbView {
        let web = service("default/web").done();
        let name = ClusterName::from_record(cluster).load_balancer_name("default", "web", &web.uid.0);
        let mut view = lb(&name).ready(address).done();
        view.labels.insert(cloudprovider::CLUSTER, cluster);
        view.annotations.remove(cloudprovider::SERVICE_UID);
        view
    }

    fn found(service: &ServiceView, views: &[LbView]) -> (String, Option<String>, usize) {
        let cache = lb_cache();
        let owners = Owners::new(cache.clone());
        cache.replace(views.iter().map(|view| (view.name.clone(), view.clone())).collect());
        let owned = owners.of(service, &Objects::new(cache), &config(), []);
        (owned.name, owned.lb.and_then(|lb| lb.usable_address.clone()), owned.others.len())
    }

    #[test]
    fn an_object_under_a_former_name_of_the_cluster_goes_on_serving() {
        let web = service("default/web").done();
        let former = under("former", "10.0.0.1");
        assert_eq!(found(&web, std::slice::from_ref(&former)), (former.name, Some("10.0.0.1".into()), 0));
        assert_eq!(found(&web, &[]), (object_name(&config(), &web), None, 0), "a new one follows the rule");
    }

    #[test]
    fn of_two_objects_the_one_that_serves_is_the_services() {
        let (former, own) = (under("former", "10.0.0.1"), under("demo", "10.0.0.2"));
        let both = [former.clone(), own.clone()];
        let web = || service("default/web");
        assert_eq!(found(&web().done(), &both).0, own.name);
        assert_eq!(found(&web().short(&[("ip", "10.0.0.1")]).done(), &both), (former.name, Some("10.0.0.1".into()), 1));
        assert_eq!(found(&web().short(&[("ip", "10.0.0.9")]).done(), &both).0, own.name);
    }

    #[test]
    fn the_one_that_serves_is_told_by_the_address_whatever_its_spelling() {
        let both = |address| [under("former", address), under("demo", "10.0.0.2")];
        for (address, shown, serves) in [
            ("fd00::1", "FD00:0::1", true),
            ("fd00::1", "10.0.0.9,fd00::1", true),
            ("0.0.0.0", "0.0.0.0", false),
            ("0.0.0.0", "0.0.0.0,::", false),
        ] {
            let both = both(address);
            let expected = if serves { &both[0].name } else { &both[1].name };
            let web = service("default/web").short(&[("ip", shown)]).done();
            assert_eq!(&found(&web, &both).0, expected, "{shown}");
        }
    }

    #[test]
    fn another_clusters_object_for_a_service_of_the_same_name_is_nobodys_here() {
        let mut foreign = under("other", "10.0.0.1");
        foreign.name = "other-default-web-00000000".into();
        assert_eq!(found(&service("default/web").done(), &[foreign]).1, None);
    }

    #[test]
    fn an_object_that_is_gone_is_verified_under_the_name_it_had() {
        let web = service("default/web").done();
        let former = under("former", "10.0.0.1");
        let cache = lb_cache();
        let (owners, objects) = (Owners::new(cache.clone()), Objects::new(cache.clone()));
        cache.apply(former.name.clone(), former.clone());
        owners.of(&web, &objects, &config(), []);
        cache.remove(&former.name);
        assert_eq!(owners.last_name(&web, &config()), former.name);
        assert_eq!(
            owners.of(&web, &objects, &config(), []).name,
            object_name(&config(), &web),
            "a new one follows the rule"
        );
        owners.forget(&web);
        assert_eq!(owners.last_name(&web, &config()), object_name(&config(), &web));
        assert!(owners.remembers_nothing());
    }
}
