//! Who this guest cluster is on Harvester (decisions 11 and 40).
//!
//! Names of objects, pools and host names all hang on the cluster's name, and the flag that gives it is easily lost in
//! an upgrade. Therefore the name first used is remembered in the guest cluster ([`record`]), another one is not taken
//! over silently ([`decide`]), and LoadBalancer objects are known by proof, whatever their name is ([`proof`]). Whether
//! the record is that of this cluster, and the cloud-config that of its Harvester, is compared with the virtual
//! machines ([`judge`], [`evidence`]): where they contradict each other the controller is in safe mode and changes
//! nothing.

pub mod card;
pub mod decide;
pub mod evidence;
pub mod judge;
pub mod keeper;
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

use card::Card;
use proof::service_uid;
use suspicion::Suspicion;

use crate::config::LoadBalancerConfig;

/// What the last judgement of the facts has put in doubt.
#[derive(Debug, Clone, Default)]
pub enum Doubt {
    /// Nothing was judged yet.
    #[default]
    NotJudged,
    /// Nothing is.
    No,
    /// This.
    Of(Arc<Hold>),
}

/// The name in use, once it is known, and whether anything may be written. Clones are the same identity.
#[derive(Debug, Clone)]
pub struct Identity {
    flag: ClusterName,
    name: Arc<watch::Sender<Option<ClusterName>>>,
    card: Arc<watch::Sender<Option<Arc<Card>>>>,
    hold: Arc<watch::Sender<Option<Arc<Hold>>>>,
    /// What the facts say, whether the controller is paused or not.
    doubt: Arc<Mutex<Doubt>>,
    word: Arc<watch::Sender<Option<Instant>>>,
    suspicion: Arc<Mutex<Option<Suspicion>>>,
}

impl Identity {
    /// Not known yet; `flag` is what the command line says.
    pub fn unknown(flag: ClusterName) -> Self {
        let (name, card, hold) = (Arc::default(), Arc::default(), Arc::default());
        Self { flag, name, card, hold, doubt: Arc::default(), word: Arc::default(), suspicion: Arc::default() }
    }

    /// Known.
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

    /// The name in use, or that of the command line until it is known: for what may be corrected later.
    pub fn name_or_flag(&self) -> ClusterName {
        self.name().unwrap_or_else(|| self.flag.clone())
    }

    /// What the command line says.
    pub fn flag(&self) -> &ClusterName {
        &self.flag
    }

    /// From now on this is the name.
    pub fn set(&self, name: ClusterName) {
        self.name.send_if_modified(|current| {
            let news = current.as_ref() != Some(&name);
            *current = Some(name);
            news
        });
    }

    /// Tells when it becomes known and when it changes.
    pub fn subscribe(&self) -> watch::Receiver<Option<ClusterName>> {
        self.name.subscribe()
    }

    /// The card in use.
    pub fn card(&self) -> Option<Arc<Card>> {
        self.card.borrow().clone()
    }

    /// From now on this is the card.
    pub fn set_card(&self, card: Card) {
        self.card.send_if_modified(|current| {
            let news = current.as_deref() != Some(&card);
            if news {
                *current = Some(Arc::new(card));
            }
            news
        });
    }

    /// Why nothing may be written, if that is so.
    pub fn hold(&self) -> Option<Arc<Hold>> {
        self.hold.borrow().clone()
    }

    /// From now on nothing may be written, or everything again.
    pub fn set_hold(&self, hold: Option<Hold>) {
        self.hold.send_if_modified(|current| {
            let news = current.as_deref() != hold.as_ref();
            if news {
                *current = hold.map(Arc::new);
            }
            news
        });
    }

    /// The facts were judged: they contradict each other or do not suffice, which is why nothing may be written, or
    /// they agree.
    /// A pause that somebody has asked for lasts.
    pub fn judged(&self, doubt: Option<Hold>, paused: bool) {
        *self.doubt.lock() = doubt.clone().map_or(Doubt::No, |hold| Doubt::Of(Arc::new(hold)));
        if !paused {
            self.set_hold(doubt);
        }
    }

    /// What is in doubt by the last judgement.
    pub fn doubt(&self) -> Doubt {
        self.doubt.lock().clone()
    }

    /// Tells when writing is forbidden and when it is allowed again.
    pub fn holds(&self) -> watch::Receiver<Option<Arc<Hold>>> {
        self.hold.subscribe()
    }

    /// A human has said just now that the cluster, its Harvester and what stands there are as they are to be.
    pub fn confirm(&self) {
        self.word.send_replace(Some(Instant::now()));
    }

    /// When a human last said so.
    pub fn spoken(&self) -> Option<Instant> {
        *self.word.borrow()
    }

    /// Tells when a human says so.
    pub fn words(&self) -> watch::Receiver<Option<Instant>> {
        self.word.subscribe()
    }

    /// A Service is gone that bore our finalizer; gives what the record is to say of it.
    pub fn service_vanished(&self, wall: Timestamp, now: Instant) -> Timestamp {
        let mut known = self.suspicion.lock();
        let suspicion = Suspicion::vanished(*known, wall, now);
        *known = Some(suspicion);
        suspicion.stamp
    }

    /// The record says so.
    pub fn restore_is_recorded(&self, stamp: Timestamp, wall: Timestamp, now: Instant) {
        let mut known = self.suspicion.lock();
        *known = Some(Suspicion::recorded(*known, stamp, wall, now));
    }

    /// Since when, by the record, and until when what no Service has may be what a restore of etcd has forgotten;
    /// `None`: that is over, or a human has said since that all is as it is to be.
    pub fn restore_suspected(&self, now: Instant) -> Option<(Timestamp, Instant)> {
        let known = (*self.suspicion.lock())?;
        let end = known.end(self.spoken()).filter(|end| now < *end)?;
        Some((known.stamp, end))
    }

    /// UIDs of this cluster on objects: the one for new objects, and all that are ours.
    pub(crate) fn uids(&self, services: &ServiceCache) -> (Option<String>, Vec<String>) {
        let service = service_uid(services);
        let card = self.card();
        let cluster = card.as_ref().map(|card| card.cluster_uid.clone()).filter(|uid| !uid.is_empty());
        let former = card.iter().flat_map(|card| card.former_uids.iter().cloned());
        let all = cluster.iter().cloned().chain(service.iter().cloned()).chain(former).collect();
        (cluster.or(service), all)
    }

    /// The configuration under the name that this cluster has by now, and its UID.
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

    #[tokio::test(start_paused = true)]
    async fn a_restore_is_suspected_for_a_day_or_until_a_human_speaks() {
        let identity = Identity::known("demo");
        let suspected = |after| identity.restore_suspected(Instant::now() + after).is_some();
        assert!(!suspected(Duration::ZERO));
        identity.confirm();
        tokio::time::advance(Duration::from_secs(1)).await;
        identity.service_vanished(Timestamp::now(), Instant::now());
        assert!(suspected(Duration::from_hours(23)), "the word is older");
        assert!(!suspected(RESTORE_SUSPECTED));
        tokio::time::advance(Duration::from_secs(1)).await;
        identity.confirm();
        assert!(!suspected(Duration::ZERO));
    }
}
