//! The rules of the election as a state machine without I/O: which replica may take the Lease, when, and what is
//! written.
//!
//! Clocks of replicas are never compared: a record counts as valid for its own lease duration after *this* replica last
//! saw it change.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::lease::Record;
use super::{LeaderConfig, Leadership, OnLoss};

/// A holder has missed two renewals after this many retry periods: the second one may be slightly late.
const MISSED: f64 = 2.2;
/// While the watch shows each renewal, the Lease is read only if a renewal is late by half a period.
const LATE: f64 = 1.5;

/// A Lease as the API server returned it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// The record of the holder.
    pub record: Record,
    /// `metadata.resourceVersion`, the precondition of the next write.
    pub version: String,
}

/// An event for the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Time passed.
    Tick,
    /// Answer to [`Action::Read`]; `None`: there is no such Lease.
    Read(Option<Observation>),
    /// The watch showed this state; `None`: the Lease was deleted.
    Watched(Option<Observation>),
    /// Answer to a successful [`Action::Create`] or [`Action::Update`].
    Wrote(Observation),
    /// The write was refused, because the Lease has changed (409 or 404).
    Conflict,
    /// The request failed or timed out, so it may or may not have taken effect.
    Failed,
    /// The hosts that are reported as silent; replaces the former set.
    Silent(BTreeSet<String>),
}

/// The next request. Its outcome has to be fed back before the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Read the Lease.
    Read,
    /// Create it.
    Create(Record),
    /// Replace its record, with its resourceVersion as precondition.
    Update {
        /// The record to write.
        record: Record,
        /// The precondition.
        version: String,
    },
}

/// One replica's view of one election.
#[derive(Debug)]
pub struct Elector {
    config: LeaderConfig,
    seen: Option<SeenLease>,
    leading: Option<Leading>,
    ended: bool,
    /// Since when a request is under way.
    busy: Option<Instant>,
    /// Since when no request was answered.
    unanswered: Option<Instant>,
    next: Instant,
    /// A write may have taken effect, and the Lease was not seen since.
    unsettled: bool,
    /// Number of conflicts in a row, so that a Lease that changes constantly is not read in a tight loop.
    conflicts: u32,
    known: bool,
    /// Hosts that are reported as silent.
    silent: BTreeSet<String>,
}

#[derive(Debug)]
struct SeenLease {
    record: Record,
    version: String,
    changed: Instant,
}

#[derive(Debug)]
struct Leading {
    since: Instant,
    /// Start of the last request that renewed the Lease: other replicas count from a later time.
    renewed: Instant,
    /// When the current round of renewal counts as failed. Measured from `renewed`, because the lease time begins with
    /// the API server's write: a slow answer must not extend the time for which this replica relies on the Lease.
    lost_at: Instant,
    confirmed: bool,
}

impl Elector {
    /// A replica without knowledge, which reads the Lease at `now`.
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

    /// Processes an event; returns the request to send, if one is due. `wall` is only written, never compared.
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
                    // The answer that is under way decides; only a foreign holder is recognised at once.
                    self.look(now, observation);
                    return None;
                }
                let unchanged_holder = match (&observation, &self.seen) {
                    (Some(new), Some(seen)) => new.record.holder == seen.record.holder && !new.record.holder.is_empty(),
                    _ => false,
                };
                if unchanged_holder {
                    // A renewal, by this or another replica: only its time is stored.
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
                // This only makes the next check earlier; what the Lease then contains decides.
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
        // The holder renews without a read before it, like client-go: one request per round.
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

    /// When to call [`Elector::step`] with [`Input::Tick`] if no other event comes; `None` while a request is under way
    /// and no deadline runs.
    pub fn deadline(&self) -> Option<Instant> {
        if self.ended {
            return None;
        }
        let loss = self.leading.as_ref().filter(|leading| leading.confirmed).map(|leading| leading.lost_at);
        let next = if self.busy.is_some() { None } else { Some(self.next) };
        [loss, next].into_iter().flatten().min()
    }

    /// The leader. If the Lease names this replica but was not renewed by it yet, the leader is unknown.
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

    /// Start of the last request that renewed the Lease, while this replica leads.
    pub fn renewed(&self) -> Option<Instant> {
        self.leading.as_ref().map(|leading| leading.renewed)
    }

    /// Whether the election is over, because the Lease was lost with [`OnLoss::End`].
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The resourceVersion that the next write expects.
    pub fn version(&self) -> Option<&str> {
        self.seen.as_ref().map(|seen| seen.version.as_str())
    }

    pub(super) fn identity(&self) -> &str {
        &self.config.identity
    }

    /// The write that releases the Lease, if this replica holds it: an empty holder and a duration of one second, so
    /// that the next replica can take it at once (client-go's ReleaseOnCancel).
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

    /// Whether the Lease may contain this replica's identity: from a former process, or from a write without an answer.
    pub fn may_name_us(&self) -> bool {
        let shown = self.seen.as_ref().is_some_and(|seen| seen.record.holder == self.config.identity);
        shown || self.unsettled || !self.known
    }

    fn send(&mut self, now: Instant, action: Action) -> Action {
        self.busy = Some(now);
        self.unsettled |= action != Action::Read;
        action
    }

    /// Stores what the Lease shows. Another holder ends this replica's leadership, whatever the clock says. An empty
    /// holder puts it in doubt, if the loss of the Lease is not the end: another replica has held and released the
    /// Lease while this machine and its clock stood still.
    fn look(&mut self, now: Instant, observation: Option<Observation>) {
        self.known = true;
        // No holder can renew while the API server is away, so that time does not count. Otherwise the first replica
        // that asks after an outage would take the Lease from a live holder. client-go counts it, but its holders end
        // in an outage anyway.
        let outage = match self.unanswered.take() {
            Some(since) if self.config.on_loss == OnLoss::KeepTrying => now.saturating_duration_since(since),
            _ => Duration::ZERO,
        };
        let changed = match (&self.seen, &observation) {
            (Some(seen), Some(new)) if seen.record == new.record => seen.changed + outage,
            _ => now,
        };
        self.seen = observation.map(|Observation { record, version }| SeenLease { record, version, changed });
        let holder = self.seen.as_ref().map(|seen| seen.record.holder.as_str());
        let foreign = holder.is_some_and(|holder| !holder.is_empty() && holder != self.config.identity);
        if foreign && self.leading.is_some() {
            self.lose();
        } else if let (Some(""), Some(leading), OnLoss::KeepTrying) = (holder, &mut self.leading, self.config.on_loss) {
            leading.confirmed = false;
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

    /// When other replicas may take the Lease if it does not change. If the holder's host is reported as silent, two
    /// missed renewals suffice: these are two independent signs. A holder that is alive nevertheless finds another
    /// holder in the Lease at its next renewal.
    fn expiry(&self, seen: &SeenLease) -> Instant {
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
        // The watch may have shown a newer state before the answer arrived.
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
        // Never later than other replicas may take the Lease, whatever the sum of the two other durations is.
        let lost_at = sent + (timing.retry_period + timing.renew_deadline).min(timing.lease_duration);
        self.leading = Some(Leading { since, renewed: sent, lost_at, confirmed: true });
    }

    /// The record to write. A holder keeps the time of acquisition and the number of transitions.
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

    /// Whether a watch event is older than a known answer. The resourceVersions of one object are ordered numbers.
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
