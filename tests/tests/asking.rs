//! What a Service may ask for, what it tells while it cannot have it, and who the cluster is, on real API servers.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use e2e::{Bed, Exposed, PATIENCE, Shared, service, wait_for};
use harvester_api::keys::cloudprovider;
use harvester_api::load_balancer::LoadBalancer;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

static BED: Shared<Bed> = Shared::new();

async fn bed() -> Arc<Bed> {
    BED.get(|| Bed::builder().nodes(1).network("guests/other", "eth0").network("guests/late", "eth0").start())
        .await
        .unwrap()
}

fn on_lan(last: u8) -> IpAddr {
    Ipv4Addr::new(192, 168, 100, last).into()
}

/// `status.conditions`, ours, as `status reason`.
async fn wait_for_condition(web: &Exposed<'_>, expected: &str) {
    web.wait_for(&format!("condition {expected}"), |service| {
        let conditions = service.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        let ours = conditions.iter().find(|condition| condition.type_ == "LoadBalancerReady");
        let found = ours.map(|condition| format!("{} {}", condition.status, condition.reason)).unwrap_or_default();
        if found == expected { Ok(()) } else { Err(format!("the condition is {found:?}")) }
    })
    .await
    .unwrap();
}

/// Names of the LoadBalancer objects of this Service.
async fn objects(bed: &Bed, web: &Exposed<'_>) -> Vec<String> {
    let lbs: Api<LoadBalancer> = Api::namespaced(bed.harvester_client().await.unwrap(), e2e::VM_NAMESPACE);
    let (namespace, name) = web.to_string().split_once('/').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let labels = format!("{}={namespace},{}={name}", cloudprovider::SERVICE_NAMESPACE, cloudprovider::SERVICE_NAME);
    let found = lbs.list(&ListParams::default().labels(&labels)).await.unwrap();
    found.items.iter().map(ResourceExt::name_any).collect()
}

#[tokio::test]
async fn an_address_moves_to_another_pool_and_the_old_one_is_given_back() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("move").await.unwrap();
    bed.set_pool("other", "guests/other", 170..=172).await.unwrap();
    let web = case.expose(service("web").tcp(80)).await.unwrap();
    let old = web.settled().await.unwrap();
    let before = objects(&bed, &web).await;
    web.annotate(cloudprovider::IP_POOL, Some("other")).await.unwrap();
    web.wait_for_addresses(&[on_lan(170)]).await.unwrap();
    web.reply(on_lan(170), 80).await.unwrap();
    wait_for("the old object to go", PATIENCE, || async {
        let now = objects(&bed, &web).await;
        if now.len() == 1 && now != before { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await
    .unwrap();
    assert_ne!(old, on_lan(170));
    web.delete().await.unwrap();
    web.wait_until_gone().await.unwrap();
    assert_eq!(objects(&bed, &web).await, Vec::<String>::new());
    assert_eq!(bed.bookings("other").await.unwrap(), []);
}

#[tokio::test]
async fn a_static_address_is_served_and_its_service_leaves_nothing() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("static").await.unwrap();
    let spec = service("web").ipam("static").annotation(cloudprovider::IP, "192.168.100.180").tcp(80);
    let web = case.expose(spec).await.unwrap();
    assert_eq!(web.settled().await.unwrap(), on_lan(180));
    web.reply(on_lan(180), 80).await.unwrap();
    let spec = service("second").ipam("static").annotation(cloudprovider::IP, "192.168.100.180").tcp(81);
    let second = case.expose(spec).await.unwrap();
    wait_for_condition(&second, "False AddressTaken").await;
    web.delete().await.unwrap();
    web.wait_until_gone().await.unwrap();
    assert_eq!(objects(&bed, &web).await, Vec::<String>::new());
}

#[tokio::test]
async fn the_service_itself_tells_what_is_missing_and_when_that_is_over() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("told").await.unwrap();
    let web = case.expose(service("web").annotation(cloudprovider::NETWORK, "guests/late").tcp(80)).await.unwrap();
    wait_for_condition(&web, "False NoMatchingPool").await;
    bed.set_pool("late", "guests/late", 175..=176).await.unwrap();
    wait_for_condition(&web, "True Ready").await;
}

/// Decision 11: nothing changes until the record in the guest cluster says so.
#[tokio::test]
async fn a_changed_cluster_name_changes_nothing_until_it_is_confirmed() {
    if e2e::skip() {
        return;
    }
    // A bed of its own: the name is the whole cluster's.
    let bed = Bed::builder().nodes(1).start().await.unwrap();
    let case = bed.case("identity").await.unwrap();
    let web = case.expose(service("web").tcp(80)).await.unwrap();
    let address = web.settled().await.unwrap();
    let before = objects(&bed, &web).await;
    bed.ccm().set_arg("--cluster-name=renamed");
    bed.ccm().restart().unwrap();
    bed.wait_for_event("kube-system", "ConfigMap", "harvester-cloud-provider", "ClusterNameNotChanged", "renamed")
        .await
        .unwrap();
    let late = case.expose(service("late").tcp(80)).await.unwrap();
    late.settled().await.unwrap();
    assert!(objects(&bed, &late).await[0].starts_with("demo-"), "the remembered name");
    assert_eq!((objects(&bed, &web).await, web.address().await.unwrap()), (before.clone(), address));

    let maps: Api<ConfigMap> = Api::namespaced(bed.client().await.unwrap(), "kube-system");
    let confirmed = json!({"data": {"cluster-name": "renamed"}});
    maps.patch("harvester-cloud-provider", &PatchParams::default(), &Patch::Merge(confirmed)).await.unwrap();
    web.wait_for_load_balancer("the new name", |lb| match lb.label(cloudprovider::CLUSTER) {
        Some("renamed") => Ok(()),
        other => Err(format!("its cluster is {other:?}")),
    })
    .await
    .unwrap();
    assert_eq!((objects(&bed, &web).await, web.address().await.unwrap()), (before, address), "adopted by proof");
    web.reply(address, 80).await.unwrap();
    let newest = case.expose(service("newest").tcp(80)).await.unwrap();
    // No address: the machines do not wear the new name yet, so the host cannot tell the network.
    newest
        .wait_for_load_balancer("the new name", |lb| {
            if lb.name_any().starts_with("renamed-") { Ok(()) } else { Err(lb.name_any()) }
        })
        .await
        .unwrap();
    web.delete().await.unwrap();
    web.wait_until_gone().await.unwrap();
    assert_eq!(objects(&bed, &web).await, Vec::<String>::new());
}
