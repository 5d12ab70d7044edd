//! The rules of ccm.md 3 as requirements, and a model world in which plans are carried out until nothing is left to do.

use std::collections::BTreeMap;

use cloud_provider::view::ServiceKey;
use harvester_api::keys::{kube_vip, loadbalancer};
use proptest::prelude::*;
use serde_json::json;

use super::super::booking::{BOOKING, age};
use super::super::build::{self, config, key, lb, service};
use super::super::view::Ready;
use super::*;

const IP: &str = "10.20.4.1";

/// The plan of `service`, with these other Services in the cluster and these objects on Harvester.
fn plan(service: &ServiceView, others: &[ServiceView], lbs: &[(&str, &LbView)]) -> Plan {
    Scene { mapping: None, idle: None, now: 1_000 }.plan(service, others, lbs)
}

struct Scene<'a> {
    mapping: Option<&'a NadMapping>,
    idle: Option<Duration>,
    now: i64,
}

impl Scene<'_> {
    fn plan(&self, service: &ServiceView, others: &[ServiceView], lbs: &[(&str, &LbView)]) -> Plan {
        let all: Vec<Arc<ServiceView>> =
            others.iter().filter(|other| other.key != service.key).chain([service]).cloned().map(Arc::new).collect();
        let find = |key: &ServiceKey| all.iter().find(|service| service.key == *key).cloned();
        let primary = sharing::primary_of(service, find);
        let sharers = sharing::sharers(&service.key, all.iter().cloned());
        let occupants = match &primary {
            Ok(Some(primary)) => occupants(primary, &sharing::sharers(&primary.key, all.iter().cloned()), Vec::new()),
            _ => occupants(service, &sharers, Vec::new()),
        };
        let find_lb = |key: &ServiceKey| lbs.iter().find(|(name, _)| *name == key.to_string()).map(|(_, lb)| *lb);
        let primary_lb = primary.as_ref().ok().and_then(Option::as_ref).and_then(|primary| find_lb(&primary.key));
        let config = config();
        let world = World {
            config: &config,
            name: "lb-name",
            lb: find_lb(&service.key),
            mapping: self.mapping,
            primary,
            primary_lb,
            sharers: &sharers,
            taken: sharing::is_taken(service, &all),
            occupants: &occupants,
            now: self.now,
            idle: self.idle,
            age: find_lb(&service.key).map(|lb| age(lb, self.now, Duration::ZERO)).unwrap_or_default(),
        };
        ensure(service, &world)
    }
}

fn refusal(plan: &Plan) -> String {
    match &plan.verdict {
        Verdict::Refused(refusal) => refusal.to_string(),
        other => panic!("not refused: {other:?}"),
    }
}

fn waiting(plan: &Plan) -> &Waiting {
    match &plan.verdict {
        Verdict::Waiting(waiting, _) => waiting,
        other => panic!("not waiting: {other:?}"),
    }
}

fn web() -> ServiceView {
    service("default/web").done()
}

fn served() -> ServiceView {
    service("default/web").short(&[("ip", IP)]).ingress(IP).done()
}

fn ready_lb() -> LbView {
    LbView { address: Some(IP.into()), ..lb("lb-name").network_of_host("guests/mgmt").ready(IP).done() }
}

#[test]
fn a_restart_over_a_healthy_service_writes_nothing() {
    assert_eq!(
        plan(&served(), &[], &[("default/web", &ready_lb())]),
        Plan { actions: vec![], verdict: Verdict::Ready }
    );
}

/// ../golden 01-pool, 02-dhcp and 10-names: the POST.
#[test]
fn a_new_service_gets_an_object_of_exactly_the_known_shape() {
    for (annotations, ipam, namespace, project) in [
        (vec![], "pool", "", ""),
        (vec![("ipam", "")], "pool", "", ""),
        (vec![("ipam", "dhcp")], "dhcp", "", ""),
        (vec![("project", "local/p-x"), ("namespace", "other")], "pool", "other", "local/p-x"),
    ] {
        let plan = plan(&service("default/web").short(&annotations).done(), &[], &[]);
        let [Action::Create(object)] = plan.actions.as_slice() else { panic!("{plan:?}") };
        assert_eq!(
            serde_json::to_value(object).unwrap(),
            json!({
                "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
                "metadata": {
                    "annotations": {
                        "cloudprovider.harvesterhci.io/clusterUID": "uid-of-cluster",
                        "cloudprovider.harvesterhci.io/lb-network": "",
                        "cloudprovider.harvesterhci.io/serviceUID": "uid-of-default-web",
                        "loadbalancer.harvesterhci.io/cluster": "demo",
                        "loadbalancer.harvesterhci.io/namespace": namespace,
                        "loadbalancer.harvesterhci.io/network": "",
                        "loadbalancer.harvesterhci.io/project": project
                    },
                    "labels": {
                        "cloudprovider.harvesterhci.io/cluster": "demo",
                        "cloudprovider.harvesterhci.io/serviceName": "web",
                        "cloudprovider.harvesterhci.io/serviceNamespace": "default"
                    },
                    "name": "lb-name", "namespace": "guests"
                },
                "spec": {"ipam": ipam, "workloadType": "cluster"},
                "status": {"allocatedAddress": {}}
            })
        );
        assert!(!waiting(&plan).needs_user);
    }
}

#[test]
fn an_unknown_ipam_names_annotation_value_and_what_is_accepted() {
    for value in ["static", "Pool", " dhcp"] {
        let plan = plan(&service("default/web").short(&[("ipam", value)]).done(), &[], &[]);
        assert_eq!(plan.actions, []);
        let expected =
            format!("annotation cloudprovider.harvesterhci.io/ipam has the value {value:?}, accepted are pool, dhcp");
        assert_eq!(refusal(&plan), expected);
    }
}

/// W-33.
#[test]
fn a_change_of_ipam_on_a_living_service_is_refused_and_touches_nothing() {
    let dhcp = service("default/web").short(&[("ipam", "dhcp"), ("ip", IP)]).ingress(IP).done();
    let plan = plan(&dhcp, &[], &[("default/web", &ready_lb())]);
    assert_eq!(plan.actions, []);
    assert!(refusal(&plan).starts_with("can't change the IPAM from pool to dhcp of load balancer guests/lb-name"));
}

/// ccm.md 3.5 step 2.
#[test]
fn a_change_of_network_on_a_living_service_is_refused() {
    let changed = service("default/web").short(&[("net", "a/b"), ("ip", IP)]).done();
    assert_eq!(
        refusal(&plan(&changed, &[], &[("default/web", &ready_lb())])),
        "network annotation of service default/web is not same as the load balancer guests/lb-name, service: 'a/b', lb: ''"
    );
}

/// W-01.
#[test]
fn an_object_from_before_v0_2_7_is_accepted_and_gets_its_frozen_network_once() {
    let service = service("default/web").short(&[("net", "a/b"), ("ip", IP)]).ingress(IP).done();
    let mut old = ready_lb();
    old.annotations.remove(cloudprovider::LB_NETWORK);
    let plan = plan(&service, &[], &[("default/web", &old)]);
    assert_eq!(plan.verdict, Verdict::Ready);
    let [Action::Update { changes, .. }] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!(changes, &[Change::Annotation(cloudprovider::LB_NETWORK, "a/b".into())]);
}

/// W-06.
#[test]
fn a_terminating_object_is_waited_for_and_neither_used_nor_changed() {
    let leaving = LbView { terminating: true, usable_address: None, ..ready_lb() };
    let plan = plan(&web(), &[], &[("default/web", &leaving)]);
    assert_eq!(plan.actions, []);
    assert!(waiting(&plan).message.contains("is being deleted"));
}

#[test]
fn an_object_that_names_another_service_is_not_touched() {
    let mut foreign = ready_lb();
    foreign.labels.insert(cloudprovider::SERVICE_NAME.into(), "other".into());
    let plan = plan(&web(), &[], &[("default/web", &foreign)]);
    assert_eq!(plan.actions, []);
    assert!(refusal(&plan).contains("belongs to service default/other"));
    assert!(matches!(delete(&web(), &config(), Some(&foreign), &[], Duration::ZERO), DeletePlan::Refused(_)));
}

/// host-throughput.md 1.5 and harvester-side.md 8.2: every write between POST and finalizer costs the host a conflict.
#[test]
fn nothing_is_written_on_an_object_that_the_host_is_still_busy_with() {
    for busy in [
        lb("lb-name").done(),
        lb("lb-name").not_ready("fail to reserve 10.20.4.1 into edge").done(),
        LbView { has_host_finalizer: false, ..lb("lb-name").ready(IP).done() },
    ] {
        let drifted = LbView { labels: BTreeMap::new(), ..busy };
        let plan = plan(&served(), &[], &[("default/web", &drifted)]);
        assert!(!plan.actions.iter().any(|action| matches!(action, Action::Update { .. })), "{plan:?}");
    }
}

#[test]
fn the_address_is_published_as_soon_as_the_object_is_ready_and_before_its_finalizer() {
    let ready = LbView { has_host_finalizer: false, ..lb("lb-name").ready(IP).done() };
    let plan = plan(&web(), &[], &[("default/web", &ready)]);
    let [Action::Patch(patch)] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!(patch.body("u"), json!({"metadata": {"uid": "u", "annotations": {"kube-vip.io/loadbalancerIPs": IP}}}));
    assert_eq!(plan.verdict, Verdict::Ready);
}

/// Decision 5.
#[test]
fn the_mailbox_is_written_once_after_finalizer_and_ingress() {
    let lb = |finalizer, address: Option<&str>| LbView {
        has_host_finalizer: finalizer,
        address: address.map(str::to_owned),
        ..ready_lb()
    };
    let published = service("default/web").short(&[("ip", IP)]).done();
    let writes = |service: &ServiceView, lb: &LbView| plan(service, &[], &[("default/web", lb)]).actions.len();
    assert_eq!(writes(&published, &lb(true, None)), 0, "no ingress yet");
    assert_eq!(writes(&served(), &lb(false, None)), 0, "no finalizer yet");
    assert_eq!(writes(&served(), &lb(true, Some(IP))), 0, "written");
    let plan = plan(&served(), &[], &[("default/web", &lb(true, None))]);
    let [Action::Update { changes, .. }] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!(changes, &[Change::Address(IP.into())]);
    assert_eq!(plan.verdict, Verdict::Ready);
}

#[test]
fn the_words_of_the_host_reach_the_user() {
    let message = "no matched IPPool with requirement &{Network:guests/mgmt Project: Namespace:guests Cluster:demo}";
    let unmatched = lb("lb-name").network_of_host("guests/mgmt").not_ready(message).done();
    let plan = plan(&web(), &[], &[("default/web", &unmatched)]);
    assert_eq!(plan.actions, []);
    assert!(waiting(&plan).needs_user);
    assert!(waiting(&plan).message.starts_with(&format!("ip is not allocated, mode: pool, message: {message}")));
}

/// harvester-side.md 3.5.
#[test]
fn an_object_without_network_is_sent_again_at_a_modest_interval() {
    let unmatched = lb("lb-name").not_ready("no matched IPPool with requirement &{Network: }").done();
    let at = |idle: Option<u64>| {
        let idle = idle.map(Duration::from_secs);
        Scene { mapping: None, idle, now: 1_000 }.plan(&web(), &[], &[("default/web", &unmatched)])
    };
    assert_eq!((at(None).actions.len(), waiting(&at(None)).retry_after), (0, Some(Duration::from_secs(30))));
    assert_eq!((at(Some(10)).actions.len(), waiting(&at(Some(10))).retry_after), (0, Some(Duration::from_secs(20))));
    assert_eq!(at(Some(30)).actions, [Action::Readmit { uid: "uid-lb-name".into() }]);
    assert_eq!(waiting(&at(Some(30))).retry_after, Some(Duration::from_secs(30)));
}

/// Decision 13.
#[test]
fn an_exhausted_pool_is_nudged_once_a_minute() {
    let message = "fail to get ip from pool edge, error: no IP addresses available in range set: a-b";
    let exhausted = lb("lb-name").network_of_host("a/b").not_ready(message).done();
    let at = |idle| Scene { mapping: None, idle, now: 7 }.plan(&web(), &[], &[("default/web", &exhausted)]).actions;
    assert_eq!(at(Some(Duration::from_secs(59))), []);
    let actions = at(Some(Duration::from_mins(1)));
    let [Action::Update { changes, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(changes, &[Change::Annotation(NUDGED, "7".into())]);
}

/// W-17.
#[test]
fn the_interface_gate_holds_up_new_services_only() {
    let known = NadMapping::Known([("a/b".to_owned(), "enp2s0".to_owned())].into());
    let scene = Scene { mapping: Some(&known), idle: None, now: 0 };
    let gone = service("default/web").short(&[("net", "a/gone")]).done();
    let refused = scene.plan(&gone, &[], &[]);
    assert_eq!(refused.actions, []);
    assert_eq!(refusal(&refused), "network a/gone not found in NAD mapping for service default/web");

    let served = service("default/web").short(&[("net", "a/gone"), ("ip", IP), ("if", "enp2s0")]).ingress(IP).done();
    let mut lb = ready_lb();
    lb.annotations.insert(cloudprovider::LB_NETWORK.into(), "a/gone".into());
    assert_eq!(scene.plan(&served, &[], &[("default/web", &lb)]), Plan { actions: vec![], verdict: Verdict::Ready });
}

/// W-34.
#[test]
fn an_address_of_an_earlier_life_is_withdrawn_before_a_new_one_is_asked_for() {
    let reused = service("default/web").short(&[("ip", "10.20.4.9"), ("if", "enp2s0")]).done();
    let plan = plan(&reused, &[], &[]);
    let [Action::Patch(patch), Action::Create(_)] = plan.actions.as_slice() else { panic!("{plan:?}") };
    let after = patch.apply(&reused);
    assert!(!after.annotations.contains_key(kube_vip::LOADBALANCER_IPS));
    assert!(!after.annotations.contains_key(kube_vip::SERVICE_INTERFACE));
}

/// W-34.
#[test]
fn an_address_that_is_another_services_by_now_is_withdrawn_although_it_is_served() {
    let thief = service("default/thief").short(&[("ip", IP)]).ingress(IP).done();
    let plan = plan(&served(), &[thief], &[]);
    let [Action::Patch(patch), Action::Create(_)] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert!(!patch.apply(&served()).annotations.contains_key(kube_vip::LOADBALANCER_IPS));
}

/// The deletion of its object no longer waits for those who never got the address, so nobody may join meanwhile.
#[test]
fn nobody_joins_a_primary_that_gives_its_address_up() {
    let mut flipped = served();
    flipped.is_load_balancer = false;
    let applicant = secondary("default/web2").ports(&["TCP/443"]);
    let plan = plan(&applicant.done(), &[flipped.clone()], &[]);
    assert!(plan.actions.is_empty() && waiting(&plan).needs_user, "{plan:?}");
    let joined = secondary("default/web2").ports(&["TCP/443"]).short(&[("ip", IP)]).label("default.web").done();
    assert_eq!(self::plan(&joined, &[flipped], &[]).verdict, Verdict::Ready);
}

#[test]
fn a_lost_object_is_created_again_while_its_address_is_served_on() {
    let plan = plan(&served(), &[], &[]);
    assert!(matches!(plan.actions.as_slice(), [Action::Create(_)]), "{plan:?}");
}

fn secondary(name: &str) -> build::ServiceBuilder {
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
    assert_eq!(plan.verdict, Verdict::Ready);
}

#[test]
fn a_secondary_waits_for_its_primarys_ingress() {
    let plan = plan(&secondary("default/web2").done(), &[web()], &[]);
    assert_eq!(plan.actions, []);
    assert_eq!(waiting(&plan).message, "primary service default/web has no ingress IP");
    assert!(!waiting(&plan).needs_user);
}

#[test]
fn a_primary_that_will_never_have_an_address_is_the_users_trouble() {
    let cluster_ip = ServiceView { is_load_balancer: false, ..web() };
    let plan = plan(&secondary("default/web2").done(), &[cluster_ip], &[]);
    assert!(waiting(&plan).needs_user);
    assert!(waiting(&plan).message.starts_with("primary service default/web has no ingress IP: "));
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
                "check port overlap failed, primary service: default/web, secondary service: default/clash, error: port {port} \
                 has been used in service {by}"
            )
        );
    }
    let udp = secondary("default/udp").ports(&["UDP/80", "UDP/443"]).done();
    assert_eq!(plan(&udp, &[served(), joined], &[]).verdict, Verdict::Ready);
}

/// W-20: an applicant that is refused itself does not stand in the way of others.
#[test]
fn a_secondary_that_has_not_joined_holds_no_port() {
    let applicant = secondary("default/a").ports(&["TCP/80", "TCP/443"]).done();
    assert_eq!(plan(&secondary("default/b").done(), &[served(), applicant], &[]).verdict, Verdict::Ready);
}

/// W-20, the other direction.
#[test]
fn a_primary_that_takes_a_port_of_its_secondary_is_told_and_stays_served() {
    let joined = secondary("default/web2").label("default.web").done();
    let greedy = service("default/web").short(&[("ip", IP)]).ingress(IP).ports(&["TCP/80", "TCP/443"]).done();
    let plan = plan(&greedy, &[joined], &[("default/web", &ready_lb())]);
    assert_eq!(plan.actions, []);
    assert_eq!(
        refusal(&plan),
        "check port overlap failed, primary service: default/web, secondary service: default/web2, error: port 443 has been used \
         in service default/web2"
    );
}

#[test]
fn a_secondary_inherits_the_network_and_may_not_have_another() {
    let mut lb = ready_lb();
    lb.annotations.insert(cloudprovider::LB_NETWORK.into(), "a/b".into());
    let primary = service("default/web").short(&[("ip", IP), ("net", "a/b")]).ingress(IP).done();
    let got = |service: &ServiceView| plan(service, std::slice::from_ref(&primary), &[("default/web", &lb)]);

    let inherits = secondary("default/web2").done();
    let plan = got(&inherits);
    let [Action::Patch(patch)] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!(patch.annotations[cloudprovider::NETWORK], Some("a/b".into()));

    let other = secondary("default/web2").short(&[("net", "x/y")]).done();
    assert_eq!(
        refusal(&got(&other)),
        "network annotation of service default/web2 is not same as the load balancer guests/lb-name, service: 'x/y', lb: 'a/b'"
    );
}

#[test]
fn a_primary_that_becomes_a_secondary_gives_its_own_object_back_after_it_shows_the_new_address() {
    let own = LbView { labels: BTreeMap::new(), ..lb("lb-name").ready("10.20.4.7").done() };
    let turned = secondary("default/web2").short(&[("ip", "10.20.4.7")]).done();
    let plan = plan(&turned, &[served()], &[("default/web", &ready_lb()), ("default/web2", &own)]);
    let [Action::Patch(_), Action::Delete { uid, leaks: false }] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!(uid, "uid-lb-name");
}

#[test]
fn a_primary_with_sharers_cannot_become_a_secondary() {
    let own = LbView { labels: BTreeMap::new(), ..lb("lb-name").ready("10.20.4.7").done() };
    let turned = secondary("default/web2").done();
    let sharer = service("default/c").short(&[("primary", "default/web2"), ("ip", "10.20.4.7")]).done();
    let plan = plan(&turned, &[served(), sharer], &[("default/web2", &own)]);
    assert_eq!(plan.actions, []);
    assert_eq!(
        waiting(&plan).message,
        "could not delete load balancer for service default/web2: service default/web2 is still used by other services [default/c]"
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

/// W-04, W-23, ccm.md 3.9.
#[test]
fn deletion_goes_by_the_services_own_object_whatever_was_published() {
    let send = |lb: &LbView, sharers: &[Arc<ServiceView>]| delete(&web(), &config(), Some(lb), sharers, Duration::ZERO);
    assert_eq!(delete(&web(), &config(), None, &[], Duration::ZERO), DeletePlan::Verify);
    let expected = DeletePlan::Send { uid: "uid-lb-name".into(), leaks: false };
    assert_eq!(send(&lb("lb-name").not_ready("no matched IPPool").done(), &[]), expected, "never Ready");
    assert_eq!(send(&ready_lb(), &[]), expected);
    let orphan = secondary("default/web").done();
    assert_eq!(
        delete(&orphan, &config(), Some(&ready_lb()), &[], Duration::ZERO),
        expected,
        "the primary does not matter"
    );

    let DeletePlan::Waiting(waiting, _) = send(&LbView { terminating: true, ..ready_lb() }, &[]) else { panic!() };
    assert!(!waiting.needs_user);

    let refused = Arc::new(secondary("default/web3").done());
    assert_eq!(
        send(&ready_lb(), std::slice::from_ref(&refused)),
        expected,
        "who never got the address holds nobody up"
    );
    let sharer = Arc::new(secondary("default/web2").short(&[("ip", IP)]).done());
    assert!(matches!(send(&ready_lb(), &[refused.clone(), sharer]), DeletePlan::Waiting(..)), "by its annotation");
    let sharer = Arc::new(secondary("default/web2").label("default.web").done());
    let DeletePlan::Waiting(waiting, _) = send(&ready_lb(), &[refused, sharer]) else { panic!() };
    assert!(waiting.needs_user);
    assert_eq!(
        waiting.message,
        "could not delete load balancer for service default/web: service default/web is still used by other services [default/web2]"
    );
}

/// Decision 7; host-throughput.md rule 6.
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
        ("no pool", dhcp(), 0, now),
    ];
    for (what, lb, seconds, expected) in cases {
        let age = Duration::from_secs(seconds);
        assert_eq!(when(&lb, age), expected, "{what}");
        let plan = delete(&web(), &config(), Some(&lb), &[], age);
        match expected {
            When::Now { leaks } => assert_eq!(plan, DeletePlan::Send { uid: lb.uid.clone(), leaks }, "{what}"),
            When::In(rest) => {
                let DeletePlan::Waiting(waiting, WaitReason::Booking) = plan else { panic!("{what}: {plan:?}") };
                assert_eq!((waiting.needs_user, waiting.retry_after), (false, Some(rest)), "{what}");
            }
        }
    }
}

#[test]
fn a_clock_that_differs_from_the_hosts_holds_no_deletion_up() {
    let object = lb("lb-name").done();
    assert_eq!(age(&object, 1_004, Duration::ZERO), Duration::from_secs(4));
    assert_eq!(age(&object, 10, Duration::ZERO), Duration::ZERO, "the host's clock is ahead");
    assert_eq!(age(&object, 10, BOOKING), BOOKING);
    assert_eq!(age(&LbView { created: None, ..object }, 1_004, BOOKING), BOOKING);
}

#[test]
fn a_primary_that_becomes_a_secondary_while_the_host_is_booking_gives_its_object_back_later() {
    let own = LbView { labels: BTreeMap::new(), ..lb("lb-name").done() };
    let turned = secondary("default/web2").done();
    let lbs = [("default/web", &ready_lb()), ("default/web2", &own)];
    let scene = |now| Scene { mapping: None, idle: None, now }.plan(&turned, &[served()], &lbs);
    let plan = scene(1_000);
    assert!(matches!(plan.actions.as_slice(), [Action::Patch(_)]), "{plan:?}");
    assert_eq!(waiting(&plan).retry_after, Some(BOOKING));
    let plan = scene(1_010);
    assert!(matches!(plan.actions.as_slice(), [Action::Patch(_), Action::Delete { leaks: true, .. }]), "{plan:?}");
}

/// A Harvester host, an announcer and an API server that do what they do to the objects; requests are counted.
struct Model {
    services: BTreeMap<ServiceKey, ServiceView>,
    objects: BTreeMap<ServiceKey, LbView>,
    creates: usize,
    updates: usize,
    deletes: usize,
    patches: usize,
}

impl Model {
    fn new(services: Vec<ServiceView>) -> Self {
        let services = services.into_iter().map(|service| (service.key.clone(), service)).collect();
        Self { services, objects: BTreeMap::new(), creates: 0, updates: 0, deletes: 0, patches: 0 }
    }

    fn plan(&self, key: &ServiceKey) -> Plan {
        let others: Vec<ServiceView> = self.services.values().cloned().collect();
        let names: Vec<(String, &LbView)> = self.objects.iter().map(|(key, lb)| (key.to_string(), lb)).collect();
        let lbs: Vec<(&str, &LbView)> = names.iter().map(|(name, lb)| (name.as_str(), *lb)).collect();
        plan(&self.services[key], &others, &lbs)
    }

    fn perform(&mut self, key: &ServiceKey, action: Action) {
        match action {
            Action::Create(object) => {
                self.creates += 1;
                let view = LbView { uid: format!("uid-{key}"), ..LbView::from(object.as_ref()) };
                assert!(self.objects.insert(key.clone(), view).is_none(), "created twice");
            }
            Action::Update { uid, changes } => {
                self.updates += 1;
                let lb = self.objects.get_mut(key).expect("an object to update");
                assert_eq!(lb.uid, uid);
                for change in changes {
                    match change {
                        Change::Label(key, value) => drop(lb.labels.insert(key.into(), value)),
                        Change::Annotation(key, value) => drop(lb.annotations.insert(key.into(), value)),
                        Change::NoAnnotation(key) => drop(lb.annotations.remove(key)),
                        Change::Ipam(ipam) => lb.ipam = Some(ipam.to_string()),
                        Change::ClusterWorkload => lb.workload_type = Some("cluster".into()),
                        Change::Address(address) => lb.address = Some(address),
                    }
                }
            }
            Action::Readmit { .. } => self.updates += 1,
            Action::Delete { uid, leaks } => {
                assert!(!leaks, "deleted while the host was booking for {key}");
                let wants_none = sharing::named_primary(&self.services[key]).is_some();
                assert!(wants_none, "deleted while {key} wants an address of its own");
                self.deletes += 1;
                assert_eq!(self.objects.remove(key).expect("an object to delete").uid, uid);
            }
            Action::Patch(patch) => {
                self.patches += 1;
                let service = patch.apply(&self.services[key]);
                self.services.insert(key.clone(), service);
            }
        }
    }

    /// The host allocates, the announcer serves.
    fn others_act(&mut self) {
        for (index, (key, lb)) in self.objects.iter_mut().enumerate() {
            if lb.ready.is_none() {
                let ip =
                    if lb.effective_ipam() == "dhcp" { "0.0.0.0".into() } else { format!("10.20.4.{}", index + 1) };
                lb.ready = Some(Ready { status: true, message: String::new() });
                lb.usable_address = Some(ip);
                lb.has_host_finalizer = true;
                lb.annotations.insert(loadbalancer::NETWORK.into(), "guests/mgmt".into());
                lb.annotations.insert(loadbalancer::NAMESPACE.into(), "guests".into());
                lb.annotations.insert(loadbalancer::PROJECT.into(), "local/p-demo1".into());
            }
            let _ = key;
        }
        for (index, service) in self.services.values_mut().enumerate() {
            let Some(wanted) = service.annotations.get(kube_vip::LOADBALANCER_IPS) else { continue };
            let address = if wanted == "0.0.0.0" { format!("10.99.0.{}", index + 10) } else { wanted.clone() };
            service.ingress = vec![address.parse().unwrap()];
        }
    }

    /// Everybody acts until nobody has anything to do.
    fn settle(&mut self) {
        for _ in 0..20 {
            let mut quiet = true;
            for key in self.services.keys().cloned().collect::<Vec<_>>() {
                for action in self.plan(&key).actions {
                    quiet = false;
                    self.perform(&key, action);
                }
            }
            let before = (self.objects.clone(), self.services.clone());
            self.others_act();
            if quiet && before == (self.objects.clone(), self.services.clone()) {
                return;
            }
        }
        panic!("never quiet");
    }
}

/// ../golden 01-pool: the end state, with one POST, one PUT and one PATCH of the Service.
#[test]
fn a_pool_service_costs_one_post_one_put_and_one_patch_and_ends_as_the_go_provider_leaves_it() {
    let mut model = Model::new(vec![web()]);
    model.settle();
    assert_eq!((model.creates, model.updates, model.deletes, model.patches), (1, 1, 0, 1));
    let service = &model.services[&key("default/web")];
    assert_eq!(service.annotations, [(kube_vip::LOADBALANCER_IPS.to_owned(), IP.to_owned())].into());
    assert_eq!(service.labels, BTreeMap::new());
    let lb = &model.objects[&key("default/web")];
    let expected = [
        ("cloudprovider.harvesterhci.io/clusterUID", "uid-of-cluster"),
        ("cloudprovider.harvesterhci.io/lb-network", ""),
        ("cloudprovider.harvesterhci.io/serviceUID", "uid-of-default-web"),
        ("loadbalancer.harvesterhci.io/cluster", "demo"),
        ("loadbalancer.harvesterhci.io/namespace", "guests"),
        ("loadbalancer.harvesterhci.io/network", "guests/mgmt"),
        ("loadbalancer.harvesterhci.io/project", "local/p-demo1"),
    ];
    let expected: BTreeMap<String, String> =
        expected.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    assert_eq!(lb.annotations, expected);
    assert_eq!(lb.address.as_deref(), Some(IP));
}

/// ../golden 02-dhcp.
#[test]
fn a_dhcp_service_shows_the_sentinel_and_the_mailbox_the_lease() {
    let mut model = Model::new(vec![service("default/lease").short(&[("ipam", "dhcp")]).done()]);
    model.settle();
    assert_eq!((model.creates, model.updates, model.deletes, model.patches), (1, 1, 0, 1));
    let key = key("default/lease");
    assert_eq!(model.services[&key].annotations[kube_vip::LOADBALANCER_IPS], "0.0.0.0");
    assert_eq!(model.objects[&key].address.as_deref(), Some("10.99.0.10"));
}

/// ../golden 05-share.
#[test]
fn a_secondary_costs_one_patch_and_no_object() {
    let mut model = Model::new(vec![web(), secondary("default/web2").done()]);
    model.settle();
    assert_eq!((model.creates, model.updates, model.deletes, model.patches), (1, 1, 0, 2));
    assert!(!model.objects.contains_key(&key("default/web2")));
    assert_eq!(model.services[&key("default/web2")].annotations[kube_vip::LOADBALANCER_IPS], IP);
}

fn any_service(index: usize) -> impl Strategy<Value = ServiceView> {
    let name = format!("default/s{index}");
    let primary = prop_oneof![
        4 => Just(None),
        3 => (0usize..4).prop_map(|other| Some(format!("default/s{other}"))),
        1 => prop_oneof![Just(String::new()), Just("x".into()), Just("nowhere/none".into())].prop_map(Some),
    ];
    let ipam =
        prop_oneof![3 => Just(None), 1 => Just(Some("dhcp")), 1 => Just(Some("pool")), 1 => Just(Some("static"))];
    let network = prop_oneof![3 => Just(None), 1 => Just(Some("a/b")), 1 => Just(Some("c/d"))];
    let ports = prop::collection::btree_set(prop_oneof![Just("TCP/80"), Just("UDP/80"), Just("TCP/443")], 1..3);
    let stale = prop_oneof![3 => Just(None), 1 => Just(Some("10.20.4.200"))];
    (primary, ipam, network, ports, stale).prop_map(move |(primary, ipam, network, ports, stale)| {
        let mut annotations: Vec<(&str, &str)> = Vec::new();
        annotations.extend(primary.as_deref().map(|value| ("primary", value)));
        annotations.extend(ipam.map(|value| ("ipam", value)));
        annotations.extend(network.map(|value| ("net", value)));
        annotations.extend(stale.map(|value| ("ip", value)));
        service(&name).short(&annotations).ports(&ports.into_iter().collect::<Vec<_>>()).done()
    })
}

impl Model {
    /// A user edits a Service: everything that is the user's is replaced, everything that is ours stays.
    fn edit(&mut self, edited: ServiceView) {
        let service = self.services.get_mut(&edited.key).expect("one of ours");
        for key in [cloudprovider::IPAM, cloudprovider::NETWORK, cloudprovider::PRIMARY_SERVICE] {
            match edited.annotations.get(key) {
                Some(value) => service.annotations.insert(key.into(), value.clone()),
                None => service.annotations.remove(key),
            };
        }
        service.ports = edited.ports;
    }

    /// What holds in every world at rest.
    fn check(&self) {
        for (key, service) in &self.services {
            let plan = self.plan(key);
            assert!(plan.actions.is_empty(), "{key}: {plan:?}");
            if plan.verdict != Verdict::Ready {
                continue;
            }
            let shown = &service.annotations[kube_vip::LOADBALANCER_IPS];
            match sharing::named_primary(service) {
                None => assert_eq!(Some(shown), self.objects[key].usable_address.as_ref(), "{key}"),
                Some(Ok(primary)) => {
                    assert!(!self.objects.contains_key(key), "{key} has an object of its own");
                    let primary = &self.services[&primary];
                    assert_eq!(shown.parse().ok(), primary.ingress.first().copied(), "{key}");
                    assert!(service.ports.is_disjoint(&primary.ports), "{key}");
                }
                Some(Err(error)) => panic!("{key} is Ready in spite of {error}"),
            }
        }
    }
}

fn any_services() -> impl Strategy<Value = Vec<ServiceView>> {
    (any_service(0), any_service(1), any_service(2), any_service(3)).prop_map(|(a, b, c, d)| vec![a, b, c, d])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever Services there are and whatever users make of them: everything comes to rest, nothing is deleted that somebody
    /// wants, and whoever is Ready shows the address that it should.
    #[test]
    fn every_world_comes_to_rest_and_deletes_nothing_that_is_wanted(
        services in any_services(), edits in prop::collection::vec(any_services(), 0..3),
    ) {
        let mut model = Model::new(services);
        model.settle();
        model.check();
        assert_eq!(model.deletes, 0);
        for edited in edits {
            for service in edited {
                model.edit(service);
            }
            model.settle();
            model.check();
        }
    }
}
