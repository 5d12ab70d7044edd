//! What a user of LoadBalancer Services sees: scenarios of framework spec section 6, and the three ways to
//! an address.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use e2e::case::{ingress, seen};
use e2e::{Bed, Exposed, Shared, service, wait_for};
use harvester_api::keys::kube_vip;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use serde_json::json;
use testbed::echo::field;

#[path = "services/changes.rs"]
mod changes;
#[path = "services/sharing.rs"]
mod sharing;

const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
const CLIENT: &str = "192.168.100.50";

static BED: Shared<Bed> = Shared::new();

async fn bed() -> Arc<Bed> {
    BED.get(|| Bed::builder().start()).await.unwrap()
}

fn node_port(service: &Service, index: usize) -> Option<i32> {
    service.spec.as_ref()?.ports.as_ref()?.get(index)?.node_port
}

fn last_byte(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(address) => address.octets()[3],
        IpAddr::V6(_) => panic!("{address} is no IPv4 address"),
    }
}

/// Waits until exactly one machine answers ARP for the address, with its NIC's own MAC, and the Service names it.
async fn is_answered_by_its_owner_alone(bed: &Bed, web: &Exposed<'_>, address: IpAddr) {
    wait_for("one node that has the address, is named and answers alone", e2e::PATIENCE, || async {
        let named = web.annotation(kube_vip::VIP_HOST).await.map_err(|error| format!("{error:#}"))?;
        let owner = bed.owner_of(address).map_err(|error| format!("{error:#}"))?;
        let macs = bed.macs(address).map_err(|error| format!("{error:#}"))?;
        let host = owner.map(|n| bed.lan.host(n));
        let agreed = host.is_some_and(|host| host.name() == named && macs == [host.mac()]);
        if agreed { Ok(()) } else { Err(format!("{named:?} is named, node {owner:?} has it, {macs:?} answer")) }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_pool_service_gets_an_address_of_the_pool_and_answers() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("pool").await.unwrap();
    let web = case.expose(service("web").tcp(80)).await.unwrap();
    let address = web.address().await.unwrap();
    assert!(e2e::bed::POOL_RANGE.contains(&last_byte(address)), "{address} is of the pool");
    let reply = web.reply(address, 80).await.unwrap();
    assert!(field(&reply, "pod").is_some_and(|pod| pod.starts_with("echo-node")), "{reply}");
    is_answered_by_its_owner_alone(&bed, &web, address).await;

    web.settled().await.unwrap();
    let lb = web.load_balancer().await.unwrap().unwrap();
    let allocated = lb.status.clone().unwrap().allocated_address;
    assert_eq!(allocated.ip, Some(address.to_string()));
    let owner = format!("{}/{}", e2e::VM_NAMESPACE, lb.name_any());
    let bookings = bed.bookings(e2e::bed::POOL).await.unwrap();
    assert!(bookings.contains(&(address.to_string(), owner.clone())), "{owner} in {bookings:?}");
    let object = web.get().await.unwrap();
    assert_eq!(object.annotations()[kube_vip::LOADBALANCER_IPS], address.to_string());
    assert_eq!(object.finalizers(), [FINALIZER]);
}

#[tokio::test]
async fn a_dhcp_service_gets_a_lease_under_a_mac_of_its_own_and_answers() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("dhcp").await.unwrap();
    let web = case.expose(service("web").ipam("dhcp").tcp(80)).await.unwrap();
    let address = web.address().await.unwrap();
    assert!((200..=250).contains(&last_byte(address)), "{address} is the DHCP server's");
    web.reply(address, 80).await.unwrap();
    let object = web.get().await.unwrap();
    let annotations = object.annotations();
    assert_eq!(annotations[kube_vip::LOADBALANCER_IPS], "0.0.0.0", "the request for DHCP stays");
    assert_eq!(annotations[kube_vip::REQUESTED_IP], address.to_string());
    let mac = annotations[kube_vip::HWADDR].clone();
    let leases = bed.lan.dhcp().leases().unwrap();
    assert!(leases.iter().any(|lease| IpAddr::from(lease.address) == address && lease.mac == mac), "{mac} {leases:?}");
    // Only the macvlan answers, not the node's own NIC.
    bed.wait_for_mac(address, &mac).await.unwrap();
    let n = bed.wait_for_owner(address).await.unwrap();
    let link = format!("vip-{}", &object.uid().unwrap()[..8]);
    assert!(bed.lan.host(n).interfaces().unwrap().contains(&link), "{link} on node{n}");
    web.settled().await.unwrap();
    let lb = web.load_balancer().await.unwrap().unwrap();
    assert_eq!(lb.spec.ipam.as_deref(), Some("dhcp"));
}

fn health_port(service: &Service) -> Option<i32> {
    service.spec.as_ref()?.health_check_node_port.filter(|port| *port != 0)
}

#[tokio::test]
async fn scenario_11_with_local_policy_pods_see_the_clients_address() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("local").await.unwrap();
    let web = case.expose(service("web").set("externalTrafficPolicy", "Local").tcp(80)).await.unwrap();
    let address = web.address().await.unwrap();
    let reply = web.reply(address, 80).await.unwrap();
    assert_eq!(field(&reply, "client"), Some(CLIENT), "{reply}");
    let owner = web.get().await.unwrap().annotations()[kube_vip::VIP_HOST].clone();
    assert_eq!(field(&reply, "node"), Some(owner.as_str()), "only pods of the announcing node answer");
    let object = web.get().await.unwrap();
    let port = u16::try_from(health_port(&object).expect("Local policy has a health check port")).unwrap();
    let health = SocketAddr::from((bed.lan.host(1).ipv4(), port));
    wait_for("the health check port", e2e::PATIENCE, || async {
        bed.lan.client().http_get(health, Duration::from_secs(2)).map_err(|error| format!("{error:#}"))
    })
    .await
    .unwrap();
    web.patch(json!({"spec": {"type": "ClusterIP", "externalTrafficPolicy": null}})).await.unwrap();
    web.wait_for("no health check port", |object| health_port(object).map_or(Ok(()), |port| Err(format!("{port}"))))
        .await
        .unwrap();
    web.wait_until_withdrawn(address).await.unwrap();
}

/// Kubernetes' own suite, Helm's `--wait` and checks of health by GitOps wait for the address before there is an
/// endpoint.
#[tokio::test]
async fn with_local_policy_the_address_comes_at_once_and_is_announced_with_the_first_endpoint() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("unready").await.unwrap();
    let web = case.create(service("web").set("externalTrafficPolicy", "Local").tcp(80)).await.unwrap();
    let address = web.address().await.unwrap();
    assert_eq!(bed.macs(address).unwrap(), Vec::<String>::new(), "nobody answers for {address}");
    assert_eq!(web.get().await.unwrap().annotations().get(kube_vip::VIP_HOST), None, "nor is anybody named");
    for n in [2, 1] {
        let pod = bed.pod(n);
        web.publish(&[pod]).await.unwrap();
        wait_for("a reply of the only endpoint", e2e::PATIENCE, || async {
            let reply = web.ask(address, 80).map_err(|error| format!("{error:#}"))?;
            if field(&reply, "node") == Some(pod.node.as_str()) { Ok(()) } else { Err(reply) }
        })
        .await
        .unwrap();
        is_answered_by_its_owner_alone(&bed, &web, address).await;
    }
    // No other node would do better.
    web.publish(&[]).await.unwrap();
    web.wait_for_event("NoLocalEndpoint", "no node has a ready endpoint").await.unwrap();
    assert_eq!(ingress(&web.get().await.unwrap())[0].ip, Some(address.to_string()));
}

#[tokio::test]
async fn scenario_15_the_traffic_policy_changes_both_ways_without_changing_the_address() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("policy").await.unwrap();
    // Of the lower band: it is given back and asked for again, and nobody else may have it by then.
    let port = 30_005;
    let spec = service("web").set("externalTrafficPolicy", "Local").set("healthCheckNodePort", port);
    let web = case.expose(spec.tcp(80)).await.unwrap();
    let address = web.address().await.unwrap();
    web.reply(address, 80).await.unwrap();
    assert_eq!(health_port(&web.get().await.unwrap()), Some(port));
    let sees = async |what: &str, wanted: fn(&str) -> bool| {
        wait_for(what, e2e::PATIENCE, || async {
            let reply = web.ask(address, 80).map_err(|error| format!("{error:#}"))?;
            if field(&reply, "client").is_some_and(wanted) { Ok(()) } else { Err(reply) }
        })
        .await
    };

    web.patch(json!({"spec": {"externalTrafficPolicy": "Cluster", "healthCheckNodePort": null}})).await.unwrap();
    sees("the client's address to be masqueraded", |client| client != CLIENT).await.unwrap();
    assert_eq!(health_port(&web.get().await.unwrap()), None);
    // Every node forwards now: only pods that are not on the announcing node are left.
    let owner = bed.wait_for_owner(address).await.unwrap();
    let others: Vec<_> = (1..=2).filter(|n| *n != owner).map(|n| bed.pod(n)).collect();
    web.publish(&others).await.unwrap();
    wait_for("an answer from another node", e2e::PATIENCE, || async {
        let reply = web.ask(address, 80).map_err(|error| format!("{error:#}"))?;
        if field(&reply, "node") == Some(others[0].node.as_str()) { Ok(()) } else { Err(reply) }
    })
    .await
    .unwrap();
    web.publish(&bed.pods()).await.unwrap();

    web.patch(json!({"spec": {"externalTrafficPolicy": "Local", "healthCheckNodePort": port}})).await.unwrap();
    sees("the client's own address again", |client| client == CLIENT).await.unwrap();
    let object = web.get().await.unwrap();
    assert_eq!(health_port(&object), Some(port));
    assert_eq!(ingress(&object)[0].ip, Some(address.to_string()));
}

#[tokio::test]
async fn scenario_18_a_service_of_another_class_is_left_alone() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("class").await.unwrap();
    let mark = bed.mark();
    let classy = case.expose(service("classy").set("loadBalancerClass", "example.com/x").tcp(80)).await.unwrap();
    // A later Service of ours that has its address: the other one was seen before it.
    let ours = case.expose(service("ours").tcp(80)).await.unwrap();
    ours.settled().await.unwrap();
    let object = classy.get().await.unwrap();
    assert!(object.finalizers().is_empty() && ingress(&object).is_empty(), "{}", seen(&object));
    assert!(object.annotations().is_empty(), "{}", seen(&object));
    assert!(classy.load_balancer().await.unwrap().is_none());
    assert_eq!(classy.events().await.unwrap(), []);
    let costs = bed.costs(mark).unwrap();
    let writes = costs.ccm_guest.iter().chain(&costs.announcer);
    let about_it: Vec<_> = writes
        .filter(|request| {
            request.namespace.as_deref() == Some(case.namespace()) && request.name.as_deref() == Some("classy")
        })
        .collect();
    assert!(about_it.is_empty(), "{about_it:?}");
}

#[tokio::test]
async fn scenario_19_the_ip_mode_is_vip_and_one_that_somebody_else_sets_is_kept() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("ipmode").await.unwrap();
    let web = case.expose(service("web").tcp(80)).await.unwrap();
    let address = web.settled().await.unwrap();
    let shows = |mode: &'static str, ports: &'static [i32]| {
        let address = address.to_string();
        move |object: &Service| {
            let ingress = ingress(object);
            let found = ingress.iter().any(|entry| {
                let found: Vec<i32> = entry.ports.iter().flatten().map(|port| port.port).collect();
                entry.ip.as_ref() == Some(&address) && entry.ip_mode.as_deref() == Some(mode) && found == ports
            });
            if found { Ok(()) } else { Err(format!("{ingress:?}")) }
        }
    };
    web.wait_for("ipMode VIP", shows("VIP", &[80])).await.unwrap();
    // kube-proxy of this bed would stop serving the address on the node: somebody who sets this has something else in
    // front.
    let ports = json!([{"port": 80, "protocol": "TCP"}]);
    let proxy = json!({"status": {"loadBalancer": {"ingress": [{"ip": address.to_string(), "ipMode": "Proxy",
        "ports": ports}]}}});
    web.patch_status(proxy).await.unwrap();
    let more = json!({"spec": {"ports": [{"name": "a", "port": 80, "targetPort": 8080},
        {"name": "b", "port": 81, "targetPort": 8081}]}});
    web.patch(more).await.unwrap();
    web.wait_for("both ports, with ipMode Proxy", shows("Proxy", &[80, 81])).await.unwrap();
}

#[tokio::test]
async fn deleting_a_pool_service_leaves_nothing() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("bye-pool").await.unwrap();
    let web = case.expose(service("web").tcp(80)).await.unwrap();
    let address = web.settled().await.unwrap();
    web.reply(address, 80).await.unwrap();
    web.delete().await.unwrap();
    web.wait_until_gone().await.unwrap();
    web.wait_until_withdrawn(address).await.unwrap();
    assert!(web.load_balancer().await.unwrap().is_none(), "the Service goes after its LoadBalancer");
    let bookings = bed.bookings(e2e::bed::POOL).await.unwrap();
    assert!(bookings.iter().all(|(booked, _)| *booked != address.to_string()), "{bookings:?}");
    web.wait_for_event("DeletedLoadBalancer", "Deleted load balancer").await.unwrap();
}

#[tokio::test]
async fn deleting_a_dhcp_service_leaves_nothing() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("bye-dhcp").await.unwrap();
    let web = case.expose(service("web").ipam("dhcp").tcp(80)).await.unwrap();
    let address = web.settled().await.unwrap();
    web.reply(address, 80).await.unwrap();
    let object = web.get().await.unwrap();
    let (mac, link) = (object.annotations()[kube_vip::HWADDR].clone(), format!("vip-{}", &object.uid().unwrap()[..8]));
    web.delete().await.unwrap();
    web.wait_until_gone().await.unwrap();
    web.wait_until_withdrawn(address).await.unwrap();
    wait_for("the lease to be released and the macvlan to be gone", e2e::PATIENCE, || async {
        let leases = bed.lan.dhcp().leases().map_err(|error| error.to_string())?;
        if let Some(lease) = leases.iter().find(|lease| lease.mac == mac) {
            return Err(format!("{lease:?}"));
        }
        for host in bed.lan.hosts() {
            if host.interfaces().map_err(|error| error.to_string())?.contains(&link) {
                return Err(format!("{link} on {}", host.name()));
            }
        }
        Ok(())
    })
    .await
    .unwrap();
    assert!(web.load_balancer().await.unwrap().is_none());
}
