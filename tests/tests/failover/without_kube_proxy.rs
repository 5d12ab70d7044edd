//! A cluster without kube-proxy: something else translates the addresses of Services, as Cilium does. Nobody listens on
//! kube-proxy's health port, and that is no defect of a node.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::Result;
use e2e::watch::{FAILOVER, let_it_happen};
use e2e::{Bed, PATIENCE, service, wait_for};
use serde_json::{Value, json};
use testbed::{ProxyMode, SimPod};

use super::vip::{Vip, at_most};

/// Where the announcer asks kube-proxy for its health.
const KUBE_PROXY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10256);
/// The ClusterIP of the Service, which has to be known before the Service is made. It is of the part of the range that
/// the API server gives away last.
const CLUSTER_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 80);
/// What would be told if the nodes counted as ill, or the address as not served.
const TROUBLE: [&str; 3] = ["NoHealthyNode", "AddressNotServed", "CannotAnnounce"];

/// On each node, connections to port 80 of these addresses lead to this pod, whether they come from outside or from the
/// node. The pod sees an address of the node, so that its answers come back the same way.
fn translate(bed: &Bed, addresses: [Ipv4Addr; 2], pod: &SimPod) {
    let chain = |hook: &str, priority: i32, rule: &str| {
        format!(" chain {hook} {{\n  type nat hook {hook} priority {priority}\n  {rule}\n }}\n")
    };
    let addresses = addresses.map(|address| address.to_string()).join(", ");
    let to_pod = format!("ip daddr {{ {addresses} }} tcp dport 80 dnat to {}:{}", pod.ipv4, e2e::bed::ECHO_PORTS[0]);
    let chains = [
        chain("prerouting", -100, &to_pod),
        chain("output", -100, &to_pod),
        chain("postrouting", 100, &format!("ip daddr {} masquerade", pod.ipv4)),
    ];
    // One transaction replaces the table: no connection comes in between.
    let script = format!("table ip cni\ndelete table ip cni\ntable ip cni {{\n{}}}\n", chains.concat());
    for host in bed.lan.hosts() {
        host.namespace().nft(script.clone()).unwrap();
    }
}

/// What `announcer status` prints on node `n`. It fails if an address is not announced, or does not answer a node that
/// asks it.
fn status(bed: &Bed, n: usize) -> Result<Value> {
    let kubeconfig = bed.control_plane.admin()?.inside.display().to_string();
    let words = ["announcer", "status", "-o", "json", "--kubeconfig", kubeconfig.as_str()];
    Ok(serde_json::from_str(&bed.announcer(n).exec(&words)?)?)
}

/// Waits until all of these nodes, and no others, say that they can serve, and all but the owner that the address is
/// served.
async fn all_is_well(vip: &Vip<'_>, owner: usize, living: &[usize]) {
    let name = |n: &usize| vip.bed.lan.host(*n).name();
    let serving: Vec<&str> = living.iter().map(name).collect();
    let asking: Vec<&str> = living.iter().filter(|n| **n != owner).map(name).collect();
    wait_for(&format!("{serving:?} to serve, {asking:?} to be served by {}", vip.web), PATIENCE, || async {
        let report = status(vip.bed, owner).map_err(|error| format!("{error:#}"))?;
        let rows = |list: &str| report[list].as_array().cloned().unwrap_or_default();
        let mut leases = rows("leases");
        leases.retain(|lease| lease["expired"] == false && lease["serving"] == true);
        let found: Vec<&str> = leases.iter().filter_map(|lease| lease["holder"].as_str()).collect();
        let row = rows("vips").into_iter().find(|row| row["service"] == vip.web.to_string()).unwrap_or_default();
        let probes = json!({"served": asking, "refused": [], "noAnswer": []});
        if found == serving && row["probes"] == probes { Ok(()) } else { Err(format!("{found:?}, {row}")) }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_address_of_a_cluster_without_kube_proxy_is_served_and_taken_over_as_anywhere() {
    if e2e::skip() {
        return;
    }
    let builder = e2e::vip::three_nodes().proxy(ProxyMode::None).announcer_env("vip_probe", "true");
    let bed = builder.start().await.unwrap();
    let case = bed.case("cni").await.unwrap();
    let addresses = [bed.lan.ipv4(158), CLUSTER_IP];
    translate(&bed, addresses, bed.pod(1));
    let vip = Vip::of(&bed, &case, 158, service("web").set("clusterIP", CLUSTER_IP.to_string())).await;
    for host in bed.lan.hosts() {
        let health = e2e::bed::get(host, KUBE_PROXY, "/healthz");
        assert!(health.is_err(), "somebody answers in kube-proxy's place on {}: {health:?}", host.name());
    }
    // The pod must not be lost with the owner. It is not on the first in line either, so that the next owner reaches it
    // over the LAN.
    let [next, third] = [vip.owner % 3 + 1, (vip.owner + 1) % 3 + 1];
    translate(&bed, addresses, bed.pod(third));
    vip.web.wait_until_every_node_serves(80).await.unwrap();
    all_is_well(&vip, vip.owner, &[1, 2, 3]).await;

    let (term, watch) = (vip.term().await, vip.watch());
    bed.power_off(vip.owner).unwrap();
    let second = vip.moved_from(vip.owner).await;
    let_it_happen(2).await;
    at_most(FAILOVER, "power loss without kube-proxy", watch).unwrap();
    let moved = vip.term().await;
    assert!(moved > term, "{moved} after {term}");

    // This lasts until the Lease of the lost node has run out. Whoever was ill since its start has told it by then.
    let mut living = [next, third];
    living.sort_unstable();
    all_is_well(&vip, second, &living).await;
    vip.is_announced_by(second).await;
    assert_eq!(vip.term().await, moved, "nothing moves because of kube-proxy");
    let mut told = vip.web.events().await.unwrap();
    told.retain(|event| TROUBLE.contains(&event.reason.as_str()));
    assert!(told.is_empty(), "{told:#?}");
    vip.is_deleted().await;
}
