//! Who the cluster is and whose Harvester it talks to, on real API servers: a copy of the cluster serves none of the
//! original's addresses and writes nothing; nothing is written with a wrong file, nor to what it names, nor with the
//! record of another cluster.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use e2e::churn::wait_for_identity_card;
use e2e::host::{CCM_LEASE, OtherHarvester};
use e2e::second_controller::{COPIED, SecondController};
use e2e::watch::let_it_happen;
use e2e::{Bed, Beds, CLUSTER, NodeSketch, PATIENCE, VM_NAMESPACE, service, wait_for};
use harvester_api::keys::cloudprovider;
use harvester_api::load_balancer::LoadBalancer;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

// What a copy leaves is no place for another test.
static WRONG: Beds = Beds::new();
static COPY: Beds = Beds::new();
static BESIDE: Beds = Beds::new();
static MERGED: Beds = Beds::new();

async fn record(bed: &Bed) -> BTreeMap<String, String> {
    record_of(bed.client().await.unwrap()).await
}

async fn record_of(cluster: Client) -> BTreeMap<String, String> {
    let maps: Api<ConfigMap> = Api::namespaced(cluster, "kube-system");
    let found = maps.get_opt("harvester-cloud-provider").await.unwrap();
    found.and_then(|map| map.data).unwrap_or_default()
}

async fn wait_for_record(bed: &Bed, what: &str, look: impl Fn(&BTreeMap<String, String>) -> bool) {
    wait_for(what, PATIENCE, || async {
        let data = record(bed).await;
        if look(&data) { Ok(()) } else { Err(format!("{data:?}")) }
    })
    .await
    .unwrap();
}

/// What the controller tells announcers on its Lease.
async fn doubt(cluster: Client) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(cluster, "kube-system");
    let lease = leases.get_opt(CCM_LEASE).await.unwrap()?;
    lease.annotations().get("cloudprovider.harvesterhci.io/safe-mode").cloned()
}

/// Versions of all load balancers on Harvester and all Services of the guest: what is written changes them.
async fn versions(bed: &Bed) -> BTreeMap<String, String> {
    let lbs: Api<LoadBalancer> = Api::namespaced(bed.harvester_client().await.unwrap(), VM_NAMESPACE);
    let services: Api<Service> = Api::all(bed.client().await.unwrap());
    let mut found = BTreeMap::new();
    for lb in lbs.list(&ListParams::default()).await.unwrap() {
        found.insert(format!("lb {}", lb.name_any()), lb.resource_version().unwrap());
    }
    for service in services.list(&ListParams::default()).await.unwrap() {
        found.insert(format!("service {}", service.name_any()), service.resource_version().unwrap());
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_file_is_not_used_nor_anything_written_and_the_right_one_is_within_five_seconds() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = WRONG.alone(|| Bed::one_node().start()).await.unwrap();
    let case = bed.case("wrong").await.unwrap();
    let web = case.create(service("web").tcp(80)).await.unwrap();
    let address = web.published().await.unwrap();
    bed.wait_for_identity_card().await.unwrap();
    let_it_happen(2).await;
    let (before, other) = (versions(&bed).await, OtherHarvester::start(&bed).unwrap());
    let right = bed.fresh_cloud_config().unwrap();

    // While it runs: the one before stays in use.
    bed.write_cloud_config(&other.cloud_config(&bed).unwrap()).unwrap();
    let about = ("kube-system", "Lease", CCM_LEASE);
    let told =
        bed.wait_for_event(about.0, about.1, about.2, "CloudConfigInvalid", "none of this cluster's").await.unwrap();
    assert!(told.message.contains("identity confirm"), "{}", told.message);
    let_it_happen(5).await;
    assert_eq!((versions(&bed).await, other.writes()), (before.clone(), Vec::new()));
    let during = case.create(service("during").tcp(80)).await.unwrap();
    during.published().await.unwrap();
    during.delete().await.unwrap();
    during.wait_until_gone().await.unwrap();

    // At a start there is none before.
    let (leaving, retyped) = (
        case.create(service("leaving").tcp(80)).await.unwrap(),
        case.create(service("retyped").tcp(80)).await.unwrap(),
    );
    leaving.published().await.unwrap();
    retyped.published().await.unwrap();
    bed.ccm().stop().unwrap();
    bed.set_ready("node1", false).await.unwrap();
    let before = versions(&bed).await;
    bed.ccm().start().unwrap();
    wait_for_record(&bed, "safe mode", |data| {
        data.get("safe-mode").is_some_and(|text| text.starts_with("WrongHarvester: "))
    })
    .await;
    let waiting = case.create(service("waiting").tcp(80)).await.unwrap();
    leaving.delete().await.unwrap();
    retyped.patch(json!({"spec": {"type": "ClusterIP"}})).await.unwrap();
    let mut before = before;
    for web in [&waiting, &leaving, &retyped] {
        before.insert(format!("service {}", web.name()), web.get().await.unwrap().resource_version().unwrap());
    }
    let_it_happen(10).await;
    assert_eq!((versions(&bed).await, other.writes()), (before, Vec::new()), "nothing is written anywhere");
    assert!(bed.node("node1").await.unwrap().is_some(), "no Node is deleted");

    bed.set_ready("node1", true).await.unwrap();
    bed.write_cloud_config(&right).unwrap();
    let since = Instant::now();
    waiting.published().await.unwrap();
    eprintln!("served {} ms after the right file was there", since.elapsed().as_millis());
    leaving.wait_until_gone().await.unwrap();
    retyped
        .wait_for("its end as a load balancer", |service| match service.finalizers() {
            [] => Ok(()),
            left => Err(format!("{left:?}")),
        })
        .await
        .unwrap();
    wait_for_record(&bed, "the end of safe mode", |data| !data.contains_key("safe-mode")).await;
    wait_for("the end of what announcers are told", PATIENCE, || async {
        doubt(bed.client().await.unwrap()).await.map_or(Ok(()), Err)
    })
    .await
    .unwrap();
    let took = since.elapsed();
    eprintln!("complete {} ms after the right file was there", took.as_millis());
    assert!(took < Duration::from_secs(5), "{took:?}");
    for gone in [&leaving, &retyped] {
        assert!(gone.load_balancer().await.unwrap().is_none(), "{gone}");
    }
    assert_eq!(web.published().await.unwrap(), address);
    waiting.delete().await.unwrap();
    web.delete().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_serves_none_of_the_originals_addresses_until_it_has_a_name_of_its_own() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = COPY.alone(|| Bed::one_node().start()).await.unwrap();
    let case = bed.case("copy").await.unwrap();
    let names = ["one", "two", "three"];
    let mut addresses = Vec::new();
    for name in names {
        let web = case.create(service(name).tcp(80)).await.unwrap();
        addresses.push(web.published().await.unwrap());
    }
    bed.wait_for_identity_card().await.unwrap();
    let_it_happen(2).await;

    // What a snapshot restores, on a new machine: the same objects, and a Node that the record does not know. The
    // original's controller does not run beside it, because both would have one API server here.
    bed.ccm().stop().unwrap();
    let before = versions(&bed).await;
    let mut machine = bed.machine("copied", &["192.168.100.77"]);
    machine.cluster = Some("copied".into());
    bed.machines().await.unwrap().save(&machine).await.unwrap();
    bed.register_node(&NodeSketch { uninitialized: true, ..NodeSketch::new("copied") }).await.unwrap();
    bed.ccm().set_arg("--cluster-name=copied");
    bed.ccm().set_env("NODE_NAME", "copied");
    bed.ccm().start().unwrap();
    wait_for_record(&bed, "safe mode", |data| {
        data.get("safe-mode").is_some_and(|text| text.starts_with("AnotherClusterName: "))
    })
    .await;
    bed.wait_until_node_is_initialized("copied").await.unwrap();
    let_it_happen(10).await;
    assert_eq!(versions(&bed).await, before, "the copy writes nothing");

    // A human says what it is.
    bed.ccm().exec(&["identity", "rename", "copied", "--copy"]).unwrap();
    let own = Mutex::new(Vec::new());
    for (name, former) in names.iter().zip(&addresses) {
        let web = case.named(name);
        wait_for(&format!("an address of its own for {name}"), PATIENCE, || async {
            let shown = web.published().await.map_err(|error| format!("{error:#}"))?;
            if shown == *former {
                return Err(shown);
            }
            own.lock().push(shown);
            Ok(())
        })
        .await
        .unwrap();
    }
    let own = own.into_inner();
    assert!(own.iter().all(|address| !addresses.contains(address)), "{own:?}, the original has {addresses:?}");
    let after = versions(&bed).await;
    for (lb, version) in before.iter().filter(|(key, _)| key.starts_with("lb ")) {
        assert_eq!(after.get(lb), Some(version), "{lb} of the original is left alone");
    }
}

/// Both controllers run, each with an API server of its own, on one Harvester.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_beside_its_original_leaves_it_alone_and_gets_load_balancers_of_its_own_by_a_humans_word() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = BESIDE.alone(|| Bed::one_node().start()).await.unwrap();
    let case = bed.case("beside").await.unwrap();
    let mut originals = BTreeMap::new();
    for name in ["one", "two"] {
        let web = case.create(service(name).tcp(80)).await.unwrap();
        let address = web.published().await.unwrap();
        originals.insert(name, (address, web.load_balancer().await.unwrap().unwrap().uid()));
    }
    bed.wait_for_identity_card().await.unwrap();
    let_it_happen(2).await;
    assert_eq!(doubt(bed.client().await.unwrap()).await, None);

    let second = SecondController::of_copy(&bed, true).await.unwrap();
    let copy = second.client().await.unwrap();
    wait_for("safe mode of the copy, on its record and its Lease", PATIENCE, || async {
        let (data, doubt) = (record_of(copy.clone()).await, doubt(copy.clone()).await);
        let said = data.get("safe-mode").is_some_and(|text| text.starts_with("AnotherClusterName: "));
        let told = doubt.as_deref() == Some("AnotherClusterName");
        if said && told { Ok(()) } else { Err(format!("{data:?} {doubt:?}\n{}", second.log())) }
    })
    .await
    .unwrap();
    // The original works on beside it.
    let three = case.create(service("three").tcp(80)).await.unwrap();
    three.published().await.unwrap();
    three.delete().await.unwrap();
    three.wait_until_gone().await.unwrap();
    let_it_happen(5).await;
    assert_eq!(second.writes(&bed).unwrap(), Vec::<String>::new(), "{}", second.log());
    assert_eq!(doubt(bed.client().await.unwrap()).await, None, "the original has no doubt");

    let shown = second.exec(&["identity", "rename", "copied", "--copy"]).unwrap();
    assert!(shown.contains("names       copied\n") && shown.contains("safe mode   no"), "{shown}");
    // The Nodes of the original's machines, as the page says.
    let nodes: Api<Node> = Api::all(copy.clone());
    nodes.delete("node1", &DeleteParams::default()).await.unwrap();
    let services: Api<Service> = Api::namespaced(copy.clone(), case.namespace());
    for (name, (address, _)) in &originals {
        wait_for(&format!("an address of its own for {name} of the copy"), PATIENCE, || async {
            let web = services.get(name).await.map_err(|error| error.to_string())?;
            let shown = web.annotations().get("kube-vip.io/loadbalancerIPs").cloned().unwrap_or_default();
            if shown.is_empty() || shown == *address { Err(format!("{shown}\n{}", second.log())) } else { Ok(()) }
        })
        .await
        .unwrap();
    }
    wait_for("the end of the copy's doubt with the next renewal of its Lease", PATIENCE, || async {
        doubt(copy.clone()).await.map_or(Ok(()), Err)
    })
    .await
    .unwrap();
    // What is deleted in the copy is the copy's.
    services.delete("one", &DeleteParams::default()).await.unwrap();
    wait_for("the deletion of a Service of the copy", PATIENCE, || async {
        match services.get_opt("one").await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}\n{}", second.log())),
        }
    })
    .await
    .unwrap();
    second.end();
    let lbs: Api<LoadBalancer> = Api::namespaced(bed.harvester_client().await.unwrap(), VM_NAMESPACE);
    let left = lbs.list(&ListParams::default()).await.unwrap().items;
    for (name, (address, uid)) in &originals {
        assert_eq!(case.named(name).published().await.unwrap(), *address);
        assert!(left.iter().any(|lb| lb.uid() == *uid), "the load balancer of {name} is left alone");
    }
}

/// UIDs of the load balancers of a cluster, by name of the Service.
async fn load_balancers_of(bed: &Bed, cluster: &str) -> BTreeMap<String, String> {
    let lbs: Api<LoadBalancer> = Api::namespaced(bed.harvester_client().await.unwrap(), VM_NAMESPACE);
    let of_cluster = ListParams::default().labels(&format!("{}={cluster}", cloudprovider::CLUSTER));
    let found = lbs.list(&of_cluster).await.unwrap().items.into_iter().map(|lb| {
        let service = lb.labels().get(cloudprovider::SERVICE_NAME).cloned().unwrap_or_default();
        (service, lb.uid().unwrap_or_default())
    });
    found.collect()
}

/// GitOps or a backup tool applies the record of one cluster in another one. Both have machines in one namespace of one
/// Harvester, where the load balancers of the first one are within reach of the second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_gets_the_record_of_another_does_not_act_as_that_one_and_keeps_its_own_by_a_humans_word() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = MERGED.alone(|| Bed::one_node().start()).await.unwrap();
    let case = bed.case("merged").await.unwrap();
    let web = case.create(service("web").tcp(80)).await.unwrap();
    let address = web.published().await.unwrap();
    bed.wait_for_identity_card().await.unwrap();
    let second = SecondController::of_another(&bed).await.unwrap();
    second.create(service("web").tcp(80)).await.unwrap();
    let second_address = second.published("web").await.unwrap();
    assert_ne!(second_address, address);
    let client = second.client().await.unwrap();
    wait_for_identity_card(&client).await.unwrap();
    let_it_happen(2).await;
    let (first_record, second_record) = (record(&bed).await, record_of(client.clone()).await);
    assert_ne!(first_record["identity"], second_record["identity"]);
    let (first, of_second) = (load_balancers_of(&bed, CLUSTER).await, load_balancers_of(&bed, COPIED).await);
    assert_eq!((first.len(), of_second.len()), (1, 1), "each has one of its own");
    let (before, written) = (versions(&bed).await, second.writes(&bed).unwrap());

    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let copied = Patch::Merge(json!({"data": &first_record}));
    maps.patch("harvester-cloud-provider", &PatchParams::default(), &copied).await.unwrap();
    wait_for("safe mode of the second cluster, on its record and its Lease", PATIENCE, || async {
        let (data, doubt) = (record_of(client.clone()).await, doubt(client.clone()).await);
        let text = data.get("safe-mode").cloned().unwrap_or_default();
        let said = text.starts_with("RecordOfAnotherCluster: ") && text.contains("`harvester-cloud-provider identity");
        let told = doubt.as_deref() == Some("RecordOfAnotherCluster");
        if said && told { Ok(()) } else { Err(format!("{data:?} {doubt:?}\n{}", second.log())) }
    })
    .await
    .unwrap();
    // One that starts with this record knows no other name of its cluster.
    second.create(service("late").tcp(80)).await.unwrap();
    let_it_happen(5).await;
    second.restart().unwrap();
    let_it_happen(10).await;
    assert_eq!(second.writes(&bed).unwrap(), written, "{}", second.log());
    assert_eq!(versions(&bed).await, before, "nothing of the first cluster's is written, nor on Harvester");
    assert_eq!(doubt(bed.client().await.unwrap()).await, None, "the first cluster has no doubt");
    let three = case.create(service("three").tcp(80)).await.unwrap();
    three.published().await.unwrap();
    three.delete().await.unwrap();
    three.wait_until_gone().await.unwrap();

    // The command that the Event names, with the name that the flag has.
    let text = record_of(client.clone()).await["safe-mode"].clone();
    assert!(text.contains("`harvester-cloud-provider identity rename copied --copy`"), "{text}");
    let shown = second.exec(&["identity", "rename", COPIED, "--copy"]).unwrap();
    assert!(shown.contains("names       copied\n") && shown.contains("safe mode   no"), "{shown}");
    second.published("late").await.unwrap();
    assert_eq!(second.published("web").await.unwrap(), second_address, "what was its own is its own again");
    let now = load_balancers_of(&bed, COPIED).await;
    assert_eq!((now.len(), &now["web"]), (2, &of_second["web"]));
    wait_for("the record of the second cluster as it was", PATIENCE, || async {
        let data = record_of(client.clone()).await;
        if data == second_record { Ok(()) } else { Err(format!("{data:?}, and it was {second_record:?}")) }
    })
    .await
    .unwrap();
    second.end();
    assert_eq!(web.published().await.unwrap(), address);
    assert_eq!((load_balancers_of(&bed, CLUSTER).await, record(&bed).await), (first, first_record));
}
