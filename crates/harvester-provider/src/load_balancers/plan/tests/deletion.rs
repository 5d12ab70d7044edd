//! Services that are gone or want no load balancer any more: CCM spec 3.9, decision 7.

use super::super::super::booking::{BOOKING, When, when};
use super::sharing::secondary;
use super::*;

/// No object is known, and nobody is in the way.
pub(super) fn nothing(config: &LoadBalancerConfig) -> Leaving<'_> {
    Leaving { config, lb: None, sharers: &[], users: &[], age: Duration::ZERO, inherits: false, claimed: false }
}

#[test]
fn an_object_that_is_handed_over_or_about_to_be_is_left_alone() {
    let config = config();
    let mut theirs = ready_lb();
    theirs.labels.insert(cloudprovider::SERVICE_NAME, "heir");
    theirs.annotations.insert(cloudprovider::SERVICE_UID, "uid-of-default-heir");
    let plan =
        |lb: Option<&LbView>, inherits, claimed| delete(&web(), &Leaving { lb, inherits, claimed, ..nothing(&config) });
    assert_eq!(plan(Some(&theirs), true, true), DeletePlan::HandedOver);
    for lb in [None, Some(&ready_lb())] {
        let DeletePlan::Soon(message) = plan(lb, true, true) else { panic!() };
        assert!(message.contains("handing its load balancer over to service default/web"), "{message}");
        let DeletePlan::Soon(message) = plan(lb, false, true) else { panic!() };
        assert!(message.contains("about to share the address of service default/web"), "{message}");
    }
}

#[test]
fn a_load_balancer_is_left_behind_under_its_exact_name_and_not_while_it_is_wanted() {
    let with = |abandon: &str| {
        let mut web = service("default/web").done();
        web.annotations.insert(cloudprovider::ABANDON, abandon);
        web
    };
    let web = |abandon: &str| ServiceView { deleting: true, ..with(abandon) };
    let names = || ["a".to_owned(), "b".to_owned()];
    assert_eq!(abandoned(&web("b"), names()).as_deref(), Some("b"));
    assert_eq!(abandoned(&web("c"), names()), None);
    assert_eq!(abandoned(&ServiceView { deleting: false, ..web("b") }, names()), None, "it is wanted");
}

/// W-04, W-23, CCM spec 3.9.
#[test]
fn deletion_goes_by_the_services_own_object_whatever_was_published() {
    let config = config();
    let send = |lb: &LbView, sharers: &[Arc<ServiceView>]| {
        delete(&web(), &Leaving { lb: Some(lb), sharers, ..nothing(&config) })
    };
    assert_eq!(delete(&web(), &nothing(&config)), DeletePlan::Verify);
    let expected = DeletePlan::Send { uid: "uid-lb-name".into(), leaks: false };
    assert_eq!(send(&lb("lb-name").not_ready("no matched IPPool").done(), &[]), expected, "never Ready");
    assert_eq!(send(&ready_lb(), &[]), expected);
    let orphan = secondary("default/web").done();
    assert_eq!(
        delete(&orphan, &Leaving { lb: Some(&ready_lb()), ..nothing(&config) }),
        expected,
        "the primary does not matter"
    );

    let DeletePlan::Waiting(waiting) = send(&LbView { terminating: true, ..ready_lb() }, &[]) else { panic!() };
    assert!(!waiting.needs_user);

    let refused = Arc::new(secondary("default/web3").done());
    assert_eq!(
        send(&ready_lb(), std::slice::from_ref(&refused)),
        expected,
        "who never got the address holds nobody up"
    );
    let sharer = Arc::new(secondary("default/web2").short(&[("ip", IP)]).done());
    assert!(matches!(send(&ready_lb(), &[refused.clone(), sharer]), DeletePlan::Waiting(..)), "by its annotation");
    let sharer = |name| Arc::new(secondary(name).label("default.web").done());
    for (sharers, expected) in [
        (vec!["default/web2"], "default/web2 shares its address: delete it or let it name another service first"),
        (
            vec!["default/web2", "default/web4"],
            "default/web2, default/web4 share its address: delete them or let them name another service first",
        ),
    ] {
        let all: Vec<_> = sharers.into_iter().map(sharer).chain([refused.clone()]).collect();
        let DeletePlan::Waiting(waiting) = send(&ready_lb(), &all) else { panic!() };
        assert!(waiting.needs_user);
        assert_eq!(waiting.message, format!("the load balancer of service default/web stays, because {expected}"));
    }
}

/// Decision 7; host pace spec rule 6.
#[test]
fn a_delete_is_held_back_while_the_host_is_booking_but_not_for_ever() {
    let unlooked = || lb("lb-name").done();
    let unfinished = || LbView { has_host_finalizer: false, ..ready_lb() };
    let transient = || lb("lb-name").not_ready("fail to reserve 10.0.0.1 into edge").done();
    let refused = || lb("lb-name").not_ready("no matched IPPool with requirement").done();
    let dhcp = || LbView { ipam: Some("dhcp".into()), ..unlooked() };
    let (now, leak) = (When::Now { leaks: false }, When::Now { leaks: true });
    let cases = [
        ("not looked at", unlooked(), 0, When::In(BOOKING)),
        ("not looked at, waited", unlooked(), 9, When::In(Duration::from_secs(1))),
        ("never looked at", unlooked(), 10, leak),
        ("ready without finalizer", unfinished(), 3, When::In(Duration::from_secs(7))),
        ("ready without finalizer, old", unfinished(), 10, now),
        ("ready with finalizer", ready_lb(), 0, now),
        ("busy", transient(), 9, When::In(Duration::from_secs(1))),
        ("busy for ever", transient(), 10, leak),
        ("refused", refused(), 0, now),
        ("no such pool", lb("lb-name").not_ready("fail to get allocator nosuch").done(), 0, now),
        ("no pool", dhcp(), 0, now),
    ];
    for (what, lb, seconds, expected) in cases {
        let age = Duration::from_secs(seconds);
        assert_eq!(when(&lb, age), expected, "{what}");
        let plan = delete(&web(), &Leaving { lb: Some(&lb), age, ..nothing(&config()) });
        match expected {
            When::Now { leaks } => assert_eq!(plan, DeletePlan::Send { uid: lb.uid.clone(), leaks }, "{what}"),
            When::In(rest) => {
                let DeletePlan::Waiting(waiting) = plan else { panic!("{what}: {plan:?}") };
                assert_eq!((waiting.reason, waiting.needs_user), (WaitReason::Booking, false), "{what}");
                assert_eq!(waiting.retry_after, Some(rest), "{what}");
            }
        }
    }
}

/// The host releases an address only where `spec.ipam` is `pool`. Objects of old versions lack the field.
#[test]
fn an_object_without_a_mode_is_deleted_and_its_address_counted() {
    let booked = LbView { ipam: None, booked_pool: Some("edge".into()), ..ready_lb() };
    let plan = |lb: &LbView| delete(&web(), &Leaving { lb: Some(lb), ..nothing(&config()) });
    let send = |leaks| DeletePlan::Send { uid: booked.uid.clone(), leaks };
    assert_eq!(plan(&booked), send(true));
    assert_eq!(plan(&LbView { ipam: Some("pool".into()), ..booked.clone() }), send(false));
    assert_eq!(plan(&LbView { booked_pool: None, ..booked.clone() }), send(false), "nothing is booked");
}

#[test]
fn an_address_is_not_released_while_another_service_shows_it_or_is_served_at_it() {
    let other = || service("default/former");
    let stays = |what: &str, owner: ServiceView, other: ServiceView, expected: bool| {
        let lb = ready_lb();
        let users = rules::users(&owner, &[&lb], vec![Arc::new(owner.clone()), Arc::new(other)], false);
        let plan = delete(&owner, &Leaving { lb: Some(&lb), users: &users, ..nothing(&config()) });
        let waits = matches!(&plan, DeletePlan::Waiting(waiting) if waiting.message.contains("default/former"));
        assert_eq!(waits, expected, "{what}: {plan:?}");
    };
    let fixed = || other().short(&[("ipam", "static"), ("want", IP), ("ip", IP)]).ingress(IP);
    let deleting = ServiceView { deleting: true, ..other().ingress(IP).done() };
    stays("a former secondary", served(), other().short(&[("ip", IP)]).label("default.web").done(), true);
    stays("served, and had it from nobody", served(), other().ingress(IP).done(), false);
    stays("served and shown nowhere, by its label", served(), other().label("default.web").ingress(IP).done(), true);
    stays(
        "the same, by what it asks for",
        served(),
        other().short(&[("primary", "default/web")]).ingress(IP).done(),
        true,
    );
    stays("contradictory", served(), other().short(&[("ip", IP), ("group", "a"), ("primary", "b")]).done(), true);
    stays("a former secondary with a static address", served(), fixed().done(), true);
    stays("the same, of an owner that shows nothing", web(), fixed().label("default.web").done(), true);
    stays("had it before the owner", web(), fixed().done(), false);
    stays("on its way out", served(), deleting, false);
    stays("at another address", served(), other().ingress("10.20.4.2").done(), false);
}
