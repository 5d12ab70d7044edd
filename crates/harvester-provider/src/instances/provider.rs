//! Implements the trait `Instances`: reads the caches, lets the pure modules decide, and asks guest agents in the
//! background.

mod agents;
mod finding;
mod outdated;
mod vips;

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cloud_provider::cache::{NodeCache, ServiceCache};
use cloud_provider::node::{INSTANCE_TYPE, is_uninitialized};
use cloud_provider::provider::{
    Existence, Hold, InstanceMetadata, Instances, MachineState, NodeWake, Power, ProviderError,
};
use cloud_provider::view::{NodeAddress, NodeAddressKind, NodeView};
use futures::stream::{BoxStream, StreamExt, select_all};
use harvester_api::keys;
use harvester_api::virtual_machine::PrintableStatus;
use harvester_api::virtual_machine_instance::Phase;
use runtime::reflect::Status;
use tokio::sync::{Notify, mpsc, watch};

use finding::nodes_of;
use vips::ServiceVips;

use super::addresses::{AddressRules, Addresses, node_addresses};
use super::hostnames::{AgentRequest, Hostnames};
use super::lookup::{judge, vm_uid};
use super::power::{machine_state, power};
use super::requests::Requests;
use super::survivor::Doubt;
use super::view::{VmCache, VmView, VmiCache, VmiView};
use crate::config::ProviderConfig;
use crate::host_upgrade::suspensions::{Suspensions, each};
use crate::host_upgrade::{frozen_addresses, frozen_label};
use crate::identity::Identity;
use crate::metrics::Metrics;

/// Requests for guest agents, which [`HarvesterInstances::run`] processes.
pub type AgentRequests = mpsc::UnboundedReceiver<AgentRequest>;

/// VMs of Harvester as machines of Nodes.
pub struct HarvesterInstances {
    cluster: Identity,
    namespace: String,
    server: String,
    rules: AddressRules,
    /// `--disable-vmi-controller` not given.
    follows_vmis: bool,
    /// `--disable-hostname-lookup` is not given either: a Node may have another name than its machine.
    asks_agents: bool,
    vips: Mutex<ServiceVips>,
    nodes: NodeCache,
    vms: VmCache,
    vmis: VmiCache,
    /// State of the watches that fill the two caches.
    watched: [watch::Receiver<Status>; 2],
    requests: Requests,
    memory: Arc<Mutex<InstanceState>>,
    asks: mpsc::UnboundedSender<AgentRequest>,
    /// An agent has answered.
    answered: Notify,
    metrics: Arc<Metrics>,
    suspensions: Suspensions,
}

#[derive(Debug, Default)]
struct InstanceState {
    hostnames: Hostnames,
    /// By VM UID.
    bound: BTreeMap<String, Binding>,
    /// Nodes whose machine is not known yet, with the time of the last query for each.
    unresolved: BTreeMap<String, Instant>,
    listeners: Vec<mpsc::UnboundedSender<NodeWake>>,
    /// Node names by VM name, as last found: the Nodes to wake when the VM changes.
    found: BTreeMap<String, String>,
    /// Nodes that wait for missing addresses of a NIC, with the end of the wait.
    nic_waits: BTreeMap<String, Instant>,
    /// Values of annotations that are no label values, as told in the log.
    no_labels: BTreeSet<String>,
    /// Nodes without a machine that are kept because another machine may be theirs, by their UIDs.
    doubts: BTreeMap<String, Doubt>,
    /// When the entries of vanished machines and Nodes were last removed.
    swept: Option<Instant>,
    /// The number of failures of the watches, and since when it has not changed.
    steady: Option<(u64, tokio::time::Instant)>,
}

/// A VM and its Node, as known from a provider ID.
#[derive(Debug, Clone)]
struct Binding {
    vm: String,
    node: String,
}

/// Interval of a scan of all machines, if nothing else requires one.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// A Node without a query for this long waits no more (every Node is queried every few minutes).
const NODE_LASTS: Duration = Duration::from_mins(30);

/// How long an initialised Node waits for a NIC without an address, or without one of the family of its InternalIP,
/// before it shows only what is left. A restart of the machine or of its DHCP client takes less, and an address that
/// has really gone is not shown for ever.
const NIC_SILENT: Duration = Duration::from_mins(10);

impl HarvesterInstances {
    /// Creates the provider. It sends and watches nothing before [`Self::run`], which receives the requests for guest
    /// agents.
    pub fn new(
        (config, identity): (&ProviderConfig, Identity),
        (services, nodes): (ServiceCache, NodeCache),
        (vms, vmis): (VmCache, VmiCache),
        watched: [watch::Receiver<Status>; 2],
        requests: Requests,
        metrics: Arc<Metrics>,
    ) -> (Self, AgentRequests) {
        let (asks, asked) = mpsc::unbounded_channel();
        let instances = Self {
            cluster: identity,
            namespace: config.namespace.clone(),
            server: config.server.clone(),
            rules: AddressRules::from(config),
            follows_vmis: !config.disable_vmi_controller,
            asks_agents: !(config.disable_vmi_controller || config.disable_hostname_lookup),
            vips: Mutex::new(ServiceVips::new(&services)),
            nodes,
            vms,
            vmis,
            watched,
            requests,
            memory: Arc::default(),
            asks,
            answered: Notify::new(),
            metrics,
            suspensions: Suspensions::default(),
        };
        (instances, asked)
    }

    /// Sets the suspensions that the provider asks before a Node loses anything.
    pub fn suspended_by(mut self, suspensions: Suspensions) -> Self {
        self.suspensions = suspensions;
        self
    }

    fn memory(&self) -> MutexGuard<'_, InstanceState> {
        self.memory.lock()
    }

    /// UIDs of the machines of other Nodes. One of them has to be visible before any machine counts as gone.
    fn machines_of_others(&self, uid: &str) -> BTreeSet<String> {
        let nodes = self.nodes.all();
        let machines = nodes.iter().filter_map(|node| vm_uid(node)).filter(|other| *other != uid);
        let confirmed = self.cluster.card();
        let confirmed = confirmed.iter().flat_map(|card| card.machines.iter()).filter(|other| *other != uid);
        machines.map(str::to_owned).chain(confirmed.cloned()).collect()
    }

    /// Addresses that belong to Services, and therefore never to a Node.
    fn service_vips(&self) -> Arc<BTreeSet<IpAddr>> {
        self.vips.lock().get(Instant::now())
    }

    /// Keeps zone, region, host label and addresses of the Node while hosts are being upgraded, because machines move
    /// between hosts until the upgrade is over.
    fn freeze(&self, node: &NodeView, machine: &mut InstanceMetadata) {
        if self.suspensions.zones_frozen() {
            for (key, value) in &mut machine.labels {
                *value = frozen_label(node, key, std::mem::take(value));
            }
            machine.zone = frozen_label(node, keys::kubernetes::TOPOLOGY_ZONE, std::mem::take(&mut machine.zone));
            machine.region = frozen_label(node, keys::kubernetes::TOPOLOGY_REGION, std::mem::take(&mut machine.region));
        }
        if self.suspensions.addresses_only_added() {
            let addresses = std::mem::take(&mut machine.addresses);
            machine.addresses = frozen_addresses(node, addresses, &self.service_vips());
        }
    }

    fn addresses(&self, node: &NodeView, vmi: &VmiView) -> Result<Vec<NodeAddress>, String> {
        let uninitialised = is_uninitialized(node);
        let found = node_addresses(node, vmi, &self.rules, &self.service_vips());
        let waits = self.waits_for_nic(node, matches!(found, Addresses::Incomplete { .. }));
        match found {
            Addresses::Known(addresses) => Ok(addresses),
            Addresses::Incomplete { addresses, .. } if !waits => Ok(addresses),
            // An address that the kubelet has set itself is more valuable.
            Addresses::HostnameOnly(_) if uninitialised && node.addresses.is_empty() => {
                Ok(vec![NodeAddress { kind: NodeAddressKind::Hostname, address: node.name.clone() }])
            }
            Addresses::HostnameOnly(reason) => {
                tracing::debug!(node = node.name, "{reason}");
                Ok(Vec::new())
            }
            // W-05: a Node without addresses stays tainted; one with addresses keeps them.
            Addresses::Unknown(reason) if uninitialised => Err(reason),
            Addresses::Unknown(reason) => {
                tracing::debug!(node = node.name, "the controller keeps the addresses of the Node: {reason}");
                Ok(Vec::new())
            }
            Addresses::Incomplete { reason, meanwhile, .. } => {
                tracing::debug!(node = node.name, "the controller keeps addresses of the Node for now: {reason}");
                Ok(meanwhile)
            }
        }
    }

    /// The value of an annotation of the machine as a label value; empty if it is none. A request with it would be
    /// refused, and everything else in it (W-22).
    fn topology_label(&self, vmi: &VmiView, key: &str, value: &str) -> String {
        let label = label_value(value);
        if label.is_none() && !value.is_empty() && self.memory().no_labels.insert(value.to_owned()) {
            tracing::warn!(
                vmi = vmi.key(),
                value,
                "annotation {key} of the VMI is no valid label value; the controller leaves the label out"
            );
        }
        label.unwrap_or_default()
    }

    /// Whether a Node that misses addresses of a NIC still waits for them.
    fn waits_for_nic(&self, node: &NodeView, incomplete: bool) -> bool {
        let (mut memory, now) = (self.memory(), Instant::now());
        if !incomplete {
            memory.nic_waits.remove(&node.name);
            return false;
        }
        now < *memory.nic_waits.entry(node.name.clone()).or_insert(now + NIC_SILENT)
    }
}

/// The instance of a machine, or the reason why its Node cannot be initialised yet.
fn instance_of(namespace: &str, vm: &VmView, vmi: Option<Arc<VmiView>>) -> Result<Arc<VmiView>, String> {
    let vm_key = format!("VM {namespace}/{}", vm.name);
    match (vmi, vm.status) {
        (None, PrintableStatus::Stopped) => Err(format!("{vm_key} is switched off: start it on Harvester")),
        (None, status) => Err(format!("{vm_key} has no running instance, Harvester says {status:?}")),
        (Some(vmi), _) if vmi.phase == Phase::Ended => {
            Err(format!("{vm_key} has ended: its instance is neither running nor starting"))
        }
        (Some(vmi), _) => Ok(vmi),
    }
}

/// The text, if it is a valid label value.
fn label_value(text: &str) -> Option<String> {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let good = text.len() <= 63 && text.chars().all(inner) && edge(text.chars().next()) && edge(text.chars().last());
    good.then(|| text.to_owned())
}

#[async_trait]
impl Instances for HarvesterInstances {
    async fn metadata(&self, node: &NodeView) -> Result<InstanceMetadata, ProviderError> {
        let (vm, vmi) = self.machine(node).await?;
        // W-28: without an instance neither addresses nor zone are known, and a Node without them must stay tainted.
        let vmi = instance_of(&self.namespace, &vm, vmi).map_err(ProviderError::new)?;
        let mut machine = InstanceMetadata {
            provider_id: keys::provider_id(&vm.uid),
            instance_type: label_value(if vm.instance_type.is_empty() { &vmi.size } else { &vm.instance_type })
                // An existing label takes precedence, for example one from the kubelet's `--node-labels`.
                .filter(|_| !node.labels.contains_key(INSTANCE_TYPE))
                .unwrap_or_default(),
            addresses: self.addresses(node, &vmi).map_err(ProviderError::new)?,
            zone: self.topology_label(&vmi, keys::kubernetes::TOPOLOGY_ZONE, &vmi.zone),
            region: self.topology_label(&vmi, keys::kubernetes::TOPOLOGY_REGION, &vmi.region),
            labels: BTreeMap::from([(keys::cloudprovider::HOST, label_value(&vmi.host).unwrap_or_default())]),
        };
        if !is_uninitialized(node) {
            self.freeze(node, &mut machine);
        }
        Ok(machine)
    }

    async fn existence(&self, node: &NodeView) -> Existence {
        let Some(uid) = vm_uid(node) else {
            return match (self.vm(node), &node.provider_id) {
                (Ok(_), _) => Existence::Exists,
                (Err(error), None) => Existence::Unknown(format!("the node has no provider ID; {error}")),
                (Err(_), Some(other)) => Existence::Unknown(format!("provider ID {other} is not one of Harvester's")),
            };
        };
        if let Err(reason) = self.lists() {
            return Existence::Unknown(reason);
        }
        let remembered = self.memory().bound.get(uid).map(|binding| binding.vm.clone());
        let name = remembered.unwrap_or_else(|| node.name.clone());
        let is_named = self.vms.get(&name).is_some_and(|vm| vm.uid == uid);
        if is_named || self.vms.all().iter().any(|vm| vm.uid == uid) {
            return Existence::Exists;
        }
        // Nothing could come of the proof now, and it costs the host a list of its machines.
        let suspended = |why| Existence::Unknown(format!("VM {name} is not found, but no Node is deleted now: {why}"));
        if let Err(why) = self.suspensions.may_delete_nodes() {
            return suspended(why);
        }
        // So it is while another machine may be the Node's.
        let doubt = match self.nowhere_else(node) {
            Ok(doubt) => doubt,
            Err(kept) => return kept,
        };
        let live = &self.requests.prove(&name, uid, &self.machines_of_others(uid)).await;
        match (judge(&self.namespace, &name, uid, live), self.suspensions.may_delete_nodes()) {
            (Existence::Gone(_), Err(why)) => suspended(why),
            (Existence::Gone(evidence), Ok(())) => Existence::Gone(evidence + &doubt),
            (judged, _) => judged,
        }
    }

    async fn power(&self, node: &NodeView) -> Power {
        match self.vm(node) {
            Ok(vm) => power(&vm, self.vmis.get(&vm.name).as_deref()),
            Err(error) => Power::Unknown(error.message),
        }
    }

    fn hold(&self) -> Option<Arc<Hold>> {
        self.cluster.hold()
    }

    async fn power_now(&self, node: &NodeView) -> Power {
        let known = match self.vm(node) {
            Ok(vm) => vm,
            Err(error) => return Power::Unknown(error.message),
        };
        match self.requests.read(&known.name).await {
            Ok(Some((vm, vmi))) if vm.uid == known.uid => power(&vm, vmi.as_ref()),
            Ok(_) => Power::Unknown(format!("VM {}/{} is another one now, or gone", self.namespace, known.name)),
            Err(error) => Power::Unknown(runtime::error::chain(&error)),
        }
    }

    async fn machine_state(&self, node: &NodeView) -> MachineState {
        // A replica that does not lead has no cache. The machine then usually has the Node's name, and the comparison
        // of UIDs below detects if not.
        let name = self.vm(node).map_or_else(|_| node.name.clone(), |vm| vm.name.clone());
        match self.requests.read(&name).await {
            Ok(Some((vm, vmi))) if Some(vm.uid.as_str()) == vm_uid(node) => machine_state(&vm, vmi.as_ref()),
            Ok(_) | Err(_) => MachineState::Unknown,
        }
    }

    fn cached_machine_state(&self, node: &NodeView) -> MachineState {
        if self.steady_since().is_none() {
            return MachineState::Unknown;
        }
        match self.vm(node) {
            Ok(vm) if Some(vm.uid.as_str()) == vm_uid(node) => machine_state(&vm, self.vmis.get(&vm.name).as_deref()),
            Ok(_) | Err(_) => MachineState::Unknown,
        }
    }

    fn steady_since(&self) -> Option<tokio::time::Instant> {
        let mut troubles = 0;
        let mut well = true;
        for status in &self.watched {
            let status = status.borrow();
            troubles += status.troubles;
            well &= status.synced && status.error.is_none();
        }
        let mut memory = self.memory();
        let since = memory.steady.filter(|(before, _)| *before == troubles).map(|(_, since)| since);
        memory.steady = well.then(|| (troubles, since.unwrap_or_else(tokio::time::Instant::now)));
        memory.steady.map(|(_, since)| since)
    }

    fn wakes(&self) -> BoxStream<'static, NodeWake> {
        let by_hold = futures::stream::unfold(self.cluster.holds(), |mut holds| async {
            holds.changed().await.ok()?;
            Some((NodeWake::All, holds))
        });
        if !self.follows_vmis {
            return select_all([by_hold.boxed(), self.recoveries()]).boxed();
        }
        let (sender, mut receiver) = mpsc::unbounded_channel();
        self.memory().listeners.push(sender);
        let answered = futures::stream::poll_fn(move |context| receiver.poll_recv(context));
        let touched = || {
            let (vmis, cluster, memory) = (self.vmis.clone(), self.cluster.clone(), Arc::clone(&self.memory));
            move |vm: String| futures::stream::iter(nodes_of(&vm, &vmis, &cluster.name_or_flag(), &memory))
        };
        let by_resync = each(self.suspensions.resyncs()).map(|()| NodeWake::All);
        let by_vm = self.vms.subscribe().flat_map(touched());
        let by_vmi = self.vmis.subscribe().flat_map(touched());
        let more = [by_hold.boxed(), by_resync.boxed(), self.recoveries()];
        select_all([answered.boxed(), by_vm.boxed(), by_vmi.boxed()].into_iter().chain(more)).boxed()
    }
}

#[cfg(test)]
#[path = "provider_tests.rs"]
mod tests;
