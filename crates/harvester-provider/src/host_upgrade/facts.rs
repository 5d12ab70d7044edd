//! What is known of an upgrade of the hosts: made from the cached objects, and all that the decision looks at. Pure.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cloud_provider::view::{NodeAddressKind, NodeView};
use harvester_api::keys;
use harvester_api::upgrade::{LATEST_UPGRADE, UPGRADE_STATE, Upgrade, UpgradePlan, condition};
use harvester_api::virtual_machine::PrintableStatus;
use harvester_api::virtual_machine_instance::Phase;

use crate::instances::view::{VmView, VmiView};

/// Who tells of the upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// `upgradeplans.management.harvesterhci.io`.
    UpgradePlan,
    /// `upgrades.harvesterhci.io`.
    Upgrade,
}

impl Source {
    /// Kind of the object.
    pub fn kind(self) -> &'static str {
        match self {
            Self::UpgradePlan => "UpgradePlan",
            Self::Upgrade => "Upgrade",
        }
    }
}

/// How a plan goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// Nothing is done by it now.
    Idle,
    /// It has succeeded.
    Succeeded,
    /// It has failed.
    Failed,
    /// It is under way, or paused.
    Running,
}

/// The plan, whoever tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanView {
    /// Who tells of it.
    pub source: Source,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`, its name where there is none.
    pub uid: String,
    /// `metadata.creationTimestamp`, Unix seconds.
    pub created: i64,
    /// As it is stored.
    pub phase: String,
    /// How it goes.
    pub progress: Progress,
    /// State by host, as it is stored.
    pub hosts: BTreeMap<String, String>,
    /// Nothing can be moved away.
    pub single_host: bool,
}

impl From<&UpgradePlan> for PlanView {
    fn from(plan: &UpgradePlan) -> Self {
        let status = &plan.status;
        let is = |kind| condition(&status.conditions, kind).is_some_and(|condition| condition.status == "True");
        let progress = match status.current_phase.as_str() {
            "Succeeded" => Progress::Succeeded,
            "Failed" => Progress::Failed,
            _ if is("Progressing") => Progress::Running,
            _ if is("Degraded") => Progress::Failed,
            _ => Progress::Idle,
        };
        let hosts = status.node_upgrade_statuses.iter().map(|(host, status)| (host.clone(), status.state.clone()));
        Self {
            source: Source::UpgradePlan,
            phase: status.current_phase.clone(),
            progress,
            hosts: hosts.collect(),
            single_host: status.single_node,
            ..Self::of(Source::UpgradePlan, &plan.metadata)
        }
    }
}

impl PlanView {
    fn of(source: Source, metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Self {
        let name = metadata.name.clone().unwrap_or_default();
        Self {
            source,
            uid: metadata.uid.clone().unwrap_or_else(|| name.clone()),
            name,
            created: metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
            phase: String::new(),
            progress: Progress::Idle,
            hosts: BTreeMap::new(),
            single_host: false,
        }
    }

    /// `None`: an older one, which counts no more.
    pub fn of_upgrade(upgrade: &Upgrade) -> Option<Self> {
        let label = |key: &str| upgrade.metadata.labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str);
        if label(LATEST_UPGRADE) != Some("true") {
            return None;
        }
        let state = label(UPGRADE_STATE).unwrap_or_default();
        let completed = condition(&upgrade.status.conditions, "Completed").map(|condition| condition.status.as_str());
        let progress = match (completed, state) {
            (Some("True"), _) | (_, "Succeeded") => Progress::Succeeded,
            (Some("False"), _) | (_, "Failed") => Progress::Failed,
            (_, "") => Progress::Idle,
            _ => Progress::Running,
        };
        let hosts = upgrade.status.node_statuses.iter().map(|(host, status)| (host.clone(), status.state.clone()));
        Some(Self {
            phase: state.to_owned(),
            progress,
            hosts: hosts.collect(),
            single_host: upgrade.status.single_node,
            ..Self::of(Source::Upgrade, &upgrade.metadata)
        })
    }

    /// For people: `UpgradePlan upgrade-v1.9.0`.
    pub fn title(&self) -> String {
        format!("{} {}", self.source.kind(), self.name)
    }
}

/// The plan that counts: one that runs before one that does not, then the Upgrade Toolkit's, then the youngest.
pub fn newest(plans: impl IntoIterator<Item = Arc<PlanView>>) -> Option<Arc<PlanView>> {
    plans.into_iter().max_by_key(|plan| {
        (plan.progress == Progress::Running, plan.created, std::cmp::Reverse(plan.source), plan.name.clone())
    })
}

/// Whether a machine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Power {
    /// It runs.
    On,
    /// On its way up.
    Starting,
    /// It is off.
    Off,
    /// It is off because its guest ended: KubeVirt keeps the ended instance then, and deletes it where the host or a
    /// user stops the machine.
    Ended,
    /// Cannot be told.
    Unknown,
}

/// The machine of a Node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MachineFacts {
    /// Name of the Node.
    pub node: String,
    /// UID of the Node.
    pub node_uid: String,
    /// Name of the VM.
    pub vm: String,
    /// Its host; empty while it has none.
    pub host: String,
    /// The host that the Node is labelled with: where it was last, if nothing newer is known.
    pub labelled_host: String,
    /// Whether it runs.
    pub power: Power,
    /// Its run strategy says so.
    pub should_run: bool,
    /// A live migration is under way.
    pub migrating: bool,
    /// Its host is being emptied.
    pub evacuating: bool,
    /// It can move while it runs, where that is known.
    pub live_migratable: Option<bool>,
    /// Addresses that the Node shows.
    pub addresses: Vec<String>,
}

/// All that is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// The plan that counts, if one can be read.
    pub plan: Option<Arc<PlanView>>,
    /// Machines of the cluster's Nodes.
    pub machines: Vec<MachineFacts>,
    /// For so many seconds the host's API has given no usable answer.
    pub silent_seconds: Option<i64>,
    /// The host's webhooks could not be asked a moment ago.
    pub webhooks_fail: bool,
}

/// The machines of these Nodes.
pub fn machines(nodes: &[Arc<NodeView>], vms: &[Arc<VmView>], vmis: &[Arc<VmiView>]) -> Vec<MachineFacts> {
    let by_uid: HashMap<&str, &VmView> = vms.iter().map(|vm| (vm.uid.as_str(), vm.as_ref())).collect();
    let instances: HashMap<&str, &VmiView> = vmis.iter().map(|vmi| (vmi.name.as_str(), vmi.as_ref())).collect();
    let mut found: Vec<MachineFacts> = nodes
        .iter()
        .filter_map(|node| {
            let vm = by_uid.get(keys::vm_uid(node.provider_id.as_deref()?)?)?;
            Some(machine(node, vm, instances.get(vm.name.as_str()).copied()))
        })
        .collect();
    found.sort_by(|a, b| a.node.cmp(&b.node));
    found
}

fn machine(node: &NodeView, vm: &VmView, vmi: Option<&VmiView>) -> MachineFacts {
    let power = match (vm.status, vmi.map(|vmi| vmi.phase)) {
        (_, Some(Phase::Ended)) => Power::Ended,
        (PrintableStatus::Stopped, _) | (PrintableStatus::Stopping, None) => Power::Off,
        (PrintableStatus::Starting, _) | (_, Some(Phase::Starting)) => Power::Starting,
        (_, Some(Phase::Running)) => Power::On,
        _ => Power::Unknown,
    };
    let addresses = node.addresses.iter().filter(|address| address.kind != NodeAddressKind::Hostname);
    MachineFacts {
        node: node.name.clone(),
        node_uid: node.uid.0.clone(),
        vm: vm.name.clone(),
        host: vmi.map(|vmi| vmi.host.clone()).unwrap_or_default(),
        labelled_host: node.labels.get(keys::cloudprovider::HOST).unwrap_or_default().to_owned(),
        power,
        should_run: vm.should_run,
        migrating: vmi.is_some_and(|vmi| vmi.migrating),
        evacuating: vmi.is_some_and(|vmi| vmi.evacuating),
        live_migratable: vmi.and_then(|vmi| vmi.live_migratable),
        addresses: addresses.map(|address| address.address.clone()).collect(),
    }
}
