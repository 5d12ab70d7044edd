//! Finds the machine of a Node: by provider ID or name where that is plain, else among all machines, with the answers
//! of guest agents. Results are remembered.

use parking_lot::Mutex;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Instant;

use cloud_provider::provider::{Existence, NodeWake, ProviderError};
use cloud_provider::view::NodeView;
use harvester_api::names::ClusterName;
use harvester_api::virtual_machine_instance::Phase;
use k8s_openapi::jiff::Timestamp;

use super::super::hostnames::{ASK_AGAIN, AgentRequest, Resolution};
use super::super::lookup::{MachineMatch, Machines, find, vm_uid};
use super::super::survivor::{Doubt, Field, Survivor, survivor};
use super::super::view::{VmView, VmiCache};
use super::{Binding, HarvesterInstances, InstanceState, NODE_LASTS, SWEEP_EVERY};

impl HarvesterInstances {
    /// Handles the usual cases without a full search: a provider ID that a machine has, and a machine with the Node's
    /// name that no agent contradicts. Thousands of Nodes may join at once, and all are refreshed together. `None`: a
    /// full search is needed.
    fn find_plainly(&self, node: &NodeView, memory: &mut InstanceState) -> Option<MachineMatch> {
        if memory.swept.is_none_or(|swept| swept.elapsed() > SWEEP_EVERY) {
            return None;
        }
        if let Some(uid) = vm_uid(node) {
            // Nodes that joined in this process are asked about by their provider ID for the first time when all are
            // refreshed. Most machines are called like their Node; the UID proves it.
            let name = memory.bound.get(uid).map_or(&node.name, |binding| &binding.vm);
            let vm = self.vms.get(name).filter(|vm| vm.uid == uid);
            return vm.or_else(|| self.vms.all().into_iter().find(|vm| vm.uid == uid)).map(MachineMatch::Vm);
        }
        let vm = self.vms.get(&node.name)?;
        let vmi = self.vmis.get(&node.name).filter(|vmi| vmi.phase == Phase::Running && !vmi.deleting)?;
        let cluster = self.cluster.name_or_flag();
        let ours = vmi.may_be_of(&cluster);
        let free = memory.bound.get(&vm.uid).is_none_or(|binding| binding.node == node.name);
        if !self.asks_agents || !ours || !free || !memory.hostnames.is_plain(&node.name) {
            return None;
        }
        match memory.hostnames.resolve(&node.name, true, &[vmi.as_ref()], Instant::now()) {
            Resolution::Vm(_) => Some(MachineMatch::Vm(vm)),
            Resolution::Ask(asks) => Some(MachineMatch::Asking(asks)),
            Resolution::Ambiguous(_) | Resolution::Nobody(_) => None,
        }
    }

    /// Searches all machines.
    fn find_among_all(&self, node: &NodeView, memory: &mut InstanceState) -> MachineMatch {
        let (vms, vmis) = (self.vms.all(), self.vmis.all());
        memory.swept = Some(Instant::now());
        self.release(memory);
        memory.unresolved.retain(|_, asked| asked.elapsed() < NODE_LASTS);
        let there: HashSet<&str> = vms.iter().map(|vm| vm.name.as_str()).collect();
        memory.hostnames.retain(|name| there.contains(name));
        memory.found.retain(|name, _| there.contains(name.as_str()));
        let bound = memory.bound.iter().map(|(uid, binding)| (uid.clone(), binding.node.clone())).collect();
        let cluster = self.cluster.name_or_flag();
        let machines = Machines { cluster: &cluster, vms: &vms, vmis: &vmis, bound: &bound };
        find(node, machines, self.asks_agents.then_some(&mut memory.hostnames), Instant::now())
    }

    /// Releases the machines whose Nodes are gone. Such a machine may be another Node by now, because its host name was
    /// changed, so its guest agent is asked again.
    fn release(&self, memory: &mut InstanceState) {
        if !self.nodes.is_synced() {
            return;
        }
        let has = |node: &String, uid: &str| self.nodes.get(node).is_some_and(|node| vm_uid(&node) == Some(uid));
        let gone = memory.bound.iter().filter(|(uid, binding)| !has(&binding.node, uid));
        let gone: Vec<String> = gone.map(|(uid, _)| uid.clone()).collect();
        for uid in gone {
            if let Some(binding) = memory.bound.remove(&uid) {
                memory.hostnames.forget(&binding.vm);
            }
        }
        memory.nic_waits.retain(|node, _| self.nodes.get(node).is_some());
    }

    /// Why a Node without a provider ID has no machine, if the machine that has its name is another Node's.
    fn taken(&self, node: &NodeView) -> Option<String> {
        let memory = self.memory();
        let is_called = |vm: &str| vm == node.name || memory.hostnames.is_called(vm, &node.name);
        let others = memory.bound.values().filter(|binding| binding.node != node.name);
        let Binding { vm, node: other } = others.filter(|_| vm_uid(node).is_none()).find(|one| is_called(&one.vm))?;
        let name = &node.name;
        Some(format!(
            "no VM for node {name}: VM {vm} is the machine of node {other} by its provider ID. If both are one \
             machine, which was called {other} before: kubectl delete node {other}"
        ))
    }

    /// The machine of a Node, or the reason why none is known now.
    pub(super) fn vm(&self, node: &NodeView) -> Result<Arc<VmView>, ProviderError> {
        self.lists().map_err(ProviderError::new)?;
        let name = &node.name;
        Err(match self.find(node) {
            MachineMatch::Vm(vm) => return Ok(vm),
            // Each answer, or its absence, wakes the Nodes that wait for it.
            MachineMatch::Asking(_) => ProviderError::new(format!(
                "the VM of node {name} is not known yet: asking guest agents for their host names"
            ))
            .under_way(ASK_AGAIN),
            MachineMatch::Ambiguous(vms) => ProviderError::new(format!(
                "the VM of node {name} is not clear: VMs {} in namespace {} all report this host name",
                vms.join(", "),
                self.namespace
            )),
            MachineMatch::Nobody(again) => ProviderError {
                longest_pause: again,
                ..ProviderError::new(self.taken(node).unwrap_or_else(|| {
                    format!(
                        "no VM for node {name}: of those in namespace {} that are no other Node's, none has the UID \
                         of its provider ID, reports this host name through its guest agent, or has this name",
                        self.namespace
                    )
                }))
            },
        })
    }

    fn find(&self, node: &NodeView) -> MachineMatch {
        let mut memory = self.memory();
        let found = self.find_plainly(node, &mut memory);
        let found = found.unwrap_or_else(|| self.find_among_all(node, &mut memory));
        match &found {
            MachineMatch::Vm(vm) => {
                memory.unresolved.remove(&node.name);
                memory.found.insert(vm.name.clone(), node.name.clone());
                // Only a provider ID is certain enough to exclude other Nodes from this machine.
                if vm_uid(node) == Some(&vm.uid) {
                    let binding = Binding { vm: vm.name.clone(), node: node.name.clone() };
                    memory.bound.insert(vm.uid.clone(), binding);
                }
            }
            MachineMatch::Asking(_) | MachineMatch::Ambiguous(_) | MachineMatch::Nobody(_) => {
                memory.unresolved.insert(node.name.clone(), Instant::now());
            }
        }
        drop(memory);
        if let MachineMatch::Asking(asks) = &found {
            self.send(asks);
        }
        found
    }

    fn send(&self, asks: &[AgentRequest]) {
        for ask in asks {
            // The receiver lives as long as `run`. A request that is never answered counts as unanswered.
            let _ = self.asks.send(ask.clone());
        }
    }

    /// What a Node whose own VM is not found is kept for, because it may run on another one. `Ok`: for nothing, or no
    /// longer, and then the doubt that is over.
    pub(super) fn nowhere_else(&self, node: &NodeView) -> Result<String, Existence> {
        match self.survivor(node) {
            Survivor::Runs(why) => Err(Existence::Elsewhere(why)),
            Survivor::Doubted(why) if !self.doubt(node).is_over() => Err(Existence::Unknown(why)),
            Survivor::Doubted(why) => {
                Ok(format!("; for {} minutes nothing else was found, although {why}", Doubt::LASTS.as_secs() / 60))
            }
            Survivor::Nobody => Ok(String::new()),
        }
    }

    fn survivor(&self, node: &NodeView) -> Survivor {
        let (cluster, nodes) = (self.cluster.name_or_flag(), self.nodes.all());
        let (vms, vmis) = (self.vms.all(), self.vmis.all());
        let field = Field { cluster: &cluster, namespace: &self.namespace, vms: &vms, vmis: &vmis, nodes: &nodes };
        let mut memory = self.memory();
        let hostnames = self.asks_agents.then_some(&mut memory.hostnames);
        let (found, asks) = survivor(node, field, hostnames, (Instant::now(), Timestamp::now()));
        drop(memory);
        self.send(&asks);
        found
    }

    /// For how long this Node has been kept because another machine may be its machine.
    fn doubt(&self, node: &NodeView) -> Doubt {
        let now = Instant::now();
        let mut memory = self.memory();
        memory.doubts.retain(|_, doubt| !doubt.is_forgotten(now));
        let doubt = Doubt::after(memory.doubts.get(&node.uid.0).copied(), now);
        memory.doubts.insert(node.uid.0.clone(), doubt);
        doubt
    }
}

/// The Nodes to reconcile when this machine changes. None while the machine is between two hosts, because its zone is
/// about to change.
pub(super) fn nodes_of(
    vm: &str,
    vmis: &VmiCache,
    cluster: &ClusterName,
    memory: &Mutex<InstanceState>,
) -> Vec<NodeWake> {
    let vmi = vmis.get(&vm.to_owned());
    if vmi.as_ref().is_some_and(|vmi| vmi.migrating) {
        return Vec::new();
    }
    if vmi.as_ref().is_some_and(|vmi| !vmi.may_be_of(cluster)) {
        return Vec::new();
    }
    let memory = memory.lock();
    let bound = memory.bound.values().find(|binding| binding.vm == vm).map(|binding| &binding.node);
    let bound = bound.or_else(|| memory.found.get(vm)).cloned();
    // A Node that waits for the machine of its own name does not wait for this one, unless this machine has no instance
    // any more.
    let waits = |node: &&String| {
        vmi.is_none() || **node == vm || memory.hostnames.is_called(vm, node) || vmis.get(node).is_none()
    };
    let mut nodes: BTreeSet<String> = memory.unresolved.keys().filter(waits).cloned().collect();
    nodes.insert(bound.unwrap_or_else(|| vm.to_owned()));
    nodes.into_iter().map(NodeWake::Node).collect()
}
