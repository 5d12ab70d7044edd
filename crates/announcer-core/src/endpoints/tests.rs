use k8s_openapi::api::discovery::v1::Endpoint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::*;
use crate::plan::tests::view;

fn endpoint(node: &str, ready: Option<bool>, serving: Option<bool>, terminating: Option<bool>) -> Endpoint {
    Endpoint {
        addresses: vec!["10.42.0.1".into()],
        conditions: Some(EndpointConditions { ready, serving, terminating }),
        node_name: Some(node.into()),
        ..Endpoint::default()
    }
}

fn ready(node: &str) -> Endpoint {
    endpoint(node, Some(true), Some(true), Some(false))
}

fn draining(node: &str) -> Endpoint {
    endpoint(node, Some(false), Some(true), Some(true))
}

fn slice(kind: &str, endpoints: Vec<Endpoint>) -> EndpointSlice {
    EndpointSlice {
        address_type: kind.into(),
        endpoints,
        metadata: ObjectMeta {
            namespace: Some("default".into()),
            labels: Some([(SERVICE_NAME.to_owned(), "web".to_owned())].into()),
            ..ObjectMeta::default()
        },
        ports: None,
    }
}

fn nodes(slices: &[EndpointSlice]) -> Vec<String> {
    let views: Vec<SliceView> = slices.iter().filter_map(SliceView::of).collect();
    nodes_with_endpoints(&views.iter().collect::<Vec<_>>()).into_iter().collect()
}

#[test]
fn conditions_count_as_they_do_for_kube_proxy() {
    for (endpoint, expected) in [
        (ready("a"), &["a"][..]),
        (endpoint("a", None, None, None), &["a"]),
        (endpoint("a", Some(false), None, None), &[]),
        (endpoint("a", Some(false), Some(true), Some(false)), &[]),
        (endpoint("a", Some(false), Some(false), Some(true)), &[]),
        (draining("a"), &["a"]),
        (Endpoint { conditions: None, ..ready("a") }, &["a"]),
        (Endpoint { node_name: None, ..ready("a") }, &[]),
        (Endpoint { addresses: Vec::new(), ..ready("a") }, &[]),
        (ready("Node-A"), &["node-a"]),
    ] {
        assert_eq!(nodes(&[slice("IPv4", vec![endpoint.clone()])]), expected, "{endpoint:?}");
    }
}

#[test]
fn all_slices_of_a_service_count() {
    assert_eq!(nodes(&[slice("IPv4", vec![ready("a")]), slice("IPv4", vec![ready("b")])]), ["a", "b"]);
    assert_eq!(nodes(&[slice("IPv4", vec![]), slice("IPv4", vec![ready("b")])]), ["b"]);
}

#[test]
fn endpoints_that_are_ending_count_only_where_none_is_ready_anywhere() {
    assert_eq!(nodes(&[slice("IPv4", vec![draining("a")]), slice("IPv4", vec![ready("b")])]), ["b"]);
    assert_eq!(nodes(&[slice("IPv4", vec![draining("a"), draining("b")])]), ["a", "b"]);
}

#[test]
fn a_node_has_to_serve_both_families_if_any_node_does() {
    let v4 = |all: &[&str]| slice("IPv4", all.iter().map(|node| ready(node)).collect());
    let v6 = |all: &[&str]| slice("IPv6", all.iter().map(|node| ready(node)).collect());
    assert_eq!(nodes(&[v4(&["a", "b"]), v6(&["b", "c"])]), ["b"]);
    assert_eq!(nodes(&[v4(&["a", "b"]), v6(&[])]), ["a", "b"]);
    assert_eq!(nodes(&[v4(&["a"]), v6(&["b"])]), ["a", "b"], "better one family than none");
}

#[test]
fn slices_of_nobody_and_of_host_names_do_not_count() {
    assert_eq!(nodes(&[slice("FQDN", vec![ready("a")])]), Vec::<String>::new());
    let mut stray = slice("IPv4", vec![ready("a")]);
    stray.metadata.labels = None;
    assert_eq!(SliceView::of(&stray), None);
}

fn local(name: &str) -> ServiceView {
    ServiceView { local_traffic: true, ..view(name, &["10.0.0.5"]) }
}

fn eligible(members: &[ServiceView], endpoints: &[(&str, &[&str])]) -> (Option<Vec<String>>, Vec<String>) {
    let endpoints: Endpoints = endpoints
        .iter()
        .map(|(name, nodes)| (ServiceKey::new("default", *name), nodes.iter().map(|node| (*node).to_owned()).collect()))
        .collect();
    let found = eligible_nodes(members, &endpoints);
    (found.only.map(|nodes| nodes.into_iter().collect()), found.left_out.into_iter().map(|key| key.name).collect())
}

#[test]
fn policy_cluster_is_announced_anywhere_also_without_endpoints() {
    assert_eq!(eligible(&[view("web", &["10.0.0.5"])], &[("web", &[])]), (None, vec![]));
}

#[test]
fn policy_local_is_announced_where_its_endpoints_are() {
    let strings = |all: &[&str]| Some(all.iter().map(|node| (*node).to_owned()).collect::<Vec<_>>());
    let pair = [local("a"), local("b")];
    for (members, endpoints, only, left_out) in [
        (&[local("a")][..], &[("a", &["n1", "n2"][..])][..], strings(&["n1", "n2"]), &[][..]),
        (&[local("a")], &[("a", &[])], strings(&[]), &[]),
        (&[local("a")], &[], None, &[]),
        (&pair, &[("a", &["n1", "n2"]), ("b", &["n2", "n3"])], strings(&["n2"]), &[]),
        (&pair, &[("a", &["n1"]), ("b", &["n2"])], strings(&["n1"]), &["b"]),
        (&pair, &[("a", &["n1"]), ("b", &[])], strings(&["n1"]), &["b"]),
        (&pair, &[("a", &[]), ("b", &["n2"])], strings(&["n2"]), &[]),
        (&[view("a", &["10.0.0.5"]), local("b")], &[("b", &["n2"])], strings(&["n2"]), &[]),
        (&[view("a", &["10.0.0.5"]), local("b")], &[("b", &[])], None, &[]),
        (&[local("a"), view("b", &["10.0.0.5"])], &[("a", &[])], None, &[]),
    ] {
        let (found, out) = eligible(members, endpoints);
        assert_eq!((found, out), (only, left_out.iter().map(|name| (*name).to_owned()).collect()), "{endpoints:?}");
    }
}
