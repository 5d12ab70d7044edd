//! A DHCPv6 VIP: an address on an interface of the node, as a given one, that a client obtains and keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

use ipnet::{IpNet, Ipv6Net};

use super::dhcp_events::has_moved;
use super::dhcp_state::{Dhcp6, Mouth};
use super::vip::Carrier;
use super::{Action, Dhcp6Start, DhcpEvent, Engine, Leased};
use crate::annotations::LeaseFacts6;
use crate::network::Network;
use crate::plan::VipId;
use crate::reason::Reason;
use crate::view::{Uid, is_told};

/// Servers answer to a link-local address, which the kernel makes when the interface comes up.
fn mouth(network: &Network, place: u32) -> Option<Mouth> {
    let link = network.link(place)?;
    let source = network.addresses.iter().find_map(|own| match own.net.addr() {
        IpAddr::V6(v6) if own.interface == place && v6.is_unicast_link_local() && !own.tentative && !own.duplicate => {
            Some(v6)
        }
        _ => None,
    })?;
    Some(Mouth { link: place, mac: link.mac?, source })
}

impl Engine {
    pub(super) fn place_dhcp6(&mut self, now: Instant, uid: &Uid, place: Option<u32>) {
        let id = VipId::Dhcp6(uid.clone());
        let wishes = self.plan.vips[&id].dhcp.clone().unwrap_or_default();
        let network = self.network.as_ref().expect("planned only with a network");
        let found = place.and_then(|place| mouth(network, place));
        let name = place.and_then(|place| network.link(place)).map(|link| link.name.clone()).unwrap_or_default();
        let vip = self.vips.get_mut(&id).expect("it is there");
        vip.place = place;
        let void = self.void.get(uid).and_then(|lost| lost.v6.as_ref());
        let facts = wishes.lease6.clone().filter(|facts| Some(facts) != void);
        let dhcp = vip.dhcp6.get_or_insert_with(|| Dhcp6 { facts, ..Dhcp6::default() });
        let Some(found) = found else {
            if place.is_some() && dhcp.client.running.is_none() {
                let text = format!(
                    "interface {name} has no IPv6 link-local address from which DHCPv6 could be spoken: enable IPv6 on it, or name another one with annotation kube-vip.io/serviceInterface"
                );
                self.tell_members(now, &id, Reason::CannotAnnounce, &text);
            }
            return;
        };
        if dhcp.mouth.is_some_and(|mouth| mouth != found) && dhcp.client.running.take().is_some() {
            self.out.push(Action::StopDhcp6 { uid: uid.clone(), release: false });
        }
        let dhcp = self.vips.get_mut(&id).and_then(|vip| vip.dhcp6.as_mut()).expect("it is there");
        let moved = dhcp.mouth.is_some_and(|mouth| mouth.link != found.link || mouth.mac != found.mac);
        dhcp.mouth = Some(found);
        let address = dhcp.leased.as_ref().map(|leased| leased.facts.address);
        if dhcp.client.running.is_none() && dhcp.client.retry.is_none() {
            let (trusted, copied) = match dhcp.facts.clone() {
                Some(facts) if is_told(&self.services, uid, facts.address) => (Some(facts), None),
                other => (None, other),
            };
            self.clients += 1;
            dhcp.client.running = Some(self.clients);
            let start = Dhcp6Start {
                generation: self.clients,
                link: found.link,
                mac: found.mac,
                source: found.source,
                requested: copied.map(|facts| facts.address).or(wishes.requested6),
                lease: dhcp.leased.as_ref().map(|leased| leased.facts.clone()).or(trusted),
            };
            self.out.push(Action::StartDhcp6(uid.clone(), start));
        }
        if let Some(address) = address.filter(|_| moved) {
            self.carry(now, &id, Some(carrier(found, address)));
        }
    }

    pub(super) fn dhcp6_event(&mut self, now: Instant, uid: &Uid, generation: u64, event: DhcpEvent<LeaseFacts6>) {
        let id = VipId::Dhcp6(uid.clone());
        let Some(vip) = self.vips.get(&id) else { return };
        let runs = vip.dhcp6.as_ref().is_some_and(|dhcp| dhcp.client.running == Some(generation));
        if let DhcpEvent::Bound(leased) = &event
            && runs
            && self.decline_taken(now, &id, leased.facts.address.into())
        {
            return;
        }
        let Some(vip) = self.vips.get_mut(&id) else { return };
        let Some(dhcp) = vip.dhcp6.as_mut().filter(|dhcp| dhcp.client.running == Some(generation)) else { return };
        match event {
            DhcpEvent::Bound(leased) | DhcpEvent::Renewed(leased) => {
                let Some(mouth) = dhcp.mouth else { return };
                let carrier = carrier(mouth, leased.facts.address);
                if dhcp.facts.as_ref().is_none_or(|recorded| is_news(recorded, &leased, now)) {
                    dhcp.facts = Some(leased.facts.clone());
                }
                dhcp.leased = Some(leased);
                if let Some(lost) = self.void.get_mut(uid) {
                    lost.v6 = None;
                }
                self.carry_lease(now, &id, carrier);
                self.dirty = true;
            }
            DhcpEvent::Lost { address, why } => {
                dhcp.leased = None;
                // As with DHCPv4: neither this node nor a successor goes on with what is over.
                if let Some(facts) = dhcp.facts.take() {
                    self.void.entry(uid.clone()).or_default().v6 = Some(facts);
                }
                self.lease_lost(now, &id, address, &why);
            }
            said => self.client_said(now, &id, said),
        }
    }

    /// DHCPv6 leases that run here.
    pub(super) fn leases6(&self) -> BTreeMap<Uid, Ipv6Addr> {
        let leases = self.vips.iter().filter_map(|(id, vip)| {
            let VipId::Dhcp6(uid) = id else { return None };
            Some((uid.clone(), vip.dhcp6.as_ref()?.leased.as_ref()?.facts.address))
        });
        leases.collect()
    }

    /// What a former life left of leases whose clients have not said yet that they go on with them. Removed and set
    /// again a moment later, it would cost connections.
    pub(super) fn awaited6(&self) -> BTreeSet<(u32, IpAddr)> {
        let vips = self.vips.iter().filter_map(|(id, vip)| {
            let (VipId::Dhcp6(uid), Some(dhcp)) = (id, &vip.dhcp6) else { return None };
            let facts = dhcp
                .facts
                .as_ref()
                .filter(|facts| dhcp.leased.is_none() && is_told(&self.services, uid, facts.address))?;
            Some((vip.place?, facts.address.into()))
        });
        vips.collect()
    }

    /// The RELEASE is sent from the interface's own address: the leased one can go at once.
    pub(super) fn leave_dhcp6(&mut self, uid: &Uid, dhcp: &Dhcp6, release: bool) {
        if dhcp.client.running.is_some() {
            // Also what was granted and is still being probed: the client knows what it has.
            self.out.push(Action::StopDhcp6 { uid: uid.clone(), release });
        }
    }
}

fn carrier(mouth: Mouth, address: Ipv6Addr) -> Carrier {
    let net = IpNet::V6(Ipv6Net::new(address, 128).expect("128 is a length of IPv6"));
    Carrier { link: mouth.link, mac: mouth.mac, net }
}

/// Whether what stands on the Service is not good enough for a successor any more.
fn is_news(recorded: &LeaseFacts6, leased: &Leased<LeaseFacts6>, now: Instant) -> bool {
    let facts = &leased.facts;
    recorded.address != facts.address
        || recorded.server != facts.server
        || has_moved(recorded.expires, facts.expires, leased.expires, now)
}
