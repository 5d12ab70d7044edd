//! Something answers in Harvester's place, or refuses; nobody serves.

use std::time::Duration;

use e2e::{EventFact, service};
use harvester_sim::faults::Faults;
use harvester_sim::serve::tls::Authority;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use serde_json::json;

use super::{REFUSALS, alone, deletions, uid_of_load_balancer};

/// A busy machine's own trouble, which is told as well. It is left out only where nothing else may be told: the words
/// of a webhook that does not answer are of the same kind.
fn is_bad_luck(event: &EventFact) -> bool {
    ["deadline exceeded", "timed out", "timeout"].iter().any(|part| event.message.to_lowercase().contains(part))
}

#[tokio::test]
async fn h2_a_server_that_knows_nothing_in_the_place_of_the_api_server_proves_nothing() {
    if e2e::skip() {
        return;
    }
    let (_guard, bed) = alone(&REFUSALS).await;
    let case = bed.case("h2").await.unwrap();
    let address = case.created("web").await.unwrap();
    let lb = uid_of_load_balancer(&case.named("web")).await;
    bed.machine_and_node("h2-sick", "h2-sick", "192.168.100.81").await.unwrap();
    let authority = Authority::new().unwrap();
    bed.write_cloud_config(&bed.cloud_config_trusting(&authority).unwrap()).unwrap();
    bed.wait_for_event("kube-system", "Lease", e2e::host::CCM_LEASE, "CloudConfigReloaded", "in use").await.unwrap();
    let mark = bed.mark();
    bed.set_ready("h2-sick", false).await.unwrap();
    bed.harvester.api_server().kill();
    let impostor = bed.impostor(&authority).unwrap();
    case.named("web").annotate("touched", Some("meanwhile")).await.unwrap();
    let doomed = case.create(service("doomed").tcp(80)).await.unwrap();
    // Of what it says nothing follows; that it was asked at all has to be seen. A server that knows no machine of this
    // cluster is asked for its machines again and again, and for nothing else.
    impostor.wait_until_asked(&["GET", "/virtualmachines"]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(bed.node("h2-sick").await.unwrap().is_some());
    assert_eq!(case.named("web").published().await.unwrap(), address);
    drop(impostor);
    bed.harvester.api_server().start().await.unwrap();
    doomed.published().await.unwrap();
    assert_eq!(uid_of_load_balancer(&case.named("web")).await, lb);
    assert_eq!(deletions(&bed, mark), Vec::<String>::new());
    bed.set_ready("h2-sick", true).await.unwrap();
}

#[tokio::test]
async fn h3_h15_refusals_of_the_webhooks_are_waited_out_without_deleting_and_told_once() {
    if e2e::skip() {
        return;
    }
    let (_guard, bed) = alone(&REFUSALS).await;
    let case = bed.case("h15").await.unwrap();
    let address = case.created("stays").await.unwrap();
    let lb = uid_of_load_balancer(&case.named("stays")).await;
    let mark = bed.mark();
    let refusal = Faults { refuse_creates: Some("the host is being upgraded".into()), ..Faults::default() };
    let outage = Faults { webhook_outage: true, ..Faults::default() };
    // Conflicts are settled by trying again, and that an address takes its time is nobody's mistake.
    let slow = Faults { conflicts: 5, allocation_delay_ms: 12_000, ..Faults::default() };
    for (name, faults, told) in [
        ("refused", refusal, Some("the host is being upgraded")),
        ("outage", outage, Some("webhook")),
        ("slow", slow, None),
    ] {
        bed.set_faults(&faults).unwrap();
        let new = case.create(service(name).tcp(80)).await.unwrap();
        case.named("stays").annotate("touched", Some(name)).await.unwrap();
        if let Some(part) = told {
            new.wait_for_event("SyncLoadBalancerFailed", part).await.unwrap();
        }
        // It is tried again and again.
        tokio::time::sleep(Duration::from_secs(8)).await;
        bed.set_faults(&Faults::default()).unwrap();
        new.published().await.unwrap();
        let mut warnings = new.events().await.unwrap();
        let counts = |event: &EventFact| told.map_or(!is_bad_luck(event), |part| event.message.contains(part));
        warnings.retain(|event| event.kind == "Warning" && counts(event));
        assert_eq!(warnings.len(), usize::from(told.is_some()), "{name}: {warnings:#?}");
        assert!(warnings.iter().all(|event| event.count == 1), "{name}, however often it is tried: {warnings:#?}");
    }
    assert_eq!(case.named("stays").published().await.unwrap(), address);
    assert_eq!(uid_of_load_balancer(&case.named("stays")).await, lb);
    assert_eq!(deletions(&bed, mark), Vec::<String>::new());
}

/// What is wrong with a Service outlives the process: saying "all is well" until it is found out again would be two
/// writes each.
#[tokio::test]
async fn a_restart_writes_nothing_over_a_service_that_nobody_serves() {
    if e2e::skip() {
        return;
    }
    let (_guard, bed) = alone(&REFUSALS).await;
    let case = bed.case("unserved").await.unwrap();
    let web = case.create(service("web").tcp(80)).await.unwrap();
    web.published().await.unwrap();
    let condition = json!({"type": "LoadBalancerReady", "status": "False", "reason": "NotServed",
        "message": "as a former process said", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    bed.ccm().stop().unwrap();
    web.patch_status(json!({"status": {"conditions": [condition]}})).await.unwrap();
    bed.ccm().start().unwrap();
    let told = |service: &Service| {
        let conditions = service.status.clone().unwrap_or_default().conditions.unwrap_or_default();
        conditions.into_iter().next().map(|condition| (condition.status, condition.reason, condition.message))
    };
    // The first pass brings the message up to date, and the second process finds nothing to do.
    web.wait_for("the message of this version", |service| match told(service) {
        Some((status, reason, message)) if (status.as_str(), reason.as_str()) == ("False", "NotServed") => {
            if message.contains("nobody serves it") { Ok(()) } else { Err(message) }
        }
        other => panic!("the condition flips: {other:?}"),
    })
    .await
    .unwrap();
    let before = web.get().await.unwrap();
    bed.ccm().restart().unwrap();
    bed.wait_until_ccm_is_ready().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(web.get().await.unwrap().resource_version(), before.resource_version(), "not one write");
}
