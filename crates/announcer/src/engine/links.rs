//! Interfaces that carry VIPs, or should: how they are set, and what is heard on them.

use std::collections::BTreeSet;

use l2::netlink::InetConf;

use super::{Action, Engine, WireOp};
use crate::network::Family;

impl Engine {
    /// Interfaces that carry VIPs answer only for their own addresses (decisions.md 27); the others are put back as
    /// they were.
    pub(super) fn prepare_links(&mut self) {
        let carrying: BTreeSet<u32> = self.vips.values().filter_map(|vip| vip.place).collect();
        // A second interface in the same LAN would answer for them too, with its own MAC.
        let used: BTreeSet<u32> = self
            .network
            .iter()
            .flat_map(|network| carrying.iter().flat_map(|link| network.same_lan(*link)))
            .chain(carrying.iter().copied())
            .collect();
        for link in &used {
            if !self.prepared.contains_key(link) {
                self.prepared.insert(*link, None);
                self.out.push(Action::Wire(WireOp::Prepare { link: *link }));
            }
        }
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
        wanted.extend(self.orphans().into_iter().map(|orphan| (orphan.interface, Family::of(orphan.net.addr()))));
        if let Some(network) = &self.network {
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
