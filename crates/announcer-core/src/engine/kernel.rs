//! The kernel's side: what it is asked for, what it answers, and addresses that are kept, missing or removed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use ipnet::IpNet;

use super::{Action, Engine, OBSERVE_INTERVAL, OBSERVE_PAUSE, Phase, Put, REFRESH, Stopping, WireDone, WireOp};
use crate::network::Network;
use crate::ownership::{Owner, Ownership};
use crate::plan::VipId;
use crate::view::ServiceKey;

impl Engine {
    /// Puts off the kernel's deadline of everything that is up, in one request list.
    pub(super) fn refresh(&mut self, now: Instant) {
        // A kernel that is slower than a second per pass must not get a second pass on top.
        if self.refreshing || matches!(self.stopping, Some(Stopping::Done)) {
            return;
        }
        // What is being added has a request of its own, behind the settings that it needs.
        let up = self.vips.values().filter(|vip| vip.is_up());
        let mut puts: Vec<Put> = up.filter_map(|vip| vip.put(now, self.fence)).collect();
        puts.extend(self.keep_orphans(now));
        if !puts.is_empty() {
            self.refreshing = true;
            self.out.push(Action::Wire(WireOp::Extend(puts)));
        }
    }

    pub(super) fn observe(&mut self, now: Instant) {
        if self.observing {
            self.observe_again = true;
            return;
        }
        let earliest = self.last_observe + OBSERVE_PAUSE;
        if self.observes > 0 && now < earliest {
            self.next_observe = self.next_observe.min(earliest);
            return;
        }
        self.last_observe = now;
        self.next_observe = now + OBSERVE_INTERVAL;
        self.observing = true;
        self.observes += 1;
        self.out.push(Action::Wire(WireOp::Observe));
    }

    pub(super) fn remove_address(&mut self, link: u32, net: IpNet) {
        self.removed.insert((link, Some(net)), self.observes);
        self.out.push(Action::Wire(WireOp::Remove { link, net }));
    }

    pub(super) fn delete_link(&mut self, link: u32) {
        self.removed.insert((link, None), self.observes);
        self.out.push(Action::Wire(WireOp::Delete { link }));
    }

    pub(super) fn wire_done(&mut self, now: Instant, done: WireDone) {
        match done {
            WireDone::Observed(result) => {
                self.observing = false;
                match result {
                    Ok(network) => self.observed(now, network),
                    Err(error) => {
                        tracing::warn!(error, "cannot read the network of this node, trying again");
                        self.next_observe = now + REFRESH;
                    }
                }
                if std::mem::take(&mut self.observe_again) {
                    self.observe(now);
                }
            }
            WireDone::Extended(results) => {
                self.refreshing = false;
                // Almost always nothing failed; the map below is built only for failures.
                let failed: Vec<_> = results.into_iter().filter(|(_, _, result)| result.is_err()).collect();
                if !failed.is_empty() {
                    self.wire_done(now, WireDone::Put(failed));
                }
            }
            WireDone::Put(results) => {
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
            WireDone::Macvlan(uid, result) => self.macvlan_done(now, &uid, result),
            WireDone::Protected(result) => self.protected(result),
            WireDone::Prepared(link, result) => self.link_prepared(now, link, result),
        }
    }

    pub(super) fn observed(&mut self, now: Instant, network: Network) {
        let before = self.network.replace(network);
        self.dirty = true;
        let observation = self.observes;
        let stale = self.observed < self.fresh_from;
        self.observed = observation;
        self.removed.retain(|_, asked| *asked >= observation);
        self.check_macvlans(now, observation);
        let network = self.network.as_ref().expect("it was just set");
        let returned: BTreeSet<u32> = network
            .links
            .iter()
            .filter(|link| link.is_usable())
            .filter(|link| {
                before.as_ref().and_then(|before| before.link(link.index)).is_some_and(|old| !old.is_usable())
            })
            .map(|link| link.index)
            .collect();
        let present: BTreeSet<(u32, IpNet)> =
            network.addresses.iter().map(|address| (address.interface, address.net)).collect();
        let owned =
            |key: &ServiceKey| self.services.get(key).is_some_and(|view| self.ownership.of(view) == Owner::Mine);
        let mut missing = Vec::new();
        for vip in self.vips.values_mut() {
            let (Some(carrier), Phase::Up { .. }) = (vip.carrier, &vip.phase) else { continue };
            if observation > vip.seen_from && !present.contains(&(carrier.link, carrier.net)) {
                missing.extend(vip.put(now, self.fence));
            }
            // What was handed over meanwhile is for the new owner to announce.
            if returned.contains(&carrier.link) && vip.members.iter().any(&owned) {
                // Switches have forgotten the port, and what we said while the cable was out was lost.
                vip.announce_now(now);
            }
        }
        self.observations.fallen += u64::try_from(missing.len()).unwrap_or(u64::MAX);
        for put in &missing {
            tracing::warn!(address = %put.net, "somebody removed the address, or the kernel did at its deadline: it is set again");
        }
        if !missing.is_empty() {
            self.out.push(Action::Wire(WireOp::Put(missing)));
        }
        if before.is_none() || (stale && self.observed >= self.fresh_from) {
            // What is only kept was not extended since the pause, or since a former life, and may have little left.
            self.refresh(now);
        }
    }
}
