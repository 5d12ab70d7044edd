//! Looks for garbage every ten minutes and on request, reports it by metric and Event, and deletes what
//! [`super::sweep`] allows. Runs on the leader only.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cloud_provider::at_once::{Allowed, allowed};
use cloud_provider::preview::{Outlook, Place, Target, Verb, Write};
use cloud_provider::view::ServiceKey;
use runtime::error::chain;
use runtime::events::Recorder;
use runtime::reflect::Status;
use tokio::sync::watch;

use super::list::{Garbage, Kind, count_ours, list};
use super::restore::{GarbageView, keep_confirmed, look_back};
use super::summary::summary;
use super::sweep::{Sweep, text_of_deletion};
use crate::config::{GarbageConfig, GarbageMode, LoadBalancerConfig};
use crate::host_upgrade::Suspensions;
use crate::identity::Identity;
use crate::identity::judge::CONFIRM;
use crate::identity::keeper::{Sources, until};
use crate::identity::record::{self, NAME};
use crate::load_balancers::apply::{Deleted, RequestError, Requests};
use crate::load_balancers::booking::is_booked;
use crate::load_balancers::pacing::{self, Pacer, Work};
use crate::load_balancers::sharing::sharer_of_gone;
use crate::metrics::Metrics;

/// The same garbage is reported again after this time, before the previous Event expires.
const TELL_AGAIN: Duration = Duration::from_mins(50);

/// The largest number of objects that one pass deletes.
const AT_ONCE: usize = 10;

/// Pause after what an operator has said could not be written down.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// The periodic collection of garbage.
pub struct Collector {
    settings: GarbageConfig,
    given: LoadBalancerConfig,
    identity: Identity,
    sources: Sources,
    watched: [watch::Receiver<Status>; 2],
    requests: Requests,
    pacer: Arc<Pacer>,
    metrics: Arc<Metrics>,
    suspensions: Suspensions,
    /// Since when more objects are due than may be deleted without an operator's confirmation.
    barred: Option<tokio::time::Instant>,
}

/// What was last reported.
#[derive(Debug, Default)]
struct LastReported {
    names: BTreeSet<String>,
    at: Option<Instant>,
    asked: Option<String>,
}

/// What lasts between two passes.
#[derive(Debug)]
struct Progress {
    sweep: Sweep,
    /// How often an API had failed when the garbage was last looked at.
    troubles: u64,
    /// The last confirmation by an operator that was written down.
    heard: Option<tokio::time::Instant>,
    /// When to try to write it down again.
    again: Option<tokio::time::Instant>,
}

impl Collector {
    /// Creates the collector. It sends no request before [`Self::run`]. `watched` are the states of one watch of each
    /// API.
    pub fn new(
        settings: GarbageConfig,
        (given, identity): (LoadBalancerConfig, Identity),
        sources: Sources,
        watched: [watch::Receiver<Status>; 2],
        requests: Requests,
        pacer: Arc<Pacer>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            settings,
            given,
            identity,
            sources,
            watched,
            requests,
            pacer,
            metrics,
            suspensions: Suspensions::default(),
            barred: None,
        }
    }

    /// Sets the suspensions that the collector asks before it deletes anything.
    pub fn suspended_by(mut self, suspensions: Suspensions) -> Self {
        self.suspensions = suspensions;
        self
    }

    /// What the next pass would find, and delete after the grace period. Sends nothing.
    pub fn foresee(&self) -> Outlook {
        let mut outlook = Outlook::default();
        if self.settings.mode == GarbageMode::Off {
            return outlook;
        }
        let garbage = self.look();
        let may_collect = self.may_collect();
        let collects = self.settings.mode == GarbageMode::Delete && may_collect.is_ok();
        let deletes = |garbage: &Garbage| collects && garbage.kind == Kind::Ours;
        let why_not = may_collect.err().map(|why| format!(": {why}")).unwrap_or_default();
        for garbage in &garbage {
            let (namespace, name) = (self.given.namespace.clone(), garbage.lb.name.clone());
            let target = Target { kind: "LoadBalancer", namespace, name };
            if deletes(garbage) {
                let why = format!("no Service has it; not before {} s have passed", self.settings.grace.as_secs());
                let (place, verb) = (Place::Cloud, Verb::Delete);
                outlook.writes.push(Write { place, verb, target, why, body: serde_json::Value::Null });
            } else {
                let message =
                    format!("no Service has it ({}); it is told, and left alone{why_not}", garbage.kind.label());
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
        let mut holds = self.identity.holds();
        let every = self.settings.pace.every;
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
        let sweep = Sweep::new(self.settings, Instant::now());
        let mut progress = Progress { sweep, troubles: self.troubles(), heard: None, again: None };
        let mut told = LastReported { asked: self.asked(), ..LastReported::default() };
        let deletes = self.settings.mode == GarbageMode::Delete;
        // At once: the present revision grows, and then tells no more of a restore.
        let mut looked_back = {
            let garbage = self.look();
            self.remember(&garbage, &mut progress).await;
            !deletes || look_back(&garbage, &self.identity, &self.requests).await
        };
        loop {
            let mut writes_only = false;
            tokio::select! {
                _ = ticks.tick() => {}
                Some(_) = touched.next() =>
                    if self.asked() == told.asked && self.identity.last_confirmed() == progress.heard { continue },
                // The confirmation that ends a safe mode is seen in the record while the safe mode still lasts.
                Ok(()) = holds.changed() => if self.identity.last_confirmed() == progress.heard { continue },
                // Only to write down what was confirmed: what is collected keeps its pace.
                () = until(progress.again) => writes_only = true,
                () = changed(&mut self.watched) => {
                    self.notice(&mut progress);
                    continue;
                }
            }
            self.notice(&mut progress);
            if self.identity.hold().is_some() {
                // It is not known what is garbage, so the grace period begins anew.
                progress.sweep.trouble(Instant::now());
                progress.again = None;
                continue;
            }
            if self.may_collect().is_err() {
                progress.sweep.trouble(Instant::now());
            }
            let garbage = self.look();
            self.tell(&garbage, &mut told, &events);
            self.remember(&garbage, &mut progress).await;
            // What is collected keeps its pace.
            if writes_only {
                continue;
            }
            looked_back = looked_back || look_back(&garbage, &self.identity, &self.requests).await;
            if deletes && looked_back {
                self.collect(&garbage, &mut progress, &events).await;
            }
        }
    }

    /// Deletes what is due, until an API fails.
    async fn collect(&mut self, garbage: &[Garbage], progress: &mut Progress, events: &Recorder) {
        let due: Vec<Garbage> = progress.sweep.due(Instant::now(), garbage).into_iter().cloned().collect();
        if !self.is_within_reason(due.len(), events) {
            return;
        }
        for garbage in due.into_iter().take(AT_ONCE) {
            let deleted = self.delete(&garbage, progress.troubles, events).await;
            if self.notice(progress) {
                return;
            }
            if let Err(error) = deleted {
                tracing::warn!(
                    lb = garbage.lb.name,
                    error = chain(&error),
                    "the controller failed to delete a load balancer that no Service has; it tries again after the \
                    grace period"
                );
                progress.sweep.trouble(Instant::now());
                return;
            }
        }
    }

    /// Returns `Err` with the reason while no load balancer may be deleted only because it belongs to no Service.
    fn may_collect(&self) -> Result<(), Arc<str>> {
        self.suspensions.may_collect_garbage()?;
        if let Some((stamp, _)) = self.identity.restore_suspected(tokio::time::Instant::now()) {
            return Err(format!("Services vanished at {stamp} as after a restore of etcd").into());
        }
        Ok(())
    }

    /// Whether so many deletions are plausible. More than a third of all load balancers of this cluster are not deleted
    /// without an operator's confirmation: a view with so much garbage may be wrong, even though what is due was seen
    /// and read more than once.
    fn is_within_reason(&mut self, due: usize, events: &Recorder) -> bool {
        let config = self.identity.applied_to(&self.given, &self.sources.services);
        let all = count_ours(&self.sources.lbs.all(), &config);
        if allowed(0, due, all) != Allowed::No {
            self.barred = None;
            return true;
        }
        let since = *self.barred.get_or_insert_with(|| {
            let text = format!(
                "{due} of {all} load balancers of this cluster have no Service, more than a third: none of them is \
                 deleted, because a wrong view of the Services would look the same. If it is right, run `{CONFIRM}`"
            );
            tracing::warn!("{text}");
            let uid = self.sources.record.get(&NAME.to_owned()).and_then(|record| record.uid.clone());
            events.warning(&record::reference(uid), "GarbageNotDeleted", &text);
            tokio::time::Instant::now()
        });
        self.identity.last_confirmed().is_some_and(|confirmed| confirmed >= since)
    }

    /// Writes down which load balancers an operator has confirmed to be lost since the last time. What fails is tried
    /// again soon.
    async fn remember(&self, garbage: &[Garbage], progress: &mut Progress) {
        let (confirmed, record) = (self.identity.last_confirmed(), self.sources.record.get(&NAME.to_owned()));
        let known = record.map(|record| record.confirmed_lost.clone()).unwrap_or_default();
        let settled = progress.sweep.is_settled(Instant::now());
        let seen = GarbageView { just_confirmed: confirmed != progress.heard, settled };
        let done = keep_confirmed(garbage, seen, &known, &self.requests).await;
        if done {
            progress.heard = confirmed;
        }
        progress.again = (!done).then(|| tokio::time::Instant::now() + TRY_AGAIN);
    }

    /// How often an API has failed since the start of this process.
    fn troubles(&self) -> u64 {
        self.watched.iter().map(|watched| watched.borrow().troubles).sum()
    }

    /// Whether an API has failed since the last call, even if it works again. Then the grace period begins anew, and
    /// what is seen from now on is not what was confirmed before.
    fn notice(&self, progress: &mut Progress) -> bool {
        let troubles = self.troubles();
        let new = std::mem::replace(&mut progress.troubles, troubles) != troubles;
        if new {
            progress.sweep.trouble(Instant::now());
            progress.heard = self.identity.last_confirmed();
        }
        new
    }

    /// The value of the annotation by which the user requests a pass at once.
    fn asked(&self) -> Option<String> {
        self.sources.record.get(&NAME.to_owned())?.list_garbage.clone()
    }

    fn look(&self) -> Vec<Garbage> {
        let config = self.identity.applied_to(&self.given, &self.sources.services);
        let garbage = list(&self.sources.lbs.all(), |key| self.sources.services.get(key), &config);
        for kind in [Kind::Ours, Kind::Suspected] {
            self.metrics.garbage(kind, garbage.iter().filter(|garbage| garbage.kind == kind).count());
        }
        garbage
    }

    /// Reports the garbage: when the list changes, again before the Events expire, and always on request.
    fn tell(&self, garbage: &[Garbage], told: &mut LastReported, events: &Recorder) {
        let asked = self.asked();
        let on_demand = std::mem::replace(&mut told.asked, asked.clone()) != asked;
        let names: BTreeSet<String> = garbage.iter().map(|garbage| garbage.lb.name.clone()).collect();
        let news = names != told.names || told.at.is_none_or(|at| at.elapsed() >= TELL_AGAIN);
        if !on_demand && (names.is_empty() || !news) {
            told.names = names;
            return;
        }
        let text = summary(garbage, self.settings, &self.given.namespace);
        let object = record::reference(self.sources.record.get(&NAME.to_owned()).and_then(|record| record.uid.clone()));
        if garbage.is_empty() {
            events.normal(&object, "NoGarbage", &text);
        } else {
            tracing::warn!("{text}");
            events.warning(&object, "GarbageLoadBalancers", &text);
        }
        *told = LastReported { names, at: Some(Instant::now()), asked: told.asked.take() };
    }

    /// Deletes an object when the pacer grants the turn (decision 6), unless an API has failed since `seen` was read. A
    /// request that is not sent after all gives its turn back.
    async fn delete(&self, garbage: &Garbage, seen: u64, events: &Recorder) -> Result<(), RequestError> {
        let name = &garbage.lb.name;
        if pacing::releases(&garbage.lb) {
            // The turn is not taken in the name of the Service: a Service of the same name gives back the turns that it
            // does not want itself.
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

    /// Reads the object and its Service from both API servers, past every cache, and then deletes the object. Returns
    /// whether it was deleted.
    async fn delete_now(&self, garbage: &Garbage, events: &Recorder) -> Result<bool, RequestError> {
        if let Err(why) = self.may_collect() {
            tracing::info!(
                lb = garbage.lb.name,
                %why,
                "the controller does not delete this load balancer yet, although no Service has it"
            );
            return Ok(false);
        }
        let config = self.identity.applied_to(&self.given, &self.sources.services);
        let service = match &garbage.service {
            Some(key) => self.requests.read_service(key).await?.map(Arc::new),
            None => None,
        };
        let Some(now) = self.requests.read(&garbage.lb.name).await? else { return Ok(false) };
        let (services, open) = (self.sources.services.all(), config.share_across_namespaces);
        let sharer = garbage.service.as_ref().and_then(|owner| sharer_of_gone(owner, &now, &services, open));
        if let Some(sharer) = sharer {
            tracing::info!(
                lb = garbage.lb.name,
                service = %sharer,
                "the controller does not delete this load balancer, because another Service still has its address"
            );
            return Ok(false);
        }
        let still = list(&[Arc::new(now)], |_| service.clone(), &config);
        let is_same = |now: &&Garbage| {
            now.kind == Kind::Ours && now.lb.uid == garbage.lb.uid && is_booked(&now.lb, self.settings.grace)
        };
        let Some(found) = still.iter().find(is_same) else { return Ok(false) };
        let name = &garbage.lb.name;
        self.pacer.sent(name);
        let deleted = !matches!(self.requests.delete(name, &garbage.lb.uid).await?, Deleted::Gone);
        if deleted {
            let text = text_of_deletion(&self.given.namespace, &found.lb);
            self.metrics.possible_leaks.inc_by(found.lb.keeps_booking().into());
            tracing::info!("{text}");
            let uid = self.sources.record.get(&NAME.to_owned()).and_then(|record| record.uid.clone());
            events.normal(&record::reference(uid), "GarbageDeleted", &text);
        }
        Ok(deleted)
    }
}

/// Waits until one of the watches changes its state; forever if the senders are gone.
async fn changed([first, second]: &mut [watch::Receiver<Status>; 2]) {
    let told = tokio::select! {
        told = first.changed() => told,
        told = second.changed() => told,
    };
    if told.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
#[path = "collector_tests.rs"]
mod tests;
