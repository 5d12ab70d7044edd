//! Who shares, who may not, and who inherits.

use super::super::build;
use super::*;

fn find(services: &[ServiceView]) -> impl Fn(&ServiceKey) -> Option<Arc<ServiceView>> {
    let services: Vec<Arc<ServiceView>> = services.iter().cloned().map(Arc::new).collect();
    move |key| services.iter().find(|service| service.key == *key).cloned()
}

fn primary_text(annotation: Option<&str>) -> Result<Option<String>, String> {
    let web = build::service("default/web").done();
    let chained = build::service("default/chained").short(&[("primary", "default/web")]).done();
    let empty = build::service("default/empty").short(&[("primary", "")]).done();
    let mut me = build::service("default/me");
    if let Some(value) = annotation {
        me = me.short(&[("primary", value)]);
    }
    let me = me.done();
    let found = primary_of(&me, find(&[web, chained, empty, me.clone()]));
    found.map(|primary| primary.map(|primary| primary.key.to_string())).map_err(|error| error.to_string())
}

/// CCM spec 3.2.
#[test]
fn a_primary_is_a_service_that_exists_and_shares_with_nobody() {
    assert_eq!(primary_text(None), Ok(None));
    assert_eq!(primary_text(Some("default/web")), Ok(Some("default/web".into())));
    assert_eq!(
        primary_text(Some("nowhere/none")),
        Err("get service nowhere/none failed: services \"none\" not found. Annotation \
             cloudprovider.harvesterhci.io/primary-service names it; accepted is name or namespace/name of a Service \
             of type LoadBalancer with an address of its own: make that Service, correct the annotation, or remove it \
             for an address of its own"
            .into())
    );
    let text = primary_text(Some("default/chained")).unwrap_err();
    assert!(text.starts_with("service default/chained is not a primary service. "), "{text}");
    assert!(text.contains("/primary-service names it") && text.contains("name the Service whose address"), "{text}");
    for itself in ["default/me", "me"] {
        let text = primary_text(Some(itself)).unwrap_err();
        assert!(text.starts_with("service default/me is not a primary service. "), "{text}");
        assert!(text.contains("/primary-service names the Service itself: accepted is name or"), "{text}");
    }
    assert_eq!(primary_text(Some("default/empty")), Ok(Some("default/empty".into())));
    assert_eq!(primary_text(Some("web")), Ok(Some("default/web".into())), "in its own namespace");
    for bad in ["", "No Name", "/web", "default/", "a/b/c", "default/web/"] {
        let text = primary_text(Some(bad)).unwrap_err();
        assert!(text.starts_with(&format!("invalid service name {bad}: ")), "{text}");
        assert!(text.contains("expected name or namespace/name"), "{text}");
        assert_eq!(text.contains("too many slashes"), bad.matches('/').count() > 1, "{text}");
    }
}

#[test]
fn what_a_user_wrote_is_quoted_within_bounds() {
    for value in ["x".repeat(100_000), format!("a/{}", "\n".repeat(100_000)), "\u{1b}[2Jroot".to_owned()] {
        let text = primary_text(Some(&value)).unwrap_err();
        assert!(text.len() < 800 && !text.contains(char::is_control), "{text}");
    }
}

/// W-34: an address that stayed on a Service may be another one's by now.
#[test]
fn an_address_that_another_living_service_publishes_is_taken() {
    let me = || build::service("default/me").short(&[("ip", "10.0.0.1")]);
    let other = || build::service("default/other");
    let mut deleting = other().ingress("10.0.0.1").done();
    deleting.deleting = true;
    let mut cluster_ip = other().short(&[("ip", "10.0.0.1")]).done();
    cluster_ip.is_load_balancer = false;
    let served = build::service("default/me").ingress("10.0.0.1").done();
    let fixed =
        |me: build::ServiceBuilder| me.short(&[("ipam", "static"), ("want", "10.0.0.1")]).label("default.other");
    let cases = [
        ("former primary, now its static one", fixed(me()).done(), other().ingress("10.0.0.1").done(), true),
        ("served", me().done(), other().ingress("10.0.0.1").done(), true),
        ("published", me().done(), other().short(&[("ip", "10.0.0.1")]).done(), true),
        ("by ingress alone", served, other().ingress("10.0.0.1").done(), true),
        ("another address", me().done(), other().ingress("10.0.0.2").done(), false),
        ("itself", me().done(), me().ingress("10.0.0.1").done(), false),
        ("being deleted", me().done(), deleting, false),
        ("no load balancer", me().done(), cluster_ip, false),
        ("shares it", me().done(), other().short(&[("primary", "default/me"), ("ip", "10.0.0.1")]).done(), false),
        ("former primary", me().label("default.other").done(), other().ingress("10.0.0.1").done(), false),
    ];
    for (what, me, other, expected) in cases {
        assert_eq!(is_taken(&me, &[Arc::new(other)], no_objects), expected, "{what}");
    }
    let dhcp = |name| build::service(name).short(&[("ip", "0.0.0.0")]).done();
    assert!(!is_taken(&dhcp("default/me"), &[Arc::new(dhcp("default/other"))], no_objects), "not known yet");
}

/// An annotation is its author's. What it shows counts in its namespace, and beside what authors cannot write.
#[test]
fn what_a_service_of_another_namespace_shows_counts_if_it_is_served_there_or_was_given_the_address() {
    let web = || build::service("default/web").short(&[("ip", "10.0.0.1")]);
    let other = |more: &[(&str, &str)]| build::service("tenant/a").short(&[("ip", "10.0.0.1")]).short(more);
    let fixed = |ip| other(&[("ipam", "static"), ("want", ip)]).done();
    let booked = |ip| build::lb("x").ready(ip).done();
    let dhcp = LbView { ipam: Some("dhcp".into()), ..booked("0.0.0.0") };
    let shown = other(&[]).done();
    for (what, web, other, objects, expected) in [
        ("nothing but shown", web().done(), shown.clone(), vec![], false),
        (
            "the same, of one namespace",
            build::service("tenant/web").ingress("10.0.0.1").done(),
            shown.clone(),
            vec![],
            true,
        ),
        ("served", web().done(), other(&[]).ingress("10.0.0.1").done(), vec![], true),
        ("booked for it", web().done(), shown.clone(), vec![booked("10.0.0.2"), booked("10.0.0.1")], true),
        (
            "booked, and the first is served",
            web().ingress("10.0.0.1").done(),
            shown.clone(),
            vec![booked("10.0.0.1")],
            false,
        ),
        ("another one booked", web().done(), shown.clone(), vec![booked("10.0.0.2")], false),
        ("a lease", web().done(), shown, vec![dhcp.clone()], false),
        ("static", web().done(), fixed("10.0.0.1"), vec![dhcp.clone()], true),
        ("static and refused", web().done(), fixed("10.0.0.1"), vec![], false),
        ("another static one", web().done(), fixed("10.0.0.2"), vec![dhcp], false),
    ] {
        let objects: Vec<_> = objects.into_iter().map(Arc::new).collect();
        assert_eq!(is_taken(&web, &[Arc::new(other)], |_| objects.clone()), expected, "{what}");
    }
}

/// A tenant must not keep an address booked by what it writes on a Service of its own.
#[test]
fn who_shows_an_address_in_another_namespace_uses_it_with_consent_or_where_it_is_served() {
    let owner = |share_with: &str| ServiceView {
        annotations: [(kube_vip::LOADBALANCER_IPS, "10.0.0.1"), (cloudprovider::SHARE_WITH, share_with)].into(),
        ..build::service("shop/web").ingress("10.0.0.1").done()
    };
    let lb = build::lb("x").ready("10.0.0.1").done();
    let shows = |name| build::service(name).short(&[("ip", "10.0.0.1")]).label("shop.web");
    for (what, share_with, other, open, expected) in [
        ("forged", "", shows("tenant/a").done(), false, false),
        ("with consent, not served yet", "tenant", shows("tenant/a").done(), false, true),
        ("no consent is needed", "", shows("tenant/a").done(), true, true),
        ("served", "", shows("tenant/a").ingress("10.0.0.1").done(), false, true),
        ("served elsewhere", "", shows("tenant/a").ingress("10.0.0.2").done(), false, false),
        ("of the same namespace", "", shows("shop/a").done(), false, true),
    ] {
        let found = users(&owner(share_with), &[&lb], vec![Arc::new(other.clone())], open);
        assert_eq!(!found.is_empty(), expected, "{what}");
        let kept = sharer_of_gone(&build::key("shop/web"), &lb, &[Arc::new(other)], open);
        let consented = share_with == "tenant";
        assert_eq!(kept.is_some(), expected && !consented, "{what}: who has consented is gone");
    }
}

#[test]
fn a_lease_is_used_by_who_is_served_at_it_and_has_it_from_its_owner() {
    let owner = build::service("default/web").short(&[("ip", "0.0.0.0")]).ingress("10.0.0.1").done();
    let lb = LbView { ipam: Some("dhcp".into()), ..build::lb("x").ready("0.0.0.0").done() };
    let at = |ip| build::service("default/a").short(&[("ip", ip)]).ingress(ip);
    for (what, other, expected) in [
        ("a former secondary", at("10.0.0.1").label("default.web").done(), true),
        ("a secondary without a label", at("10.0.0.1").short(&[("primary", "default/web")]).done(), true),
        ("of another namespace", build::service("x/a").label("default.web").ingress("10.0.0.1").done(), true),
        ("has it from somebody else", at("10.0.0.1").done(), false),
        ("is served elsewhere", at("10.0.0.2").label("default.web").done(), false),
        ("is not served", build::service("x/a").short(&[("ip", "10.0.0.1")]).label("default.web").done(), false),
    ] {
        assert_eq!(!users(&owner, &[&lb], vec![Arc::new(other)], false).is_empty(), expected, "{what}");
    }
}

fn no_objects(_: &ServiceView) -> Vec<Arc<LbView>> {
    Vec::new()
}

#[test]
fn udp_and_tcp_53_may_share_an_address() {
    let dns = build::service("default/dns").ports(&["TCP/53"]).done();
    let occupants = [Occupant::from(&build::service("default/web").ports(&["UDP/53"]).done())];
    assert_eq!(first_clash(&dns, &occupants), None);
    let occupants = [Occupant::from(&build::service("default/web").ports(&["UDP/53", "TCP/53"]).done())];
    assert_eq!(first_clash(&dns, &occupants).unwrap().0.1, 53);
}

#[test]
fn a_group_shares_its_leaders_address_and_what_cannot_be_is_told_with_what_is_accepted() {
    let web = Arc::new(build::service("default/web").short(&[("group", "edge")]).done());
    let leader = |_: &Group| Some(Arc::clone(&web));
    let ask = |annotations: &[(&str, &str)]| {
        let service = build::service("default/a").short(annotations).done();
        let found = shared_with(&service, |_| Some(Arc::clone(&web)), leader);
        found.map(|found| found.map(|found| found.key.to_string())).map_err(|error| error.to_string())
    };
    assert_eq!(ask(&[("group", "edge")]), Ok(Some("default/web".into())));
    assert_eq!(ask(&[("group", "edge"), ("ipam", "pool"), ("primary", "")]), Ok(Some("default/web".into())));
    assert_eq!(shared_with(&web, |_| None, leader), Ok(None), "the leader has an address of its own");
    assert_eq!(ask(&[("primary", "default/web")]), Ok(Some("default/web".into())), "by name, too");
    for (annotations, parts) in [
        (&[("group", "Edge")][..], &["/share-group", "\"Edge\"", "lower-case"][..]),
        (&[("group", "edge"), ("primary", "default/web")], &["/share-group", "/primary-service", "remove one"]),
        (&[("group", "edge"), ("ipam", "dhcp")], &["/share-group", "/ipam", "\"dhcp\"", "accepted is pool"]),
    ] {
        let text = ask(annotations).unwrap_err();
        assert!(parts.iter().all(|part| text.contains(part)), "{annotations:?}: {text}");
    }
    let member = Arc::new(build::service("default/b").short(&[("group", "edge")]).done());
    let named = build::service("default/c").short(&[("primary", "default/b")]).done();
    let error = shared_with(&named, |_| Some(Arc::clone(&member)), leader).unwrap_err();
    assert!(error.to_string().starts_with("service default/b is not a primary service. "), "{error}");
}

#[test]
fn the_oldest_member_inherits_unless_somebody_names_the_holder_itself() {
    let in_group = |name, created| {
        Arc::new(build::service(name).short(&[("group", "edge"), ("ip", "10.0.0.1")]).created(created).done())
    };
    let holder = in_group("default/web", 1);
    let (old, young) = (in_group("default/z", 2), in_group("default/a", 3));
    let named = Arc::new(build::service("default/n").short(&[("primary", "default/web")]).done());
    assert_eq!(heir(&holder, &[&young, &old]).map(|heir| heir.key.name.as_str()), Some("z"));
    assert_eq!(heir(&holder, &[]), None);
    assert_eq!(heir(&holder, &[&young, &named]), None, "its deletion waits, as ever");
    let elsewhere = in_group("other/x", 1);
    assert_eq!(heir(&holder, &[&elsewhere]), None, "a group is of one namespace");
}

#[test]
fn members_of_a_group_do_not_take_the_address_from_each_other() {
    let member = |name| build::service(name).short(&[("group", "edge"), ("ip", "10.0.0.1")]).done();
    assert!(!is_taken(&member("default/a"), &[Arc::new(member("default/b"))], no_objects));
    let served = ServiceView { ingress: vec!["10.0.0.1".parse().unwrap()], ..member("other/b") };
    assert!(is_taken(&member("default/a"), &[Arc::new(served)], no_objects));
}

#[test]
fn a_service_does_not_clash_with_itself() {
    let dns = build::service("default/dns").ports(&["TCP/53"]).done();
    assert_eq!(first_clash(&dns, &[Occupant::from(&dns)]), None);
}

/// W-21.
#[test]
fn only_living_load_balancers_that_name_the_primary_share_with_it() {
    let key = build::key("default/web");
    let secondary = || build::service("default/a").short(&[("primary", "default/web")]).label("default.web");
    let mut deleting = secondary().done();
    deleting.deleting = true;
    let mut cluster_ip = secondary().done();
    cluster_ip.is_load_balancer = false;
    let mut classy = secondary().done();
    classy.has_class = true;
    let label_only = build::service("default/b").label("default.web").done();
    let other = build::service("default/c").short(&[("primary", "default/web2")]).done();
    let itself = build::service("default/web").short(&[("primary", "default/web")]).done();
    for not in [deleting, cluster_ip, classy, label_only, other, itself] {
        assert!(sharers(&key, [Arc::new(not.clone())]).is_empty(), "{not:?}");
    }
    assert_eq!(sharers(&key, [Arc::new(secondary().done())]).len(), 1);
}

/// W-22.
#[test]
fn a_label_value_that_would_be_too_long_is_left_out() {
    assert_eq!(label_value(&build::key("default/web")), Some("default.web".into()));
    let long = "a".repeat(32);
    assert_eq!(label_value(&build::key(&format!("{long}/{long}"))), None);
}

#[test]
fn a_sharer_has_joined_when_it_wears_the_label_or_shows_the_address() {
    let web = build::service("default/web").ingress("10.0.0.1").done();
    let new = || build::service("default/a").short(&[("primary", "default/web")]);
    assert!(!has_joined(&new().done(), &web));
    assert!(has_joined(&new().label("default.web").done(), &web));
    assert!(!has_joined(&new().label("default.other").done(), &web));
    assert!(has_joined(&new().short(&[("ip", "10.0.0.1")]).done(), &web));
    assert!(!has_joined(&new().short(&[("ip", "10.0.0.2")]).done(), &web), "from a life of its own");
    assert!(!has_joined(&new().done(), &build::service("default/web").done()), "nobody shows an address");
}

/// A tenant must not take ports of an address of a namespace that never agreed, nor keep it alive.
#[test]
fn an_address_is_shared_within_a_namespace_or_with_consent_or_where_it_is_served_already() {
    let web = |share_with: &str| ServiceView {
        annotations: [(cloudprovider::SHARE_WITH, share_with)].into_iter().collect(),
        ..build::service("shop/web").ingress("10.0.0.1").done()
    };
    let other = || build::service("tenant/api");
    for (share_with, expected) in
        [("", false), ("tenant", true), ("a, tenant ,b", true), ("*", true), ("tenant2", false), ("ten", false)]
    {
        assert_eq!(may_share(&other().done(), &web(share_with), false), expected, "{share_with:?}");
        assert!(may_share(&other().done(), &web(share_with), true), "as with the Go provider");
        assert!(may_share(&build::service("shop/api").done(), &web(share_with), false), "the same namespace");
    }
    assert!(may_share(&other().ingress("10.0.0.1").done(), &web(""), false), "clients were told of it");
    let forged = other().short(&[("ip", "10.0.0.1")]).done();
    assert!(!may_share(&forged, &web(""), false), "an annotation is its author's");
}

#[test]
fn a_sharer_keeps_the_object_of_an_owner_that_is_gone_and_a_squatter_does_not() {
    let owner = build::service("default/web").done();
    let lb = build::lb("x").ready("10.0.0.1").done();
    let serves = |service: ServiceView| ServiceView { ingress: vec!["10.0.0.1".parse().unwrap()], ..service };
    let sharer = serves(build::service("default/api").short(&[("primary", "default/web")]).done());
    let moved = build::service("default/api").short(&[("primary", "default/web")]).done();
    let squatter = serves(build::service("default/other").done());
    let leaving = ServiceView { deleting: true, ..sharer.clone() };
    for (services, keeps) in [
        (vec![sharer.clone()], true),
        (vec![moved], false),
        (vec![squatter], false),
        (vec![leaving], false),
        (vec![owner.clone()], false),
    ] {
        let services: Vec<_> = services.into_iter().map(Arc::new).collect();
        let found = sharer_of_gone(&owner.key, &lb, &services, false);
        assert_eq!(found, keeps.then(|| sharer.key.clone()), "{services:?}");
    }
}
