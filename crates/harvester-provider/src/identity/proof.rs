//! Decides which LoadBalancer objects belong to a Service, whatever their names are (decision 11). Pure.

use cloud_provider::cache::ServiceCache;
use cloud_provider::view::{ServiceKey, ServiceView};
use harvester_api::keys::{cloudprovider, loadbalancer};
use harvester_api::names::ClusterName;

use crate::load_balancers::view::LbView;

/// The Service whose UID identifies the cluster: no other cluster has the same UID, except a copy.
pub const CLUSTER_SERVICE: (&str, &str) = ("default", "kubernetes");

/// UID of Service `default/kubernetes`, if the Services are known.
pub fn service_uid(services: &ServiceCache) -> Option<String> {
    let (namespace, name) = CLUSTER_SERVICE;
    let key = ServiceKey { namespace: namespace.to_owned(), name: name.to_owned() };
    services.get(&key).map(|service| service.uid.0.clone())
}

/// The cluster name that the object carries.
pub fn cluster_of(lb: &LbView) -> Option<ClusterName> {
    let label = lb.labels.get(cloudprovider::CLUSTER);
    // A name that is not valid as a label value is only in the annotation (W-22).
    label.or_else(|| lb.annotations.get(loadbalancer::CLUSTER)).map(ClusterName::from_record)
}

/// Replaces the UID in the name of the object that takes a Service's address from this pool after a move.
pub fn unique_in_pool(service: &ServiceView, pool: &str) -> String {
    format!("{}/{pool}", service.uid)
}

/// Whether the object has this Service's name, but was handed over to another Service, which its labels and UID name.
pub fn is_handed_over(lb: &LbView, service: &ServiceView) -> bool {
    let (namespace, name) = (service.key.namespace.as_str(), service.key.name.as_str());
    let owner = lb.annotation(cloudprovider::SERVICE_UID);
    lb.service().is_some_and(|named| named != (namespace, name)) && !["", service.uid.0.as_str()].contains(&owner)
}

/// Whether the object provably belongs to the Service. Its labels have to name the Service, and one of two proofs is
/// needed. Either its name follows from a naming rule, computed with the cluster name on the object and the Service's
/// UID (or, for an object that a move created, its own pool). Or the object carries the Service's UID. Labels alone
/// prove nothing, because clusters share a namespace of Harvester.
///
/// The UID of the cluster is not compared. Service default/kubernetes can be created again, and then every object
/// carries a former UID. The comparison would prove no more either: only a copy of the whole cluster has a Service with
/// the same UID, and the copy has the cluster's UID too.
pub fn is_proven(lb: &LbView, service: &ServiceView) -> bool {
    let (namespace, name) = (service.key.namespace.as_str(), service.key.name.as_str());
    if lb.service() != Some((namespace, name)) {
        return false;
    }
    let by_uid = lb.annotation(cloudprovider::SERVICE_UID) == service.uid.0 && !service.uid.0.is_empty();
    let by_rule = |unique: &str| {
        cluster_of(lb).is_some_and(|cluster| lb.name == cluster.load_balancer_name(namespace, name, unique))
    };
    by_uid || by_rule(&service.uid.0) || lb.pool().is_some_and(|pool| by_rule(&unique_in_pool(service, pool)))
}

#[cfg(test)]
mod tests {
    use super::super::super::load_balancers::build;
    use super::*;

    fn object(cluster: &str, name: &str) -> LbView {
        let mut lb = build::lb(name).done();
        lb.labels.insert(cloudprovider::CLUSTER, cluster);
        lb.annotations.remove(cloudprovider::SERVICE_UID);
        lb
    }

    fn name(cluster: &str, service: &ServiceView) -> String {
        ClusterName::from_record(cluster).load_balancer_name(&service.key.namespace, &service.key.name, &service.uid.0)
    }

    #[test]
    fn the_naming_rule_proves_whose_an_object_is_under_any_cluster_name() {
        let web = build::service("default/web").done();
        for cluster in ["demo", "kubernetes", "former"] {
            assert!(is_proven(&object(cluster, &name(cluster, &web)), &web), "{cluster}");
        }
        assert!(!is_proven(&object("former", &name("demo", &web)), &web), "the name belongs to another cluster's rule");
        let successor = ServiceView { uid: cloud_provider::view::Uid("other".into()), ..web.clone() };
        assert!(!is_proven(&object("demo", &name("demo", &web)), &successor), "a Service of the same name");
        let other = build::service("default/other").done();
        assert!(!is_proven(&object("demo", &name("demo", &other)), &other), "the labels name default/web");
    }

    /// Service default/kubernetes can be made anew, and then the cluster has another UID.
    #[test]
    fn the_object_of_a_move_is_proven_by_its_name_whatever_the_uid_of_the_cluster() {
        let web = build::service("default/web").done();
        let unique = unique_in_pool(&web, "edge");
        let moved = ClusterName::from_record("demo").load_balancer_name("default", "web", &unique);
        let mut lb = object("demo", &moved);
        assert!(!is_proven(&lb, &web), "no pool stands on it");
        lb.wanted_pool = Some("edge".into());
        assert!(is_proven(&lb, &web));
        lb.wanted_pool = Some("other".into());
        assert!(!is_proven(&lb, &web), "the name belongs to another pool");
        lb.wanted_pool = Some("edge".into());
        let successor = ServiceView { uid: cloud_provider::view::Uid("other".into()), ..web };
        assert!(!is_proven(&lb, &successor), "a Service of the same name");
    }

    #[test]
    fn the_uid_of_the_service_proves_it_where_the_name_does_not_whatever_the_uid_of_the_cluster() {
        let web = build::service("default/web").done();
        for cluster_uid in ["", "cluster-1", "cluster-2"] {
            let mut lb = object("demo", "some-name");
            lb.annotations.insert(cloudprovider::CLUSTER_UID, cluster_uid);
            assert!(!is_proven(&lb, &web), "{cluster_uid}: labels alone");
            lb.annotations.insert(cloudprovider::SERVICE_UID, "that of another clusters default/web");
            assert!(!is_proven(&lb, &web), "{cluster_uid}: another cluster's");
            lb.annotations.insert(cloudprovider::SERVICE_UID, &web.uid.0);
            assert!(is_proven(&lb, &web), "{cluster_uid}");
            lb.labels.insert(cloudprovider::SERVICE_NAME, "other");
            assert!(!is_proven(&lb, &web), "{cluster_uid}: its labels say otherwise");
        }
    }

    #[test]
    fn an_object_is_handed_over_when_labels_and_uid_name_another_service() {
        let web = build::service("default/web").done();
        let mut lb = object("demo", "some-name");
        lb.labels.insert(cloudprovider::SERVICE_NAME, "heir");
        assert!(!is_handed_over(&lb, &web), "no UID says whose it is");
        lb.annotations.insert(cloudprovider::SERVICE_UID, &web.uid.0);
        assert!(!is_handed_over(&lb, &web), "half way");
        lb.annotations.insert(cloudprovider::SERVICE_UID, "uid-of-default-heir");
        assert!(is_handed_over(&lb, &web), "whatever the UID of the cluster is by now");
    }

    #[test]
    fn a_cluster_name_that_is_no_label_is_read_from_the_annotation() {
        let long = "x".repeat(64);
        let web = build::service("default/web").done();
        let mut lb = object("", &name(&long, &web));
        lb.labels.remove(cloudprovider::CLUSTER);
        lb.annotations.insert(loadbalancer::CLUSTER, &long);
        assert!(is_proven(&lb, &web));
    }
}
