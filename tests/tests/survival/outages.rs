//! The API of Harvester is away, or does not know us any more.

use std::time::{Duration, Instant};

use e2e::{Bed, VM_NAMESPACE, service};
use harvester_api::keys::cloudprovider;
use harvester_api::load_balancer::LoadBalancer;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{OUTAGES, alone, deletions, uid_of_load_balancer};

/// How often the cloud controller manager renewed its Lease between the first answer of Harvester after `away` and the
/// object that it created there: time as the process has it, whatever else the machine does.
fn heartbeats_until_created(bed: &Bed, away: e2e::Mark) -> usize {
    let ours = |user: &str| user.ends_with(":harvester-cloud-provider") || user.ends_with(":demo");
    let mut harvester = bed.harvester.audit().since(away.harvester).unwrap();
    harvester.retain(|request| ours(&request.user) && (1..400).contains(&request.code));
    let first = harvester.iter().filter_map(|request| request.at).min().expect("Harvester has answered");
    let created = harvester.iter().find(|request| request.verb == "create" && request.resource == "loadbalancers");
    let created = created.and_then(|request| request.at).expect("the object was created");
    let guest = bed.control_plane.audit().since(away.guest).unwrap();
    let renewals = guest.iter().filter(|request| {
        ours(&request.user) && request.is_write() && request.name.as_deref() == Some(e2e::host::CCM_LEASE)
    });
    renewals.filter_map(|request| request.at).filter(|at| (first..created).contains(at)).count()
}

#[tokio::test]
async fn h1_h3_h14_an_outage_of_the_harvester_api_destroys_nothing_and_what_was_asked_for_is_done_at_once_after_it() {
    if e2e::skip() {
        return;
    }
    let (_guard, bed) = alone(&OUTAGES).await;
    let case = bed.case("h1").await.unwrap();
    let address = case.created("stays").await.unwrap();
    let (stays, goes) = (case.named("stays"), case.create(service("goes").tcp(80)).await.unwrap());
    goes.published().await.unwrap();
    let lb = uid_of_load_balancer(&stays).await;
    let lease = bed.ccm_lease().await.unwrap();
    let mark = bed.mark();

    bed.harvester.api_server().kill();
    let away = bed.mark();
    let new = case.create(service("new").tcp(80)).await.unwrap();
    goes.delete().await.unwrap();
    stays.annotate("touched", Some("meanwhile")).await.unwrap();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(35) {
        let (ready, text) = bed.ccm_readyz().unwrap();
        assert!(ready, "ready but degraded: {text}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let (_, text) = bed.ccm_readyz().unwrap();
    assert!(text.contains("[!]harvester-api degraded: away for"), "{text}");
    bed.wait_for_event("kube-system", "Lease", e2e::host::CCM_LEASE, "HarvesterUnreachable", "has not answered")
        .await
        .unwrap();
    assert_eq!(bed.ccm_lease().await.unwrap(), lease, "it goes on leading");
    let left = goes.get().await.unwrap();
    assert!(left.metadata.deletion_timestamp.is_some() && !left.finalizers().is_empty(), "h14: the finalizer stays");

    bed.harvester.api_server().start().await.unwrap();
    new.published().await.unwrap();
    let beats = heartbeats_until_created(&bed, away);
    goes.wait_until_gone().await.unwrap();
    assert_eq!(goes.load_balancer().await.unwrap(), None);
    // Who waits for its next attempt, backed off during the outage, comes later.
    assert!(beats < 8, "{beats} renewals of its Lease, two seconds apart, between the first answer and the new object");
    eprintln!("created {beats} heartbeats after the first answer");
    assert_eq!((stays.published().await.unwrap(), uid_of_load_balancer(&stays).await), (address, lb));
    assert_eq!(bed.ccm_lease().await.unwrap(), lease);
    let deleted = deletions(&bed, mark);
    assert!(!deleted.is_empty(), "what was asked to go was deleted by us");
    assert!(deleted.iter().all(|deletion| deletion.contains("goes")), "h3: {deleted:?}");
}

/// Decision 12: a finalizer is not for ever. The host does not come back, and says who was left behind if it does.
#[tokio::test]
async fn a_service_leaves_its_load_balancer_behind_when_its_user_says_so_by_name() {
    if e2e::skip() {
        return;
    }
    let (_guard, bed) = alone(&OUTAGES).await;
    let case = bed.case("abandon").await.unwrap();
    case.created("web").await.unwrap();
    let web = case.named("web");
    let name = web.load_balancer().await.unwrap().unwrap().name_any();
    let mark = bed.mark();
    // Of a Service that lives it means nothing.
    web.annotate(cloudprovider::ABANDON, Some(&name)).await.unwrap();
    bed.harvester.api_server().kill();
    web.annotate(cloudprovider::ABANDON, Some("another")).await.unwrap();
    web.delete().await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let held = web.get().await.unwrap();
    assert!(held.metadata.deletion_timestamp.is_some() && !held.finalizers().is_empty(), "only the exact name counts");

    web.annotate(cloudprovider::ABANDON, Some(&name)).await.unwrap();
    web.wait_until_gone().await.unwrap();
    let told = web.wait_for_event("AbandonedLoadBalancer", &name).await.unwrap();
    assert_eq!(told.kind, "Warning");
    let maps: Api<ConfigMap> = Api::namespaced(bed.client().await.unwrap(), "kube-system");
    let noted = maps.get("harvester-cloud-provider").await.unwrap().data.unwrap_or_default();
    let noted = noted.get("possible-orphans").cloned().unwrap_or_default();
    assert_eq!(noted.matches(&format!("{VM_NAMESPACE}/{name} of service {web}")).count(), 1, "{noted}");

    // The host is back after all: nobody deletes what was left to it, and a Service of the same name has one of its
    // own.
    bed.harvester.api_server().start().await.unwrap();
    case.created("other").await.unwrap();
    let left = bed.harvester_client().await.unwrap();
    let left: Api<LoadBalancer> = Api::namespaced(left, VM_NAMESPACE);
    assert!(left.get(&name).await.is_ok(), "left behind");
    assert_eq!(deletions(&bed, mark), Vec::<String>::new());
    let again = case.create(service("web").tcp(80)).await.unwrap();
    again.published().await.unwrap();
    left.delete(&name, &DeleteParams::default()).await.unwrap();
    again
        .wait_for_load_balancer("one of its own", |lb| if lb.name_any() == name { Err(name.clone()) } else { Ok(()) })
        .await
        .unwrap();
}

/// Decision 15: the file is replaced under the running process, which goes on with the new token and through the second
/// endpoint.
#[tokio::test]
async fn a_revoked_token_is_told_and_a_new_one_is_used_without_a_restart() {
    if e2e::skip() {
        return;
    }
    let (_guard, bed) = alone(&OUTAGES).await;
    let case = bed.case("token").await.unwrap();
    let address = case.created("before").await.unwrap();
    let lease = bed.ccm_lease().await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(bed.harvester_client().await.unwrap(), VM_NAMESPACE);
    secrets.delete("demo-token", &DeleteParams::default()).await.unwrap();
    // The API server remembers a good token for some seconds.
    tokio::time::sleep(Duration::from_secs(11)).await;
    let pending = case.create(service("pending").tcp(80)).await.unwrap();
    let about = ("kube-system", "Lease", e2e::host::CCM_LEASE);
    let told = bed.wait_for_event(about.0, about.1, about.2, "HarvesterCredentialsRefused", "401").await.unwrap();
    assert!(told.message.contains("cloud-config/cloud-config"), "{}", told.message);
    let (ready, text) = bed.ccm_readyz().unwrap();
    assert!(ready && text.contains("[!]harvester-api degraded: refuses the credentials"), "{text}");
    pending.wait_for_event("SyncLoadBalancerFailed", "nauthorized").await.unwrap();

    let text = bed.fresh_cloud_config().unwrap();
    let mut config: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    // The current context leads nowhere, another one with the same user and namespace to Harvester.
    let good = config["clusters"][0].clone();
    let dead = json!({"name": "dead", "cluster": {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": true}});
    config["clusters"] = json!([dead, good]);
    let context = |name: &str, cluster: &str| {
        json!({"name": name,
            "context": {"cluster": cluster, "namespace": VM_NAMESPACE, "user": "default"}})
    };
    config["contexts"] = json!([context("first", "dead"), context("second", "default")]);
    config["current-context"] = json!("first");
    bed.write_cloud_config(&config.to_string()).unwrap();
    pending.published().await.unwrap();
    bed.wait_for_event(about.0, about.1, about.2, "CloudConfigReloaded", "in use").await.unwrap();
    bed.wait_for_event(about.0, about.1, about.2, "HarvesterCredentialsAccepted", "accepts").await.unwrap();
    assert_eq!(case.named("before").published().await.unwrap(), address);
    assert_eq!(bed.ccm_lease().await.unwrap(), lease, "the same process leads");
}
