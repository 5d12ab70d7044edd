//! What a user may ask for: a pool, an address, and how many load balancers there may be (decisions 9 and 10).

use super::*;

fn static_web(address: &str) -> ServiceView {
    service("default/web").short(&[("ipam", "static"), ("want", address)]).done()
}

fn dhcp_lb() -> LbView {
    LbView { ipam: Some("dhcp".into()), ..lb("lb-name").network_of_host("guests/mgmt").ready("0.0.0.0").done() }
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
    assert_eq!(kept, Plan { actions: vec![], verdict: Verdict::Ready }, "an address that serves stays");
}

/// It used to be neither told nor left.
#[test]
fn a_pool_that_does_not_exist_is_told_and_can_be_corrected() {
    let lb = lb("lb-name").network_of_host("guests/mgmt").not_ready("fail to get allocator nosuch").done();
    let lb = LbView { wanted_pool: Some("nosuch".into()), ..lb };
    let web = |pool| service("default/web").short(&[("ippool", pool)]).done();
    let scene = Scene { now: 1_010, idle: Some(Duration::from_secs(10)), ..Scene::default() };
    let told = scene.plan(&web("nosuch"), &[], &[("default/web", &lb)]);
    assert_eq!(told.actions, []);
    assert!(waiting(&told).needs_user && waiting(&told).message.contains("IPPool nosuch does not exist"));
    let corrected = scene.plan(&web("edge"), &[], &[("default/web", &lb)]);
    let [Action::Update { changes, .. }] = corrected.actions.as_slice() else { panic!("{corrected:?}") };
    assert!(changes.contains(&Change::Pool("edge".into())), "{changes:?}");
}

/// Harvester knows nothing of static addresses, so a pool that contains one gives it away a second time.
#[test]
fn a_booked_address_that_a_static_service_uses_is_not_published_and_told() {
    let scene = Scene { address_user: Some(key("default/fixed")), ..Scene::default() };
    let plan = scene.plan(&web(), &[], &[("default/web", &ready_lb())]);
    assert_eq!(plan.actions, []);
    let told = waiting(&plan);
    assert!(told.needs_user && told.retry_after.is_some(), "{told:?}");
    for part in [IP, "default/fixed", "outside all pools"] {
        assert!(told.message.contains(part), "{told:?}");
    }
    let both = scene.plan(&served(), &[], &[("default/web", &ready_lb())]);
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
    assert_eq!(noted.verdict, Verdict::Ready);
}

#[test]
fn a_static_address_that_another_service_has_is_refused_by_its_name() {
    let scene = Scene { address_user: Some(key("default/other")), ..Scene::default() };
    let plan = scene.plan(&static_web("10.0.0.7"), &[], &[]);
    assert_eq!(plan.actions, []);
    assert!(refusal(&plan).starts_with("address 10.0.0.7 is already used by service default/other"));
}

/// Decision 10: the host's webhook would refuse it.
#[test]
fn static_and_pool_are_not_exchanged_on_a_living_service() {
    let plan = plan(&static_web("10.0.0.7"), &[], &[("default/web", &ready_lb())]);
    assert_eq!(plan.actions, []);
    assert!(refusal(&plan).starts_with("can't change the IPAM from pool to static of load balancer guests/lb-name"));
}

/// Decision 9: reported, never acted on.
#[test]
fn an_address_that_the_pool_did_not_give_is_reported_and_the_booked_one_served() {
    let asked = |address| service("default/web").short(&[("want", address)]).done();
    let plan = plan(&asked("10.0.0.7"), &[], &[("default/web", &ready_lb())]);
    let [Action::Patch(patch)] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!(patch.address, IP);
    assert!(refusal(&plan).starts_with(&format!("address 10.0.0.7 was asked for, Harvester booked {IP}")));
    let as_asked = super::plan(&asked(IP), &[], &[("default/web", &ready_lb())]);
    assert_eq!(as_asked.verdict, Verdict::Ready);
}

#[test]
fn a_dhcp_server_is_asked_for_the_address_once() {
    let web = service("default/web").short(&[("ipam", "dhcp"), ("want", "10.0.0.7")]).done();
    let plan = plan(&web, &[], &[("default/web", &dhcp_lb())]);
    let [Action::Patch(patch)] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!(patch.annotations[kube_vip::REQUESTED_IP].as_deref(), Some("10.0.0.7"));
    let mut leased = ServiceView { ingress: vec!["10.0.0.9".parse().unwrap()], ..patch.apply(&web) };
    leased.annotations.insert(kube_vip::REQUESTED_IP.into(), "10.0.0.9".into());
    let plan = super::plan(&leased, &[], &[("default/web", &dhcp_lb())]);
    assert!(!plan.actions.iter().any(|action| matches!(action, Action::Patch(_))), "{plan:?}");
}

#[test]
fn a_cluster_that_has_all_its_load_balancers_gets_no_further_one_and_loses_none() {
    let scene = || Scene { quota_reached: Some(5), ..Scene::default() };
    let plan = scene().plan(&web(), &[], &[]);
    assert_eq!(plan.actions, []);
    let told = waiting(&plan);
    assert!(told.needs_user && told.retry_after.is_some() && told.message.contains("may have 5"), "{told:?}");
    assert_eq!(scene().plan(&served(), &[], &[("default/web", &ready_lb())]).verdict, Verdict::Ready);
}
