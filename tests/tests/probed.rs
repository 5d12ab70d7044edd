//! Announced is not the same as served: what is seen, told and shown of a Service that is asked as a client would ask
//! it, when the path behind its address breaks and when it is mended.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use e2e::watch::{let_it_happen, nothing_was_written};
use e2e::{Bed, Exposed, PATIENCE, Shared, service, wait_for};
use harvester_api::keys::cloudprovider;
use serde_json::Value;

static BED: Shared<Bed> = Shared::new();
const NODES: u8 = 3;
/// Three misses, five seconds apart, and the renewal of a Lease.
const SEEN: Duration = Duration::from_secs(21);

async fn bed() -> Arc<Bed> {
    let builder = Bed::builder().nodes(NODES).without_ccm().without_pool();
    BED.get(|| builder.announcer_env("election_mode", "node").start()).await.unwrap()
}

/// What `announcer status` says of this Service, and how it ends.
fn status(bed: &Bed, web: &Exposed<'_>) -> (Value, i32) {
    let kubeconfig = bed.control_plane.admin().unwrap().inside;
    let command = "\"$0\" announcer status -o json --kubeconfig \"$1\"; echo \"ended $?\"";
    let words = ["sh", "-c", command].map(str::to_owned).into_iter();
    let words = words.chain([e2e::product::binary().unwrap(), kubeconfig].map(|path| path.display().to_string()));
    let said = bed.lan.host(1).exec(words).unwrap();
    let (json, ended) = said.trim_end().rsplit_once("ended ").unwrap();
    let report: Value = serde_json::from_str(json).unwrap();
    let row = report["vips"].as_array().unwrap().iter().find(|row| row["service"] == web.to_string());
    (row.map_or(Value::Null, |row| row["probes"].clone()), ended.parse().unwrap())
}

/// Waits until so many nodes stand in each list of the report: served, refused, without an answer.
async fn wait_for_probes(bed: &Bed, web: &Exposed<'_>, expected: [usize; 3]) {
    wait_for(&format!("{expected:?} nodes that ask {web}"), SEEN + PATIENCE, || async {
        let (probes, ended) = status(bed, web);
        let count = |list: &str| probes[list].as_array().map_or(0, Vec::len);
        let well = expected[1] + expected[2] == 0;
        let found = [count("served"), count("refused"), count("noAnswer")];
        if found == expected && (ended == 0) == well { Ok(()) } else { Err(format!("{probes} {ended}")) }
    })
    .await
    .unwrap();
}

fn metrics(bed: &Bed, n: usize) -> String {
    e2e::bed::get(bed.lan.host(n), (Ipv4Addr::LOCALHOST, 2112).into(), "/metrics").unwrap()
}

/// How many addresses do not answer node `n`, as its metrics say; absent: it has never said.
fn unserved(bed: &Bed, n: usize) -> Option<u32> {
    let text = metrics(bed, n);
    let line = text.lines().find(|line| line.starts_with("hcp_announcer_unserved{"))?.to_owned();
    line.rsplit(' ').next()?.parse().ok()
}

async fn wait_for_unserved(bed: &Bed, asking: &[usize], expected: u32) {
    wait_for(&format!("{expected} not served in the metrics"), PATIENCE, || async {
        let found: Vec<Option<u32>> = asking.iter().map(|n| unserved(bed, *n)).collect();
        if found.iter().all(|found| *found == Some(expected)) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await
    .unwrap();
}

/// How often it was told. An equal Event is no new object, but a higher count.
async fn times_told(web: &Exposed<'_>, reason: &str) -> i32 {
    let events = web.events().await.unwrap();
    events.iter().filter(|event| event.reason == reason).map(|event| event.count).sum()
}

#[tokio::test]
async fn a_path_that_breaks_behind_an_address_is_seen_told_once_and_its_end_too() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("probed").await.unwrap();
    let address = IpAddr::from(bed.lan.ipv4(156));
    let spec = service("web").at(&address.to_string()).annotation(cloudprovider::PROBE, "true");
    let web = case.expose(spec.tcp(80)).await.unwrap();
    web.reply(address, 80).await.unwrap();
    let owner = bed.wait_for_owner(address).await.unwrap();
    let asking: Vec<usize> = (1..=usize::from(NODES)).filter(|n| *n != owner).collect();
    wait_for_probes(&bed, &web, [2, 0, 0]).await;
    wait_for_unserved(&bed, &asking, 0).await;

    // The owner answers ARP and has its address, and drops what is meant for the port.
    let host = bed.lan.host(owner);
    let rule = format!("ip daddr {address} tcp dport 80 drop");
    let broken =
        format!("table inet broken {{\n chain in {{\n  type filter hook prerouting priority -300\n  {rule}\n }}\n}}\n");
    host.namespace().nft(broken).unwrap();
    wait_for_probes(&bed, &web, [0, 0, 2]).await;
    wait_for_unserved(&bed, &asking, 1).await;
    let told = web.wait_for_event("AddressNotServed", &address.to_string()).await.unwrap();
    for part in ["port 80", host.name(), "get no answer", "kube-proxy"] {
        assert!(told.message.contains(part), "{part}: {}", told.message);
    }
    assert!(told.kind == "Warning" && told.component == "harvester-announcer", "{told:?}");
    // Longer than the second in line waits for the first.
    tokio::time::sleep(SEEN).await;
    let told = [times_told(&web, "AddressNotServed").await, times_told(&web, "AddressServedAgain").await];
    assert_eq!(told, [1, 0]);

    host.namespace().nft("delete table inet broken").unwrap();
    wait_for_probes(&bed, &web, [2, 0, 0]).await;
    web.wait_for_event("AddressServedAgain", "accepts connections again").await.unwrap();
    wait_for_unserved(&bed, &asking, 0).await;

    // kube-proxy refuses what has no endpoint.
    web.publish(&[]).await.unwrap();
    wait_for_probes(&bed, &web, [0, 2, 0]).await;
    web.wait_for_event("AddressNotServed", "are refused").await.unwrap();
    web.publish(&bed.pods()).await.unwrap();
    wait_for_probes(&bed, &web, [2, 0, 0]).await;
    web.delete_with(address).await.unwrap();
}

#[tokio::test]
async fn a_service_that_is_served_costs_no_write_and_one_that_did_not_ask_for_it_is_not_asked() {
    if e2e::skip() {
        return;
    }
    let bed = Bed::builder().nodes(NODES).without_ccm().without_pool();
    let bed = bed.announcer_env("election_mode", "node").announcer_env("vip_probe", "true").start().await.unwrap();
    let case = bed.case("at-rest").await.unwrap();
    let (v4, v6) = (IpAddr::from(bed.lan.ipv4(157)), IpAddr::from(bed.lan.ipv6(157)));
    let both = service("both").at(&format!("{v4},{v6}")).set("ipFamilies", serde_json::json!(["IPv4", "IPv6"]));
    let both = case.expose(both.set("ipFamilyPolicy", "RequireDualStack").tcp(80)).await.unwrap();
    let address = IpAddr::from(bed.lan.ipv4(158));
    let spec = service("not").at(&address.to_string()).annotation(cloudprovider::PROBE, "false");
    let not = case.expose(spec.tcp(80)).await.unwrap();
    not.reply(address, 80).await.unwrap();
    both.reply(v4, 80).await.unwrap();
    both.reply(v6, 80).await.unwrap();
    wait_for_probes(&bed, &both, [2, 0, 0]).await;
    assert_eq!(status(&bed, &not).0, Value::Null);

    let mark = bed.mark();
    let_it_happen(12).await;
    nothing_was_written(&bed, mark).unwrap();
    // One renewal in five seconds for each node.
    let requests = bed.control_plane.audit().since(mark.guest).unwrap();
    let ours = |name: &Option<String>| name.as_ref().is_some_and(|name| name.starts_with("harvester-announcer-"));
    let renewed = requests.iter().filter(|it| it.is_write() && it.resource == "leases" && ours(&it.name));
    let renewals = renewed.count();
    assert!(renewals <= usize::from(NODES) * 4, "{renewals} writes of Leases in 12 s");
    let asked = metrics(&bed, bed.owner_of(v4).unwrap().map_or(1, |owner| owner % usize::from(NODES) + 1));
    assert!(asked.contains(r#"hcp_announcer_service_probes_total{node="node"#), "{asked}");
}
