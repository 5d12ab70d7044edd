//! The rules of the election as a state machine without I/O: who may take the Lease, when, and what is written.
//!
//! Times of other replicas are never compared with ours: a record counts as alive for its own lease duration after *we*
//! last saw it change.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::lease::Record;
use super::{LeaderConfig, Leadership, OnLoss};

/// A holder has missed two renewals when it has not renewed for so many retry periods: the second one may be a little
/// late.
const MISSED: f64 = 2.2;
/// While the watch shows each renewal, nothing needs to be asked: only when one is late by half a period.
const LATE: f64 = 1.5;

/// A Lease as the API showed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// What its holder wrote.
    pub record: Record,
    /// `metadata.resourceVersion`, the precondition of the next write.
    pub version: String,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Time passed.
    Tick,
    /// Answer to [`Action::Read`]; `None`: there is no such Lease.
    Read(Option<Observation>),
    /// A watch showed this, unasked; `None`: the Lease was deleted.
    Watched(Option<Observation>),
    /// Answer to a successful [`Action::Create`] or [`Action::Update`].
    Wrote(Observation),
    /// The write was refused, because the Lease is not as we believed (409 or 404).
    Conflict,
    /// The request failed or timed out: whether it took effect is not known.
    Failed,
    /// These hosts were found silent by somebody who looks after them; replaces what was said before.
    Silent(BTreeSet<String>),
}

/// The one request to send next. Its outcome is fed back before another is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Read the Lease.
    Read,
    /// Create it.
    Create(Record),
    /// Replace its record, if it still has this version.
    Update {
        /// What to write.
        record: Record,
        /// Precondition.
        version: String,
    },
}

/// One replica's view of one election.
#[derive(Debug)]
pub struct Elector {
    config: LeaderConfig,
    seen: Option<Seen>,
    leading: Option<Leading>,
    ended: bool,
    /// A request is on its way since then.
    busy: Option<Instant>,
    /// Since when no request was answered.
    unanswered: Option<Instant>,
    next: Instant,
    /// A write of ours may have taken effect; nothing has shown the Lease since.
    unsettled: bool,
    /// Conflicts in a row, so that a Lease that changes all the time is not read in a tight loop.
    conflicts: u32,
    known: bool,
    /// Hosts that are said to be silent.
    silent: BTreeSet<String>,
}

#[derive(Debug)]
struct Seen {
    record: Record,
    version: String,
    changed: Instant,
}

#[derive(Debug)]
struct Leading {
    since: Instant,
    /// Start of the last request that renewed the Lease: others count from later.
    renewed: Instant,
    /// When the running round of renewal has failed. Counted from `renewed` too: the lease runs from the API server's
    /// write, and an answer that took seconds must not add them to the time for which we believe in it.
    lost_at: Instant,
    confirmed: bool,
}

impl Elector {
    /// A replica that knows nothing and reads the Lease at `now`.
    pub fn new(now: Instant, config: LeaderConfig) -> Self {
        Self {
            config,
            seen: None,
            leading: None,
            ended: false,
            busy: None,
            unanswered: None,
            next: now,
            unsettled: false,
            conflicts: 0,
            known: false,
            silent: BTreeSet::new(),
        }
    }

    /// Takes in what happened; answers with the request to send, if one is due. `wall` is only written, never compared.
    pub fn step(&mut self, now: Instant, wall: Timestamp, input: Input) -> Option<Action> {
        match input {
            Input::Tick => {}
            Input::Read(observation) => {
                self.busy = None;
                self.unsettled = false;
                return self.decide(now, wall, observation);
            }
            Input::Watched(observation) => {
                if self.is_stale(observation.as_ref()) {
                    return None;
                }
                if self.busy.is_some() {
                    // The answer that is on its way decides; only a foreign holder must not wait for it.
                    self.look(now, observation);
                    return None;
                }
                let unchanged_holder = match (&observation, &self.seen) {
                    (Some(new), Some(seen)) => new.record.holder == seen.record.holder && !new.record.holder.is_empty(),
                    _ => false,
                };
                if unchanged_holder {
                    // A renewal, ours or another's: nothing to do but to note the time.
                    self.look(now, observation);
                    if let Some(seen) = self.seen.as_ref().filter(|_| self.leading.is_none()) {
                        self.next = self.expiry(seen).min(now + self.config.timing.retry_period.mul_f64(LATE));
                    }
                    return None;
                }
                return self.decide(now, wall, observation);
            }
            Input::Wrote(observation) => self.lead(now, observation),
            Input::Conflict => {
                self.busy = None;
                self.unsettled = false;
                self.conflicts += 1;
                if self.conflicts == 1 {
                    return Some(self.send(now, Action::Read));
                }
                self.conflicts = 0;
                self.next = now + self.config.timing.retry_period;
            }
            Input::Failed => {
                let sent = self.busy.take().unwrap_or(now);
                self.unanswered.get_or_insert(sent);
                self.next = now + self.config.timing.retry_period;
            }
            Input::Silent(hosts) => {
                self.silent = hosts;
                // Only to look sooner: what the Lease then shows decides.
                if self.leading.is_none()
                    && let Some(expires) = self.seen.as_ref().map(|seen| self.expiry(seen))
                {
                    self.next = self.next.min(expires.max(now));
                }
            }
        }
        self.check_deadline(now);
        if self.ended || self.busy.is_some() || now < self.next {
            return None;
        }
        // The holder renews without reading first, as client-go does: one request per round.
        let renewal =
            self.seen.as_ref().filter(|seen| self.leading.is_some() && seen.record.holder == self.config.identity);
        match renewal {
            Some(seen) => {
                let action =
                    Action::Update { record: self.record(Some(&seen.record), wall), version: seen.version.clone() };
                Some(self.send(now, action))
            }
            None => Some(self.send(now, Action::Read)),
        }
    }

    /// When to call [`Elector::step`] with [`Input::Tick`] if nothing happens before; `None` while a request is on its
    /// way and no deadline runs.
    pub fn deadline(&self) -> Option<Instant> {
        if self.ended {
            return None;
        }
        let loss = self.leading.as_ref().filter(|leading| leading.confirmed).map(|leading| leading.lost_at);
        let next = if self.busy.is_some() { None } else { Some(self.next) };
        [loss, next].into_iter().flatten().min()
    }

    /// Who leads. A Lease that names us while we have not renewed it yet is not known to be ours.
    pub fn leadership(&self) -> Leadership {
        if let Some(Leading { since, confirmed, .. }) = self.leading {
            return Leadership::Leading { since, confirmed };
        }
        match &self.seen {
            Some(seen) if seen.record.holder == self.config.identity => Leadership::Unknown,
            Some(seen) => Leadership::Following { holder: seen.record.holder.clone() },
            None if self.known => Leadership::Following { holder: String::new() },
            None => Leadership::Unknown,
        }
    }

    /// Start of the last request that renewed the Lease, while we lead.
    pub fn renewed(&self) -> Option<Instant> {
        self.leading.as_ref().map(|leading| leading.renewed)
    }

    /// Whether the election is over, because the Lease was lost with [`OnLoss::End`].
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Version of the Lease that the next write will expect.
    pub fn version(&self) -> Option<&str> {
        self.seen.as_ref().map(|seen| seen.version.as_str())
    }

    pub(super) fn identity(&self) -> &str {
        &self.config.identity
    }

    /// The write that hands the Lease back, if we hold it: an empty holder and one second, so that the next one in line
    /// takes it at once (client-go's ReleaseOnCancel).
    pub fn release(&self, wall: Timestamp) -> Option<Action> {
        let (Some(_), Some(seen)) = (&self.leading, &self.seen) else { return None };
        if seen.record.holder != self.config.identity {
            return None;
        }
        let record = Record {
            holder: String::new(),
            lease_duration: Duration::from_secs(1),
            acquire_time: Some(wall),
            renew_time: Some(wall),
            transitions: seen.record.transitions,
        };
        Some(Action::Update { record, version: seen.version.clone() })
    }

    /// Whether the Lease may bear our name, as far as can be known: from a former life, or by a write whose answer is
    /// not there.
    pub fn may_name_us(&self) -> bool {
        let shown = self.seen.as_ref().is_some_and(|seen| seen.record.holder == self.config.identity);
        shown || self.unsettled || !self.known
    }

    fn send(&mut self, now: Instant, action: Action) -> Action {
        self.busy = Some(now);
        self.unsettled |= action != Action::Read;
        action
    }

    /// Notes what the Lease shows. A holder that is not us ends our leadership, whatever the clock says.
    fn look(&mut self, now: Instant, observation: Option<Observation>) {
        self.known = true;
        // Nobody could renew while the API was away, so that time counts against nobody: else whoever asks first after
        // an outage takes the Lease from a holder that is alive and serves. client-go counts it; its holders end in an
        // outage anyway.
        let outage = match self.unanswered.take() {
            Some(since) if self.config.on_loss == OnLoss::KeepTrying => now.saturating_duration_since(since),
            _ => Duration::ZERO,
        };
        let changed = match (&self.seen, &observation) {
            (Some(seen), Some(new)) if seen.record == new.record => seen.changed + outage,
            _ => now,
        };
        self.seen = observation.map(|Observation { record, version }| Seen { record, version, changed });
        let foreign = self
            .seen
            .as_ref()
            .is_some_and(|seen| !seen.record.holder.is_empty() && seen.record.holder != self.config.identity);
        if foreign && self.leading.is_some() {
            self.lose();
        }
    }

    fn decide(&mut self, now: Instant, wall: Timestamp, observation: Option<Observation>) -> Option<Action> {
        self.look(now, observation);
        self.check_deadline(now);
        if self.ended {
            return None;
        }
        let Some(seen) = &self.seen else {
            let record = self.record(None, wall);
            return Some(self.send(now, Action::Create(record)));
        };
        let expires = self.expiry(seen);
        let free = seen.record.holder.is_empty() || seen.record.holder == self.config.identity || expires <= now;
        if free {
            let action =
                Action::Update { record: self.record(Some(&seen.record), wall), version: seen.version.clone() };
            return Some(self.send(now, action));
        }
        self.conflicts = 0;
        self.next = expires.min(now + self.config.timing.retry_period);
        None
    }

    /// When others may take the Lease if it does not change. Of a holder whose host is silent, too, two missed renewals
    /// are enough: two signs that have nothing to do with each other. If it lives all the same, it finds another name
    /// in the Lease at its next renewal.
    fn expiry(&self, seen: &Seen) -> Instant {
        let host = seen.record.holder.rsplit_once('_').map_or(seen.record.holder.as_str(), |(host, _)| host);
        let missed = self.config.timing.retry_period.mul_f64(MISSED);
        let patience = if self.silent.contains(host) { missed } else { seen.record.lease_duration };
        seen.changed + patience.min(seen.record.lease_duration)
    }

    fn lead(&mut self, now: Instant, observation: Observation) {
        let sent = self.busy.take().unwrap_or(now);
        self.unsettled = false;
        self.conflicts = 0;
        self.known = true;
        // A watch may have shown a newer state while the answer was on its way.
        if !self.is_stale(Some(&observation)) {
            self.look(now, Some(observation));
        }
        if self.seen.as_ref().is_none_or(|seen| seen.record.holder != self.config.identity) {
            self.next = now;
            return;
        }
        let timing = self.config.timing;
        let since = self.leading.as_ref().map_or(now, |leading| leading.since);
        self.next = now + timing.retry_period;
        // Never later than others may take the Lease, whatever the two other durations add up to.
        let lost_at = sent + (timing.retry_period + timing.renew_deadline).min(timing.lease_duration);
        self.leading = Some(Leading { since, renewed: sent, lost_at, confirmed: true });
    }

    /// What we write: as holder already, the time of acquisition and the number of transitions stay.
    fn record(&self, old: Option<&Record>, wall: Timestamp) -> Record {
        let kept = old.filter(|old| old.holder == self.config.identity);
        Record {
            holder: self.config.identity.clone(),
            lease_duration: self.config.timing.lease_duration,
            acquire_time: kept.map_or(Some(wall), |old| old.acquire_time),
            renew_time: Some(wall),
            transitions: match (kept, old) {
                (Some(old), _) => old.transitions,
                (None, Some(old)) => old.transitions + 1,
                (None, None) => 0,
            },
        }
    }

    fn check_deadline(&mut self, now: Instant) {
        let Some(leading) = &mut self.leading else { return };
        if now < leading.lost_at || !leading.confirmed {
            return;
        }
        match self.config.on_loss {
            OnLoss::End => self.lose(),
            OnLoss::KeepTrying => leading.confirmed = false,
        }
    }

    fn lose(&mut self) {
        self.leading = None;
        self.ended = self.config.on_loss == OnLoss::End;
    }

    /// Watch events may be older than an answer we already have. Versions of one object are ordered numbers.
    fn is_stale(&self, observation: Option<&Observation>) -> bool {
        let (Some(seen), Some(new)) = (&self.seen, observation) else { return false };
        match (seen.version.parse::<u64>(), new.version.parse::<u64>()) {
            (Ok(seen), Ok(new)) => new < seen,
            _ => false,
        }
    }
}

#[cfg(test)]
#[path = "elector_tests.rs"]
mod tests;
