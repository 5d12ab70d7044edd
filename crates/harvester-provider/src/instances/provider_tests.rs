//! The trait against hand-filled caches and a scripted API server.

use cloud_provider::view::{Tags, Taint, Uid};
use contract::keys::kubernetes::UNINITIALIZED;
use harvester_api::names::ClusterName;
use prometheus_client::registry::Registry;
use runtime::scenario::Scenario;
use serde_json::json;

use super::super::hostnames::{ASK_AGAIN, Resolution};
use super::super::machine_uuid::MachineUuid;
use super::super::view::build::{vm, vmi};
use super::super::view::{InterfaceView, NetworkView, machine_caches};
use super::vips::VIP_LINGERS;
use super::*;
use crate::config::{GarbageConfig, GarbageMode};

#[path = "provider_tests/outdated.rs"]
mod outdated;

fn node(name: &str, provider_id: Option<&str>, uninitialised: bool) -> NodeView {
    let taint =
        Taint { key: UNINITIALIZED.into(), value: Some("true".into()), effect: "NoSchedule".into(), time_added: None };
    NodeView {
        name: name.into(),
        uid: Uid("n".into()),
        resource_version: String::new(),
        created: None,
        provider_id: provider_id.map(str::to_owned),
        annotations: Tags::default(),
        labels: Tags::default(),
        taints: if uninitialised { vec![taint] } else { Vec::new() },
        unschedulable: false,
        ready: None,
        addresses: Vec::new(),
        system_uuid: None,
        deleting: false,
    }
}

fn running(name: &str, ip: Option<&str>) -> VmiView {
    let mut vmi = VmiView { zone: "rack-1".into(), region: "lab".into(), ..vmi(name) };
    vmi.networks.push(NetworkView { name: "nic-0".into(), multus: Some("guests/mgmt".into()) });
    let addresses = ip.iter().map(|ip| (*ip).to_owned()).collect();
    vmi.interfaces.push(InterfaceView { name: "nic-0".into(), addresses, interface_name: "enp1s0".into() });
    vmi
}

struct Lab {
    server: Scenario,
    watched: watch::Sender<Status>,
    vmis: VmiCache,
    instances: Arc<HarvesterInstances>,
    asked: AgentRequests,
}

/// VMs with these instances; every guest agent reports this host name.
fn lab(vmis: &[VmiView], hostname: &'static str) -> Lab {
    lab_with(vmis, hostname, |_| ())
}

fn lab_with(vmis: &[VmiView], hostname: &'static str, configure: impl Fn(&mut ProviderConfig)) -> Lab {
    let server = Scenario::answering(move |request| match request.path.rsplit('/').next() {
        Some("guestosinfo") => (200, json!({ "hostname": hostname })),
        Some("virtualmachines") => (
            200,
            json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": [
                {"metadata": {"name": "canary", "uid": "uid-canary"}}]}),
        ),
        Some(name) => {
            let mut status = Scenario::status(404, "NotFound", "not found");
            status["details"] = json!({ "name": name });
            (404, status)
        }
        None => unreachable!("a path has a last part"),
    });
    let (vms, instances) = machine_caches();
    vms.replace(vmis.iter().map(|vmi| (vmi.name.clone(), vm(&vmi.name, &format!("uid-{}", vmi.name)))).collect());
    instances.replace(vmis.iter().map(|vmi| (vmi.name.clone(), vmi.clone())).collect());
    let mut config = ProviderConfig {
        cluster_name: ClusterName::from_record("demo"),
        management_network: None,
        node_ip_cidr: Vec::new(),
        node_exclude_ip_ranges: Vec::new(),
        ignore_node_annotations: false,
        disable_vmi_controller: false,
        disable_hostname_lookup: false,
        max_load_balancers: None,
        share_across_namespaces: false,
        garbage: GarbageConfig::new(GarbageMode::Off, Duration::ZERO),
        namespace: "guests".into(),
        server: "https://h:6443".into(),
        authority: None,
        own_node: None,
        paused: false,
    };
    configure(&mut config);
    let metrics = Arc::new(Metrics::register(&mut Registry::default()));
    let services = cloud_provider::cache::services_with([]);
    // The machine of another Node, which is seen when anything is to count as gone.
    let nodes = cloud_provider::cache::nodes();
    nodes.replace([("canary".to_owned(), node("canary", Some("harvester://uid-canary"), false))].into());
    let requests = Requests::new(server.client(), "guests");
    let vmis = instances.clone();
    let watched = watch::Sender::new(Status::default());
    let both = [watched.subscribe(), watched.subscribe()];
    let (instances, asked) = HarvesterInstances::new(
        (&config, Identity::known("demo")),
        (services, nodes),
        (vms, instances),
        both,
        requests,
        metrics,
    );
    Lab { server, watched, vmis, instances: Arc::new(instances), asked }
}

impl Lab {
    /// The answer after the guest agents that it makes ask have answered.
    async fn existence_when_agents_have_answered(&mut self, node: &NodeView) -> Existence {
        let first = self.instances.existence(node).await;
        let asked = std::mem::replace(&mut self.asked, mpsc::unbounded_channel().1);
        let asking = tokio::spawn(Arc::clone(&self.instances).run(asked));
        while self.instances.memory().hostnames.is_asking() {
            tokio::task::yield_now().await;
        }
        asking.abort();
        if matches!(first, Existence::Unknown(_)) { self.instances.existence(node).await } else { first }
    }
}

/// ../golden 00-node-init, through the guest agent: the first look asks, the answer wakes the node, the second look
/// knows.
#[tokio::test]
async fn a_new_node_is_initialised_after_one_question_to_its_guest_agent() {
    let lab = lab(&[running("demo-pool-0", Some("10.20.100.1"))], "demo-pool-0");
    let node = node("demo-pool-0", None, true);
    let mut wakes = lab.instances.wakes();
    while tokio::time::timeout(Duration::from_millis(20), wakes.next()).await.is_ok() {}
    let asking = tokio::spawn(Arc::clone(&lab.instances).run(lab.asked));

    let error = lab.instances.metadata(&node).await.unwrap_err();
    assert!(error.message.contains("asking guest agents"), "{error}");
    assert_eq!(wakes.next().await, Some(NodeWake::Node("demo-pool-0".into())));
    let metadata = lab.instances.metadata(&node).await.unwrap();
    assert_eq!(
        metadata,
        InstanceMetadata {
            provider_id: "harvester://uid-demo-pool-0".into(),
            instance_type: String::new(),
            addresses: vec![
                NodeAddress { kind: NodeAddressKind::InternalIp, address: "10.20.100.1".into() },
                NodeAddress { kind: NodeAddressKind::Hostname, address: "demo-pool-0".into() },
            ],
            zone: "rack-1".into(),
            region: "lab".into(),
            labels: [(keys::cloudprovider::HOST, "host-1".into())].into(),
        }
    );
    assert_eq!(lab.server.requests().len(), 1, "one question");
    asking.abort();
}

/// W-53.
#[tokio::test]
async fn host_names_that_guest_agents_have_told_are_counted() {
    let lab = lab(&[running("vm-1", Some("10.20.100.1"))], "node-1");
    let known = || lab.instances.metrics.known_hostnames.get().to_string();
    assert_eq!(known(), "0");
    let asking = tokio::spawn(Arc::clone(&lab.instances).run(lab.asked));
    let view = node("node-1", None, true);
    while let Err(error) = lab.instances.metadata(&view).await {
        assert!(error.under_way, "{error}");
        tokio::task::yield_now().await;
    }
    assert_eq!(known(), "1");
    asking.abort();
}

/// The answer wakes the Node. Where there was none, the agent is asked again in time, however long the back-off is.
#[tokio::test]
async fn a_node_waits_for_an_answer_without_a_back_off_and_no_longer_than_until_the_next_question() {
    let lab = lab(&[running("vm-1", Some("10.0.0.1"))], "");
    let view = node("node-1", None, true);
    let error = lab.instances.metadata(&view).await.unwrap_err();
    assert_eq!((error.under_way, error.longest_pause), (true, Some(ASK_AGAIN)));
    let asking = tokio::spawn(Arc::clone(&lab.instances).run(lab.asked));
    let error = loop {
        let error = lab.instances.metadata(&view).await.unwrap_err();
        if !error.under_way {
            break error;
        }
        tokio::task::yield_now().await;
    };
    assert!(error.message.starts_with("no VM for node node-1"), "{error}");
    assert!(error.longest_pause.is_some_and(|left| left > ASK_AGAIN / 2 && left <= ASK_AGAIN), "{error:?}");
    asking.abort();
}

/// W-39.
#[tokio::test]
async fn an_initialised_node_costs_no_request() {
    let lab = lab(&[running("vm-1", Some("10.20.100.1"))], "node-1");
    let node = node("node-1", Some("harvester://uid-vm-1"), false);
    assert_eq!(lab.instances.metadata(&node).await.unwrap().addresses.len(), 2);
    assert_eq!(lab.instances.existence(&node).await, Existence::Exists);
    assert_eq!(lab.instances.power(&node).await, Power::On);
    assert_eq!(lab.server.requests(), []);
}

/// Five thousand Nodes that had joined were searched for one by one when all were refreshed, for a minute.
#[tokio::test]
async fn a_provider_id_that_a_machine_has_needs_no_full_search() {
    let lab = lab(&["a", "b", "vm-c", "vm-d"].map(|name| running(name, None)), "");
    let start = Instant::now();
    for (sentence, name, machine) in [
        ("called like its machine, and never asked about", "a", "a"),
        ("and asked about again", "a", "a"),
        ("called otherwise", "node-c", "vm-c"),
        ("called otherwise, and asked about again", "node-c", "vm-c"),
        ("another machine has its name", "b", "vm-d"),
        ("another machine has its name, and asked about again", "b", "vm-d"),
        ("another Node has its provider ID", "a", "vm-d"),
    ] {
        lab.instances.memory().swept = Some(start);
        let found = lab.instances.vm(&node(name, Some(&format!("harvester://uid-{machine}")), false)).unwrap();
        assert_eq!(found.name, machine, "{sentence}");
        assert_eq!(lab.instances.memory().swept, Some(start), "{sentence}");
    }
}

/// A host that is being upgraded has other things to do than to list its machines for what cannot come of it.
#[tokio::test]
async fn while_deletions_are_suspended_nobody_asks_whether_a_machine_is_gone() {
    let mut lab = lab(&[running("vm-1", None)], "x");
    let gone = node("gone", Some("harvester://uid-gone"), false);
    let window =
        crate::host_upgrade::suspensions::SuspensionWindow { why: "hosts are being upgraded".into(), upgrade: true };
    lab.instances.suspensions.set(Some(window));
    for _ in 0..3 {
        let Existence::Unknown(why) = lab.instances.existence(&gone).await else { panic!("deletions are suspended") };
        assert!(why.contains("no Node is deleted now: hosts are being upgraded"), "{why}");
    }
    assert_eq!(lab.server.requests(), []);
    lab.instances.suspensions.set(None);
    assert!(matches!(lab.existence_when_agents_have_answered(&gone).await, Existence::Gone(_)));
}

/// W-05, W-28.
#[tokio::test]
async fn a_machine_without_addresses_keeps_a_new_node_tainted_and_an_old_one_as_it_is() {
    let silent = lab(&[running("vm-1", None)], "x");
    let id = Some("harvester://uid-vm-1");
    let old = silent.instances.metadata(&node("a", id, false)).await.unwrap();
    assert!(old.addresses.is_empty(), "nothing known, nothing changed");
    assert_eq!(old.zone, "rack-1", "the topology is known all the same");
    let error = silent.instances.metadata(&node("a", id, true)).await.unwrap_err();
    assert!(error.message.contains("no IPs reported yet for VMI guests/vm-1"), "{error}");

    silent.vmis.remove(&"vm-1".to_owned());
    let error = silent.instances.metadata(&node("a", id, true)).await.unwrap_err();
    assert_eq!(error.message, "VM guests/vm-1 has no running instance, Harvester says Running");
}

/// The Node shows an address that its machine has not now. It keeps it until the wait ends, and has it again at once.
async fn keeps_its_address_until_the_wait_ends(lab: &Lab) {
    let mut view = node("a", Some("harvester://uid-vm-1"), false);
    view.addresses = vec![NodeAddress { kind: NodeAddressKind::InternalIp, address: "10.0.0.11".into() }];
    let shown = async || lab.instances.metadata(&view).await.unwrap().addresses.len();
    assert_eq!(shown().await, 0, "it keeps what it has");
    assert_eq!(shown().await, 0);
    lab.instances.memory().nic_waits.insert("a".into(), Instant::now());
    assert_eq!(shown().await, 2, "the address that is left, and the host name");
    lab.vmis.apply("vm-1".into(), running("vm-1", Some("10.0.0.11")));
    assert_eq!(shown().await, 2);
    assert!(lab.instances.memory().nic_waits.is_empty());
}

/// W-05. An address that has really gone is not shown for ever.
#[tokio::test]
async fn an_initialised_node_waits_for_its_first_nic_before_it_shows_the_second_one() {
    let mut two = running("vm-1", None);
    two.networks.push(NetworkView { name: "nic-1".into(), multus: Some("guests/storage".into()) });
    let addresses = vec!["172.16.0.11".into()];
    two.interfaces.push(InterfaceView { name: "nic-1".into(), addresses, interface_name: "enp2s0".into() });
    let lab = lab(&[two], "x");
    keeps_its_address_until_the_wait_ends(&lab).await;
}

/// W-05. The wait has an end here, too.
#[tokio::test]
async fn an_initialised_node_waits_for_the_family_of_its_internal_ip_before_it_shows_only_another_one() {
    let lab = lab(&[running("vm-1", Some("2001:db8::1"))], "x");
    keeps_its_address_until_the_wait_ends(&lab).await;
}

/// W-05. A machine that came back with another IPv4 address, and without IPv6 as yet, was shown with its dead address
/// for as long as the wait.
#[tokio::test]
async fn a_new_address_of_a_family_that_is_there_is_shown_at_once_beside_what_the_node_has_of_the_other_one() {
    type Case = (&'static [&'static str], &'static str, &'static [&'static str], &'static [&'static str]);
    const V6: &str = "2001:db8::1";
    let cases: [Case; 4] = [
        (&["10.0.0.11", V6], "10.0.0.12", &["10.0.0.12", V6, "a"], &["10.0.0.12", "a"]),
        (&["10.0.0.11", V6], "2001:db8::2", &["10.0.0.11", "2001:db8::2", "a"], &["2001:db8::2", "a"]),
        (&["10.0.0.11", V6], "10.0.0.11", &["10.0.0.11", V6, "a"], &["10.0.0.11", "a"]),
        (&["10.0.0.11"], V6, &[], &[V6, "a"]),
    ];
    for (has, reported, meanwhile, in_the_end) in cases {
        let lab = lab(&[running("vm-1", Some(reported))], "x");
        let internal = |address: &&str| NodeAddress { kind: NodeAddressKind::InternalIp, address: (*address).into() };
        let mut view = node("a", Some("harvester://uid-vm-1"), false);
        view.addresses = has.iter().map(internal).collect();
        let shown = async |view: &NodeView| {
            let shown = lab.instances.metadata(view).await.unwrap().addresses;
            shown.into_iter().map(|address| address.address).collect::<Vec<_>>()
        };
        assert_eq!(shown(&view).await, meanwhile, "{has:?}, {reported}");
        if !meanwhile.is_empty() {
            view.addresses = lab.instances.metadata(&view).await.unwrap().addresses;
        }
        let end = lab.instances.memory().nic_waits.get("a").copied();
        assert_eq!(shown(&view).await, meanwhile, "{has:?}, {reported}: and again");
        assert_eq!(lab.instances.memory().nic_waits.get("a").copied(), end, "the wait does not begin anew");
        lab.instances.memory().nic_waits.insert("a".into(), Instant::now());
        assert_eq!(shown(&view).await, in_the_end, "{has:?}, {reported}: after the wait");
    }
}

/// What `kubectl describe node` shows, step by step.
#[test]
fn a_machine_that_does_not_run_says_how_far_it_is() {
    let stopped = VmView { status: PrintableStatus::Stopped, ..vm("vm-1", "u") };
    let text = |vm: &VmView, vmi: Option<VmiView>| instance_of("guests", vm, vmi.map(Arc::new)).unwrap_err();
    assert_eq!(text(&stopped, None), "VM guests/vm-1 is switched off: start it on Harvester");
    let starting = VmView { status: PrintableStatus::Starting, ..stopped.clone() };
    assert_eq!(text(&starting, None), "VM guests/vm-1 has no running instance, Harvester says Starting");
    let ended = VmiView { phase: Phase::Ended, ..running("vm-1", None) };
    assert!(text(&starting, Some(ended)).contains("has ended"));
}

#[tokio::test]
async fn the_instance_type_is_the_one_it_was_made_from_or_its_size_and_never_overrides_the_users() {
    let sized = VmiView { size: "4cpu-8Gi".into(), ..running("vm-1", Some("10.0.0.1")) };
    let lab = lab(&[sized], "x");
    let mut view = node("a", Some("harvester://uid-vm-1"), true);
    assert_eq!(lab.instances.metadata(&view).await.unwrap().instance_type, "4cpu-8Gi");
    let typed = VmView { instance_type: "u1.medium".into(), ..vm("vm-1", "uid-vm-1") };
    lab.instances.vms.apply("vm-1".into(), typed);
    assert_eq!(lab.instances.metadata(&view).await.unwrap().instance_type, "u1.medium");
    view.labels.insert(INSTANCE_TYPE, "by-hand");
    assert_eq!(lab.instances.metadata(&view).await.unwrap().instance_type, "");
}

#[test]
fn what_is_no_label_value_is_not_shown() {
    assert_eq!(label_value("host-1.example.org").as_deref(), Some("host-1.example.org"));
    for bad in ["", "-a", "a.", "a b", &"a".repeat(64)] {
        assert_eq!(label_value(bad), None, "{bad:?}");
    }
}

/// W-22. An annotation takes any text, and a PATCH with a wrong label initialised no Node.
#[tokio::test]
async fn a_zone_that_is_no_label_value_is_left_out() {
    let odd = VmiView { zone: "Rack 1 / Row B".into(), ..running("vm-1", Some("10.0.0.1")) };
    let lab = lab(&[odd], "x");
    let view = node("a", Some("harvester://uid-vm-1"), true);
    for _ in 0..2 {
        let machine = lab.instances.metadata(&view).await.unwrap();
        assert_eq!((machine.zone.as_str(), machine.region.as_str()), ("", "lab"));
        assert_eq!(lab.instances.memory().no_labels.len(), 1, "it is logged once");
    }
}

/// W-29: Harvester reports an address of a Service for a while after the announcer has taken it off the machine.
#[tokio::test]
async fn an_address_that_was_a_services_until_now_is_not_the_nodes() {
    let mut two = running("vm-1", Some("10.0.0.1"));
    two.interfaces[0].addresses.push("10.0.0.100".into());
    let lab = lab(&[two], "x");
    let view = node("a", Some("harvester://uid-vm-1"), false);
    let key = cloud_provider::view::ServiceKey { namespace: "default".into(), name: "web".into() };
    let service = crate::load_balancers::build::service("default/web")
        .short(&[("ip", "10.0.0.100")])
        .ingress("10.0.0.100")
        .done();
    let services = lab.instances.vips.lock().services.clone();
    services.apply(key.clone(), service);
    let shown = async || lab.instances.metadata(&view).await.unwrap().addresses.len();
    assert_eq!(shown().await, 2, "one address and the host name");
    services.remove(&key);
    assert_eq!(shown().await, 2, "still known as a Service's");
    lab.instances.vips.lock().get(Instant::now() + VIP_LINGERS);
    assert_eq!(shown().await, 3);
}

#[tokio::test]
async fn a_node_is_gone_only_with_a_provider_id_and_an_answer_of_the_api() {
    let mut lab = lab(&[running("vm-1", None)], "vm-1");
    let existence = lab.existence_when_agents_have_answered(&node("a", Some("harvester://uid-lost"), false)).await;
    let Existence::Gone(evidence) = existence else { panic!("the API denies it, and vm-1 is another Node's") };
    assert!(evidence.contains("uid-lost"), "{evidence}");
    for doubtful in [None, Some("k3s://a"), Some("harvester://")] {
        let existence = lab.instances.existence(&node("a", doubtful, false)).await;
        assert!(matches!(existence, Existence::Unknown(_)), "{doubtful:?} {existence:?}");
    }
}

/// The Node of such a machine was deleted, and in RKE2 and K3s its member of etcd went with it. Which VM it ran on was
/// in the memory of a controller that had been restarted since.
#[tokio::test]
async fn a_node_lives_on_whose_vm_was_restored_under_a_name_that_is_not_the_nodes() {
    const UUID: &str = "00112233-4455-6677-8899-aabbccddeeff";
    let same = VmiView { firmware: MachineUuid::parse(UUID), ..running("pool-x1", None) };
    let mut known = node("node-1", Some("harvester://uid-before-the-restore"), false);
    known.system_uuid = Some(UUID.to_uppercase());
    let mut silent = known.clone();
    silent.system_uuid = None;
    for (what, vmi, says, node) in [
        ("its guest agent reports the Node's name", running("pool-x1", None), "node-1", &silent),
        ("the kubelet has reported the UUID of its firmware", same, "localhost", &known),
    ] {
        let mut lab = lab(&[vmi], says);
        let existence = lab.existence_when_agents_have_answered(node).await;
        let Existence::Elsewhere(why) = existence else { panic!("{what}: {existence:?}") };
        for part in ["node node-1", "uid-before-the-restore", "guests/pool-x1", "uid-pool-x1"] {
            assert!(why.contains(part), "{what}, {part}: {why}");
        }
    }
    let offline = VmiView { agent_connected: false, ..running("pool-x1", None) };
    let lab = lab(&[offline], "");
    let existence = lab.instances.existence(&silent).await;
    let Existence::Unknown(why) = existence else { panic!("it has not told whose it is: {existence:?}") };
    assert!(why.contains("pool-x1") && lab.server.requests().is_empty(), "no proof is asked for meanwhile: {why}");
}

/// A machine whose host name had been changed was no Node's for half an hour after its former Node was deleted.
#[tokio::test]
async fn a_machine_whose_node_is_gone_may_be_another_node_and_its_agent_is_asked_again() {
    let lab = lab(&[running("vm-1", Some("10.0.0.1"))], "new");
    let old = node("old", Some("harvester://uid-vm-1"), false);
    lab.instances.nodes.apply("old".into(), old.clone());
    lab.instances.metadata(&old).await.unwrap();
    // What its agent said when the Node was new.
    let vmi = lab.vmis.get(&"vm-1".to_owned()).unwrap();
    {
        let (mut memory, now) = (lab.instances.memory(), Instant::now());
        let asked = memory.hostnames.resolve("old", false, &[vmi.as_ref()], now);
        let Resolution::Ask(asks) = asked else { panic!("{asked:?}") };
        memory.hostnames.answered(&asks[0], Some("old"), now);
    }
    let asking = tokio::spawn(Arc::clone(&lab.instances).run(lab.asked));
    let new = node("new", None, true);
    let error = lab.instances.metadata(&new).await.unwrap_err();
    assert!(error.message.starts_with("no VM for node new: of those in namespace guests that are no other Node's"));
    assert_eq!(lab.server.requests(), []);
    lab.instances.nodes.remove(&"old".to_owned());
    while let Err(error) = lab.instances.metadata(&new).await {
        assert!(error.under_way, "{error}");
        tokio::task::yield_now().await;
    }
    assert_eq!(lab.server.requests().len(), 1);
    asking.abort();
}

#[tokio::test]
async fn a_node_whose_machine_is_another_nodes_is_told_which_one_that_is() {
    let lab = lab(&[running("new", Some("10.0.0.1"))], "x");
    let old = node("old", Some("harvester://uid-new"), false);
    lab.instances.nodes.apply("old".into(), old.clone());
    lab.instances.metadata(&old).await.unwrap();
    let error = lab.instances.metadata(&node("new", None, true)).await.unwrap_err();
    let expected = "no VM for node new: VM new is the machine of node old by its provider ID";
    assert!(error.message.starts_with(expected) && error.message.ends_with("kubectl delete node old"), "{error}");
    assert!(lab.instances.metadata(&old).await.is_ok(), "it keeps its machine");
}

/// The Go provider's flag against guessing by host names.
#[tokio::test]
async fn without_the_lookup_of_host_names_a_node_is_on_the_machine_of_its_name_and_no_agent_is_asked() {
    let vmis = [running("vm-1", Some("10.0.0.1"))];
    let lab = lab_with(&vmis, "node-1", |config| config.disable_hostname_lookup = true);
    let metadata = lab.instances.metadata(&node("vm-1", None, true)).await.unwrap();
    assert_eq!(metadata.provider_id, "harvester://uid-vm-1");
    let error = lab.instances.metadata(&node("node-1", None, true)).await.unwrap_err();
    assert!(error.message.starts_with("no VM for node node-1"), "{error}");
    assert_eq!(lab.server.requests(), []);
}

#[tokio::test]
async fn what_is_known_is_steady_only_while_both_watches_work_and_from_the_last_trouble_on() {
    let lab = lab(&[], "x");
    assert_eq!(lab.instances.steady_since(), None, "nothing was listed yet");
    lab.watched.send_modify(|status| status.synced = true);
    let first = lab.instances.steady_since().unwrap();
    assert_eq!(lab.instances.steady_since(), Some(first));
    tokio::time::sleep(Duration::from_millis(2)).await;
    lab.watched.send_modify(|status| status.troubles += 1);
    let second = lab.instances.steady_since().unwrap();
    assert!(second > first, "it came and went between two looks");
    lab.watched.send_modify(|status| status.error = Some((tokio::time::Instant::now(), "away".into())));
    assert_eq!(lab.instances.steady_since(), None);
}

/// W-08.
#[tokio::test]
async fn before_the_first_list_nothing_is_known_and_nothing_asked() {
    let mut lab = lab(&[], "x");
    let instances = Arc::get_mut(&mut lab.instances).unwrap();
    instances.vms = machine_caches().0;
    let node = node("a", Some("harvester://u"), false);
    assert!(matches!(instances.existence(&node).await, Existence::Unknown(_)));
    assert!(matches!(instances.power(&node).await, Power::Unknown(_)));
    assert!(instances.metadata(&node).await.is_err());
    assert_eq!(lab.server.requests(), []);
}

#[tokio::test]
async fn a_harvester_that_cannot_be_listed_is_named_with_the_cause() {
    let mut lab = lab(&[], "x");
    Arc::get_mut(&mut lab.instances).unwrap().vms = machine_caches().0;
    let node = node("a", None, true);
    let early = lab.instances.metadata(&node).await.unwrap_err().message;
    assert_eq!(early, "the VMs in namespace guests of Harvester at https://h:6443 could not be listed yet");
    let error = Some((tokio::time::Instant::now(), "no route to host".to_owned()));
    lab.watched.send_modify(|status| status.error = error);
    let later = lab.instances.metadata(&node).await.unwrap_err().message;
    assert!(later.starts_with(&format!("{early}: no route to host; check server")), "{later}");
}

#[tokio::test]
async fn a_machine_wakes_its_node_but_not_while_it_migrates() {
    let lab = lab(&[running("vm-1", Some("10.0.0.1"))], "node-1");
    lab.instances.metadata(&node("node-1", Some("harvester://uid-vm-1"), false)).await.unwrap();
    let nodes = || nodes_of("vm-1", &lab.vmis, &lab.instances.cluster.name_or_flag(), &lab.instances.memory);
    assert_eq!(nodes(), [NodeWake::Node("node-1".into())], "known by its provider ID");
    lab.vmis.apply("vm-1".into(), VmiView { migrating: true, ..running("vm-1", None) });
    assert_eq!(nodes(), []);
    let mut foreign = running("vm-1", None);
    foreign.labels.insert(keys::harvester::GUEST_CLUSTER_NAME, "other");
    lab.vmis.apply("vm-1".into(), foreign);
    assert_eq!(nodes(), [], "another cluster's");
    let unknown = nodes_of("vm-2", &lab.vmis, &lab.instances.cluster.name_or_flag(), &lab.instances.memory);
    assert_eq!(unknown, [NodeWake::Node("vm-2".into())], "most nodes are called like their VM");
}

/// Its Node has the provider ID only from the write that follows.
#[tokio::test]
async fn a_machine_wakes_the_node_that_was_just_initialised_under_another_name() {
    let lab = lab(&[running("vm-1", Some("10.0.0.1"))], "node-1");
    let asking = tokio::spawn(Arc::clone(&lab.instances).run(lab.asked));
    let view = node("node-1", None, true);
    while lab.instances.metadata(&view).await.is_err() {
        tokio::task::yield_now().await;
    }
    let woken = nodes_of("vm-1", &lab.vmis, &ClusterName::from_record("demo"), &lab.instances.memory);
    assert_eq!(woken, [NodeWake::Node("node-1".into())]);
    asking.abort();
}
