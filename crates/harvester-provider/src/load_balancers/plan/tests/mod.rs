//! The rules of CCM spec 3 as requirements: a Service with an address of its own here, the rest in files of its own.

mod asking;
mod deletion;
mod model;
mod moving;
mod renamed;
mod sharing;

use cloud_provider::view::Tags;
use harvester_api::keys::{cloudprovider, kube_vip, loadbalancer};
use serde_json::json;

use super::super::build::{self, config, key, lb, service};
use super::super::sharing as rules;
use super::*;
use sharing::secondary;

const IP: &str = "10.20.4.1";

/// The plan of `service`, with these other Services in the cluster and these objects on Harvester.
fn plan(service: &ServiceView, others: &[ServiceView], lbs: &[(&str, &LbView)]) -> Plan {
    Situation::default().plan(service, others, lbs)
}

struct Situation<'a> {
    mapping: Option<&'a NadMapping>,
    idle: Option<Duration>,
    now: i64,
    age: Duration,
    others: &'a [Arc<LbView>],
    address_user: Option<ServiceKey>,
    address_holder: Option<AddressHolder>,
    quota_reached: Option<usize>,
    unserved: Option<Duration>,
    cluster_name: Option<harvester_api::names::ClusterName>,
}

impl Default for Situation<'_> {
    fn default() -> Self {
        Self {
            mapping: None,
            idle: None,
            now: 1_000,
            age: Duration::ZERO,
            others: &[],
            address_user: None,
            address_holder: None,
            quota_reached: None,
            unserved: None,
            cluster_name: None,
        }
    }
}

impl Situation<'_> {
    fn plan(&self, service: &ServiceView, others: &[ServiceView], lbs: &[(&str, &LbView)]) -> Plan {
        let all: Vec<Arc<ServiceView>> =
            others.iter().filter(|other| other.key != service.key).chain([service]).cloned().map(Arc::new).collect();
        let find = |key: &ServiceKey| all.iter().find(|service| service.key == *key).cloned();
        let primary = rules::primary_of(service, find);
        let sharers = rules::sharers(&service.key, all.iter().cloned());
        let occupants = match &primary {
            Ok(Some(primary)) => occupants(primary, &rules::sharers(&primary.key, all.iter().cloned()), Vec::new()),
            _ => occupants(service, &sharers, Vec::new()),
        };
        let find_lb = |key: &ServiceKey| lbs.iter().find(|(name, _)| *name == key.to_string()).map(|(_, lb)| *lb);
        let primary_lb = primary.as_ref().ok().and_then(Option::as_ref).and_then(|primary| find_lb(&primary.key));
        let mut config = config();
        config.cluster_name = self.cluster_name.clone().unwrap_or(config.cluster_name);
        let own = find_lb(&service.key);
        let lbs_of_service: Vec<&LbView> = own.into_iter().chain(self.others.iter().map(Arc::as_ref)).collect();
        let world = World {
            config: &config,
            name: "lb-name",
            lb: find_lb(&service.key),
            others: self.others,
            address_user: self.address_user.clone(),
            address_claimed: None,
            address_holder: self.address_holder.clone(),
            quota_reached: self.quota_reached,
            unserved: self.unserved,
            mapping: self.mapping,
            primary,
            primary_lb,
            sharers: &sharers,
            users: &rules::users(service, &lbs_of_service, all.clone(), false),
            taken: rules::is_taken(service, &all, |_| Vec::new()),
            occupants: &occupants,
            now: self.now,
            idle: self.idle,
            ages: &lbs_of_service.iter().map(|lb| (lb.uid.clone(), self.age)).collect(),
        };
        ensure(service, &world)
    }
}

/// What a Service hears that is served otherwise than it asked for: reason, text, whether it is a warning.
fn remark(plan: &Plan) -> (&'static str, String, bool) {
    let PlanVerdict::Served(less) = &plan.verdict else { panic!("nothing to remark: {plan:?}") };
    let remark = less.remark();
    (remark.reason, remark.message, remark.warning)
}

fn refusal(plan: &Plan) -> String {
    match &plan.verdict {
        PlanVerdict::Refused(refusal) => refusal.to_string(),
        other => panic!("not refused: {other:?}"),
    }
}

fn waiting(plan: &Plan) -> &Wait {
    match &plan.verdict {
        PlanVerdict::Waiting(waiting) => waiting,
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

/// W-37, H4.
#[test]
fn a_restart_over_a_healthy_service_writes_nothing() {
    assert_eq!(
        plan(&served(), &[], &[("default/web", &ready_lb())]),
        Plan { actions: vec![], verdict: PlanVerdict::Ready }
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
                        "cloudprovider.harvesterhci.io/guestRevision": "100",
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
    for (value, meant) in [("Static", "static"), ("Pool", "pool"), (" dhcp", "dhcp"), ("dchp", "dhcp")] {
        let plan = plan(&service("default/web").short(&[("ipam", value)]).done(), &[], &[]);
        assert_eq!(plan.actions, []);
        let expected = format!(
            "annotation cloudprovider.harvesterhci.io/ipam has the value {value:?}, accepted are pool, dhcp, static; \
             did you mean {meant}?"
        );
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

/// CCM spec 3.5 step 2.
#[test]
fn a_change_of_network_on_a_living_service_is_refused() {
    let changed = service("default/web").short(&[("net", "a/b"), ("ip", IP)]).done();
    assert_eq!(
        refusal(&plan(&changed, &[], &[("default/web", &ready_lb())])),
        "network annotation of service default/web is not same as the load balancer guests/lb-name, service: 'a/b', \
         lb: ''"
    );
}

/// W-01.
#[test]
fn an_object_from_before_v0_2_7_is_accepted_and_gets_its_frozen_network_once() {
    let service = service("default/web").short(&[("net", "a/b"), ("ip", IP)]).ingress(IP).done();
    let mut old = ready_lb();
    old.annotations.remove(cloudprovider::LB_NETWORK);
    let plan = plan(&service, &[], &[("default/web", &old)]);
    assert_eq!(plan.verdict, PlanVerdict::Ready);
    let [Action::Update { changes, .. }] = plan.actions.as_slice() else { panic!("{plan:?}") };
    assert_eq!(changes, &[Change::Annotation(cloudprovider::LB_NETWORK, "a/b".into())]);
    // Once: it is there from then on, and only another one is a change.
    old.annotations.insert(cloudprovider::LB_NETWORK, "a/b");
    let again = self::plan(&service, &[], &[("default/web", &old)]);
    assert!(again.actions.is_empty() && !matches!(again.verdict, PlanVerdict::Refused(_)), "{again:?}");
    old.annotations.insert(cloudprovider::LB_NETWORK, "a/other");
    let differs = self::plan(&service, &[], &[("default/web", &old)]);
    assert!(refusal(&differs).contains("a/other"), "{differs:?}");
    assert_eq!(differs.actions, []);
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
    foreign.labels.insert(cloudprovider::SERVICE_NAME, "other");
    let plan = plan(&web(), &[], &[("default/web", &foreign)]);
    assert_eq!(plan.actions, []);
    assert!(refusal(&plan).contains("belongs to service default/other"));
    assert!(matches!(
        delete(&web(), &Leaving { lb: Some(&foreign), ..deletion::nothing(&config()) }),
        DeletePlan::Refused(_)
    ));
}

/// Host pace spec 1.5 and Harvester spec 8.2: every write between POST and finalizer costs the host a conflict.
#[test]
fn nothing_is_written_on_an_object_that_the_host_is_still_busy_with() {
    for busy in [
        lb("lb-name").done(),
        lb("lb-name").not_ready("fail to reserve 10.20.4.1 into edge").done(),
        LbView { has_host_finalizer: false, ..lb("lb-name").ready(IP).done() },
    ] {
        let drifted = LbView { labels: Tags::default(), ..busy };
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
    assert_eq!(plan.verdict, PlanVerdict::Ready);
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
    assert_eq!(plan.verdict, PlanVerdict::Ready);
}

#[test]
fn an_address_that_nobody_serves_becomes_the_users_trouble_after_a_minute() {
    let published = service("default/web").short(&[("ip", IP)]).done();
    let after = |seconds| {
        let situation = Situation { unserved: Some(Duration::from_secs(seconds)), ..Situation::default() };
        situation.plan(&published, &[], &[("default/web", &LbView { address: None, ..ready_lb() })])
    };
    assert_eq!(after(60), Plan { actions: vec![], verdict: PlanVerdict::Ready });
    let late = after(61);
    assert_eq!(late.actions, []);
    assert!(waiting(&late).needs_user && waiting(&late).message.starts_with(&format!("address {IP} is published")));
    let situation = Situation { unserved: Some(Duration::from_mins(2)), ..Situation::default() };
    let mut ignored = published.clone();
    ignored.annotations.insert(kube_vip::IGNORE, "true");
    let told = situation.plan(&ignored, &[], &[("default/web", &LbView { address: None, ..ready_lb() })]);
    assert!(waiting(&told).message.contains("annotation kube-vip.io/ignore is true"), "{told:?}");
    let dhcp = service("default/web").short(&[("ipam", "dhcp"), ("ip", "0.0.0.0")]).done();
    let object = LbView { ipam: Some("dhcp".into()), address: None, ..lb("lb-name").ready("0.0.0.0").done() };
    assert!(waiting(&situation.plan(&dhcp, &[], &[("default/web", &object)])).message.contains("macvlan"));
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

/// Harvester spec 3.5.
#[test]
fn an_object_without_network_is_sent_again_at_a_modest_interval() {
    let unmatched = lb("lb-name").not_ready("no matched IPPool with requirement &{Network: }").done();
    let at = |idle: Option<u64>| {
        let idle = idle.map(Duration::from_secs);
        Situation { idle, ..Situation::default() }.plan(&web(), &[], &[("default/web", &unmatched)])
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
    let at = |idle| {
        Situation { idle, now: 7, ..Situation::default() }.plan(&web(), &[], &[("default/web", &exhausted)]).actions
    };
    assert_eq!(at(Some(Duration::from_secs(59))), []);
    let actions = at(Some(Duration::from_mins(1)));
    let [Action::Update { changes, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(changes, &[Change::Annotation(cloudprovider::NUDGED, "7".into())]);
}

/// W-17.
#[test]
fn the_interface_gate_holds_up_new_services_only() {
    let known = NadMapping::Known([("a/b".to_owned(), "enp2s0".to_owned())].into());
    let situation = Situation { mapping: Some(&known), ..Situation::default() };
    let gone = service("default/web").short(&[("net", "a/gone")]).done();
    let refused = situation.plan(&gone, &[], &[]);
    assert_eq!(refused.actions, []);
    assert!(refusal(&refused).starts_with("service default/web asks for network a/gone "));

    let served = service("default/web").short(&[("net", "a/gone"), ("ip", IP), ("if", "enp2s0")]).ingress(IP).done();
    let mut lb = LbView { address: Some(IP.into()), ..lb("lb-name").network_of_host("a/gone").ready(IP).done() };
    lb.annotations.insert(cloudprovider::LB_NETWORK, "a/gone");
    assert_eq!(
        situation.plan(&served, &[], &[("default/web", &lb)]),
        Plan { actions: vec![], verdict: PlanVerdict::Ready }
    );
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
    assert_eq!(self::plan(&joined, &[flipped], &[]).verdict, PlanVerdict::Ready);
}

#[test]
fn a_lost_object_is_created_again_while_its_address_is_served_on() {
    let plan = plan(&served(), &[], &[]);
    assert!(matches!(plan.actions.as_slice(), [Action::Create(_)]), "{plan:?}");
}
