//! Writes the record.

use cloud_provider::damping::undone;
use cloud_provider::managed_fields::find_other_writer;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use runtime::events::Recorder;
use runtime::refusal;
use tokio::time::Instant;

use super::super::record::{self, NAME, NAMESPACE, Record, RecordNote};
use super::progress::Progress;
use super::words::{not_allowed, not_yet};
use super::{CONFIRMATION_WAITS, Keeper, LONGEST_PAUSE, TRY_AGAIN, WITHOUT_RIGHT, WRITE_EVERY};

impl Keeper {
    /// Writes the note and returns the record after that. A write that fails is tried again, with growing pauses.
    pub(super) async fn write(&self, note: &RecordNote, progress: &mut Progress, events: &Recorder) -> Option<Record> {
        // An API server that has just started may refuse for a moment, which need not be reported. While attempts fail,
        // the pauses between them make that wait unnecessary.
        let sent = if progress.failing {
            self.records.write(note).await
        } else {
            refusal::settled(|| self.records.write(note)).await
        };
        match sent {
            Ok(written) => {
                if let Some(name) = &note.name {
                    tracing::info!(
                        cluster = name.as_str(),
                        "the controller wrote the name of this cluster to ConfigMap {NAMESPACE}/{NAME}"
                    );
                }
                if note.followed {
                    (progress.told_confirmation, progress.told_refusal) = (None, None);
                }
                progress.failing = false;
                (progress.not_before, progress.pause) = (Instant::now() + WRITE_EVERY, TRY_AGAIN);
                if progress.damper.repaired(note.clone(), Instant::now()) {
                    self.tell_undone(&written, events).await;
                }
                Some(written)
            }
            Err(error) => {
                let told = std::mem::replace(&mut progress.failing, true);
                let longest = if error.is_forbidden() {
                    if !told {
                        not_allowed(&error);
                    }
                    WITHOUT_RIGHT
                } else {
                    not_yet(&error, told);
                    LONGEST_PAUSE
                };
                let longest = if note.followed { CONFIRMATION_WAITS } else { longest };
                progress.not_before = Instant::now() + progress.pause.min(longest);
                progress.pause = (progress.pause * 2).min(longest);
                None
            }
        }
    }

    /// Reports that another writer, such as a GitOps tool, keeps undoing what is written here.
    async fn tell_undone(&self, written: &Record, events: &Recorder) {
        let records: Api<ConfigMap> = Api::namespaced(self.records.client.clone(), NAMESPACE);
        let by = find_other_writer(&records, NAME, &["data"]).await.ok().flatten();
        let object = format!("ConfigMap {NAMESPACE}/{NAME}");
        let text = undone(&object, by.as_deref(), "the keys cluster-name, identity, safe-mode and restore-suspected");
        tracing::warn!("{text}");
        events.warning(&record::reference(written.uid.clone()), "UndoneByOthers", &text);
    }
}
