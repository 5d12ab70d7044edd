//! The interfaces with addresses of Services. An interface counts for a while after it has lost its last one. What is
//! known of the nodes there is kept for the address that follows, as when a DHCP server gives another one or a Service
//! is made anew: of a node that has died since, no watch that begins then could say anything. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::super::services::Services;
use crate::config::Config;
use crate::network::{Family, Network, by_subnet, named};
use crate::view::InterfaceWish;

/// How long an interface counts after that.
const STILL_USED: Duration = Duration::from_secs(30);

/// The interfaces, each with the time until which it counts if it has no address of a Service any more.
#[derive(Debug, Default)]
pub(in crate::engine) struct UsedLinks(BTreeMap<(u32, Family), Option<Instant>>);

impl UsedLinks {
    /// Takes in which of them have addresses of Services now.
    pub fn note(&mut self, now: Instant, used: &BTreeSet<(u32, Family)>) {
        for (link, until) in &mut self.0 {
            if !used.contains(link) {
                until.get_or_insert(now + STILL_USED);
            }
        }
        self.0.retain(|_, until| until.is_none_or(|until| now < until));
        self.0.extend(used.iter().map(|link| (*link, None)));
    }

    /// When one of them does not count any more.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.values().filter_map(|until| *until).min()
    }

    /// All that count.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Family)> + '_ {
        self.0.keys().copied()
    }

    /// Those on which this node would serve an address now: with addresses of Services, or `chosen` for those to come.
    /// Other nodes take what is on the card for that.
    pub fn serving(&self, chosen: impl Fn(u32) -> bool) -> BTreeSet<u32> {
        let serving = self.0.iter().filter(|((link, _), until)| until.is_none() || chosen(*link));
        serving.map(|((link, _), _)| *link).collect()
    }

    /// All that count, without the family.
    pub fn indices(&self) -> BTreeSet<u32> {
        self.iter().map(|(link, _)| link).collect()
    }
}

/// Whether a Service whose address comes later may be served on this interface.
pub(in crate::engine) fn is_chosen(network: &Network, config: &Config, services: &Services, link: u32) -> bool {
    let name = network.link(link).map(|link| link.name.as_str());
    let wishes = services.values().map(|view| &view.interface).chain([&InterfaceWish::Default]);
    let is_meant = |wish: &InterfaceWish| {
        by_subnet(wish, config) || named(wish, config).is_some_and(|(_, wanted)| Some(wanted) == name)
    };
    network.default_route == Some(link) || { wishes }.any(is_meant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_counts_for_a_while_after_it_has_lost_its_last_address() {
        let (mut links, now) = (UsedLinks::default(), Instant::now());
        let (eth0, eth1) = ((2, Family::V4), (3, Family::V6));
        links.note(now, &[eth0, eth1].into());
        assert_eq!((links.indices(), links.deadline()), ([2, 3].into(), None));
        links.note(now, &[eth0].into());
        let end = now + STILL_USED;
        let late = end.checked_sub(Duration::from_millis(1)).unwrap();
        links.note(late, &[eth0].into());
        assert_eq!((links.indices(), links.deadline()), ([2, 3].into(), Some(end)));
        links.note(end, &[eth0].into());
        assert_eq!((links.indices(), links.deadline()), ([2].into(), None));
    }

    #[test]
    fn an_interface_that_has_an_address_again_counts_until_it_loses_that() {
        let (mut links, now) = (UsedLinks::default(), Instant::now());
        let used: BTreeSet<(u32, Family)> = [(2, Family::V4)].into();
        links.note(now, &used);
        links.note(now, &BTreeSet::new());
        links.note(now + STILL_USED / 2, &used);
        assert_eq!((links.indices(), links.deadline()), ([2].into(), None));
        links.note(now + STILL_USED, &BTreeSet::new());
        assert_eq!(links.deadline(), Some(now + 2 * STILL_USED));
    }
}
