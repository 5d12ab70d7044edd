//! What stands on each Service, and when it has to be written. Nothing is asked for that stands there already.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::due::{Due, Timed};
use super::{Action, Record, Recorded};
use crate::view::{Published, ServiceKey};

/// How long after our write the cached Service may still be the old one, before somebody must have changed it back.
const RECORD_SETTLE: Duration = Duration::from_secs(1);
/// How long another node's name stays where ours stood, unless the Lease is read to be another's before: a holder reads
/// it each retry period. Two nodes that both believe to hold it would overwrite each other with every event of the
/// watch.
const HOLD: Duration = Duration::from_secs(10);

/// What was asked for one Service.
#[derive(Debug, Default)]
struct ServiceRecord {
    asked: Option<Record>,
    in_flight: bool,
    done_at: Option<Instant>,
    /// Ours has stood there since this node took it over.
    stood: bool,
    /// Since when another node's name stands there instead.
    replaced: Option<Instant>,
    recheck: Option<Instant>,
    /// Who announced it when we first looked.
    previous: Option<String>,
    /// The addresses of which it was told last that this node announces them.
    told: BTreeSet<IpAddr>,
    /// Those of them of which it was told since that they are not announced.
    over: BTreeSet<IpAddr>,
}

impl Timed for ServiceRecord {
    fn deadline(&self) -> Option<Instant> {
        self.recheck
    }
}

/// What was asked for each Service, and what became of it.
#[derive(Debug, Default)]
pub(super) struct Records(Due<ServiceKey, ServiceRecord>);

impl Records {
    /// When one has to be looked at again.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.first()
    }

    /// Finds out now what will be asked for more than once.
    pub fn settle(&mut self) {
        self.0.settle();
    }

    /// Whether one has to be looked at again now. Cleared whatever comes of that: a VIP that is down by now asks for
    /// nothing.
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

    /// Nothing more is written on Services that have no VIP here.
    pub fn keep(&mut self, mut has_vips: impl FnMut(&ServiceKey) -> bool) -> Vec<Action> {
        let gone: Vec<ServiceKey> = self.0.keys().filter(|key| !has_vips(key)).cloned().collect();
        for key in &gone {
            self.0.remove(key);
        }
        gone.into_iter().map(Action::Forget).collect()
    }

    /// This should stand on the Service, on which `published` does. `confirmed`: it is known to be this node's.
    pub fn want(
        &mut self,
        now: Instant,
        key: &ServiceKey,
        mut wanted: Record,
        published: Option<&Published>,
        confirmed: bool,
    ) -> Option<Action> {
        let record = self.0.entry(key.clone()).or_default();
        // Of Services that come together the watch shows one before the other: nobody is behind another for that.
        if let Some(asked) = record.asked.as_ref().filter(|asked| asked.ingress == wanted.ingress) {
            wanted.turn = asked.turn;
        }
        let replaced = wanted.term.is_none()
            && wanted.vip_host.is_some()
            && published.is_some_and(|published| published.vip_host.is_some() && published.vip_host != wanted.vip_host);
        record.recheck = None;
        if published.is_some_and(|published| stands(published, &wanted)) {
            // Somebody may change it back later: then it is asked for again.
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
        Some(Action::Record(key.clone(), wanted))
    }

    /// What became of a record; answers with the addresses that were written, if it was written at all.
    pub fn answered(&mut self, now: Instant, key: &ServiceKey, recorded: &Recorded) -> Answered {
        let record = match (self.0.get_mut(key), recorded) {
            (None, _) | (_, Recorded::Failed) => return Answered::Nothing,
            (Some(record), _) => record,
        };
        record.in_flight = false;
        record.done_at = Some(now);
        if matches!(recorded, Recorded::Gone | Recorded::Superseded) {
            // The watch will say so too. Nothing is published that an announcement could have waited for.
            return Answered::Settled;
        }
        record.stood = true;
        Answered::Written(record.asked.iter().flat_map(|asked| &asked.ingress).flatten().map(|(ip, _)| *ip).collect())
    }

    /// The Service is planned here, on `node`; `published` is what stood there before this node has written anything.
    /// What a former life of this node has published, it has told of, too.
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

    /// VIPs of the Service are up under these addresses, and `wanted` are meant to be. Whether that is news.
    pub fn announced(&mut self, key: &ServiceKey, up: &BTreeSet<IpAddr>, wanted: &BTreeSet<IpAddr>) -> News {
        let Some(record) = self.0.get_mut(key) else { return News::None };
        // One of two that is down for a moment is no news, and neither is that it is back.
        let stays = |address: &IpAddr| up.contains(address) || wanted.contains(address);
        if up.is_subset(&record.told) && up.is_disjoint(&record.over) && record.told.iter().all(stays) {
            return News::None;
        }
        record.over.clear();
        let former: Vec<IpAddr> = record.told.difference(up).copied().collect();
        let first = record.told.is_empty();
        record.told.clone_from(up);
        if first { News::First { announcer: record.previous.take() } } else { News::Other { former } }
    }

    /// An Event has said that this address is not announced any more: that it is again, is news.
    pub fn told_over(&mut self, key: &ServiceKey, address: IpAddr) {
        if let Some(record) = self.0.get_mut(key).filter(|record| record.told.contains(&address)) {
            record.over.insert(address);
        }
    }
}

/// What has become known of the addresses of a Service that this node announces.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Nothing.
    None,
    /// They are the first ones.
    First {
        /// Who announced the Service when we first looked.
        announcer: Option<String>,
    },
    /// Some were not there before.
    Other {
        /// Those that are not there any more.
        former: Vec<IpAddr>,
    },
}

/// See [`Records::answered`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// It is being tried again, or was asked for by nobody any more.
    Nothing,
    /// It is over, and nothing is written.
    Settled,
    /// These are in the status.
    Written(Vec<IpAddr>),
}

/// Whether the Service says what it should. Of the status only what we write is compared: the API server adds `ipMode`.
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
