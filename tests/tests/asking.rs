//! What a Service may ask for, what it tells while it cannot have it, and who the cluster is, on real API servers.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

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

/// `status.conditions`, ours, as `status reason`, and behind it the warning.
async fn wait_for_condition(web: &Exposed<'_>, expected: &str) {
    web.wait_for(&format!("condition {expected}"), |service| {
        let conditions = service.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        let of = |kind: &str| conditions.iter().find(|condition| condition.type_ == kind);
        let ours = ["LoadBalancerReady", "LoadBalancerWarning"].into_iter().filter_map(of);
        let found: Vec<_> = ours.map(|condition| format!("{} {}", condition.status, condition.reason)).collect();
        let found = found.join(", ");
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
    let new = IpAddr::from(bed.lan.ipv4(170));
    web.annotate(cloudprovider::IP_POOL, Some("other")).await.unwrap();
    web.wait_for_addresses(&[new]).await.unwrap();
    web.reply(new, 80).await.unwrap();
    wait_for("the old object to go", PATIENCE, || async {
        let now = objects(&bed, &web).await;
        if now.len() == 1 && now != before { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await
    .unwrap();
    assert_ne!(old, new);
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
    let address = IpAddr::from(bed.lan.ipv4(180));
    let spec = |name| service(name).ipam("static").annotation(cloudprovider::IP, &address.to_string());
    let web = case.expose(spec("web").tcp(80)).await.unwrap();
    assert_eq!(web.settled().await.unwrap(), address);
    web.reply(address, 80).await.unwrap();
    let second = case.expose(spec("second").tcp(81)).await.unwrap();
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
    wait_for_condition(&web, "True Served").await;
}

#[tokio::test]
async fn the_ipam_may_be_changed_until_there_is_an_address() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("think-again").await.unwrap();
    let web = case.expose(service("web").annotation(cloudprovider::NETWORK, "guests/never").tcp(80)).await.unwrap();
    // Nobody has a NIC there; Harvester is not even asked.
    wait_for_condition(&web, "False NoSuchNetwork").await;
    web.annotate(cloudprovider::NETWORK, None).await.unwrap();
    let first = web.settled().await.unwrap();
    web.annotate(cloudprovider::IPAM, Some("dhcp")).await.unwrap();
    wait_for_condition(&web, "True Served, True IPAMChanged").await;
    assert_eq!(web.address().await.unwrap(), first, "an address that is served is never given up");

    let pending = case.expose(service("pending").annotation(cloudprovider::IP_POOL, "nosuch").tcp(80)).await.unwrap();
    wait_for_condition(&pending, "False NoSuchPool").await;
    let before = objects(&bed, &pending).await;
    assert_eq!(before.len(), 1);
    pending
        .patch(json!({"metadata": {"annotations": {cloudprovider::IPAM: "dhcp", cloudprovider::IP_POOL: null}}}))
        .await
        .unwrap();
    let leased = pending.settled().await.unwrap();
    assert!(
        (200..=250).contains(&match leased {
            IpAddr::V4(ip) => ip.octets()[3],
            IpAddr::V6(_) => 0,
        }),
        "{leased}"
    );
    assert_eq!(objects(&bed, &pending).await, before, "made anew under its name");
    wait_for_condition(&pending, "True Served").await;
}

/// A wish that Harvester does not grant is no failure: what it booked is served, and said to be something else, once.
#[tokio::test]
async fn who_is_served_otherwise_than_asked_for_hears_it_once_and_counts_as_served() {
    if e2e::skip() {
        return;
    }
    // A bed of its own: a restarted cloud controller manager does not repeat the Events that others wait for.
    let bed = Bed::builder().nodes(1).start().await.unwrap();
    let case = bed.case("otherwise").await.unwrap();
    let wish = service("wish").annotation(cloudprovider::IP, "192.168.100.199").tcp(80);
    let both = service("both").set("ipFamilyPolicy", "PreferDualStack").tcp(80);
    for (spec, kind, reason) in [(wish, "Warning", "AddressNotAsAsked"), (both, "Normal", "SingleStackOnly")] {
        let web = case.expose(spec).await.unwrap();
        let address = web.settled().await.unwrap();
        web.reply(address, 80).await.unwrap();
        let warning = if kind == "Warning" { "True" } else { "False" };
        wait_for_condition(&web, &format!("True Served, {warning} {reason}")).await;
        let told = web.wait_for_event(reason, "").await.unwrap();
        assert_eq!(told.kind, kind, "{told:?}");
        // Another pass, and another process: neither has anything to add.
        web.annotate("touched", Some("meanwhile")).await.unwrap();
        bed.ccm().restart().unwrap();
        bed.wait_until_ccm_is_ready().await.unwrap();
        let after = case.expose(service(&format!("after-{}", reason.to_lowercase())).tcp(80)).await.unwrap();
        after.settled().await.unwrap();
        let events = web.events().await.unwrap();
        let times: Vec<i32> = events.iter().filter(|event| event.reason == reason).map(|event| event.count).collect();
        assert_eq!(times, [1], "{events:#?}");
        assert!(events.iter().all(|event| event.reason != "SyncLoadBalancerFailed"), "{events:#?}");
        assert_eq!(web.address().await.unwrap(), address);
    }
    let wish = case.named("wish");
    wish.annotate(cloudprovider::IP, None).await.unwrap();
    wait_for_condition(&wish, "True Served").await;
}

/// Nothing is half done for who cannot do with one family; who thinks again is served.
#[tokio::test]
async fn a_service_that_requires_two_families_waits_until_it_asks_for_what_there_is() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("requires").await.unwrap();
    let spec = service("web").set("ipFamilyPolicy", "RequireDualStack").tcp(80);
    let web = case.expose(spec).await.unwrap();
    wait_for_condition(&web, "False SingleStackOnly").await;
    web.wait_for_event("SyncLoadBalancerFailed", "(RequireDualStack)").await.unwrap();
    assert_eq!(objects(&bed, &web).await, Vec::<String>::new(), "no address is booked for nothing");
    web.patch(json!({"spec": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"]}})).await.unwrap();
    let address = web.settled().await.unwrap();
    web.reply(address, 80).await.unwrap();
    wait_for_condition(&web, "True Served").await;
}

/// Nobody has booked it: a moment later it may be another Service's.
#[tokio::test]
async fn a_wish_is_not_announced_while_the_controller_has_not_granted_it() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("wish").await.unwrap();
    for (name, ipam, output) in
        [("refused", "nonsense", false), ("booked", "pool", false), ("output", "nonsense", true)]
    {
        let last = case.bed().lan.ipv4(189);
        let asking = bed.lan.client().ask_who_has(last, Duration::from_millis(5)).unwrap();
        let spec = service(name).ipam(ipam).tcp(80);
        let spec = if output { spec.at(&last.to_string()) } else { spec.set("loadBalancerIP", last.to_string()) };
        let web = case.expose(spec).await.unwrap();
        if ipam == "pool" {
            assert_ne!(web.settled().await.unwrap(), IpAddr::V4(last));
            wait_for_condition(&web, "True Served, True AddressNotAsAsked").await;
        } else {
            wait_for_condition(&web, "False UnknownIPAM").await;
            // Who serves a Service that was made later has seen this one before.
            let later = case.expose(service(&format!("after-{name}")).tcp(80)).await.unwrap();
            let address = later.settled().await.unwrap();
            later.reply(address, 80).await.unwrap();
            later.delete_with(address).await.unwrap();
            let output = web.annotation(harvester_api::keys::kube_vip::LOADBALANCER_IPS).await.unwrap();
            assert_eq!(
                (web.get().await.unwrap().status.and_then(|it| it.load_balancer?.ingress), output),
                (None, String::new())
            );
        }
        let answers = asking.report();
        eprintln!("{name}: {answers}");
        assert!(answers.asked > 10 && answers.by.is_empty(), "{name}: {answers}");
        web.delete().await.unwrap();
    }
}

/// The host knows nothing of families and books what the pool has.
#[tokio::test]
async fn a_service_of_one_family_is_not_given_a_pool_address_of_the_other_until_it_has_that_family_too() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("families").await.unwrap();
    let six = service("six").set("ipFamilyPolicy", "SingleStack").set("ipFamilies", json!(["IPv6"])).tcp(80);
    let web = case.expose(six).await.unwrap();
    wait_for_condition(&web, "False WrongFamily").await;
    web.wait_for_event("SyncLoadBalancerFailed", "an IPv4 address, but spec.ipFamilies").await.unwrap();
    assert_eq!(web.annotation(harvester_api::keys::kube_vip::LOADBALANCER_IPS).await.unwrap(), "");
    let both = json!({"spec": {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]}});
    web.patch(both).await.unwrap();
    assert!(web.settled().await.unwrap().is_ipv4());
    wait_for_condition(&web, "True Served, False SingleStackOnly").await;
}

/// Harvester spec 8.5: hosts up to 1.8 decide on the network by themselves.
#[tokio::test]
async fn a_host_that_does_not_know_networks_is_told_on_the_service() {
    if e2e::skip() {
        return;
    }
    let builder = Bed::builder().nodes(1).without_announcers().network("guests/data", "eth0");
    let bed = builder.harvester_flag("--host-version=<=1.8").start().await.unwrap();
    // Such a host takes the first network of a machine whose name begins with the cluster's.
    bed.machines().await.unwrap().save(&bed.machine("demo-1", &["192.168.100.61"])).await.unwrap();
    let case = bed.case("old-host").await.unwrap();
    let web = case.create(service("web").annotation(cloudprovider::NETWORK, "guests/data").tcp(80)).await.unwrap();
    wait_for_condition(&web, "False Pending, True NetworkNotKept").await;
    web.wait_for_event("NetworkNotKept", "has put guests/mgmt in its place").await.unwrap();
    assert!(
        !web.annotation(harvester_api::keys::kube_vip::LOADBALANCER_IPS).await.unwrap().is_empty(),
        "served all the same"
    );
}

/// A mistyped name must not end in a refusal of the API for every Service.
#[tokio::test]
async fn a_cluster_name_that_no_object_can_have_is_refused_and_written_over() {
    if e2e::skip() {
        return;
    }
    // A bed of its own: the name is the whole cluster's.
    let bed = Bed::builder().nodes(1).without_announcers().start().await.unwrap();
    let case = bed.case("mistyped").await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(bed.client().await.unwrap(), "kube-system");
    let remembered = async || {
        let map = maps.get("harvester-cloud-provider").await.map_err(|error| error.to_string())?;
        Ok::<_, String>(map.data.unwrap_or_default().remove("cluster-name").unwrap_or_default())
    };
    let wait_for_demo = || {
        wait_for("the name to be remembered", PATIENCE, || async {
            match remembered().await? {
                name if name == "demo" => Ok(()),
                other => Err(other),
            }
        })
    };
    wait_for_demo().await.unwrap();
    let mistyped = json!({"data": {"cluster-name": "My Cluster"}});
    maps.patch("harvester-cloud-provider", &PatchParams::default(), &Patch::Merge(mistyped)).await.unwrap();
    let told = bed
        .wait_for_event("kube-system", "ConfigMap", "harvester-cloud-provider", "ClusterNameRefused", "\"My Cluster\"")
        .await
        .unwrap();
    assert!(
        told.message.contains("accepted are") && told.message.contains("keeps the name \"demo\""),
        "{}",
        told.message
    );
    wait_for_demo().await.unwrap();
    let web = case.create(service("web").tcp(80)).await.unwrap();
    web.wait_for_load_balancer("the good name", |lb| {
        if lb.name_any().starts_with("demo-") { Ok(()) } else { Err(lb.name_any()) }
    })
    .await
    .unwrap();
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
