//! Interfaces that carry VIPs, or should: how they are set, and what is heard on them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use l2_types::InetConf;

use super::{Action, Engine, WireOp};
use crate::network::Family;

/// An interface whose settings were refused is tried again after this time, when something is planned anyway.
const PREPARE_AGAIN: Duration = Duration::from_mins(1);

impl Engine {
    /// Interfaces that carry VIPs answer only for their own addresses (decisions.md 27); the others are put back as
    /// they were.
    pub(super) fn prepare_links(&mut self, now: Instant) {
        let used = self.links_to_prepare();
        self.unprepared.retain(|link, _| used.contains(link));
        for link in &used {
            let refused = self.unprepared.get(link).is_some_and(|until| now < *until);
            if !refused && !self.prepared.contains_key(link) {
                self.prepared.insert(*link, None);
                self.out.push(Action::Wire(WireOp::Prepare { link: *link }));
            }
        }
        self.restore_links(&used);
    }

    /// Nothing is planned any more: interfaces whose last VIP has just gone are put back.
    pub(super) fn restore_unused_links(&mut self) {
        self.restore_links(&self.links_to_prepare());
    }

    fn links_to_prepare(&self) -> BTreeSet<u32> {
        let carrying: BTreeSet<u32> = self.vips.values().filter_map(|vip| vip.place).collect();
        // A second interface in the same LAN would answer for them too, with its own MAC.
        self.network
            .iter()
            .flat_map(|network| carrying.iter().flat_map(|link| network.same_lan(*link)))
            .chain(carrying.iter().copied())
            .collect()
    }

    fn restore_links(&mut self, used: &BTreeSet<u32>) {
        let unused: Vec<(u32, InetConf)> = self
            .prepared
            .iter()
            .filter(|(link, _)| !used.contains(link))
            .filter_map(|(link, conf)| Some((*link, (*conf)?)))
            .collect();
        for (link, conf) in unused {
            self.prepared.remove(&link);
            self.out.push(Action::Wire(WireOp::Restore { link, conf }));
        }
    }

    /// A socket that could not be opened, or has failed since, is missing until somebody asks for it anew.
    pub(super) fn listen_again(&mut self) {
        if !self.listening.is_empty() {
            self.out.push(Action::Listen(self.listening.clone()));
        }
    }

    pub(super) fn link_prepared(&mut self, now: Instant, link: u32, result: Result<InetConf, String>) {
        match result {
            Ok(conf) => {
                self.unprepared.remove(&link);
                self.prepared.insert(link, Some(conf));
            }
            Err(error) => {
                self.prepared.remove(&link);
                if self.unprepared.insert(link, now + PREPARE_AGAIN).is_none() {
                    tracing::warn!(
                        link,
                        error,
                        "cannot set arp_ignore and arp_announce: another interface may answer for the addresses too"
                    );
                }
            }
        }
    }

    pub(super) fn listen(&mut self) {
        let mut wanted: BTreeSet<(u32, Family)> = self
            .vips
            .iter()
            .flat_map(|(id, vip)| {
                let links = vip.place.into_iter().chain(vip.carrier.map(|carrier| carrier.link));
                links.map(|link| (link, id.family()))
            })
            .collect();
        wanted.extend(self.lookout.links());
        if let Some(network) = &self.network {
            for orphan in self.orphans() {
                let family = Family::of(orphan.net.addr());
                // A new owner's claims come to the interface beneath its macvlan.
                let parent = network.parent_of(orphan.interface).map(|parent| (parent, family));
                wanted.extend([(orphan.interface, family)].into_iter().chain(parent));
            }
            let there: BTreeSet<u32> = network.links.iter().map(|link| link.index).collect();
            let carrying: BTreeSet<u32> =
                self.vips.values().filter_map(|vip| vip.carrier).map(|carrier| carrier.link).collect();
            wanted.retain(|(index, _)| there.contains(index) || carrying.contains(index));
        }
        if wanted != self.listening {
            self.listening.clone_from(&wanted);
            self.out.push(Action::Listen(wanted));
        }
    }
}
