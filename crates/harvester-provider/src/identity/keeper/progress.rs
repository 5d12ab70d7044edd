//! What lasts between two evaluations, and when the record may be written.

use std::time::Duration;

use cloud_provider::damping::Damper;
use harvester_api::names::ClusterName;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::super::identity_card::IdentityCard;
use super::super::judge::{Contradiction, OperatorConfirmation};
use super::super::kubelets::Kubelets;
use super::super::record::{CLUSTER_NAME, IDENTITY, NAME, NAMESPACE, Record, RecordNote};
use super::TRY_AGAIN;

/// State that lasts between two evaluations.
#[derive(Debug)]
pub(super) struct Progress {
    /// UID of Namespace `kube-system`.
    pub(super) cluster_uid: Option<String>,
    /// The last name that the record had for this cluster.
    name: Option<ClusterName>,
    /// The last card that the record had.
    card: Option<IdentityCard>,
    /// The keys that the record has lost, which was logged.
    told_lost: Vec<&'static str>,
    /// A name in the record that is not followed, which was reported.
    pub(super) refused: Option<String>,
    pub(super) failing: bool,
    /// No write is sent before this time.
    pub(super) not_before: Instant,
    pub(super) pause: Duration,
    /// Writes that another writer undoes.
    pub(super) damper: Damper<RecordNote>,
    /// When an operator's confirmation that has to wait may be followed.
    pub(super) confirmation_at: Option<Instant>,
    /// The confirmation which is still in the record, once it was told and counts.
    pub(super) told_confirmation: Option<OperatorConfirmation>,
    /// The confirmation which is still in the record, once its refusal was told. It may be followed later.
    pub(super) told_refusal: Option<OperatorConfirmation>,
    pub(super) kubelets: Kubelets,
    /// When Nodes and machines first were known.
    pub(super) since: Option<Instant>,
    /// The contradiction that was reported.
    pub(super) told: Option<Contradiction>,
    /// The suspected restore that was reported.
    pub(super) told_restore: Option<Timestamp>,
}

/// What the record had, and has lost since.
#[derive(Debug, Default)]
pub(super) struct Lost {
    pub(super) name: Option<ClusterName>,
    pub(super) card: Option<IdentityCard>,
}

impl Lost {
    pub(super) fn is_nothing(&self) -> bool {
        self.name.is_none() && self.card.is_none()
    }
}

impl Progress {
    /// `failing`: it was already reported that the record may not be used.
    pub(super) fn new(cluster_uid: Option<String>, failing: bool) -> Self {
        Self {
            cluster_uid,
            name: None,
            card: None,
            told_lost: Vec::new(),
            refused: None,
            failing,
            not_before: Instant::now(),
            pause: TRY_AGAIN,
            damper: Damper::default(),
            confirmation_at: None,
            told_confirmation: None,
            told_refusal: None,
            kubelets: Kubelets::default(),
            since: None,
            told: None,
            told_restore: None,
        }
    }

    /// The record with the last name and the last card that it had, and what it has lost of them. This process goes on
    /// with both. A first card would be made of what is there now: a copy would get the names of its original and the
    /// original those of its copy, and one that is in safe mode would leave it. Without its name a cluster in safe mode
    /// would be called as the flag says, and a contradiction about the name would be none any more.
    pub(super) fn with_memory(&mut self, found: &Record) -> (Record, Lost) {
        if found.card.is_some() {
            self.card.clone_from(&found.card);
        }
        if found.cluster_name.is_some() && !self.is_foreign() {
            // A default name identifies no cluster, so there is nothing to write back.
            self.name = found.cluster_name.clone().filter(|name| !name.is_default());
        }
        let lost = Lost {
            name: self.name.clone().filter(|_| found.cluster_name.is_none()),
            card: self.card.clone().filter(|_| found.card.is_none()),
        };
        self.tell_lost(found, &lost);
        let cluster_name = found.cluster_name.clone().or_else(|| lost.name.clone());
        (Record { cluster_name, card: self.card.clone(), ..found.clone() }, lost)
    }

    /// The record with the last card that it had, if it has lost it.
    pub(super) fn with_card(&self, found: &Record) -> Record {
        Record { card: found.card.clone().or_else(|| self.card.clone()), ..found.clone() }
    }

    /// Whether the card is that of another cluster: the name beside it is none of this one.
    fn is_foreign(&self) -> bool {
        let uid = self.card.as_ref().map(|card| &card.cluster_uid).filter(|uid| !uid.is_empty());
        uid.zip(self.cluster_uid.as_ref()).is_some_and(|(theirs, ours)| theirs != ours)
    }

    /// The record from which the name follows. That of another cluster says nothing about this one: an operator who
    /// confirms it has it written anew.
    pub(super) fn for_name(&self, found: &Record) -> Record {
        if self.is_foreign() && found.confirmation == Some(OperatorConfirmation::Confirm) {
            return Record { cluster_name: self.name.clone(), card: None, ..found.clone() };
        }
        found.clone()
    }

    fn tell_lost(&mut self, found: &Record, lost: &Lost) {
        // A name that is not followed is reported as such.
        let name = lost.name.as_ref().filter(|_| found.bad_name.is_none()).map(|_| CLUSTER_NAME);
        let keys: Vec<&str> = name.into_iter().chain(lost.card.as_ref().map(|_| IDENTITY)).collect();
        if !keys.is_empty() && keys != self.told_lost {
            tracing::warn!(
                keys = keys.join(", "),
                "keys of ConfigMap {NAMESPACE}/{NAME} are gone or cannot be read; the controller writes them again as \
                they were"
            );
        }
        self.told_lost = keys;
    }

    /// When this may be written. What follows an operator's confirmation waits only if the last write failed, or
    /// another writer undoes it.
    pub(super) fn not_before(&self, note: &RecordNote) -> Instant {
        let now = Instant::now();
        let at_once = note.followed && !self.failing;
        let rested = now + self.damper.rest(note, now).unwrap_or_default();
        if at_once { rested } else { rested.max(self.not_before) }
    }

    /// Whether this may be written now.
    pub(super) fn may_write(&self, note: &RecordNote) -> bool {
        self.not_before(note) <= Instant::now()
    }

    /// The record has changed: whatever prevented a write may be over.
    pub(super) fn try_again(&mut self) {
        if self.failing {
            (self.not_before, self.pause) = (Instant::now(), TRY_AGAIN);
        }
    }
}
