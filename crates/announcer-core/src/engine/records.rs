//! What has to be written on each Service, and when. Nothing is written that is there already.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::due::{Due, Timed};
use super::{Action, Record, Recorded};
use crate::view::{Published, ServiceKey};

/// How long after our own write the watch may still show the old Service. Later, another writer must have changed it
/// back.
const RECORD_SETTLE: Duration = Duration::from_secs(1);
/// How long another node's name is tolerated where ours was, unless the Lease shows another holder before. A holder
/// reads the Lease in each retry period. Without this pause, two nodes that both believe to hold the Lease would
/// overwrite each other with every watch event.
const HOLD: Duration = Duration::from_secs(10);

/// State of the record of one Service.
#[derive(Debug, Default)]
struct ServiceRecord {
    asked: Option<Record>,
    in_flight: bool,
    done_at: Option<Instant>,
    /// Our record has been on the Service since this node took it over.
    stood: bool,
    /// Since when another node's name is there instead.
    replaced: Option<Instant>,
    recheck: Option<Instant>,
    /// The announcer that the Service named when this node first looked.
    previous: Option<String>,
    /// The addresses that the last Event named as announced by this node.
    told: BTreeSet<IpAddr>,
    /// Those of them that a later Event named as not announced.
    over: BTreeSet<IpAddr>,
}

impl Timed for ServiceRecord {
    fn deadline(&self) -> Option<Instant> {
        self.recheck
    }
}

/// The records of all Services.
#[derive(Debug, Default)]
pub(super) struct Records(Due<ServiceKey, ServiceRecord>);

impl Records {
    /// When a record has to be checked again.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.first()
    }

    /// Updates the deadlines after changes.
    pub fn settle(&mut self) {
        self.0.settle();
    }

    /// Whether a record has to be checked again now. The deadline is cleared in any case, because a VIP that is down
    /// needs no record.
    pub fn take_due(&mut self, now: Instant) -> bool {
        if !self.0.is_due(now) {
            return false;
        }
        let mut due = false;
        for record in self.0.values_mut() {
            due |= record.recheck.take_if(|at| *at <= now).is_some();
        }
        due
    }

    /// Drops the records of Services that have no VIP here.
    pub fn keep(&mut self, mut has_vips: impl FnMut(&ServiceKey) -> bool) -> Vec<Action> {
        let gone: Vec<ServiceKey> = self.0.keys().filter(|key| !has_vips(key)).cloned().collect();
        for key in &gone {
            self.0.remove(key);
        }
        gone.into_iter().map(Action::Forget).collect()
    }

    /// Requests that `wanted` is written, unless `published` shows it already. `confirmed`: this node is certainly the
    /// owner.
    pub fn want(
        &mut self,
        now: Instant,
        key: &ServiceKey,
        mut wanted: Record,
        published: Option<&Published>,
        confirmed: bool,
    ) -> Option<Action> {
        let record = self.0.entry(key.clone()).or_default();
        // For Services that come together, the watch shows one before the other. That must not change the turn.
        if let Some(asked) = record.asked.as_ref().filter(|asked| asked.ingress == wanted.ingress) {
            wanted.turn = asked.turn;
        }
        let replaced = wanted.term.is_none()
            && wanted.vip_host.is_some()
            && published.is_some_and(|published| published.vip_host.is_some() && published.vip_host != wanted.vip_host);
        record.recheck = None;
        if published.is_some_and(|published| stands(published, &wanted)) {
            // Another writer may change it back later; then it is requested again.
            if !record.in_flight {
                record.asked = None;
            }
            record.stood = true;
            record.replaced = None;
            return None;
        }
        if replaced && record.stood && !record.in_flight {
            let until = *record.replaced.get_or_insert(now) + HOLD;
            if now < until || !confirmed {
                record.recheck = Some(until.max(now + RECORD_SETTLE));
                return None;
            }
            record.replaced = None;
        }
        if record.asked.as_ref() == Some(&wanted) {
            if record.in_flight {
                return None;
            }
            // The watch may lag behind our own write.
            if let Some(settled) = record.done_at.map(|done| done + RECORD_SETTLE)
                && now < settled
            {
                record.recheck = Some(settled);
                return None;
            }
        }
        record.asked = Some(wanted.clone());
        record.in_flight = true;
        Some(Action::Record(key.clone(), Box::new(wanted)))
    }

    /// Takes in the result of a record.
    pub fn answered(&mut self, now: Instant, key: &ServiceKey, recorded: &Recorded) -> Answered {
        let record = match (self.0.get_mut(key), recorded) {
            (None, _) | (_, Recorded::Failed) => return Answered::Nothing,
            (Some(record), _) => record,
        };
        record.in_flight = false;
        record.done_at = Some(now);
        if matches!(recorded, Recorded::Gone | Recorded::Superseded) {
            // The watch will show it too. No announcement waits for this write.
            return Answered::Settled;
        }
        record.stood = true;
        Answered::Written(record.asked.iter().flat_map(|asked| &asked.ingress).flatten().map(|(ip, _)| *ip).collect())
    }

    /// The Service is planned on `node`. `published` is what it said before this node wrote anything. What an earlier
    /// process of this node published counts as told.
    pub fn look(&mut self, key: &ServiceKey, published: &Published, node: &str) {
        if self.0.contains_key(key) {
            return;
        }
        let mut record = ServiceRecord { previous: published.vip_host.clone(), ..ServiceRecord::default() };
        if record.previous.as_deref() == Some(node) {
            record.told = published.ingress.iter().filter_map(|entry| entry.ip).collect();
        }
        self.0.insert(key.clone(), record);
    }

    /// The VIPs of the Service at `up` are up, those at `wanted` should be. Returns whether an Event is due.
    pub fn announced(&mut self, key: &ServiceKey, up: &BTreeSet<IpAddr>, wanted: &BTreeSet<IpAddr>) -> RecordNews {
        let Some(record) = self.0.get_mut(key) else { return RecordNews::None };
        // If one of two addresses is down for a moment, neither that nor its return is news.
        let stays = |address: &IpAddr| up.contains(address) || wanted.contains(address);
        if up.is_subset(&record.told) && up.is_disjoint(&record.over) && record.told.iter().all(stays) {
            return RecordNews::None;
        }
        record.over.clear();
        let former: Vec<IpAddr> = record.told.difference(up).copied().collect();
        let first = record.told.is_empty();
        record.told.clone_from(up);
        if first { RecordNews::First { announcer: record.previous.take() } } else { RecordNews::Other { former } }
    }

    /// An Event has said that this address is not announced any more, so its return is news.
    pub fn told_over(&mut self, key: &ServiceKey, address: IpAddr) {
        if let Some(record) = self.0.get_mut(key).filter(|record| record.told.contains(&address)) {
            record.over.insert(address);
        }
    }
}

/// What is new about the announced addresses of a Service.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RecordNews {
    /// Nothing.
    None,
    /// These are the first addresses.
    First {
        /// The announcer that the Service named when this node first looked.
        announcer: Option<String>,
    },
    /// Some addresses are new.
    Other {
        /// Addresses that are not announced any more.
        former: Vec<IpAddr>,
    },
}

/// Result of [`Records::answered`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// The write is being retried, or is not wanted any more.
    Nothing,
    /// The write is over, and nothing was written.
    Settled,
    /// These addresses are in the status.
    Written(Vec<IpAddr>),
}

/// Whether the Service shows the wanted record. Only the fields that the announcer writes are compared, because the API
/// server adds `ipMode`.
pub fn stands(published: &Published, wanted: &Record) -> bool {
    let text = |published: &Option<String>, wanted: &Option<String>| {
        wanted
            .as_ref()
            .is_none_or(|wanted| published.as_ref().is_some_and(|published| published.eq_ignore_ascii_case(wanted)))
    };
    let turn = wanted.turn;
    (wanted.vip_host.is_none() || published.vip_host == wanted.vip_host)
        && wanted.term.is_none_or(|term| published.term == Some(term))
        && text(&published.hwaddr, &wanted.hwaddr)
        && text(&published.requested_ip, &wanted.requested_ip)
        && wanted.lease.as_ref().is_none_or(|lease| published.lease.as_ref() == Some(lease))
        && wanted.lost.standing(published).is_empty()
        && wanted.lease6.as_ref().is_none_or(|lease| published.lease6.as_ref() == Some(lease))
        && wanted.ingress.as_ref().is_none_or(|wanted| {
            published.turn == turn
                && published.ingress.len() == wanted.len()
                && published
                    .ingress
                    .iter()
                    .zip(wanted)
                    .all(|(entry, (ip, ports))| entry.ip == Some(*ip) && entry.ports == *ports)
        })
}
