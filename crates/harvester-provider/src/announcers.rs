//! Checks from the outside whether any announcer announces the addresses of Services. The evidence is the Leases that
//! announcers renew in `kube-system`: those of this project's announcer and those of kube-vip. When no Lease is renewed
//! any more, the controller writes one Event on the cluster's record, sets a metric, and the condition of the Services
//! becomes `Unknown`. It does no more than that: announcers that cannot reach the API do not renew their Leases either,
//! and they may still serve. (A Service that waits for its first announcer says so in its own status, see
//! `load_balancers/provider/unserved.rs`.)
//!
//! Missing renewals are reported only where a renewal was seen before. Therefore nothing is reported for a cluster
//! whose announcer keeps no Lease there, for a stale Lease that was left behind, or when the right to list Leases is
//! missing. A renewal is a change of `renewTime` between two checks. The first check of a process has nothing to
//! compare with, and the process may have been replaced together with the announcers. Only there, a Lease counts as
//! renewed if its `renewTime` is less than one hour old.

mod renewals;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cloud_provider::cache::ServiceCache;
use cloud_provider::provider::AnnouncerPresence;
use cloud_provider::service::wants_load_balancer;
use cloud_provider::view::ServiceKey;
use contract::leases::{GLOBAL as LOCK, MEMBER_PREFIX, NAMESPACE};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use renewals::{PATIENCE, RenewalState, Renewals};
use runtime::error::chain;
use runtime::events::Recorder;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use crate::identity::keeper::RecordCache;
use crate::identity::record::{self, NAME};
use crate::metrics::Metrics;

/// Interval of the checks. Announcers that stop cause no watch event, so the controller has to poll. The cost is one
/// list from the API server's watch cache.
const EVERY: Duration = Duration::from_mins(1);

/// A Lease whose `renewTime` is younger than this at the first check of the process counts as renewed. The time is
/// longer than any expected clock error, and longer than the replacement of one kind of announcer by another.
const LATELY: Duration = Duration::from_hours(1);

/// An ongoing problem gets a new Event after this time, before the previous Event expires.
const TELL_AGAIN: Duration = Duration::from_mins(50);

/// What was last reported.
#[derive(Debug, Default)]
struct LastReported {
    missing: Option<Instant>,
    /// The addresses that Services had when the Leases stopped being renewed.
    served: BTreeSet<(ServiceKey, IpAddr)>,
}

/// The periodic check of the announcers' Leases.
pub struct Announcers {
    leases: Api<Lease>,
    services: ServiceCache,
    record: RecordCache,
    metrics: Arc<Metrics>,
    announced: watch::Sender<AnnouncerPresence>,
}

impl Announcers {
    /// Creates the check. It sends no request before [`Self::run`].
    pub fn new(
        guest: &Client,
        services: ServiceCache,
        record: RecordCache,
        metrics: Arc<Metrics>,
        announced: watch::Sender<AnnouncerPresence>,
    ) -> Self {
        Self { leases: Api::namespaced(guest.clone(), NAMESPACE), services, record, metrics, announced }
    }

    /// Never ends.
    pub async fn run(self, events: Recorder) -> Infallible {
        let mut ticks = tokio::time::interval_at(Instant::now() + EVERY, EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut renewals, mut told) = (Renewals::default(), LastReported::default());
        let mut is_first = true;
        loop {
            ticks.tick().await;
            match self.list().await {
                Ok(leases) => {
                    if std::mem::take(&mut is_first) {
                        renewals.presume(Instant::now(), renewed_lately(&leases, Timestamp::now()));
                    }
                    let finding = renewals.compare(Instant::now(), leases);
                    if self.follow(Instant::now(), finding, &mut told, &events) {
                        renewals = Renewals::default();
                    }
                }
                // A missing right ends here too. When the right comes back, observations from before say nothing about
                // the present.
                Err(error) => {
                    tracing::debug!(error = chain(&error), "the controller cannot list the Leases of announcers");
                    renewals.failed_check(Instant::now());
                }
            }
        }
    }

    async fn list(&self) -> Result<BTreeMap<String, String>, kube::Error> {
        // From the watch cache of the API server (`resourceVersion: 0`): slightly stale data is good enough here.
        let list = self.leases.list(&ListParams::default().match_any()).await?;
        let announcers = list.items.into_iter().filter_map(|lease| {
            let name = lease.name_any();
            let renewed = lease.spec.and_then(|spec| spec.renew_time).map(|time| time.0.to_string());
            (name == LOCK || name.starts_with(MEMBER_PREFIX)).then(|| (name, renewed.unwrap_or_default()))
        });
        Ok(announcers.collect())
    }

    /// Writes the log lines and Events that the finding calls for. Returns true if the known renewals have become
    /// worthless, because something else serves the addresses now.
    fn follow(&self, now: Instant, finding: RenewalState, told: &mut LastReported, events: &Recorder) -> bool {
        let served = if finding == RenewalState::Missing { self.served() } else { BTreeSet::new() };
        let fresh = told.missing.is_some() && !served.is_subset(&told.served);
        if finding != RenewalState::Missing || served.is_empty() || fresh {
            let back = finding == RenewalState::Alive || fresh;
            // When the last Service is gone, the problem is over, but no announcer has come back.
            if std::mem::take(told).missing.is_some() && back {
                let text = "addresses of Services are announced again";
                tracing::info!("{text}");
                events.normal(&self.reference(), "AnnouncerBack", text);
            }
            self.metrics.announcer_missing.set(0);
            if finding == RenewalState::Alive || fresh {
                self.is(AnnouncerPresence::Running);
            }
            return fresh;
        }
        self.metrics.announcer_missing.set(1);
        self.is(AnnouncerPresence::Away);
        if told.missing.is_none() {
            told.served = served;
        }
        if told.missing.is_none_or(|at| now.saturating_duration_since(at) >= TELL_AGAIN) {
            told.missing = Some(now);
            let text = format!(
                "for {} minutes no announcer has renewed its Lease in namespace {NAMESPACE} ({MEMBER_PREFIX}* or \
                {LOCK}): if a node fails, no other node takes over its addresses, and some addresses may not be served \
                any more. Check that the announcer (DaemonSet kube-vip) runs on the nodes and reaches the API server",
                PATIENCE.as_secs() / 60
            );
            tracing::warn!("{text}");
            events.warning(&self.reference(), "NoAnnouncer", &text);
        }
        false
    }

    fn is(&self, announced: AnnouncerPresence) {
        self.announced.send_if_modified(|known| std::mem::replace(known, announced) != announced);
    }

    fn reference(&self) -> k8s_openapi::api::core::v1::ObjectReference {
        record::reference(self.record.get(&NAME.to_owned()).and_then(|record| record.uid.clone()))
    }

    /// The addresses that are in the status of this cluster's Services.
    fn served(&self) -> BTreeSet<(ServiceKey, IpAddr)> {
        let ours = self.services.all().into_iter().filter(|service| wants_load_balancer(service));
        ours.flat_map(|service| service.ingress.iter().map(|ip| (service.key.clone(), *ip)).collect::<Vec<_>>())
            .collect()
    }
}

/// The Leases whose own `renewTime` is within [`LATELY`].
fn renewed_lately(leases: &BTreeMap<String, String>, wall: Timestamp) -> BTreeMap<String, String> {
    let lately =
        |renewal: &str| renewal.parse::<Timestamp>().is_ok_and(|at| wall.duration_since(at).unsigned_abs() < LATELY);
    leases.iter().filter(|(_, renewal)| lately(renewal)).map(|(name, at)| (name.clone(), at.clone())).collect()
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;
    use runtime::events::Entry;
    use runtime::scenario::Scenario;
    use serde_json::json;
    use tokio::sync::mpsc;

    use super::*;
    use crate::identity::keeper::record_cache;
    use crate::load_balancers::build::service;

    const MINUTE: Duration = Duration::from_mins(1);

    struct Lab {
        announcers: Announcers,
        recorder: Recorder,
        events: mpsc::Receiver<Entry>,
        told: LastReported,
    }

    impl Lab {
        fn new(server: &Scenario, ingress: Option<&str>) -> Self {
            let web = service("default/web");
            let web = if let Some(ip) = ingress { web.ingress(ip) } else { web };
            let services = cloud_provider::cache::services_with([web.done()]);
            let metrics = Arc::new(Metrics::register(&mut Registry::default()));
            let (recorder, events) = Recorder::to_channel("test");
            let announced = watch::Sender::new(AnnouncerPresence::NotKnownYet);
            let announcers = Announcers::new(&server.client(), services, record_cache(), metrics, announced);
            Self { announcers, recorder, events, told: LastReported::default() }
        }

        /// What is told, what the metric shows, and whether the Leases are worth nothing any more.
        fn follow(&mut self, now: Instant, finding: RenewalState) -> (Vec<String>, i64, bool) {
            let over = self.announcers.follow(now, finding, &mut self.told, &self.recorder);
            let told = std::iter::from_fn(|| self.events.try_recv().ok()).map(|event| event.reason).collect();
            (told, self.announcers.metrics.announcer_missing.get(), over)
        }
    }

    fn nobody() -> Scenario {
        Scenario::answering(|request| panic!("unexpected {request:?}"))
    }

    fn reasons(reasons: &[&str]) -> Vec<String> {
        reasons.iter().map(ToString::to_string).collect()
    }

    #[tokio::test]
    async fn the_loss_of_all_announcers_is_one_event_for_all_services_and_healed_by_one() {
        let mut lab = Lab::new(&nobody(), Some("10.0.0.1"));
        let start = Instant::now();
        assert_eq!(lab.follow(start, RenewalState::Alive), (vec![], 0, false));
        assert_eq!(lab.follow(start, RenewalState::Missing), (reasons(&["NoAnnouncer"]), 1, false));
        assert_eq!(lab.follow(start + MINUTE, RenewalState::Missing), (vec![], 1, false));
        assert_eq!(lab.follow(start + TELL_AGAIN, RenewalState::Missing).0, reasons(&["NoAnnouncer"]), "it expires");
        assert_eq!(lab.follow(start + TELL_AGAIN, RenewalState::Alive), (reasons(&["AnnouncerBack"]), 0, false));
        assert_eq!(lab.follow(start + TELL_AGAIN, RenewalState::Alive), (vec![], 0, false));
    }

    #[tokio::test]
    async fn nobody_is_missed_where_no_service_has_an_address() {
        let mut lab = Lab::new(&nobody(), None);
        assert_eq!(lab.follow(Instant::now(), RenewalState::Missing), (vec![], 0, false));
    }

    #[tokio::test]
    async fn when_the_last_service_goes_the_trouble_goes_and_nobody_is_said_to_be_back() {
        let mut lab = Lab::new(&nobody(), Some("10.0.0.1"));
        let start = Instant::now();
        lab.follow(start, RenewalState::Missing);
        lab.announcers.services.remove(&service("default/web").done().key);
        assert_eq!(lab.follow(start + MINUTE, RenewalState::Missing), (vec![], 0, false));
        assert_eq!(lab.follow(start + MINUTE * 2, RenewalState::Alive), (vec![], 0, false));
    }

    #[tokio::test]
    async fn who_serves_without_a_lease_that_we_see_ends_the_silence() {
        let mut lab = Lab::new(&nobody(), Some("10.0.0.1"));
        let start = Instant::now();
        lab.follow(start, RenewalState::Missing);
        let new = service("default/new").ingress("10.0.0.2").done();
        lab.announcers.services.apply(new.key.clone(), new);
        assert_eq!(lab.follow(start + MINUTE, RenewalState::Missing), (reasons(&["AnnouncerBack"]), 0, true));
    }

    #[tokio::test]
    async fn only_the_leases_of_announcers_count() {
        let item =
            |name: &str| json!({"metadata": {"name": name}, "spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}});
        let items = ["kube-scheduler", LOCK, "harvester-announcer-node-1"].map(item);
        let server = Scenario::answering(move |_| {
            (200, json!({"kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1", "metadata": {}, "items": items}))
        });
        let lab = Lab::new(&server, None);
        let found = lab.announcers.list().await.unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["harvester-announcer-node-1", LOCK]);
        assert_eq!(server.requests()[0].path, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases");
    }

    /// An upgrade replaces this process and the announcers, and leaves no node for them: nobody is seen renewing any
    /// more.
    #[tokio::test(start_paused = true)]
    async fn announcers_that_were_lost_together_with_the_process_before_are_missed() {
        for (ago, expected) in [(Duration::from_mins(2), reasons(&["NoAnnouncer"])), (LATELY * 2, vec![])] {
            let renewed = Timestamp::now() - ago;
            let server = Scenario::answering(move |_| {
                let item = json!({"metadata": {"name": LOCK}, "spec": {"renewTime": format!("{renewed:.6}")}});
                let list = json!({"kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1", "metadata": {},
                    "items": [item]});
                (200, list)
            });
            let Lab { announcers, recorder, mut events, .. } = Lab::new(&server, Some("10.0.0.1"));
            let task = tokio::spawn(announcers.run(recorder));
            tokio::time::sleep(MINUTE * 10).await;
            let told: Vec<String> = std::iter::from_fn(|| events.try_recv().ok()).map(|event| event.reason).collect();
            assert_eq!(told, expected);
            task.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_right_that_is_away_for_a_while_neither_ends_the_watch_nor_heals_what_it_has_told() {
        let begin = Instant::now();
        let server = Scenario::answering(move |_| {
            let minutes = begin.elapsed().as_secs() / 60;
            let renewal = match minutes {
                20..40 => return (403, Scenario::status(403, "Forbidden", "cannot list leases")),
                0..5 | 45.. => format!("2026-01-01T00:{minutes:02}:00.000000Z"),
                _ => "2026-01-01T00:04:00.000000Z".to_owned(),
            };
            let item = json!({"metadata": {"name": LOCK}, "spec": {"renewTime": renewal}});
            (200, json!({"kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1", "metadata": {}, "items": [item]}))
        });
        let Lab { announcers, recorder, mut events, .. } = Lab::new(&server, Some("10.0.0.1"));
        let metrics = Arc::clone(&announcers.metrics);
        let task = tokio::spawn(announcers.run(recorder));
        let mut after = async |minutes| {
            tokio::time::sleep(MINUTE * minutes).await;
            let told: Vec<String> = std::iter::from_fn(|| events.try_recv().ok()).map(|event| event.reason).collect();
            (told, metrics.announcer_missing.get())
        };
        assert_eq!(after(15).await, (reasons(&["NoAnnouncer"]), 1));
        assert_eq!(after(15).await, (vec![], 1), "refused");
        assert_eq!(after(13).await, (vec![], 1), "answered, and still silent");
        assert_eq!(after(7).await, (reasons(&["AnnouncerBack"]), 0));
        task.abort();
    }
}
