//! What the announcer does with a Service, asked by kube-vip's annotations alone: no cloud controller manager takes
//! part.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use e2e::case::{ingress, seen};
use e2e::{Bed, Exposed, PATIENCE, Shared, service, wait_for};
use harvester_api::keys::kube_vip;
use serde_json::json;
use testbed::echo::field;

static BED: Shared<Bed> = Shared::new();

/// Each test has last bytes of its own for its addresses. Nobody ends an announcer here, but one that has to wait for
/// its turn may be passed over: who owns an address is waited for.
async fn bed() -> Arc<Bed> {
    BED.get(|| Bed::builder().without_ccm().without_pool().start()).await.unwrap()
}

/// The address is on the NIC of the node that the Service names; that node's number.
async fn on_its_node(bed: &Bed, web: &Exposed<'_>, address: IpAddr) -> usize {
    let owner = bed.wait_for_owner(address).await.unwrap();
    web.wait_for_vip_host(bed.lan.host(owner).name()).await.unwrap();
    owner
}

#[tokio::test]
async fn an_ipv6_address_is_answered_by_ndp_and_reachable() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("ipv6").await.unwrap();
    let address = IpAddr::from(bed.lan.ipv6(150));
    let spec = service("web").at(&address.to_string()).set("ipFamilies", json!(["IPv6"]));
    let web = case.expose(spec.set("ipFamilyPolicy", "SingleStack").tcp(80)).await.unwrap();
    web.wait_for_addresses(&[address]).await.unwrap();
    let reply = web.reply(address, 80).await.unwrap();
    assert!(field(&reply, "pod").is_some_and(|pod| pod.starts_with("echo-node")), "{reply}");
    let owner = on_its_node(&bed, &web, address).await;
    let mac = bed.lan.host(owner).mac();
    bed.wait_until_the_client_knows(address, &mac).await.unwrap();
    // Not only from an announcement: asked anew by neighbour solicitation.
    bed.lan.client().forget_neighbour(address).unwrap();
    web.reply(address, 80).await.unwrap();
    bed.wait_until_the_client_knows(address, &mac).await.unwrap();

    web.delete().await.unwrap();
    wait_for("the address to be gone", PATIENCE, || async {
        bed.owner_of(address).unwrap().map_or(Ok(()), |n| Err(format!("on node{n}")))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_dual_stack_service_answers_in_both_families() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("dual").await.unwrap();
    let (v4, v6) = (IpAddr::from(bed.lan.ipv4(151)), IpAddr::from(bed.lan.ipv6(151)));
    for (name, first, second) in [("four", v4, v6), ("six", v6, v4)] {
        let families = if first.is_ipv4() { json!(["IPv4", "IPv6"]) } else { json!(["IPv6", "IPv4"]) };
        let spec = service(name).at(&format!("{first},{second}")).set("ipFamilies", families);
        let web = case.expose(spec.set("ipFamilyPolicy", "RequireDualStack").tcp(80)).await.unwrap();
        web.wait_for_addresses(&[first, second]).await.unwrap();
        let replies = [web.reply(v4, 80).await.unwrap(), web.reply(v6, 80).await.unwrap()];
        for reply in replies {
            assert!(field(&reply, "pod").is_some(), "{reply}");
        }
        assert_eq!(on_its_node(&bed, &web, v4).await, on_its_node(&bed, &web, v6).await);
        web.delete_with(v4).await.unwrap();
        wait_for("the other address to go as well", PATIENCE, || async {
            bed.owner_of(v6).map_err(|error| format!("{error:#}"))?.map_or(Ok(()), |n| Err(format!("on node{n}")))
        })
        .await
        .unwrap();
    }
}

/// The kernel takes the address that a program asks as its source, too, if it is one of the node: service security must
/// let the answers in.
#[tokio::test]
async fn programs_on_each_nodes_own_network_reach_the_address_also_where_it_is() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("inside").await.unwrap();
    let (v4, v6) = (IpAddr::from(bed.lan.ipv4(152)), IpAddr::from(bed.lan.ipv6(152)));
    let spec = service("web").at(&format!("{v4},{v6}")).set("ipFamilies", json!(["IPv4", "IPv6"]));
    let web = case.expose(spec.set("ipFamilyPolicy", "RequireDualStack").tcp(80)).await.unwrap();
    web.wait_for_addresses(&[v4, v6]).await.unwrap();
    web.reply(v4, 80).await.unwrap();
    web.reply(v6, 80).await.unwrap();
    let owner = on_its_node(&bed, &web, v4).await;
    let all: Vec<_> = bed.pods().into_iter().collect();
    let (here, elsewhere): (Vec<_>, Vec<_>) = all.into_iter().partition(|pod| pod.node == bed.lan.host(owner).name());
    for (pods, of) in [(here, "this node"), (elsewhere, "another node")] {
        web.publish(&pods).await.unwrap();
        web.wait_until_every_node_serves(80).await.unwrap();
        for address in [v4, v6] {
            for n in 1..=bed.lan.hosts().len() {
                let what =
                    format!("an answer of a pod of {of} at {address} for a program of node{n}, owner node{owner}");
                wait_for(&what, PATIENCE, || async {
                    let answer = bed.lan.host(n).http_get((address, 80).into(), Duration::from_secs(2));
                    answer.map(drop).map_err(|error| format!("{error:#}"))
                })
                .await
                .unwrap();
            }
        }
    }
    web.delete_with(v4).await.unwrap();
}

/// kube-vip spec 9.1 A3.
#[tokio::test]
async fn two_services_with_one_address_keep_it_until_the_last_one_goes() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("one-address").await.unwrap();
    let address = IpAddr::from(bed.lan.ipv4(163));
    let first = case.expose(service("first").at(&address.to_string()).tcp(80)).await.unwrap();
    first.wait_for_addresses(&[address]).await.unwrap();
    let second = case.expose(service("second").at(&address.to_string()).tcp(81)).await.unwrap();
    second.wait_for_addresses(&[address]).await.unwrap();
    first.reply(address, 80).await.unwrap();
    second.reply(address, 81).await.unwrap();
    first.delete().await.unwrap();
    wait_for("the first Service's port to be closed", PATIENCE, || async {
        second.ask(address, 80).map_or(Ok(()), |reply| Err(format!("it answers {reply}")))
    })
    .await
    .unwrap();
    second.reply(address, 81).await.unwrap();
    bed.wait_for_one_mac(address).await.unwrap();
    second.delete_with(address).await.unwrap();
}

#[tokio::test]
async fn a_new_address_replaces_the_old_one() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("renumbered").await.unwrap();
    let (old, new) = (IpAddr::from(bed.lan.ipv4(153)), IpAddr::from(bed.lan.ipv4(154)));
    let web = case.expose(service("web").at(&old.to_string()).tcp(80)).await.unwrap();
    web.reply(old, 80).await.unwrap();
    web.annotate(kube_vip::LOADBALANCER_IPS, Some(&new.to_string())).await.unwrap();
    web.wait_for_addresses(&[new]).await.unwrap();
    web.reply(new, 80).await.unwrap();
    web.wait_until_withdrawn(old).await.unwrap();
}

#[tokio::test]
async fn ports_of_a_live_service_change_in_its_status_and_on_the_wire() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("ports").await.unwrap();
    let address = IpAddr::from(bed.lan.ipv4(155));
    let web = case.expose(service("web").at(&address.to_string()).tcp(80)).await.unwrap();
    web.reply(address, 80).await.unwrap();
    let ports = json!({"spec": {"ports": [
        {"name": "a", "protocol": "TCP", "port": 8443, "targetPort": 8080},
        {"name": "b", "protocol": "UDP", "port": 53, "targetPort": 8080},
    ]}});
    web.patch(ports).await.unwrap();
    web.publish(&bed.pods()).await.unwrap();
    web.wait_for("the new ports in its status", |service| {
        let ports: Vec<(i32, String)> = ingress(service)
            .iter()
            .flat_map(|ingress| ingress.ports.iter().flatten().map(|port| (port.port, port.protocol.clone())))
            .collect();
        let wanted = [(8443, "TCP".to_owned()), (53, "UDP".to_owned())];
        if ports == wanted { Ok(()) } else { Err(format!("{ports:?}")) }
    })
    .await
    .unwrap();
    web.reply(address, 8443).await.unwrap();
    web.udp_reply(address, 53).await.unwrap();
}

#[tokio::test]
async fn type_class_and_the_ignore_annotation_take_effect_on_a_live_service() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("ours").await.unwrap();
    let address = IpAddr::from(bed.lan.ipv4(156));
    let web = case.expose(service("web").at(&address.to_string()).tcp(80)).await.unwrap();
    web.reply(address, 80).await.unwrap();

    web.annotate(kube_vip::IGNORE, Some("true")).await.unwrap();
    web.wait_until_withdrawn(address).await.unwrap();
    web.annotate(kube_vip::IGNORE, None).await.unwrap();
    web.reply(address, 80).await.unwrap();

    web.patch(json!({"spec": {"type": "ClusterIP"}})).await.unwrap();
    web.wait_until_withdrawn(address).await.unwrap();
    assert!(ingress(&web.get().await.unwrap()).is_empty());

    // The class of a Service can only be chosen when it becomes a LoadBalancer.
    web.patch(json!({"spec": {"type": "LoadBalancer", "loadBalancerClass": "example.com/another"}})).await.unwrap();
    let proof = case.expose(service("proof").at(&bed.lan.ipv4(157).to_string()).tcp(80)).await.unwrap();
    proof.address().await.unwrap();
    assert_eq!(bed.owner_of(address).unwrap(), None, "another class is somebody else's");
    assert!(ingress(&web.get().await.unwrap()).is_empty());
    web.patch(json!({"spec": {"type": "ClusterIP", "loadBalancerClass": null}})).await.unwrap();
    let ours = json!({"spec": {"type": "LoadBalancer", "loadBalancerClass": "kube-vip.io/kube-vip-class"}});
    web.patch(ours).await.unwrap();
    web.wait_for_addresses(&[address]).await.unwrap();
    web.reply(address, 80).await.unwrap();
    on_its_node(&bed, &web, address).await;
}

#[tokio::test]
async fn an_interface_that_does_not_exist_is_named_and_used_when_it_appears() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("interface").await.unwrap();
    let address = IpAddr::from(bed.lan.ipv4(158));
    // An address on eth0 throughout, so that eth0 never answers for what is on another NIC of the same LAN.
    let other = case.expose(service("other").at(&bed.lan.ipv4(162).to_string()).tcp(80)).await.unwrap();
    let beside = other.address().await.unwrap();
    let spec = service("web").at(&address.to_string()).annotation(kube_vip::SERVICE_INTERFACE, "uplink7");
    let web = case.expose(spec.tcp(80)).await.unwrap();
    let told = web.wait_for_event("CannotAnnounce", "uplink7").await.unwrap();
    assert_eq!(told.kind, "Warning");
    for part in [kube_vip::SERVICE_INTERFACE, "\"uplink7\"", "does not exist", "eth0", "mgmt0"] {
        assert!(told.message.contains(part), "{part:?} is missing in: {}", told.message);
    }
    assert!(ingress(&web.get().await.unwrap()).is_empty(), "nobody is told of an address that does not answer");
    assert_eq!(bed.macs(address).unwrap(), Vec::<String>::new());

    // Whichever node has the interface gets the address, also one that has others already.
    let owner = bed.lan.host(bed.wait_for_owner(beside).await.unwrap());
    // Two NICs in one LAN: the administrator sees to it that the unused one is silent, from its first moment. It would
    // answer for the addresses of all tests.
    owner.namespace().sysctl("net/ipv4/conf/default/arp_ignore", "1").unwrap();
    let nic = owner.attach(bed.lan.segment(), "uplink7", &[]).unwrap();
    owner.namespace().sysctl("net/ipv4/conf/default/arp_ignore", "0").unwrap();
    assert_eq!(owner.exec(["cat", "/proc/sys/net/ipv4/conf/uplink7/arp_ignore"]).unwrap().trim(), "1");
    web.wait_for_addresses(&[address]).await.unwrap();
    web.reply(address, 80).await.unwrap();
    bed.wait_for_mac(address, nic.mac()).await.unwrap();

    // A typing error later on a live Service: told as well, and mended.
    web.annotate(kube_vip::SERVICE_INTERFACE, Some("uplink8")).await.unwrap();
    web.wait_for_event("CannotAnnounce", "uplink8").await.unwrap();
    web.annotate(kube_vip::SERVICE_INTERFACE, None).await.unwrap();
    bed.wait_for_mac(address, &owner.mac()).await.unwrap();
    web.reply(address, 80).await.unwrap();
}

#[tokio::test]
async fn an_address_that_somebody_else_uses_is_not_announced_until_it_is_free() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("squatter").await.unwrap();
    for (name, address) in [("four", IpAddr::from(bed.lan.ipv4(159))), ("six", IpAddr::from(bed.lan.ipv6(160)))] {
        let squatter = bed.lan.add_host("squatter", if address.is_ipv4() { 159 } else { 160 }).unwrap();
        let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
        let spec = service(name).at(&address.to_string()).set("ipFamilies", json!([family]));
        let web = case.expose(spec.tcp(80)).await.unwrap();
        let told = web.wait_for_event("AddressConflict", &address.to_string()).await.unwrap();
        assert_eq!(told.kind, "Warning");
        for part in [squatter.mac().as_str(), "already used", "eth0"] {
            assert!(told.message.contains(part), "{part:?} is missing in: {}", told.message);
        }
        assert_eq!(bed.owner_of(address).unwrap(), None);
        let object = web.get().await.unwrap();
        assert!(ingress(&object).is_empty(), "{}", seen(&object));
        if address.is_ipv4() {
            // The other one is left in peace.
            bed.wait_for_mac(address, &squatter.mac()).await.unwrap();
        }
        drop(squatter);
        web.wait_for_addresses(&[address]).await.unwrap();
        bed.lan.client().forget_neighbour(address).unwrap();
        web.reply(address, 80).await.unwrap();
    }
}

#[tokio::test]
async fn an_address_that_cannot_be_read_is_told_with_what_is_accepted_and_does_not_stop_the_others() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("nonsense").await.unwrap();
    let address = IpAddr::from(bed.lan.ipv4(161));
    let web = case.expose(service("web").at(&format!("192.168.100.1600,{address}")).tcp(80)).await.unwrap();
    let told = web.wait_for_event("CannotAnnounce", "192.168.100.1600").await.unwrap();
    assert!(told.message.contains(kube_vip::LOADBALANCER_IPS), "{}", told.message);
    web.reply(address, 80).await.unwrap();
    let lease =
        case.expose(service("lease").at("0.0.0.0").annotation(kube_vip::HWADDR, "00:11:22").tcp(80)).await.unwrap();
    let told = lease.wait_for_event("CannotAnnounce", "00:11:22").await.unwrap();
    assert!(told.message.contains(kube_vip::HWADDR), "{}", told.message);
    lease.annotate(kube_vip::HWADDR, None).await.unwrap();
    let address = lease.address().await.unwrap();
    lease.reply(address, 80).await.unwrap();
}
