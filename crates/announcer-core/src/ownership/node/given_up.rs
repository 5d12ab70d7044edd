//! Records that this node has given up for a claim (decisions.md 23). The tag of a claim proves only that its sender
//! may read the Service, so the claim may be a lie. The record of an honest claimant was written before it sent the
//! claim. So one read of the API that begins after the claim tells the owner, whatever term the claim has carried.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::owner_records::OwnerRecords;
use super::{OwnerRecord, Term};
use crate::view::{ServiceKey, Uid};

/// Pause after a read that failed. A whole LAN of owners may have given up everything while the API is away.
const READ_RETRY: Duration = Duration::from_secs(1);
/// After a lie the record is read before a claim of the same Service is believed, for this long. Otherwise each lie
/// would take the address from its clients for the time of a request.
const WARY_FOR: Duration = Duration::from_mins(10);

/// One record that was given up.
#[derive(Debug)]
pub(super) struct GivenUp {
    pub uid: Uid,
    /// The record of this node's, as it was.
    pub own: OwnerRecord,
    /// The term of the claim.
    pub claimed: Term,
    /// A read that has begun after the claim is under way.
    asked: bool,
    /// The next read is not sent before.
    next: Instant,
}

/// All records that were given up and not read since, and the Services of which somebody has lied.
#[derive(Debug, Default)]
pub(super) struct GivenUpRecords {
    unread: BTreeMap<ServiceKey, GivenUp>,
    wary_until: BTreeMap<ServiceKey, Instant>,
}

impl GivenUpRecords {
    /// Notes that this node has given up the record `own` for a claim of the term `claimed`.
    pub fn note(&mut self, now: Instant, key: &ServiceKey, uid: &Uid, own: OwnerRecord, claimed: Term) {
        let given_up = GivenUp { uid: uid.clone(), own, claimed, asked: false, next: now };
        self.unread.insert(key.clone(), given_up);
    }

    /// Whether the API has not said yet what stands.
    pub fn is_unread(&self, key: &ServiceKey) -> bool {
        self.unread.contains_key(key)
    }

    /// Whether a claim of this Service was a lie a while ago.
    pub fn is_wary(&self, now: Instant, key: &ServiceKey) -> bool {
        self.wary_until.get(key).is_some_and(|until| now < *until)
    }

    /// Whether the read that is under way has begun after the claim.
    pub fn is_asked(&self, key: &ServiceKey) -> bool {
        self.unread.get(key).is_some_and(|given_up| given_up.asked)
    }

    /// The reads that are due, if no other request `waits` for its answer. That answer may be older than the claim.
    pub fn due(&mut self, now: Instant, waits: impl Fn(&ServiceKey) -> bool) -> Vec<(ServiceKey, Uid, OwnerRecord)> {
        let due = self.unread.iter_mut().filter(|(key, given_up)| now >= given_up.next && !waits(key));
        let ask = |(key, given_up): (&ServiceKey, &mut GivenUp)| {
            given_up.asked = true;
            (key.clone(), given_up.uid.clone(), given_up.own.clone())
        };
        due.map(ask).collect()
    }

    /// The read has failed.
    pub fn read_again(&mut self, now: Instant, key: &ServiceKey) {
        if let Some(given_up) = self.unread.get_mut(key) {
            (given_up.asked, given_up.next) = (false, now + READ_RETRY);
        }
    }

    /// The API has answered.
    pub fn take(&mut self, key: &ServiceKey) -> Option<GivenUp> {
        self.unread.remove(key)
    }

    /// The claim was a lie.
    pub fn note_lie(&mut self, now: Instant, key: &ServiceKey) {
        self.wary_until.insert(key.clone(), now + WARY_FOR);
    }

    /// Forgets records that are known by now, and lies of long ago.
    pub fn retain(&mut self, now: Instant, records: &OwnerRecords) {
        self.unread.retain(|key, given_up| {
            records.of(key, &given_up.uid).is_some_and(|known| known.host.is_empty() && known.term == given_up.claimed)
        });
        self.wary_until.retain(|_, until| now < *until);
    }

    /// When the next read is due.
    pub fn deadlines(&self) -> impl Iterator<Item = Instant> + '_ {
        self.unread.values().filter(|given_up| !given_up.asked).map(|given_up| given_up.next)
    }
}
