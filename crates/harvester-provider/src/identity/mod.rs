//! The identity of this guest cluster on Harvester (decisions 11 and 40).
//!
//! Names of objects, pools and host names all depend on the cluster's name, and the flag that sets it is easily lost in
//! an upgrade. Therefore the name that was used first is recorded in the guest cluster ([`record`]), and another name
//! is not adopted silently ([`decide`]). LoadBalancer objects are recognised by proof, whatever their name is
//! ([`proof`]). The virtual machines show whether the record is that of this cluster, and the cloud-config that of its
//! Harvester ([`judge`], [`evidence`]). If these contradict each other, the controller enters safe mode and changes
//! nothing.

pub mod decide;
pub mod evidence;
pub mod identity_card;
pub mod judge;
pub mod keeper;
mod kubelets;
mod labels;
pub mod proof;
pub mod record;
pub mod suspicion;

use std::sync::Arc;

use cloud_provider::cache::ServiceCache;
use cloud_provider::provider::Hold;
use harvester_api::names::ClusterName;
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use identity_card::IdentityCard;
use keeper::NOT_KNOWN;
use proof::service_uid;
use record::{NAME, NAMESPACE};
use suspicion::Suspicion;

use crate::config::LoadBalancerConfig;

/// Why load balancers wait while the name is not known.
pub(crate) const NAME_NOT_KNOWN: &str = "the name of this cluster on Harvester is not known yet: the controller has to \
    read ConfigMap kube-system/harvester-cloud-provider, the load balancers, and the virtual machines of this cluster, \
    and cannot read all of them. Its log says why, and harvester-cloud-provider doctor names missing rights";

/// The doubt that the last judgement of the facts left.
#[derive(Debug, Clone, Default)]
pub enum IdentityDoubt {
    /// Nothing was judged yet.
    #[default]
    NotJudged,
    /// The facts agree.
    No,
    /// The facts are contradictory or insufficient, for this reason.
    Of(Arc<Hold>),
}

/// The name in use, once it is known, and whether writes are allowed. Clones share one state.
#[derive(Debug, Clone)]
pub struct Identity {
    flag: ClusterName,
    name: Arc<watch::Sender<Option<ClusterName>>>,
    card: Arc<watch::Sender<Option<Arc<IdentityCard>>>>,
    hold: Arc<watch::Sender<Option<Arc<Hold>>>>,
    /// The hold of Services until the leader has judged once.
    unjudged: Arc<watch::Sender<Option<Arc<Hold>>>>,
    /// The result of the last judgement, independent of a pause.
    doubt: Arc<Mutex<IdentityDoubt>>,
    confirmed_at: Arc<watch::Sender<Option<Instant>>>,
    suspicion: Arc<Mutex<Option<Suspicion>>>,
}

impl Identity {
    /// An identity whose name is not known yet; `flag` is the name from the command line.
    pub fn unknown(flag: ClusterName) -> Self {
        Self {
            flag,
            name: Arc::default(),
            card: Arc::default(),
            hold: Arc::default(),
            unjudged: Arc::default(),
            doubt: Arc::default(),
            confirmed_at: Arc::default(),
            suspicion: Arc::default(),
        }
    }

    /// An identity with this name.
    #[cfg(test)]
    pub(crate) fn known(name: &str) -> Self {
        let identity = Self::unknown(ClusterName::from_record(name));
        identity.set(ClusterName::from_record(name));
        identity
    }

    /// The name in use; `None` until it is known.
    pub fn name(&self) -> Option<ClusterName> {
        self.name.borrow().clone()
    }

    /// The name in use, or that of the command line until it is known. Only for uses that can be corrected later.
    pub fn name_or_flag(&self) -> ClusterName {
        self.name().unwrap_or_else(|| self.flag.clone())
    }

    /// The name from the command line.
    pub fn flag(&self) -> &ClusterName {
        &self.flag
    }

    /// Sets the name.
    pub fn set(&self, name: ClusterName) {
        self.name.send_if_modified(|current| {
            let news = current.as_ref() != Some(&name);
            *current = Some(name);
            news
        });
    }

    /// The receiver changes when the name becomes known, and when it changes.
    pub fn subscribe(&self) -> watch::Receiver<Option<ClusterName>> {
        self.name.subscribe()
    }

    /// The card in use.
    pub fn card(&self) -> Option<Arc<IdentityCard>> {
        self.card.borrow().clone()
    }

    /// Sets the card.
    pub fn set_card(&self, card: IdentityCard) {
        self.card.send_if_modified(|current| {
            let news = current.as_deref() != Some(&card);
            if news {
                *current = Some(Arc::new(card));
            }
            news
        });
    }

    /// The reason why nothing may be written; `None` if writes are allowed.
    pub fn hold(&self) -> Option<Arc<Hold>> {
        self.hold.borrow().clone()
    }

    /// Forbids all writes, or with `None` allows them again.
    pub fn set_hold(&self, hold: Option<Hold>) {
        self.hold.send_if_modified(|current| {
            let news = current.as_deref() != hold.as_ref();
            if news {
                *current = hold.map(Arc::new);
            }
            news
        });
    }

    /// The reason why nothing may be written to Services, nor for them. Until the leader has read the record and judged
    /// once, it does not know of a pause or a safe mode, and Services wait.
    pub fn hold_of_services(&self) -> Option<Arc<Hold>> {
        self.hold().or_else(|| self.unjudged.borrow().clone())
    }

    /// Begins or ends the time in which Services wait for the first judgement. Returns whether that is news.
    pub fn await_judgement(&self, yes: bool) -> bool {
        self.unjudged.send_if_modified(|unjudged| {
            let news = unjudged.is_some() != yes;
            *unjudged = yes.then(|| {
                let message = format!("ConfigMap {NAMESPACE}/{NAME} is not read and compared yet, and may forbid it");
                Arc::new(Hold { reason: NOT_KNOWN, message, initialises_nodes: true, passing: true })
            });
            news
        })
    }

    /// The receiver changes when Services begin to wait for the first judgement, and when they need not any more.
    pub fn first_judgement(&self) -> watch::Receiver<Option<Arc<Hold>>> {
        self.unjudged.subscribe()
    }

    /// Records the result of a judgement. `doubt`: the facts contradict each other or do not suffice, so nothing may be
    /// written. `None`: the facts agree. A pause by the user stays in force either way.
    pub fn judged(&self, doubt: Option<Hold>, paused: bool) {
        *self.doubt.lock() = doubt.clone().map_or(IdentityDoubt::No, |hold| IdentityDoubt::Of(Arc::new(hold)));
        if !paused {
            self.set_hold(doubt);
        }
    }

    /// The doubt that the last judgement left.
    pub fn doubt(&self) -> IdentityDoubt {
        self.doubt.lock().clone()
    }

    /// The receiver changes when writes are forbidden, and when they are allowed again.
    pub fn holds(&self) -> watch::Receiver<Option<Arc<Hold>>> {
        self.hold.subscribe()
    }

    /// Records that an operator has just confirmed the cluster, its Harvester, and the objects there.
    pub fn confirm(&self) {
        self.confirmed_at.send_replace(Some(Instant::now()));
    }

    /// Time of the last confirmation by an operator.
    pub fn last_confirmed(&self) -> Option<Instant> {
        *self.confirmed_at.borrow()
    }

    /// The receiver changes with each confirmation by an operator.
    pub fn confirmations(&self) -> watch::Receiver<Option<Instant>> {
        self.confirmed_at.subscribe()
    }

    /// Records that a Service vanished although it had the controller's finalizer. Returns the time stamp for the
    /// record.
    pub fn service_vanished(&self, wall: Timestamp, now: Instant) -> Timestamp {
        let mut known = self.suspicion.lock();
        let suspicion = Suspicion::vanished(*known, self.last_confirmed(), wall, now);
        *known = Some(suspicion);
        suspicion.stamp
    }

    /// Takes over a suspected restore from the record.
    pub fn restore_is_recorded(&self, stamp: Timestamp, wall: Timestamp, now: Instant) {
        let mut known = self.suspicion.lock();
        *known = Some(Suspicion::recorded(*known, stamp, wall, now));
    }

    /// The time stamp of the suspected restore, and when the suspicion ends. Until then, a load balancer without a
    /// Service may belong to a Service that the restore of etcd has lost. `None`: the suspicion is over, or an operator
    /// has confirmed the state since. The end may be past, while the clock that said so has to be read again.
    pub fn restore_suspected(&self, now: Instant) -> Option<(Timestamp, Instant)> {
        let known = (*self.suspicion.lock())?;
        let end = known.end(self.last_confirmed()).filter(|end| now < *end || known.is_doubted())?;
        Some((known.stamp, end))
    }

    /// UIDs of this cluster on objects: the one for new objects, and all that mark an object as this cluster's.
    pub(crate) fn uids(&self, services: &ServiceCache) -> (Option<String>, Vec<String>) {
        let service = service_uid(services);
        let card = self.card();
        let cluster = card.as_ref().map(|card| card.cluster_uid.clone()).filter(|uid| !uid.is_empty());
        let former = card.iter().flat_map(|card| card.former_uids.iter().cloned());
        let all = cluster.iter().cloned().chain(service.iter().cloned()).chain(former).collect();
        (cluster.or(service), all)
    }

    /// The configuration with the name and the UIDs that this cluster has now.
    pub(crate) fn applied_to(&self, config: &LoadBalancerConfig, services: &ServiceCache) -> LoadBalancerConfig {
        let (cluster_uid, cluster_uids) = self.uids(services);
        let cluster_names = self.card().map(|card| card.names.clone()).unwrap_or_default();
        LoadBalancerConfig {
            cluster_name: self.name_or_flag(),
            cluster_uid,
            cluster_uids,
            cluster_names,
            ..config.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::suspicion::RESTORE_SUSPECTED;
    use super::*;
    use crate::load_balancers::build;

    /// Whoever makes Service default/kubernetes anew must not lose sight of the cluster's own garbage.
    #[test]
    fn new_objects_bear_the_uid_of_kube_system_and_those_with_a_former_uid_stay_this_clusters() {
        let mut kubernetes = build::service("default/kubernetes").done();
        kubernetes.uid.0 = "service-2".into();
        let services = cloud_provider::cache::services_with([kubernetes]);
        let card = |cluster: &str| IdentityCard {
            cluster_uid: cluster.into(),
            former_uids: ["service-1".to_owned()].into(),
            ..IdentityCard::default()
        };
        for (what, card, new, all) in [
            ("no card yet", None, "service-2", &["service-2"][..]),
            ("Namespaces may not be read", Some(card("")), "service-2", &["service-2", "service-1"]),
            ("a card", Some(card("cluster")), "cluster", &["cluster", "service-2", "service-1"]),
        ] {
            let identity = Identity::known("demo");
            if let Some(card) = card {
                identity.set_card(card);
            }
            let all: Vec<String> = all.iter().map(|uid| (*uid).to_owned()).collect();
            assert_eq!(identity.uids(&services), (Some(new.to_owned()), all), "{what}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_restore_is_suspected_for_a_day_or_until_a_human_speaks() {
        let identity = Identity::known("demo");
        let suspected = |after| identity.restore_suspected(Instant::now() + after).is_some();
        assert!(!suspected(Duration::ZERO));
        identity.confirm();
        tokio::time::advance(Duration::from_secs(1)).await;
        identity.service_vanished(Timestamp::now(), Instant::now());
        assert!(suspected(Duration::from_hours(23)), "the confirmation is older");
        assert!(!suspected(RESTORE_SUSPECTED));
        tokio::time::advance(Duration::from_secs(1)).await;
        identity.confirm();
        assert!(!suspected(Duration::ZERO));
    }
}
