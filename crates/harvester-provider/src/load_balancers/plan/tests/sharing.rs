//! Services that share an address: CCM spec 3.6.

use super::super::super::booking::BOOKING;
use super::*;

pub(super) fn secondary(name: &str) -> build::ServiceBuilder {
    service(name).short(&[("primary", "default/web")]).ports(&["TCP/443"])
}

#[test]
fn a_secondary_gets_its_primarys_address_and_no_object() {
    let plan = plan(&secondary("default/web2").done(), &[served()], &[("default/web", &ready_lb())]);
    let [Action::Patch(patch)] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!(
        patch.body("u"),
        json!({"metadata": {"uid": "u",
            "annotations": {"kube-vip.io/loadbalancerIPs": IP},
            "labels": {"cloudprovider.harvesterhci.io/primary-service": "default.web"}}})
    );
    assert_eq!(plan.verdict, PlanVerdict::Ready);
}

#[test]
fn a_secondary_waits_for_its_primarys_ingress() {
    let plan = plan(&secondary("default/web2").done(), &[web()], &[]);
    assert_eq!(plan.actions, []);
    let told = waiting(&plan);
    assert!(told.message.starts_with("primary service default/web has no address "), "{}", told.message);
    assert!(told.needs_user, "for minutes nobody would know what it waits for");
}

#[test]
fn a_primary_that_will_never_have_an_address_is_the_users_trouble() {
    let cluster_ip = ServiceView { is_load_balancer: false, ..web() };
    let plan = plan(&secondary("default/web2").done(), &[cluster_ip], &[]);
    assert!(waiting(&plan).needs_user);
    assert!(waiting(&plan).message.starts_with("primary service default/web has no address "));
}

/// ../golden 05-share, Service `clash`.
#[test]
fn a_secondary_may_not_take_a_port_of_its_primary_or_of_another_secondary() {
    let joined = secondary("default/web2").label("default.web").done();
    for (ports, by) in [(&["TCP/80"], "default/web"), (&["TCP/443"], "default/web2")] {
        let clash = secondary("default/clash").ports(ports).done();
        let plan = plan(&clash, &[served(), joined.clone()], &[("default/web", &ready_lb())]);
        assert_eq!(plan.actions, []);
        let port = &ports[0][4..];
        assert_eq!(
            refusal(&plan),
            format!(
                "check port overlap failed, primary service: default/web, secondary service: default/clash, error: \
                 port {port} has been used in service {by}. Both want TCP/{port}: use another port in one of them, or \
                 remove annotation cloudprovider.harvesterhci.io/primary-service from default/clash for an address of \
                 its own"
            )
        );
    }
    let udp = secondary("default/udp").ports(&["UDP/80", "UDP/443"]).done();
    assert_eq!(plan(&udp, &[served(), joined], &[]).verdict, PlanVerdict::Ready);
}

/// W-20: an applicant that is refused itself does not stand in the way of others.
#[test]
fn a_secondary_that_has_not_joined_holds_no_port() {
    let applicant = secondary("default/a").ports(&["TCP/80", "TCP/443"]).done();
    assert_eq!(plan(&secondary("default/b").done(), &[served(), applicant], &[]).verdict, PlanVerdict::Ready);
}

/// W-20, the other direction.
#[test]
fn a_primary_that_takes_a_port_of_its_secondary_is_told_and_stays_served() {
    let joined = secondary("default/web2").label("default.web").done();
    let greedy = service("default/web").short(&[("ip", IP)]).ingress(IP).ports(&["TCP/80", "TCP/443"]).done();
    let plan = plan(&greedy, &[joined], &[("default/web", &ready_lb())]);
    assert_eq!(plan.actions, []);
    let told = refusal(&plan);
    let go = "check port overlap failed, primary service: default/web, secondary service: default/web2, error: port \
              443 has been used in service default/web2. ";
    assert!(told.starts_with(go), "{told}");
}

#[test]
fn a_secondary_inherits_the_network_and_may_not_have_another() {
    let mut lb = ready_lb();
    lb.annotations.insert(cloudprovider::LB_NETWORK, "a/b");
    let primary = service("default/web").short(&[("ip", IP), ("net", "a/b")]).ingress(IP).done();
    let got = |service: &ServiceView| plan(service, std::slice::from_ref(&primary), &[("default/web", &lb)]);

    let inherits = secondary("default/web2").done();
    let plan = got(&inherits);
    let [Action::Patch(patch)] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!(patch.annotations[cloudprovider::NETWORK], Some("a/b".into()));

    let other = secondary("default/web2").short(&[("net", "x/y")]).done();
    assert_eq!(
        refusal(&got(&other)),
        "network annotation of service default/web2 is not same as the load balancer guests/lb-name, service: 'x/y', \
         lb: 'a/b'"
    );
}

/// The network of an address is fixed, so the primary is refused another one, and its sharers stay as they are.
#[test]
fn a_network_that_the_primary_is_refused_is_not_copied_to_its_secondaries() {
    let mut lb = ready_lb();
    lb.annotations.insert(cloudprovider::LB_NETWORK, "a/b");
    let primary = service("default/web").short(&[("ip", IP), ("net", "x/y")]).ingress(IP).done();
    let got = |service: &ServiceView| plan(service, std::slice::from_ref(&primary), &[("default/web", &lb)]);
    let joined = secondary("default/web2").short(&[("ip", IP), ("net", "a/b")]).label("default.web").done();
    assert_eq!(got(&joined), Plan { actions: vec![], verdict: PlanVerdict::Ready });
    let plan = got(&secondary("default/web3").ports(&["TCP/444"]).done());
    let [Action::Patch(patch)] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!(patch.annotations[cloudprovider::NETWORK], Some("a/b".into()));
}

#[test]
fn a_primary_that_becomes_a_secondary_gives_its_own_object_back_after_it_shows_the_new_address() {
    let own = LbView { labels: Tags::default(), ..lb("lb-name").ready("10.20.4.7").done() };
    let turned = secondary("default/web2").short(&[("ip", "10.20.4.7")]).done();
    let plan = plan(&turned, &[served()], &[("default/web", &ready_lb()), ("default/web2", &own)]);
    let [Action::Patch(_), Action::Delete { uid, leaks: false, .. }] = plan.actions.as_slice() else {
        panic!("{plan:?}")
    };
    assert_eq!(uid, "uid-lb-name");
}

/// An announcer answers for it until then.
#[test]
fn a_primary_that_becomes_a_secondary_keeps_its_own_address_while_it_is_served_there() {
    let own = LbView { labels: Tags::default(), ..lb("lb-name").ready("10.20.4.7").done() };
    let turned = |shown: &str| secondary("default/web2").short(&[("ip", shown)]);
    for (what, turned, expected) in [
        ("it is served nowhere", turned("10.20.4.7").done(), &["patch", "delete"][..]),
        ("it is served at its own address", turned("10.20.4.7").ingress("10.20.4.7").done(), &["patch"]),
        ("it shows the other one already", turned(IP).label("default.web").ingress("10.20.4.7").done(), &[]),
        ("it is served at the other one", turned(IP).label("default.web").ingress(IP).done(), &["delete"]),
    ] {
        let plan = plan(&turned, &[served()], &[("default/web", &ready_lb()), ("default/web2", &own)]);
        let word = |action: &Action| match action {
            Action::Patch(_) => "patch",
            Action::Delete { .. } => "delete",
            _ => "another",
        };
        assert_eq!(plan.actions.iter().map(word).collect::<Vec<_>>(), expected, "{what}");
        assert!(matches!(plan.verdict, PlanVerdict::Ready), "{what}: {:?}", plan.verdict);
    }
}

#[test]
fn a_primary_with_sharers_cannot_become_a_secondary() {
    let own = LbView { labels: Tags::default(), ..lb("lb-name").ready("10.20.4.7").done() };
    let turned = secondary("default/web2").done();
    let sharer = service("default/c").short(&[("primary", "default/web2"), ("ip", "10.20.4.7")]).done();
    let plan = plan(&turned, &[served(), sharer], &[("default/web2", &own)]);
    assert_eq!(plan.actions, []);
    assert_eq!(
        waiting(&plan).message,
        "the load balancer of service default/web2 stays, because default/c shares its address: delete it or let it \
         name another service first"
    );
}

#[test]
fn a_former_secondary_becomes_a_primary_with_an_object_of_its_own() {
    let former = service("default/web").short(&[("ip", "10.20.4.9")]).label("default.old").ingress("10.20.4.9").done();
    assert!(matches!(plan(&former, &[], &[]).actions.as_slice(), [Action::Create(_)]));
    let lb = lb("lb-name").ready(IP).done();
    let plan = plan(&former, &[], &[("default/web", &lb)]);
    let [Action::Patch(patch)] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!(patch.labels[cloudprovider::PRIMARY_SERVICE], Some(String::new()));
    assert_eq!(patch.annotations[kube_vip::LOADBALANCER_IPS], Some(IP.into()));
}

#[test]
fn a_primary_that_becomes_a_secondary_while_the_host_is_booking_gives_its_object_back_later() {
    let own = LbView { labels: Tags::default(), ..lb("lb-name").done() };
    let turned = secondary("default/web2").done();
    let lbs = [("default/web", &ready_lb()), ("default/web2", &own)];
    let situation = |age| Situation { age, ..Situation::default() }.plan(&turned, &[served()], &lbs);
    let plan = situation(Duration::ZERO);
    assert!(matches!(plan.actions.as_slice(), [Action::Patch(_)]), "{plan:?}");
    assert_eq!(waiting(&plan).retry_after, Some(BOOKING));
    let plan = situation(BOOKING);
    assert!(matches!(plan.actions.as_slice(), [Action::Patch(_), Action::Delete { leaks: true, .. }]), "{plan:?}");
}
