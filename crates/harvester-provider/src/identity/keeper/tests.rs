//! The keeper against a scripted API server.

use k8s_openapi::api::core::v1::ConfigMap;
use prometheus_client::registry::Registry;
use runtime::events::Entry;
use runtime::scenario::Scenario;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::super::super::load_balancers::build;
use super::*;
use crate::load_balancers::own_writes::lb_cache;

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
            lbs,
            vmis: Cache::in_memory(|old, new| old != new, []),
            record: record_cache(),
        };
        let identity = Identity::unknown(ClusterName::from_record(flag));
        let metrics = Arc::new(Metrics::register(&mut Registry::default()));
        let (recorder, events) = Recorder::to_channel("test");
        let records = Records::new(server.client());
        let keeper = Keeper::new(identity.clone(), sources.clone(), records, Arc::clone(&metrics));
        tokio::spawn(keeper.run(recorder));
        Self { server, identity, sources, events, metrics }
    }

    async fn name(&self) -> String {
        let mut changes = self.identity.subscribe();
        let name = changes.wait_for(Option::is_some).await.expect("the identity lives").clone();
        name.expect("waited for it").to_string()
    }

    /// The watch shows this name in the record.
    fn shows(&self, name: &str) {
        let record = Record { cluster_name: Some(ClusterName::from_record(name)), ..Record::default() };
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
    (200, json!({"metadata": metadata, "data": {"cluster-name": name}}))
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
    assert_eq!(fresh.server.writes()[0].body["data"], json!({"cluster-name": "prod"}));
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
    let mut changes = lab.identity.subscribe();
    changes.wait_for(|name| name.as_ref().is_some_and(|name| name.as_str() == "prod2")).await.unwrap();
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
    for part in ["cluster-name in ConfigMap", "\"Prod 2\"", "accepted are lower-case", "goes on as \"prod\""] {
        assert!(event.message.contains(part), "{part}: {}", event.message);
    }
    assert!(lab.events.try_recv().is_err(), "once");
}

#[tokio::test]
async fn after_a_start_with_a_mistyped_record_our_objects_tell_the_name_and_it_is_mended() {
    let mut lab = Lab::start("prod", Some("prod"), remembered("Prod 2"));
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
    let begin = tokio::time::Instant::now();
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

#[test]
fn the_way_out_is_in_the_text() {
    let name = ClusterName::from_record;
    let text = mismatch(&name("prod"), &name("prod2"));
    assert!(
        text.contains("set --cluster-name=prod.") && text.contains(r#"-p '{"data":{"cluster-name":"prod2"}}'"#),
        "{text}"
    );
    assert!(mismatch(&name("prod"), &name("kubernetes")).contains("NEW-NAME"));
}
