//! The keeper against a scripted API server.

mod beginning;
mod confirmation;
mod copied_machine;
mod default_name;
mod lost_record;
mod outside;
mod restore;
mod undone;

use harvester_api::names::ClusterName;
use k8s_openapi::api::core::v1::ConfigMap;
use prometheus_client::registry::Registry;
use runtime::events::Entry;
use runtime::scenario::Scenario;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::super::super::load_balancers::build;
use super::super::identity_card::IdentityCard;
use super::super::record;
use super::words::mismatch;
use super::*;
use crate::instances::view::VmView;
use crate::instances::view::build::vm;
use crate::load_balancers::own_writes::lb_cache;
use cloud_provider::view::{NodeView, Ready};

/// Longer than the keeper waits for anything that these tests wait for. Where time is paused it passes only while all
/// are waiting.
const PATIENCE: Duration = Duration::from_mins(1);

struct Lab {
    server: Scenario,
    identity: Identity,
    sources: Sources,
    events: mpsc::Receiver<Entry>,
    metrics: Arc<Metrics>,
}

impl Lab {
    /// A cluster with one Service that has an object labelled `cluster`, and this answer to GET of the record.
    fn start(flag: &str, object: Option<&str>, answer: (u16, Value)) -> Self {
        let server = Scenario::answering(move |request| match request.method.as_str() {
            "GET" => answer.clone(),
            _ => (200, request.body.clone()),
        });
        Self::over(server, flag, object)
    }

    /// The same with this API server.
    fn over(server: Scenario, flag: &str, object: Option<&str>) -> Self {
        Self::on(server, flag, object, &[], &[])
    }

    /// The same with these Nodes and machines. The controller runs on the last Node.
    fn on(server: Scenario, flag: &str, object: Option<&str>, nodes: &[NodeView], vms: &[VmView]) -> Self {
        let own = nodes.last().map(|node| OwnNode { name: node.name.clone(), told: true });
        Self::from(own, server, flag, object, (nodes, vms))
    }

    fn from(
        own_node: Option<OwnNode>,
        server: Scenario,
        flag: &str,
        object: Option<&str>,
        (nodes, vms): (&[NodeView], &[VmView]),
    ) -> Self {
        Self::run(own_node, server, flag, Self::sources(object, nodes, vms), false)
    }

    fn sources(object: Option<&str>, nodes: &[NodeView], vms: &[VmView]) -> Sources {
        let web = build::service("default/web").done();
        let lbs = lb_cache();
        let objects = object.map(|cluster| {
            let name = ClusterName::from_record(cluster);
            let name = name.load_balancer_name("default", "web", &web.uid.0);
            let mut lb = build::lb(&name).done();
            lb.labels.insert(harvester_api::keys::cloudprovider::CLUSTER, cluster);
            (name, lb)
        });
        lbs.replace(objects.into_iter().collect());
        let sources = Sources {
            services: cloud_provider::cache::services_with([web]),
            nodes: cloud_provider::cache::nodes(),
            lbs,
            vms: Cache::in_memory(|old, new| old != new, []),
            vmis: Cache::in_memory(|old, new| old != new, []),
            machines: std::array::from_fn(|_| watch::Sender::default().subscribe()),
            record: record_cache(),
        };
        sources.nodes.replace(nodes.iter().map(|node| (node.name.clone(), node.clone())).collect());
        sources.vms.replace(vms.iter().map(|vm| (vm.name.clone(), vm.clone())).collect());
        sources
    }

    fn run(own_node: Option<OwnNode>, server: Scenario, flag: &str, sources: Sources, paused: bool) -> Self {
        let identity = Identity::unknown(ClusterName::from_record(flag));
        let metrics = Arc::new(Metrics::register(&mut Registry::default()));
        let (recorder, events) = Recorder::to_channel("test");
        let records = Records::new(server.client());
        let (namespace, url) = ("guests".to_owned(), "https://h".to_owned());
        let place = Place { namespace, server: url, own_node, paused, ..Place::default() };
        let keeper = Keeper::new(identity.clone(), place, sources.clone(), records, Arc::clone(&metrics));
        tokio::spawn(keeper.run(recorder));
        Self { server, identity, sources, events, metrics }
    }

    async fn name(&self) -> String {
        let mut changes = self.identity.subscribe();
        let named = tokio::time::timeout(PATIENCE, changes.wait_for(Option::is_some)).await;
        let name = named.expect("the cluster has no name yet").expect("the identity lives").clone();
        name.expect("waited for it").to_string()
    }

    /// Waits until the cluster is called this.
    async fn is_named(&self, expected: &str) {
        let mut changes = self.identity.subscribe();
        let named = changes.wait_for(|name| name.as_ref().is_some_and(|name| name.as_str() == expected));
        let named = tokio::time::timeout(PATIENCE, named).await;
        named.unwrap_or_else(|_| panic!("the cluster is not called {expected} yet")).expect("the identity lives");
    }

    /// The watch shows this name in the record.
    fn shows(&self, name: &str) {
        let card = self.identity.card().map(Arc::unwrap_or_clone).map(|mut card| {
            card.names.insert(name.to_owned());
            card
        });
        let record = Record { cluster_name: Some(ClusterName::from_record(name)), card, ..Record::default() };
        self.sources.record.apply(NAME.into(), record);
    }

    fn told(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.events.try_recv().ok()).map(|event| event.reason).collect()
    }
}

fn none() -> (u16, Value) {
    (404, Scenario::status(404, "NotFound", "configmaps not found"))
}

fn remembered(name: &str) -> (u16, Value) {
    let metadata = json!({"name": NAME, "namespace": NAMESPACE, "resourceVersion": "1", "uid": "u"});
    (200, json!({"metadata": metadata, "data": {"cluster-name": name, "identity": card(name, &[]).to_text()}}))
}

/// The card of a cluster with these machines. Every GET is answered with the record, also that of the Namespace.
fn card(name: &str, machines: &[&str]) -> IdentityCard {
    IdentityCard {
        cluster_uid: "u".into(),
        namespace: "guests".into(),
        names: [name.to_owned()].into(),
        machines: machines.iter().map(|uid| (*uid).to_owned()).collect(),
        ..IdentityCard::default()
    }
}

async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_name_first_used_is_remembered_and_later_costs_no_write() {
    let mut fresh = Lab::start("prod", None, none());
    assert_eq!(fresh.name().await, "prod");
    settle().await;
    let card = IdentityCard { cluster_uid: String::new(), ..card("prod", &[]) }.to_text();
    assert_eq!(fresh.server.writes()[0].body["data"], json!({"cluster-name": "prod", "identity": card}));
    assert_eq!(fresh.told(), Vec::<String>::new());

    let again = Lab::start("prod", None, remembered("prod"));
    assert_eq!(again.name().await, "prod");
    settle().await;
    assert_eq!(again.server.writes(), []);
}

#[tokio::test]
async fn a_flag_that_changed_or_was_lost_changes_nothing_and_is_told() {
    for flag in ["prod2", "kubernetes", ""] {
        let mut lab = Lab::start(flag, None, remembered("prod"));
        assert_eq!(lab.name().await, "prod", "{flag:?}");
        settle().await;
        assert_eq!(lab.told(), ["ClusterNameNotChanged"], "{flag:?}");
        assert_eq!((lab.server.writes().len(), lab.metrics.cluster_name_mismatch.get()), (0, 1));
    }
}

#[tokio::test]
async fn objects_of_a_go_provider_give_the_name_when_the_flag_was_lost() {
    let mut lab = Lab::start("kubernetes", Some("prod"), none());
    assert_eq!(lab.name().await, "prod");
    settle().await;
    assert_eq!(lab.server.writes()[0].body["data"]["cluster-name"], "prod");
    assert_eq!(lab.told(), ["ClusterNameNotChanged"]);
}

#[tokio::test]
async fn a_name_that_is_written_into_the_record_is_taken_over() {
    let mut lab = Lab::start("prod2", None, remembered("prod"));
    assert_eq!(lab.name().await, "prod");
    lab.shows("prod2");
    lab.is_named("prod2").await;
    assert_eq!(lab.told(), ["ClusterNameNotChanged", "ClusterNameChanged"]);
    assert_eq!(lab.metrics.cluster_name_mismatch.get(), 0);
}

#[tokio::test]
async fn a_name_that_no_object_can_have_is_refused_told_once_and_written_over() {
    let mut lab = Lab::start("prod", None, remembered("prod"));
    assert_eq!(lab.name().await, "prod");
    let mut mistyped: ConfigMap = serde_json::from_value(remembered("Prod 2").1).unwrap();
    for label in ["a", "b"] {
        mistyped.metadata.labels = Some([(label.to_owned(), String::new())].into());
        lab.sources.record.apply(NAME.into(), Record { list_garbage: Some(label.into()), ..Record::from(&mistyped) });
        settle().await;
    }
    assert_eq!(lab.name().await, "prod");
    let event = lab.events.try_recv().unwrap();
    assert_eq!(event.reason, "ClusterNameRefused");
    for part in ["cluster-name in ConfigMap", "\"Prod 2\"", "accepted are lower-case", "keeps the name \"prod\""] {
        assert!(event.message.contains(part), "{part}: {}", event.message);
    }
    assert!(lab.events.try_recv().is_err(), "once");
}

#[tokio::test]
async fn after_a_start_with_a_mistyped_record_our_objects_tell_the_name_and_it_is_mended() {
    let (code, mut mistyped) = remembered("Prod 2");
    mistyped["data"]["identity"] = card("prod", &[]).to_text().into();
    let mut lab = Lab::start("prod", Some("prod"), (code, mistyped));
    assert_eq!(lab.name().await, "prod");
    settle().await;
    assert_eq!(lab.told(), ["ClusterNameRefused"]);
    assert_eq!(lab.server.writes()[0].body["data"]["cluster-name"], "prod");
}

#[tokio::test]
async fn a_record_that_somebody_deletes_is_written_again() {
    let lab = Lab::start("prod", None, remembered("prod"));
    lab.name().await;
    lab.shows("prod");
    settle().await;
    lab.sources.record.remove(&NAME.to_owned());
    settle().await;
    assert_eq!(lab.name().await, "prod");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_refuses_for_a_moment_after_its_start_is_waited_for() {
    let begin = Instant::now();
    let server = Scenario::answering(move |_| {
        if begin.elapsed() < Duration::from_secs(2) {
            return (403, Scenario::status(403, "Forbidden", "no"));
        }
        remembered("prod")
    });
    let lab = Lab::over(server, "prod2", None);
    assert_eq!(lab.name().await, "prod", "what the flag says was no guess to act upon");
}

/// W-07.
#[tokio::test(start_paused = true)]
async fn without_the_right_it_works_and_nothing_is_written() {
    let lab = Lab::start("prod", None, (403, Scenario::status(403, "Forbidden", "no")));
    assert_eq!(lab.name().await, "prod");
    settle().await;
    assert_eq!(lab.server.writes(), []);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_is_waited_for() {
    let lab = Lab::start("prod2", None, (500, Scenario::status(500, "InternalError", "etcd")));
    settle().await;
    assert_eq!(lab.identity.name(), None, "a guess would make objects under a wrong name");
    assert_eq!(lab.identity.name_or_flag().as_str(), "prod2");
}

/// Writes fail, reads do not.
#[tokio::test(start_paused = true)]
async fn a_name_that_cannot_be_written_is_tried_again_and_holds_up_nothing() {
    let well = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let answer = Arc::clone(&well);
    let server = Scenario::answering(move |request| match request.method.as_str() {
        "GET" => none(),
        _ if answer.load(std::sync::atomic::Ordering::Relaxed) => (200, request.body.clone()),
        _ => (500, Scenario::status(500, "InternalError", "a webhook is away")),
    });
    let mut lab = Lab::over(server, "prod", None);
    assert_eq!(lab.name().await, "prod");
    settle().await;
    assert_eq!(lab.server.writes().len(), 1);
    tokio::time::sleep(Duration::from_mins(10)).await;
    let writes = lab.server.writes().len();
    assert!((10..30).contains(&writes), "{writes}");

    // The record comes to say something else, and is followed at once.
    lab.shows("prod2");
    let mut changes = lab.identity.subscribe();
    let named = changes.wait_for(|name| name.as_ref().is_some_and(|name| name.as_str() == "prod2"));
    tokio::time::timeout(Duration::from_secs(1), named).await.expect("in time").unwrap();
    assert_eq!(lab.told(), ["ClusterNameChanged", "ClusterNameNotChanged"]);
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(lab.server.writes().len(), writes, "nothing is owed any more");

    // The same once the writes work.
    let lab = Lab::over(lab.server, "prod", None);
    lab.name().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    well.store(true, std::sync::atomic::Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let written = lab.server.writes().len();
    assert_eq!(lab.server.writes()[written - 1].body["data"]["cluster-name"], "prod");
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(lab.server.writes().len(), written, "once");
}

/// An older role, or a policy: nothing of it may need a restart to end.
#[tokio::test(start_paused = true)]
async fn a_record_that_may_not_be_written_is_tried_again_seldom_and_at_once_when_it_changes() {
    let granted = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (answer, set) = (Arc::clone(&granted), |granted: &std::sync::atomic::AtomicBool, yes| {
        granted.store(yes, std::sync::atomic::Ordering::Relaxed);
    });
    let server = Scenario::answering(move |request| match request.method.as_str() {
        "GET" => none(),
        _ if answer.load(std::sync::atomic::Ordering::Relaxed) => (200, request.body.clone()),
        _ => (403, Scenario::status(403, "Forbidden", "no")),
    });
    let mut lab = Lab::over(server, "prod", None);
    lab.name().await;
    tokio::time::sleep(Duration::from_hours(2)).await;
    let refused = lab.server.writes().len();
    // The first attempt goes on for a while: an API server that has just started refuses what it grants a moment later.
    assert!((10..60).contains(&refused), "{refused}");
    assert_eq!(lab.told(), Vec::<String>::new());
    // Somebody grants the right and touches the record.
    set(&granted, true);
    lab.sources.record.apply(NAME.into(), Record { list_garbage: Some("now".into()), ..Record::default() });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let writes = lab.server.writes();
    assert_eq!((writes.len(), &writes[refused].body["data"]["cluster-name"]), (refused + 1, &json!("prod")));

    // And without anybody touching it.
    set(&granted, false);
    let lab = Lab::over(lab.server, "prod", None);
    lab.name().await;
    tokio::time::sleep(Duration::from_mins(30)).await;
    set(&granted, true);
    let refused = lab.server.writes().len();
    tokio::time::sleep(Duration::from_mins(11)).await;
    assert_eq!(lab.server.writes().len(), refused + 1);
}

#[test]
fn the_way_out_is_in_the_text() {
    let name = ClusterName::from_record;
    let text = mismatch(&name("prod"), &name("prod2"));
    assert!(
        text.contains("set --cluster-name=prod.") && text.contains("`harvester-cloud-provider identity rename prod2`"),
        "{text}"
    );
    assert!(mismatch(&name("prod"), &name("kubernetes")).contains("NEW-NAME"));
}

fn node(name: &str, machine: &str, ready: bool) -> NodeView {
    let provider_id = Some(harvester_api::keys::provider_id(machine));
    NodeView { provider_id, ready: Some(if ready { Ready::True } else { Ready::Unknown }), ..build::node(name, &[]) }
}

/// A record of these machines that can be written to, and the Lab on top of it.
fn stored(flag: &str, nodes: &[NodeView], vms: &[VmView], machines: &[&str]) -> (Arc<parking_lot::Mutex<Value>>, Lab) {
    let mut object = remembered("prod").1;
    object["data"]["identity"] = card("prod", machines).to_text().into();
    let object = Arc::new(parking_lot::Mutex::new(object));
    let there = Arc::clone(&object);
    let server = Scenario::answering(move |request| {
        let mut there = there.lock();
        if request.method == "PUT" {
            *there = request.body.clone();
        }
        (200, there.clone())
    });
    (object, Lab::on(server, flag, None, nodes, vms))
}

async fn holds(lab: &Lab, expected: Option<&str>) {
    let mut holds = lab.identity.holds();
    let reached = holds.wait_for(|hold| hold.as_ref().map(|hold| hold.reason) == expected);
    tokio::time::timeout(Duration::from_secs(5), reached).await.expect("in time").unwrap();
}

#[tokio::test(start_paused = true)]
async fn machines_that_are_not_there_end_in_safe_mode_which_is_told_once_and_ends_by_itself() {
    let nodes = [node("a", "vm-a", true), node("b", "vm-b", true)];
    let (object, mut lab) = stored("prod", &nodes, &[vm("x", "vm-x")], &["vm-a", "vm-b"]);
    holds(&lab, Some("MachinesNotSeen")).await;
    assert_eq!((lab.identity.name(), lab.metrics.safe_mode.get()), (None, 1), "nobody works under any name");
    settle().await;
    let text = object.lock()["data"]["safe-mode"].as_str().unwrap().to_owned();
    assert!(text.starts_with("MachinesNotSeen: 2 Nodes run on virtual machines such as vm-a of Node a"), "{text}");
    // Machines and Nodes come and go for ten minutes.
    for n in 0..600 {
        lab.sources.vms.apply(format!("x{n}"), vm(&format!("x{n}"), &format!("vm-x{n}")));
        lab.sources.nodes.apply("a".into(), node("a", "vm-a", n % 2 == 0));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!((lab.server.writes().len(), lab.told()), (1, vec!["SafeMode".to_owned()]));

    // The right file is back.
    lab.sources.vms.replace([("a".to_owned(), vm("a", "vm-a")), ("b".to_owned(), vm("b", "vm-b"))].into());
    lab.sources.nodes.apply("a".into(), node("a", "vm-a", true));
    holds(&lab, None).await;
    assert_eq!(lab.name().await, "prod");
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!((lab.told(), lab.metrics.safe_mode.get()), (vec!["SafeModeEnded".to_owned()], 0));
    assert_eq!(object.lock()["data"].get("safe-mode"), None);
}

#[tokio::test(start_paused = true)]
async fn a_copy_is_held_from_the_first_moment_and_becomes_a_cluster_of_its_own_by_a_humans_word() {
    // The Node of the original is Ready in the snapshot until the controller manager looks.
    let nodes = [node("a", "vm-a", true), node("x", "vm-x", true)];
    let (object, mut lab) = stored("prod", &nodes, &[vm("a", "vm-a"), vm("x", "vm-x")], &["vm-a"]);
    holds(&lab, Some(NOT_KNOWN)).await;
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(lab.identity.name(), None);
    lab.sources.nodes.apply("a".into(), node("a", "vm-a", false));
    tokio::time::sleep(SETTLED).await;
    holds(&lab, Some("MachinesReplaced")).await;
    settle().await;
    {
        let mut object = object.lock();
        object["metadata"]["annotations"] = json!({record::CONFIRMATION: "copy prod2"});
        let shown: ConfigMap = serde_json::from_value(object.clone()).unwrap();
        lab.sources.record.apply(NAME.into(), Record::from(&shown));
    }
    holds(&lab, None).await;
    assert_eq!(lab.name().await, "prod2");
    let card = lab.identity.card().unwrap();
    assert_eq!((card.names.clone(), card.machines.clone()), (["prod2".to_owned()].into(), ["vm-x".to_owned()].into()));
    settle().await;
    let object = object.lock();
    assert_eq!((&object["data"]["cluster-name"], object["data"].get("safe-mode")), (&json!("prod2"), None));
    assert_eq!(object["metadata"]["annotations"].get(record::CONFIRMATION), None);
    assert_eq!(lab.told(), ["SafeMode", "IdentityConfirmed", "ClusterNameNotChanged", "SafeModeEnded"]);
}

#[tokio::test(start_paused = true)]
async fn a_paused_controller_holds_until_it_is_not() {
    let lab = Lab::start("prod", None, remembered("prod"));
    lab.name().await;
    let paused = |paused| Record {
        paused,
        cluster_name: Some(ClusterName::from_record("prod")),
        card: lab.identity.card().map(Arc::unwrap_or_clone),
        ..Record::default()
    };
    lab.sources.record.apply(NAME.into(), paused(true));
    holds(&lab, Some(PAUSED)).await;
    assert_eq!((lab.identity.hold().unwrap().initialises_nodes, lab.metrics.paused.get()), (false, 1));
    lab.sources.record.apply(NAME.into(), paused(false));
    holds(&lab, None).await;
}
