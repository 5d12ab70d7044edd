//! Owners that the detector found silent. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use l2_types::Mac;

use super::timing::TOLD_AFTER;
use super::{OwnerRecord, OwnerVerdict, Term};
use crate::detect::landmarks::Side;

/// What the last burst showed for one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerSilence {
    /// The other MAC that answers for the address.
    pub taken: Option<Mac>,
    /// On which side of the LAN this node is.
    pub side: Side,
    /// This node hears the gateway and every other host that it heard before, or it hears the owner itself. So it has
    /// lost at most the owner.
    pub certain: bool,
    /// This node has heard the owner answer before. If it never did, it may be unable to hear any peer, as behind
    /// isolated ports with a router that answers for all hosts.
    pub heard: bool,
    /// When the owner had last answered this node as a landmark before it fell silent.
    pub last: Option<Instant>,
    /// How many landmarks this node hears that are not members.
    pub outside: u8,
}

fn before_that(now: Instant, time: Duration) -> Instant {
    now.checked_sub(time).unwrap_or(now)
}

/// A node that hears more than this many times the hosts that another one hears counts as being on the clients' side.
const OUTHEARD: u8 = 2;

fn is_many_more(more: u8, hosts: u8) -> bool {
    more > hosts.saturating_mul(OUTHEARD)
}

impl OwnerSilence {
    /// Whether this node hears more than twice as many hosts as the owner, which says that it hears `theirs`.
    pub fn hears_many_more(self, theirs: u8) -> bool {
        is_many_more(self.outside, theirs)
    }

    /// Whether the owner, which says that it hears `theirs` hosts, hears so many more that most probably this node has
    /// lost the clients (decisions.md 24). The factor is needed because two nodes never hear exactly the same hosts. A
    /// node that is certain to have lost only the owner needs no comparison.
    pub fn owner_hears_more(self, theirs: u8) -> bool {
        !self.certain && is_many_more(theirs, self.outside)
    }

    /// Whether the owner was in reach before it fell silent at `since`: it has answered under its record, or at an
    /// address of its own shortly before. If it was not, the LAN may keep the two nodes apart.
    pub fn was_heard(self, since: Instant) -> bool {
        self.heard || self.last.is_some_and(|last| since < last + TOLD_AFTER)
    }
}

/// One silent address: since when, under which term, and what the last burst showed.
#[derive(Debug)]
struct SilentAddress {
    since: Instant,
    /// When the first verdict would have come after a burst of the usual length.
    missed: Instant,
    /// When the last burst ended.
    tested: Instant,
    term: Term,
    silence: OwnerSilence,
}

/// An owner that is silent for some of its addresses.
#[derive(Debug, Default)]
struct SilentOwner {
    silent: BTreeMap<IpAddr, SilentAddress>,
    /// The addresses for which it has answered under their record, with the term of that record.
    heard: BTreeMap<IpAddr, Term>,
}

impl SilentOwner {
    fn was_heard(&self, term: Term, address: IpAddr) -> bool {
        self.heard.get(&address) == Some(&term)
    }

    /// Whether silence about one address of `group` says anything about the owner. An owner that has answered for
    /// another one under this record knows the record. It knows too why it has never had this one: a stranger has it,
    /// or the kernel refuses it. Most often the next owner would meet the same, and all connections of the others would
    /// be reset.
    fn counts(&self, term: Term, address: IpAddr, group: &[IpAddr]) -> bool {
        self.was_heard(term, address) || !group.iter().any(|other| self.was_heard(term, *other))
    }
}

/// An owner that answers for nothing any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostOwner<'a> {
    /// Its name.
    pub owner: &'a str,
    /// When the last of its addresses fell silent.
    pub since: Instant,
    /// How many landmarks this node hears that are not members.
    pub outside: u8,
}

/// Silent owners with their silent addresses.
#[derive(Debug, Default)]
pub struct Silences {
    owners: BTreeMap<String, SilentOwner>,
    /// How many addresses of each owner this node watches.
    watched: BTreeMap<String, usize>,
}

impl Silences {
    /// Takes in a verdict of the detector.
    pub fn note(&mut self, now: Instant, verdict: OwnerVerdict) {
        match verdict {
            OwnerVerdict::Silent { owner, vips, taken, side, certain, heard, last, outside, longer } => {
                let known = self.owners.entry(owner).or_default();
                let was_heard = !heard.is_empty();
                known.heard.extend(heard.into_iter().map(|vip| (vip.address, vip.term)));
                let free = vips.into_iter().map(|vip| (vip, None));
                for (vip, taken) in free.chain(taken.into_iter().map(|(vip, by)| (vip, Some(by)))) {
                    let before = known.silent.get(&vip.address).filter(|found| found.term == vip.term);
                    let since = before.map_or(now, |found| found.since);
                    let missed = before.map_or_else(|| before_that(now, longer), |found| found.missed);
                    let last = before.map_or(last, |found| found.silence.last);
                    let silence = OwnerSilence { taken, side, certain, heard: was_heard, last, outside };
                    let found = SilentAddress { since, missed, tested: now, term: vip.term, silence };
                    known.silent.insert(vip.address, found);
                }
            }
            OwnerVerdict::Answers { owner, vip } => {
                if let Some(known) = self.owners.get_mut(&owner)
                    && let Some(found) = known.silent.remove(&vip)
                {
                    known.heard.insert(vip, found.term);
                }
            }
        }
    }

    fn found<'a>(
        &'a self,
        record: &'a OwnerRecord,
        addresses: &'a [IpAddr],
    ) -> impl Iterator<Item = (IpAddr, &'a SilentAddress)> {
        let known = self.owners.get(&record.host);
        addresses.iter().filter_map(move |address| {
            let known = known.filter(|known| known.counts(record.term, *address, addresses))?;
            // Under a newer record the owner must first be heard again (R5).
            let found = known.silent.get(address).filter(|found| found.term == record.term)?;
            Some((*address, found))
        })
    }

    /// The finding about these addresses of a group that justifies a take-over most, if the owner is silent for one of
    /// them.
    pub fn of(&self, record: &OwnerRecord, addresses: &[IpAddr]) -> Option<OwnerSilence> {
        let found = self.found(record, addresses).map(|(_, found)| found.silence);
        found.max_by_key(|silence| (silence.taken.is_none(), silence.side))
    }

    /// When the last of these addresses fell silent.
    pub fn latest(&self, record: &OwnerRecord, addresses: &[IpAddr]) -> Option<Instant> {
        self.found(record, addresses).map(|(_, found)| found.since).max()
    }

    /// Whether somebody else still answered for one of these addresses when it had been silent for so long.
    pub fn is_taken_after(&self, record: &OwnerRecord, addresses: &[IpAddr], time: Duration) -> bool {
        let taken = |found: &SilentAddress| found.silence.taken.is_some() && found.tested >= found.since + time;
        self.found(record, addresses).any(|(_, found)| taken(found))
    }

    /// Those of these addresses for which the owner is silent.
    pub fn silent_among(&self, record: &OwnerRecord, addresses: &[IpAddr]) -> Vec<IpAddr> {
        self.found(record, addresses).map(|(address, _)| address).collect()
    }

    /// When the first of these addresses would have been reported, had its burst been of the usual length.
    pub fn missed(&self, record: &OwnerRecord, addresses: &[IpAddr]) -> Option<Instant> {
        self.found(record, addresses).map(|(_, found)| found.missed).min()
    }

    /// Whether an owner whose Lease is renewed now, and was renewed `before`, has written its card for the first time
    /// since an address of it fell silent, or for the first time long enough after that.
    pub fn is_told(&self, now: Instant, owner: &str, before: Option<Instant>) -> bool {
        let silent = self.owners.get(owner).into_iter().flat_map(|known| known.silent.values());
        let mut due = silent.flat_map(|found| [found.since, found.since + TOLD_AFTER]);
        due.any(|at| at <= now && before.is_none_or(|before| before < at))
    }

    /// Owners that answer for nothing any more and were in reach before, while this node is on the clients' side of the
    /// LAN.
    pub fn lost(&self) -> impl Iterator<Item = LostOwner<'_>> {
        let tells = |found: &SilentAddress| found.silence.side == Side::Greater && found.silence.was_heard(found.since);
        self.owners.iter().filter_map(move |(owner, known)| {
            let all = || known.silent.values();
            let is_lost = self.watched.get(owner) == Some(&known.silent.len()) && all().all(tells);
            let since = all().map(|found| found.since).max().filter(|_| is_lost)?;
            let outside = all().map(|found| found.silence.outside).max()?;
            Some(LostOwner { owner: owner.as_str(), since, outside })
        })
    }

    /// Takes in which addresses this node watches from now on, with the terms of their records. Forgets verdicts about
    /// others, and those under older records: under a newer one an answer is expected, so none would take them back.
    pub fn retain(&mut self, watched: &BTreeMap<(String, IpAddr), Term>) {
        self.watched.clear();
        for (owner, _) in watched.keys() {
            *self.watched.entry(owner.clone()).or_default() += 1;
        }
        self.owners.retain(|owner, known| {
            let term = |vip: &IpAddr| watched.get(&(owner.clone(), *vip)).copied();
            known.silent.retain(|vip, found| term(vip) == Some(found.term));
            known.heard.retain(|vip, _| term(vip).is_some());
            !known.silent.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::Watched;
    use super::*;

    const THIEF: Mac = Mac::new([2, 0, 0, 0, 0, 9]);

    fn vip(last: u8) -> Watched {
        Watched { address: IpAddr::from([10, 0, 0, last]), mac: Mac::new([2, 0, 0, 0, 1, 2]), term: Term(4) }
    }

    fn record(term: u64) -> OwnerRecord {
        OwnerRecord { host: "node-2".into(), term: Term(term) }
    }

    fn silent(vips: Vec<Watched>, taken: Vec<(Watched, Mac)>) -> OwnerVerdict {
        let heard = vips.iter().copied().chain(taken.iter().map(|(vip, _)| *vip)).collect();
        silent_beside(vips, taken, heard)
    }

    /// Before, it has answered for these.
    fn silent_beside(vips: Vec<Watched>, taken: Vec<(Watched, Mac)>, heard: Vec<Watched>) -> OwnerVerdict {
        OwnerVerdict::Silent {
            owner: "node-2".into(),
            vips,
            taken,
            side: Side::Lesser,
            certain: false,
            heard,
            last: None,
            outside: 1,
            longer: Duration::ZERO,
        }
    }

    #[test]
    fn of_a_group_the_address_that_nobody_answers_for_counts_and_one_that_answers_is_forgotten() {
        let (now, [free, taken, other]) = (Instant::now(), [5, 6, 7].map(vip));
        let mut silences = Silences::default();
        silences.note(now, silent(vec![free], vec![(taken, THIEF)]));
        let by = |vips: &[Watched]| {
            let addresses: Vec<IpAddr> = vips.iter().map(|vip| vip.address).collect();
            silences.of(&record(4), &addresses).map(|silence| silence.taken)
        };
        assert_eq!((by(&[taken]), by(&[taken, free]), by(&[other])), (Some(Some(THIEF)), Some(None), None));
        silences.note(now, OwnerVerdict::Answers { owner: "node-2".into(), vip: free.address });
        assert_eq!(silences.of(&record(4), &[free.address]), None, "though another one is still missing");
        assert!(silences.of(&record(4), &[taken.address]).is_some());
        silences.retain(&BTreeMap::from([(("node-2".to_owned(), free.address), free.term)]));
        assert_eq!(silences.of(&record(4), &[taken.address]), None);
    }

    #[test]
    fn what_was_found_under_an_older_record_says_nothing_about_a_newer_one() {
        let (now, free) = (Instant::now(), vip(5));
        let mut silences = Silences::default();
        silences.note(now, silent(vec![free], Vec::new()));
        assert_eq!(silences.of(&record(5), &[free.address]), None);
        let later = now + Duration::from_secs(1);
        silences.note(later, silent(vec![free], Vec::new()));
        assert_eq!(silences.latest(&record(4), &[free.address]), Some(now), "it never answered between them");
        silences.note(later, silent(vec![Watched { term: Term(5), ..free }], Vec::new()));
        assert_eq!(silences.latest(&record(5), &[free.address]), Some(later));
    }

    #[test]
    fn how_long_a_group_was_missed_is_counted_for_its_own_addresses_that_the_owner_had() {
        let (start, [good, never, other]) = (Instant::now() + Duration::from_mins(10), [5, 6, 7].map(vip));
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut silences = Silences::default();
        // One never came up, and another Service has lost its address.
        silences.note(start, silent_beside(vec![never], Vec::new(), vec![good]));
        silences.note(at(60), silent(vec![other], Vec::new()));
        let group = [good.address, never.address];
        assert_eq!(silences.missed(&record(4), &group), None);
        let mut many = silent_beside(vec![good, never], Vec::new(), vec![good]);
        if let OwnerVerdict::Silent { longer, .. } = &mut many {
            *longer = Duration::from_secs(1);
        }
        silences.note(at(100), many);
        assert_eq!(silences.missed(&record(4), &group), Some(at(99)), "the burst had many turns");
        silences.note(at(200), silent(vec![good], Vec::new()));
        assert_eq!(silences.missed(&record(4), &group), Some(at(99)), "it never answered between them");
        assert_eq!(silences.missed(&record(4), &[other.address]), Some(at(60)));
    }

    #[test]
    fn the_first_card_since_a_silence_and_the_first_one_long_after_it_are_news_and_later_ones_are_not() {
        let (start, [first, second]) = (Instant::now(), [5, 6].map(vip));
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut silences = Silences::default();
        silences.note(start, silent(vec![first], Vec::new()));
        silences.note(at(30), silent(vec![second], Vec::new()));
        for (before, now, told) in [
            (None, 1, true),
            (Some(1), 6, false),
            (Some(6), 12, false),
            (Some(8), 13, true),
            (Some(13), 18, false),
            (Some(28), 33, true),
            (Some(33), 38, false),
            (Some(38), 43, true),
            (Some(43), 48, false),
        ] {
            assert_eq!(silences.is_told(at(now), "node-2", before.map(at)), told, "{before:?} {now}");
        }
        assert!(!silences.is_told(at(100), "node-3", None));
    }

    #[test]
    fn an_address_that_never_answered_counts_only_where_no_other_one_of_the_group_has_answered() {
        let (now, [good, never]) = (Instant::now(), [5, 6].map(vip));
        let group = [good.address, never.address];
        let older = Watched { term: Term(3), ..good };
        for (name, silent, heard, counts) in [
            ("it answers for another one", vec![never], vec![good], false),
            ("it has answered for neither", vec![never], vec![], true),
            ("it has answered for the other one under an older record", vec![never], vec![older], true),
            ("it has answered for this one before", vec![never], vec![good, never], true),
            ("it is silent for both by now", vec![good, never], vec![good], true),
        ] {
            let mut silences = Silences::default();
            silences.note(now, silent_beside(silent, Vec::new(), heard));
            assert_eq!(silences.of(&record(4), &group).is_some(), counts, "{name}");
            assert_eq!(silences.latest(&record(4), &group).is_some(), counts, "{name}");
            assert!(silences.of(&record(4), &group[1..]).is_some(), "{name}: in a group of its own");
        }
        let mut silences = Silences::default();
        silences.note(now, silent_beside(vec![good, never], Vec::new(), Vec::new()));
        assert!(silences.of(&record(4), &group).is_some());
        silences.note(now, OwnerVerdict::Answers { owner: "node-2".into(), vip: good.address });
        assert_eq!(silences.of(&record(4), &group), None, "it has needed a while");
    }

    #[test]
    fn an_owner_is_lost_that_was_in_reach_and_answers_for_nothing_if_clients_are_on_this_side() {
        let (now, all) = (Instant::now(), [5, 6].map(vip));
        let watched: BTreeMap<_, _> = all.iter().map(|vip| (("node-2".to_owned(), vip.address), vip.term)).collect();
        let recently = now.checked_sub(Duration::from_secs(12));
        for (name, vips, taken, on, had, answered, lost) in [
            ("it answers for nothing", &all[..], &[][..], Side::Greater, true, None, true),
            ("somebody else answers for one", &all[..1], &all[1..], Side::Greater, true, None, true),
            ("one is missing", &all[..1], &[], Side::Greater, true, None, false),
            ("this node may be cut off", &all, &[], Side::Lesser, true, None, false),
            ("it was never heard", &all, &[], Side::Greater, false, None, false),
            ("it was heard at an address of its own", &all, &[], Side::Greater, false, recently, true),
        ] {
            let taken = taken.iter().map(|vip| (*vip, THIEF)).collect();
            let heard = if had { all.to_vec() } else { Vec::new() };
            let mut verdict = silent_beside(vips.to_vec(), taken, heard);
            if let OwnerVerdict::Silent { side, last, .. } = &mut verdict {
                (*side, *last) = (on, answered);
            }
            let mut silences = Silences::default();
            silences.retain(&watched);
            silences.note(now, verdict);
            let found: Vec<LostOwner<'_>> = silences.lost().collect();
            let expected = LostOwner { owner: "node-2", since: now, outside: 1 };
            assert_eq!(found, if lost { vec![expected] } else { vec![] }, "{name}");
        }
    }

    #[test]
    fn who_has_lost_nobody_but_the_owner_needs_no_comparison() {
        for (certain, outside, theirs, owner_hears_more) in
            [(true, 1, 8, false), (false, 1, 8, true), (false, 4, 8, false), (false, 0, 1, true), (false, 0, 0, false)]
        {
            let silence = OwnerSilence { taken: None, side: Side::Greater, certain, heard: true, last: None, outside };
            assert_eq!(silence.owner_hears_more(theirs), owner_hears_more, "{silence:?} {theirs}");
        }
    }

    #[test]
    fn more_than_twice_as_many_hosts_are_many_more() {
        let silence =
            OwnerSilence { taken: None, side: Side::Greater, certain: true, heard: false, last: None, outside: 5 };
        for (theirs, many_more) in [(0, true), (2, true), (3, false), (9, false)] {
            assert_eq!(silence.hears_many_more(theirs), many_more, "{theirs}");
        }
    }
}
