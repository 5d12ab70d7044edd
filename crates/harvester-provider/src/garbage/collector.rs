//! Looks for garbage every ten minutes and when asked to, tells of it by metric and Event, and deletes what [`super::sweep`] allows.
//! Runs on the leader only.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cloud_provider::preview::{Outlook, Place, Target, Verb, Write};
use cloud_provider::view::ServiceKey;
use runtime::error::chain;
use runtime::events::Recorder;
use runtime::reflect::Status;
use tokio::sync::watch;

use super::list::{Garbage, Kind, list};
use super::sweep::Sweep;
use crate::config::{GarbageConfig, GarbageMode, LoadBalancerConfig};
use crate::host_upgrade::Caution;
use crate::identity::Identity;
use crate::identity::keeper::Sources;
use crate::identity::record::{self, NAME};
use crate::load_balancers::apply::{Deleted, RequestError, Requests};
use crate::load_balancers::booking::{When, when};
use crate::load_balancers::pacing::{self, Pacer, Work};
use crate::metrics::Metrics;

/// The same garbage is told of again after this time, before the Event of the last time expires.
const TELL_AGAIN: Duration = Duration::from_mins(50);

/// So many are named in one Event.
const NAMED: usize = 8;

/// So many are deleted in one pass.
const AT_ONCE: usize = 10;

/// Looks for garbage.
#[derive(Debug)]
pub struct Collector {
    settings: GarbageConfig,
    given: LoadBalancerConfig,
    identity: Identity,
    sources: Sources,
    watched: [watch::Receiver<Status>; 2],
    requests: Requests,
    pacer: Arc<Pacer>,
    metrics: Arc<Metrics>,
    caution: Caution,
}

/// What was told last.
#[derive(Debug, Default)]
struct LastReported {
    names: BTreeSet<String>,
    at: Option<Instant>,
    asked: Option<String>,
}

impl Collector {
    /// Nothing is sent before [`Self::run`]. `watched` are the states of one watch of each API.
    pub fn new(
        settings: GarbageConfig,
        (given, identity): (LoadBalancerConfig, Identity),
        sources: Sources,
        watched: [watch::Receiver<Status>; 2],
        (requests, pacer): (Requests, Arc<Pacer>),
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { settings, given, identity, sources, watched, requests, pacer, metrics, caution: Caution::default() }
    }

    /// Asks this before anything is deleted.
    pub fn cautious(mut self, caution: Caution) -> Self {
        self.caution = caution;
        self
    }

    /// What a pass would find, and delete when the grace period is over. Sends nothing.
    pub fn foresee(&self) -> Outlook {
        let mut outlook = Outlook::default();
        if self.settings.mode == GarbageMode::Off {
            return outlook;
        }
        let garbage = self.look();
        let deletes = |garbage: &Garbage| self.settings.mode == GarbageMode::Delete && garbage.kind == Kind::Ours;
        for garbage in &garbage {
            let (namespace, name) = (self.given.namespace.clone(), garbage.lb.name.clone());
            let target = Target { kind: "LoadBalancer", namespace, name };
            if deletes(garbage) {
                let why = format!("no Service has it; not before {} s have passed", self.settings.grace.as_secs());
                let (place, verb) = (Place::Cloud, Verb::Delete);
                outlook.writes.push(Write { place, verb, target, why, body: serde_json::Value::Null });
            } else {
                let message = format!("no Service has it ({}); it is told, and left alone", garbage.kind.label());
                outlook.note(target, "Garbage", message, false);
            }
        }
        outlook
    }

    /// Never ends.
    pub async fn run(mut self, events: Recorder) -> Infallible {
        if self.settings.mode == GarbageMode::Off {
            return std::future::pending().await;
        }
        let mut known = self.identity.subscribe();
        if known.wait_for(Option::is_some).await.is_err() {
            return std::future::pending().await;
        }
        self.sources.services.wait_synced().await;
        self.sources.lbs.wait_synced().await;
        let mut touched = self.sources.record.subscribe();
        let every = self.settings.pace.every;
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
        let mut sweep = Sweep::new(self.settings, Instant::now());
        let mut seen = self.troubles();
        let mut told = LastReported { asked: self.asked(), ..LastReported::default() };
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                Some(_) = touched.next() => if self.asked() == told.asked { continue },
                () = changed(&mut self.watched) => {
                    self.notice(&mut seen, &mut sweep);
                    continue;
                }
            }
            self.notice(&mut seen, &mut sweep);
            if self.identity.hold().is_some() {
                // What is garbage is not known; the grace period begins anew.
                sweep.trouble(Instant::now());
                continue;
            }
            if self.caution.may_collect_garbage().is_err() {
                sweep.trouble(Instant::now());
            }
            let garbage = self.look();
            self.tell(&garbage, &mut told, &events);
            if self.settings.mode == GarbageMode::Delete {
                let due: Vec<Garbage> =
                    sweep.due(Instant::now(), &garbage).into_iter().take(AT_ONCE).cloned().collect();
                for garbage in due {
                    let deleted = self.delete(&garbage, seen, &events).await;
                    if self.notice(&mut seen, &mut sweep) {
                        break;
                    }
                    if let Err(error) = deleted {
                        tracing::warn!(lb = garbage.lb.name, error = chain(&error), "garbage is not deleted");
                        sweep.trouble(Instant::now());
                        break;
                    }
                }
            }
        }
    }

    /// How often an API failed us until now.
    fn troubles(&self) -> u64 {
        self.watched.iter().map(|watched| watched.borrow().troubles).sum()
    }

    /// Whether there was trouble since the last time, also one that is over. Then the grace period begins anew.
    fn notice(&self, seen: &mut u64, sweep: &mut Sweep) -> bool {
        let troubles = self.troubles();
        let new = std::mem::replace(seen, troubles) != troubles;
        if new {
            sweep.trouble(Instant::now());
        }
        new
    }

    /// What the user wrote to make us look at once.
    fn asked(&self) -> Option<String> {
        self.sources.record.get(&NAME.to_owned())?.list_garbage.clone()
    }

    fn look(&self) -> Vec<Garbage> {
        let config = self.given.under(&self.identity, &self.sources.services);
        let garbage = list(&self.sources.lbs.all(), |key| self.sources.services.get(key), &config);
        for kind in [Kind::Ours, Kind::Suspected] {
            self.metrics.garbage(kind, garbage.iter().filter(|garbage| garbage.kind == kind).count());
        }
        garbage
    }

    /// Once per list, again before Events expire, and always when asked.
    fn tell(&self, garbage: &[Garbage], told: &mut LastReported, events: &Recorder) {
        let asked = self.asked();
        let on_demand = std::mem::replace(&mut told.asked, asked.clone()) != asked;
        let names: BTreeSet<String> = garbage.iter().map(|garbage| garbage.lb.name.clone()).collect();
        let news = names != told.names || told.at.is_none_or(|at| at.elapsed() >= TELL_AGAIN);
        if !on_demand && (names.is_empty() || !news) {
            told.names = names;
            return;
        }
        let text = story(garbage, self.settings, &self.given.namespace);
        let object = record::reference(self.sources.record.get(&NAME.to_owned()).and_then(|record| record.uid.clone()));
        if garbage.is_empty() {
            events.normal(&object, "NoGarbage", &text);
        } else {
            tracing::warn!("{text}");
            events.warning(&object, "GarbageLoadBalancers", &text);
        }
        *told = LastReported { names, at: Some(Instant::now()), asked: told.asked.take() };
    }

    /// Decision 6: when the turn has come, and if there was no trouble while it was waited for (`seen` until then). What is not sent
    /// after all gives its place back.
    async fn delete(&self, garbage: &Garbage, seen: u64, events: &Recorder) -> Result<(), RequestError> {
        let name = &garbage.lb.name;
        if pacing::releases(&garbage.lb) {
            // Not in the name of the Service: one of the same name gives back what it does not want itself.
            let nobody = ServiceKey { namespace: self.given.namespace.clone(), name: name.clone() };
            self.pacer.turn(name, &nobody, Work::Delete).await;
        }
        let deleted = if self.troubles() == seen && self.identity.hold().is_none() {
            self.delete_now(garbage, events).await
        } else {
            Ok(false)
        };
        if matches!(deleted, Ok(true)) {
            self.pacer.sent(name);
        } else {
            self.pacer.failed(name);
        }
        deleted.map(drop)
    }

    /// Asks both API servers once more, past every cache, before anything is deleted. Whether something was.
    async fn delete_now(&self, garbage: &Garbage, events: &Recorder) -> Result<bool, RequestError> {
        if let Err(why) = self.caution.may_collect_garbage() {
            tracing::info!(lb = garbage.lb.name, %why, "garbage is not deleted now");
            return Ok(false);
        }
        let config = self.given.under(&self.identity, &self.sources.services);
        let service = match &garbage.service {
            Some(key) => self.requests.read_service(key).await?.map(Arc::new),
            None => None,
        };
        let Some(now) = self.requests.read(&garbage.lb.name).await? else { return Ok(false) };
        let still = list(&[Arc::new(now)], |_| service.clone(), &config);
        let harmless = |now: &Garbage| when(&now.lb, self.settings.grace) == When::Now { leaks: false };
        if !still.iter().any(|now| now.kind == Kind::Ours && now.lb.uid == garbage.lb.uid && harmless(now)) {
            return Ok(false);
        }
        let name = &garbage.lb.name;
        self.pacer.sent(name);
        let deleted = !matches!(self.requests.delete(name, &garbage.lb.uid).await?, Deleted::Gone);
        if deleted {
            let text =
                format!("deleted load balancer {}/{name} on Harvester, which no Service has", self.given.namespace);
            tracing::info!("{text}");
            let uid = self.sources.record.get(&NAME.to_owned()).and_then(|record| record.uid.clone());
            events.normal(&record::reference(uid), "GarbageDeleted", &text);
        }
        Ok(deleted)
    }
}

/// Waits until one of the watches changes its state; for ever if nobody tells any more.
async fn changed([first, second]: &mut [watch::Receiver<Status>; 2]) {
    let told = tokio::select! {
        told = first.changed() => told,
        told = second.changed() => told,
    };
    if told.is_err() {
        std::future::pending::<()>().await;
    }
}

fn story(garbage: &[Garbage], settings: GarbageConfig, namespace: &str) -> String {
    if garbage.is_empty() {
        return format!("every load balancer of this cluster in namespace {namespace} of Harvester has its Service");
    }
    let named: Vec<String> = garbage
        .iter()
        .take(NAMED)
        .map(|garbage| {
            let service = garbage.service.as_ref().map(|key| format!(" of {key}")).unwrap_or_default();
            format!("{}{service} ({})", garbage.lb.name, garbage.kind.label())
        })
        .collect();
    let more = garbage.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let what = match settings.mode {
        GarbageMode::Delete => {
            format!("What is ours by the UID of this cluster is deleted after {} s.", settings.grace.as_secs())
        }
        GarbageMode::List | GarbageMode::Off => {
            "Nothing is deleted: look at them and delete them on Harvester, or set --garbage-collection=delete."
                .to_owned()
        }
    };
    format!(
        "{} load balancers in namespace {namespace} of Harvester have no Service: {}{more}. {what}",
        garbage.len(),
        named.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use harvester_api::keys::harvester::LB_FINALIZER;
    use prometheus_client::registry::Registry;
    use runtime::cache::Cache;
    use runtime::events::Entry;
    use runtime::scenario::Scenario;
    use serde_json::{Value, json};
    use tokio::sync::mpsc;

    use super::super::super::load_balancers::build::{config, lb, service};
    use super::*;
    use crate::identity::keeper::record_cache;
    use crate::identity::record::Record;
    use crate::load_balancers::own_writes::lb_cache;
    use crate::load_balancers::pacing::Turn;
    use crate::load_balancers::view::LbView;

    const NAME_OF_LB: &str = "demo-default-web-1";

    struct Lab {
        server: Scenario,
        collector: Collector,
        sources: Sources,
        recorder: Recorder,
        events: mpsc::Receiver<Entry>,
    }

    fn lab(mode: GarbageMode, service_there: bool) -> Lab {
        let object = object();
        let server = Scenario::answering(move |request| {
            let missing = (404, Scenario::status(404, "NotFound", "not found"));
            let named = |uid: &str| (200, json!({"metadata": {"name": "x", "namespace": "default", "uid": uid}}));
            match (request.method.as_str(), request.path.rsplit('/').next().unwrap()) {
                ("GET", "web") if service_there => named("uid-of-default-web"),
                ("GET", "web") => missing,
                ("GET" | "DELETE", NAME_OF_LB) => (200, object.clone()),
                other => panic!("unexpected {other:?}"),
            }
        });
        let lbs = lb_cache();
        let view = LbView { uid: "lb-1".into(), ..lb(NAME_OF_LB).ready("10.0.0.1").done() };
        lbs.replace([(NAME_OF_LB.to_owned(), view)].into());
        let mut cluster = service("default/kubernetes").done();
        cluster.uid.0 = "uid-of-cluster".into();
        let sources = Sources {
            services: cloud_provider::cache::services_with([cluster]),
            nodes: cloud_provider::cache::nodes(),
            lbs,
            vms: Cache::in_memory(|old, new| old != new, []),
            vmis: Cache::in_memory(|old, new| old != new, []),
            machines: std::array::from_fn(|_| watch::Sender::default().subscribe()),
            record: record_cache(),
        };
        let settings = GarbageConfig::new(mode, Duration::ZERO);
        let (recorder, events) = Recorder::to_channel("test");
        let collector = Collector::new(
            settings,
            (config(), Identity::known("demo")),
            sources.clone(),
            std::array::from_fn(|_| watch::Sender::default().subscribe()),
            (Requests::new(server.client(), server.client(), "guests"), Arc::default()),
            Arc::new(Metrics::register(&mut Registry::default())),
        );
        Lab { server, collector, sources, recorder, events }
    }

    fn object() -> Value {
        let view = super::super::super::load_balancers::desired::new_object(
            &config(),
            NAME_OF_LB,
            &service("default/web").done(),
            &super::super::super::load_balancers::choice::Source::Pool(None),
        );
        let mut object = serde_json::to_value(view).unwrap();
        object["metadata"]["uid"] = json!("lb-1");
        object["metadata"]["finalizers"] = json!([LB_FINALIZER]);
        object["status"] = json!({
            "allocatedAddress": {"ip": "10.0.0.1"}, "conditions": [{"type": "Ready", "status": "True"}]
        });
        object
    }

    #[tokio::test]
    async fn garbage_is_told_once_and_always_when_asked() {
        let mut lab = lab(GarbageMode::List, false);
        let (garbage, mut told) = (lab.collector.look(), LastReported::default());
        assert_eq!(garbage.len(), 1);
        lab.collector.tell(&garbage, &mut told, &lab.recorder);
        lab.collector.tell(&garbage, &mut told, &lab.recorder);
        let event = lab.events.try_recv().unwrap();
        assert_eq!(event.reason, "GarbageLoadBalancers");
        assert!(event.message.contains(&format!("{NAME_OF_LB} of default/web (ours)")), "{}", event.message);
        assert!(lab.events.try_recv().is_err(), "the same list is no news");
        lab.sources.record.apply(NAME.into(), Record { list_garbage: Some("now".into()), ..Record::default() });
        lab.collector.tell(&[], &mut told, &lab.recorder);
        assert_eq!(lab.events.try_recv().unwrap().reason, "NoGarbage");
        assert_eq!(lab.server.requests(), [], "dry run");
    }

    #[tokio::test]
    async fn both_api_servers_are_asked_before_anything_is_deleted() {
        let gone = lab(GarbageMode::Delete, false);
        let garbage = gone.collector.look();
        gone.collector.delete(&garbage[0], 0, &gone.recorder).await.unwrap();
        let writes = gone.server.writes();
        assert_eq!((writes.len(), writes[0].method.as_str()), (1, "DELETE"));
        assert_eq!(writes[0].body["preconditions"]["uid"], "lb-1");
    }

    #[tokio::test(start_paused = true)]
    async fn garbage_takes_turns_with_the_load_balancers_of_services() {
        let lab = lab(GarbageMode::Delete, false);
        let garbage = lab.collector.look();
        assert!(pacing::releases(&garbage[0].lb));
        let pacer = Arc::clone(&lab.collector.pacer);
        let key = ServiceKey { namespace: "default".into(), name: "other".into() };
        assert_eq!(pacer.ask("other", &key, Work::CreateNew), Turn::Now);
        pacer.sent("other");
        let wakes = tokio::spawn(Arc::clone(&pacer).wakes().for_each(|_| std::future::ready(())));
        let mut deletion = std::pin::pin!(lab.collector.delete(&garbage[0], 0, &lab.recorder));
        let begin = tokio::time::Instant::now();
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut deletion).await.is_err());
        assert_eq!(lab.server.requests(), [], "another one has the only place");
        pacer.seen("other", None);
        deletion.await.unwrap();
        assert_eq!(begin.elapsed(), Duration::from_secs(1), "it goes when the place is free, and not later");
        assert_eq!(lab.server.writes().len(), 1);
        assert!(matches!(pacer.ask("other", &key, Work::CreateNew), Turn::NotYet { .. }), "the host releases");
        wakes.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn trouble_that_came_and_went_while_a_turn_was_waited_for_keeps_the_object() {
        let guest = watch::Sender::<Status>::default();
        let mut lab = lab(GarbageMode::Delete, false);
        lab.collector.watched[1] = guest.subscribe();
        let garbage = lab.collector.look();
        let pacer = Arc::clone(&lab.collector.pacer);
        let key = ServiceKey { namespace: "default".into(), name: "other".into() };
        pacer.ask("other", &key, Work::CreateNew);
        pacer.sent("other");
        let wakes = tokio::spawn(Arc::clone(&pacer).wakes().for_each(|_| std::future::ready(())));
        let mut deletion = std::pin::pin!(lab.collector.delete(&garbage[0], 0, &lab.recorder));
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut deletion).await.is_err());
        guest.send_replace(Status { synced: true, troubles: 1, ..Status::default() });
        pacer.seen("other", None);
        deletion.await.unwrap();
        assert_eq!(lab.server.requests(), []);
        wakes.abort();
    }

    #[tokio::test]
    async fn garbage_that_the_host_is_booking_for_is_not_deleted_whatever_the_cache_shows() {
        let lab = lab(GarbageMode::Delete, false);
        let garbage = lab.collector.look();
        let mut booking = object();
        booking["status"]["conditions"] =
            json!([{"type": "Ready", "status": "False", "message": "fail to reserve 10.0.0.1 into edge"}]);
        let host = Scenario::answering(move |request| match request.path.rsplit('/').next().unwrap() {
            "web" => (404, Scenario::status(404, "NotFound", "no")),
            _ => (200, booking.clone()),
        });
        let requests = Requests::new(host.client(), host.client(), "guests");
        let collector = Collector { requests, ..lab.collector };
        collector.delete(&garbage[0], 0, &lab.recorder).await.unwrap();
        assert_eq!((host.requests().len(), host.writes().len()), (2, 0));
    }

    #[tokio::test]
    async fn in_safe_mode_nothing_is_deleted() {
        let lab = lab(GarbageMode::Delete, false);
        let garbage = lab.collector.look();
        let hold = cloud_provider::provider::Hold { reason: "Test", message: String::new(), initialises_nodes: true };
        lab.collector.identity.set_hold(Some(hold));
        lab.collector.delete(&garbage[0], 0, &lab.recorder).await.unwrap();
        assert_eq!(lab.server.requests(), []);
    }

    #[tokio::test]
    async fn a_bare_404_is_no_proof_that_a_service_is_gone() {
        let lab = lab(GarbageMode::Delete, false);
        let garbage = lab.collector.look();
        let ingress = Scenario::answering(|request| match request.path.rsplit('/').next().unwrap() {
            "web" => (404, json!("404 page not found")),
            _ => (200, object()),
        });
        let requests = Requests::new(ingress.client(), ingress.client(), "guests");
        let collector = Collector { requests, ..lab.collector };
        assert!(collector.delete(&garbage[0], 0, &lab.recorder).await.is_err());
        assert_eq!(ingress.writes(), []);
    }
}
