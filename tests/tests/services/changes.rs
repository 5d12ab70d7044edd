//! Types and ports that change, by the scenarios of Kubernetes' own suite.

use std::io;
use std::net::IpAddr;

use e2e::case::{ingress, seen};
use e2e::{service, wait_for};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use serde_json::json;

use super::{FINALIZER, bed, node_port};

/// Scenario 1 and 2: the same for both protocols.
async fn type_and_ports_change(protocol: &str) {
    let bed = bed().await;
    let case = bed.case(&format!("ports-{}", protocol.to_lowercase())).await.unwrap();
    let udp = protocol == "UDP";
    let with_port = |spec: e2e::ServiceSpec| if udp { spec.udp(80) } else { spec.tcp(80) };
    let web = case.expose(with_port(service("web").set("type", "ClusterIP"))).await.unwrap();
    let ask = |address: IpAddr, port: u16| if udp { web.ask_udp(address, port) } else { web.ask(address, port) };
    let reply = async |address: IpAddr, port: u16| {
        if udp { web.udp_reply(address, port).await } else { web.reply(address, port).await }
    };

    // From the lower band, which the API server leaves to those who choose themselves: any other port may be a
    // Service's of another test.
    let (first_port, second_port) = if udp { (30_001, 30_002) } else { (30_003, 30_004) };
    let port = |port: u16, node_port: i32| {
        json!({"spec": {"ports": [{"name": "p", "protocol": protocol, "port": port,
            "targetPort": 8080, "nodePort": node_port}]}})
    };

    // ClusterIP, NodePort: reachable there, and nothing of ours.
    let mut node_port_service = port(80, first_port);
    node_port_service["spec"]["type"] = json!("NodePort");
    web.patch(node_port_service).await.unwrap();
    web.publish(&bed.pods()).await.unwrap();
    let node = IpAddr::from(bed.lan.host(1).ipv4());
    reply(node, u16::try_from(first_port).unwrap()).await.unwrap();
    let object = web.get().await.unwrap();
    assert!(object.finalizers().is_empty() && ingress(&object).is_empty(), "{}", seen(&object));

    // LoadBalancer: an address, node port kept.
    web.patch(json!({"spec": {"type": "LoadBalancer"}})).await.unwrap();
    let address = web.address().await.unwrap();
    reply(address, 80).await.unwrap();
    assert_eq!(node_port(&web.get().await.unwrap(), 0), Some(first_port), "the node port is kept");

    // Another node port: address unchanged, the old port closed.
    web.patch(port(80, second_port)).await.unwrap();
    reply(node, u16::try_from(second_port).unwrap()).await.unwrap();
    wait_for("the old node port to be closed", e2e::PATIENCE, || async {
        ask(node, u16::try_from(first_port).unwrap()).map_or(Ok(()), |reply| Err(format!("it answers {reply}")))
    })
    .await
    .unwrap();
    reply(address, 80).await.unwrap();

    // Another port.
    web.patch(port(81, second_port)).await.unwrap();
    reply(address, 81).await.unwrap();
    let object = web.get().await.unwrap();
    assert_eq!(ingress(&object)[0].ip, Some(address.to_string()), "the address is kept");
    assert_eq!(node_port(&object, 0), Some(second_port));
    wait_for("the old port to be closed", e2e::PATIENCE, || async {
        ask(address, 80).map_or(Ok(()), |reply| Err(format!("it answers {reply}")))
    })
    .await
    .unwrap();

    // No endpoints: refused at once, not silent. And back.
    web.publish(&[]).await.unwrap();
    wait_for("connections to be refused", e2e::PATIENCE, || async {
        match ask(address, 81) {
            Ok(reply) => Err(format!("it answers {reply}")),
            Err(error) => match error.root_cause().downcast_ref::<io::Error>() {
                Some(cause) if cause.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
                _ => Err(format!("{error:#}")),
            },
        }
    })
    .await
    .unwrap();
    web.publish(&bed.pods()).await.unwrap();
    reply(address, 81).await.unwrap();

    // Back to ClusterIP: all given back.
    web.patch(json!({"spec": {"type": "ClusterIP"}})).await.unwrap();
    web.wait_for("no node port, no ingress, no finalizer", |object| {
        let clean = node_port(object, 0).is_none() && ingress(object).is_empty() && object.finalizers().is_empty();
        if clean { Ok(()) } else { Err(seen(object)) }
    })
    .await
    .unwrap();
    web.wait_until_withdrawn(address).await.unwrap();
    // kube-proxy takes its rules away by its own pace.
    wait_for("no answer any more", e2e::PATIENCE, || async {
        ask(address, 81).map_or(Ok(()), |reply| Err(format!("it answers {reply}")))
    })
    .await
    .unwrap();
    assert!(web.load_balancer().await.unwrap().is_none());
}

#[tokio::test]
async fn scenario_1_type_and_ports_of_a_tcp_service_change() {
    if !e2e::skip() {
        type_and_ports_change("TCP").await;
    }
}

#[tokio::test]
async fn scenario_2_type_and_ports_of_a_udp_service_change() {
    if !e2e::skip() {
        type_and_ports_change("UDP").await;
    }
}

#[tokio::test]
async fn scenario_3_the_finalizer_comes_and_goes_with_the_type() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("finalizer").await.unwrap();
    let web = case.expose(service("web").tcp(80)).await.unwrap();
    let present = |object: &Service| object.finalizers().iter().any(|found| found == FINALIZER);
    let with = |object: &Service| if present(object) { Ok(()) } else { Err(seen(object)) };
    let without = |object: &Service| if present(object) { Err(seen(object)) } else { Ok(()) };
    web.wait_for("the finalizer", with).await.unwrap();
    web.patch(json!({"spec": {"type": "ClusterIP"}})).await.unwrap();
    web.wait_for("no finalizer", without).await.unwrap();
    web.patch(json!({"spec": {"type": "LoadBalancer"}})).await.unwrap();
    web.wait_for("the finalizer again", with).await.unwrap();
    let address = web.address().await.unwrap();
    web.reply(address, 80).await.unwrap();
    web.delete().await.unwrap();
    web.wait_until_gone().await.unwrap();
}

#[tokio::test]
async fn scenario_6_an_address_works_without_node_ports_and_with_them_later() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("nodeports").await.unwrap();
    let web = case.expose(service("web").set("allocateLoadBalancerNodePorts", false).tcp(80)).await.unwrap();
    let address = web.address().await.unwrap();
    web.reply(address, 80).await.unwrap();
    assert_eq!(node_port(&web.get().await.unwrap(), 0), None);
    web.patch(json!({"spec": {"allocateLoadBalancerNodePorts": true}})).await.unwrap();
    web.wait_for("a node port", |object| node_port(object, 0).ok_or_else(|| seen(object))).await.unwrap();
    assert_eq!(ingress(&web.get().await.unwrap())[0].ip, Some(address.to_string()));
    web.reply(address, 80).await.unwrap();
}
