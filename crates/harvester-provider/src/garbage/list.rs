//! Decides which load balancers are garbage. Pure: no I/O.

use std::sync::Arc;

use cloud_provider::service::{has_finalizer, wants_load_balancer};
use cloud_provider::view::{ServiceKey, ServiceView};
use harvester_api::keys::cloudprovider;

use crate::config::LoadBalancerConfig;
use crate::identity::proof::{cluster_of, is_proven};
use crate::load_balancers::view::LbView;

/// How certain it is that an object belongs to this cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It carries the UID of this cluster.
    Ours,
    /// It carries only this cluster's name, which another cluster may have too. Older versions wrote no UID.
    Suspected,
}

impl Kind {
    /// Value of the label `kind` of the metric.
    pub fn label(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Suspected => "suspected",
        }
    }
}

/// An object without a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Garbage {
    /// The object.
    pub lb: Arc<LbView>,
    /// How certain it is that the object belongs to this cluster.
    pub kind: Kind,
    /// The Service that its labels name, if they do.
    pub service: Option<ServiceKey>,
}

/// All load balancers of this cluster that no Service of the cluster needs. Objects that are already being deleted are
/// left out.
pub fn list<'a>(
    lbs: impl IntoIterator<Item = &'a Arc<LbView>>,
    find: impl Fn(&ServiceKey) -> Option<Arc<ServiceView>>,
    config: &LoadBalancerConfig,
) -> Vec<Garbage> {
    let found = lbs.into_iter().filter(|lb| !lb.terminating).filter_map(|lb| {
        let kind = kind(lb, config)?;
        let service = lb.service_key();
        let owner = service.as_ref().and_then(&find);
        let needed = owner.is_some_and(|owner| is_needed(lb, &owner));
        (!needed).then(|| Garbage { lb: Arc::clone(lb), kind, service })
    });
    found.collect()
}

/// How many objects carry the UID of this cluster, whether a Service has them or not.
pub fn count_ours<'a>(lbs: impl IntoIterator<Item = &'a Arc<LbView>>, config: &LoadBalancerConfig) -> usize {
    lbs.into_iter().filter(|lb| !lb.terminating && kind(lb, config) == Some(Kind::Ours)).count()
}

fn kind(lb: &LbView, config: &LoadBalancerConfig) -> Option<Kind> {
    let found = lb.annotation(cloudprovider::CLUSTER_UID);
    if found.is_empty() || config.cluster_uids.is_empty() {
        return (cluster_of(lb).as_ref() == Some(&config.cluster_name)).then_some(Kind::Suspected);
    }
    // A copy of this cluster has the same UID but another name.
    let ours = config.cluster_uids.iter().any(|uid| uid == found) && config.may_be_ours(lb);
    ours.then_some(Kind::Ours)
}

/// Whether the Service needs this object. A Service that was created again under the same name has another UID, and
/// does not need the object of its predecessor.
fn is_needed(lb: &LbView, owner: &ServiceView) -> bool {
    let promised = wants_load_balancer(owner) || has_finalizer(owner);
    promised && is_proven(lb, owner)
}

#[cfg(test)]
mod tests {
    use cloud_provider::view::Uid;

    use super::super::super::load_balancers::build::{config, lb, service};
    use super::*;

    fn name(service: &ServiceView) -> String {
        config().cluster_name.load_balancer_name(&service.key.namespace, &service.key.name, &service.uid.0)
    }

    fn object(change: impl FnOnce(&mut LbView)) -> LbView {
        let mut view = lb(&name(&service("default/web").done())).ready("10.0.0.1").done();
        change(&mut view);
        view
    }

    fn found(lb: LbView, service: Option<ServiceView>) -> Option<Kind> {
        let service = service.map(Arc::new);
        let found = list([&Arc::new(lb)], |key| service.clone().filter(|service| service.key == *key), &config());
        found.first().map(|garbage| garbage.kind)
    }

    fn without_uids(lb: &mut LbView) {
        lb.annotations.remove(cloudprovider::CLUSTER_UID);
        lb.annotations.remove(cloudprovider::SERVICE_UID);
    }

    /// A copy of this cluster has all its UIDs.
    #[test]
    fn what_a_copy_of_this_cluster_made_under_its_own_name_is_not_ours() {
        let named = |names: &[&str]| LoadBalancerConfig {
            cluster_uids: vec!["kube-system".into(), "uid-of-cluster".into()],
            cluster_names: names.iter().map(|name| (*name).to_owned()).collect(),
            ..config()
        };
        let found = |lb: LbView, config: &LoadBalancerConfig| list([&Arc::new(lb)], |_| None, config).len();
        let of = |cluster: &str, uid: &str| {
            object(|lb| {
                lb.labels.insert(cloudprovider::CLUSTER, cluster);
                lb.annotations.insert(cloudprovider::CLUSTER_UID, uid);
            })
        };
        assert_eq!(found(of("copy", "kube-system"), &named(&["demo"])), 0);
        assert_eq!(found(of("demo", "kube-system"), &named(&["demo"])), 1);
        assert_eq!(found(of("former", "kube-system"), &named(&["demo", "former"])), 1);
        assert_eq!(found(of("demo", "uid-of-cluster"), &named(&["demo"])), 1, "by the UID of default/kubernetes");
        assert_eq!(found(of("demo", "another"), &named(&["demo"])), 0);
    }

    #[test]
    fn what_no_service_has_is_garbage_and_only_a_uid_proves_it_to_be_ours() {
        let web = || service("default/web").done();
        let successor = ServiceView { uid: Uid("other".into()), ..web() };
        let cluster_ip = ServiceView { is_load_balancer: false, finalizers: vec![], ..web() };
        let leaving = ServiceView { is_load_balancer: false, ..web() };
        let foreign_uid = |lb: &mut LbView| lb.annotations.insert(cloudprovider::CLUSTER_UID, "x");
        let foreign_name = |lb: &mut LbView| {
            without_uids(lb);
            lb.labels.insert(cloudprovider::CLUSTER, "other");
        };
        let unlabelled = |lb: &mut LbView| {
            lb.labels.remove(cloudprovider::SERVICE_NAME);
        };
        let (ours, suspected) = (Some(Kind::Ours), Some(Kind::Suspected));
        for (sentence, lb, service, expected) in [
            ("in use", object(|_| {}), Some(web()), None),
            ("in use, made by the Go provider", object(without_uids), Some(web()), None),
            ("no service", object(|_| {}), None, ours),
            ("no service, made by the Go provider", object(without_uids), None, suspected),
            ("a service of the same name with another UID", object(|_| {}), Some(successor.clone()), ours),
            ("the same, made by the Go provider", object(without_uids), Some(successor), suspected),
            ("a service that gave its load balancer up without us", object(|_| {}), Some(cluster_ip), ours),
            ("a service that we have not released yet", object(|_| {}), Some(leaving), None),
            ("being deleted", object(|lb| lb.terminating = true), None, None),
            ("another cluster's by UID, under our name", object(foreign_uid), None, None),
            ("another cluster's by name", object(foreign_name), None, None),
            ("a hand-made object with our UID", object(unlabelled), None, ours),
        ] {
            assert_eq!(found(lb, service), expected, "{sentence}");
        }
    }
}
