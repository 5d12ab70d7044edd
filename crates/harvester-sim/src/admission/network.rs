//! Which network a cluster load balancer is on. Harvester spec 3.5

use std::collections::BTreeMap;

use harvester_api::keys::{cloudprovider, harvester, loadbalancer};

use crate::version::HostVersion;

/// What the rule needs to know about a virtual machine instance.
#[derive(Debug, Clone, Default)]
pub struct InstanceFacts {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Multus network names in spec order, as written.
    pub multus_networks: Vec<String>,
}

impl InstanceFacts {
    fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }

    fn first_network(&self) -> Option<&str> {
        self.multus_networks.iter().map(String::as_str).find(|network| !network.is_empty())
    }
}

/// Value of the network annotation after admission; empty where nothing is found, which is admitted all the same.
pub fn effective(
    version: HostVersion,
    namespace: &str,
    annotations: &BTreeMap<String, String>,
    instances: &[InstanceFacts],
) -> String {
    let given = |key: &str| annotations.get(key).map(String::as_str).filter(|value| !value.is_empty());
    let here = || instances.iter().filter(|instance| instance.namespace == namespace);
    let by_prefix = |cluster: &str| {
        here()
            .filter(|instance| instance.label(harvester::CREATOR) == Some(harvester::NODE_DRIVER))
            .filter(|instance| instance.name.starts_with(cluster))
            .find_map(InstanceFacts::first_network)
    };
    let by_label = |cluster: &str| {
        here()
            .filter(|instance| instance.label(harvester::GUEST_CLUSTER_NAME) == Some(cluster))
            .find_map(InstanceFacts::first_network)
    };
    let cluster = given(loadbalancer::CLUSTER);
    let found = match version {
        HostVersion::V1_8 => cluster.and_then(by_prefix),
        HostVersion::V1_9 | HostVersion::V1_9Rc => given(loadbalancer::NETWORK)
            .or_else(|| given(cloudprovider::MANAGEMENT_NETWORK))
            .or_else(|| cluster.and_then(|cluster| by_label(cluster).or_else(|| by_prefix(cluster)))),
    };
    found.unwrap_or_default().to_owned()
}

/// Whether the machines have to be looked up at all.
pub fn needs_instances(version: HostVersion, annotations: &BTreeMap<String, String>) -> bool {
    let given = |key: &str| annotations.get(key).is_some_and(|value| !value.is_empty());
    given(loadbalancer::CLUSTER)
        && (version == HostVersion::V1_8 || !(given(loadbalancer::NETWORK) || given(cloudprovider::MANAGEMENT_NETWORK)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(name: &str, creator: bool, cluster: Option<&str>, network: &str) -> InstanceFacts {
        let mut labels = BTreeMap::new();
        if creator {
            labels.insert(harvester::CREATOR.to_owned(), harvester::NODE_DRIVER.to_owned());
        }
        if let Some(cluster) = cluster {
            labels.insert(harvester::GUEST_CLUSTER_NAME.to_owned(), cluster.to_owned());
        }
        let multus_networks = vec![network.to_owned()];
        InstanceFacts { namespace: "guests".to_owned(), name: name.to_owned(), labels, multus_networks }
    }

    fn fixtures() -> Vec<InstanceFacts> {
        vec![
            instance("rke2-pool1-a", true, None, "default/mgmt"),
            instance("unrelated", true, Some("demo"), "default/demo-net"),
            instance("rke2-pool2-a", false, None, "default/wrong"),
            instance("k3s-pool1-a", true, None, "default/k3s"),
        ]
    }

    fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// Harvester spec 7.5, `FindNetwork`
    #[test]
    fn the_first_source_that_says_something_wins() {
        const NET: &str = loadbalancer::NETWORK;
        const MGMT: &str = cloudprovider::MANAGEMENT_NETWORK;
        const CLUSTER: &str = loadbalancer::CLUSTER;
        type Pairs = [(&'static str, &'static str)];
        let table: [(&Pairs, &str, &str); 9] = [
            (&[(NET, "default/given")], "guests", "default/given"),
            (&[(NET, "default/given"), (CLUSTER, "demo")], "guests", "default/given"),
            (&[(NET, "default/given"), (MGMT, "default/mgmt-flag")], "guests", "default/given"),
            (&[(NET, ""), (MGMT, "default/mgmt-flag"), (CLUSTER, "demo")], "guests", "default/mgmt-flag"),
            (&[(CLUSTER, "demo")], "guests", "default/demo-net"),
            (&[(CLUSTER, "rke2")], "guests", "default/mgmt"),
            (&[(CLUSTER, "demo")], "elsewhere", ""),
            (&[(CLUSTER, "unknown")], "guests", ""),
            (&[(CLUSTER, "")], "guests", ""),
        ];
        for (given, namespace, expected) in table {
            assert_eq!(
                effective(HostVersion::V1_9, namespace, &annotations(given), &fixtures()),
                expected,
                "{given:?}"
            );
        }
    }

    #[test]
    fn older_hosts_overwrite_what_the_client_gave_and_look_at_name_prefixes_only() {
        let given = [(loadbalancer::NETWORK, "default/given"), (cloudprovider::MANAGEMENT_NETWORK, "default/flag")];
        assert_eq!(effective(HostVersion::V1_8, "guests", &annotations(&given), &fixtures()), "");
        let with_cluster = [given[0], (loadbalancer::CLUSTER, "rke2")];
        assert_eq!(effective(HostVersion::V1_8, "guests", &annotations(&with_cluster), &fixtures()), "default/mgmt");
        let by_label_only = [(loadbalancer::CLUSTER, "demo")];
        assert_eq!(effective(HostVersion::V1_8, "guests", &annotations(&by_label_only), &fixtures()), "");
    }

    #[test]
    fn machines_are_looked_up_only_when_they_can_decide() {
        let network = annotations(&[(loadbalancer::NETWORK, "a/b"), (loadbalancer::CLUSTER, "demo")]);
        assert!(!needs_instances(HostVersion::V1_9, &network) && needs_instances(HostVersion::V1_8, &network));
        assert!(!needs_instances(HostVersion::V1_9, &BTreeMap::new()));
        assert!(needs_instances(HostVersion::V1_9, &annotations(&[(loadbalancer::CLUSTER, "demo")])));
    }
}
