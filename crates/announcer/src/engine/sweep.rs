//! What a former life, or kube-vip, left on this node: kept while it is not known whose it is, removed when it is
//! nobody's here.
//!
//! kube-vip spec 10.1 rows 2 and 3: without this a crashed announcer's addresses answer for ever beside those of the new
//! owner.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use l2::Mac;
use l2::netlink::{Address, LinkKind};

use super::{Engine, Put, UNDECIDED_LIMIT};
use crate::annotations::Wanted;
use crate::network::{LeaseEnd, is_own_macvlan, looks_like_a_vip, owner_in};

/// How long an address without our mark, which is kube-vip's and has no deadline, may wait on an adopted macvlan for its
/// client to confirm the lease.
const CONFIRM_LIMIT: Duration = Duration::from_mins(1);

impl Engine {
    /// Addresses with our mark that no VIP of ours carries (yet).
    pub(super) fn orphans(&self) -> Vec<Address> {
        let carried: BTreeSet<(u32, IpNet)> =
            self.vips.values().filter_map(|vip| vip.carrier).map(|carrier| (carrier.link, carrier.net)).collect();
        let Some(network) = &self.network else { return Vec::new() };
        network
            .addresses
            .iter()
            .filter(|address| address.is_ours() && !carried.contains(&(address.interface, address.net)))
            .filter(|address| !self.is_removed(address))
            .copied()
            .collect()
    }

    /// A restart must not cost an address: until it is known whose it is, its deadline is put off, for a bounded time.
    /// Not beyond the end of its DHCP lease, which is noted on its macvlan or, for DHCPv6, on the address itself; on a
    /// macvlan without a note the kernel's deadline stands. After a pause only what is seen anew: to put off a deadline
    /// that has passed is to set the address again, which another node may have by then, and nobody would ask.
    pub(super) fn keep_orphans(&self, now: Instant) -> Vec<Put> {
        let undecided = !self.synced || self.plan.undecided;
        let stale = self.observed < self.fresh_from;
        if !undecided || stale || self.stopping.is_some() || now >= self.started + UNDECIDED_LIMIT {
            return Vec::new();
        }
        let Some(network) = &self.network else { return Vec::new() };
        self.orphans()
            .into_iter()
            .filter_map(|orphan| {
                let left = match network.lease_end_of(&orphan) {
                    Some(LeaseEnd::At(end)) => end.saturating_duration_since(now),
                    None if matches!(network.link(orphan.interface)?.kind, LinkKind::Macvlan { .. }) => return None,
                    Some(LeaseEnd::Never) | None => Duration::MAX,
                };
                // The kernel's least is a second.
                (left >= Duration::from_secs(1)).then(|| Put {
                    link: orphan.interface,
                    net: orphan.net,
                    valid: self.fence.min(left),
                    until: orphan.metric,
                })
            })
            .collect()
    }

    /// Somebody else announces what we only kept: it is theirs.
    pub(super) fn orphan_claimed(&mut self, link: u32, address: IpAddr, mac: Mac) {
        // A macvlan has the same MAC on every node, and what is only kept announces nothing: what is heard there is said
        // by another node.
        let own = self.network.as_ref().and_then(|network| network.link(link));
        if own.is_some_and(|own| own.mac == Some(mac) && !matches!(own.kind, LinkKind::Macvlan { .. })) {
            return;
        }
        let claimed: Vec<Address> = self
            .orphans()
            .into_iter()
            .filter(|orphan| orphan.interface == link && orphan.net.addr() == address)
            .collect();
        for orphan in claimed {
            tracing::warn!(%address, %mac, "somebody else announces an address that a former life left here: removing it");
            self.remove_address(link, orphan.net);
        }
    }

    /// Removes what nobody gave us. Only when the Services are known and it is decided who owns them.
    pub(super) fn sweep(&mut self, now: Instant) {
        let Some(network) = self.network.as_ref().filter(|_| !self.plan.undecided) else { return };
        let names: BTreeSet<&str> =
            self.vips.values().filter_map(|vip| vip.dhcp.as_ref()).map(super::dhcp_state::Dhcp::link_name).collect();
        let leaving: BTreeSet<u32> = self.leaving.values().map(super::dhcp::Leaving::link).collect();
        let uids: BTreeSet<&str> = self.services.values().map(|view| view.uid.0.as_str()).collect();
        let ours = |link: &l2::netlink::Link| {
            is_own_macvlan(link)
                || (matches!(link.kind, LinkKind::Macvlan { .. })
                    && link.alias.as_deref().is_some_and(|alias| uids.contains(owner_in(alias))))
        };
        let (mut links, mut addresses) = (Vec::new(), Vec::new());
        let mut doomed = BTreeSet::new();
        for link in network.links.iter().filter(|link| ours(link)) {
            if names.contains(link.name.as_str()) || leaving.contains(&link.index) {
                continue;
            }
            doomed.insert(link.index);
            if !self.removed.contains_key(&(link.index, None)) {
                tracing::info!(interface = link.name, "removing a macvlan that is not ours to have");
                links.push(link.index);
            }
        }
        let wanted: BTreeSet<IpAddr> = self
            .services
            .values()
            .flat_map(|view| {
                let given = view.wanted.iter().filter_map(|wanted| match wanted {
                    Wanted::Static(address) => Some(*address),
                    Wanted::Dhcp4 | Wanted::Dhcp6 => None,
                });
                given
                    .chain(view.published.ingress.iter().filter_map(|ingress| ingress.ip))
                    .chain(view.last_leased().map(IpAddr::V4))
            })
            .collect();
        let carried: BTreeSet<(u32, IpNet)> =
            self.vips.values().filter_map(|vip| vip.carrier).map(|carrier| (carrier.link, carrier.net)).collect();
        let (awaited, confirming4) = (self.awaited6(), self.confirming4(now));
        for address in &network.addresses {
            let Some(link) = network.link(address.interface) else { continue };
            let candidate =
                address.is_ours() || (looks_like_a_vip(address, link) && wanted.contains(&address.net.addr()));
            // What has our mark has a deadline too: the kernel ends the wait, however late the API came.
            let confirming = if address.is_ours() {
                confirming4.contains_key(link.name.as_str()) || awaited.contains(&(link.index, address.net.addr()))
            } else {
                confirming4.get(link.name.as_str()).is_some_and(|adopted| now < *adopted + CONFIRM_LIMIT)
            };
            if !candidate
                || confirming
                || carried.contains(&(address.interface, address.net))
                || doomed.contains(&address.interface)
                || leaving.contains(&address.interface)
            {
                continue;
            }
            if !self.is_removed(address) {
                tracing::info!(address = %address.net, interface = link.name, "removing an address that is not ours to have");
                addresses.push((address.interface, address.net));
            }
        }
        for link in links {
            self.delete_link(link);
        }
        for (link, net) in addresses {
            self.remove_address(link, net);
        }
    }

    /// We had it removed; what was observed is older than that.
    pub(super) fn is_removed(&self, address: &Address) -> bool {
        self.removed.contains_key(&(address.interface, Some(address.net)))
            || self.removed.contains_key(&(address.interface, None))
    }
}
