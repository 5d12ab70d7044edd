//! A suspected restore of etcd: reported when it begins and when it ends, and kept in the record in between.

use k8s_openapi::jiff::Timestamp;
use runtime::events::Recorder;
use tokio::time::Instant;

use super::super::judge::CONFIRM;
use super::super::record::{self, Record};
use super::super::suspicion::{AT_LEAST, RESTORE_SUSPECTED};
use super::{Keeper, Progress};

impl Keeper {
    /// The time stamp of the suspected restore that the record should contain. Another restore may have removed it from
    /// there.
    pub(super) fn suspected(&self, found: &Record, progress: &mut Progress, events: &Recorder) -> Option<Timestamp> {
        let suspected = self.identity.restore_suspected(Instant::now()).map(|(stamp, _)| stamp);
        let object = || record::reference(found.uid.clone());
        match (progress.told_restore, suspected) {
            (None, Some(stamp)) => {
                let text = format!(
                    "Services vanished with their finalizers on at {stamp}, as after a restore of etcd: their load \
                     balancers stay on Harvester, and no garbage is collected for {} h from then, nor in the first {} \
                     h of a controller that starts later, or until `{CONFIRM}`",
                    RESTORE_SUSPECTED.as_secs() / 3600,
                    AT_LEAST.as_secs() / 3600
                );
                tracing::warn!("{text}");
                events.warning(&object(), "RestoreSuspected", &text);
            }
            (Some(_), None) => {
                let text = "no restore of etcd is suspected any more: garbage is collected again, as the flags say";
                tracing::info!("{text}");
                events.normal(&object(), "RestoreSuspicionEnded", text);
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
        progress.told_restore = suspected;
        suspected
    }
}
