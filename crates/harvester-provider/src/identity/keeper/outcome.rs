//! Applies the verdict: takes the name and the card into use, reports, and returns what has to be written.

use std::sync::Arc;

use cloud_provider::provider::Hold;
use harvester_api::names::ClusterName;
use runtime::events::Recorder;

use super::super::IdentityDoubt;
use super::super::decide::NameDecision;
use super::super::identity_card::IdentityCard;
use super::super::judge::{Contradiction, IdentityFacts, OperatorConfirmation, confirmed_card, has_foreign_record};
use super::super::record::{self, NAME, NAMESPACE, Record, RecordNote};
use super::words::{mismatch, not_followed};
use super::{Keeper, NOT_KNOWN, PAUSED, Progress};

impl Keeper {
    /// Handles facts that agree.
    pub(super) fn go_on(
        &self,
        mut card: IdentityCard,
        decision: &NameDecision,
        found: &Record,
        progress: &mut Progress,
        events: &Recorder,
    ) -> RecordNote {
        // A name that was written into the record by hand is on no card yet.
        card.names.insert(decision.name.to_string());
        self.identity.set_card(card.clone());
        self.adopt(decision, found, events);
        tell_refused(found, &decision.name, progress, events);
        if progress.told.take().is_some() {
            let text = "record, cloud-config and machines of this cluster agree again: the controller works as usual"
                .to_owned();
            tracing::info!("{text}");
            events.normal(&record::reference(found.uid.clone()), "SafeModeEnded", &text);
        }
        self.metrics.safe_mode.set(0);
        self.identity.judged(None, self.is_paused(found));
        let name = decision.is_to_be_remembered().then(|| decision.name.clone());
        RecordNote { name, card: Some(card), ..RecordNote::default() }
    }

    /// Handles facts that contradict each other. The same contradiction is reported and written once, even if its
    /// numbers change.
    pub(super) fn stop(
        &self,
        found: Contradiction,
        record: &Record,
        progress: &mut Progress,
        events: &Recorder,
    ) -> RecordNote {
        let contradiction = match progress.told.take() {
            Some(told) if told.reason == found.reason => told,
            _ => {
                let text = format!("safe mode, nothing is changed: {}", found.message());
                tracing::warn!("{text}");
                events.warning(&record::reference(record.uid.clone()), "SafeMode", &text);
                found
            }
        };
        let message = contradiction.message();
        let safe_mode = Some(format!("{}: {message}", contradiction.reason));
        self.metrics.safe_mode.set(1);
        let hold = Hold { reason: contradiction.reason, message, initialises_nodes: true, passing: false };
        self.identity.judged(Some(hold), self.is_paused(record));
        progress.told = Some(contradiction);
        // If a former process wrote the same contradiction, its text is kept.
        let reason = |text: &String| text.split(':').next().map(str::to_owned);
        let known = record.safe_mode.clone().filter(|text| reason(text) == safe_mode.as_ref().and_then(reason));
        RecordNote { safe_mode: known.or(safe_mode), ..RecordNote::default() }
    }

    /// What follows from an operator's confirmation, if there is one. While the record cannot be written, it is not
    /// followed: it would stay in the record and be followed again and again.
    pub(super) fn followed(
        &self,
        facts: &IdentityFacts<'_>,
        decision: &NameDecision,
        found: &Record,
        progress: &mut Progress,
        events: &Recorder,
    ) -> Option<RecordNote> {
        let confirmation = found.confirmation.as_ref()?;
        let (note, text) = Self::follow(confirmation, facts, decision);
        if !progress.may_write(&note) {
            progress.confirmation_at = Some(progress.not_before(&note));
            return None;
        }
        if progress.told_confirmation.as_ref() != Some(confirmation) {
            tracing::info!("{text}");
            events.normal(&record::reference(None), "IdentityConfirmed", &text);
            progress.told_confirmation = Some(confirmation.clone());
            // Once: a confirmation that is given anew would also cover what nobody has seen yet.
            self.identity.confirm();
        }
        Some(note)
    }

    /// What an operator's confirmation writes to the record, and the text about it; with the next evaluation the facts
    /// agree.
    fn follow(
        confirmation: &OperatorConfirmation,
        facts: &IdentityFacts<'_>,
        decision: &NameDecision,
    ) -> (RecordNote, String) {
        let mut card = confirmed_card(facts, confirmation);
        let name = match confirmation {
            OperatorConfirmation::Confirm => decision.name.clone(),
            OperatorConfirmation::Rename(name) | OperatorConfirmation::Copy(name) => name.clone(),
        };
        card.names.insert(name.to_string());
        let text = format!(
            "an administrator has confirmed the identity of this cluster: name {:?}, {} machines in namespace {} of \
            Harvester, load balancers of {:?}",
            name.as_str(),
            card.machines.len(),
            card.namespace,
            card.names
        );
        // The name of another cluster is written over, if need be with a default one, which counts as none.
        let name = (!name.is_default() || has_foreign_record(facts)).then_some(name);
        (RecordNote { name, card: Some(card), followed: true, ..RecordNote::default() }, text)
    }

    /// Takes a confirmation out of the record by which this cluster would get a name of its original or of a copy, and
    /// reports that once. Returns whether there was one: it is to be removed, and nothing else follows from it.
    pub(super) fn refuse_name(&self, known: &mut Record, progress: &mut Progress, events: &Recorder) -> bool {
        let refusal = match &known.confirmation {
            None | Some(OperatorConfirmation::Confirm) => None,
            Some(OperatorConfirmation::Rename(name)) => self.refuses_name(known, name),
            Some(OperatorConfirmation::Copy(name)) => self.refuses_copy(known, name, progress.cluster_uid.as_deref()),
        };
        let Some(text) = refusal else { return false };
        let confirmation = known.confirmation.take();
        if progress.told_refusal != confirmation {
            tracing::warn!("{text}");
            events.warning(&record::reference(known.uid.clone()), "ClusterNameRefused", &text);
            progress.told_refusal = confirmation;
        }
        true
    }

    pub(super) fn is_paused(&self, record: &Record) -> bool {
        self.place.paused || record.paused
    }

    pub(super) fn hold_if_paused(&self, record: &Record) {
        let paused = self.is_paused(record);
        self.metrics.paused.set(i64::from(paused));
        if paused {
            self.identity.set_hold(Some(pause()));
        } else if self.identity.hold().is_some_and(|hold| hold.reason == PAUSED) {
            // A doubt that existed before the pause still exists.
            self.identity.set_hold(self.doubt(record));
        }
    }

    /// Holds what the record forbids, before anything is judged: that may take as long as Harvester is away.
    pub(super) fn hold_as_recorded(&self, record: &Record) {
        self.metrics.safe_mode.set(i64::from(record.safe_mode.is_some()));
        if !self.is_paused(record) {
            self.identity.set_hold(self.doubt(record));
        }
        self.hold_if_paused(record);
    }

    /// The doubt of the last judgement. Before the first one it is that of a controller before this one, which has
    /// left its safe mode in the record.
    fn doubt(&self, record: &Record) -> Option<Hold> {
        match self.identity.doubt() {
            IdentityDoubt::Of(hold) => Some(Arc::unwrap_or_clone(hold)),
            IdentityDoubt::No => None,
            IdentityDoubt::NotJudged => record.safe_mode.as_ref().map(|text| {
                let message =
                    format!("a controller before this one was in safe mode, and nothing is judged yet: {text}");
                Hold { reason: NOT_KNOWN, message, initialises_nodes: true, passing: false }
            }),
        }
    }

    /// Takes the name into use and reports it.
    fn adopt(&self, decision: &NameDecision, record: &Record, events: &Recorder) {
        let before = self.identity.name();
        let flag = self.identity.flag();
        let differs = decision.differs_from(flag);
        self.metrics.cluster_name_mismatch.set(i64::from(differs));
        if before.as_ref() == Some(&decision.name) {
            return;
        }
        let object = record::reference(record.uid.clone());
        match before {
            None => {
                tracing::info!(
                    cluster = decision.name.as_str(),
                    source = ?decision.source,
                    "the controller uses this name of the cluster on Harvester"
                );
            }
            Some(before) => {
                let text = format!(
                    "this cluster is called {:?} on Harvester from now on; its former name was {:?}. New load \
                    balancers get the new name; those that exist keep name and address",
                    decision.name.as_str(),
                    before.as_str()
                );
                tracing::info!("{text}");
                events.normal(&object, "ClusterNameChanged", &text);
            }
        }
        if differs {
            let text = mismatch(&decision.name, flag);
            tracing::warn!("{text}");
            events.warning(&object, "ClusterNameNotChanged", &text);
        }
        self.identity.set(decision.name.clone());
    }
}

/// Reports an invalid name in the record, once. `used`: the name that stays in use.
pub(super) fn tell_refused(found: &Record, used: &ClusterName, progress: &mut Progress, events: &Recorder) {
    if let Some(bad) = &found.bad_name
        && progress.refused.as_ref() != Some(bad)
    {
        let text = not_followed(bad, used);
        tracing::warn!("{text}");
        events.warning(&record::reference(found.uid.clone()), "ClusterNameRefused", &text);
        progress.refused = Some(bad.clone());
    }
}

/// The hold that a user asked for.
pub(super) fn pause() -> Hold {
    let message = format!(
        "the controller is paused by --paused or by {} in ConfigMap {NAMESPACE}/{NAME}: it observes and tells, and \
         writes nothing",
        record::PAUSED
    );
    Hold { reason: PAUSED, message, initialises_nodes: false, passing: false }
}
