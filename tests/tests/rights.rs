//! Announcers without a right that the chart gives them: what they fall back to, and that they say so once.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

mod vip;

use std::net::IpAddr;

use e2e::product::{ANNOUNCER_ACCOUNT, Manifest};
use e2e::watch::let_it_happen;
use e2e::wire::GLOBAL_LEASE;
use e2e::{Bed, PATIENCE, service, wait_for};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use testbed::service_account_user;

const NO_LEASES: &str = "no right to list and write Leases, which election_mode node needs";
const NO_NODES: &str = "no right to read Nodes";
const NO_EVENTS: &str = "no right to write Events";

/// Two nodes whose announcers do not run yet.
async fn bed() -> Bed {
    let builder = Bed::builder()
        .without_ccm()
        .without_pool()
        .not_started()
        .announcer_env("election_mode", "node")
        .announcer_env("vip_handover", "true");
    let builder = builder.announcer_env("vip_leaseduration", "5").announcer_env("vip_renewdeadline", "3");
    builder.announcer_env("vip_retryperiod", "1").start().await.unwrap()
}

/// Gives the announcers the chart's rights, with other rules for `resource`, and waits until the API server goes by
/// them.
async fn grant(bed: &Bed, resource: &str, rules: &[Value], refused: (&str, Option<&str>), is_allowed: bool) {
    let client = bed.client().await.unwrap();
    let mut documents = Manifest::of(ANNOUNCER_ACCOUNT, &[]).unwrap().rights();
    let mut replaced = 0;
    for document in &mut documents {
        let Some(all) = document.get_mut("rules").and_then(Value::as_array_mut) else { continue };
        let before = all.len();
        all.retain(|rule| rule["resources"] != json!([resource]));
        if all.len() < before {
            all.extend_from_slice(rules);
            replaced += 1;
        }
    }
    assert_eq!(replaced, 1, "the chart has one rule for {resource}");
    harvester_sim::apply::apply_all(&client, &documents).await.unwrap();
    let reviews: Api<SubjectAccessReview> = Api::all(client);
    let (verb, name) = refused;
    let group = if resource == "leases" { "coordination.k8s.io" } else { "" };
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(service_account_user("kube-system", ANNOUNCER_ACCOUNT)),
            resource_attributes: Some(ResourceAttributes {
                group: Some(group.into()),
                resource: Some(resource.into()),
                verb: Some(verb.into()),
                name: name.map(str::to_owned),
                namespace: Some("kube-system".into()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    wait_for(&format!("{verb} {resource} to be allowed: {is_allowed}"), PATIENCE, || async {
        let answer = reviews.create(&PostParams::default(), &review).await.map_err(|error| error.to_string())?;
        let status = answer.status.unwrap_or_default();
        if status.allowed == is_allowed { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await
    .unwrap();
}

/// How often the announcer of node `n` has said this, in all its lives.
fn said(bed: &Bed, n: usize, what: &str) -> usize {
    bed.announcer(n).log_tail(usize::MAX).lines().filter(|line| line.contains(what)).count()
}

fn said_once_by_each(bed: &Bed, what: &str) {
    for n in 1..=2 {
        assert_eq!(said(bed, n, what), 1, "node{n}: {what:?} in\n{}", bed.announcer(n).log_tail(40));
    }
}

async fn start_both(bed: &Bed) {
    for n in 1..=2 {
        bed.announcer(n).start().unwrap();
    }
    for n in 1..=2 {
        bed.wait_until_announcing(n).await.unwrap();
    }
}

/// Lists of Leases are refused, the one Lease of `global` mode is granted, as older manifests have it.
#[tokio::test]
async fn without_the_right_to_membership_leases_one_lease_decides_and_the_address_is_served() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let one = [
        json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]}),
        json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [GLOBAL_LEASE],
               "verbs": ["get", "update"]}),
    ];
    grant(&bed, "leases", &one, ("list", None), false).await;
    start_both(&bed).await;
    let case = bed.case("no-leases").await.unwrap();
    let address = IpAddr::from(bed.lan.ipv4(191));
    let web = case.expose(service("web").at(&address.to_string()).tcp(80)).await.unwrap();
    web.wait_for_addresses(&[address]).await.unwrap();
    web.reply(address, 80).await.unwrap();
    let owner = bed.wait_for_owner(address).await.unwrap();
    assert_eq!(bed.announcer_lease_holder().await.unwrap(), bed.lan.host(owner).name(), "mode global");
    assert_eq!(web.annotation(vip::TERM).await.unwrap(), "", "mode node would have written its record");
    said_once_by_each(&bed, NO_LEASES);

    // Who ends hands the Lease on, and the other one serves.
    bed.announcer(owner).stop().unwrap();
    let second = web.wait_for_other_vip_host(owner).await.unwrap();
    bed.wait_for_mac(address, &bed.lan.host(second).mac()).await.unwrap();
    web.reply(address, 80).await.unwrap();
    assert_eq!(bed.announcer_lease_holder().await.unwrap(), bed.lan.host(second).name());
    let_it_happen(10).await;
    said_once_by_each(&bed, NO_LEASES);
    assert!(said(&bed, second, "no right to list and watch Leases here") <= 1, "once per Lease");
}

/// No Lease at all: nobody may announce, until the right is there. Nobody has to be started for that.
#[tokio::test]
async fn without_the_right_to_any_lease_nobody_announces_until_it_is_granted() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    grant(&bed, "leases", &[], ("get", Some(GLOBAL_LEASE)), false).await;
    for n in 1..=2 {
        bed.announcer(n).start().unwrap();
    }
    for n in 1..=2 {
        wait_for(&format!("the announcer of node{n} to fall back"), PATIENCE, || async {
            if said(&bed, n, NO_LEASES) > 0 { Ok(()) } else { Err(bed.announcer(n).log_tail(10)) }
        })
        .await
        .unwrap();
    }
    let case = bed.case("no-lease").await.unwrap();
    let address = IpAddr::from(bed.lan.ipv4(192));
    let web = case.expose(service("web").at(&address.to_string()).tcp(80)).await.unwrap();
    let_it_happen(10).await;
    assert_eq!(bed.owner_of(address).unwrap(), None);
    bed.announcers().try_for_each(|announcer| announcer.check()).unwrap();
    said_once_by_each(&bed, NO_LEASES);

    let all = json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                     "verbs": ["get", "list", "watch", "create", "update"]});
    grant(&bed, "leases", &[all], ("get", Some(GLOBAL_LEASE)), true).await;
    web.wait_for_addresses(&[address]).await.unwrap();
    web.reply(address, 80).await.unwrap();
    let owner = bed.wait_for_owner(address).await.unwrap();
    assert_eq!(bed.announcer_lease_holder().await.unwrap(), bed.lan.host(owner).name(), "the mode stays");
    said_once_by_each(&bed, NO_LEASES);
}

/// Which Node is Ready or tainted is not known then; cards alone say who may announce.
#[tokio::test]
async fn without_the_right_to_nodes_or_events_addresses_are_served_and_move() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    for (resource, verb, last, line) in [("nodes", "list", 193, NO_NODES), ("events", "create", 194, NO_EVENTS)] {
        grant(&bed, resource, &[], (verb, None), false).await;
        start_both(&bed).await;
        let case = bed.case(resource).await.unwrap();
        let address = IpAddr::from(bed.lan.ipv4(last));
        let web = case.expose(service("web").at(&address.to_string()).tcp(80)).await.unwrap();
        web.wait_for_addresses(&[address]).await.unwrap();
        web.reply(address, 80).await.unwrap();
        let owner = bed.wait_for_owner(address).await.unwrap();
        let term: u64 = web.annotation(vip::TERM).await.unwrap().parse().expect("mode node writes its record");
        // Without a right it is refused more than once: each announcement is an Event.
        bed.announcer(owner).stop().unwrap();
        let second = web.wait_for_other_vip_host(owner).await.unwrap();
        bed.wait_for_mac(address, &bed.lan.host(second).mac()).await.unwrap();
        web.reply(address, 80).await.unwrap();
        assert!(web.annotation(vip::TERM).await.unwrap().parse::<u64>().unwrap() > term);
        let more = case.expose(service("more").at(&bed.lan.ipv4(last + 5).to_string()).tcp(80)).await.unwrap();
        more.address().await.unwrap();
        let_it_happen(10).await;
        // Nodes are asked for by each; of Events only who has one to write hears that it may not.
        assert_eq!(said(&bed, second, line), 1, "{}", bed.announcer(second).log_tail(40));
        assert!(said(&bed, owner, line) <= 1, "{}", bed.announcer(owner).log_tail(40));
        if resource == "events" {
            assert_eq!((web.events().await.unwrap(), more.events().await.unwrap()), (Vec::new(), Vec::new()));
        } else {
            said_once_by_each(&bed, line);
            assert!(!web.events().await.unwrap().is_empty());
        }
        for (web, address) in [(web, address), (more, IpAddr::from(bed.lan.ipv4(last + 5)))] {
            web.delete().await.unwrap();
            web.wait_until_withdrawn(address).await.unwrap();
        }
        bed.announcer(second).stop().unwrap();
    }
}
