//! A cluster that was given no name, beside a copy that has one. All load balancers of the copy are proven to be the
//! original's.

use super::super::super::judge::OperatorConfirmation;
use super::*;
use crate::load_balancers::view::LbView;

const IP: &str = "10.0.0.1";

/// The load balancer of Service `default/web` under this name of the cluster.
fn under(cluster: &str, address: &str) -> LbView {
    let name = ClusterName::from_record(cluster).load_balancer_name("default", "web", "uid-of-default-web");
    let mut lb = build::lb(&name).ready(address).done();
    lb.labels.insert(harvester_api::keys::cloudprovider::CLUSTER, cluster);
    lb
}

/// A cluster with this record, these load balancers, and a Service that is served at [`IP`].
fn served(data: &Value, lbs: &[LbView]) -> Lab {
    let mut object = remembered("kubernetes").1;
    object["data"] = data.clone();
    let object = parking_lot::Mutex::new(object);
    let server = Scenario::answering(move |request| {
        let mut object = object.lock();
        if request.method != "GET" {
            *object = request.body.clone();
        }
        (200, object.clone())
    });
    let lab = Lab::over(server, "kubernetes", None);
    let web = build::service("default/web").short(&[("ip", IP)]).ingress(IP).done();
    lab.sources.services.apply(web.key.clone(), web);
    lab.sources.lbs.replace(lbs.iter().map(|lb| (lb.name.clone(), lb.clone())).collect());
    lab
}

/// The card of an earlier version, on which no names stood for any.
fn of_any_name() -> IdentityCard {
    IdentityCard { names: BTreeSet::new(), ..card("", &[]) }
}

async fn names(lab: &Lab) -> (String, Vec<String>) {
    let name = lab.name().await;
    (name, lab.identity.card().expect("it is judged").names.iter().cloned().collect())
}

#[tokio::test]
async fn it_owns_what_has_a_default_name_or_its_addresses_and_nothing_of_the_copys() {
    let both = [under("kubernetes", IP), under("copied", "10.0.0.2")];
    let former = [under("former", IP), under("copied", "10.0.0.2")];
    let (earlier, known) = (of_any_name().to_text(), card("kubernetes", &[]).to_text());
    for (what, data, lbs, name, expected) in [
        ("a first card", json!({}), &both[..], "kubernetes", &["", "kubernetes"][..]),
        ("a card of an earlier version", json!({"identity": earlier}), &both, "kubernetes", &["", "kubernetes"]),
        (
            "the same, renamed since",
            json!({"identity": earlier, "cluster-name": "prod"}),
            &both,
            "prod",
            &["", "kubernetes", "prod"],
        ),
        (
            "the same, and its load balancer has a former name still",
            json!({"identity": earlier, "cluster-name": "prod"}),
            &former,
            "prod",
            &["", "former", "kubernetes", "prod"],
        ),
        ("its own load balancer is lost", json!({"identity": known}), &both[1..], "kubernetes", &["kubernetes"]),
    ] {
        let lab = served(&data, lbs);
        let found = names(&lab).await;
        assert_eq!(
            (found.0.as_str(), found.1),
            (name, expected.iter().map(|name| (*name).to_owned()).collect()),
            "{what}"
        );
        settle().await;
        let written = lab.server.writes().last().map(|seen| seen.body["data"]["identity"].clone());
        let card = written.as_ref().and_then(Value::as_str).and_then(IdentityCard::from_text);
        assert!(card.is_none_or(|card| card.names.iter().eq(expected)), "{what}: {written:?}");
    }
}

#[tokio::test]
async fn a_human_who_names_it_adds_a_name_and_takes_none_away() {
    let lab =
        served(&json!({"identity": of_any_name().to_text()}), &[under("kubernetes", IP), under("copied", "10.0.0.2")]);
    lab.name().await;
    settle().await;
    let confirmation = Some(OperatorConfirmation::Rename(ClusterName::from_record("prod")));
    lab.sources.record.apply(NAME.into(), Record { card: Some(of_any_name()), confirmation, ..Record::default() });
    lab.is_named("prod").await;
    assert_eq!(names(&lab).await.1, ["", "kubernetes", "prod"]);
}

/// Under that name the load balancers of the copy would be its own, and be deleted: no Service here is served by them.
#[tokio::test]
async fn it_gets_no_name_of_its_copy() {
    let both = [under("kubernetes", IP), under("copied", "10.0.0.2")];
    let mut lab = served(&json!({"identity": card("kubernetes", &[]).to_text()}), &both);
    let before = names(&lab).await;
    settle().await;
    let card = lab.identity.card().map(Arc::unwrap_or_clone);
    let confirmation = Some(OperatorConfirmation::Rename(ClusterName::from_record("copied")));
    lab.sources.record.apply(NAME.into(), Record { card, confirmation, ..Record::default() });
    settle().await;
    assert_eq!(lab.told(), ["ClusterNameRefused"]);
    assert_eq!(names(&lab).await, before);
}

/// Somebody writes the name of the copy into the record, such as GitOps that has the record of the other cluster: no
/// operator has confirmed it, and under it the load balancers of the copy would be deleted as well.
#[tokio::test]
async fn it_gets_no_name_of_its_copy_from_its_record_either() {
    let both = [under("kubernetes", IP), under("copied", "10.0.0.2")];
    let known = card("kubernetes", &[]).to_text();
    let mut lab = served(&json!({"identity": known}), &both);
    let before = names(&lab).await;
    settle().await;
    let card = lab.identity.card().map(Arc::unwrap_or_clone);
    let cluster_name = Some(ClusterName::from_record("copied"));
    lab.sources.record.apply(NAME.into(), Record { cluster_name, card, ..Record::default() });
    settle().await;
    assert_eq!(lab.told(), ["ClusterNameRefused"]);
    assert_eq!(names(&lab).await, before);

    // A process that starts with that record knows no former name.
    let mut lab = served(&json!({"identity": known, "cluster-name": "copied"}), &both);
    assert_eq!(names(&lab).await, before);
    settle().await;
    assert_eq!(lab.told(), ["ClusterNameRefused"]);
    let written = lab.server.writes().last().map(|seen| seen.body["data"]["cluster-name"].clone());
    assert_eq!(written, Some(json!("kubernetes")), "it would be followed when the copy's load balancers are gone");
}

#[tokio::test]
async fn a_name_in_the_record_waits_for_the_load_balancers_that_tell_whose_it_is() {
    let mut record = remembered("copied").1;
    record["data"]["identity"] = card("prod", &[]).to_text().into();
    let server = Scenario::answering(move |request| match request.method.as_str() {
        "GET" => (200, record.clone()),
        _ => (200, request.body.clone()),
    });
    let sources = Sources { lbs: lb_cache(), ..Lab::sources(None, &[], &[]) };
    let mut lab = Lab::run(None, server, "prod", sources, false);
    settle().await;
    assert_eq!(lab.identity.name(), None);
    let web = build::service("default/web").short(&[("ip", IP)]).ingress(IP).done();
    lab.sources.services.apply(web.key.clone(), web);
    let both = [under("prod", IP), under("copied", "10.0.0.2")];
    lab.sources.lbs.replace(both.iter().map(|lb| (lb.name.clone(), lb.clone())).collect());
    assert_eq!(names(&lab).await, ("prod".to_owned(), vec!["prod".to_owned()]));
    assert_eq!(lab.told(), ["ClusterNameRefused"]);
}
