//! What changes on a live Service takes effect, and a storm of changes costs no more than its outcome.

use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};

use super::*;
use crate::class::ClassRules;

fn object() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "web", "namespace": "default", "uid": "web00000-uid",
            "annotations": {"kube-vip.io/loadbalancerIPs": "10.0.0.5"}
        },
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "protocol": "TCP"}]},
    })
}

/// What the watch makes of an object.
fn seen(object: Value) -> Input {
    let service: Service = serde_json::from_value(object).unwrap();
    let view =
        ServiceView::of(&service, &ClassRules { name: "kube-vip.io/kube-vip-class".into(), ..ClassRules::default() });
    Input::Service(ServiceKey::new("default", "web"), view.map(Box::new))
}

fn announcing() -> Node {
    let mut node = Node::leading(&[]);
    node.feed(seen(object()));
    node.pass_ms(1000);
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"]);
    node
}

#[test]
fn a_service_that_is_not_ours_any_more_is_withdrawn() {
    for (path, value) in [
        ("/spec/type", json!("ClusterIP")),
        ("/spec/type", json!("NodePort")),
        ("/spec/loadBalancerClass", json!("example.com/other")),
        ("/metadata/annotations/kube-vip.io~1ignore", json!("true")),
        ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
        ("/metadata/annotations/kube-vip.io~1loadbalancerIPs", json!("")),
    ] {
        let mut node = announcing();
        let mut changed = object();
        let (parent, key) = path.rsplit_once('/').unwrap();
        changed.pointer_mut(parent).unwrap()[key.replace("~1", "/")] = value.clone();
        node.feed(seen(changed));
        assert!(node.kernel.own().is_empty(), "{path} {value}");
        // And back.
        node.feed(seen(object()));
        node.pass_ms(1000);
        assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"], "{path} {value}");
    }
}

#[test]
fn a_changed_interface_is_used_and_a_bad_one_is_told_by_name_and_withdraws() {
    let on = |interface: &str| {
        let mut changed = object();
        changed["metadata"]["annotations"]["kube-vip.io/serviceInterface"] = json!(interface);
        seen(changed)
    };
    let mut node = announcing();
    node.feed(on("eth1"));
    node.pass_ms(1000);
    assert_eq!(node.kernel.own(), ["eth1 10.0.0.5/32"]);
    for bad in ["lo", "a/b", "an-interface-name-that-is-too-long", "eth7"] {
        let mut node = announcing();
        node.feed(on(bad));
        node.pass_ms(1000);
        assert!(node.kernel.own().is_empty(), "{bad}");
        let told = node.told.iter().find(|(_, tell)| tell.reason == Reason::CannotAnnounce);
        let text = told.map(|(_, tell)| tell.text.clone()).unwrap_or_default();
        assert!(text.contains("kube-vip.io/serviceInterface") && text.contains(bad), "{bad}: {text}");
    }
}

/// A full buffer of the kernel, for instance, fails for all addresses of a datagram at once.
#[test]
fn an_address_whose_extension_fails_once_stays_and_is_extended_a_second_later() {
    // The address lives for 3 s.
    let short = [("vip_leaseduration", "5"), ("vip_renewdeadline", "3"), ("vip_retryperiod", "1")];
    let mut node = Node::new(&short, network());
    node.start_with(&[view("web", &["10.0.0.5"])], MINE);
    node.pass_ms(2500);
    node.take_log();
    node.kernel.failing_extensions = 1;
    node.pass(Duration::from_secs(6));
    assert_eq!(node.kernel.failing_extensions, 0);
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"]);
    assert_eq!(node.take_log(), Vec::<String>::new(), "it was never set again");
    assert!(!node.reasons().contains(&"CannotAnnounce"), "{:?}", node.told);
}

#[test]
fn an_address_whose_extension_fails_three_times_in_a_row_counts_as_refused() {
    let mut node = Node::leading(&[view("web", &["10.0.0.5"])]);
    node.pass_ms(2500);
    node.kernel.failing_extensions = 3;
    let is_up = |node: &Node| node.engine.status().iter().all(|vip| vip.up);
    node.pass_ms(2000);
    assert!(is_up(&node) && !node.reasons().contains(&"CannotAnnounce"), "twice: {:?}", node.told);
    node.pass_ms(1000);
    assert!(!is_up(&node) && node.reasons().contains(&"CannotAnnounce"), "{:?}", node.told);
    node.pass_ms(6000);
    assert!(is_up(&node) && node.kernel.has("eth0", "10.0.0.5/32"), "it is tried again");
}

fn local(nodes: &[&str]) -> Input {
    let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
    Input::Endpoints(ServiceKey::new("default", "web"), Some(nodes))
}

#[test]
fn a_holder_without_an_endpoint_of_a_local_service_says_so_in_global_mode() {
    let mut node = Node::new(&[("election_mode", "global")], network());
    let service = ServiceView { local_traffic: true, ..view("web", &["10.0.0.5"]) };
    node.start_with(std::slice::from_ref(&service), MINE);
    node.pass_ms(1000);
    assert!(!node.reasons().contains(&"NoLocalEndpoint"), "nothing is known yet");
    node.feed(local(&["node-1", "node-2"]));
    assert!(!node.reasons().contains(&"NoLocalEndpoint"));
    node.feed(local(&["node-2"]));
    node.feed(local(&["node-2"]));
    let told: Vec<&ServiceEvent> =
        node.told.iter().map(|(_, tell)| tell).filter(|tell| tell.reason == Reason::NoLocalEndpoint).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].warning && told[0].text.contains("node-1") && told[0].text.contains("node-2"), "{}", told[0].text);
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"], "it is announced all the same");
    // Policy Cluster is nobody's concern, endpoints or not.
    let mut node = Node::new(&[("election_mode", "global")], network());
    node.start_with(&[view("web", &["10.0.0.5"])], MINE);
    node.pass_ms(1000);
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"]);
    assert!(!node.reasons().contains(&"NoLocalEndpoint"));
}

#[test]
fn a_thousand_changes_of_services_in_a_burst_cost_one_record_each_and_touch_no_address() {
    let names: Vec<String> = (0..20).map(|number| format!("s{number:02}")).collect();
    let services: Vec<ServiceView> =
        names.iter().enumerate().map(|(number, name)| view(name, &[&format!("10.0.0.{}", number + 50)])).collect();
    let mut node = Node::leading(&services);
    node.pass_ms(2000);
    assert_eq!(node.kernel.own().len(), 20);
    let mut actions = Vec::new();
    for round in 0..50 {
        for name in &names {
            let mut changed = node.engine.services[&ServiceKey::new("default", name)].clone();
            changed.ports[0].port = 1000 + round;
            let input = Input::Service(changed.key.clone(), Some(Box::new(changed)));
            actions.extend(node.engine.handle(node.now, input));
        }
    }
    actions.extend(node.engine.poll(node.now, false));
    let records = actions.iter().filter(|action| matches!(action, Action::Record(..))).count();
    assert_eq!(records, 20);
    // And the firewall once, for all of them.
    let others: Vec<&Action> = actions.iter().filter(|action| !matches!(action, Action::Record(..))).collect();
    assert!(matches!(others[..], [] | [Action::Kernel(KernelOp::Protect(_))]), "{others:?}");
}
