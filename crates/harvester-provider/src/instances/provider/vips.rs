//! Addresses of Services that an announcer may have put on a machine. The set is updated as Services change, because it
//! is needed for every Node and there may be ten thousand Services.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cloud_provider::cache::ServiceCache;
use cloud_provider::view::{ServiceKey, ServiceView};
use futures::FutureExt;
use harvester_api::keys::kube_vip;
use runtime::cache::Touched;

/// For this long after a Service has lost an address, the address is not shown on any Node.
pub(super) const VIP_LINGERS: Duration = Duration::from_mins(5);

/// Addresses that announcers put on nodes (W-29), including recent ones: Harvester still reports an address for some
/// time after it was removed from the machine.
#[derive(Debug)]
pub(super) struct ServiceVips {
    pub(super) services: ServiceCache,
    touched: Touched<ServiceKey>,
    /// Addresses by Service, for Services that have any.
    by_service: BTreeMap<ServiceKey, BTreeSet<IpAddr>>,
    /// For each address, how many Services have it.
    published: BTreeMap<IpAddr, usize>,
    /// For each former address, when the last Service lost it.
    left: BTreeMap<IpAddr, Instant>,
    /// The union of `published` and `left`.
    all: Arc<BTreeSet<IpAddr>>,
    /// Number of Services that were processed.
    #[cfg(test)]
    looked: usize,
}

impl ServiceVips {
    pub(super) fn new(services: &ServiceCache) -> Self {
        Self {
            services: services.clone(),
            touched: services.subscribe(),
            by_service: BTreeMap::new(),
            published: BTreeMap::new(),
            left: BTreeMap::new(),
            all: Arc::default(),
            #[cfg(test)]
            looked: 0,
        }
    }

    /// The addresses at the time `now`.
    pub(super) fn get(&mut self, now: Instant) -> Arc<BTreeSet<IpAddr>> {
        while let Some(Some(key)) = self.touched.next().now_or_never() {
            let service = self.services.get(&key);
            self.note(key, service.as_deref(), now);
        }
        let (published, all) = (&self.published, &mut self.all);
        self.left.retain(|vip, left| {
            let lingers = now.saturating_duration_since(*left) < VIP_LINGERS;
            if !lingers && !published.contains_key(vip) {
                Arc::make_mut(all).remove(vip);
            }
            lingers
        });
        Arc::clone(&self.all)
    }

    fn note(&mut self, key: ServiceKey, service: Option<&ServiceView>, now: Instant) {
        #[cfg(test)]
        {
            self.looked += 1;
        }
        // The status proves that an announcer serves the address: it takes up none that a machine has. The annotation
        // alone proves nothing, because every author of Services may write it.
        let announced = service.filter(|service| service.annotations.contains_key(kube_vip::LOADBALANCER_IPS));
        let served = announced.into_iter().flat_map(|service| &service.ingress).copied();
        let vips: BTreeSet<IpAddr> = served.filter(|address| !address.is_unspecified()).collect();
        for vip in &vips {
            *self.published.entry(*vip).or_default() += 1;
            if !self.all.contains(vip) {
                Arc::make_mut(&mut self.all).insert(*vip);
            }
        }
        let former = if vips.is_empty() { self.by_service.remove(&key) } else { self.by_service.insert(key, vips) };
        for vip in former.into_iter().flatten() {
            let still = self.published.get_mut(&vip).map(|services| {
                *services -= 1;
                *services
            });
            if still == Some(0) {
                self.published.remove(&vip);
                self.left.insert(vip, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_balancers::build::service;

    fn key(name: &str) -> ServiceKey {
        ServiceKey { namespace: "default".into(), name: name.into() }
    }

    fn shows(services: &ServiceCache, name: &str, vip: &str) {
        services.apply(key(name), service(&format!("default/{name}")).short(&[("ip", vip)]).ingress(vip).done());
    }

    fn lab(count: usize) -> (ServiceCache, ServiceVips) {
        let services = cloud_provider::cache::services_with([]);
        for n in 0..count {
            shows(&services, &format!("s{n}"), &format!("10.0.{}.{}", n / 250, n % 250 + 1));
        }
        let vips = ServiceVips::new(&services);
        (services, vips)
    }

    #[test]
    fn a_thousand_nodes_that_ask_look_at_each_service_once() {
        let (services, mut vips) = lab(1000);
        for _ in 0..1000 {
            assert_eq!(vips.get(Instant::now()).len(), 1000);
        }
        assert_eq!(vips.looked, 1000);
        shows(&services, "s7", "10.9.9.9");
        for _ in 0..1000 {
            assert_eq!(vips.get(Instant::now()).len(), 1001, "the former address lingers");
        }
        assert_eq!(vips.looked, 1001);
    }

    #[test]
    fn an_annotation_alone_takes_no_address_from_a_node() {
        let (services, mut vips) = lab(1);
        let claims = service("default/claims").short(&[("ip", "10.9.9.9,10.9.9.8")]);
        services.apply(key("claims"), claims.ingress("10.9.9.7").done());
        let shown = vips.get(Instant::now()).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(shown, ["10.0.0.1", "10.9.9.7"]);
    }

    #[test]
    fn an_address_lingers_for_five_minutes_after_the_last_service_that_had_it() {
        let (services, mut vips) = lab(1);
        shows(&services, "other", "10.0.0.1");
        let (start, vip) = (Instant::now(), "10.0.0.1".parse().unwrap());
        assert!(vips.get(start).contains(&vip));
        services.remove(&key("s0"));
        let late = start + VIP_LINGERS * 2;
        assert!(vips.get(late).contains(&vip), "another Service has it");
        services.remove(&key("other"));
        assert!(vips.get(late).contains(&vip));
        assert!(vips.get(late + VIP_LINGERS / 2).contains(&vip));
        assert!(!vips.get(late + VIP_LINGERS).contains(&vip));
    }

    #[test]
    fn an_address_that_comes_back_while_it_lingers_stays() {
        let (services, mut vips) = lab(1);
        let (start, vip) = (Instant::now(), "10.0.0.1".parse().unwrap());
        vips.get(start);
        services.remove(&key("s0"));
        vips.get(start);
        shows(&services, "s1", "10.0.0.1");
        assert!(vips.get(start + VIP_LINGERS * 2).contains(&vip));
    }
}
