//! While another program, a kube-vip or an announcer in another mode, holds the Lease for all Services, this node
//! leaves all Services to it (decisions.md 19).

use std::time::Instant;

use super::Cluster;
use super::candidates::line_of;
use super::round::Round;
use super::timing::FOREIGN_GRACE;
use crate::reason::Reason;
use crate::view::ServiceKey;

impl Cluster {
    /// Notes whether another program holds the Lease for all Services (decisions.md 19). Returns until when this node
    /// still serves VIPs for which that program does not answer yet.
    pub(super) fn note_foreign(&mut self, now: Instant) -> Option<Instant> {
        let foreign = self.facts.foreign_holder(now).map(|(holder, _)| holder.to_owned());
        match (&foreign, self.foreign.since) {
            (Some(holder), None) => {
                tracing::warn!(
                    holder,
                    "another program holds the Lease for all Services; the announcer leaves all Services to it"
                );
                self.foreign.since = Some(now);
            }
            (None, Some(_)) => {
                tracing::info!(
                    "no other program holds the Lease for all Services any more; the announcer takes part again"
                );
                self.foreign.since = None;
            }
            _ => {}
        }
        self.foreign.since.map(|since| since + FOREIGN_GRACE)
    }

    /// Messages for authors about a holder that has not renewed the Lease for a while. A live holder renews every few
    /// seconds, but the duration of a Lease may be years. Each author is told once, by the home of the Service.
    pub(super) fn tell_stalled(&mut self, round: &Round<'_>) -> Vec<(ServiceKey, Reason, String)> {
        let Round { now, context, fitness, .. } = *round;
        let Some((holder, since, expiry)) = self.facts.stalled_holder(now) else {
            self.foreign.told.clear();
            return Vec::new();
        };
        let text = format!(
            "Lease {} is held by {holder:?}, who has not renewed it for {} s, and counts for another {} s by its \
             duration: until then no announcer takes the address. If that kube-vip or announcer is gone, delete the \
             Lease",
            context.config.lease.name,
            (now - since).as_secs(),
            (expiry - now).as_secs()
        );
        let candidates = line_of(fitness);
        let mut told = Vec::new();
        for view in context.services.values() {
            let mine = candidates.home(&view.uid.0) == Some(self.me.as_str());
            if mine && self.foreign.told.insert(view.key.clone()) {
                told.push((view.key.clone(), Reason::CannotAnnounce, text.clone()));
            }
        }
        told
    }
}
