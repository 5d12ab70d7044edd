//! Finds the VM of a Node, and decides what follows if there is none (CCM spec 4.1; W-08, W-25, W-26, W-27). Pure.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cloud_provider::provider::Existence;
use cloud_provider::view::NodeView;
use harvester_api::keys;
use harvester_api::names::ClusterName;
use harvester_api::virtual_machine_instance::Phase;

use super::hostnames::{AgentRequest, Hostnames, Resolution};
use super::view::{VmView, VmiView};

/// The machines in this cluster's namespace.
#[derive(Debug, Clone, Copy)]
pub struct Machines<'a> {
    /// Name of this guest cluster.
    pub cluster: &'a ClusterName,
    /// All VMs.
    pub vms: &'a [Arc<VmView>],
    /// Their VirtualMachineInstances.
    pub vmis: &'a [Arc<VmiView>],
    /// VM UIDs whose Node is known by provider ID, with that Node's name.
    pub bound: &'a BTreeMap<String, String>,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MachineMatch {
    /// The machine.
    Vm(Arc<VmView>),
    /// Guest agents have to be asked first (empty: the requests are under way).
    Asking(Vec<AgentRequest>),
    /// Several machines report the node's name as their host name.
    Ambiguous(Vec<String>),
    /// No machine. Connected guest agents that did not answer are asked again after this time; `None`: none is.
    Nobody(Option<Duration>),
}

/// Searches by provider ID, then by host names of guest agents, then by name. No agent is asked without `hostnames`,
/// nor for a Node whose provider ID names a missing VM: that machine is gone, or was restored under its old name.
pub fn find(node: &NodeView, machines: Machines<'_>, hostnames: Option<&mut Hostnames>, now: Instant) -> MachineMatch {
    let uid = vm_uid(node);
    if let Some(vm) = uid.and_then(|uid| machines.vms.iter().find(|vm| vm.uid == uid)) {
        return MachineMatch::Vm(Arc::clone(vm));
    }
    let index = Index::new(machines);
    let same_name = index.vm(&node.name).filter(|vm| index.may_be(vm, node)).cloned();
    let Some(hostnames) = hostnames.filter(|_| uid.is_none()) else {
        return same_name.map_or(MachineMatch::Nobody(None), MachineMatch::Vm);
    };

    let candidates: Vec<&VmiView> = machines
        .vmis
        .iter()
        .map(Arc::as_ref)
        .filter(|vmi| vmi.phase == Phase::Running && !vmi.deleting)
        .filter(|vmi| index.vm(&vmi.name).is_some_and(|vm| index.may_be(vm, node)))
        .collect();
    match hostnames.resolve(&node.name, same_name.is_some(), &candidates, now) {
        Resolution::Vm(name) => index.vm(&name).cloned().map_or(MachineMatch::Nobody(None), MachineMatch::Vm),
        Resolution::Ask(asks) => MachineMatch::Asking(asks),
        Resolution::Ambiguous(names) => MachineMatch::Ambiguous(names),
        Resolution::Nobody(again) => MachineMatch::Nobody(again),
    }
}

/// The machines by name, so that a start with a thousand Nodes stays fast.
struct Index<'a> {
    machines: Machines<'a>,
    vms: HashMap<&'a str, &'a Arc<VmView>>,
    vmis: HashMap<&'a str, &'a VmiView>,
}

impl<'a> Index<'a> {
    fn new(machines: Machines<'a>) -> Self {
        let vms = machines.vms.iter().map(|vm| (vm.name.as_str(), vm)).collect();
        let vmis = machines.vmis.iter().map(|vmi| (vmi.name.as_str(), vmi.as_ref())).collect();
        Self { machines, vms, vmis }
    }

    fn vm(&self, name: &str) -> Option<&'a Arc<VmView>> {
        self.vms.get(name).copied()
    }

    /// Whether the VM may be this Node's: it is neither labelled with another cluster nor known to be another Node's.
    fn may_be(&self, vm: &VmView, node: &NodeView) -> bool {
        let Machines { cluster, bound, .. } = self.machines;
        let ours = self.vmis.get(vm.name.as_str()).is_none_or(|vmi| vmi.may_be_of(cluster));
        ours && bound.get(&vm.uid).is_none_or(|other| *other == node.name)
    }
}

/// UID of the VM in the Node's provider ID, if the provider ID has this provider's format.
pub fn vm_uid(node: &NodeView) -> Option<&str> {
    keys::vm_uid(node.provider_id.as_deref()?)
}

/// The API server's own answer about a VM that the cache does not contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Live {
    /// The GET by name found a VM, with this UID.
    Named(String),
    /// The GET by name returned NotFound for this VM, and the LIST tells whether a VM in the namespace has the wanted
    /// UID.
    NotFound {
        /// `None`: the list failed, so nothing is proven.
        uid_listed: Option<bool>,
        /// The list contains the machine of another Node of this cluster, so it comes from this cluster's Harvester and
        /// namespace.
        canary: bool,
    },
    /// Any other outcome, as text.
    Failed(String),
}

/// Decides whether the machine of a Node still exists although the synced cache does not contain it. Because a Node is
/// deleted if it does not, only the API server's answers about this VM, and about all VMs of the namespace, count as
/// proof.
pub fn judge(namespace: &str, name: &str, uid: &str, live: &Live) -> Existence {
    match live {
        Live::Named(found) if found == uid => Existence::Exists,
        Live::Named(found) => Existence::Unknown(format!(
            "VirtualMachine {namespace}/{name} has UID {found}, the node's provider ID names {uid}: its machine was \
             made anew, and doctor says what to do with the Node"
        )),
        Live::NotFound { uid_listed: Some(true), .. } => Existence::Exists,
        Live::NotFound { uid_listed: Some(false), canary: false } => Existence::Unknown(format!(
            "neither VirtualMachine {namespace}/{name} nor the machine of any other Node is in namespace {namespace} \
             of this Harvester: is the cloud-config the right one?"
        )),
        Live::NotFound { uid_listed: Some(false), canary: true } => Existence::Gone(format!(
            "GET of VirtualMachine {namespace}/{name} was answered 404 NotFound, and no VirtualMachine in namespace \
             {namespace} has UID {uid}"
        )),
        Live::NotFound { uid_listed: None, .. } => Existence::Unknown(format!(
            "VirtualMachine {namespace}/{name} is not found, but the list of VMs cannot be read"
        )),
        Live::Failed(text) => Existence::Unknown(format!("cannot ask for VirtualMachine {namespace}/{name}: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use cloud_provider::view::Tags;
    use harvester_api::keys::harvester::GUEST_CLUSTER_NAME;

    use super::super::view::build::{vm, vmi};
    use super::*;

    fn node(name: &str, provider_id: Option<&str>) -> NodeView {
        NodeView {
            name: name.into(),
            uid: cloud_provider::view::Uid("n".into()),
            resource_version: String::new(),
            created: None,
            provider_id: provider_id.map(str::to_owned),
            annotations: Tags::default(),
            labels: Tags::default(),
            taints: Vec::new(),
            unschedulable: false,
            ready: None,
            addresses: Vec::new(),
            system_uuid: None,
            deleting: false,
        }
    }

    struct Farm {
        vms: Vec<Arc<VmView>>,
        vmis: Vec<Arc<VmiView>>,
        bound: BTreeMap<String, String>,
        says: Vec<(&'static str, &'static str)>,
    }

    /// VMs `name` with UID `uid-name`, running, with agents that say `says`.
    fn farm(names: &[&str], says: &[(&'static str, &'static str)]) -> Farm {
        Farm {
            vms: names.iter().map(|name| Arc::new(vm(name, &format!("uid-{name}")))).collect(),
            vmis: names.iter().map(|name| Arc::new(vmi(name))).collect(),
            bound: BTreeMap::new(),
            says: says.to_vec(),
        }
    }

    impl Farm {
        fn find(&self, node: &NodeView) -> String {
            let cluster = ClusterName::from_record("demo");
            let machines = Machines { cluster: &cluster, vms: &self.vms, vmis: &self.vmis, bound: &self.bound };
            let mut book = Hostnames::default();
            let now = Instant::now();
            for _ in 0..5 {
                match find(node, machines, Some(&mut book), now) {
                    MachineMatch::Vm(vm) => return vm.name.clone(),
                    MachineMatch::Asking(asks) => {
                        for ask in asks {
                            let name = self.says.iter().find(|(vm, _)| *vm == ask.vm).map(|(_, name)| *name);
                            book.answered(&ask, name, now);
                        }
                    }
                    MachineMatch::Ambiguous(names) => return format!("one of {names:?}"),
                    MachineMatch::Nobody(_) => return "nobody".into(),
                }
            }
            panic!("never found");
        }

        fn label(mut self, name: &str, cluster: &str) -> Self {
            for vmi in &mut self.vmis {
                if vmi.name == name {
                    Arc::make_mut(vmi).labels.insert(GUEST_CLUSTER_NAME, cluster);
                }
            }
            self
        }
    }

    /// W-08, W-27.
    #[test]
    fn the_provider_id_decides_whatever_the_names_say() {
        let farm = farm(&["a", "b"], &[("a", "a"), ("b", "a")]);
        assert_eq!(farm.find(&node("a", Some("harvester://uid-b"))), "b");
    }

    #[test]
    fn a_node_whose_vm_is_gone_makes_nobody_ask_and_finds_a_vm_restored_under_its_name() {
        let farm = farm(&["a", "b"], &[("b", "lost")]);
        assert_eq!(farm.find(&node("lost", Some("harvester://uid-lost"))), "nobody");
        assert_eq!(farm.find(&node("a", Some("harvester://uid-before-the-restore"))), "a");
    }

    #[test]
    fn without_a_provider_id_the_guest_agent_and_then_the_name_decide() {
        assert_eq!(farm(&["a", "b"], &[]).find(&node("a", None)), "a");
        assert_eq!(farm(&["a", "b"], &[("a", "x"), ("b", "a")]).find(&node("a", None)), "b");
        assert_eq!(farm(&["vm-1"], &[("vm-1", "node-1")]).find(&node("node-1", None)), "vm-1");
        assert_eq!(farm(&["vm-1"], &[]).find(&node("node-1", None)), "nobody");
    }

    /// W-26.
    /// W-25.
    #[test]
    fn machines_of_other_clusters_and_of_other_nodes_are_no_candidates() {
        let says = [("x", "a"), ("y", "a")];
        assert_eq!(farm(&["x", "y"], &says).label("x", "other").find(&node("a", None)), "y");
        assert_eq!(farm(&["x", "y"], &says).label("y", "demo").find(&node("a", None)), r#"one of ["x", "y"]"#);
        let mut bound = farm(&["x", "y"], &says);
        bound.bound.insert("uid-x".into(), "someone".into());
        assert_eq!(bound.find(&node("a", None)), "y");
        assert_eq!(farm(&["a"], &[]).label("a", "other").find(&node("a", None)), "nobody");
        // Whoever made the machine: its label counts, and the node driver's own says nothing.
        let mut made = farm(&["x", "y"], &says).label("x", "demo").label("y", "other");
        Arc::make_mut(&mut made.vmis[1]).labels.insert(keys::harvester::CREATOR, "docker-machine-driver-harvester");
        assert_eq!(made.find(&node("a", None)), "x");
    }

    #[test]
    fn with_the_vmi_controller_disabled_nobody_is_asked() {
        let farm = farm(&["a"], &[("a", "x")]);
        let cluster = ClusterName::from_record("demo");
        let machines = Machines { cluster: &cluster, vms: &farm.vms, vmis: &farm.vmis, bound: &farm.bound };
        assert!(matches!(find(&node("a", None), machines, None, Instant::now()), MachineMatch::Vm(_)));
        assert_eq!(find(&node("b", None), machines, None, Instant::now()), MachineMatch::Nobody(None));
    }

    /// W-08.
    #[test]
    fn a_machine_is_gone_only_by_a_real_answer_about_it_and_about_all_others() {
        let judge = |live: Live| judge("guests", "a", "u", &live);
        assert_eq!(judge(Live::Named("u".into())), Existence::Exists);
        assert!(matches!(judge(Live::Named("other".into())), Existence::Unknown(_)));
        assert_eq!(judge(Live::NotFound { uid_listed: Some(true), canary: false }), Existence::Exists);
        assert!(matches!(judge(Live::NotFound { uid_listed: None, canary: true }), Existence::Unknown(_)));
        assert!(matches!(judge(Live::Failed("timeout".into())), Existence::Unknown(_)));
        let no_canary = judge(Live::NotFound { uid_listed: Some(false), canary: false });
        assert!(matches!(no_canary, Existence::Unknown(_)), "it may be another Harvester");
        let Existence::Gone(evidence) = judge(Live::NotFound { uid_listed: Some(false), canary: true }) else {
            panic!()
        };
        assert!(evidence.contains("guests/a") && evidence.contains("UID u"), "{evidence}");
    }
}
