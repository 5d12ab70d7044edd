//! Whether a Node may live on, although no VM has the UID of its provider ID any more: a VM that is restored from a
//! backup has another UID, and its name need not be that of its Node. Pure.
//!
//! Kubernetes lets nobody change a provider ID, so such a Node keeps the old one for as long as it lives. In RKE2 and
//! K3s a deleted Node takes its member of etcd with it. But a Node that is never deleted keeps a new machine with the
//! same host name from joining, so a doubt ends.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cloud_provider::view::NodeView;
use harvester_api::names::ClusterName;
use harvester_api::quorum;
use harvester_api::virtual_machine_instance::Phase;
use k8s_openapi::jiff::Timestamp;

use super::hostnames::{AgentRequest, Hostnames};
use super::lookup::vm_uid;
use super::machine_uuid::system_uuids;
use super::view::{VmView, VmiView};

/// How many machines a text names.
const MOST_NAMED: usize = 5;

/// The machines in this cluster's namespace, and the Nodes of this cluster.
#[derive(Debug, Clone, Copy)]
pub struct Field<'a> {
    /// Name of this guest cluster.
    pub cluster: &'a ClusterName,
    /// Namespace of the machines.
    pub namespace: &'a str,
    /// All VMs.
    pub vms: &'a [Arc<VmView>],
    /// Their VirtualMachineInstances.
    pub vmis: &'a [Arc<VmiView>],
    /// All Nodes.
    pub nodes: &'a [Arc<NodeView>],
}

/// What a Node without its own VM may run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Survivor {
    /// No machine that runs can be its machine.
    Nobody,
    /// A machine that runs is probably its machine; the text says which one, and why.
    Runs(String),
    /// A machine that runs or starts may be its machine, and will show that within [`Doubt::LASTS`]; the text names it.
    Doubted(String),
}

/// For how long a Node has been kept without a break because of [`Survivor::Doubted`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doubt {
    last: Instant,
    lasted: Duration,
}

impl Doubt {
    /// A machine that was restored from a backup boots, tells its name and starts its kubelet within this time.
    pub const LASTS: Duration = Duration::from_mins(10);
    /// The controller looks every few seconds, unless the Node is Ready or Harvester cannot be asked. A longer break
    /// begins the time anew.
    const BREAK: Duration = Duration::from_mins(2);

    /// After a further look that found [`Survivor::Doubted`].
    pub fn after(before: Option<Self>, now: Instant) -> Self {
        let before = before.filter(|before| !before.is_forgotten(now));
        let lasted = before.map_or(Duration::ZERO, |before| before.lasted + now.saturating_duration_since(before.last));
        Self { last: now, lasted }
    }

    /// Whether it keeps the Node no longer.
    pub fn is_over(self) -> bool {
        self.lasted >= Self::LASTS
    }

    /// Whether it was looked at so long ago that it counts no more.
    pub fn is_forgotten(self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) > Self::BREAK
    }
}

/// Looks for the machine of a Node whose provider ID names a VM that is gone. A machine that another Node's provider ID
/// names is not asked about. Without `hostnames` no guest agent may be asked, and only the UUID of the firmware counts.
/// Returns also which agents to ask.
///
/// A machine whose firmware has another UUID than the kubelet of the Node reports is not the one on which that kubelet
/// started last. It may be restored and about to start it: that takes a while at most, counted from the start of the
/// machine if it does not tell its name. Only a Node that may be a member of etcd is kept for as long as it claims the
/// name: a member that is removed does not come back by itself.
///
/// A machine that is labelled with another cluster may report any host name. The UUID of its firmware is its own, and a
/// cluster that was renamed has the old name on its machines for a while: so the UUID counts whatever the label says.
pub fn survivor(
    node: &NodeView,
    field: Field<'_>,
    hostnames: Option<&mut Hostnames>,
    (now, clock): (Instant, Timestamp),
) -> (Survivor, Vec<AgentRequest>) {
    let others = || field.nodes.iter().map(Arc::as_ref).filter(|other| other.name != node.name);
    let taken: HashSet<&str> = others().filter_map(vm_uid).collect();
    let vms: HashMap<&str, &VmView> = field.vms.iter().map(|vm| (vm.name.as_str(), vm.as_ref())).collect();
    let up = |vmi: &&VmiView| vmi.phase != Phase::Ended && !vmi.deleting;
    let running = field.vmis.iter().map(Arc::as_ref).filter(up);
    let machines = running.filter_map(|vmi| Some((vmi.name.as_str(), (*vms.get(vmi.name.as_str())?, vmi))));
    let free: BTreeMap<&str, (&VmView, &VmiView)> =
        machines.filter(|(_, (vm, _))| !taken.contains(vm.uid.as_str())).collect();
    let uuid = system_uuids(others().chain([node])).get(node.name.as_str()).copied();
    if let Some(uuid) = uuid
        && let Some((vm, _)) = free.values().find(|(_, vmi)| vmi.firmware == Some(uuid))
    {
        let why = format!("has firmware UUID {uuid}, which the kubelet of the Node reports as its system UUID");
        return (Survivor::Runs(lives_on(node, field.namespace, vm, &why)), Vec::new());
    }
    let Some(hostnames) = hostnames else { return (Survivor::Nobody, Vec::new()) };
    let candidates: Vec<&VmiView> =
        free.values().map(|(_, vmi)| *vmi).filter(|vmi| vmi.may_be_of(field.cluster)).collect();
    let census = hostnames.census(&node.name, &candidates, now);
    let differs = |vmi: &VmiView| vmi.firmware.zip(uuid).is_some_and(|(theirs, ours)| theirs != ours);
    let is_old = |vmi: &VmiView| {
        let since = vmi.started.and_then(|started| Duration::try_from(clock.duration_since(started)).ok());
        since.is_some_and(|since| since >= Doubt::LASTS)
    };
    let mut silent = census.silent;
    silent.retain(|name| free.get(name.as_str()).is_some_and(|(_, vmi)| !(differs(vmi) && is_old(vmi))));
    let found = if let Some((vm, vmi)) = census.claimants.first().and_then(|name| free.get(name.as_str())) {
        let text = lives_on(node, field.namespace, vm, "reports the host name of the Node through its guest agent");
        let may_be_member = quorum::may_be_member(|label| node.labels.contains_key(label));
        if differs(vmi) && !may_be_member { Survivor::Doubted(text) } else { Survivor::Runs(text) }
    } else if silent.is_empty() {
        Survivor::Nobody
    } else {
        Survivor::Doubted(have_not_told(node, field.namespace, &silent))
    };
    (found, census.asks)
}

fn lives_on(node: &NodeView, namespace: &str, vm: &VmView, why: &str) -> String {
    let (name, uid) = (&node.name, vm_uid(node).unwrap_or_default());
    format!(
        "the provider ID of node {name} names UID {uid}, which no VirtualMachine is known to have, but VirtualMachine \
         {namespace}/{} with UID {} runs, is no other Node's, and {why}: the machine was probably restored from a \
         backup, and doctor says what to do with the Node",
        vm.name, vm.uid
    )
}

fn have_not_told(node: &NodeView, namespace: &str, machines: &[String]) -> String {
    let mut names: Vec<&str> = machines.iter().map(String::as_str).take(MOST_NAMED).collect();
    if machines.len() > MOST_NAMED {
        names.push("...");
    }
    format!(
        "VirtualMachines {} in namespace {namespace} run, are no other Node's, and have not told their host names \
         through their guest agents: one of them may be the machine of node {}",
        names.join(", "),
        node.name
    )
}

#[cfg(test)]
mod tests {
    use harvester_api::keys::harvester::GUEST_CLUSTER_NAME;

    use super::super::hostnames::ASK_AGAIN;
    use super::super::machine_uuid::MachineUuid;
    use super::super::view::build::{vm, vmi};
    use super::*;
    use crate::load_balancers::build;

    const CLOCK: Timestamp = Timestamp::constant(1_800_000_000, 0);
    const UUID: &str = "00112233-4455-6677-8899-aabbccddeeff";

    fn node(name: &str, uid: &str, uuid: &str) -> Arc<NodeView> {
        let (provider_id, system_uuid) = (Some(format!("harvester://{uid}")), Some(uuid.to_owned()));
        Arc::new(NodeView { provider_id, system_uuid, ..build::node(name, &[]) })
    }

    /// One machine `pool-x1` beside the Node `node-1`, whose own VM is gone.
    struct Case {
        vmi: VmiView,
        says: Option<&'static str>,
        nodes: Vec<Arc<NodeView>>,
        asks_agents: bool,
    }

    fn case(says: Option<&'static str>) -> Case {
        Case { vmi: vmi("pool-x1"), says, nodes: vec![node("node-1", "old", "")], asks_agents: true }
    }

    impl Case {
        fn vmi(self, change: impl FnOnce(VmiView) -> VmiView) -> Self {
            Self { vmi: change(self.vmi), ..self }
        }

        fn firmware(self, system_uuid: &str) -> Self {
            let nodes = vec![node("node-1", "old", system_uuid)];
            Self { nodes, ..self }.vmi(|vmi| VmiView { firmware: MachineUuid::parse(UUID), ..vmi })
        }

        /// So many seconds ago.
        fn started(self, seconds: i64) -> Self {
            let started = Timestamp::from_second(CLOCK.as_second() - seconds).ok();
            self.vmi(|vmi| VmiView { started, ..vmi })
        }

        fn server(mut self) -> Self {
            let mut node = NodeView::clone(&self.nodes[0]);
            node.labels.insert("node-role.kubernetes.io/etcd", "true");
            self.nodes[0] = Arc::new(node);
            self
        }

        fn with(mut self, other: Arc<NodeView>) -> Self {
            self.nodes.push(other);
            self
        }

        /// After each agent has answered, if it answers at all.
        fn found(&self) -> Survivor {
            let (cluster, now) = (ClusterName::from_record("demo"), Instant::now());
            let (vms, vmis) = ([Arc::new(vm("pool-x1", "new"))], [Arc::new(self.vmi.clone())]);
            let nodes = &self.nodes;
            let field = Field { cluster: &cluster, namespace: "guests", vms: &vms, vmis: &vmis, nodes };
            let mut book = Hostnames::default();
            let times = (now, CLOCK);
            let mut look = || survivor(&nodes[0], field, self.asks_agents.then_some(&mut book), times);
            let (first, asks) = look();
            if asks.is_empty() {
                return first;
            }
            for ask in asks {
                book.answered(&ask, self.says, now);
            }
            survivor(&nodes[0], field, Some(&mut book), times).0
        }

        fn word(&self) -> &'static str {
            match self.found() {
                Survivor::Nobody => "nobody",
                Survivor::Runs(_) => "runs",
                Survivor::Doubted(_) => "doubted",
            }
        }
    }

    #[test]
    fn a_machine_that_runs_and_is_no_other_nodes_may_be_that_of_a_node_whose_vm_is_gone() {
        let of_another = |vmi: VmiView| {
            let mut vmi = vmi;
            vmi.labels.insert(GUEST_CLUSTER_NAME, "other");
            vmi
        };
        let gone = |vmi: VmiView| VmiView { deleting: true, ..vmi };
        let offline = |vmi: VmiView| VmiView { agent_connected: false, ..vmi };
        let other = UUID.replace('0', "1");
        for (what, case, expected) in [
            ("its agent reports the name", case(Some("node-1")), "runs"),
            ("with a domain, in upper case", case(Some("NODE-1.example.org")), "runs"),
            ("its agent reports another name", case(Some("node-2")), "nobody"),
            ("its agent does not answer", case(None), "doubted"),
            ("its agent is not connected", case(Some("node-1")).vmi(offline), "doubted"),
            ("it starts", case(None).vmi(|vmi| VmiView { phase: Phase::Starting, ..offline(vmi) }), "doubted"),
            ("it has ended", case(Some("node-1")).vmi(|vmi| VmiView { phase: Phase::Ended, ..vmi }), "nobody"),
            ("it is being deleted", case(Some("node-1")).vmi(gone), "nobody"),
            ("it is another Node's", case(Some("node-1")).with(node("node-2", "new", "")), "nobody"),
            ("it is another cluster's", case(Some("node-1")).vmi(of_another), "nobody"),
            ("no agent may be asked", Case { asks_agents: false, ..case(Some("node-1")) }, "nobody"),
            ("the UUID is the same", case(Some("x")).firmware(&UUID.to_uppercase()), "runs"),
            (
                "it is the same, and no agent may be asked",
                Case { asks_agents: false, ..case(None).firmware(UUID) },
                "runs",
            ),
            ("it is the same, and the label is another", case(Some("x")).firmware(UUID).vmi(of_another), "runs"),
            (
                "it is the same, and another Node's machine",
                case(Some("x")).firmware(UUID).with(node("b", "new", "")),
                "nobody",
            ),
            ("several Nodes report it", case(Some("x")).firmware(UUID).with(node("b", "b", UUID)), "nobody"),
            ("the UUID is another", case(Some("x")).firmware(&other), "nobody"),
            ("it is another, and its agent reports the name", case(Some("node-1")).firmware(&other), "doubted"),
            ("so it is, and the Node may be a member of etcd", case(Some("node-1")).firmware(&other).server(), "runs"),
            (
                "it is another, and a silent machine has just started",
                case(None).firmware(&other).started(599),
                "doubted",
            ),
            (
                "it is another, and a silent machine started long ago",
                case(None).firmware(&other).started(600),
                "nobody",
            ),
            ("our clock is behind its start", case(None).firmware(&other).started(-700), "doubted"),
            ("it cannot be compared, and a silent machine is old", case(None).started(600), "doubted"),
            ("no UUID is set", case(Some("x")).firmware(""), "nobody"),
        ] {
            assert_eq!(case.word(), expected, "{what}");
        }
    }

    /// One failed request among a hundred, or an outage of a minute, must not begin it anew.
    #[test]
    fn a_doubt_ends_after_ten_minutes_and_begins_anew_only_after_a_long_break() {
        let start = Instant::now();
        let after = |seconds: &[u64]| {
            let looks = seconds.iter().map(|at| start + Duration::from_secs(*at));
            looks.fold(None, |doubt, now| Some(Doubt::after(doubt, now))).expect("a look")
        };
        let looks = |break_at: u64, lasts: u64| -> Vec<u64> {
            let times = (0..=120).map(|pass| 5 * pass);
            times.map(|at| if at > break_at { at + lasts } else { at }).collect()
        };
        for (what, looks, expected) in [
            ("the first look", vec![0], false),
            ("a moment before", (0..120).map(|pass| 5 * pass).collect(), false),
            ("ten minutes", looks(600, 0), true),
            ("with a break", looks(300, 60), true),
            ("with a long break", looks(300, 121), false),
        ] {
            assert_eq!(after(&looks).is_over(), expected, "{what}");
        }
    }

    #[test]
    fn the_reason_names_node_vm_and_both_uids() {
        for case in [case(Some("node-1")), case(None).firmware(UUID)] {
            let Survivor::Runs(text) = case.found() else { panic!() };
            for part in ["node node-1", "UID old", "guests/pool-x1", "UID new"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        let Survivor::Doubted(text) = case(None).found() else { panic!() };
        assert!(text.contains("pool-x1") && text.contains("node node-1"), "{text}");
    }

    #[test]
    fn a_silent_agent_is_asked_again_after_a_while_and_not_before() {
        let (cluster, now) = (ClusterName::from_record("demo"), Instant::now());
        let (vms, vmis) = ([Arc::new(vm("pool-x1", "new"))], [Arc::new(vmi("pool-x1"))]);
        let nodes = [node("node-1", "old", "")];
        let field = Field { cluster: &cluster, namespace: "guests", vms: &vms, vmis: &vmis, nodes: &nodes };
        let mut book = Hostnames::default();
        let mut asked = |at| survivor(&nodes[0], field, Some(&mut book), (at, CLOCK)).1;
        let asks = asked(now);
        assert_eq!((asks.len(), asked(now).len()), (1, 0), "the request is under way");
        book.answered(&asks[0], None, now);
        let mut asked = |at| survivor(&nodes[0], field, Some(&mut book), (at, CLOCK)).1.len();
        assert_eq!((asked(now), asked(now + ASK_AGAIN)), (0, 1));
    }
}
