//! The newest record of each Service that the watch or a swap has shown, and the hosts that earlier records named. A
//! record is remembered when its annotation is gone, because another writer may have replaced all annotations.

use std::collections::BTreeMap;

use super::{OwnerRecord, Term};
use crate::view::{ServiceKey, Uid};

/// The nodes that have to learn that a record names this node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Recipient {
    /// A host that an earlier record named.
    Host(String),
    /// Every member whose watch has not shown this term yet.
    OutdatedMembers,
}

/// The newest records and the former owners; see the module.
#[derive(Debug, Default)]
pub(super) struct OwnerRecords {
    known: BTreeMap<ServiceKey, (Uid, OwnerRecord)>,
    /// The newest term that counts, of records, claims and cards. It remains when its Service goes.
    newest: Term,
    /// The newest term that counts and that the watch has shown.
    pub watched_term: Term,
    /// The former hosts of each record, with the term under which each lost it. A host is removed when it is known to
    /// have learnt of the loss. They are kept because later owners may have failed before they could tell them.
    former: BTreeMap<ServiceKey, BTreeMap<String, Term>>,
    /// Records that name this node now, and the nodes that have to learn of it.
    pub gained: Vec<(ServiceKey, Recipient)>,
}

/// What a newer record changes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Learnt {
    /// The former owner, if it was another node.
    pub before: Option<String>,
    /// This node knew an earlier record that did not name it. True also after this node gave the record up for an older
    /// claim.
    pub regained: bool,
}

impl OwnerRecords {
    /// Takes in a record. The newest one counts; a new Service of the same name starts afresh. `None`: the record is
    /// not news.
    pub fn learn(&mut self, me: &str, key: &ServiceKey, uid: &Uid, owner_record: OwnerRecord) -> Option<Learnt> {
        let known = self.of(key, uid);
        // Another host under the same term was not written by a swap: kube-vip or another mode wrote its name beside
        // our term. The record on the Service counts; otherwise two nodes would each follow what they remember.
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
        self.count(owner_record.term);
        self.known.insert(key.clone(), (uid.clone(), owner_record));
        Some(Learnt { before, regained })
    }

    /// The newest record for this name, of any UID.
    pub fn get(&self, key: &ServiceKey) -> Option<&(Uid, OwnerRecord)> {
        self.known.get(key)
    }

    /// The newest record of the Service with this UID.
    pub fn of(&self, key: &ServiceKey, uid: &Uid) -> Option<&OwnerRecord> {
        self.known.get(key).filter(|(known, _)| known == uid).map(|(_, owner_record)| owner_record)
    }

    /// Notes a term that a claim has carried. The claim may be a lie, so it takes the count no further than honest
    /// changes could.
    pub fn note_heard(&mut self, term: Term) {
        if term.is_within_a_step_of(self.newest) {
            self.count(term);
        }
    }

    /// Notes a term on the card of a member. Announcers alone write the cards, so it counts.
    pub fn note_on_card(&mut self, term: Term) {
        self.newest = self.newest.max(term);
    }

    /// Notes a term that the watch has shown. What stands on our card has to count: a term from which other nodes do
    /// not count would make them believe that this node knows of later changes, too.
    pub fn note_watched(&mut self, term: Term) {
        if self.count(term) {
            self.watched_term = self.watched_term.max(term);
        }
    }

    /// Whether a term counts for other Services. Any user who may write a Service may write its record, so a term that
    /// nobody can have counted counts for its own Service alone.
    pub fn is_counted(&self, term: Term) -> bool {
        term.is_counted(self.newest)
    }

    /// Counts on from `term`, if it counts. Returns whether it does.
    fn count(&mut self, term: Term) -> bool {
        let counts = self.is_counted(term);
        if counts {
            self.newest = self.newest.max(term);
        }
        counts
    }

    /// Gives the record up: under `term` no owner is known. Returns the record as it was; `None`: it is newer.
    pub fn give_up(&mut self, key: &ServiceKey, term: Term) -> Option<(Uid, OwnerRecord)> {
        let (uid, owner_record) = self.known.get_mut(key).filter(|(_, known)| known.term < term)?;
        let given_up = std::mem::replace(owner_record, OwnerRecord { host: String::new(), term });
        Some((uid.clone(), given_up))
    }

    /// The API shows a record of the term `stands` for a Service whose record was given up under a newer one. So that
    /// record is news.
    pub fn lower(&mut self, key: &ServiceKey, uid: &Uid, stands: Term) {
        if let Some((known, owner_record)) = self.known.get_mut(key)
            && known == uid
            && owner_record.host.is_empty()
        {
            owner_record.term = owner_record.term.min(stands);
        }
    }

    /// The newest term that counts, from which the next swap counts on (decisions.md 20).
    pub fn newest_term(&self) -> Term {
        self.newest
    }

    /// Forgets Services that do not exist any more, and former owners that know of their loss.
    pub fn retain(&mut self, uid_of: impl Fn(&ServiceKey) -> Option<Uid>, knows: impl Fn(&str, Term) -> bool) {
        self.known.retain(|key, (uid, _)| uid_of(key).as_ref() == Some(uid));
        self.former.retain(|key, hosts| {
            hosts.retain(|host, lost| !knows(host, *lost));
            uid_of(key).is_some() && !hosts.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Services with these terms, as swaps and the watch have shown them.
    fn shown(terms: &[u64]) -> OwnerRecords {
        let mut records = OwnerRecords::default();
        for (number, term) in terms.iter().enumerate() {
            let key = ServiceKey::new("default", format!("web{number}"));
            let owner_record = OwnerRecord { host: "node-2".into(), term: Term(*term) };
            records.note_watched(owner_record.term);
            records.learn("node-1", &key, &Uid("u".into()), owner_record);
        }
        records
    }

    #[test]
    fn no_term_that_an_author_writes_takes_the_changes_of_other_services_out_of_the_count() {
        for (authors, newest) in
            [(1 << 32, 1 << 32), ((1 << 32) + 1, 7), (1 << 39, 7), (1 << 40, 7), ((1 << 40) + 1, 7), (1 << 41, 7)]
        {
            let mut records = shown(&[7, authors]);
            assert_eq!(records.newest_term(), Term(newest), "{authors}");
            assert_eq!(records.watched_term, Term(newest), "{authors}: no card knows more than others count from");
            for _ in 0..3 {
                let next = records.newest_term().next();
                assert!(records.is_counted(next), "{authors}");
                records.note_watched(next);
                assert_eq!((records.newest_term(), records.watched_term), (next, next), "{authors}");
            }
        }
    }

    #[test]
    fn a_process_that_starts_far_beyond_the_limit_goes_by_the_cards() {
        let far = (1 << 32) + 5000;
        let mut records = shown(&[far]);
        assert_eq!(records.newest_term(), Term(0));
        records.note_on_card(Term(far - 1));
        records.note_watched(Term(far));
        assert_eq!((records.newest_term(), records.watched_term), (Term(far), Term(far)));
    }
}
