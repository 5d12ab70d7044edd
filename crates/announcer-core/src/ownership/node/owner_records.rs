//! The newest record of each Service that was seen, by watch or by swap, and whom the records have named before. A
//! record
//! outlives the annotation: somebody may have replaced all annotations.

use std::collections::BTreeMap;

use super::{OwnerRecord, Term};
use crate::view::{ServiceKey, Uid};

/// Who has to learn that a record is ours.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Recipient {
    /// A host that the record has named before.
    Host(String),
    /// Every member whose watch has not come as far.
    OutdatedMembers,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct OwnerRecords {
    known: BTreeMap<ServiceKey, (Uid, OwnerRecord)>,
    /// The newest term heard on the wire.
    heard: Term,
    /// The newest term that the watch has shown.
    pub watched_term: Term,
    /// Hosts that each record has named, and the term under which they have lost it, until they are known to know. Not
    /// all of their successors may have come to tell them.
    former: BTreeMap<ServiceKey, BTreeMap<String, Term>>,
    /// Records that became ours, and who has to learn it.
    pub gained: Vec<(ServiceKey, Recipient)>,
}

/// What a newer record shows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Learnt {
    /// Who else was the owner.
    pub before: Option<String>,
    /// This node knew the record, and was not its owner. Also from nobody: it was given up for a claim that is older.
    pub regained: bool,
}

impl OwnerRecords {
    /// A record was seen. The newest one counts; a younger Service of the same name begins anew. `None`: it is no news.
    pub fn learn(&mut self, me: &str, key: &ServiceKey, uid: &Uid, owner_record: OwnerRecord) -> Option<Learnt> {
        let known = self.of(key, uid);
        // Another host under the same term was not swapped: kube-vip, or another mode, has written its name beside our
        // term. What stands there counts, or two nodes would each go by what they know.
        let news = known.is_none_or(|known| {
            known.term < owner_record.term || (known.term == owner_record.term && known.host != owner_record.host)
        });
        if !news {
            return None;
        }
        let before = known.map(|known| known.host.clone()).filter(|host| !host.is_empty() && *host != me);
        let regained = known.is_some_and(|known| known.host != me);
        let former = self.former.entry(key.clone()).or_default();
        former.extend(before.iter().map(|from| (from.clone(), owner_record.term)));
        former.remove(&owner_record.host);
        if owner_record.host == me {
            let former = self.former.remove(key).unwrap_or_default();
            self.gained.extend(former.into_keys().map(|from| (key.clone(), Recipient::Host(from))));
        }
        self.known.insert(key.clone(), (uid.clone(), owner_record));
        Some(Learnt { before, regained })
    }

    /// The newest record, of whichever Service of that name.
    pub fn get(&self, key: &ServiceKey) -> Option<&(Uid, OwnerRecord)> {
        self.known.get(key)
    }

    /// The newest record of that Service.
    pub fn of(&self, key: &ServiceKey, uid: &Uid) -> Option<&OwnerRecord> {
        self.known.get(key).filter(|(known, _)| known == uid).map(|(_, owner_record)| owner_record)
    }

    /// A term was heard on the wire.
    pub fn note_heard(&mut self, term: Term) {
        if term.is_counted() {
            self.heard = self.heard.max(term);
        }
    }

    /// The watch has shown a term.
    pub fn note_watched(&mut self, term: Term) {
        if term.is_counted() {
            self.watched_term = self.watched_term.max(term);
        }
    }

    /// Under this term it is nobody's that we know.
    pub fn give_up(&mut self, key: &ServiceKey, term: Term) {
        if let Some((_, owner_record)) = self.known.get_mut(key).filter(|(_, known)| known.term < term) {
            *owner_record = OwnerRecord { host: String::new(), term };
        }
    }

    /// decisions.md 20. Anybody who may write a Service may write its record.
    pub fn newest_term(&self) -> Term {
        let recorded = self.known.values().map(|(_, owner_record)| owner_record.term).filter(|term| term.is_counted());
        recorded.max().unwrap_or_default().max(self.heard)
    }

    /// Nothing is known of Services that are gone, and whoever knows that it is not the owner any more is forgotten.
    pub fn retain(&mut self, uid_of: impl Fn(&ServiceKey) -> Option<Uid>, knows: impl Fn(&str, Term) -> bool) {
        self.known.retain(|key, (uid, _)| uid_of(key).as_ref() == Some(uid));
        self.former.retain(|key, hosts| {
            hosts.retain(|host, lost| !knows(host, *lost));
            uid_of(key).is_some() && !hosts.is_empty()
        });
    }
}
