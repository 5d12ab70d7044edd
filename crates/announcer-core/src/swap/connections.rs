//! Which connection a request uses, and how long to wait for its answer.

use std::time::{Duration, Instant};

use super::{LIMIT, Main, Request, Running, Spare, SwapAct, SwapRequest, Swaps, USUAL};
use crate::view::ServiceKey;

/// How long to wait for an answer before the request is repeated over the other connection, unless the API was slow
/// lately. An answer usually takes a few milliseconds.
pub(super) const FIRST_PATIENCE: Duration = Duration::from_millis(100);
/// The same for the second connection, including its handshake. It doubles for each further connection that stays
/// silent.
const SPARE_PATIENCE: Duration = Duration::from_millis(300);
/// The longest such wait. Swaps that follow each other in an outage share it, and clients wait when the API is back.
const LONGEST_SPARE_PATIENCE: Duration = Duration::from_millis(2400);
/// The wait is this many times the duration of the last answer.
const SLACK: u32 = 3;
/// How long a slow answer counts. After that, a dead API server costs no more than at first.
pub(super) const LEARNT_FOR: Duration = Duration::from_mins(1);

impl<O> Swaps<O> {
    pub(super) fn heard(&mut self, now: Instant, request: &Request) {
        if let Some(spare) = self.spare.as_mut().filter(|spare| spare.connection == request.connection) {
            let took = now.saturating_duration_since(request.since) * SLACK;
            spare.patience = spare.patience.max(took).min(LIMIT);
        }
        if self.main.connection == request.connection {
            self.main.heard = Some(now);
            let took = now.saturating_duration_since(request.since) * SLACK;
            let patience = took.max(self.patience(now) / 2).clamp(FIRST_PATIENCE, LIMIT);
            self.learnt = (patience > FIRST_PATIENCE).then_some((patience, now + LEARNT_FOR));
        }
    }

    /// Sends again over the same connection what was sent before the answered request, is late, and has no answer. The
    /// usual connection is a pool: while others of it work, one may have broken without a sign.
    pub(super) fn repeat_overtaken(&mut self, now: Instant, answered: &Request) {
        let patience = self.patience(now);
        let is_overtaken = |request: &Request| {
            request.connection == answered.connection
                && request.key != answered.key
                && request.since < answered.since
                && request.since + patience <= now
        };
        let overtaken: Vec<(u64, ServiceKey)> = self
            .requests
            .iter()
            .filter(|(_, request)| is_overtaken(request))
            .map(|(id, request)| (*id, request.key.clone()))
            .collect();
        for (id, key) in overtaken {
            if let Some(running) = self.running.get_mut(&key) {
                running.requests.retain(|other| *other != id);
            }
            self.drop_requests(vec![id]);
            self.send(now, &key, answered.connection, SwapRequest::Read);
        }
    }

    pub(super) fn patience(&self, now: Instant) -> Duration {
        self.learnt.filter(|(_, until)| now < *until).map_or(FIRST_PATIENCE, |(patience, _)| patience)
    }

    /// When the request of a swap is repeated over another connection.
    pub(super) fn late_at(&self, running: &Running, patience: Duration) -> Option<Instant> {
        let mut last = None;
        for request in running.requests.iter().filter_map(|id| self.requests.get(id)) {
            if self.spare.as_ref().is_some_and(|spare| spare.connection == request.connection) {
                return None;
            }
            last = last.max(Some(request.since + patience));
        }
        last
    }

    /// All requests of this swap are late: repeats it over another connection.
    pub(super) fn elsewhere(&mut self, now: Instant, key: &ServiceKey) {
        let next = if self.asks_over(key, self.main.connection) {
            self.instead_of(now, self.main.connection)
        } else {
            self.main.connection
        };
        let Some(running) = self.running.get_mut(key) else { return };
        // Requests over connections that are not in use any more are dropped.
        let (main, requests) = (self.main.connection, &self.requests);
        let is_kept = |id: &u64| requests.get(id).is_some_and(|request| request.connection == main);
        let (kept, dropped) = std::mem::take(&mut running.requests).into_iter().partition(is_kept);
        running.requests = kept;
        self.drop_requests(dropped);
        self.send(now, key, next, SwapRequest::Read);
    }

    pub(super) fn asks_over(&self, key: &ServiceKey, connection: u64) -> bool {
        let ids = self.running.get(key).map(|running| running.requests.as_slice()).unwrap_or_default();
        ids.iter().any(|id| self.requests.get(id).is_some_and(|request| request.connection == connection))
    }

    /// The connection to use when `connection` has failed.
    pub(super) fn instead_of(&mut self, now: Instant, connection: u64) -> u64 {
        if connection == self.main.connection && connection != USUAL {
            // This connection survived the last outage; in this one the usual connection may be better.
            self.main = Main { connection: USUAL, heard: None };
            self.close(connection);
            return USUAL;
        }
        match &self.spare {
            Some(spare) if spare.connection != connection => spare.connection,
            Some(spare) => {
                let patience = spare.patience;
                self.open(now, patience)
            }
            None => self.open(now, SPARE_PATIENCE.max(self.patience(now))),
        }
    }

    /// Opens another second connection.
    pub(super) fn open(&mut self, now: Instant, patience: Duration) -> u64 {
        self.numbers += 1;
        let (connection, server) = (self.numbers, self.servers);
        self.servers += 1;
        let old = self.spare.replace(Spare { connection, since: now, patience });
        if let Some(old) = old {
            self.close(old.connection);
        }
        self.acts.push(SwapAct::Open { connection, server });
        connection
    }

    /// Replaces the second connection if it stays silent too.
    pub(super) fn next_spare(&mut self, now: Instant) {
        let Some((silent, _)) = self.silent_spare().filter(|(_, until)| *until <= now) else { return };
        let (old, patience) =
            (silent.connection, (silent.patience * 2).min(LONGEST_SPARE_PATIENCE.max(silent.patience)));
        let next = self.open(now, patience);
        let moved: Vec<ServiceKey> = self
            .requests
            .values()
            .filter(|request| request.connection == old)
            .map(|request| request.key.clone())
            .collect();
        for key in moved {
            let Some(running) = self.running.get_mut(&key) else { continue };
            let requests = &self.requests;
            let is_old = |id: &u64| requests.get(id).is_some_and(|request| request.connection == old);
            let (dropped, kept) = std::mem::take(&mut running.requests).into_iter().partition(is_old);
            running.requests = kept;
            self.drop_requests(dropped);
            self.send(now, &key, next, SwapRequest::Read);
        }
    }

    /// The second connection and the end of its wait, if one of its requests is open and the main connection has been
    /// silent since the second was opened. A connection that has answered before may hang too.
    pub(super) fn silent_spare(&self) -> Option<(&Spare, Instant)> {
        let spare = self.spare.as_ref().filter(|spare| self.main_is_silent_since(spare))?;
        let open = self.requests.values().filter(|request| request.connection == spare.connection);
        let oldest = open.map(|request| request.since).min()?;
        Some((spare, oldest + spare.patience))
    }

    pub(super) fn main_is_silent_since(&self, spare: &Spare) -> bool {
        self.main.heard.is_none_or(|heard| heard < spare.since)
    }

    pub(super) fn close(&mut self, connection: u64) {
        if connection != USUAL {
            self.acts.push(SwapAct::Close(connection));
        }
    }
}
