//! Hosts that differ by version, that hang, forget or answer late, one that is known by its name only, and a guest that
//! is restored. One bed with a host of 1.8 and one with 1.9, without announcers: an address counts as given when it is
//! published on the Service.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use e2e::bed::POOL;
use e2e::product::BINARY_VARIABLE;
use e2e::watch::let_it_happen;
use e2e::{Bed, Case, NodeSketch, PATIENCE, Shared, VM_NAMESPACE, service, wait_for};
use harvester_api::cloud_config::{self, CloudConfig};
use harvester_api::keys::cloudprovider;
use harvester_api::load_balancer::LoadBalancer;
use harvester_sim::faults::Faults;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use testbed::addresses::{API_PORT, HARVESTER, HARVESTER_NAME};
use tokio::sync::{Mutex, MutexGuard};

type One = (Mutex<()>, Shared<Bed>);
static OLD: One = (Mutex::const_new(()), Shared::new());
static NEW: One = (Mutex::const_new(()), Shared::new());

/// A bed whose host has this version. The product reaches the newer one's API where it can be stale and busy.
async fn alone(version: &str) -> (MutexGuard<'static, ()>, Arc<Bed>) {
    let (one, proxied) = if version == "1.8" { (&OLD, false) } else { (&NEW, true) };
    let guard = one.0.lock().await;
    let start = || async {
        let builder = Bed::builder().nodes(1).without_announcers().network("guests/data", "eth1");
        let builder = builder.harvester_flag(&format!("--host-version={version}"));
        let bed = if proxied { builder.proxied().start().await? } else { builder.start().await? };
        bed.set_pool("data", "guests/data", 170..=179).await?;
        // A host up to 1.8 takes the first network of a machine whose name begins with the cluster's.
        bed.machines().await?.save(&bed.machine("demo-1", &["192.168.100.61"])).await?;
        Ok(bed)
    };
    let bed = one.1.get(start).await.unwrap();
    bed.set_faults(&Faults::default()).unwrap();
    if bed.ccm().check().is_err() {
        bed.ccm().start().unwrap();
    }
    bed.wait_until_ccm_is_ready().await.unwrap();
    (guard, bed)
}

async fn load_balancers(bed: &Bed) -> Vec<LoadBalancer> {
    let lbs: Api<LoadBalancer> = Api::namespaced(bed.harvester_client().await.unwrap(), VM_NAMESPACE);
    lbs.list(&ListParams::default()).await.unwrap().items
}

/// Deletes Services and waits until neither an object nor a booking of theirs is left.
async fn deleted(case: &Case<'_>, names: &[&str]) {
    for name in names {
        case.named(name).delete().await.unwrap();
    }
    for name in names {
        case.named(name).wait_until_gone().await.unwrap();
    }
    wait_for("nothing to be left on Harvester", PATIENCE, || async {
        let of_case = |text: &str| names.iter().any(|name| text.contains(&format!("{}-{name}-", case.namespace())));
        let objects: Vec<_> = load_balancers(case.bed()).await.iter().map(ResourceExt::name_any).collect();
        let booked = case.bed().bookings(POOL).await.map_err(|error| format!("{error:#}"))?;
        let left: Vec<_> = objects
            .into_iter()
            .chain(booked.into_iter().map(|(_, owner)| owner))
            .filter(|text| of_case(text))
            .collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await
    .unwrap();
}

/// What a guest does all day, on either host; and what differs: who decides on the network.
async fn lives_on(version: &str) {
    let (_alone, bed) = alone(version).await;
    let case = bed.case("lives").await.unwrap();
    let pooled = case.created("pooled").await.unwrap();
    let leased = case.create(service("leased").ipam("dhcp").tcp(80)).await.unwrap();
    assert_eq!(leased.published().await.unwrap(), "0.0.0.0");
    let sharer = case.create(service("sharer").sharing_with(&case.named("pooled")).tcp(81)).await.unwrap();
    assert_eq!(sharer.published().await.unwrap(), pooled);
    let network = service("network").annotation(cloudprovider::NETWORK, "guests/data").tcp(80);
    let network = case.create(network).await.unwrap();
    let (address, known) = (network.published().await.unwrap(), version != "1.8");
    let in_data = (170..=179).any(|last| address == bed.lan.ipv4(last).to_string());
    assert_eq!(in_data, known, "{version} gave {address}");
    if !known {
        network.wait_for_event("NetworkNotKept", "guests/mgmt").await.unwrap();
    }
    bed.wait_until_initialized().await.unwrap();

    let_it_happen(3).await;
    let mark = bed.mark();
    bed.ccm().restart().unwrap();
    bed.wait_until_ccm_is_ready().await.unwrap();
    let_it_happen(3).await;
    let mut costs = bed.costs(mark).unwrap();
    costs.ccm_events.clear();
    costs.ccm_guest.retain(|request| request.namespace.as_deref() == Some(case.namespace()));
    costs.ccm_harvester.retain(|request| request.uri.contains("lives"));
    assert_eq!(costs.total(), 0, "{version}: a restart writes {costs}");
    if known {
        let told = network.events().await.unwrap();
        assert!(told.iter().all(|event| event.reason != "NetworkNotKept"), "{version}: {told:#?}");
    }
    deleted(&case, &["sharer", "pooled", "leased", "network"]).await;
}

#[tokio::test]
async fn a_guest_lives_on_a_host_of_1_8_which_decides_on_networks_by_itself() {
    if !e2e::skip() {
        lives_on("1.8").await;
    }
}

#[tokio::test]
async fn a_guest_lives_on_a_host_of_1_9_which_keeps_the_network_it_is_given() {
    if !e2e::skip() {
        lives_on("1.9").await;
    }
}

/// The API server gives a webhook ten seconds: each create and update of a load balancer hangs, and nothing else may.
#[tokio::test]
async fn a_webhook_that_hangs_holds_up_what_needs_it_and_nothing_else() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone("1.9").await;
    let case = bed.case("hangs").await.unwrap();
    let address = case.created("stays").await.unwrap();
    let before = load_balancers(&bed).await.len();
    bed.set_faults(&Faults { webhooks_hang: true, ..Faults::default() }).unwrap();
    // More than there are workers.
    let names = ["a", "b", "c", "d"];
    for name in names {
        case.create(service(name).tcp(80)).await.unwrap();
    }
    let_it_happen(1).await;
    let sketch = NodeSketch::new("hang-node");
    bed.machines().await.unwrap().save(&bed.machine("hang-node", &["192.168.100.63"])).await.unwrap();
    let begin = Instant::now();
    bed.register_node(&sketch).await.unwrap();
    bed.wait_until_node_is_initialized("hang-node").await.unwrap();
    let sharer = case.create(service("sharer").sharing_with(&case.named("stays")).tcp(81)).await.unwrap();
    assert_eq!(sharer.published().await.unwrap(), address, "an address that is there needs no webhook");
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(9), "a Node and a Service waited for the webhook of others: {took:?}");
    let said = case.named("a").wait_for_event("SyncLoadBalancerFailed", "").await.unwrap();
    eprintln!("told of the webhook that hangs: {}", said.message);
    let (ready, text) = bed.ccm_readyz().unwrap();
    assert!(ready, "a process that ends would not help: {text}");
    bed.set_faults(&Faults::default()).unwrap();
    let begin = Instant::now();
    let mut addresses = BTreeSet::from([address.clone()]);
    for name in names {
        addresses.insert(case.named(name).published().await.unwrap());
    }
    eprintln!("published {} ms after the webhook answered again", begin.elapsed().as_millis());
    assert_eq!(addresses.len(), 1 + names.len(), "each has an address of its own");
    assert_eq!(load_balancers(&bed).await.len(), before + names.len(), "one object for each");
    assert_eq!(case.named("stays").published().await.unwrap(), address);
    bed.delete_node("hang-node").await.unwrap();
    deleted(&case, &["a", "b", "c", "d", "sharer", "stays"]).await;
}

/// Two caches of which one is behind by ten seconds, refusals with `Retry-After`, pages that have expired: what was
/// decided on an old view must not be done.
#[tokio::test]
async fn a_busy_api_with_an_old_cache_costs_time_and_nothing_else() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone("1.9").await;
    let case = bed.case("busy").await.unwrap();
    let address = case.created("stays").await.unwrap();
    let lb = case.named("stays").load_balancer().await.unwrap().unwrap().uid();
    let busy = Faults {
        stale_seconds: 10,
        too_many_requests: 10,
        retry_after_seconds: 1,
        expired_continues: 3,
        ..Faults::default()
    };
    bed.set_faults(&busy).unwrap();
    // Its first lists and watches are the ones of the old cache, too.
    bed.ccm().restart().unwrap();
    let first = case.created("again").await.unwrap();
    let former = case.named("again").load_balancer().await.unwrap().unwrap().uid();
    case.named("again").delete().await.unwrap();
    case.named("again").wait_until_gone().await.unwrap();
    // Of the same name and another UID: the old cache still shows the object of the first one.
    let second = case.created("again").await.unwrap();
    let object = wait_for("an object of its own", PATIENCE, || async {
        let lb = case.named("again").load_balancer().await.map_err(|error| format!("{error:#}"))?;
        lb.filter(|lb| lb.uid() != former).ok_or_else(|| "none, or the former one".to_owned())
    })
    .await
    .unwrap();
    assert_eq!(object.usable_address(), Some(second.as_str()), "the first one had {first}");
    assert_eq!(case.named("stays").published().await.unwrap(), address);
    assert_eq!(case.named("stays").load_balancer().await.unwrap().unwrap().uid(), lb);
    bed.set_faults(&Faults::default()).unwrap();
    deleted(&case, &["again", "stays"]).await;
}

/// What is shipped needs no loader, which would bring other code for names with it. A debug build, which a test by hand
/// drives, does.
fn assert_static_if_shipped() {
    let Ok(binary) = std::env::var(BINARY_VARIABLE) else {
        eprintln!("{BINARY_VARIABLE} names no binary: whether what is shipped resolves names is not seen here");
        return;
    };
    let headers = Command::new("readelf").args(["--wide", "--program-headers", &binary]).output().unwrap();
    let headers = String::from_utf8(headers.stdout).unwrap();
    assert!(headers.contains(" LOAD ") && !headers.contains("INTERP"), "{binary} is not static: {headers}");
}

/// In the image there is neither `nsswitch.conf` nor a library to load: the program resolves names with what is in it.
#[tokio::test]
async fn a_harvester_that_is_known_by_its_name_is_found_once_dns_answers() {
    if e2e::skip() {
        return;
    }
    assert_static_if_shipped();
    let (_alone, bed) = alone("1.8").await;
    let case = bed.case("name").await.unwrap();
    let text = bed.fresh_cloud_config().unwrap();
    let right = CloudConfig::parse(text.as_bytes()).unwrap();
    let kubeconfig = serde_json::to_value(right.kubeconfig(&right.endpoints[0])).unwrap();
    let token = kubeconfig["users"][0]["user"]["token"].as_str().unwrap();
    let ca = std::fs::read_to_string(bed.harvester.ca_file()).unwrap();
    let by_name = cloud_config::render(&format!("https://{HARVESTER_NAME}:{API_PORT}"), &ca, VM_NAMESPACE, token);
    bed.ccm().stop().unwrap();
    bed.write_cloud_config(&by_name).unwrap();
    let file = |name: &str, text: &str| bed.dir().write(name, text).unwrap();
    bed.ccm().set_file(file("resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"), "/etc/resolv.conf");
    if std::path::Path::new("/etc/nsswitch.conf").exists() {
        bed.ccm().set_file(file("nsswitch.conf", ""), "/etc/nsswitch.conf");
    }
    bed.ccm().start().unwrap();
    let web = case.create(service("web").tcp(80)).await.unwrap();
    web.wait_for_event("SyncLoadBalancerFailed", "").await.unwrap();
    let mut dns = Command::new("dnsmasq");
    dns.args(["--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--pid-file="])
        .args(["--bind-interfaces", "--listen-address=127.0.0.1", "--user=root", "--group=root"])
        .arg(format!("--address=/{HARVESTER_NAME}/{HARVESTER}"));
    let _dns = bed.ccm().host().spawn("dns", dns).unwrap();
    let begin = Instant::now();
    web.published().await.unwrap();
    eprintln!("published {} ms after the name could be resolved", begin.elapsed().as_millis());
    deleted(&case, &["web"]).await;
    bed.write_cloud_config(&text).unwrap();
}

/// What was made since the backup is unknown afterwards, and what was deleted since is back.
#[tokio::test]
async fn a_guest_restored_from_a_backup_keeps_its_addresses_and_deletes_nothing() {
    if !e2e::skip() {
        restored(false).await;
    }
}

/// The controller sees Services vanish that it served.
#[tokio::test]
async fn a_controller_that_goes_on_through_a_restore_of_the_guest_deletes_nothing() {
    if !e2e::skip() {
        restored(true).await;
    }
}

async fn restored(goes_on: bool) {
    let (_alone, bed) = alone("1.8").await;
    let case = bed.case(if goes_on { "restored" } else { "backup" }).await.unwrap();
    let kept = case.created("kept").await.unwrap();
    case.created("deleted-since").await.unwrap();
    let_it_happen(3).await;
    let backup = bed.control_plane.backup().unwrap();
    deleted(&case, &["deleted-since"]).await;
    let lost = case.created("made-since").await.unwrap();
    let uid = case.named("kept").load_balancer().await.unwrap().unwrap().uid();
    if !goes_on {
        bed.ccm().stop().unwrap();
    }
    bed.control_plane.restore(&backup).await.unwrap();
    if !goes_on {
        bed.ccm().start().unwrap();
    }
    bed.wait_until_ccm_is_ready().await.unwrap();
    // Back, it asks for an address again; who holds one by now keeps it.
    let back = case.named("deleted-since");
    wait_for("an address that is booked for the Service that is back", PATIENCE, || async {
        let published = back.published().await.map_err(|error| format!("{error:#}"))?;
        let lb = back.load_balancer().await.map_err(|error| format!("{error:#}"))?;
        let booked = lb.as_ref().and_then(LoadBalancer::usable_address).map(ToOwned::to_owned);
        let good = booked.as_ref() == Some(&published) && published != lost && published != kept;
        if good { Ok(()) } else { Err(format!("{published}, booked {booked:?}")) }
    })
    .await
    .unwrap();
    assert_eq!(case.named("kept").published().await.unwrap(), kept);
    assert_eq!(case.named("kept").load_balancer().await.unwrap().unwrap().uid(), uid);
    let_it_happen(5).await;
    let unknown =
        load_balancers(&bed).await.into_iter().filter(|lb| lb.usable_address() == Some(lost.as_str())).count();
    assert_eq!(unknown, 1, "what was made since is reported as garbage and not deleted");
    let told = bed.ccm_readyz().unwrap();
    assert!(told.0, "{}", told.1);
}
