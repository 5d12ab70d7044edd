//! The roads of docs/backup.md, walked as they are written there: a new name, another namespace, another Harvester, new
//! machines. With the commands that it names, and the rights that their pod has.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::time::Duration;

use e2e::bed::POOL;
use e2e::churn::{wait_for_late_safe_mode, wait_for_safe_mode, wait_for_the_end_of_safe_mode};
use e2e::host::CCM_LEASE;
use e2e::watch::let_it_happen;
use e2e::{Bed, Beds, CLUSTER, Exposed, NETWORK, NodeSketch, PATIENCE, VM_NAMESPACE, service, wait_for};
use harvester_api::ip_pool::{IpPool, ScopeTuple};
use harvester_api::keys::cloudprovider;
use harvester_api::load_balancer::LoadBalancer;
use harvester_sim::guest::machines::Machines;
use harvester_sim::install::{Install, Network, install};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use testbed::{HarvesterSide, Request};

// What a cluster leaves behind that has moved is no place for another test.
static RENAMED: Beds<1> = Beds::new();
static ELSEWHERE: Beds<1> = Beds::new();
static AWAY: Beds<1> = Beds::new();
static ANEW: Beds<1> = Beds::new();

/// So long the controller waits for a report of the old machines before it takes them for replaced.
const SETTLES: Duration = Duration::from_secs(90);

/// Addresses of a pool elsewhere, which the first Harvester does not give.
const ELSEWHERE_RANGE: &str = "192.168.100.0/24,start=192.168.100.170,end=192.168.100.189,gateway=192.168.100.1";

/// The pool is for this guest cluster only.
async fn give_pool_to(bed: &Bed, cluster: &str) {
    let pools: Api<IpPool> = Api::all(bed.harvester_client().await.unwrap());
    wait_for("the scope of the pool", PATIENCE, || async {
        let mut pool = pools.get(POOL).await.map_err(|error| error.to_string())?;
        pool.spec.selector.scope =
            vec![ScopeTuple { project: "*".into(), namespace: VM_NAMESPACE.into(), guest_cluster: cluster.into() }];
        // Its controller writes the status all the time.
        pools.replace(POOL, &PostParams::default(), &pool).await.map(drop).map_err(|error| error.to_string())
    })
    .await
    .unwrap();
}

/// Cluster of its load balancer, by label, which follows a new name; its own name; its UID.
async fn made_as(web: &Exposed<'_>) -> (String, String, String) {
    let lb = web.load_balancer().await.unwrap().expect("it has a load balancer");
    let label = lb.labels().get(cloudprovider::CLUSTER).cloned().unwrap_or_default();
    (label, lb.name_any(), lb.uid().unwrap_or_default())
}

fn is_named_after(cluster: &str, name: &str) -> bool {
    name.starts_with(&format!("{cluster}-"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renamed_cluster_keeps_its_load_balancers_and_makes_new_ones_under_the_new_name() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = RENAMED.alone(|| Bed::one_node().start()).await.unwrap();
    give_pool_to(&bed, CLUSTER).await;
    let case = bed.case("renamed").await.unwrap();
    let web = case.create(service("web").tcp(80)).await.unwrap();
    let address = web.published().await.unwrap();
    let before = made_as(&web).await;
    assert_eq!((before.0.as_str(), is_named_after(CLUSTER, &before.1)), (CLUSTER, true), "{before:?}");
    bed.wait_for_identity_card().await.unwrap();

    // The flag alone changes nothing.
    bed.ccm().set_arg("--cluster-name=prod");
    bed.ccm().restart().unwrap();
    let record = ("kube-system", "ConfigMap", "harvester-cloud-provider");
    bed.wait_for_event(record.0, record.1, record.2, "ClusterNameNotChanged", "prod").await.unwrap();
    let between = case.create(service("between").tcp(80)).await.unwrap();
    between.published().await.unwrap();
    assert_eq!(made_as(&between).await.0, CLUSTER, "work goes on under the old name");

    let would = bed.ccm().exec(&["identity", "rename", "prod", "--dry-run"]).unwrap();
    assert!(would.contains("keep name and address") && would.contains("Nothing was changed"), "{would}");
    let shown = bed.ccm().exec(&["identity", "rename", "prod"]).unwrap();
    assert!(shown.starts_with("name        prod\n"), "{shown}");

    // A pool that is for one cluster only is for the former one until somebody says otherwise.
    let late = case.create(service("late").tcp(80)).await.unwrap();
    late.wait_for_load_balancer("the host's refusal", |lb| {
        lb.not_ready_message().map(drop).ok_or_else(|| "it says nothing".to_owned())
    })
    .await
    .unwrap();
    let machine = |machine: &mut harvester_sim::guest::machine::Machine| machine.cluster = Some("prod".into());
    bed.machines().await.unwrap().change(VM_NAMESPACE, "node1", machine).await.unwrap();
    give_pool_to(&bed, "prod").await;
    late.published().await.unwrap();
    let made = made_as(&late).await;
    assert_eq!((made.0.as_str(), is_named_after("prod", &made.1)), ("prod", true), "{made:?}");

    // And so it is after a restart, and what was there before is as it was.
    bed.ccm().restart().unwrap();
    let last = case.create(service("last").tcp(80)).await.unwrap();
    last.published().await.unwrap();
    assert_eq!(made_as(&last).await.0, "prod");
    web.wait_for_load_balancer("the label of the new name", |lb| {
        let label = lb.labels().get(cloudprovider::CLUSTER);
        if label.is_some_and(|label| label == "prod") { Ok(()) } else { Err(format!("{label:?}")) }
    })
    .await
    .unwrap();
    let now = made_as(&web).await;
    assert_eq!((web.published().await.unwrap(), now.1, now.2), (address, before.1, before.2));
    for old in [&web, &between] {
        old.delete().await.unwrap();
        old.wait_until_gone().await.unwrap();
        assert!(old.load_balancer().await.unwrap().is_none(), "what was made under the old name is still its own");
    }
}

async fn load_balancers(client: Client, namespace: &str) -> Vec<String> {
    let lbs: Api<LoadBalancer> = Api::namespaced(client, namespace);
    lbs.list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect()
}

/// Where the machines of a cluster are moved to.
struct Place {
    client: Client,
    namespace: &'static str,
    cloud_config: String,
    /// Why nothing is done there before a human has said that this is right.
    reason: &'static str,
}

impl Place {
    /// What is there before the cluster comes: its machine, and a pool.
    async fn furnish(&self, bed: &Bed) {
        let (namespace, name) = NETWORK.split_once('/').unwrap();
        let mut namespaces = vec![VM_NAMESPACE.to_owned(), self.namespace.to_owned()];
        namespaces.dedup();
        let wanted = Install {
            namespaces,
            project: Some("local:p-demo1".into()),
            networks: vec![Network { namespace: namespace.into(), name: name.into(), vlan: 1 }],
        };
        install(&self.client, &wanted).await.unwrap();
        let mut machine = bed.machine("node1", &["192.168.100.11"]);
        machine.namespace = self.namespace.into();
        Machines::new(self.client.clone()).save(&machine).await.unwrap();
    }
}

fn is_elsewhere(address: &str) -> bool {
    let last = address.rsplit('.').next().and_then(|last| last.parse::<u8>().ok());
    last.is_some_and(|last| (170..190).contains(&last))
}

/// The way is the same, whatever the place.
async fn moved(bed: &Bed, place: Place) {
    let case = bed.case("moved").await.unwrap();
    let web = case.create(service("web").tcp(80)).await.unwrap();
    let address = web.published().await.unwrap();
    assert!(!is_elsewhere(&address), "{address}");
    bed.wait_for_identity_card().await.unwrap();
    let_it_happen(2).await;
    let left = load_balancers(bed.harvester_client().await.unwrap(), VM_NAMESPACE).await;

    // The changed file is refused while the controller runs, and leads to safe mode after a restart.
    bed.write_cloud_config(&place.cloud_config).unwrap();
    bed.wait_for_event("kube-system", "Lease", CCM_LEASE, "CloudConfigInvalid", "identity confirm").await.unwrap();
    let during = case.create(service("during").tcp(80)).await.unwrap();
    during.published().await.unwrap();
    during.delete().await.unwrap();
    during.wait_until_gone().await.unwrap();
    bed.ccm().restart().unwrap();
    wait_for_safe_mode(case.client(), place.reason).await.unwrap();
    let waiting = case.create(service("waiting").tcp(80)).await.unwrap();
    let_it_happen(5).await;
    assert_eq!(load_balancers(place.client.clone(), place.namespace).await, Vec::<String>::new());
    assert_eq!(web.published().await.unwrap(), address, "addresses that are served stay");

    let shown = bed.ccm().exec(&["identity", "confirm"]).unwrap();
    assert!(shown.contains(&format!("namespace   {}\n", place.namespace)), "{shown}");
    wait_for_the_end_of_safe_mode(case.client()).await.unwrap();
    let late = case.create(service("late").tcp(80)).await.unwrap();
    for moved in [&web, &waiting, &late] {
        moved
            .wait_for("an address of the new place", |service| {
                let shown = service.annotations().get("kube-vip.io/loadbalancerIPs").cloned().unwrap_or_default();
                if is_elsewhere(&shown) { Ok(()) } else { Err(shown) }
            })
            .await
            .unwrap();
    }
    assert_eq!(load_balancers(place.client.clone(), place.namespace).await.len(), 3, "made anew, each once");
    // What is deleted from now on is deleted there, and a restart finds all as it should be.
    bed.ccm().restart().unwrap();
    web.delete().await.unwrap();
    web.wait_until_gone().await.unwrap();
    assert_eq!(load_balancers(place.client, place.namespace).await.len(), 2);
    assert!(bed.node("node1").await.unwrap().is_some());
    let now = load_balancers(bed.harvester_client().await.unwrap(), VM_NAMESPACE).await;
    assert_eq!(now, left, "what was left behind is for a human");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_whose_machines_are_in_another_namespace_is_served_there_by_a_humans_word() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = ELSEWHERE.alone(|| Bed::one_node().start()).await.unwrap();
    let client = bed.harvester_client().await.unwrap();
    let mut place = Place { client, namespace: "elsewhere", cloud_config: String::new(), reason: "WrongNamespace" };
    place.furnish(&bed).await;
    bed.harvester.create_pool("elsewhere", NETWORK, ELSEWHERE_RANGE).unwrap();
    place.cloud_config = bed.harvester.cloud_config(place.namespace, CLUSTER).unwrap();
    moved(&bed, place).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_whose_machines_are_on_another_harvester_is_served_there_by_a_humans_word() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = AWAY.alone(|| Bed::one_node().start()).await.unwrap();
    let other = HarvesterSide::builder().other().run_flag("--profile=fast").start(&bed.control_plane).await.unwrap();
    let client = other.client().await.unwrap();
    let mut place = Place { client, namespace: VM_NAMESPACE, cloud_config: String::new(), reason: "WrongHarvester" };
    place.furnish(&bed).await;
    other.create_pool("elsewhere", NETWORK, ELSEWHERE_RANGE).unwrap();
    place.cloud_config = other.cloud_config(VM_NAMESPACE, CLUSTER).unwrap();
    moved(&bed, place).await;
}

/// The machines are lost with everything on them. A snapshot of etcd is restored, and a machine of another name joins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_restored_on_new_machines_writes_nothing_before_a_humans_word_and_keeps_its_addresses_by_it() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = ANEW.alone(|| Bed::one_node().start()).await.unwrap();
    let case = bed.case("anew").await.unwrap();
    let mut kept = Vec::new();
    for name in ["one", "two"] {
        let web = case.create(service(name).tcp(80)).await.unwrap();
        kept.push((web.published().await.unwrap(), made_as(&web).await, web));
    }
    bed.wait_for_identity_card().await.unwrap();
    let_it_happen(2).await;
    let snapshot = bed.control_plane.backup().unwrap();
    let since = case.create(service("made-since").tcp(80)).await.unwrap();
    let (booked, (_, left, _)) = (since.published().await.unwrap(), made_as(&since).await);

    bed.power_off(1).unwrap();
    let machines = bed.machines().await.unwrap();
    machines.delete(VM_NAMESPACE, "node1", false).await.unwrap();
    bed.control_plane.restore(&snapshot).await.unwrap();
    let host = bed.lan.add_host("new1", 64).unwrap();
    bed.control_plane.join(&host).unwrap();
    machines.save(&bed.machine("new1", &["192.168.100.64"])).await.unwrap();
    bed.register_node(&NodeSketch::new("new1")).await.unwrap();
    // As the controller manager says of a Node that does not report; none runs here.
    bed.set_ready("node1", false).await.unwrap();
    let program = bed.ccm().program().twin();
    let controller = program.on(&host);
    controller.set_env("NODE_NAME", "new1");
    let mark = bed.mark();
    controller.start().unwrap();

    // New Nodes are initialised all the same. Before the old machines count as replaced they are silent for a while.
    bed.wait_until_node_is_initialized("new1").await.unwrap();
    let waiting = case.create(service("waiting").tcp(80)).await.unwrap();
    wait_for_late_safe_mode(case.client(), "MachinesReplaced", SETTLES).await.unwrap();
    let costs = bed.costs(mark).unwrap();
    assert_eq!(costs.ccm_harvester, [], "{costs}");
    let foreseen = |request: &Request| {
        let new_node = request.resource.starts_with("nodes") && request.name.as_deref() == Some("new1");
        new_node || request.resource == "configmaps"
    };
    assert!(costs.ccm_guest.iter().all(foreseen), "the new Node and the record are all that is written: {costs}");
    assert!(bed.node("node1").await.unwrap().is_some(), "no Node is deleted");

    let would = controller.exec(&["identity", "confirm", "--dry-run"]).unwrap();
    assert!(would.contains("its load balancers stay") && would.contains("Nothing was changed"), "{would}");
    let shown = controller.exec(&["identity", "confirm"]).unwrap();
    let node = bed.node("new1").await.unwrap().expect("it has joined");
    let id = node.spec.and_then(|spec| spec.provider_id).expect("it is initialised");
    let uid = id.strip_prefix("harvester://").expect("a machine of Harvester");
    assert!(shown.contains(&format!("machines    {uid}\n")) && shown.contains("safe mode   no"), "{shown}");
    wait_for_the_end_of_safe_mode(case.client()).await.unwrap();
    assert_ne!(waiting.published().await.unwrap(), booked, "what was made since the snapshot has its address still");
    let made = made_as(&waiting).await;
    assert_eq!((made.0.as_str(), is_named_after(CLUSTER, &made.1)), (CLUSTER, true), "{made:?}");
    // The Node of the machine that is gone goes by itself, and leaves the record with it.
    bed.wait_until_node_is_gone("node1").await.unwrap();
    wait_for("the record without the old machine", PATIENCE, || async {
        let shown = controller.exec(&["identity", "show"]).map_err(|error| format!("{error:#}"))?;
        if shown.contains("absent") { Err(shown) } else { Ok(()) }
    })
    .await
    .unwrap();

    // The next controller starts without a doubt.
    controller.restart().unwrap();
    waiting.delete().await.unwrap();
    waiting.wait_until_gone().await.unwrap();
    assert!(waiting.load_balancer().await.unwrap().is_none(), "what it has made is its own to delete");
    for (address, made, web) in &kept {
        assert_eq!((web.published().await.unwrap(), made_as(web).await), (address.clone(), made.clone()), "{web}");
    }
    let there = load_balancers(bed.harvester_client().await.unwrap(), VM_NAMESPACE).await;
    assert!(there.contains(&left), "what the snapshot does not know is for a human: {there:?}");
}
