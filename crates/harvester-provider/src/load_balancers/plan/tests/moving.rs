//! A living Service moves to another pool: make before break.

use super::*;

pub(super) const NEW: &str = "10.30.0.1";

/// Served from pool `old`, and asked to move to pool `new`.
pub(super) fn moved() -> ServiceView {
    service("default/web").short(&[("ip", IP), ("ippool", "new")]).ingress(IP).done()
}

pub(super) fn old_lb() -> LbView {
    LbView { booked_pool: Some("old".into()), ..ready_lb() }
}

pub(super) fn next_lb() -> LbView {
    let view = lb("lb-next").network_of_host("guests/mgmt").done();
    LbView { wanted_pool: Some("new".into()), name: "lb-next".into(), uid: "uid-next".into(), ..view }
}

pub(super) fn ready_next() -> LbView {
    let ready = lb("lb-next").network_of_host("guests/mgmt").ready(NEW).done();
    LbView {
        booked_pool: Some("new".into()),
        address: Some(NEW.into()),
        ..LbView { usable_address: Some(NEW.into()), ready: ready.ready, has_host_finalizer: true, ..next_lb() }
    }
}

fn step(service: &ServiceView, lb: &LbView, others: &[LbView]) -> Plan {
    let others: Vec<Arc<LbView>> = others.iter().cloned().map(Arc::new).collect();
    Situation { others: &others, ..Situation::default() }.plan(service, &[], &[("default/web", lb)])
}

#[test]
fn the_new_address_is_there_before_the_old_one_goes() {
    let begun = step(&moved(), &old_lb(), &[]);
    let [Action::Create(object)] = begun.actions.as_slice() else { panic!("{begun:?}") };
    assert_eq!(object.spec.ip_pool.as_deref(), Some("new"));
    assert_eq!(object.metadata.name.as_deref(), Some(name_in_pool(&config(), &moved(), "new").as_str()));
    assert!(waiting(&begun).message.contains(&format!("{IP} stays until then")));

    let booking = step(&moved(), &old_lb(), &[next_lb()]);
    assert_eq!(booking.actions, [], "nothing is taken away while the host books");

    let booked = step(&moved(), &old_lb(), &[ready_next()]);
    let [Action::Patch(patch)] = booked.actions.as_slice() else { panic!("{booked:?}") };
    assert_eq!(patch.address, NEW);

    // From here on the new object is the Service's: it shows its address.
    let shown = patch.apply(&moved());
    assert_eq!(step(&shown, &ready_next(), &[old_lb()]).actions, [], "served at the old one still");

    let served = ServiceView { ingress: vec![NEW.parse().unwrap()], ..shown };
    let over = step(&served, &ready_next(), &[old_lb()]);
    let [Action::Delete { name, leaks: false, .. }] = over.actions.as_slice() else { panic!("{over:?}") };
    assert_eq!(*name, old_lb().name);
    assert_eq!(step(&served, &ready_next(), &[]), Plan { actions: vec![], verdict: PlanVerdict::Ready });
}

#[test]
fn a_pool_that_gives_nothing_leaves_the_service_as_it_is_and_says_so() {
    let exhausted =
        LbView { ..lb("lb-next").not_ready("fail to get ip from pool new, error: no IP addresses available").done() };
    let plan =
        step(&moved(), &old_lb(), &[LbView { wanted_pool: Some("new".into()), name: "lb-next".into(), ..exhausted }]);
    assert_eq!(plan.actions, []);
    let told = waiting(&plan);
    assert!(told.needs_user && told.message.contains("used up") && told.message.contains(IP), "{told:?}");
}

#[test]
fn a_host_that_collides_for_minutes_over_the_new_pool_is_told_while_the_old_address_is_served() {
    let collides = lb("lb-next").not_ready("fail to reserve 10.20.9.1 into new").done();
    let next = LbView { wanted_pool: Some("new".into()), name: "lb-next".into(), ..collides };
    for (minutes, needs_user) in [(1, false), (2, true)] {
        let others = [Arc::new(next.clone())];
        let situation = Situation { others: &others, age: Duration::from_mins(minutes), ..Situation::default() };
        let plan = situation.plan(&moved(), &[], &[("default/web", &old_lb())]);
        assert_eq!((plan.actions.len(), waiting(&plan).needs_user), (0, needs_user), "{minutes} min: {plan:?}");
    }
}

#[test]
fn a_service_that_has_an_address_is_not_told_that_it_will_get_one() {
    let told = |lb: &LbView, others: &[LbView]| {
        let others: Vec<Arc<LbView>> = others.iter().cloned().map(Arc::new).collect();
        let situation = Situation { others: &others, age: Duration::from_mins(1), ..Situation::default() };
        waiting(&situation.plan(&moved(), &[], &[("default/web", lb)])).message.clone()
    };
    let unknown = lb("lb-next").not_ready("fail to get allocator new").done();
    let next = LbView { wanted_pool: Some("new".into()), name: "lb-next".into(), ..unknown };
    let moving = told(&old_lb(), std::slice::from_ref(&next));
    assert!(
        moving.contains("IPPool new does not exist") && moving.ends_with("The Service moves by itself then"),
        "{moving}"
    );
    let first = told(&LbView { name: "lb-name".into(), ..next }, &[]);
    assert!(first.ends_with("The Service gets an address by itself then"), "{first}");
}

#[test]
fn whoever_changes_their_mind_keeps_the_address_and_the_other_is_given_back() {
    let back = service("default/web").short(&[("ip", IP)]).ingress(IP).done();
    let plan = step(&back, &old_lb(), &[ready_next()]);
    let [Action::Delete { name, .. }] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!(name, "lb-next");
    assert_eq!(plan.verdict, PlanVerdict::Ready);
}

fn asks_for(pool: &str) -> ServiceView {
    service("default/web").short(&[("ip", IP), ("ippool", pool)]).ingress(IP).done()
}

#[test]
fn what_an_earlier_move_has_left_goes_before_the_next_one_begins() {
    let plan = step(&asks_for("third"), &old_lb(), &[ready_next()]);
    let [Action::Delete { name, leaks: false, .. }] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!(name, "lb-next");
    assert!(waiting(&plan).message.contains(&format!("{IP} stays until then")));
    let going = LbView { terminating: true, ..ready_next() };
    let begun = step(&asks_for("third"), &old_lb(), &[going]);
    assert!(matches!(begun.actions.as_slice(), [Action::Create(_)]), "{begun:?}");
}

#[test]
fn a_move_that_is_given_up_while_harvester_books_leaks_nothing() {
    let plan = step(&asks_for("third"), &old_lb(), &[next_lb()]);
    assert_eq!(plan.actions, []);
    assert!(waiting(&plan).retry_after.is_some(), "{plan:?}");
}

#[test]
fn the_object_that_serves_is_no_leftover_of_a_move() {
    // The new address is shown, and the announcer has not taken it yet.
    let shown = service("default/web").short(&[("ip", NEW), ("ippool", "third")]).ingress(IP).done();
    let plan = step(&shown, &ready_next(), &[old_lb()]);
    assert!(matches!(plan.actions.as_slice(), [Action::Create(_)]), "{plan:?}");
}

#[test]
fn a_pool_is_named_again_while_its_object_is_being_deleted() {
    let name = name_in_pool(&config(), &moved(), "new");
    let going = LbView { terminating: true, name, ..ready_next() };
    let plan = step(&moved(), &old_lb(), &[going]);
    assert_eq!(plan.actions, []);
    assert!(waiting(&plan).message.contains("is being deleted on Harvester"), "{plan:?}");
}

#[test]
fn a_move_needs_one_load_balancer_more_and_keeps_to_the_limit() {
    let situation = Situation { quota_reached: Some(1), ..Situation::default() };
    let plan = situation.plan(&moved(), &[], &[("default/web", &old_lb())]);
    assert_eq!(plan.actions, []);
    let told = waiting(&plan);
    assert!(told.message.contains("--max-load-balancers") && told.message.contains(IP), "{told:?}");
}

#[test]
fn a_mode_that_cannot_be_had_in_the_middle_of_a_move_leaves_no_address_booked_for_nobody() {
    let dhcp = service("default/web").short(&[("ip", IP), ("ipam", "dhcp")]).ingress(IP).done();
    let plan = step(&dhcp, &old_lb(), &[ready_next()]);
    assert!(refusal(&plan).contains("can't change the IPAM"));
    let [Action::Delete { name, .. }] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!(name, "lb-next");
}

#[test]
fn an_object_that_names_another_service_is_never_given_back() {
    let mut foreign = ready_next();
    foreign.labels.insert(cloudprovider::SERVICE_NAME, "other");
    let stays = service("default/web").short(&[("ip", IP)]).ingress(IP).done();
    assert_eq!(step(&stays, &old_lb(), &[foreign]).actions, []);
}

/// A copy of the cluster has the UIDs of its original, so each proves the load balancers of both.
#[test]
fn an_object_under_the_name_of_another_cluster_is_never_given_back() {
    let under = |cluster: &str, mut lb: LbView| {
        lb.labels.insert(cloudprovider::CLUSTER, cluster);
        lb
    };
    let stays = || service("default/web").short(&[("ip", IP)]).ingress(IP).done();
    let dhcp = || service("default/web").short(&[("ip", IP), ("ipam", "dhcp")]).ingress(IP).done();
    for (what, service) in [("served", stays()), ("moving on", asks_for("third")), ("another mode", dhcp())] {
        let deleted = |serving: &str, other: &str| {
            let plan = step(&service, &under(serving, old_lb()), &[under(other, ready_next())]);
            plan.actions.iter().any(|action| matches!(action, Action::Delete { .. }))
        };
        assert!(!deleted("demo", "copied"), "{what}");
        assert!(deleted("demo", "demo"), "{what}");
        assert!(deleted("former", "former"), "{what}: the cluster has just been renamed");
        assert!(!deleted("former", "copied"), "{what}");
    }
    let unnamed = LbView { labels: Tags::default(), annotations: Tags::default(), ..ready_next() };
    assert!(
        !step(&stays(), &old_lb(), &[unnamed]).actions.iter().any(|action| matches!(action, Action::Delete { .. }))
    );
}

#[test]
fn sharers_have_moved_before_the_old_address_goes() {
    let served = service("default/web").short(&[("ip", NEW), ("ippool", "new")]).ingress(NEW).done();
    let sharer = |ip| service("default/api").short(&[("primary", "default/web"), ("ip", ip)]).ports(&["TCP/81"]).done();
    let others = [Arc::new(old_lb())];
    let plan = |sharer: ServiceView| {
        Situation { others: &others, ..Situation::default() }.plan(
            &served,
            &[sharer],
            &[("default/web", &ready_next())],
        )
    };
    assert_eq!(plan(sharer(IP)).actions, []);
    assert_eq!(plan(sharer(NEW)).actions.len(), 1);
    let former = |ip| service("default/former").short(&[("ip", ip)]).ingress(ip).done();
    assert_eq!(plan(former(IP)).actions, [], "who does not share any more is still served there");
    assert_eq!(plan(former("10.20.4.9")).actions.len(), 1);
    let forged = service("tenant/forged").short(&[("ip", IP)]).label("default.web").done();
    assert_eq!(plan(forged).actions.len(), 1, "it shows what its author wrote");
}

#[test]
fn a_service_in_the_named_pool_does_not_move() {
    let stays = service("default/web").short(&[("ip", IP), ("ippool", "old")]).ingress(IP).done();
    assert_eq!(step(&stays, &old_lb(), &[]), Plan { actions: vec![], verdict: PlanVerdict::Ready });
}

#[test]
fn a_move_does_not_need_the_uid_of_the_cluster() {
    let config = LoadBalancerConfig { cluster_uid: None, cluster_uids: Vec::new(), ..config() };
    let old = old_lb();
    let world = World {
        config: &config,
        name: "lb-name",
        lb: Some(&old),
        others: &[],
        mapping: None,
        primary: Ok(None),
        primary_lb: None,
        sharers: &[],
        users: &[],
        taken: false,
        address_user: None,
        address_claimed: None,
        address_holder: None,
        quota_reached: None,
        unserved: None,
        occupants: &[],
        now: 1_000,
        idle: None,
        ages: &Ages::default(),
    };
    let plan = ensure(&moved(), &world);
    let [Action::Create(object)] = plan.actions.as_slice() else { panic!("{plan:?}") };
    let uid = object.metadata.annotations.as_ref().and_then(|all| all.get(cloudprovider::SERVICE_UID));
    assert_eq!(uid, Some(&moved().uid.0), "the proof that it is ours");
}
