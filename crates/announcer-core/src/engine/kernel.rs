//! Requests to the kernel and its answers; addresses that are kept, missing or back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use ipnet::IpNet;

use super::observer::Before;
use super::{Action, Engine, KernelDone, KernelOp, Phase, Put};
use crate::network::Network;
use crate::plan::VipId;
use crate::probes::Probes;
use crate::view::ServiceKey;

impl Engine {
    /// Extends the lifetime of all addresses that are up, in one request.
    pub(super) fn refresh(&mut self, now: Instant) {
        if self.refresh.is_in_flight() || self.shutdown.is_done() {
            return;
        }
        let fence = self.config.fence();
        // An address that is being added has a request of its own, after the settings that it needs.
        let up = self.vips.values().filter(|vip| vip.is_up());
        let mut puts: Vec<Put> = up.filter_map(|vip| vip.put(now, fence)).collect();
        puts.extend(self.keep_orphans(now));
        self.out.extend(self.refresh.extend(puts));
    }

    /// Requests a reading of the network, now or as soon as one is allowed.
    pub(super) fn observe(&mut self, now: Instant) {
        self.out.extend(self.observer.ask(now));
    }

    pub(super) fn remove_address(&mut self, link: u32, net: IpNet) {
        let removal = self.observer.remove_address(link, net);
        self.out.push(removal);
    }

    pub(super) fn delete_link(&mut self, link: u32) {
        let deletion = self.observer.delete_link(link);
        self.out.push(deletion);
    }

    pub(super) fn kernel_done(&mut self, now: Instant, done: KernelDone) {
        match done {
            KernelDone::Observed(result) => {
                if let Some(before) = self.observer.answer(now, result) {
                    self.observed(now, &before);
                }
                self.out.extend(self.observer.ask_again(now));
            }
            KernelDone::Extended(results) => {
                let failed = results.iter().any(|(_, _, result)| result.is_err());
                let lasting = self.refresh.answered(results);
                // Almost always nothing failed; the map of carriers is built only for failures.
                if failed {
                    self.puts_done(now, lasting);
                    // An address or its interface may be gone, which a reading shows.
                    self.observe(now);
                }
            }
            KernelDone::Put(results) => self.puts_done(now, results),
            KernelDone::Macvlan(uid, result) => self.macvlan_done(now, &uid, result),
            KernelDone::Protected(result) => self.protected(result),
            KernelDone::Prepared(link, result) => self.settings.interfaces.prepared(now, link, result),
        }
    }

    fn puts_done(&mut self, now: Instant, results: Vec<(u32, IpNet, Result<(), String>)>) {
        let carried: BTreeMap<(u32, IpNet), VipId> = self
            .vips
            .iter()
            .filter_map(|(id, vip)| Some(((vip.carrier?.link, vip.carrier?.net), id.clone())))
            .collect();
        for (link, net, result) in results {
            if let Some(id) = carried.get(&(link, net)) {
                self.put_done(now, id, net, result);
            }
        }
    }

    /// The network was read.
    fn observed(&mut self, now: Instant, before: &Before) {
        self.out.replan();
        if before.gateway != self.observer.gateway() {
            self.note_forbidden();
        }
        self.check_macvlans(now);
        let Some(network) = self.observer.network() else { return };
        let returned = returned(before.network.as_ref(), network);
        let present: BTreeSet<(u32, IpNet)> =
            network.addresses.iter().map(|address| (address.interface, address.net)).collect();
        let owned = |key: &ServiceKey| self.ownership.announces(self.services.get(key));
        let mut missing = Vec::new();
        for vip in self.vips.values_mut() {
            if let (Some(carrier), Phase::Probing(probes)) = (vip.carrier, &mut vip.phase)
                && returned.contains(&carrier.link)
            {
                // No host has received the probes that were sent without a carrier, so they start again.
                *probes = Probes::before_use(now);
            }
            let (Some(carrier), Phase::Up { .. }) = (vip.carrier, &vip.phase) else { continue };
            if self.observer.shows(vip.seen_from) && !present.contains(&(carrier.link, carrier.net)) {
                missing.extend(vip.put(now, self.config.fence()));
            }
            // A VIP that was handed over meanwhile is announced by its new owner.
            if returned.contains(&carrier.link) && vip.members.iter().any(&owned) {
                // Switches have forgotten the port, and announcements without a carrier were lost.
                vip.announce_now(now);
            }
        }
        for put in &missing {
            tracing::warn!(
                address = %put.net,
                "the address has disappeared from this node: another program removed it, or its lifetime ended; the \
                announcer sets it again"
            );
        }
        if !missing.is_empty() {
            self.refresh.note_fallen(missing.len());
            self.out.push(Action::Kernel(KernelOp::Put(missing)));
        }
        if before.network.is_none() || (before.stale && !self.observer.is_stale()) {
            // Orphans were not extended since the pause or the last process, so their lifetime may end soon.
            self.refresh(now);
        }
    }
}

/// Interfaces that were unusable and are usable again.
fn returned(before: Option<&Network>, now: &Network) -> BTreeSet<u32> {
    let was_out = |index| before.and_then(|before| before.link(index)).is_some_and(|old| !old.is_usable());
    now.links.iter().filter(|link| link.is_usable() && was_out(link.index)).map(|link| link.index).collect()
}
