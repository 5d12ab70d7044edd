//! A DHCPv6 VIP: an address on an interface of the node, like a static one, that a client leases and renews.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

use super::dhcp_state::{Dhcp6, Origin, Source};
use super::lease::Lease;
use super::{Action, ClientStart, Dhcp6Start, Engine};
use crate::network::Network;
use crate::plan::VipId;
use crate::reason::Reason;
use crate::view::{DhcpWishes, Uid, is_told};

/// The source for a client on this interface. Servers answer to a link-local address, which the kernel creates when the
/// interface comes up.
fn origin(network: &Network, place: u32) -> Option<Origin> {
    let link = network.link(place)?;
    let address = network.addresses.iter().find_map(|own| match own.net.addr() {
        IpAddr::V6(v6) if own.interface == place && v6.is_unicast_link_local() && !own.tentative && !own.duplicate => {
            Some(v6)
        }
        _ => None,
    })?;
    Some(Origin { link: place, mac: link.mac?, address })
}

impl Engine {
    /// The source of a DHCPv6 VIP.
    pub(super) fn source6(&mut self, uid: &Uid, wishes: &DhcpWishes) -> Source {
        let recorded = self.dhcp.usable(uid, wishes.lease6.as_ref());
        Source::Dhcp6(Box::new(Dhcp6 { lease: Lease::new(recorded), origin: None, link_up: true }))
    }

    pub(super) fn place_dhcp6(&mut self, now: Instant, uid: &Uid, place: Option<u32>, wishes: Option<DhcpWishes>) {
        let id = VipId::Dhcp6(uid.clone());
        let Some(network) = self.observer.network() else { return };
        let found = place.and_then(|place| origin(network, place));
        let Some(vip) = self.vips.get_mut(&id) else { return };
        vip.place = place;
        let Source::Dhcp6(dhcp) = &mut vip.source else { return };
        let Some(found) = found else {
            // A client that runs elsewhere goes on there. Where it runs here, the address comes back soon.
            let runs_on = dhcp.origin.map(|origin| origin.link).filter(|_| dhcp.lease.client.running.is_some());
            if let Some(link) = place.filter(|_| runs_on != place).and_then(|place| network.link(place)) {
                let text = format!(
                    "interface {} has no IPv6 link-local address from which DHCPv6 could be spoken: enable IPv6 on it, \
                     or name another one with annotation kube-vip.io/serviceInterface",
                    link.name
                );
                self.tell_members(now, &id, Reason::CannotAnnounce, &text);
            }
            return;
        };
        let before = dhcp.origin.replace(found);
        if before.is_some_and(|before| before != found) && dhcp.lease.client.running.take().is_some() {
            self.out.push(Action::StopDhcp { id: id.clone(), release: false });
        }
        let moved = before.is_some_and(|before| before.link != found.link || before.mac != found.mac);
        let address = dhcp.lease.address();
        if dhcp.lease.client.running.is_none() && dhcp.lease.client.retry.is_none() {
            let (lease, requested) = dhcp.lease.remembered(|address| is_told(&self.services, uid, address));
            let generation = self.dhcp.next_generation();
            dhcp.lease.client.running = Some(generation);
            // If the link is down, the next reading of the network shows it.
            dhcp.link_up = true;
            let start = Dhcp6Start {
                generation,
                link: found.link,
                mac: found.mac,
                source: found.address,
                requested: requested.or(wishes.and_then(|wishes| wishes.requested6)),
                lease,
            };
            self.out.push(Action::StartDhcp(uid.clone(), ClientStart::V6(start)));
        }
        if let Some(address) = address.filter(|_| moved) {
            let carrier = vip.source.carrier(address.into());
            self.carry(now, &id, carrier);
        }
    }

    /// Addresses that an earlier process left for leases whose clients have not confirmed them yet. They stay, because
    /// removing and setting them again would cost connections.
    pub(super) fn awaited6(&self) -> BTreeSet<(u32, IpAddr)> {
        let vips = self.vips.iter().filter_map(|(id, vip)| {
            let (VipId::Dhcp6(uid), Source::Dhcp6(dhcp)) = (id, &vip.source) else { return None };
            let facts = dhcp.lease.recorded.as_ref().filter(|_| dhcp.lease.is_awaited())?;
            is_told(&self.services, uid, facts.address).then_some((vip.place?, facts.address.into()))
        });
        vips.collect()
    }
}
