//! ConfigMap `kube-system/harvester-nad-mapping`: which Linux interface of the nodes is attached to which network.
//!
//! [`compute`] derives the mapping from the VMs (CCM spec 5.2), [`NadMapping`] is the parsed ConfigMap, `writer.rs`
//! keeps the ConfigMap up to date.

use std::collections::BTreeMap;
use std::sync::Arc;

use harvester_api::names::ClusterName;
use harvester_api::virtual_machine_instance::Phase;
use k8s_openapi::api::core::v1::ConfigMap;
use runtime::cache::{Cache, Touched};
use runtime::reflect::Status;
use tokio::sync::watch;

use crate::instances::view::VmiView;

pub mod writer;

pub use contract::config_maps::{NAD_MAPPING as NAME, NAMESPACE};

/// The one key in its data.
pub const KEY: &str = "interface-nad-mapping";

/// The parsed ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NadMapping {
    /// Data key missing, empty, or `{}`: the nodes have no network in common.
    Empty,
    /// Network to interface.
    Known(BTreeMap<String, String>),
    /// Not a JSON object of strings; contains the parser's message.
    Invalid(String),
    /// JSON `null`: as if there were no ConfigMap.
    Null,
}

impl NadMapping {
    /// Parses the ConfigMap (CCM spec 3.3).
    pub fn from_config_map(config_map: &ConfigMap) -> Self {
        Self::parse(config_map.data.as_ref().and_then(|data| data.get(KEY)).map_or("", String::as_str))
    }

    fn parse(text: &str) -> Self {
        if text.is_empty() {
            return Self::Empty;
        }
        match serde_json::from_str::<Option<BTreeMap<String, String>>>(text) {
            Ok(None) => Self::Null,
            Ok(Some(map)) if map.is_empty() => Self::Empty,
            Ok(Some(map)) => Self::Known(map),
            Err(error) => Self::Invalid(error.to_string()),
        }
    }
}

/// The watched ConfigMap: its cache has at most one entry.
#[derive(Debug, Clone)]
pub struct MappingSource {
    cache: Cache<String, NadMapping>,
    status: Option<watch::Receiver<Status>>,
}

impl MappingSource {
    /// A cache for a reflector to fill.
    pub fn cache() -> Cache<String, NadMapping> {
        Cache::new(|old, new| old != new)
    }

    /// The ConfigMap in this cache, which a reflector with this status fills.
    pub fn new(cache: Cache<String, NadMapping>, status: watch::Receiver<Status>) -> Self {
        Self { cache, status: Some(status) }
    }

    /// A mapping for tests.
    #[cfg(test)]
    pub(crate) fn in_memory(mapping: Option<NadMapping>) -> Self {
        let cache = Cache::in_memory(|old, new| old != new, mapping.map(|mapping| (NAME.to_owned(), mapping)));
        Self { cache, status: None }
    }

    /// Whether decisions may be based on [`Self::get`]: the first list has arrived, or never will, because the right to
    /// read ConfigMaps is missing (W-07: some manifests do not grant it). Then there is no mapping. Any other error is
    /// temporary, and a decision during it could announce a Service on the wrong NIC.
    pub fn is_known(&self) -> bool {
        self.cache.is_synced() || self.status.as_ref().is_some_and(|status| status.borrow().forbidden)
    }

    /// The mapping, if the ConfigMap exists.
    pub fn get(&self) -> Option<Arc<NadMapping>> {
        self.cache.get(&NAME.to_owned())
    }

    /// The ConfigMap's value in the spelling of this controller; `None` if it does not exist or has another format.
    fn value(&self) -> Option<String> {
        match self.get().as_deref()? {
            NadMapping::Empty => Some(String::new()),
            NadMapping::Known(mapping) => Some(value(mapping)),
            NadMapping::Invalid(_) | NadMapping::Null => None,
        }
    }

    /// The receiver changes with each change of the ConfigMap.
    pub fn subscribe(&self) -> Touched<String> {
        self.cache.subscribe()
    }
}

/// Computes the mapping; `None` if it is not known now, so that the existing value stays.
///
/// Only machines that report an interface for a network count for it, so a silent guest agent changes nothing (W-15).
/// Without a cluster name, the cluster's machines cannot be told from those of other clusters (W-11).
pub fn compute<'a>(
    cluster: &ClusterName,
    vmis: impl IntoIterator<Item = &'a VmiView>,
) -> Option<BTreeMap<String, String>> {
    if cluster.is_default() {
        return None;
    }
    let reports: Vec<Report> = vmis
        .into_iter()
        .filter(|vmi| vmi.guest_cluster() == Some(cluster.as_str()))
        .filter(|vmi| vmi.phase == Phase::Running && !vmi.migrating && !vmi.deleting)
        .map(report)
        .filter(|report| report.values().any(Option::is_some))
        .collect();
    let mut common = reports.first()?.clone();
    for report in &reports[1..] {
        common.retain(|network, _| report.contains_key(network));
        for (network, interface) in &mut common {
            match (interface.as_ref(), report.get(network).and_then(Option::as_ref)) {
                (Some(known), Some(other)) if known != other => *interface = Some(String::new()),
                (None, Some(other)) => *interface = Some(other.clone()),
                _ => {}
            }
        }
    }
    // An empty name marks a network that has different interfaces on two machines.
    let agreed = common.into_iter().filter_map(|(network, interface)| Some((network, interface?)));
    Some(agreed.filter(|(_, interface)| !interface.is_empty()).collect())
}

/// The interface of each network of a machine; `None` while its guest agent has not reported it.
type Report<'a> = BTreeMap<String, Option<String>>;

fn report(vmi: &VmiView) -> Report<'_> {
    let mut report = Report::new();
    for network in &vmi.networks {
        let Some(nad) = network.multus.as_ref().filter(|nad| !nad.is_empty()) else { continue };
        let interface = vmi.interfaces.iter().find(|interface| interface.name == network.name);
        let told = interface.map(|interface| interface.interface_name.clone()).filter(|name| !name.is_empty());
        report.insert(nad.clone(), told);
    }
    report
}

/// The mapping as compact JSON with sorted keys; an empty string if there is no common network.
pub fn value(mapping: &BTreeMap<String, String>) -> String {
    if mapping.is_empty() {
        return String::new();
    }
    serde_json::to_string(mapping).expect("a map of strings is JSON")
}

#[cfg(test)]
mod tests {
    use harvester_api::keys::harvester::GUEST_CLUSTER_NAME;

    use super::*;
    use crate::instances::view::{InterfaceView, NetworkView, build};

    /// (network, interface or "" for "the agent has not told")
    fn machine(name: &str, nics: &[(&str, &str)]) -> VmiView {
        let mut vmi = build::vmi(name);
        vmi.labels.insert(GUEST_CLUSTER_NAME, "demo");
        for (index, (network, interface)) in nics.iter().enumerate() {
            let name = format!("nic-{index}");
            vmi.networks.push(NetworkView { name: name.clone(), multus: Some((*network).into()) });
            vmi.interfaces.push(InterfaceView { name, addresses: Vec::new(), interface_name: (*interface).into() });
        }
        vmi
    }

    fn demo(vmis: &[VmiView]) -> Option<String> {
        compute(&ClusterName::from_record("demo"), vmis).map(|mapping| value(&mapping))
    }

    const BOTH: &[(&str, &str)] = &[("default/mgmt", "enp1s0"), ("default/net123", "enp2s0")];

    /// CCM spec 5.2, its example.
    #[test]
    fn only_what_all_machines_agree_on_is_in_the_mapping() {
        let other = machine("b", &[("default/mgmt", "enp1s0"), ("default/net123", "enp3s0")]);
        assert_eq!(demo(&[machine("a", BOTH), other]).unwrap(), r#"{"default/mgmt":"enp1s0"}"#);
    }

    #[test]
    fn a_network_that_a_machine_lacks_is_not_common() {
        let other = machine("b", &[("default/mgmt", "enp1s0")]);
        assert_eq!(demo(&[machine("a", BOTH), other]).unwrap(), r#"{"default/mgmt":"enp1s0"}"#);
    }

    #[test]
    fn keys_are_sorted_and_the_json_is_compact() {
        let vmi = machine("a", &[("guests/mgmt", "enp1s0"), ("guests/data", "enp2s0")]);
        assert_eq!(demo(&[vmi]).unwrap(), r#"{"guests/data":"enp2s0","guests/mgmt":"enp1s0"}"#);
    }

    /// W-15.
    #[test]
    fn a_silent_guest_agent_changes_nothing() {
        let silent = machine("b", &[("default/mgmt", ""), ("default/net123", "")]);
        let half = machine("c", &[("default/mgmt", "enp1s0"), ("default/net123", "")]);
        let expected = r#"{"default/mgmt":"enp1s0","default/net123":"enp2s0"}"#;
        for order in [[machine("a", BOTH), silent.clone(), half.clone()], [half, silent.clone(), machine("a", BOTH)]] {
            assert_eq!(demo(&order).unwrap(), expected);
        }
        assert_eq!(demo(&[silent]), None, "keep what is there");
    }

    #[test]
    fn machines_that_disagree_on_everything_have_an_empty_mapping() {
        let got = demo(&[machine("a", &[("a/a", "x")]), machine("b", &[("a/a", "y")]), machine("c", &[("a/a", "x")])]);
        assert_eq!(got.unwrap(), "");
    }

    #[test]
    fn other_clusters_and_machines_that_do_not_run_do_not_count() {
        let mut foreign = machine("b", &[("x/y", "z")]);
        foreign.labels.insert(GUEST_CLUSTER_NAME, "other");
        let migrating = VmiView { migrating: true, ..machine("c", &[("x/y", "z")]) };
        let starting = VmiView { phase: Phase::Starting, ..machine("d", &[("x/y", "z")]) };
        let leaving = VmiView { deleting: true, ..machine("e", &[("x/y", "z")]) };
        let all = [foreign, migrating, starting, leaving];
        assert_eq!(demo(&all), None);
        let mut with = all.to_vec();
        with.push(machine("a", &[("default/mgmt", "enp1s0")]));
        assert_eq!(demo(&with).unwrap(), r#"{"default/mgmt":"enp1s0"}"#);
    }

    /// W-07.
    #[test]
    fn only_a_list_and_a_missing_right_to_read_it_make_the_mapping_known() {
        let error = Some((tokio::time::Instant::now(), "no".to_owned()));
        for (name, status, known) in [
            ("nothing yet", Status::default(), false),
            ("the API server is away", Status { error: error.clone(), ..Status::default() }, false),
            ("no right to read it", Status { error, forbidden: true, ..Status::default() }, true),
        ] {
            let source = MappingSource::new(MappingSource::cache(), watch::Sender::new(status).subscribe());
            assert_eq!(source.is_known(), known, "{name}");
        }
        assert!(MappingSource::in_memory(None).is_known(), "an empty list");
    }

    /// W-11.
    #[test]
    fn a_cluster_without_a_name_has_no_mapping() {
        for name in ["", "kubernetes"] {
            let mut vmi = machine("a", BOTH);
            // It may be any of the clusters that were given no name.
            vmi.labels.insert(GUEST_CLUSTER_NAME, name);
            assert_eq!(compute(&ClusterName::from_record(name), &[vmi]), None);
        }
    }

    /// CCM spec 3.3.
    #[test]
    fn the_value_is_read_as_the_go_provider_reads_it() {
        assert_eq!(NadMapping::parse(""), NadMapping::Empty);
        assert_eq!(NadMapping::parse("{}"), NadMapping::Empty);
        assert_eq!(NadMapping::parse("null"), NadMapping::Null);
        assert_eq!(NadMapping::parse(r#"{"a/b":"c"}"#), NadMapping::Known([("a/b".into(), "c".into())].into()));
        for bad in ["x", "[]", r#"{"a":1}"#] {
            assert!(matches!(NadMapping::parse(bad), NadMapping::Invalid(_)), "{bad}");
        }
    }
}
