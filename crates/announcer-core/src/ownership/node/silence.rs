//! Owners that the detector holds for silent. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use l2_types::Mac;

use super::Verdict;
use crate::detect::Side;

/// What the last burst has shown of one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silence {
    /// Another MAC answers for it.
    pub taken: Option<Mac>,
    /// On which side of the LAN this node is.
    pub side: Side,
    /// How many landmarks that are no members this node hears.
    pub outside: u8,
}

/// Silent owners with their addresses, and since when.
#[derive(Debug, Default)]
pub struct Silences(BTreeMap<String, (Instant, BTreeMap<IpAddr, Silence>)>);

impl Silences {
    /// The detector has found something out.
    pub fn note(&mut self, now: Instant, verdict: Verdict) {
        match verdict {
            Verdict::Silent { owner, vips, taken, side, outside } => {
                let (_, silent) = self.0.entry(owner).or_insert_with(|| (now, BTreeMap::new()));
                silent.extend(vips.into_iter().map(|vip| (vip, Silence { taken: None, side, outside })));
                silent.extend(taken.into_iter().map(|(vip, by)| (vip, Silence { taken: Some(by), side, outside })));
            }
            Verdict::Answers { owner } => {
                self.0.remove(&owner);
            }
        }
    }

    /// Whether `owner` does not answer for one of these: the strongest reason to take them.
    pub fn of(&self, owner: &str, addresses: &[IpAddr]) -> Option<Silence> {
        let (_, silent) = self.0.get(owner)?;
        let found = addresses.iter().filter_map(|address| silent.get(address).copied());
        found.max_by_key(|silence| (silence.taken.is_none(), silence.side))
    }

    /// Since when it is silent.
    pub fn since(&self, owner: &str) -> Option<Instant> {
        self.0.get(owner).map(|(since, _)| *since)
    }

    /// Verdicts about owners of nothing that concerns us are forgotten.
    pub fn retain(&mut self, watched: &BTreeSet<(String, IpAddr)>) {
        self.0.retain(|owner, (_, vips)| {
            vips.retain(|vip, _| watched.contains(&(owner.clone(), *vip)));
            !vips.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_group_the_address_that_nobody_answers_for_counts_and_an_owner_that_answers_is_forgotten() {
        let (now, thief) = (Instant::now(), Mac::new([2, 0, 0, 0, 0, 9]));
        let [free, taken, other] = [5, 6, 7].map(|last| IpAddr::from([10, 0, 0, last]));
        let mut silences = Silences::default();
        let owner = "node-2".to_owned();
        let verdict =
            Verdict::Silent { owner, vips: vec![free], taken: vec![(taken, thief)], side: Side::Lesser, outside: 1 };
        silences.note(now, verdict);
        let by = |addresses: &[IpAddr]| silences.of("node-2", addresses).map(|silence| silence.taken);
        assert_eq!((by(&[taken]), by(&[taken, free]), by(&[other])), (Some(Some(thief)), Some(None), None));
        assert_eq!((silences.since("node-2"), silences.since("node-3")), (Some(now), None));
        silences.retain(&BTreeSet::from([("node-2".to_owned(), taken)]));
        assert_eq!(silences.of("node-2", &[free]), None);
        silences.note(now, Verdict::Answers { owner: "node-2".into() });
        assert_eq!(silences.of("node-2", &[taken]), None);
    }
}
