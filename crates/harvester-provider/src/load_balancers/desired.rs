//! Computes what a Service's LoadBalancer object should look like, and which changes an existing one needs (CCM spec
//! 2.4). Pure.

use std::collections::BTreeMap;

use cloud_provider::view::{ServiceView, Tags};
use harvester_api::keys::cloudprovider::{self, NUDGED, PRESET_FINALIZER};
use harvester_api::keys::harvester::LB_FINALIZER;
use harvester_api::keys::loadbalancer;
use harvester_api::load_balancer::{Ipam, LoadBalancer};
use harvester_api::names::{self, ClusterName};
use serde_json::{Map, Value};

use super::choice::Source;
use super::network::wanted_network;
use super::view::LbView;
use crate::config::LoadBalancerConfig;

/// One change to an existing LoadBalancer object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Set a label.
    Label(&'static str, String),
    /// Set an annotation.
    Annotation(&'static str, String),
    /// Remove an annotation.
    NoAnnotation(&'static str),
    /// Set `spec.ipam`: without it Harvester does not release the address on deletion.
    Ipam(Ipam),
    /// Set `spec.ipPool`.
    Pool(String),
    /// Remove `spec.ipPool`: Harvester chooses again.
    NoPool,
    /// Set `spec.workloadType: cluster`.
    ClusterWorkload,
    /// Set `status.address`.
    Address(String),
}

impl Change {
    /// Whether it changes the name of the cluster on the object.
    pub fn names_cluster(&self) -> bool {
        matches!(self, Self::Label(cloudprovider::CLUSTER, _) | Self::Annotation(loadbalancer::CLUSTER, _))
    }
}

/// The object to create. The host's webhook fills in project, namespace and network. The empty strings are those that
/// the Go provider sends, and that a host without webhook would keep.
pub fn new_object(config: &LoadBalancerConfig, name: &str, service: &ServiceView, source: &Source) -> LoadBalancer {
    let mut object = LoadBalancer::for_cluster(&config.namespace, name, source.ipam());
    object.spec.ip_pool = source.pool().map(str::to_owned);
    let from_service = |key| service.annotations.get(key).unwrap_or_default().to_owned();
    let network = wanted_network(service).to_owned();
    let mut annotations = BTreeMap::from([
        (cloudprovider::LB_NETWORK.to_owned(), network.clone()),
        (loadbalancer::CLUSTER.to_owned(), config.cluster_name.to_string()),
        (loadbalancer::NAMESPACE.to_owned(), from_service(cloudprovider::NAMESPACE)),
        (loadbalancer::NETWORK.to_owned(), network),
        (loadbalancer::PROJECT.to_owned(), from_service(cloudprovider::PROJECT)),
    ]);
    if let Some(network) = &config.management_network {
        annotations.insert(cloudprovider::MANAGEMENT_NETWORK.to_owned(), network.to_string());
    }
    annotations.extend(proof(config, service).map(|(key, value)| (key.to_owned(), value)));
    if service.resource_version.parse::<u64>().is_ok() {
        annotations.insert(cloudprovider::GUEST_REVISION.to_owned(), service.resource_version.clone());
    }
    object.metadata.annotations = Some(annotations);
    object.metadata.labels =
        Some(labels(config, service).into_iter().map(|(key, value)| (key.to_owned(), value)).collect());
    object
}

/// Adds the host controller's finalizer, and a mark that this controller added it (decision 8).
pub fn preset_finalizer(object: &mut LoadBalancer) {
    object.metadata.finalizers.get_or_insert_default().push(LB_FINALIZER.to_owned());
    object.metadata.annotations.get_or_insert_default().insert(PRESET_FINALIZER.to_owned(), "true".to_owned());
}

/// The annotations that prove which Service owns the object, whatever its name is (decision 11).
fn proof(config: &LoadBalancerConfig, service: &ServiceView) -> impl Iterator<Item = (&'static str, String)> {
    let cluster = config.cluster_uid.clone().map(|uid| (cloudprovider::CLUSTER_UID, uid));
    cluster.into_iter().chain([(cloudprovider::SERVICE_UID, service.uid.0.clone())])
}

/// Those of them that an existing object lacks. They are added when the object is written for another reason; alone
/// they are no reason for a write.
pub fn missing_proof(config: &LoadBalancerConfig, lb: &LbView, service: &ServiceView) -> Vec<Change> {
    let missing = proof(config, service).filter(|(key, value)| lb.annotation(key) != value);
    missing.map(|(key, value)| Change::Annotation(key, value)).collect()
}

fn labels(config: &LoadBalancerConfig, service: &ServiceView) -> Vec<(&'static str, String)> {
    let all = [
        (cloudprovider::CLUSTER, config.cluster_name.to_string()),
        (cloudprovider::SERVICE_NAME, service.key.name.clone()),
        (cloudprovider::SERVICE_NAMESPACE, service.key.namespace.clone()),
    ];
    // A cluster name that is not a valid label value is written only to the annotation: as a label the API server would
    // reject it (W-22).
    all.into_iter().filter(|(_, value)| names::is_label_value(value)).collect()
}

/// All differences from the desired state. Ignored are project and namespace, because the host's webhook overwrites
/// them, and the network, which is fixed at creation. An object from before v0.2.7 gets its fixed copy of the network
/// now (W-01).
pub fn drift(config: &LoadBalancerConfig, lb: &LbView, service: &ServiceView, ipam: Ipam) -> Vec<Change> {
    let mut changes = Vec::new();
    for (key, value) in labels(config, service) {
        if lb.labels.get(key) != Some(value.as_str()) {
            changes.push(Change::Label(key, value));
        }
    }
    let mut annotation = |key, value: String| {
        if lb.annotations.get(key) != Some(value.as_str()) {
            changes.push(Change::Annotation(key, value));
        }
    };
    annotation(loadbalancer::CLUSTER, config.cluster_name.to_string());
    if !lb.annotations.contains_key(cloudprovider::LB_NETWORK) {
        annotation(cloudprovider::LB_NETWORK, wanted_network(service).to_owned());
    }
    changes.extend(management_network(config, &lb.annotations));
    if lb.ipam.is_none() {
        changes.push(Change::Ipam(ipam));
    }
    if lb.workload_type.as_deref() != Some("cluster") {
        changes.push(Change::ClusterWorkload);
    }
    changes
}

/// The changes that give the object the present name of the cluster. The proof comes with them, because the object's
/// own name follows from the former one and proves nothing then.
pub fn renaming(config: &LoadBalancerConfig, lb: &LbView, service: &ServiceView) -> Vec<Change> {
    let mut changes = drift(config, lb, service, Ipam::Pool);
    changes.retain(Change::names_cluster);
    if !changes.is_empty() {
        changes.extend(missing_proof(config, lb, service));
    }
    changes
}

/// What to remove from an object that is written anyway: the mark of a nudge, after the object has got an address.
pub fn leftovers(lb: &LbView) -> Option<Change> {
    (lb.usable_address.is_some() && lb.annotations.contains_key(NUDGED)).then_some(Change::NoAnnotation(NUDGED))
}

/// The warning to log when an object is created for a cluster without a name of its own (table 8.2).
pub fn cluster_name_warning(cluster: &ClusterName) -> Option<&'static str> {
    cluster.is_default().then_some(
        "creating a load balancer for a cluster without a name of its own: clusters in one namespace of Harvester \
         cannot be told apart then; ensure a unique name is set with --cluster-name",
    )
}

/// The change of the management network's annotation: set as configured, removed if none is configured (table 8.4).
fn management_network(config: &LoadBalancerConfig, annotations: &Tags) -> Option<Change> {
    const KEY: &str = cloudprovider::MANAGEMENT_NETWORK;
    match (&config.management_network, annotations.get(KEY)) {
        (Some(wanted), found) if found != Some(wanted.as_str()) => Some(Change::Annotation(KEY, wanted.to_string())),
        (None, Some(_)) => Some(Change::NoAnnotation(KEY)),
        _ => None,
    }
}

/// Applies changes to an object as read from the API; everything else in it stays. Returns whether anything changed.
pub fn apply(object: &mut Value, changes: &[Change]) -> bool {
    let before = object.clone();
    for change in changes {
        match change {
            Change::Label(key, value) => {
                member(member(object, "metadata"), "labels").as_map().insert((*key).to_owned(), value.clone().into());
            }
            Change::Annotation(key, value) => {
                member(member(object, "metadata"), "annotations")
                    .as_map()
                    .insert((*key).to_owned(), value.clone().into());
            }
            Change::NoAnnotation(key) => {
                member(member(object, "metadata"), "annotations").as_map().remove(*key);
            }
            Change::Ipam(ipam) => *member(member(object, "spec"), "ipam") = ipam.as_str().into(),
            Change::Pool(pool) => *member(member(object, "spec"), "ipPool") = pool.clone().into(),
            Change::NoPool => {
                member(object, "spec").as_map().remove("ipPool");
            }
            Change::ClusterWorkload => *member(member(object, "spec"), "workloadType") = "cluster".into(),
            Change::Address(address) => *member(member(object, "status"), "address") = address.clone().into(),
        }
    }
    *object != before
}

fn member<'a>(value: &'a mut Value, name: &str) -> &'a mut Value {
    value.as_map().entry(name).or_insert(Value::Null)
}

trait AsMap {
    fn as_map(&mut self) -> &mut Map<String, Value>;
}

impl AsMap for Value {
    /// The value as an object; any other value is replaced by an empty object.
    fn as_map(&mut self) -> &mut Map<String, Value> {
        if !self.is_object() {
            *self = Value::Object(Map::new());
        }
        self.as_object_mut().expect("made an object above")
    }
}

#[cfg(test)]
mod tests {
    use harvester_api::names::NetworkName;
    use serde_json::json;

    use super::super::build;
    use super::*;

    #[test]
    fn ccm_8_2_cluster_name_warning_on_create() {
        for (name, warned) in [("", true), ("kubernetes", true), ("production-cluster", false)] {
            let warning = cluster_name_warning(&ClusterName::from_record(name));
            assert_eq!(warning.is_some_and(|text| text.contains("ensure a unique name is set")), warned, "{name:?}");
        }
    }

    #[test]
    fn ccm_8_4_management_network_annotation() {
        const MN: &str = cloudprovider::MANAGEMENT_NETWORK;
        for (name, configured, before, after) in [
            ("normalization and application", "harvester-mgmt/vlan-100", vec![], vec![(MN, "harvester-mgmt/vlan-100")]),
            ("bare name", "mgmt-vlan", vec![], vec![(MN, "default/mgmt-vlan")]),
            ("empty, existing stripped", "", vec![(MN, "default/mgmt-vlan")], vec![]),
            ("invalid global config", "invalid/global/net/too/deep", vec![(MN, "old-val")], vec![]),
            (
                "unrelated kept",
                "",
                vec![("harvesterhci.io/other", "important-data")],
                vec![("harvesterhci.io/other", "important-data")],
            ),
            ("malformed leftover", "", vec![(MN, "namespace/")], vec![]),
        ] {
            let config = LoadBalancerConfig {
                management_network: NetworkName::parse("managementNetwork", configured).ok(),
                ..build::config()
            };
            let tags = |pairs: &[(&str, &str)]| pairs.iter().copied().collect::<Tags>();
            let map = |pairs: &[(&'static str, &'static str)]| pairs.iter().copied().collect::<BTreeMap<_, _>>();
            let mut object = json!({"metadata": {"annotations": map(&before)}});
            let change: Vec<Change> = management_network(&config, &tags(&before)).into_iter().collect();
            assert_eq!(apply(&mut object, &change), !change.is_empty(), "{name}");
            assert_eq!(object["metadata"]["annotations"], json!(map(&after)), "{name}");
            assert_eq!(management_network(&config, &tags(&after)), None, "{name}: nothing left to do");
        }
    }

    #[test]
    fn a_cluster_name_that_is_no_label_value_is_left_out_of_the_labels() {
        let long = "x".repeat(64);
        let config = LoadBalancerConfig { cluster_name: ClusterName::from_record(&long), ..build::config() };
        let service = build::service("default/web").done();
        let object = new_object(&config, "name", &service, &Source::Pool(None));
        assert_eq!(object.label(cloudprovider::CLUSTER), None);
        assert_eq!(object.annotation(loadbalancer::CLUSTER), Some(long.as_str()));
        assert_eq!(drift(&config, &LbView::from(&object), &service, Ipam::Pool), []);
    }

    #[test]
    fn a_new_object_needs_no_change() {
        let service =
            build::service("default/web").short(&[("net", "a/b"), ("project", "p"), ("namespace", "n")]).done();
        let object = new_object(&build::config(), "name", &service, &Source::Dhcp);
        assert_eq!(drift(&build::config(), &LbView::from(&object), &service, Ipam::Dhcp), []);
    }

    /// W-51.
    #[test]
    fn health_check_annotations_reach_no_object_and_are_no_reason_for_a_change() {
        let plain = build::service("default/web").done();
        let mut checked = plain.clone();
        for name in ["port", "success-threshold", "failure-threshold", "period-seconds", "timeout-seconds"] {
            checked.annotations.insert(&format!("cloudprovider.harvesterhci.io/healthcheck-{name}"), "7");
        }
        let [without, with] = [&plain, &checked].map(|service| {
            let object = new_object(&build::config(), "name", service, &Source::Pool(None));
            assert_eq!(drift(&build::config(), &LbView::from(&object), &checked, Ipam::Pool), []);
            serde_json::to_value(object).unwrap()
        });
        assert_eq!(with, without);
        assert_eq!(with["spec"].get("healthCheck"), None);
    }

    /// W-01 and Harvester spec 3.7 (an object without `ipam` leaks its address).
    #[test]
    fn an_object_of_an_older_version_is_completed() {
        let service = build::service("default/web").short(&[("net", "a/b")]).done();
        let mut object = new_object(&build::config(), "name", &service, &Source::Pool(None));
        object.spec.ipam = None;
        object.spec.workload_type = None;
        object.metadata.annotations.as_mut().unwrap().remove(cloudprovider::LB_NETWORK);
        object.metadata.labels = None;
        let changes = drift(&build::config(), &LbView::from(&object), &service, Ipam::Pool);
        let mut value = serde_json::to_value(&object).unwrap();
        assert!(apply(&mut value, &changes));
        assert_eq!(
            value,
            serde_json::to_value(new_object(&build::config(), "name", &service, &Source::Pool(None))).unwrap()
        );
    }

    /// Harvester spec 3.1: without a name Harvester selects a pool; its admission (5.2) has no rule about it.
    #[test]
    fn a_pool_that_is_not_asked_for_any_more_is_removed() {
        let mut object = json!({"spec": {"ipPool": "nosuch", "ipam": "pool"}});
        assert!(apply(&mut object, &[Change::NoPool]));
        assert!(!apply(&mut object, &[Change::NoPool]), "the second time changes nothing");
        assert_eq!(object, json!({"spec": {"ipam": "pool"}}));
    }

    #[test]
    fn what_we_do_not_know_stays_in_an_object_that_is_changed() {
        let mut object = json!({
            "metadata": {"name": "x", "newField": 1, "finalizers": ["host"]},
            "spec": {"ipv6Pool": "six"}, "status": {"allocatedAddress": {"ip": "10.0.0.1", "x": 1}}, "future": [1]
        });
        let changes = [Change::Address("10.0.0.1".into()), Change::Label("a", "b".into()), Change::ClusterWorkload];
        assert!(apply(&mut object, &changes));
        assert!(!apply(&mut object, &changes), "the second time changes nothing");
        assert_eq!(
            object,
            json!({
                "metadata": {"name": "x", "newField": 1, "finalizers": ["host"], "labels": {"a": "b"}},
                "spec": {"ipv6Pool": "six", "workloadType": "cluster"},
                "status": {"address": "10.0.0.1", "allocatedAddress": {"ip": "10.0.0.1", "x": 1}}, "future": [1]
            })
        );
    }
}
