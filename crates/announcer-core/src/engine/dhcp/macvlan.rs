//! The macvlan of a DHCP VIP: made, adopted and made again, and the link state that its client is told.

use std::time::{Duration, Instant};

use ipnet::{IpNet, Ipv4Net};
use jiff::Timestamp;
use l2_types::Mac;
use l2_types::{AddressLifetime, InetConfChange, Macvlan};

use super::super::dhcp_state::{MacvlanState, Source};
use super::super::vip::Vip;
use super::super::{Action, ClientStart, DhcpStart, Engine, KernelOp, Resumed};
use super::MACVLAN_STAYED;
use crate::annotations::mac_of_a_node;
use crate::network::{hostname_is_taken, mac_is_taken};
use crate::plan::VipId;
use crate::reason::Reason;
use crate::screen::DhcpSeniors;
use crate::view::{Uid, is_told};

impl Resumed {
    /// Address and lifetime that the macvlan gets at once, if the lease has not ended. The kernel counts whole seconds.
    pub fn first_address(&self, wall: Timestamp) -> Option<(IpNet, AddressLifetime)> {
        let left = match self.expires {
            Some(end) => Duration::from_secs(u64::try_from(end.as_second() - wall.as_second() - 1).ok()?),
            None => self.fence,
        };
        let valid = left.min(self.fence);
        (valid >= Duration::from_secs(1)).then(|| (IpNet::V4(Ipv4Net::from(self.address)), AddressLifetime::For(valid)))
    }
}

impl Engine {
    /// Does the next step for the macvlan or the client.
    pub(super) fn advance_dhcp(&mut self, now: Instant, uid: &Uid, settings: bool) {
        let id = VipId::Dhcp(uid.clone());
        let begins = |vip: &Vip| {
            vip.source.dhcp4().is_some_and(|dhcp| match dhcp.macvlan {
                MacvlanState::Absent => true,
                MacvlanState::Ready(..) => dhcp.lease.client.may_start(now),
                MacvlanState::Asking(_) | MacvlanState::Making | MacvlanState::Failed { .. } => false,
            })
        };
        let resumed = self.resumed(&id);
        let refused = self.vips.get(&id).filter(|vip| begins(vip)).and_then(|_| self.client_refused(&id));
        let Some(vip) = self.vips.get_mut(&id) else { return };
        let (Source::Dhcp4(dhcp), Some(parent)) = (&mut vip.source, vip.place) else { return };
        let wanted = Macvlan {
            name: dhcp.name.clone(),
            parent,
            mac: dhcp.mac,
            alias: uid.0.clone(),
            inet_conf: InetConfChange {
                arp_ignore: Some(1),
                arp_announce: Some(2),
                rp_filter: Some(dhcp.wishes.rp_filter.value()),
            },
            address: None,
        };
        match dhcp.macvlan {
            MacvlanState::Absent if let Some(text) = refused => {
                dhcp.macvlan = MacvlanState::Failed { until: dhcp.macvlan_retry(now) };
                self.tell_members(now, &id, Reason::CannotAnnounce, &text);
            }
            MacvlanState::Absent => {
                let waits = !self.may_go_on(&id) || self.macvlan_awaits_rules(&wanted.name, resumed);
                if waits || self.begins_to_ask(now, &id) {
                    return;
                }
                if let Some(dhcp) = self.vips.get_mut(&id).and_then(|vip| vip.source.dhcp4_mut()) {
                    (dhcp.macvlan, dhcp.free) = (MacvlanState::Making, None);
                    dhcp.asked = Some((wanted.parent, wanted.name.clone()));
                }
                self.prepare_links(now);
                self.out.push(Action::Kernel(KernelOp::Macvlan(uid.clone(), wanted, resumed)));
            }
            // A host name that was refused. The MAC is that of the macvlan that stands.
            MacvlanState::Ready(..) if let Some(text) = refused => {
                self.tell_members(now, &id, Reason::CannotAnnounce, &text);
            }
            MacvlanState::Ready(link, _) => {
                let starts = dhcp.lease.client.may_start(now);
                if settings {
                    self.out.push(Action::Kernel(KernelOp::Macvlan(uid.clone(), wanted, None)));
                }
                if starts && self.may_go_on(&id) {
                    self.start_client(uid, link);
                }
            }
            MacvlanState::Asking(_) | MacvlanState::Making | MacvlanState::Failed { .. } => {}
        }
    }

    /// Whether the next step for the macvlan or the client may be done. While the Lease of the address is in doubt,
    /// only what stands on this node goes on. Another node may use this MAC by now. A confirmed Lease plans again.
    fn may_go_on(&self, id: &VipId) -> bool {
        let stands = || self.told_address(id).is_some_and(|address| self.stands_on_its_macvlan(id, address));
        let is_up = self.vips.get(id).is_some_and(Vip::is_up);
        is_up || self.may_start(id) || self.is_made_with_address(id) || stands()
    }

    fn start_client(&mut self, uid: &Uid, link: u32) {
        let Some(vip) = self.vips.get_mut(&VipId::Dhcp(uid.clone())) else { return };
        let Source::Dhcp4(dhcp) = &mut vip.source else { return };
        let (lease, requested) = dhcp.lease.remembered(|address| is_told(&self.services, uid, address));
        let generation = self.dhcp.next_generation();
        dhcp.lease.client.running = Some(generation);
        // If the link is down, the next reading of the network shows it.
        dhcp.link_up = true;
        let start = DhcpStart {
            generation,
            link,
            mac: dhcp.mac,
            hostname: dhcp.wishes.hostname.clone(),
            broadcast: dhcp.wishes.broadcast,
            requested: dhcp.wishes.requested.or(requested),
            lease,
        };
        self.out.push(Action::StartDhcp(uid.clone(), ClientStart::V4(start)));
    }

    /// The lease that the client continues before the server has answered. Clients know its address, so the rules of
    /// service security for it are set already.
    pub(super) fn resumed(&self, id: &VipId) -> Option<Resumed> {
        let VipId::Dhcp(uid) = id else { return None };
        let lease = &self.vips.get(id)?.source.dhcp4()?.lease;
        let known = lease.granted.as_ref().map(|leased| &leased.facts).or(lease.recorded.as_ref());
        let facts = known.filter(|facts| is_told(&self.services, uid, facts.address))?;
        Some(Resumed { address: facts.address, expires: facts.expires, fence: self.config.fence() })
    }

    /// Whether the macvlan was requested with the address that clients know, and no reading of the network shows it
    /// yet.
    pub(in crate::engine) fn is_made_with_address(&self, id: &VipId) -> bool {
        let macvlan = self.vips.get(id).and_then(|vip| vip.source.dhcp4()).map(|dhcp| dhcp.macvlan);
        let unseen = match macvlan {
            Some(MacvlanState::Making) => true,
            Some(MacvlanState::Ready(_, asked)) => !self.observer.shows(asked),
            _ => false,
        };
        unseen && self.resumed(id).is_some()
    }

    /// Why the VIP cannot be the DHCP client that it wants to be.
    fn client_refused(&self, id: &VipId) -> Option<String> {
        let dhcp = self.vips.get(id)?.source.dhcp4()?;
        let goes_on = self.resumed(id).is_some();
        let hostname = dhcp.wishes.hostname.as_deref().filter(|_| !goes_on);
        let is_made = matches!(dhcp.macvlan, MacvlanState::Ready(..));
        let mac = if is_made { None } else { self.mac_refused(id, dhcp.mac, goes_on) };
        mac.or_else(|| self.hostname_refused(id, hostname?))
    }

    /// Why the VIP cannot have this MAC. The MAC of a machine would draw the machine's own traffic to this node. Two
    /// macvlans of one interface cannot have the same MAC; the first one keeps it.
    pub(in crate::engine) fn mac_refused(&self, id: &VipId, mac: Mac, goes_on: bool) -> Option<String> {
        let vip = self.vips.get(id)?;
        if self.observer.network().is_some_and(|network| network.has_interface_with(mac)) || self.is_peer(mac) {
            return Some(mac_of_a_node(mac).to_string());
        }
        if let Some(user) = DhcpSeniors::of(&self.services, &vip.members, mac, goes_on).with_mac(mac) {
            return Some(format!("{} (by Service {user})", mac_is_taken(mac)));
        }
        let other = self.vips.iter().find(|(other, found)| {
            *other != id
                && found.place == vip.place
                && found.source.dhcp4().is_some_and(|dhcp| {
                    dhcp.mac == mac && matches!(dhcp.macvlan, MacvlanState::Making | MacvlanState::Ready(..))
                })
        });
        let (_, other) = other?;
        let user = other.members.first().map_or(String::new(), |member| format!(" (by Service {member})"));
        Some(format!("{}{user}", mac_is_taken(mac)))
    }

    /// Why the VIP, which has no lease yet, cannot ask for one under this host name. A VIP that has one goes on: some
    /// servers tell clients apart by their MACs alone.
    pub(in crate::engine) fn hostname_refused(&self, id: &VipId, hostname: &str) -> Option<String> {
        let vip = self.vips.get(id)?;
        let interface = vip.members.iter().find_map(|key| self.services.get(key)).map(|view| &view.interface)?;
        let seniors = DhcpSeniors::of(&self.services, &vip.members, vip.source.dhcp4()?.mac, false);
        Some(hostname_is_taken(hostname, seniors.with_hostname(hostname, interface)?))
    }

    pub(in crate::engine) fn macvlan_done(&mut self, now: Instant, uid: &Uid, result: Result<(u32, Mac), String>) {
        let id = VipId::Dhcp(uid.clone());
        let asked = self.observer.asked();
        let place = self.vips.get(&id).and_then(|vip| vip.place);
        let Some(dhcp) = self.vips.get_mut(&id).and_then(|vip| vip.source.dhcp4_mut()) else {
            // The VIP was given up while its macvlan was being made.
            if let Ok((link, _)) = result {
                self.delete_link(link);
            }
            return;
        };
        match result {
            Ok((link, mac)) if mac == dhcp.mac && dhcp.is_as_asked(place) => {
                dhcp.macvlan = MacvlanState::Ready(link, asked);
                dhcp.made = Some(now);
                self.out.replan();
            }
            // The wishes or the interface have changed since the request.
            Ok((link, _)) => {
                dhcp.macvlan = MacvlanState::Absent;
                self.delete_link(link);
                self.out.replan();
            }
            Err(error) => {
                dhcp.macvlan = MacvlanState::Failed { until: dhcp.macvlan_retry(now) };
                let name = dhcp.name.clone();
                if let Some(vip) = self.vips.get_mut(&id) {
                    vip.refusals = vip.refusals.saturating_add(1);
                }
                self.out.replan();
                tracing::warn!(macvlan = name, error, "the announcer cannot create the macvlan; it tries again");
                self.tell_members(now, &id, Reason::CannotAnnounce, &format!("{error}; trying again"));
                self.observe(now);
            }
        }
    }

    /// Detects macvlans that are gone: they are deleted with their parents, or by another program.
    pub(in crate::engine) fn check_macvlans(&mut self, now: Instant) {
        let Some(network) = self.observer.network() else { return };
        let gone: Vec<Uid> = self
            .vips
            .iter()
            .filter_map(|(id, vip)| match (id, vip.source.dhcp4()?.macvlan) {
                (VipId::Dhcp(uid), MacvlanState::Ready(link, asked))
                    if self.observer.shows(asked) && network.link(link).is_none() =>
                {
                    Some(uid.clone())
                }
                _ => None,
            })
            .collect();
        self.tell_links();
        for uid in gone {
            tracing::warn!(
                %uid,
                "the macvlan has disappeared; the announcer creates it again as soon as its parent interface exists"
            );
            let id = VipId::Dhcp(uid);
            self.drop_macvlan(&id, None);
            let Some(dhcp) = self.vips.get_mut(&id).and_then(|vip| vip.source.dhcp4_mut()) else { continue };
            if dhcp.made.is_some_and(|made| now >= made + MACVLAN_STAYED) {
                dhcp.troubles = 0;
            }
            if dhcp.troubles == 0 {
                // Most probably the parent was deleted and comes back.
                dhcp.troubles = 1;
            } else {
                dhcp.macvlan = MacvlanState::Failed { until: dhcp.macvlan_retry(now) };
            }
        }
    }

    /// Tells clients about links that were lost or are back. The network may have changed meanwhile, so the client
    /// confirms its lease.
    fn tell_links(&mut self) {
        let Some(network) = self.observer.network() else { return };
        for (id, vip) in self.vips.iter_mut() {
            let (link, running, told) = match &mut vip.source {
                Source::Static => continue,
                Source::Dhcp4(dhcp) => (dhcp.link(), dhcp.lease.client.running, &mut dhcp.link_up),
                Source::Dhcp6(dhcp) => {
                    (dhcp.origin.map(|origin| origin.link), dhcp.lease.client.running, &mut dhcp.link_up)
                }
            };
            let Some(link) = link.and_then(|index| network.link(index)) else { continue };
            let up = link.is_usable();
            if running.is_some() && std::mem::replace(told, up) != up {
                self.out.push(Action::DhcpLink { id: id.clone(), up });
            }
        }
    }

    /// Stops the client without a release, and forgets the macvlan. `delete`: the macvlan to delete.
    pub(super) fn drop_macvlan(&mut self, id: &VipId, delete: Option<u32>) {
        self.stop_client(id, false);
        let Some(vip) = self.vips.get_mut(id) else { return };
        vip.put_down();
        if let Source::Dhcp4(dhcp) = &mut vip.source {
            dhcp.macvlan = MacvlanState::Absent;
            dhcp.noted = None;
        }
        if let Some(link) = delete {
            self.delete_link(link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_macvlan_gets_its_address_at_once_while_the_lease_lasts_and_never_for_longer() {
        let wall: Timestamp = "2026-01-01T00:00:00.9Z".parse().unwrap();
        let (address, fence) = ("10.0.0.5".parse().unwrap(), Duration::from_secs(5));
        for (ends, valid) in [
            (None, Some(5)),
            (Some("2026-01-01T01:00:00Z"), Some(5)),
            // The kernel counts whole seconds.
            (Some("2026-01-01T00:00:03.1Z"), Some(2)),
            (Some("2026-01-01T00:00:02Z"), Some(1)),
            (Some("2026-01-01T00:00:01.8Z"), None),
            (Some("2025-12-31T23:59:00Z"), None),
        ] {
            let expires = ends.map(|end| end.parse().unwrap());
            let first = Resumed { address, expires, fence }.first_address(wall);
            let lifetime = valid.map(|seconds| AddressLifetime::For(Duration::from_secs(seconds)));
            assert_eq!(first, lifetime.map(|lifetime| ("10.0.0.5/32".parse().unwrap(), lifetime)), "{ends:?}");
        }
    }
}
