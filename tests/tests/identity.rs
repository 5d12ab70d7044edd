//! Who the cluster is and whose Harvester it talks to, on real API servers: a copy of the cluster serves none of the original's addresses
//! and writes nothing; nothing is written with a wrong file, nor to what it names.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use e2e::watch::let_it_happen;
use e2e::{Bed, Beds, NodeSketch, PATIENCE, VM_NAMESPACE, service, wait_for};
use harvester_api::cloud_config::{self, CloudConfig};
use harvester_api::load_balancer::LoadBalancer;
use harvester_sim::serve::tls::{Authority, serve};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use testbed::Task;
use testbed::addresses::HARVESTER;
use tokio::sync::MutexGuard;

// What a copy leaves is no place for another test.
static WRONG: Beds = Beds::new();
static COPY: Beds = Beds::new();

/// Where the other Harvester's API listens.
const OTHER_PORT: u16 = 6999;

/// One node, a controller of its own, no announcers.
async fn alone(beds: &'static Beds) -> (MutexGuard<'static, ()>, Arc<Bed>) {
    let builder = Bed::builder().nodes(1).without_announcers().ccm_arg("--node-monitor-period=1s");
    beds.alone(|| builder.start()).await.unwrap()
}

async fn record(bed: &Bed) -> BTreeMap<String, String> {
    let maps: Api<ConfigMap> = Api::namespaced(bed.client().await.unwrap(), "kube-system");
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

/// Another Harvester with the same namespace and a machine of its own. It counts what is written to it.
fn other_harvester(bed: &Bed, authority: &Authority, writes: &Arc<AtomicUsize>) -> Task {
    let acceptor = authority.acceptor(&[HARVESTER.to_string()]).unwrap();
    let writes = Arc::clone(writes);
    let listening = move || async move {
        let list = |items: serde_json::Value| json!({"metadata": {"resourceVersion": "1"}, "items": items});
        let answer = move |method: Method, uri: Uri| {
            let writes = Arc::clone(&writes);
            async move {
                if method != Method::GET {
                    writes.fetch_add(1, Ordering::Relaxed);
                }
                if uri.query().is_some_and(|query| query.contains("watch")) {
                    tokio::time::sleep(Duration::from_mins(2)).await;
                }
                let machine = json!({"metadata": {"name": "other", "namespace": VM_NAMESPACE, "uid": "other", "resourceVersion": "1"},
                    "spec": {}, "status": {"printableStatus": "Running"}});
                let machines = uri.path().ends_with("/virtualmachines");
                (StatusCode::OK, axum::Json(list(if machines { json!([machine]) } else { json!([]) })))
            }
        };
        let listener = tokio::net::TcpListener::bind((HARVESTER, OTHER_PORT)).await.expect("the port is free");
        let _ = serve(listener, acceptor, Router::new().fallback(answer)).await;
    };
    bed.harvester.namespace().task("other harvester", listening).unwrap()
}

fn cloud_config_of_the_other(bed: &Bed, authority: &Authority) -> String {
    let right = CloudConfig::parse(bed.fresh_cloud_config().unwrap().as_bytes()).unwrap();
    let server = format!("https://{HARVESTER}:{OTHER_PORT}");
    cloud_config::render(&server, &authority.certificate_pem, &right.namespace, "a-token")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_file_is_not_used_nor_anything_written_and_the_right_one_is_within_five_seconds() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone(&WRONG).await;
    let case = bed.case("wrong").await.unwrap();
    let web = case.create(service("web").tcp(80)).await.unwrap();
    let address = web.published().await.unwrap();
    wait_for_record(&bed, "a card with the machine", |data| {
        data.get("identity").is_some_and(|card| !card.contains("\"machines\":[]"))
    })
    .await;
    let_it_happen(2).await;
    let (before, writes) = (versions(&bed).await, Arc::new(AtomicUsize::new(0)));
    let authority = Authority::new().unwrap();
    let _other = other_harvester(&bed, &authority, &writes);
    let right = bed.fresh_cloud_config().unwrap();

    // While it runs: the one before stays in use.
    bed.write_cloud_config(&cloud_config_of_the_other(&bed, &authority)).unwrap();
    let about = ("kube-system", "Lease", e2e::host::CCM_LEASE);
    let told =
        bed.wait_for_event(about.0, about.1, about.2, "CloudConfigInvalid", "none of this cluster's").await.unwrap();
    assert!(told.message.contains("identity confirm"), "{}", told.message);
    let_it_happen(5).await;
    assert_eq!((versions(&bed).await, writes.load(Ordering::Relaxed)), (before.clone(), 0));
    let during = case.create(service("during").tcp(80)).await.unwrap();
    during.published().await.unwrap();
    during.delete().await.unwrap();
    during.wait_until_gone().await.unwrap();

    // At a start there is none before.
    bed.ccm().stop().unwrap();
    bed.set_ready("node1", false).await.unwrap();
    let before = versions(&bed).await;
    bed.ccm().start().unwrap();
    wait_for_record(&bed, "safe mode", |data| {
        data.get("safe-mode").is_some_and(|text| text.starts_with("WrongHarvester: "))
    })
    .await;
    let waiting = case.create(service("waiting").tcp(80)).await.unwrap();
    let mut before = before;
    before.insert("service waiting".into(), waiting.get().await.unwrap().resource_version().unwrap());
    let_it_happen(15).await;
    assert_eq!((versions(&bed).await, writes.load(Ordering::Relaxed)), (before, 0), "nothing is written anywhere");
    assert!(bed.node("node1").await.unwrap().is_some(), "no Node is deleted");

    bed.set_ready("node1", true).await.unwrap();
    bed.write_cloud_config(&right).unwrap();
    let since = Instant::now();
    waiting.published().await.unwrap();
    let took = since.elapsed();
    eprintln!("served {} ms after the right file was there", took.as_millis());
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!(web.published().await.unwrap(), address);
    wait_for_record(&bed, "the end of safe mode", |data| !data.contains_key("safe-mode")).await;
    waiting.delete().await.unwrap();
    web.delete().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_serves_none_of_the_originals_addresses_until_it_has_a_name_of_its_own() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone(&COPY).await;
    let case = bed.case("copy").await.unwrap();
    let names = ["one", "two", "three"];
    let mut addresses = Vec::new();
    for name in names {
        let web = case.create(service(name).tcp(80)).await.unwrap();
        addresses.push(web.published().await.unwrap());
    }
    wait_for_record(&bed, "a card with the machine", |data| {
        data.get("identity").is_some_and(|card| !card.contains("\"machines\":[]"))
    })
    .await;
    let_it_happen(2).await;

    // What a snapshot restores, on a new machine: the same objects, and a Node that the record does not know. The original's controller
    // does not run beside it, because both would have one API server here.
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
    let maps: Api<ConfigMap> = Api::namespaced(bed.client().await.unwrap(), "kube-system");
    let word = json!({"metadata": {"annotations": {"cloudprovider.harvesterhci.io/identity": "copy copied"}}});
    maps.patch("harvester-cloud-provider", &PatchParams::default(), &Patch::Merge(&word)).await.unwrap();
    let own = Mutex::new(Vec::new());
    for (name, former) in names.iter().zip(&addresses) {
        let web = case.named(name);
        wait_for(&format!("an address of its own for {name}"), PATIENCE, || async {
            let shown = web.published().await.map_err(|error| format!("{error:#}"))?;
            if shown == *former {
                return Err(shown);
            }
            own.lock().unwrap().push(shown);
            Ok(())
        })
        .await
        .unwrap();
    }
    let own = own.into_inner().unwrap();
    assert!(own.iter().all(|address| !addresses.contains(address)), "{own:?}, the original has {addresses:?}");
    let after = versions(&bed).await;
    for (lb, version) in before.iter().filter(|(key, _)| key.starts_with("lb ")) {
        assert_eq!(after.get(lb), Some(version), "{lb} of the original is left alone");
    }
}
