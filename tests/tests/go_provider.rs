//! From the Go provider to ours and back, while clients ask every 10 ms: what it leaves on both sides is taken over as
//! it stands, and nothing is written while it leads. It is played by what others see of it: the Lease that it renews,
//! and the objects as it writes them (recorded on a real Harvester, see `golden.rs`). The announcers run all the time.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use e2e::case::seen;
use e2e::host::CCM_LEASE;
use e2e::watch::let_it_happen;
use e2e::wire::Renewal;
use e2e::{Bed, CLUSTER, Case, Costs, Exposed, Mark, PATIENCE, ServiceSpec, VM_NAMESPACE, service, wait_for, watch};
use harvester_api::keys::{cloudprovider, kube_vip};
use harvester_api::load_balancer::LoadBalancer;
use harvester_api::names::ClusterName;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use testbed::{Probe, Traffic};

const THEIRS: &str = "server-0_5b1f6a3e";
const LEASE: Duration = Duration::from_secs(15);
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// Makes a Service and does with it what the Go provider does, in its order. It is announced and answers when this
/// returns.
async fn exposed_by_go<'a>(case: &'a Case<'_>, spec: ServiceSpec, ipam: &str) -> (Exposed<'a>, IpAddr) {
    let web = case.expose(spec).await.unwrap();
    let uid = web.get().await.unwrap().uid().unwrap();
    web.patch(json!({"metadata": {"finalizers": [FINALIZER]}})).await.unwrap();
    let (cluster, _) = ClusterName::normalise(CLUSTER);
    let name = cluster.load_balancer_name(case.namespace(), web.name(), &uid);
    let object: LoadBalancer = serde_json::from_value(json!({
        "metadata": {
            "name": name, "namespace": VM_NAMESPACE,
            "annotations": {
                "cloudprovider.harvesterhci.io/lb-network": "",
                "loadbalancer.harvesterhci.io/cluster": CLUSTER,
                "loadbalancer.harvesterhci.io/namespace": "",
                "loadbalancer.harvesterhci.io/network": "",
                "loadbalancer.harvesterhci.io/project": "",
            },
            "labels": {
                "cloudprovider.harvesterhci.io/cluster": CLUSTER,
                "cloudprovider.harvesterhci.io/serviceName": web.name(),
                "cloudprovider.harvesterhci.io/serviceNamespace": case.namespace(),
            },
        },
        "spec": {"ipam": ipam, "workloadType": "cluster"},
        "status": {"allocatedAddress": {}},
    }))
    .unwrap();
    let objects: Api<LoadBalancer> = Api::namespaced(case.bed().harvester_client().await.unwrap(), VM_NAMESPACE);
    objects.create(&PostParams::default(), &object).await.unwrap();
    let allocated = web
        .wait_for_load_balancer("to be booked", |lb| match lb.allocated_ip() {
            Some(ip) if lb.ready() => Ok(ip.to_owned()),
            _ => Err(format!("{:?}", lb.status)),
        })
        .await
        .unwrap();
    web.annotate(kube_vip::LOADBALANCER_IPS, Some(&allocated)).await.unwrap();
    let address = web.address().await.unwrap();
    let mailbox = Patch::Merge(json!({"status": {"address": address.to_string()}}));
    objects.patch(&name, &PatchParams::default(), &mailbox).await.unwrap();
    web.reply(address, 80).await.unwrap();
    web.wait_for("the announcing node", |service| {
        service.annotations().get(kube_vip::VIP_HOST).map(drop).ok_or_else(|| seen(service))
    })
    .await
    .unwrap();
    (web, address)
}

/// Nodes as the Go provider leaves them, and the mapping of networks beside them: ours writes the same (`golden.rs`),
/// and what only ours writes is taken away again.
async fn nodes_are_initialised_by_go(bed: &Bed) {
    bed.ccm().start().unwrap();
    bed.wait_until_initialized().await.unwrap();
    let client = bed.client().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    wait_for("the mapping of networks", PATIENCE, || async {
        let map = maps.get_opt("harvester-nad-mapping").await.map_err(|error| error.to_string())?;
        let known = map.and_then(|map| map.data).is_some_and(|data| !data["interface-nad-mapping"].is_empty());
        if known { Ok(()) } else { Err("there is none".to_owned()) }
    })
    .await
    .unwrap();
    bed.ccm().stop().unwrap();
    if maps.get_opt("harvester-cloud-provider").await.unwrap().is_some() {
        maps.delete("harvester-cloud-provider", &DeleteParams::default()).await.unwrap();
    }
    let nodes: Api<Node> = Api::all(client);
    let without = Patch::Merge(json!({"metadata": {"labels": {cloudprovider::HOST: null}}}));
    for n in 1..=2 {
        nodes.patch(bed.lan.host(n).name(), &PatchParams::default(), &without).await.unwrap();
    }
}

/// The objects of these Services, whole, on both sides, and what the cloud controller manager has told of them.
async fn state(services: &[(Exposed<'_>, IpAddr)]) -> Vec<String> {
    let mut versions = Vec::new();
    for (service, _) in services {
        let lb = service.load_balancer().await.unwrap().unwrap();
        // Whether it is served is the one thing that is added.
        let mut object = service.get().await.unwrap();
        (object.metadata.resource_version, object.metadata.managed_fields) = (None, None);
        object.status.as_mut().unwrap().conditions = None;
        versions.push(format!("{service} {object:?}"));
        versions.push(format!("{} {:?}", lb.name_any(), lb.resource_version()));
        let told = service.events().await.unwrap();
        let told = told.into_iter().filter(|event| event.component == "service-controller");
        versions.extend(told.map(|event| format!("{event:?}")));
    }
    versions
}

fn ask_all(bed: &Bed, services: &[(Exposed<'_>, IpAddr)]) -> Vec<Probe> {
    let probes = services.iter().map(|(_, address)| watch::ask(bed, Traffic::http((*address, 80).into())).unwrap());
    probes.collect()
}

/// What our cloud controller manager has written since `mark`, without Events about its Lease.
fn written_by_ccm(bed: &Bed, mark: Mark) -> Costs {
    let mut costs = bed.costs(mark).unwrap();
    costs.announcer.clear();
    costs.announcer_events.clear();
    costs.ccm_events.retain(|request| request.namespace.as_deref() != Some("kube-system"));
    costs
}

/// What `plan` says, with the flags of our controller, without what comes again and again (the mapping of networks and
/// Nodes' labels).
fn plan(bed: &Bed) -> Vec<String> {
    let output = bed.ccm().run_beside("plan", &["-o", "json"]).unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&all["clusterName"], &all["held"]), (&json!(CLUSTER), &serde_json::Value::Null));
    let writes = all["writes"].as_array().unwrap().iter();
    writes.map(|write| format!("{} {}", write["kind"].as_str().unwrap(), write["name"].as_str().unwrap())).collect()
}

async fn they_lead(bed: &Arc<Bed>) -> Renewal {
    Renewal::of(bed, CCM_LEASE, THEIRS, LEASE).await.unwrap()
}

async fn they_give_the_lease_up(bed: &Bed, theirs: Renewal) {
    theirs.end().await.unwrap();
    bed.hold_lease(CCM_LEASE, "", Duration::from_secs(1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_go_provider_left_is_taken_over_without_a_write_and_left_alone_when_it_is_back() {
    if e2e::skip() {
        return;
    }
    let bed = Arc::new(Bed::builder().not_started().start().await.unwrap());
    nodes_are_initialised_by_go(&bed).await;
    let theirs = they_lead(&bed).await;
    for n in 1..=2 {
        bed.announcer(n).start().unwrap();
        bed.wait_until_announcing(n).await.unwrap();
    }
    let case = bed.case("go").await.unwrap();
    let services = [
        exposed_by_go(&case, service("pooled").tcp(80), "pool").await,
        exposed_by_go(&case, service("leased").ipam("dhcp").tcp(80), "dhcp").await,
    ];
    let_it_happen(3).await;
    let before = state(&services).await;
    let probes = ask_all(&bed, &services);

    // Beside it: ours is up and waits. It writes nothing, whatever is asked for.
    let mark = bed.mark();
    bed.ccm().start().unwrap();
    let new = case.expose(service("new").tcp(80)).await.unwrap();
    let_it_happen(8).await;
    bed.ccm().check().unwrap();
    let planned = plan(&bed);
    let costs = written_by_ccm(&bed, mark);
    assert_eq!(costs.total(), 0, "beside a Go provider that leads, and asked what it would write\n{costs}");
    eprintln!("planned: {planned:?}");
    let of = |kind: &str| planned.iter().filter(|target| target.starts_with(kind)).cloned().collect::<Vec<_>>();
    // The others get the condition that they are served.
    assert_eq!(of("Service "), ["Service leased", "Service new", "Service pooled"], "{planned:?}");
    let [made] = of("LoadBalancer ").try_into().unwrap();
    assert!(made.contains("new"), "{planned:?}");
    assert!(planned.contains(&"ConfigMap harvester-cloud-provider".to_owned()), "{planned:?}");
    assert_eq!(bed.ccm_lease().await.unwrap().0, THEIRS);

    // Forward: it gives the Lease up. The new Service shows that ours is at work, and the objects that it finds stay as
    // they are.
    let mark = bed.mark();
    they_give_the_lease_up(&bed, theirs).await;
    let third = new.settled().await.unwrap();
    new.reply(third, 80).await.unwrap();
    wait_for("the name of the cluster to be remembered", PATIENCE, || async {
        let maps: Api<ConfigMap> = Api::namespaced(case.client().clone(), "kube-system");
        let map = maps.get_opt("harvester-cloud-provider").await.map_err(|error| error.to_string())?;
        let data = map.and_then(|map| map.data).unwrap_or_default();
        if data.get("cluster-name").is_some_and(|name| name == CLUSTER) { Ok(()) } else { Err(format!("{data:?}")) }
    })
    .await
    .unwrap();
    let_it_happen(5).await;
    assert_eq!(state(&services).await, before, "an object was written");
    let costs = written_by_ccm(&bed, mark);
    eprintln!("forward\n{costs}");
    // Of the new Service alone: finalizer, address and condition, object and mailbox. A POST's entry has no name. The
    // others get their condition.
    let of_the_new = |name: &Option<String>| name.as_deref().is_none_or(|name| name.contains("new"));
    let here = costs.ccm_guest.iter().filter(|request| request.namespace.as_deref() == Some(case.namespace()));
    let (of_new, others): (Vec<_>, Vec<_>) = here.into_iter().partition(|request| of_the_new(&request.name));
    assert!(of_new.len() <= 3 && others.len() == services.len(), "{costs}");
    assert!(costs.ccm_harvester.iter().all(|request| of_the_new(&request.name)), "{costs}");
    assert!(!costs.ccm_harvester.is_empty(), "the test counts something\n{costs}");

    // Back: ours ends, the Go provider is there again, and one of ours that is still about writes nothing.
    assert_eq!(bed.ccm().stop().unwrap().code(), Some(0));
    let theirs = they_lead(&bed).await;
    let mark = bed.mark();
    bed.ccm().start().unwrap();
    let late = case.create(service("late").tcp(80)).await.unwrap();
    new.patch(json!({"spec": {"ports": [{"name": "other", "port": 81, "targetPort": 8080}]}})).await.unwrap();
    let_it_happen(8).await;
    bed.ccm().check().unwrap();
    let costs = written_by_ccm(&bed, mark);
    assert_eq!(costs.total(), 0, "the Go provider is back\n{costs}");
    assert_eq!(bed.ccm_lease().await.unwrap().0, THEIRS);
    assert!(late.get().await.unwrap().finalizers().is_empty() && late.load_balancer().await.unwrap().is_none());
    watch::nothing_was_lost("there and back", probes).unwrap();
    for (service, address) in &services {
        service.wait_for_addresses(&[*address]).await.unwrap();
        assert_eq!(service.get().await.unwrap().finalizers(), [FINALIZER]);
    }
    assert_eq!(state(&services).await, before, "the Go provider finds what it left");

    // Ours leads once more, and somebody takes the Lease from it: it ends, and what comes after is not its business.
    they_give_the_lease_up(&bed, theirs).await;
    let address = late.address().await.unwrap();
    late.wait_for_load_balancer("the address in its mailbox", |lb| match lb.address() {
        Some(mailbox) if mailbox == address.to_string() => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap();
    let theirs = they_lead(&bed).await;
    bed.ccm().wait(PATIENCE).unwrap().expect("who has lost the Lease ends");
    let mark = bed.mark();
    bed.ccm().start().unwrap();
    late.delete().await.unwrap();
    let_it_happen(8).await;
    let costs = written_by_ccm(&bed, mark);
    assert_eq!(costs.total(), 0, "after the Lease was taken\n{costs}");
    assert!(late.load_balancer().await.unwrap().is_some(), "the Go provider's to delete");
    theirs.end().await.unwrap();
}
