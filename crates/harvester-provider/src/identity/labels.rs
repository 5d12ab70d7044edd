//! The cluster names on load balancers that are proven to be a Service's (decisions 11 and 41). Pure.
//!
//! A copy of a cluster has the UIDs of its original. So in each of the two, the load balancers of both are proven. Only
//! the addresses tell them apart: a Service shows that of its own load balancer.

use std::collections::BTreeSet;
use std::sync::Arc;

use cloud_provider::view::{ServiceKey, ServiceView};
use harvester_api::names::ClusterName;

use super::proof::{cluster_of, is_proven};
use crate::load_balancers::sharing::shows_address_of;
use crate::load_balancers::view::LbView;

/// The cluster name on a load balancer that is proven to be a Service's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvenLabel {
    service: ServiceKey,
    cluster: ClusterName,
    /// The Service shows the address of this load balancer.
    shown: bool,
}

impl ProvenLabel {
    /// Whether the load balancer has one of these names of the cluster.
    pub fn is_under(&self, names: &BTreeSet<String>) -> bool {
        names.contains(self.cluster.as_str())
    }
}

/// The names on all load balancers that are proven to be a Service's.
pub fn proven(lbs: &[Arc<LbView>], find: impl Fn(&ServiceKey) -> Option<Arc<ServiceView>>) -> Vec<ProvenLabel> {
    let label = |lb: &Arc<LbView>| {
        let service = find(&lb.service_key()?).filter(|service| is_proven(lb, service))?;
        let (cluster, shown) = (cluster_of(lb)?, shows_address_of(&service, lb));
        Some(ProvenLabel { service: service.key.clone(), cluster, shown })
    };
    lbs.iter().filter_map(label).collect()
}

/// The names that say how this cluster is called, one for each load balancer. Where a Service shows the address of one
/// of its load balancers, the others do not count: they may be those of a copy, or of the original.
pub fn naming(found: &[ProvenLabel]) -> Vec<ClusterName> {
    let showing: BTreeSet<&ServiceKey> = found.iter().filter(|label| label.shown).map(|label| &label.service).collect();
    let counts = |label: &&ProvenLabel| label.shown || !showing.contains(&label.service);
    found.iter().filter(counts).map(|label| label.cluster.clone()).collect()
}

/// The names under which Services of this cluster have the addresses that they show.
pub fn shown(found: &[ProvenLabel]) -> BTreeSet<String> {
    found.iter().filter(|label| label.shown).map(|label| label.cluster.to_string()).collect()
}

/// A Service with a load balancer under this name that is not this cluster's. The Service has another one under a name
/// of this cluster (`own`), and no Service shows the address of one under this name.
pub fn of_another<'a>(found: &'a [ProvenLabel], name: &ClusterName, own: &BTreeSet<String>) -> Option<&'a ServiceKey> {
    let (named, others): (Vec<&ProvenLabel>, Vec<&ProvenLabel>) =
        found.iter().partition(|label| label.cluster == *name);
    if own.contains(name.as_str()) || named.iter().any(|label| label.shown) {
        return None;
    }
    let ours = others.into_iter().filter(|label| own.contains(label.cluster.as_str()));
    let ours: BTreeSet<&ServiceKey> = ours.map(|label| &label.service).collect();
    named.into_iter().map(|label| &label.service).find(|service| ours.contains(service))
}

/// A load balancer on Harvester under this name. It is not this cluster's, if this cluster is a copy whose record does
/// not have the name. Its Service need not exist here: it may be one that only another copy has. `None` if there is
/// none, and where a Service here shows the address of one under this name.
pub fn in_use<'a>(lbs: &'a [Arc<LbView>], found: &[ProvenLabel], name: &ClusterName) -> Option<&'a Arc<LbView>> {
    let is_shown = found.iter().any(|label| label.shown && label.cluster == *name);
    lbs.iter().filter(|_| !is_shown).find(|lb| cluster_of(lb).as_ref() == Some(name))
}

#[cfg(test)]
mod tests {
    use harvester_api::keys::cloudprovider;

    use super::super::super::load_balancers::build;
    use super::*;

    /// A load balancer of Service `default/web` under this name of the cluster.
    fn under(cluster: &str, address: &str) -> Arc<LbView> {
        let name = ClusterName::from_record(cluster).load_balancer_name("default", "web", "uid-of-default-web");
        let mut lb = build::lb(&name).ready(address).done();
        lb.labels.insert(cloudprovider::CLUSTER, cluster);
        Arc::new(lb)
    }

    #[test]
    fn a_service_that_shows_an_address_is_of_the_cluster_that_has_booked_it_and_of_no_other() {
        let both = ["copied", "prod"];
        for (what, shows, addresses, expected, expected_shown) in [
            ("in the copy", "10.0.0.1", ["10.0.0.1", "10.0.0.2"], &both[..1], &both[..1]),
            ("in the original", "10.0.0.2", ["10.0.0.1", "10.0.0.2"], &both[1..], &both[1..]),
            ("before it has an address", "", ["10.0.0.1", "10.0.0.2"], &both[..], &[][..]),
            ("a lease, which any of them may have", "0.0.0.0", ["0.0.0.0", "0.0.0.0"], &both[..], &[][..]),
            ("an address that none of them has", "10.0.0.9", ["10.0.0.1", "10.0.0.2"], &both[..], &[][..]),
        ] {
            let web = Arc::new(build::service("default/web").short(&[("ip", shows)]).done());
            let [copied, prod] = addresses;
            let lbs = [under("copied", copied), under("prod", prod)];
            let found = proven(&lbs, |key| (web.key == *key).then(|| Arc::clone(&web)));
            assert_eq!(naming(&found).iter().map(ClusterName::as_str).collect::<Vec<_>>(), expected, "{what}");
            assert_eq!(shown(&found).iter().map(String::as_str).collect::<Vec<_>>(), expected_shown, "{what}");
        }
    }

    #[test]
    fn a_name_is_anothers_where_services_have_their_addresses_under_one_of_this_cluster() {
        let (shown, copied) = ("10.0.0.1", "10.0.0.2");
        for (what, lbs, own, expected) in [
            ("a copy beside it", &[("prod", shown), ("copied", copied)][..], &["prod"][..], true),
            ("leases, which tell nothing apart", &[("prod", "0.0.0.0"), ("copied", "0.0.0.0")], &["prod"], true),
            ("a former name", &[("prod", shown), ("copied", copied)], &["copied", "prod"], false),
            ("a name that the record has lost", &[("copied", shown)], &["prod"], false),
            ("the same, and a second object", &[("prod", copied), ("copied", shown)], &["prod"], false),
            ("nothing under it", &[("prod", shown)], &["prod"], false),
            ("nothing under its own", &[("copied", copied)], &["prod"], false),
        ] {
            let web = Arc::new(build::service("default/web").short(&[("ip", shown)]).done());
            let lbs: Vec<Arc<LbView>> = lbs.iter().map(|(cluster, address)| under(cluster, address)).collect();
            let found = proven(&lbs, |_| Some(Arc::clone(&web)));
            let own: BTreeSet<String> = own.iter().map(|name| (*name).to_owned()).collect();
            let service = of_another(&found, &ClusterName::from_record("copied"), &own);
            assert_eq!(service, expected.then_some(&web.key), "{what}");
        }
    }

    #[test]
    fn a_name_is_in_use_where_load_balancers_have_it_and_no_service_shows_the_address_of_one() {
        let (shown, copied) = ("10.0.0.1", "10.0.0.2");
        for (what, lbs, is_here, expected) in [
            ("another copy's", &[("prod", shown), ("copied", copied)][..], true, true),
            ("of a Service that only another copy has", &[("copied", copied)], false, true),
            ("a lease, which tells nothing apart", &[("copied", "0.0.0.0")], true, true),
            ("a Service here is served by it", &[("copied", shown)], true, false),
            ("nothing under it", &[("prod", copied)], true, false),
        ] {
            let web = Arc::new(build::service("default/web").short(&[("ip", shown)]).done());
            let lbs: Vec<Arc<LbView>> = lbs.iter().map(|(cluster, address)| under(cluster, address)).collect();
            let found = proven(&lbs, |_| is_here.then(|| Arc::clone(&web)));
            let lb = in_use(&lbs, &found, &ClusterName::from_record("copied"));
            assert_eq!(lb.is_some(), expected, "{what}");
        }
    }

    #[test]
    fn what_is_not_proven_names_nobody() {
        let web = build::service("default/web").short(&[("ip", "10.0.0.1")]).done();
        let uid = cloud_provider::view::Uid("another".into());
        let successor = Arc::new(ServiceView { uid, ..web });
        assert_eq!(proven(&[under("prod", "10.0.0.1")], |_| Some(Arc::clone(&successor))), []);
        assert_eq!(proven(&[under("prod", "10.0.0.1")], |_| None), [], "no such Service");
    }
}
