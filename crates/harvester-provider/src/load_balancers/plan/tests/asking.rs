//! What a user may ask for: a pool, an address, and how many load balancers there may be (decisions 9 and 10).

use cloud_provider::view::{Condition, ConditionStatus, Family};
use harvester_api::names::ClusterName;

use super::*;

fn plan_of_cluster(name: &str, service: &ServiceView) -> Plan {
    let cluster_name = Some(ClusterName::from_record(name));
    Situation { cluster_name, ..Situation::default() }.plan(service, &[], &[])
}

fn static_web(address: &str) -> ServiceView {
    service("default/web").short(&[("ipam", "static"), ("want", address)]).done()
}

fn dhcp_lb() -> LbView {
    LbView { ipam: Some("dhcp".into()), ..lb("lb-name").network_of_host("guests/mgmt").ready("0.0.0.0").done() }
}

/// The host knows nothing of families: it answers 0.0.0.0 for both.
#[test]
fn a_service_of_ipv6_alone_has_dhcpv6_asked_for() {
    for (family, shown, expected) in [
        (Family::V4, None, Some("0.0.0.0")),
        (Family::V6, None, Some("::")),
        (Family::V6, Some("0.0.0.0"), Some("::")),
        (Family::V6, Some("::"), None),
    ] {
        let mut web = service("default/web").short(&[("ipam", "dhcp")]).done();
        web.families = vec![family];
        if let Some(shown) = shown {
            web.annotations.insert(kube_vip::LOADBALANCER_IPS, shown);
        }
        let plan = plan(&web, &[], &[("default/web", &dhcp_lb())]);
        let published = plan.actions.iter().find_map(|action| match action {
            Action::Patch(patch) => patch.annotations[kube_vip::LOADBALANCER_IPS].as_deref(),
            _ => None,
        });
        assert_eq!(published, expected, "{family:?} {shown:?}");
    }
}

#[test]
fn a_named_pool_is_named_on_the_new_object() {
    let plan = plan(&service("default/web").short(&[("ippool", "edge")]).done(), &[], &[]);
    let [Action::Create(object)] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!((object.spec.ip_pool.as_deref(), object.spec.ipam.as_deref()), (Some("edge"), Some("pool")));
}

#[test]
fn an_object_without_an_address_is_sent_to_the_pool_that_is_named_now() {
    let lb = lb("lb-name").network_of_host("guests/mgmt").not_ready("no matched IPPool with requirement x").done();
    let web = service("default/web").short(&[("ippool", "edge")]).done();
    let plan = plan(&web, &[], &[("default/web", &lb)]);
    let [Action::Update { changes, .. }] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert!(changes.contains(&Change::Pool("edge".into())), "{changes:?}");
    let sent = LbView { wanted_pool: Some("edge".into()), ..lb };
    assert_eq!(super::plan(&web, &[], &[("default/web", &sent)]).actions, [], "once");
}

#[test]
fn a_pool_that_is_not_named_any_more_is_taken_back_from_an_object_without_an_address() {
    let lb = lb("lb-name").network_of_host("guests/mgmt").not_ready("fail to get allocator nosuch").done();
    let lb = LbView { wanted_pool: Some("nosuch".into()), ..lb };
    let plan = plan(&web(), &[], &[("default/web", &lb)]);
    let [Action::Update { changes, .. }] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert!(changes.contains(&Change::NoPool), "{changes:?}");
    let sent = LbView { wanted_pool: None, ..lb.clone() };
    assert_eq!(super::plan(&web(), &[], &[("default/web", &sent)]).actions, [], "once");

    let booking = LbView { ready: None, ..lb };
    assert_eq!(super::plan(&web(), &[], &[("default/web", &booking)]).actions, [], "the host may be booking in it");
    let serving = LbView { wanted_pool: Some("edge".into()), booked_pool: Some("edge".into()), ..ready_lb() };
    let kept = super::plan(&served(), &[], &[("default/web", &serving)]);
    assert_eq!(kept, Plan { actions: vec![], verdict: PlanVerdict::Ready }, "an address that serves stays");
}

/// It used to be neither told nor left.
#[test]
fn a_pool_that_does_not_exist_is_told_and_can_be_corrected() {
    let lb = lb("lb-name").network_of_host("guests/mgmt").not_ready("fail to get allocator nosuch").done();
    let lb = LbView { wanted_pool: Some("nosuch".into()), ..lb };
    let web = |pool| service("default/web").short(&[("ippool", pool)]).done();
    let situation =
        Situation { age: Duration::from_secs(10), idle: Some(Duration::from_secs(10)), ..Situation::default() };
    let told = situation.plan(&web("nosuch"), &[], &[("default/web", &lb)]);
    assert_eq!(told.actions, []);
    assert!(waiting(&told).needs_user && waiting(&told).message.contains("IPPool nosuch does not exist"));
    let corrected = situation.plan(&web("edge"), &[], &[("default/web", &lb)]);
    let [Action::Update { changes, .. }] = corrected.actions.as_slice() else { panic!("{corrected:?}") };
    assert!(changes.contains(&Change::Pool("edge".into())), "{changes:?}");
}

#[test]
fn a_static_address_of_a_family_that_the_service_does_not_have_is_refused_before_anything_is_made() {
    let web = service("default/web").short(&[("ipam", "static"), ("want", "fd00::7")]);
    let plan = plan(&web.families(&[Family::V4]).done(), &[], &[]);
    assert_eq!(plan.actions, []);
    let PlanVerdict::Refused(refused) = &plan.verdict else { panic!("{plan:?}") };
    assert_eq!(refused.word(), "WrongAnnotation");
}

/// Harvester knows nothing of static addresses, so a pool that contains one gives it away a second time.
#[test]
fn a_booked_address_that_a_static_service_uses_is_not_published_and_told() {
    let situation = Situation { address_user: Some(key("default/fixed")), ..Situation::default() };
    let plan = situation.plan(&web(), &[], &[("default/web", &ready_lb())]);
    assert_eq!(plan.actions, []);
    let told = waiting(&plan);
    assert!(told.needs_user && told.retry_after.is_some(), "{told:?}");
    for part in [IP, "default/fixed", "outside all pools"] {
        assert!(told.message.contains(part), "{told:?}");
    }
    let both = situation.plan(&served(), &[], &[("default/web", &ready_lb())]);
    assert_eq!(both.actions, [], "who is served already is not cut off");
    assert!(waiting(&both).needs_user);
}

/// Decision 10.
#[test]
fn a_static_address_is_the_users_and_the_hosts_record_is_left_alone() {
    let plan = plan(&static_web("10.0.0.7"), &[], &[]);
    let [Action::Create(object)] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!(object.spec.ipam.as_deref(), Some("dhcp"), "the host's schema has no other");

    let published = super::plan(&static_web("10.0.0.7"), &[], &[("default/web", &dhcp_lb())]);
    let [Action::Patch(patch)] = published.actions.as_slice() else { panic!("{published:?}") };
    assert_eq!(patch.address, "10.0.0.7");

    let served = ServiceView { ingress: vec!["10.0.0.7".parse().unwrap()], ..patch.apply(&static_web("10.0.0.7")) };
    let noted = super::plan(&served, &[], &[("default/web", &dhcp_lb())]);
    let [Action::Update { changes, .. }] = noted.actions.as_slice() else { panic!("{noted:?}") };
    assert_eq!(changes[0], Change::Address("10.0.0.7".into()));
    assert_eq!(noted.verdict, PlanVerdict::Ready);
}

#[test]
fn a_static_address_that_another_service_has_is_refused_by_its_name() {
    let situation = Situation { address_user: Some(key("default/other")), ..Situation::default() };
    let plan = situation.plan(&static_web("10.0.0.7"), &[], &[]);
    assert_eq!(plan.actions, []);
    assert!(refusal(&plan).starts_with("address 10.0.0.7 is already used by service default/other"));
}

#[test]
fn a_static_address_of_a_node_or_of_the_cluster_is_refused_by_its_name() {
    for (holder, expected) in [
        (
            AddressHolder::Node("worker-1".into()),
            "address 10.0.0.7 is that of node worker-1: name another one in annotation \
             cloudprovider.harvesterhci.io/ip, an address of the network that is in no pool",
        ),
        (
            AddressHolder::ClusterIp(key("default/db")),
            "address 10.0.0.7 is the ClusterIP of service default/db: name another",
        ),
    ] {
        let situation = Situation { address_holder: Some(holder), ..Situation::default() };
        let plan = situation.plan(&static_web("10.0.0.7"), &[], &[]);
        assert_eq!(plan.actions, []);
        assert!(refusal(&plan).starts_with(expected), "{}", refusal(&plan));
        assert!(situation.plan(&web(), &[], &[]).actions.len() == 1, "who asks a pool is not concerned");
    }
}

/// Decision 10: the host's webhook would refuse it.
#[test]
fn static_and_pool_are_not_exchanged_on_a_living_service() {
    let published = service("default/web").short(&[("ipam", "static"), ("want", "10.0.0.7"), ("ip", IP)]).done();
    let plan = plan(&published, &[], &[("default/web", &ready_lb())]);
    assert_eq!(plan.actions, []);
    assert!(refusal(&plan).starts_with("can't change the IPAM from pool to static of load balancer guests/lb-name"));
}

/// Nothing is lost yet: the same as deleting the Service and exposing it again.
#[test]
fn the_ipam_may_be_changed_until_an_address_has_reached_the_service() {
    let dhcp = || service("default/web").short(&[("ipam", "dhcp")]).done();
    let unmatched =
        lb("lb-name").network_of_host("guests/mgmt").not_ready("no matched IPPool with requirement x").done();
    let send = |lb: &LbView| Action::Delete { name: lb.name.clone(), uid: lb.uid.clone(), leaks: false };
    for lb in [&unmatched, &ready_lb()] {
        assert_eq!(plan(&dhcp(), &[], &[("default/web", lb)]).actions, [send(lb)]);
    }
    let booking = plan(&dhcp(), &[], &[("default/web", &lb("lb-name").done())]);
    assert_eq!(booking.actions, [], "the host would leak what it is about to book");
    assert!(waiting(&booking).retry_after.is_some());

    let asked = service("default/web").short(&[("ip", "0.0.0.0")]).done();
    let plan = plan(&asked, &[], &[("default/web", &dhcp_lb())]);
    let [Action::Patch(patch), Action::Delete { leaks: false, .. }] = plan.actions.as_slice() else {
        panic!("{plan:?}")
    };
    assert_eq!(patch.annotations[kube_vip::LOADBALANCER_IPS], None, "no lease is asked for any more");
}

#[test]
fn a_network_that_the_host_did_not_keep_is_told_and_the_address_served() {
    let lb = |kept: &str| {
        let mut lb = ready_lb();
        lb.annotations.insert(cloudprovider::LB_NETWORK, "guests/data");
        lb.annotations.insert(loadbalancer::NETWORK, kept);
        lb
    };
    let served = service("default/web").short(&[("net", "guests/data"), ("ip", IP)]).ingress(IP).done();
    let told = plan(&served, &[], &[("default/web", &lb("guests/mgmt"))]);
    assert_eq!(told.actions, []);
    let (word, text, warning) = remark(&told);
    assert_eq!((word, warning), ("NetworkNotKept", true));
    assert!(text.contains("network guests/data was asked for") && text.contains("has put guests/mgmt"), "{text}");
    assert_eq!(plan(&served, &[], &[("default/web", &lb("guests/data"))]).verdict, PlanVerdict::Ready);
    assert_eq!(
        plan(&super::served(), &[], &[("default/web", &ready_lb())]).verdict,
        PlanVerdict::Ready,
        "none asked for"
    );
}

/// Harvester spec 0: no released host books two addresses for one load balancer.
#[test]
fn two_families_get_one_address_of_a_pool_and_the_service_says_what_is_missing() {
    let both = [Family::V4, Family::V6];
    let prefers = || service("default/web").families(&both);
    assert!(
        matches!(plan(&prefers().done(), &[], &[]).actions.as_slice(), [Action::Create(_)]),
        "one is better than none"
    );
    let published = plan(&prefers().done(), &[], &[("default/web", &ready_lb())]);
    assert!(matches!(published.actions.as_slice(), [Action::Patch(_)]));
    let (word, text, warning) = remark(&published);
    assert_eq!((word, warning), ("SingleStackOnly", false), "who prefers two is content with one");
    assert!(text.contains("with IPAM pool, the default,") && text.contains("SingleStack"), "{text}");
    let annotated = prefers().short(&[("ipam", "pool"), ("ip", IP)]).ingress(IP).done();
    let (_, text, _) = remark(&plan(&annotated, &[], &[("default/web", &ready_lb())]));
    assert!(text.contains("with annotation cloudprovider.harvesterhci.io/ipam pool it gets"), "{text}");

    let requires = |service: build::ServiceBuilder| ServiceView { requires_both_families: true, ..service.done() };
    let waits = plan(&requires(prefers()), &[], &[]);
    assert_eq!(waits.actions, []);
    assert!(refusal(&waits).contains("RequireDualStack"));
    let served = plan(&requires(prefers().short(&[("ip", IP)]).ingress(IP)), &[], &[("default/web", &ready_lb())]);
    assert_eq!(served.actions, [], "nothing is taken from who has it");
    assert_eq!((remark(&served).0, remark(&served).2), ("SingleStackOnly", true));
}

#[test]
fn an_address_of_a_pool_in_a_family_that_the_service_does_not_have_is_not_published_and_told() {
    let six = || service("default/web").families(&[Family::V6]);
    let refused = plan(&six().done(), &[], &[("default/web", &ready_lb())]);
    assert_eq!(refused.actions, []);
    let text = refusal(&refused);
    for part in [IP, "an IPv4 address", "[IPv6]", "/ippool", "ipam: dhcp"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let shown = plan(&six().short(&[("ip", IP)]).done(), &[], &[("default/web", &ready_lb())]);
    let [Action::Patch(patch)] = shown.actions.as_slice() else { panic!("{shown:?}") };
    assert_eq!(patch.annotations[kube_vip::LOADBALANCER_IPS], None, "no announcer must take it");
    let served = plan(&six().short(&[("ip", IP)]).ingress(IP).done(), &[], &[("default/web", &ready_lb())]);
    assert_eq!((remark(&served).0, remark(&served).2), ("WrongFamily", true), "nothing is taken from who has it");
    let mut named = ready_lb();
    named.wanted_pool = Some("four".into());
    let moves = six().short(&[("ip", IP), ("ippool", "six")]).ingress(IP).done();
    let begins = plan(&moves, &[], &[("default/web", &named)]);
    assert!(matches!(begins.actions.as_slice(), [Action::Create(_)]), "the remedy works: {begins:?}");
    let pair =
        plan(&service("default/web").families(&[Family::V6, Family::V4]).done(), &[], &[("default/web", &ready_lb())]);
    assert!(matches!(pair.actions.as_slice(), [Action::Patch(_)]), "{pair:?}");
}

#[test]
fn leases_are_asked_for_in_the_families_and_the_order_of_the_service() {
    let shown = |families: &[Family], more: &[(&str, &str)]| {
        let web = service("default/web").short(&[("ipam", "dhcp")]).short(more).families(families);
        let plan = plan(&web.done(), &[], &[("default/web", &dhcp_lb())]);
        assert_eq!(plan.verdict, PlanVerdict::Ready);
        match plan.actions.as_slice() {
            [Action::Patch(patch)] => patch.annotations[kube_vip::LOADBALANCER_IPS].clone().unwrap_or_default(),
            other => panic!("{other:?}"),
        }
    };
    let (v4, v6) = (Family::V4, Family::V6);
    for (families, expected) in
        [(&[][..], "0.0.0.0"), (&[v4], "0.0.0.0"), (&[v6], "::"), (&[v4, v6], "0.0.0.0,::"), (&[v6, v4], "::,0.0.0.0")]
    {
        assert_eq!(shown(families, &[]), expected, "{families:?}");
    }
    let leased = service("default/web").short(&[("ipam", "dhcp"), ("ip", "0.0.0.0")]).ingress("10.0.0.9");
    let lb = LbView { address: Some("10.0.0.9".into()), ..dhcp_lb() };
    let kept = plan(&leased.families(&[v4, v6]).done(), &[], &[("default/web", &lb)]);
    assert_eq!(kept.actions, [], "who was served by a Go provider gets no second lease unasked");
}

#[test]
fn a_cluster_name_that_no_object_can_have_is_refused_in_words_that_name_the_flag() {
    let plan = plan_of_cluster("My Cluster", &web());
    assert_eq!(plan.actions, []);
    let text = refusal(&plan);
    assert!(
        text.contains("\"My Cluster\"") && text.contains("accepted are") && text.contains("--cluster-name"),
        "{text}"
    );
}

/// Decision 9: reported, never acted on.
#[test]
fn an_address_that_the_pool_did_not_give_is_reported_and_the_booked_one_served() {
    let asked = |address| service("default/web").short(&[("want", address)]).done();
    let plan = plan(&asked("10.0.0.7"), &[], &[("default/web", &ready_lb())]);
    let [Action::Patch(patch)] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!(patch.address, IP);
    let (word, text, warning) = remark(&plan);
    assert_eq!((word, warning), ("AddressNotAsAsked", true));
    assert!(text.starts_with(&format!("address 10.0.0.7 was asked for, Harvester booked {IP}")), "{text}");
    let as_asked = super::plan(&asked(IP), &[], &[("default/web", &ready_lb())]);
    assert_eq!(as_asked.verdict, PlanVerdict::Ready);
}

/// The host's word of a pool that it does not know is believed after a while, and by `plan` and a new process at once
/// where the Service says so already.
#[test]
fn a_pool_that_was_said_to_be_missing_is_not_said_to_be_allocating_after_a_restart() {
    let lb = lb("lb-name").not_ready("fail to get allocator nosuch").done();
    let asks = || service("default/web").short(&[("ippool", "nosuch")]);
    let said = |reason: &str| {
        let mut web = asks().done();
        let (reason, message, since) = (reason.to_owned(), String::new(), String::new());
        web.conditions.ready = Some(Condition { status: ConditionStatus::False, reason, message, since });
        web
    };
    let lb = LbView { wanted_pool: Some("nosuch".into()), ..lb };
    for (web, age, expected) in [
        (asks().done(), Duration::ZERO, WaitReason::Allocation),
        (said("Pending"), Duration::ZERO, WaitReason::Allocation),
        (said("Pending"), Duration::from_secs(10), WaitReason::NoSuchPool),
        (said("NoSuchPool"), Duration::ZERO, WaitReason::NoSuchPool),
        (said("HarvesterSilent"), Duration::ZERO, WaitReason::Allocation),
    ] {
        let plan = Situation { age, ..Situation::default() }.plan(&web, &[], &[("default/web", &lb)]);
        let told = waiting(&plan);
        assert_eq!((told.reason, told.needs_user), (expected, expected == WaitReason::NoSuchPool), "{age:?}: {web:?}");
    }
}

/// The server decides; a Service that it gives another address is served, and says so as one with a pool does.
#[test]
fn an_address_that_the_dhcp_server_did_not_give_is_reported_and_the_leased_one_served() {
    let both = [Family::V4, Family::V6];
    for (asked, families, leased, expected) in [
        ("10.0.0.7", &[][..], &["10.0.0.9"][..], Some("10.0.0.9")),
        ("10.0.0.7", &[], &["10.0.0.7"], None),
        ("10.0.0.7", &[], &[], None),
        ("10.0.0.7", &both, &["fd00::9", "10.0.0.9"], Some("10.0.0.9")),
        ("fd00::7", &both, &["10.0.0.9", "fd00::9"], Some("fd00::9")),
        // What is missing is told by the announcer.
        ("10.0.0.7", &both, &["fd00::9"], None),
    ] {
        let web = service("default/web").short(&[("ipam", "dhcp"), ("want", asked)]).families(families).done();
        let ingress = leased.iter().map(|ip| ip.parse().unwrap()).collect();
        let plan = plan(&ServiceView { ingress, ..web }, &[], &[("default/web", &dhcp_lb())]);
        let Some(given) = expected else {
            assert_eq!(plan.verdict, PlanVerdict::Ready, "{asked} {leased:?}");
            continue;
        };
        let (word, text, warning) = remark(&plan);
        assert_eq!((word, warning), ("AddressNotAsAsked", true));
        let begin = format!("address {asked} was asked for, the DHCP server gave {given}, which is served");
        assert!(text.starts_with(&begin) && text.contains("/ip to keep it"), "{text}");
    }
}

#[test]
fn a_dhcp_server_is_asked_for_the_address_once() {
    let web = service("default/web").short(&[("ipam", "dhcp"), ("want", "10.0.0.7")]).done();
    let plan = plan(&web, &[], &[("default/web", &dhcp_lb())]);
    let [Action::Patch(patch)] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!(patch.annotations[kube_vip::REQUESTED_IP].as_deref(), Some("10.0.0.7"));
    let mut leased = ServiceView { ingress: vec!["10.0.0.9".parse().unwrap()], ..patch.apply(&web) };
    leased.annotations.insert(kube_vip::REQUESTED_IP, "10.0.0.9");
    let plan = super::plan(&leased, &[], &[("default/web", &dhcp_lb())]);
    assert!(!plan.actions.iter().any(|action| matches!(action, Action::Patch(_))), "{plan:?}");
}

#[test]
fn a_cluster_that_has_all_its_load_balancers_gets_no_further_one_and_loses_none() {
    let situation = || Situation { quota_reached: Some(5), ..Situation::default() };
    let plan = situation().plan(&web(), &[], &[]);
    assert_eq!(plan.actions, []);
    let told = waiting(&plan);
    assert!(told.needs_user && told.retry_after.is_some() && told.message.contains("may have 5"), "{told:?}");
    assert_eq!(situation().plan(&served(), &[], &[("default/web", &ready_lb())]).verdict, PlanVerdict::Ready);
}
