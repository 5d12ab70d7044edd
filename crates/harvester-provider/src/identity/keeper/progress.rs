//! What lasts between two evaluations, and when the record may be written.

use std::time::Duration;

use cloud_provider::damping::Damper;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::super::card::Card;
use super::super::judge::{Contradiction, OperatorConfirmation};
use super::super::kubelets::Kubelets;
use super::super::record::{IDENTITY, NAME, NAMESPACE, Record, RecordNote};
use super::TRY_AGAIN;

/// State that lasts between two evaluations.
#[derive(Debug)]
pub(super) struct Progress {
    /// UID of Namespace `kube-system`.
    pub(super) cluster_uid: Option<String>,
    /// The last card that the record had.
    card: Option<Card>,
    /// The record has lost it, which was logged.
    card_is_lost: bool,
    /// An invalid name in the record that was reported.
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
    pub(super) kubelets: Kubelets,
    /// When Nodes and machines first were known.
    pub(super) since: Option<Instant>,
    /// The contradiction that was reported.
    pub(super) told: Option<Contradiction>,
    /// The suspected restore that was reported.
    pub(super) told_restore: Option<Timestamp>,
}

impl Progress {
    /// `failing`: it was already reported that the record may not be used.
    pub(super) fn new(cluster_uid: Option<String>, failing: bool) -> Self {
        Self {
            cluster_uid,
            card: None,
            card_is_lost: false,
            refused: None,
            failing,
            not_before: Instant::now(),
            pause: TRY_AGAIN,
            damper: Damper::default(),
            confirmation_at: None,
            told_confirmation: None,
            kubelets: Kubelets::default(),
            since: None,
            told: None,
            told_restore: None,
        }
    }

    /// The record with the last card that it had, and that card if the record has lost it. This process goes on with
    /// that card. A first card would be made of what is there now: a copy would get the names of its original and the
    /// original those of its copy, and one that is in safe mode would leave it.
    pub(super) fn with_card(&mut self, found: &Record) -> (Record, Option<Card>) {
        if found.card.is_some() {
            self.card.clone_from(&found.card);
        }
        let lost = self.card.clone().filter(|_| found.card.is_none());
        let told = std::mem::replace(&mut self.card_is_lost, lost.is_some());
        if lost.is_some() && !told {
            tracing::warn!(
                "key {IDENTITY} of ConfigMap {NAMESPACE}/{NAME} is gone or cannot be read; the controller writes it \
                again as it was"
            );
        }
        (Record { card: self.card.clone(), ..found.clone() }, lost)
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
