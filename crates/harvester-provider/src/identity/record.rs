//! ConfigMap `kube-system/harvester-cloud-provider`: data that must outlive the process and cannot be computed again.

use std::collections::BTreeSet;

use harvester_api::names::ClusterName;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ObjectReference};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, ResourceExt};

use super::identity_card::IdentityCard;
use super::judge::{CONFIRM, OperatorConfirmation};
use crate::events::config_map;

pub use contract::config_maps::record::{CLUSTER_NAME, IDENTITY, PAUSED, POSSIBLE_ORPHANS, SAFE_MODE};
pub use contract::config_maps::{NAMESPACE, RECORD as NAME};
pub use contract::keys::cloudprovider::{CONFIRMATION, LIST_GARBAGE};

/// Key of the time when a Service vanished as after a restore of etcd. No garbage is collected for a day after it.
pub const RESTORE_SUSPECTED: &str = "restore-suspected";
/// Key of the UIDs of load balancers whose Services a restore of etcd has lost for good, as an operator has confirmed,
/// one per line. They are garbage, and are no evidence of another restore. Each object is named, not the revision that
/// the newest one has: after the restore etcd counts through the same revisions again, and an object that is made then,
/// and lost by a second restore, would be covered by a confirmation that was given before it existed.
pub const CONFIRMED_LOST: &str = "confirmed-lost";

/// Limit of the lines, because a ConfigMap holds one megabyte; the oldest lines are removed first.
const MOST_ORPHANS: usize = 500;

/// Limit of the UIDs in [`CONFIRMED_LOST`]. Those beyond are suspected again after a restart, which deletes nothing.
const MOST_LOST: usize = 2000;

/// Limit of the attempts of a write that meets conflicts.
const ATTEMPTS: usize = 4;

/// Why the record could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("failed to {verb} ConfigMap {NAMESPACE}/{NAME}")]
pub struct RecordError {
    verb: &'static str,
    source: kube::Error,
}

impl RecordError {
    /// The right is missing, because an older role is in use (decision 3). A retry is pointless.
    pub fn is_forbidden(&self) -> bool {
        runtime::error::api_code(&self.source) == Some(403)
    }

    /// Whether every retry would fail too: the right is missing, the ConfigMap is `immutable`, or a webhook denies it.
    pub fn is_final(&self) -> bool {
        runtime::error::is_refused_write(&self.source)
    }
}

/// The content of the ConfigMap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// `cluster-name`, if it is not empty and load balancers can be named after it.
    pub cluster_name: Option<ClusterName>,
    /// `cluster-name`, if load balancers cannot be named after it, for example because of a typing error. The keeper
    /// puts a name here that is another cluster's.
    pub bad_name: Option<String>,
    /// `metadata.uid`, for Events.
    pub uid: Option<String>,
    /// Annotation [`LIST_GARBAGE`].
    pub list_garbage: Option<String>,
    /// `identity`.
    pub card: Option<IdentityCard>,
    /// `safe-mode`.
    pub safe_mode: Option<String>,
    /// `restore-suspected`.
    pub restore_suspected: Option<Timestamp>,
    /// `confirmed-lost`.
    pub confirmed_lost: BTreeSet<String>,
    /// `paused`.
    pub paused: bool,
    /// Annotation [`CONFIRMATION`].
    pub confirmation: Option<OperatorConfirmation>,
}

impl Record {
    /// Whether the record was copied from another cluster. `cluster_uid`: UID of this one's Namespace `kube-system`, if
    /// it is known.
    pub fn is_of_another(&self, cluster_uid: Option<&str>) -> bool {
        let recorded = self.card.as_ref().map(|card| card.cluster_uid.as_str()).filter(|uid| !uid.is_empty());
        recorded.zip(cluster_uid).is_some_and(|(theirs, ours)| theirs != ours)
    }

    /// Why a copy of the cluster in the record cannot have this name; `None`: it can. `cluster_uid`: UID of Namespace
    /// `kube-system`, if it is known. The record of a cluster with another UID has no names of this one.
    pub fn refuses_copy(&self, name: &ClusterName, cluster_uid: Option<&str>) -> Option<String> {
        let is_on_card = self.card.as_ref().is_some_and(|card| card.names.contains(name.as_str()));
        let is_name = self.cluster_name.as_ref() == Some(name);
        (!self.is_of_another(cluster_uid) && (is_on_card || is_name)).then(|| {
            format!(
                "{:?} is a name of the cluster in the record: a copy under this name would take over the load \
                 balancers of the original. Run `harvester-cloud-provider identity rename NEW-NAME --copy` with a name \
                 that the original never had. If this cluster is no copy, run `{CONFIRM}`",
                name.as_str()
            )
        })
    }
}

/// Parses an operator's confirmation: `confirm`, `rename NAME`, or `copy NAME`.
pub fn parse_confirmation(text: &str) -> Option<OperatorConfirmation> {
    let mut words = text.split_whitespace();
    let (verb, name, end) = (words.next()?, words.next(), words.next());
    let name = name.map(ClusterName::from_record);
    match (verb, name, end) {
        ("confirm", None, None) => Some(OperatorConfirmation::Confirm),
        ("rename", Some(name), None) if name.can_name_objects() && !name.is_default() => {
            Some(OperatorConfirmation::Rename(name))
        }
        ("copy", Some(name), None) if name.can_name_objects() && !name.is_default() => {
            Some(OperatorConfirmation::Copy(name))
        }
        _ => None,
    }
}

impl From<&ConfigMap> for Record {
    fn from(config_map: &ConfigMap) -> Self {
        let name = config_map.data.as_ref().and_then(|data| data.get(CLUSTER_NAME)).map(|name| name.trim());
        let name = name.filter(|name| !name.is_empty()).map(ClusterName::from_record);
        let text = |key| config_map.data.as_ref().and_then(|data| data.get(key));
        let bad_name = name.as_ref().filter(|name| !name.can_name_objects()).map(ToString::to_string);
        Self {
            cluster_name: name.filter(ClusterName::can_name_objects),
            bad_name,
            uid: config_map.uid(),
            list_garbage: config_map.annotations().get(LIST_GARBAGE).cloned(),
            card: text(IDENTITY).and_then(|card| IdentityCard::from_text(card)),
            safe_mode: text(SAFE_MODE).cloned(),
            restore_suspected: text(RESTORE_SUSPECTED).and_then(|stamp| stamp.trim().parse().ok()),
            confirmed_lost: text(CONFIRMED_LOST).map(|lines| uids(lines)).unwrap_or_default(),
            paused: text(PAUSED).is_some_and(|paused| paused.trim() == "true"),
            confirmation: config_map.annotations().get(CONFIRMATION).and_then(|text| parse_confirmation(text)),
        }
    }
}

/// The object that Events about the cluster refer to.
pub fn reference(uid: Option<String>) -> ObjectReference {
    config_map(NAME, uid)
}

/// The content that the record should have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordNote {
    /// `cluster-name`; `None`: unchanged.
    pub name: Option<ClusterName>,
    /// `identity`; `None`: unchanged.
    pub card: Option<IdentityCard>,
    /// `safe-mode`; `None`: the key is removed.
    pub safe_mode: Option<String>,
    /// `restore-suspected`; `None`: the key is removed.
    pub restore_suspected: Option<Timestamp>,
    /// An operator's confirmation was acted on, so its annotation is removed.
    pub followed: bool,
}

impl RecordNote {
    /// Whether the record has to be written.
    pub fn is_news_to(&self, record: &Record) -> bool {
        self.followed
            || self.name.is_some() && self.name != record.cluster_name
            || self.card.is_some() && self.card != record.card
            || self.safe_mode != record.safe_mode
            || self.restore_suspected != record.restore_suspected
    }
}

/// Reads and writes the ConfigMap.
#[derive(Clone)]
pub struct Records {
    pub(super) client: Client,
}

impl Records {
    /// Access to the record in the cluster of this client.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    fn api(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Reads the record.
    pub async fn read(&self) -> Result<Record, RecordError> {
        let found = self.api().get_opt(NAME).await.map_err(|source| RecordError { verb: "read", source })?;
        Ok(found.as_ref().map(Record::from).unwrap_or_default())
    }

    /// Writes the note to the record and returns the record after that.
    pub async fn write(&self, note: &RecordNote) -> Result<Record, RecordError> {
        self.change(|config_map| {
            let data = config_map.data.get_or_insert_default();
            let mut set =
                |key: &str, value: Option<String>| drop(value.map(|value| data.insert(key.to_owned(), value)));
            set(CLUSTER_NAME, note.name.as_ref().map(ToString::to_string));
            set(IDENTITY, note.card.as_ref().map(IdentityCard::to_text));
            for (key, value) in [
                (SAFE_MODE, note.safe_mode.clone()),
                (RESTORE_SUSPECTED, note.restore_suspected.map(|stamp| stamp.to_string())),
            ] {
                match value {
                    Some(value) => drop(data.insert(key.to_owned(), value)),
                    None => drop(data.remove(key)),
                }
            }
            if note.followed
                && let Some(annotations) = &mut config_map.metadata.annotations
            {
                annotations.remove(CONFIRMATION);
            }
        })
        .await
    }

    /// Adds a line about a LoadBalancer that is left behind, unless there is already one that differs only in the time.
    pub async fn add_orphan(&self, what: &str, when: &str) -> Result<Record, RecordError> {
        self.change(|config_map| {
            let data = config_map.data.get_or_insert_default();
            let lines = data.entry(POSSIBLE_ORPHANS.to_owned()).or_default();
            if !lines.lines().any(|known| known.starts_with(what)) {
                *lines = with_line(lines, &format!("{what}{when}"));
            }
        })
        .await
    }

    /// Records the time at which a Service vanished as after a restore of etcd.
    pub async fn suspect_restore(&self, stamp: Timestamp) -> Result<Record, RecordError> {
        self.change(|config_map| {
            config_map.data.get_or_insert_default().insert(RESTORE_SUSPECTED.to_owned(), stamp.to_string());
        })
        .await
    }

    /// Changes the UIDs of load balancers that an operator has confirmed to be lost. Without any the key is removed.
    pub async fn change_lost(
        &self,
        change: impl Fn(BTreeSet<String>) -> BTreeSet<String>,
    ) -> Result<Record, RecordError> {
        self.change(|config_map| {
            let data = config_map.data.get_or_insert_default();
            let known = data.get(CONFIRMED_LOST).map(|lines| uids(lines)).unwrap_or_default();
            let lost = change(known.clone());
            if lost.is_empty() {
                data.remove(CONFIRMED_LOST);
            } else if lost != known {
                let lines = lost.into_iter().take(MOST_LOST).map(|uid| uid + "\n").collect();
                data.insert(CONFIRMED_LOST.to_owned(), lines);
            }
        })
        .await
    }

    /// Writes an operator's confirmation for the leader; see [`parse_confirmation`].
    pub async fn ask(&self, confirmation: &str) -> Result<Record, RecordError> {
        self.change(|config_map| {
            config_map
                .metadata
                .annotations
                .get_or_insert_default()
                .insert(CONFIRMATION.to_owned(), confirmation.to_owned());
        })
        .await
    }

    /// UID of Namespace `kube-system`, which lives as long as the cluster.
    pub async fn cluster_uid(&self) -> Result<Option<String>, RecordError> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let found = namespaces.get_metadata_opt(NAMESPACE).await;
        Ok(found
            .map_err(|source| RecordError { verb: "read UID of Namespace for", source })?
            .and_then(|found| found.uid()))
    }

    /// Reads, changes and writes the ConfigMap. Everything else in it stays (decision 4). If nothing changes, nothing
    /// is written.
    async fn change(&self, change: impl Fn(&mut ConfigMap)) -> Result<Record, RecordError> {
        let failed = |verb| move |source| RecordError { verb, source };
        let mut attempt = 1;
        loop {
            let found = self.api().get_opt(NAME).await.map_err(failed("read"))?;
            let mut config_map = found.clone().unwrap_or_else(|| ConfigMap {
                metadata: ObjectMeta {
                    name: Some(NAME.to_owned()),
                    namespace: Some(NAMESPACE.to_owned()),
                    ..ObjectMeta::default()
                },
                ..ConfigMap::default()
            });
            change(&mut config_map);
            if found.as_ref() == Some(&config_map) {
                return Ok(Record::from(&config_map));
            }
            let written = match &found {
                None => self.api().create(&PostParams::default(), &config_map).await,
                Some(_) => self.api().replace(NAME, &PostParams::default(), &config_map).await,
            };
            match written {
                Ok(written) => return Ok(Record::from(&written)),
                Err(error) if runtime::error::is_conflict(&error) && attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(failed(if found.is_none() { "create" } else { "update" })(error)),
            }
        }
    }
}

fn uids(lines: &str) -> BTreeSet<String> {
    lines.split_whitespace().map(str::to_owned).collect()
}

fn with_line(lines: &str, line: &str) -> String {
    let all: Vec<&str> = lines.lines().chain([line]).collect();
    let kept = &all[all.len().saturating_sub(MOST_ORPHANS)..];
    kept.join("\n") + "\n"
}

#[cfg(test)]
mod tests;
