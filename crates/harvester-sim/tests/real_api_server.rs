//! The stand-in on a real API server: what a guest cluster's provider meets there.

mod host;

use std::time::{Duration, Instant};

use harvester_api::ip_pool::{IpPool, IpPoolSpec, IpRange, PoolSelector, ScopeTuple};
use harvester_api::keys::{cloudprovider, harvester, loadbalancer};
use harvester_api::load_balancer::{Ipam, LoadBalancer};
use harvester_api::virtual_machine::VirtualMachine;
use harvester_api::virtual_machine_instance::{GuestOsInfo, VirtualMachineInstance};
use harvester_sim::credentials::{CredentialsRequest, TokenSource, credentials};
use harvester_sim::guest::machine::Machine;
use harvester_sim::guest::machines::{Machines, MigrationOutcome};
use harvester_sim::host::machines::FINALIZER;
use host::{Host, available, host, real_host};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Waits for a condition on an object (`None`: it is gone), or says what it last saw.
async fn until<K>(api: &Api<K>, name: &str, what: &str, holds: impl Fn(Option<&K>) -> bool) -> Option<K>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let object = api.get_opt(name).await.expect("the API answers");
        if holds(object.as_ref()) {
            return object;
        }
        assert!(Instant::now() < deadline, "{name}: not {what} after 20 s, last seen: {object:#?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn cluster_lb(namespace: &str, name: &str, ipam: Ipam) -> LoadBalancer {
    let mut lb = LoadBalancer::for_cluster(namespace, name, ipam);
    lb.labels_mut().insert(cloudprovider::CLUSTER.to_owned(), "demo".to_owned());
    lb.annotations_mut().insert(loadbalancer::CLUSTER.to_owned(), "demo".to_owned());
    lb.annotations_mut().insert(loadbalancer::NETWORK.to_owned(), String::new());
    lb
}

/// Ten addresses (.10 to .19) of a /24 for one namespace.
async fn create_pool(client: &Client, namespace: &str, third_octet: u8, last: u8) {
    let range = IpRange {
        subnet: format!("10.77.{third_octet}.0/24"),
        range_start: Some(format!("10.77.{third_octet}.10")),
        range_end: Some(format!("10.77.{third_octet}.{last}")),
        gateway: None,
    };
    let scope =
        vec![ScopeTuple { project: "*".to_owned(), namespace: namespace.to_owned(), guest_cluster: "*".to_owned() }];
    let selector = PoolSelector { priority: 0, network: format!("{namespace}/mgmt"), scope };
    let pool = IpPool::new(namespace, IpPoolSpec { ranges: vec![range], selector, ..IpPoolSpec::default() });
    let pools: Api<IpPool> = Api::all(client.clone());
    pools.create(&PostParams::default(), &pool).await.expect("a good pool");
    until(&pools, namespace, "ready", |pool| pool.is_some_and(|pool| pool.status.is_some())).await;
}

async fn create_machine(client: &Client, namespace: &str, name: &str) -> Machine {
    let machine =
        Machine::node(namespace, name, "demo", &format!("{namespace}/mgmt"), &["10.20.0.11"]).located("lab", "rack-1");
    Machines::new(client.clone()).save(&machine).await.expect("a machine");
    machine
}

fn refusal<T: std::fmt::Debug>(outcome: kube::Result<T>) -> (u16, String) {
    match outcome {
        Err(kube::Error::Api(status)) => (status.code, status.message),
        other => panic!("not refused: {other:?}"),
    }
}

async fn control(host: &Host, method: &str, path: &str, body: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(&host.control).await.expect("the control endpoint listens");
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: sim\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer
}

async fn set_faults(host: &Host, namespace: &str, faults: Value) {
    let answer = control(host, "PUT", &format!("/faults/{namespace}"), &faults.to_string()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

async fn guest_client(host: &Host, client: &Client, namespace: &str) -> Client {
    let request = CredentialsRequest {
        namespace: namespace.to_owned(),
        name: "demo".to_owned(),
        server: host.server.clone(),
        ca_pem: host.ca_pem.clone(),
        token: TokenSource::Request,
    };
    let cloud_config = credentials(client, &request).await.expect("credentials");
    Host::client_of(&cloud_config).await
}

#[tokio::test]
async fn a_load_balancer_is_booked_and_released_and_comes_back_with_its_address() {
    if !available() {
        return;
    }
    let client = host().client().await;
    let ns = "booking";
    create_machine(&client, ns, "booking-vm").await;
    create_pool(&client, ns, 1, 19).await;
    let lbs: Api<LoadBalancer> = Api::namespaced(client.clone(), ns);
    let pools: Api<IpPool> = Api::all(client.clone());
    let create = async |name: &str| {
        lbs.create(&PostParams::default(), &cluster_lb(ns, name, Ipam::Pool)).await.expect("created")
    };
    let ready = async |name: &str| {
        let is_ready =
            |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.usable_address().is_some() && lb.has_host_finalizer());
        until(&lbs, name, "ready with finalizer", is_ready).await.expect("there")
    };

    let created = create("web").await;
    assert_eq!(created.annotation(loadbalancer::NAMESPACE), Some(ns));
    assert_eq!(created.annotation(loadbalancer::PROJECT), Some("local/p-demo1"));
    assert_eq!(created.annotation(loadbalancer::NETWORK), Some("booking/mgmt"), "found by the VMI's label");
    let web = ready("web").await;
    let address = serde_json::to_value(&web.status.as_ref().unwrap().allocated_address).unwrap();
    assert_eq!(address, json!({"ipPool": ns, "ip": "10.77.1.10", "mask": "255.255.255.0", "gateway": "10.77.1.1"}));
    create("second").await;
    assert_eq!(ready("second").await.usable_address(), Some("10.77.1.11"));

    let mut with_address = ready("web").await;
    with_address.status.as_mut().unwrap().address = Some("10.77.1.10".to_owned());
    lbs.replace("web", &PostParams::default(), &with_address).await.expect("the mailbox is ours");
    lbs.delete("web", &DeleteParams::default()).await.expect("deleted");
    until(&lbs, "web", "gone", |lb| lb.is_none()).await;
    let books = pools.get(ns).await.unwrap().status.unwrap();
    assert_eq!(books.allocated.values().collect::<Vec<_>>(), ["booking/second"]);
    assert_eq!(books.allocated_history.get("10.77.1.10").map(String::as_str), Some("booking/web"));
    assert_eq!((books.total, books.available), (10, 9));

    create("third").await;
    assert_eq!(ready("third").await.usable_address(), Some("10.77.1.12"), "round robin does not turn back");
    create("web").await;
    assert_eq!(ready("web").await.usable_address(), Some("10.77.1.10"), "history brings the address back");

    lbs.create(&PostParams::default(), &cluster_lb(ns, "lease", Ipam::Dhcp)).await.expect("created");
    assert_eq!(ready("lease").await.usable_address(), Some("0.0.0.0"));
}

#[tokio::test]
async fn what_harvester_refuses_is_refused_in_its_words() {
    if !available() {
        return;
    }
    let client = host().client().await;
    let ns = "refusals";
    let lbs: Api<LoadBalancer> = Api::namespaced(client.clone(), ns);
    lbs.create(&PostParams::default(), &cluster_lb(ns, "web", Ipam::Dhcp)).await.expect("created");
    let settled = |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.ready() && lb.has_host_finalizer());
    let mut web = until(&lbs, "web", "ready", settled).await.expect("there");

    web.spec.ipam = Some("pool".to_owned());
    let (code, text) = refusal(lbs.replace("web", &PostParams::default(), &web).await);
    assert_eq!(code, 500);
    assert_eq!(
        text,
        "admission webhook \"validator.harvester-system.harvester-load-balancer-webhook\" denied the request: Internal error \
         occurred: update loadbalancer refusals/web failed: can't change the IPAM from dhcp to pool"
    );

    let mut odd = cluster_lb(ns, "odd", Ipam::Pool);
    odd.spec.ipam = Some("static".to_owned());
    assert_eq!(refusal(lbs.create(&PostParams::default(), &odd).await).0, 422, "the schema has an enum");
    odd.spec.ipam = Some(String::new());
    assert_eq!(refusal(lbs.create(&PostParams::default(), &odd).await).0, 422);

    let mut vm_type = cluster_lb(ns, "vm-type", Ipam::Pool);
    vm_type.spec.workload_type = Some("vm".to_owned());
    assert!(
        refusal(lbs.create(&PostParams::default(), &vm_type).await).1.contains("needs to have at least one listener")
    );

    let mut stale = web.clone();
    stale.spec.ipam = Some("dhcp".to_owned());
    stale.metadata.resource_version = Some("1".to_owned());
    assert_eq!(refusal(lbs.replace("web", &PostParams::default(), &stale).await).0, 409);
    let status = json!({"status": {"address": "10.0.0.1"}});
    let written = lbs.patch_status("web", &PatchParams::default(), &Patch::Merge(&status)).await;
    assert_eq!(refusal(written).0, 404, "there is no status subresource");

    lbs.create(&PostParams::default(), &cluster_lb(ns, "lost", Ipam::Pool)).await.expect("created");
    let unmatched = |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.not_ready_message().is_some());
    let lost = until(&lbs, "lost", "reported", unmatched).await.expect("there");
    assert_eq!(
        lost.not_ready_message(),
        Some("no matched IPPool with requirement &{Network: Project:local/p-demo1 Namespace:refusals Cluster:demo}")
    );

    create_pool(&client, ns, 2, 19).await;
    let pools: Api<IpPool> = Api::all(client.clone());
    let spec = pools.get(ns).await.unwrap().spec;
    let (code, text) = refusal(pools.create(&PostParams::default(), &IpPool::new("overlapping", spec)).await);
    assert!(code == 500 && text.contains("overlap with other pools"), "{code} {text}");
}

#[tokio::test]
async fn an_exhausted_pool_says_so_and_heals_when_an_address_is_freed() {
    if !available() {
        return;
    }
    let client = host().client().await;
    let ns = "pace";
    create_machine(&client, ns, "pace-vm").await;
    create_pool(&client, ns, 3, 10).await;
    let lbs: Api<LoadBalancer> = Api::namespaced(client.clone(), ns);
    let ready =
        |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.usable_address().is_some() && lb.has_host_finalizer());
    lbs.create(&PostParams::default(), &cluster_lb(ns, "first", Ipam::Pool)).await.expect("created");
    until(&lbs, "first", "ready", ready).await;
    lbs.create(&PostParams::default(), &cluster_lb(ns, "second", Ipam::Pool)).await.expect("created");
    let reported = |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.not_ready_message().is_some());
    let second = until(&lbs, "second", "reported", reported).await.expect("there");
    assert_eq!(
        second.not_ready_message(),
        Some("fail to get ip from pool pace, error: no IP addresses available in range set: 10.77.3.10-10.77.3.10")
    );
    lbs.delete("first", &DeleteParams::default()).await.expect("deleted");
    assert_eq!(until(&lbs, "second", "ready", ready).await.unwrap().usable_address(), Some("10.77.3.10"));
}

#[tokio::test]
async fn a_guests_rights_are_those_of_harvester_and_no_more() {
    if !available() {
        return;
    }
    let admin = host().client().await;
    let ns = "rights";
    let guest = guest_client(host(), &admin, ns).await;
    let lbs: Api<LoadBalancer> = Api::namespaced(guest.clone(), ns);
    lbs.create(&PostParams::default(), &cluster_lb(ns, "web", Ipam::Dhcp)).await.expect("create is granted");
    lbs.list(&ListParams::default()).await.expect("list is granted");
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"a": "b"}}}));
    assert_eq!(refusal(lbs.patch("web", &PatchParams::default(), &patch).await).0, 403, "patch is not");
    let everywhere: Api<LoadBalancer> = Api::all(guest.clone());
    assert_eq!(refusal(everywhere.list(&ListParams::default()).await).0, 403, "the binding is for one namespace");
    let pools: Api<IpPool> = Api::all(guest.clone());
    assert_eq!(refusal(pools.list(&ListParams::default()).await).0, 403);
    let elsewhere: Api<VirtualMachineInstance> = Api::namespaced(guest, "booking");
    assert_eq!(refusal(elsewhere.list(&ListParams::default()).await).0, 403);
}

#[tokio::test]
async fn machines_show_power_addresses_migration_and_agent() {
    if !available() {
        return;
    }
    let admin = host().client().await;
    let ns = "agents";
    let guest = guest_client(host(), &admin, ns).await;
    let machines = Machines::new(admin.clone());
    machines.save(&create_machine(&admin, ns, "vm-1").await.called("node-1.example.org")).await.expect("saved");
    let vms: Api<VirtualMachine> = Api::namespaced(guest.clone(), ns);
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(guest.clone(), ns);

    let ask = async || {
        let path = format!("{}/vm-1/{}", GuestOsInfo::collection_path(ns), GuestOsInfo::SUBRESOURCE);
        let request = http::Request::get(path).body(Vec::new()).expect("a request");
        guest.request::<GuestOsInfo>(request).await
    };
    // The aggregator needs a moment to find a new service reachable.
    let deadline = Instant::now() + Duration::from_secs(30);
    let info = loop {
        match ask().await {
            Ok(info) => break info,
            Err(error) => assert!(Instant::now() < deadline, "no answer after 30 s: {error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(info.hostname, "node-1.example.org");
    machines.agent(ns, "vm-1", false).await.expect("silenced");
    let (code, text) = refusal(ask().await);
    assert!(code == 500 && text.contains("guest agent"), "{code} {text}");
    assert!(vmis.get("vm-1").await.unwrap().interface("nic-0").unwrap().addresses().next().is_none());
    machines.agent(ns, "vm-1", true).await.expect("connected");

    machines.addresses(ns, "vm-1", "nic-0", &["10.20.0.99".to_owned()]).await.expect("changed");
    let vmi = vmis.get("vm-1").await.unwrap();
    assert_eq!(vmi.interface("nic-0").unwrap().addresses().collect::<Vec<_>>(), ["10.20.0.99"]);

    machines.start_migration(ns, "vm-1", "host-2").await.expect("started");
    assert!(vmis.get("vm-1").await.unwrap().migrating());
    let moved = MigrationOutcome::Moved { region: Some("lab"), zone: Some("rack-2") };
    machines.finish_migration(ns, "vm-1", moved).await.expect("finished");
    let vmi = vmis.get("vm-1").await.unwrap();
    assert_eq!(vmi.annotation("topology.kubernetes.io/zone"), Some("rack-2"));
    assert!(!vmi.migrating());

    let (vm_uid, vmi_uid) = (vms.get("vm-1").await.unwrap().uid().map(ToOwned::to_owned), vmi.metadata.uid);
    machines.power(ns, "vm-1", false).await.expect("switched off");
    assert!(vmis.get_opt("vm-1").await.unwrap().is_none());
    assert!(!vms.get("vm-1").await.unwrap().status.created);
    machines.power(ns, "vm-1", true).await.expect("switched on");
    assert_eq!(vms.get("vm-1").await.unwrap().uid(), vm_uid.as_deref(), "the VM is the stable identity");
    assert_ne!(vmis.get("vm-1").await.unwrap().metadata.uid, vmi_uid, "the instance is new");
    machines.delete(ns, "vm-1", false).await.expect("deleted");
    assert!(vms.get_opt("vm-1").await.unwrap().is_none());
}

#[tokio::test]
async fn faults_can_be_switched_while_it_runs() {
    if !available() {
        return;
    }
    let admin = host().client().await;
    let ns = "faults";
    let guest = guest_client(host(), &admin, ns).await;
    let lbs: Api<LoadBalancer> = Api::namespaced(guest, ns);
    let create = async |name: &str| lbs.create(&PostParams::default(), &cluster_lb(ns, name, Ipam::Dhcp)).await;

    set_faults(host(), ns, json!({"refuseCreates": "out of order"})).await;
    let (code, text) = refusal(create("a").await);
    assert!(code == 500 && text.contains("denied the request: Internal error occurred: out of order"), "{code} {text}");

    set_faults(host(), ns, json!({"webhookOutage": true})).await;
    let (code, text) = refusal(create("a").await);
    assert!(code == 500 && text.contains("failed calling webhook"), "{code} {text}");

    set_faults(host(), ns, json!({"neverReady": "the moon is full"})).await;
    create("a").await.expect("created");
    let told = |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.not_ready_message() == Some("the moon is full"));
    until(&lbs, "a", "told", told).await;
    set_faults(host(), ns, json!({"allocationDelayMs": 500})).await;
    let ready =
        |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.usable_address().is_some() && lb.has_host_finalizer());
    until(&lbs, "a", "ready", ready).await;
    let start = Instant::now();
    create("b").await.expect("created");
    until(&lbs, "b", "ready", ready).await;
    assert!(start.elapsed() >= Duration::from_millis(500), "after {:?}", start.elapsed());

    set_faults(host(), ns, json!({"conflicts": 1})).await;
    let mut b = lbs.get("b").await.unwrap();
    b.annotations_mut().insert("x".to_owned(), "y".to_owned());
    assert_eq!(refusal(lbs.replace("b", &PostParams::default(), &b).await).0, 409);
    let mut b = lbs.get("b").await.unwrap();
    b.annotations_mut().insert("x".to_owned(), "y".to_owned());
    lbs.replace("b", &PostParams::default(), &b).await.expect("one conflict only");

    let answer = control(host(), "PUT", "/faults/faults", r#"{"typo": 1}"#).await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("typo"), "{answer}");
}

#[tokio::test]
async fn a_lost_booking_is_repaired_with_the_same_address() {
    if !available() {
        return;
    }
    let client = host().client().await;
    let ns = "repair";
    create_machine(&client, ns, "repair-vm").await;
    create_pool(&client, ns, 4, 19).await;
    let lbs: Api<LoadBalancer> = Api::namespaced(client.clone(), ns);
    let ready =
        |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.usable_address().is_some() && lb.has_host_finalizer());
    for name in ["a", "b"] {
        lbs.create(&PostParams::default(), &cluster_lb(ns, name, Ipam::Pool)).await.expect("created");
        until(&lbs, name, "ready", ready).await;
    }
    let answer = control(host(), "POST", "/lose-booking/repair/a", "").await;
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    assert_eq!(until(&lbs, "a", "ready", ready).await.unwrap().usable_address(), Some("10.77.4.10"));
}

#[tokio::test]
async fn an_address_that_leaked_can_be_released_by_hand() {
    if !available() {
        return;
    }
    let client = host().client().await;
    let ns = "byhand";
    create_machine(&client, ns, "byhand-vm").await;
    create_pool(&client, ns, 5, 19).await;
    let lbs: Api<LoadBalancer> = Api::namespaced(client.clone(), ns);
    let pools: Api<IpPool> = Api::all(client.clone());
    let ready =
        |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.usable_address().is_some() && lb.has_host_finalizer());
    let mut without_ipam = cluster_lb(ns, "leaky", Ipam::Pool);
    without_ipam.spec.ipam = None;
    lbs.create(&PostParams::default(), &without_ipam).await.expect("created");
    until(&lbs, "leaky", "ready", ready).await;

    let by_hand = async || {
        let release =
            json!({"metadata": {"annotations": {loadbalancer::MANUALLY_RELEASE_IP: "10.77.5.10: byhand/leaky"}}});
        pools.patch(ns, &PatchParams::default(), &Patch::Merge(&release)).await.expect("annotated");
        let tidy = |pool: Option<&IpPool>| {
            pool.is_some_and(|pool| !pool.annotations().contains_key(loadbalancer::MANUALLY_RELEASE_IP))
        };
        until(&pools, ns, "tidied", tidy).await.unwrap().status.unwrap()
    };
    assert!(by_hand().await.allocated.contains_key("10.77.5.10"), "the load balancer still exists");
    lbs.delete("leaky", &DeleteParams::default()).await.expect("deleted");
    until(&lbs, "leaky", "gone", |lb| lb.is_none()).await;
    let books = pools.get(ns).await.unwrap().status.unwrap();
    assert!(books.allocated.contains_key("10.77.5.10"), "without an explicit ipam the address leaks");
    let books = by_hand().await;
    assert!(books.allocated.is_empty() && books.available == 10);
    pools.delete(ns, &DeleteParams::default()).await.expect("an empty pool may go");
    until(&pools, ns, "gone", |pool| pool.is_none()).await;
}

#[tokio::test]
async fn tearing_down_a_guest_cluster_takes_its_load_balancers_and_refuses_new_ones() {
    if !available() {
        return;
    }
    let client = host().client().await;
    let ns = "teardown";
    create_machine(&client, ns, "vm-1").await;
    create_machine(&client, ns, "vm-2").await;
    let vms: Api<VirtualMachine> = Api::namespaced(client.clone(), ns);
    for name in ["vm-1", "vm-2"] {
        let guarded = |vm: Option<&VirtualMachine>| vm.is_some_and(|vm| vm.finalizers().iter().any(|f| f == FINALIZER));
        until(&vms, name, "guarded by a finalizer", guarded).await;
    }
    let lbs: Api<LoadBalancer> = Api::namespaced(client.clone(), ns);
    let ready = |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.ready() && lb.has_host_finalizer());
    for (name, cluster) in [("ours", "demo"), ("theirs", "other")] {
        let mut lb = cluster_lb(ns, name, Ipam::Dhcp);
        lb.labels_mut().insert(cloudprovider::CLUSTER.to_owned(), cluster.to_owned());
        lbs.create(&PostParams::default(), &lb).await.expect("created");
        until(&lbs, name, "ready", ready).await;
    }
    let mark = json!({"metadata": {"annotations": {harvester::REMOVE_ALL_VOLUMES: "true"}}});
    vms.patch("vm-2", &PatchParams::default(), &Patch::Merge(&mark)).await.expect("marked");
    let (code, text) = refusal(lbs.create(&PostParams::default(), &cluster_lb(ns, "late", Ipam::Dhcp)).await);
    assert!(code == 500 && text.contains("shows guest cluster demo is being removed"), "{code} {text}");

    Machines::new(client.clone()).delete(ns, "vm-1", true).await.expect("deleted");
    until(&lbs, "ours", "gone", |lb| lb.is_none()).await;
    assert!(lbs.get_opt("theirs").await.unwrap().is_some());
}

#[tokio::test]
async fn every_kind_is_served_as_the_host_serves_it() {
    if !available() {
        return;
    }
    let client = host().client().await;
    let nads = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition"),
        "network-attachment-definitions",
    );
    let nads: Api<DynamicObject> = Api::namespaced_with(client.clone(), "booking", &nads);
    assert_eq!(nads.get("mgmt").await.unwrap().labels().get(harvester::VLAN_ID).map(String::as_str), Some("100"));
    let lb = json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": "listeners", "namespace": "pace"},
        "spec": {"workloadType": "vm", "ipam": "dhcp", "listeners": [{"name": "a", "port": 80, "backendPort": 8080}],
                 "healthCheck": {"port": 8080}}});
    let lbs: Api<LoadBalancer> = Api::namespaced(client, "pace");
    let (_, text) =
        refusal(lbs.create(&PostParams::default(), &serde_json::from_value(lb.clone()).unwrap()).await.map(drop).and(
            // The mutator fills the thresholds in, so this one is accepted; the next has a port that nobody listens on.
            {
                let mut bad = lb;
                bad["metadata"]["name"] = json!("bad");
                bad["spec"]["healthCheck"]["port"] = json!(9);
                lbs.create(&PostParams::default(), &serde_json::from_value(bad).unwrap()).await
            },
        ));
    assert!(text.contains("healthcheck port 9 is not in listener backend port list"), "{text}");
    let stored = lbs.get("listeners").await.unwrap();
    assert_eq!(stored.spec.other["listeners"][0]["protocol"], "TCP", "the default of the deployed schema");
    assert_eq!(
        stored.spec.other["healthCheck"],
        json!({"port": 8080, "successThreshold": 2, "failureThreshold": 2, "periodSeconds": 1, "timeoutSeconds": 1})
    );
}

/// host-throughput.md 5.7, the deterministic check values for thirty load balancers.
#[tokio::test]
async fn the_profile_of_a_real_host_has_its_pace() {
    const COUNT: usize = 30;
    if !available() {
        return;
    }
    let client = real_host().client().await;
    let ns = "pace";
    create_machine(&client, ns, "pace-vm").await;
    create_pool(&client, ns, 4, 99).await;
    let lbs: Api<LoadBalancer> = Api::namespaced(client.clone(), ns);
    let list = async || lbs.list(&ListParams::default()).await.expect("a list").items;
    let ready = async |count: usize| {
        while list().await.iter().filter(|lb| lb.usable_address().is_some()).count() < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let gone = async || {
        while !list().await.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let near = |what: &str, begin: Instant, expected: f64| {
        let took = begin.elapsed().as_secs_f64();
        assert!((took - expected).abs() < expected * 0.1, "{what}: {took:.1} s, the real host takes {expected} s");
    };
    // The bucket is full again after two seconds.
    let rest = || tokio::time::sleep(Duration::from_secs(3));

    rest().await;
    let begin = Instant::now();
    for n in 0..COUNT {
        let mut lb = cluster_lb(ns, &format!("one-{n}"), Ipam::Pool);
        lb.metadata.finalizers = Some(vec![harvester::LB_FINALIZER.to_owned()]);
        lbs.create(&PostParams::default(), &lb).await.expect("created");
        ready(n + 1).await;
    }
    near("one at a time with the finalizer", begin, 10.0);

    rest().await;
    let begin = Instant::now();
    for n in 0..COUNT {
        lbs.delete(&format!("one-{n}"), &DeleteParams::default()).await.expect("deleted");
    }
    gone().await;
    near("all deleted at once", begin, 15.6);

    rest().await;
    let begin = Instant::now();
    for n in 0..COUNT {
        let lb = cluster_lb(ns, &format!("dhcp-{n}"), Ipam::Dhcp);
        lbs.create(&PostParams::default(), &lb).await.expect("created");
    }
    ready(COUNT).await;
    near("all at once with DHCP", begin, 9.6);
}
