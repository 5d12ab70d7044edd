//! An index of related Services: those that name a Service as their primary, and those that show an address. It avoids
//! a scan of all Services, so that a decision costs the same with ten Services and with ten thousand.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use cloud_provider::cache::ServiceCache;
use cloud_provider::view::{ServiceKey, ServiceView};
use futures::FutureExt;
use runtime::cache::Touched;

use super::choice::static_address;
use super::sharing::{Group, group_of, named_primary, shown_addresses};

/// The index over the cache of Services. The results are candidates: the rules of sharing decide.
#[derive(Debug)]
pub struct Neighbours {
    services: ServiceCache,
    index: Mutex<Index>,
}

#[derive(Debug)]
struct Index {
    touched: Touched<ServiceKey>,
    /// The Services that the other sets were made from, if they contribute to any.
    seen: BTreeMap<ServiceKey, Arc<ServiceView>>,
    by_primary: Pairs<ServiceKey>,
    by_group: Pairs<Group>,
    by_address: Pairs<IpAddr>,
    by_static: Pairs<IpAddr>,
}

/// Pairs in order of the key. A set per key would need ten times the memory, because most keys have one Service.
type Pairs<K> = BTreeSet<(K, ServiceKey)>;

#[derive(Debug, Default, PartialEq, Eq)]
struct NeighbourFacts {
    primary: Option<ServiceKey>,
    group: Option<Group>,
    addresses: BTreeSet<IpAddr>,
    wanted: Option<IpAddr>,
}

impl From<&ServiceView> for NeighbourFacts {
    fn from(service: &ServiceView) -> Self {
        Self {
            primary: named_primary(service).and_then(Result::ok),
            group: group_of(service),
            addresses: addresses(service),
            wanted: static_address(service),
        }
    }
}

/// The addresses in a Service's status, and those in its annotation.
pub fn addresses(service: &ServiceView) -> BTreeSet<IpAddr> {
    let served = service.ingress.iter().copied().filter(|address| !address.is_unspecified());
    served.chain(shown_addresses(service)).collect()
}

impl Neighbours {
    /// Creates an index over this cache.
    pub fn new(services: ServiceCache) -> Self {
        let index = Index {
            touched: services.subscribe(),
            seen: BTreeMap::new(),
            by_primary: BTreeSet::new(),
            by_group: BTreeSet::new(),
            by_address: BTreeSet::new(),
            by_static: BTreeSet::new(),
        };
        Self { services, index: Mutex::new(index) }
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        let mut index = self.index.lock();
        while let Some(Some(key)) = index.touched.next().now_or_never() {
            let now = self.services.get(&key);
            index.note(key, now);
        }
        index
    }

    /// Services that name this one as their primary.
    pub fn naming(&self, primary: &ServiceKey) -> Vec<Arc<ServiceView>> {
        let index = self.index();
        of(&index.by_primary, primary).filter_map(|key| self.services.get(key)).collect()
    }

    /// Services that name this group.
    pub fn grouped(&self, group: &Group) -> Vec<Arc<ServiceView>> {
        let index = self.index();
        of(&index.by_group, group).filter_map(|key| self.services.get(key)).collect()
    }

    /// Services that request this static address, whether they have it or not.
    pub fn wanting(&self, address: IpAddr) -> BTreeSet<ServiceKey> {
        of(&self.index().by_static, &address).cloned().collect()
    }

    /// Services that request this static address, or have it. The Service that the address belongs to may be waiting
    /// for its release.
    pub fn at(&self, address: IpAddr) -> BTreeSet<ServiceKey> {
        let index = self.index();
        of(&index.by_static, &address).chain(of(&index.by_address, &address)).cloned().collect()
    }

    /// Services that share an address with this one, itself included, plus the Services `more`.
    pub fn beside(&self, service: &ServiceView, more: Vec<ServiceKey>) -> Vec<Arc<ServiceView>> {
        let mut keys: BTreeSet<ServiceKey> = more.into_iter().collect();
        let index = self.index();
        for address in addresses(service) {
            keys.extend(of(&index.by_address, &address).cloned());
        }
        drop(index);
        keys.iter().filter_map(|key| self.services.get(key)).collect()
    }
}

impl Index {
    fn note(&mut self, key: ServiceKey, now: Option<Arc<ServiceView>>) {
        let facts = |service: &Arc<ServiceView>| NeighbourFacts::from(&**service);
        let (old, new) = (
            self.seen.remove(&key).as_ref().map(facts).unwrap_or_default(),
            now.as_ref().map(facts).unwrap_or_default(),
        );
        if let Some(primary) = old.primary {
            self.by_primary.remove(&(primary, key.clone()));
        }
        if let Some(group) = old.group {
            self.by_group.remove(&(group, key.clone()));
        }
        for address in old.addresses {
            self.by_address.remove(&(address, key.clone()));
        }
        if let Some(address) = old.wanted {
            self.by_static.remove(&(address, key.clone()));
        }
        let Some(now) = now.filter(|_| new != NeighbourFacts::default()) else { return };
        self.by_primary.extend(new.primary.map(|primary| (primary, key.clone())));
        self.by_group.extend(new.group.map(|group| (group, key.clone())));
        self.by_address.extend(new.addresses.into_iter().map(|address| (address, key.clone())));
        self.by_static.extend(new.wanted.map(|address| (address, key.clone())));
        self.seen.insert(key, now);
    }
}

/// The Services with this key.
fn of<'a, K: Ord + Clone>(pairs: &'a Pairs<K>, at: &K) -> impl Iterator<Item = &'a ServiceKey> {
    let first = (at.clone(), ServiceKey { namespace: String::new(), name: String::new() });
    pairs.range(first..).take_while(move |(key, _)| key == at).map(|(_, service)| service)
}

#[cfg(test)]
mod tests {
    use super::super::build::{key, service};
    use super::*;

    fn names(services: &[Arc<ServiceView>]) -> Vec<&str> {
        services.iter().map(|service| service.key.name.as_str()).collect()
    }

    #[test]
    fn it_knows_who_wants_a_static_address_and_has_it_or_not() {
        let fixed = |name, ip| service(name).short(&[("ipam", "static"), ("want", ip)]);
        let cache = cloud_provider::cache::services_with([
            fixed("default/a", "10.0.0.1").done(),
            fixed("default/b", "10.0.0.2").done(),
            fixed("default/shares", "10.0.0.1").short(&[("primary", "default/b")]).done(),
            service("default/pool").short(&[("want", "10.0.0.1"), ("ip", "10.0.0.1")]).done(),
        ]);
        let neighbours = Neighbours::new(cache.clone());
        let wanting =
            |ip: &str| neighbours.wanting(ip.parse().unwrap()).into_iter().map(|key| key.name).collect::<Vec<_>>();
        assert_eq!((wanting("10.0.0.1"), wanting("10.0.0.2")), (vec!["a".to_owned()], vec!["b".to_owned()]));
        cache.apply(key("default/a"), fixed("default/a", "10.0.0.2").done());
        cache.remove(&key("default/b"));
        assert_eq!((wanting("10.0.0.1"), wanting("10.0.0.2")), (vec![], vec!["a".to_owned()]));
    }

    #[test]
    fn it_follows_what_services_say_and_forgets_who_is_gone() {
        let sharer = |name| service(name).short(&[("primary", "default/web")]).done();
        let cache = cloud_provider::cache::services_with([
            service("default/web").ingress("10.0.0.1").done(),
            sharer("default/a"),
            sharer("default/b"),
            service("default/c").short(&[("ip", "10.0.0.1")]).done(),
            service("default/d").short(&[("group", "edge")]).done(),
        ]);
        let neighbours = Neighbours::new(cache.clone());
        let web = cache.get(&key("default/web")).unwrap();
        assert_eq!(names(&neighbours.naming(&web.key)), ["a", "b"]);
        assert_eq!(names(&neighbours.beside(&web, vec![])), ["c", "web"]);
        assert_eq!(names(&neighbours.beside(&web, vec![key("default/b")])), ["b", "c", "web"]);
        let edge = group_of(&cache.get(&key("default/d")).unwrap()).unwrap();
        assert_eq!(names(&neighbours.grouped(&edge)), ["d"]);
        cache.apply(key("default/a"), service("default/a").short(&[("ip", "10.0.0.1")]).done());
        cache.remove(&key("default/c"));
        assert_eq!(names(&neighbours.naming(&web.key)), ["b"]);
        assert_eq!(names(&neighbours.beside(&web, vec![])), ["a", "web"]);
        for name in ["default/a", "default/b", "default/d", "default/web"] {
            cache.remove(&key(name));
        }
        let index = neighbours.index();
        assert!(index.by_static.is_empty() && index.by_group.is_empty());
        assert!(index.seen.is_empty() && index.by_primary.is_empty() && index.by_address.is_empty());
    }
}
