//! The interfaces with addresses of Services. An interface counts for a while after it has lost its last one. What is
//! known of the nodes there is kept for the address that follows, as when a DHCP server gives another one or a Service
//! is made anew: of a node that has died since, no watch that begins then could say anything. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::network::Family;

/// How long an interface counts after that.
const STILL_USED: Duration = Duration::from_secs(30);

/// One of the interfaces.
#[derive(Debug)]
struct Use {
    /// Until when it counts if it has no address of a Service any more.
    until: Option<Instant>,
    /// The default route led there when it had one.
    by_default: bool,
}

/// The interfaces.
#[derive(Debug, Default)]
pub(in crate::engine) struct UsedLinks(BTreeMap<(u32, Family), Use>);

impl UsedLinks {
    /// Takes in which of them have addresses of Services now, and that of the default route.
    pub fn note(&mut self, now: Instant, used: &BTreeSet<(u32, Family)>, default_route: Option<u32>) {
        for (link, of) in &mut self.0 {
            if !used.contains(link) {
                of.until.get_or_insert(now + STILL_USED);
            }
        }
        self.0.retain(|_, of| of.until.is_none_or(|until| now < until));
        let of = |link| Use { until: None, by_default: default_route == Some(link) };
        self.0.extend(used.iter().map(|(link, family)| ((*link, *family), of(*link))));
    }

    /// When one of them does not count any more.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.values().filter_map(|of| of.until).min()
    }

    /// All that count.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Family)> + '_ {
        self.0.keys().copied()
    }

    /// Those on which this node can serve an address: other nodes take what is on the card for that. An interface that
    /// was used because the default route led there is none of them once the route leads there no more.
    pub fn serving(&self, default_route: Option<u32>) -> BTreeSet<u32> {
        let is_chosen = |link: u32, of: &Use| of.until.is_none() || !of.by_default || default_route == Some(link);
        let serving = self.0.iter().filter(|((link, _), of)| is_chosen(*link, of));
        serving.map(|((link, _), _)| *link).collect()
    }

    /// All that count, without the family.
    pub fn indices(&self) -> BTreeSet<u32> {
        self.iter().map(|(link, _)| link).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_counts_for_a_while_after_it_has_lost_its_last_address() {
        let (mut links, now) = (UsedLinks::default(), Instant::now());
        let (eth0, eth1) = ((2, Family::V4), (3, Family::V6));
        links.note(now, &[eth0, eth1].into(), Some(2));
        assert_eq!((links.indices(), links.deadline()), ([2, 3].into(), None));
        links.note(now, &[eth0].into(), Some(2));
        let end = now + STILL_USED;
        let late = end.checked_sub(Duration::from_millis(1)).unwrap();
        links.note(late, &[eth0].into(), Some(2));
        assert_eq!((links.indices(), links.deadline()), ([2, 3].into(), Some(end)));
        links.note(end, &[eth0].into(), Some(2));
        assert_eq!((links.indices(), links.deadline()), ([2].into(), None));
    }

    #[test]
    fn an_interface_that_has_an_address_again_counts_until_it_loses_that() {
        let (mut links, now) = (UsedLinks::default(), Instant::now());
        let used: BTreeSet<(u32, Family)> = [(2, Family::V4)].into();
        links.note(now, &used, Some(2));
        links.note(now, &BTreeSet::new(), Some(2));
        links.note(now + STILL_USED / 2, &used, Some(2));
        assert_eq!((links.indices(), links.deadline()), ([2].into(), None));
        links.note(now + STILL_USED, &BTreeSet::new(), Some(2));
        assert_eq!(links.deadline(), Some(now + 2 * STILL_USED));
    }
}
