//! Collects what the name of the cluster, and the names on a new card, follow from.

use std::collections::BTreeSet;

use harvester_api::names::ClusterName;
use runtime::events::Recorder;

use super::super::decide::{Clues, NameDecision, Source, decide};
use super::super::judge::{copy, rename};
use super::super::labels::{self, ProvenLabel};
use super::super::record::{self, CLUSTER_NAME, NAME, NAMESPACE, Record};
use super::{Keeper, Progress};

impl Keeper {
    /// Decides the name; `None` until the lists have arrived that the decision needs. With a record, Harvester may be
    /// unreachable.
    pub(super) fn decide(&self, record: &Record) -> Option<NameDecision> {
        let flag = self.identity.flag();
        let known = self.identity.name().filter(|name| !name.is_default());
        // If the record was deleted, the name that this process already uses stays.
        let remembered = record.cluster_name.clone();
        if remembered.is_none()
            && let Some(name) = known
        {
            return Some(NameDecision { name, source: Source::Adopted });
        }
        let mut clues = Clues { remembered, flag: Some(flag.clone()), ..Clues::default() };
        if clues.remembered.as_ref().is_none_or(ClusterName::is_default) {
            if !self.has_load_balancers() {
                return None;
            }
            // What a copy of this cluster has made is proven, too, and may be more than what this one has.
            let card = record.card.as_ref().filter(|card| !card.names.is_empty());
            let mut labels = self.labels();
            labels.retain(|label| card.is_none_or(|card| label.is_under(&card.names)));
            clues.adopted = labels::naming(&labels);
            if clues.adopted.is_empty() && flag.is_default() {
                if !self.sources.vmis.is_synced() {
                    return None;
                }
                let vmis = self.sources.vmis.all();
                clues.machines = vmis.iter().map(|vmi| vmi.guest_cluster().map(ClusterName::from_record)).collect();
            }
        }
        Some(decide(&clues))
    }

    /// Whether the lists have arrived from which load balancers of this cluster are told.
    pub(super) fn has_load_balancers(&self) -> bool {
        self.sources.services.is_synced() && self.sources.lbs.is_synced()
    }

    /// The names of this cluster for a card that has none: the present one, and those of load balancers whose addresses
    /// its Services show. What else is proven may be a copy's, or the original's.
    pub(super) fn names_in_use(&self, found: &Record, decision: &NameDecision) -> BTreeSet<String> {
        let mut names = labels::shown(&self.labels());
        names.insert(decision.name.to_string());
        // A card of an earlier version had no names where the cluster had a default one, or had one before it was
        // renamed.
        let earlier = found.card.as_ref().is_some_and(|card| card.names.is_empty());
        if earlier || decision.name.is_default() {
            names.extend(ClusterName::DEFAULTS.map(str::to_owned));
        }
        names
    }

    /// The record, whose name counts as a bad one if it is on no card and this cluster could not be renamed so: then
    /// somebody wrote it there, such as GitOps the name of the original into the record of its copy. That is reported
    /// once. `None` while the lists have not arrived from which that is told.
    pub(super) fn checked(&self, found: &Record, progress: &mut Progress, events: &Recorder) -> Option<Record> {
        let known = progress.with_card(found);
        let named = known.card.as_ref().filter(|card| !card.names.is_empty());
        let written = found.cluster_name.as_ref().filter(|name| !name.is_default());
        let written = written.filter(|name| named.is_some_and(|card| !card.names.contains(name.as_str())));
        // The record of another cluster names nobody here.
        let Some(name) = written.filter(|_| !known.is_of_another(progress.cluster_uid.as_deref())) else {
            return Some(found.clone());
        };
        if !self.has_load_balancers() {
            return None;
        }
        let Some(refusal) = self.refuses_name(&known, name) else { return Some(found.clone()) };
        if progress.refused.as_deref() != Some(name.as_str()) {
            let text = format!(
                "{CLUSTER_NAME} in ConfigMap {NAMESPACE}/{NAME} is {:?}, and this cluster keeps the name that it has: \
                 {refusal}",
                name.as_str()
            );
            tracing::warn!("{text}");
            events.warning(&record::reference(found.uid.clone()), "ClusterNameRefused", &text);
            progress.refused = Some(name.to_string());
        }
        Some(Record { cluster_name: None, bad_name: Some(name.to_string()), ..found.clone() })
    }

    /// Why this cluster cannot be renamed so: load balancers of a copy, or of the original, have that name. Those that
    /// no Service here shows would be deleted. `None` also while the lists have not arrived.
    pub(super) fn refuses_name(&self, record: &Record, name: &ClusterName) -> Option<String> {
        let labels = self.labels();
        let service = labels::of_another(&labels, name, &record.card.as_ref()?.names)?;
        Some(format!(
            "load balancers named after {:?} are on Harvester, such as one of service {service}, and no Service of \
             this cluster is served by one: they are those of a copy of this cluster, or of its original, which would \
             lose them. Run `{}` with another name. If no cluster has that name any more, delete these load \
             balancers first",
            name.as_str(),
            rename(&ClusterName::from_record("NEW-NAME"))
        ))
    }

    /// Why a copy cannot have this name: the original has or had it, or load balancers on Harvester have it, which then
    /// belong to another copy. All copies have the same UIDs, so nothing but the name tells whose a load balancer is.
    /// Not refused: a name under which this process works already, and any name that load balancers have if the record
    /// was copied from another cluster. In both cases this cluster may have made them. `None` also while the list has
    /// not arrived; nothing is followed before that.
    pub(super) fn refuses_copy(
        &self,
        record: &Record,
        name: &ClusterName,
        cluster_uid: Option<&str>,
    ) -> Option<String> {
        let refusal = record.refuses_copy(name, cluster_uid);
        let may_be_ours = record.is_of_another(cluster_uid) || self.identity.name().as_ref() == Some(name);
        if refusal.is_some() || record.card.is_none() || may_be_ours {
            return refusal;
        }
        let lbs = self.sources.lbs.all();
        let lb = labels::in_use(&lbs, &self.labels(), name)?;
        Some(format!(
            "load balancers named after {:?} are on Harvester, such as {}, the record of this cluster does not have \
             that name, and no Service of this cluster shows the address of one: they are those of another copy, or \
             of another cluster, which would lose them. Run `{}` with another name. If no cluster has that name any \
             more, delete these load balancers first",
            name.as_str(),
            lb.name,
            copy(&ClusterName::from_record("NEW-NAME"))
        ))
    }

    fn labels(&self) -> Vec<ProvenLabel> {
        labels::proven(&self.sources.lbs.all(), |key| self.sources.services.get(key))
    }
}

/// Whether the next card gets names that are not in the record: a first one, one of an earlier version, and one that an
/// operator confirms, because the record may be that of another cluster.
pub(super) fn gets_names(found: &Record) -> bool {
    found.confirmation.is_some() || found.card.as_ref().is_none_or(|card| card.names.is_empty())
}
