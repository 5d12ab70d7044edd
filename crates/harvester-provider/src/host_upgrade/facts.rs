//! The facts about an upgrade of the hosts, made from cached objects. They are the only input of the decision. Pure.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cloud_provider::view::{NodeAddressKind, NodeView};
use harvester_api::keys;
use harvester_api::upgrade::{LATEST_UPGRADE, UPGRADE_STATE, Upgrade, UpgradePlan, condition};
use harvester_api::virtual_machine::PrintableStatus;
use harvester_api::virtual_machine_instance::Phase;

use crate::instances::view::{VmView, VmiView};

/// The API that reports the upgrade.
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

/// The progress of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// The plan does nothing now.
    Idle,
    /// It has succeeded.
    Succeeded,
    /// It has failed.
    Failed,
    /// It is in progress, or paused.
    Running,
}

/// An upgrade plan, from either API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanView {
    /// The API that reports it.
    pub source: Source,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`, or the name if there is none.
    pub uid: String,
    /// `metadata.creationTimestamp`, Unix seconds.
    pub created: i64,
    /// The phase, as Harvester stores it.
    pub phase: String,
    /// The progress that follows from the phase.
    pub progress: Progress,
    /// State by host, as Harvester stores it.
    pub hosts: BTreeMap<String, String>,
    /// Harvester has one host only, so no machine can move.
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

    /// Makes the view of an `Upgrade`. `None` for an older upgrade, which no longer matters.
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

    /// The plan as text for users: `UpgradePlan upgrade-v1.9.0`.
    pub fn title(&self) -> String {
        format!("{} {}", self.source.kind(), self.name)
    }
}

/// The decisive plan: a running plan comes first, then the youngest, then one of the Upgrade Toolkit.
pub fn newest(plans: impl IntoIterator<Item = Arc<PlanView>>) -> Option<Arc<PlanView>> {
    plans.into_iter().max_by_key(|plan| {
        (plan.progress == Progress::Running, plan.created, std::cmp::Reverse(plan.source), plan.name.clone())
    })
}

/// The power state of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Power {
    /// It runs.
    On,
    /// It is starting.
    Starting,
    /// It is off.
    Off,
    /// It is off because its guest shut down. KubeVirt keeps the ended instance then, and deletes it when the host or a
    /// user stops the machine.
    Ended,
    /// Unknown.
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
    /// The host in the Node's label: the last known host, if nothing newer is known.
    pub labelled_host: String,
    /// Its power state.
    pub power: Power,
    /// Its run strategy demands that it runs.
    pub should_run: bool,
    /// A live migration is in progress.
    pub migrating: bool,
    /// Its host is being emptied.
    pub evacuating: bool,
    /// Whether it can be live-migrated, if that is known.
    pub live_migratable: Option<bool>,
    /// Addresses in the status of the Node.
    pub addresses: Vec<String>,
}

/// All facts that the decision uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UpgradeFacts {
    /// How long this process has looked at windows, in seconds of a clock that nobody sets.
    pub running: i64,
    /// The decisive plan, if one can be read.
    pub plan: Option<Arc<PlanView>>,
    /// Machines of the cluster's Nodes.
    pub machines: Vec<MachineFacts>,
    /// Seconds since the host's API last gave a usable answer, while it gives none.
    pub silent_seconds: Option<i64>,
    /// A webhook of the host failed within the last two minutes.
    pub webhooks_fail: bool,
}

/// The machines of the given Nodes.
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
