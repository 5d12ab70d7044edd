use super::*;
use crate::plan::tests::view;

const MINE: LeaseState = LeaseState::Held { confirmed: true };
const LASTS: Duration = Duration::from_secs(5);

/// A node in `service` mode.
fn each() -> Leases {
    Leases::one_for_each("node-1".into(), BTreeSet::new(), LASTS)
}

fn services(views: &[ServiceView]) -> BTreeMap<ServiceKey, ServiceView> {
    views.iter().map(|view| (view.key.clone(), view.clone())).collect()
}

/// The elections that the node is in from now on.
fn joined(leases: &mut Leases, all: &BTreeMap<ServiceKey, ServiceView>, stopping: bool) -> Vec<String> {
    leases.join(Instant::now(), all, &Endpoints::new(), stopping);
    leases.joined.iter().map(ToString::to_string).collect()
}

#[test]
fn leases_have_kube_vips_names() {
    let infra = BTreeSet::from(["infra".to_owned()]);
    for (annotation, expected) in [
        (None, Some("default/kubevip-web")),
        (Some("common"), Some("default/common")),
        (Some("default/common.2"), Some("default/common.2")),
        (Some("infra/common"), Some("infra/common")),
        (Some("kube-system/kube-controller-manager"), None),
        (Some("/common"), None),
        (Some("infra/"), None),
        (Some("infra/a/b"), None),
        (Some("Common"), None),
        (Some("-common"), None),
        (Some("a..b"), None),
        (Some(&"a".repeat(254)), None),
    ] {
        let view = ServiceView { lease_name: annotation.map(str::to_owned), ..view("web", &["10.0.0.5"]) };
        let key = LeaseKey::of(&view, &infra).ok().map(|key| key.to_string());
        assert_eq!(key.as_deref(), expected, "{annotation:?}");
    }
}

#[test]
fn a_service_that_names_a_lease_of_somebody_else_competes_for_its_own() {
    let lease_name = Some("kube-system/kube-controller-manager".to_owned());
    let web = ServiceView { lease_name, ..view("web", &["10.0.0.5"]) };
    let all = services(std::slice::from_ref(&web));
    let mut leases = each();
    assert_eq!(joined(&mut leases, &all, false), ["default/kubevip-web"]);
    leases.lease(&LeaseKey::usual(&web), MINE);
    assert_eq!(joined(&mut leases, &all, false), ["default/kubevip-web"]);
    assert!(leases.problem(&web).is_some());
}

#[test]
fn each_service_has_its_own_owner() {
    let all = services(&[view("a", &["10.0.0.5"]), view("b", &["10.0.0.6"])]);
    let mut leases = each();
    assert_eq!(joined(&mut leases, &all, false), ["default/kubevip-a", "default/kubevip-b"]);
    let owner = |leases: &Leases, name: &str| leases.of(&view(name, &[]));
    assert_eq!(owner(&leases, "a"), Owner::Undecided);
    let key = |name: &str| LeaseKey { namespace: "default".into(), name: format!("kubevip-{name}") };
    assert!(leases.lease(&key("a"), MINE) && !leases.lease(&key("a"), MINE), "news once");
    assert!(leases.lease(&key("b"), LeaseState::Other("node-2".into())));
    assert_eq!((owner(&leases, "a"), owner(&leases, "b")), (Owner::Mine, Owner::Theirs));
    assert!(!leases.lease(&key("c"), MINE), "a Lease of nobody here");
}

#[test]
fn services_on_one_address_follow_the_oldest_and_its_holder_takes_the_other_leases_too() {
    let old = ServiceView { created: 1, ..view("old", &["10.0.0.5"]) };
    let young = ServiceView { created: 2, ..view("young", &["10.0.0.5"]) };
    let all = services(&[old.clone(), young.clone()]);
    let mut leases = each();
    assert_eq!(joined(&mut leases, &all, false), ["default/kubevip-old"]);
    leases.lease(&LeaseKey::usual(&old), MINE);
    assert_eq!(leases.of(&young), Owner::Mine);
    assert_eq!(joined(&mut leases, &all, false).len(), 2);
    leases.lease(&LeaseKey::usual(&young), LeaseState::Other("node-2".into()));
    assert_eq!(leases.of(&young), Owner::Mine, "never on two nodes");
}

/// Given back at once, it would go to a node that has not heard that the Service is gone, and with it the address.
#[test]
fn the_lease_of_a_service_that_leaves_a_shared_address_is_kept_for_as_long_as_a_lease_lasts() {
    let (now, ms) = (Instant::now(), Duration::from_millis);
    let old = ServiceView { created: 1, ..view("old", &["10.0.0.5"]) };
    let young = ServiceView { created: 2, ..view("young", &["10.0.0.5"]) };
    let elsewhere = ServiceView { wanted: view("old", &["10.0.0.6"]).wanted, ..old.clone() };
    let (both, kept) = (vec![LeaseKey::usual(&old), LeaseKey::usual(&young)], vec![LeaseKey::usual(&young)]);
    let theirs = || LeaseState::Other("node-2".into());
    for (name, young_is, old_is, left, expected) in [
        ("the address goes on", MINE, MINE, vec![young.clone()], [&both, &kept]),
        ("nobody uses it any more", MINE, MINE, vec![], [&vec![], &vec![]]),
        ("it goes on elsewhere", theirs(), MINE, vec![young.clone()], [&kept, &kept]),
        ("the Lease is lost", MINE, theirs(), vec![young.clone()], [&kept, &kept]),
        ("the Service has an address of its own now", MINE, MINE, vec![elsewhere, young.clone()], [&both, &both]),
    ] {
        let mut leases = each();
        let mut joined = |at: Duration, views: &[ServiceView], stopping: bool, news: &[(&ServiceView, LeaseState)]| {
            for (view, state) in news {
                leases.lease(&LeaseKey::usual(view), state.clone());
            }
            let _ = leases.join(now + at, &services(views), &Endpoints::new(), stopping);
            (leases.joined.iter().cloned().collect::<Vec<_>>(), leases.has_kept_enough(now + at))
        };
        let shared = [old.clone(), young.clone()];
        joined(ms(0), &shared, false, &[]);
        joined(ms(0), &shared, false, &[(&old, MINE)]);
        joined(ms(0), &shared, false, &[(&young, young_is)]);
        joined(ms(100), &left, false, &[]);
        let first = joined(ms(100), &left, false, &[(&old, old_is)]).0;
        assert_eq!(joined(ms(5099), &left, false, &[]), (first.clone(), false), "{name}");
        assert_eq!([&first, &joined(ms(5100), &left, false, &[]).0], expected, "{name}");
        assert!(joined(ms(5100), &left, true, &[]).0.is_empty(), "{name}: at the end all are given back");
    }
}

/// By the name, which both of two nodes know that go by different Leases for one address.
#[test]
fn of_two_nodes_with_a_lease_each_for_one_address_one_is_in_doubt() {
    for (first, other, confirmed) in [("a", "b", true), ("b", "a", false)] {
        let old = ServiceView { created: 1, ..view(first, &["10.0.0.5"]) };
        let young = ServiceView { created: 2, ..view(other, &["10.0.0.5"]) };
        let all = services(&[old.clone(), young.clone()]);
        let mut leases = each();
        joined(&mut leases, &all, false);
        leases.lease(&LeaseKey::usual(&old), MINE);
        joined(&mut leases, &all, false);
        assert_eq!(leases.confirmed(&old), confirmed, "{first}: nothing is known of the other one");
        leases.lease(&LeaseKey::usual(&young), LeaseState::Other("node-2".into()));
        assert_eq!((leases.of(&old), leases.confirmed(&old)), (Owner::Mine, confirmed), "{first}");
        leases.lease(&LeaseKey::usual(&young), LeaseState::Other(String::new()));
        assert!(leases.confirmed(&old), "nobody holds it any more");
    }
}

/// `common` is that of `a`, which shares an address, and perhaps the one that decides about `c`.
#[test]
fn a_lease_that_decides_about_another_address_makes_no_rival_of_its_holder() {
    let common = |view| ServiceView { lease_name: Some("common".into()), ..view };
    let (b, a) = (
        ServiceView { created: 1, ..view("b", &["10.0.0.5"]) },
        ServiceView { created: 2, ..view("a", &["10.0.0.5"]) },
    );
    let c = common(view("c", &["10.0.0.6"]));
    let without_endpoint = ServiceView { local_traffic: true, ..c.clone() };
    for (name, all, confirmed) in [
        ("no other address", vec![b.clone(), common(a.clone())], false),
        ("it decides about c", vec![b.clone(), common(a.clone()), c.clone()], true),
        ("it decides about c, on other nodes", vec![b.clone(), common(a.clone()), without_endpoint], true),
    ] {
        let all = services(&all);
        let mut leases = each();
        let endpoints = Endpoints::from([(c.key.clone(), BTreeSet::from(["node-2".to_owned()]))]);
        leases.join(Instant::now(), &all, &endpoints, false);
        leases.lease(&LeaseKey::usual(&b), MINE);
        leases.join(Instant::now(), &all, &endpoints, false);
        let key = LeaseKey { namespace: "default".into(), name: "common".into() };
        for state in [LeaseState::Unknown, LeaseState::Other("node-2".into())] {
            leases.lease(&key, state);
            assert_eq!((leases.confirmed(&b), leases.holds(&b)), (confirmed, true), "{name}");
        }
        leases.lease(&LeaseKey::usual(&b), LeaseState::Held { confirmed: false });
        assert!(!leases.holds(&b), "{name}");
    }
}

#[test]
fn where_a_local_service_has_no_endpoint_no_part_is_taken() {
    let web = ServiceView { local_traffic: true, ..view("web", &["10.0.0.5"]) };
    let all = services(std::slice::from_ref(&web));
    let mut leases = each();
    let endpoints = Endpoints::from([(web.key.clone(), BTreeSet::from(["node-2".to_owned()]))]);
    assert_eq!(leases.join(Instant::now(), &all, &endpoints, false), None);
    assert_eq!(leases.of(&web), Owner::Theirs);
}

#[test]
fn the_end_leaves_all_elections_and_keeps_what_is_served() {
    let web = view("web", &["10.0.0.5"]);
    let all = services(std::slice::from_ref(&web));
    let mut leases = each();
    joined(&mut leases, &all, false);
    leases.lease(&LeaseKey::usual(&web), MINE);
    assert!(joined(&mut leases, &all, true).is_empty() && leases.has_any(), "it is being handed back");
    leases.handed_back();
    assert!(!leases.has_any());
    assert_eq!(leases.of(&web), Owner::Mine);
}

#[test]
fn one_lease_for_all_decides_about_each_service_and_is_left_only_at_the_end() {
    let web = view("web", &["10.0.0.5"]);
    let all = services(std::slice::from_ref(&web));
    let lock = LeaseKey { namespace: "kube-system".into(), name: "plndr-svcs-lock".into() };
    let mut leases = Leases::one_for_all("node-1".into(), lock.clone(), LASTS);
    assert_eq!((leases.unknown(), leases.of(&web)), (Some("the holder of the Lease"), Owner::Undecided));
    assert!(leases.join(Instant::now(), &all, &Endpoints::new(), false).is_none(), "it is in from the start");
    assert!(leases.lease(&lock, LeaseState::Other("node-2".into())) && !leases.has_any());
    assert_eq!((leases.unknown(), leases.of(&web)), (None, Owner::Theirs));
    assert!(leases.lease(&lock, MINE) && leases.has_any() && leases.confirmed(&web));
    assert!(!leases.lease(&LeaseKey::usual(&web), MINE), "no other Lease decides");
    assert!(leases.join(Instant::now(), &all, &Endpoints::new(), true).is_some_and(BTreeSet::is_empty));
}
