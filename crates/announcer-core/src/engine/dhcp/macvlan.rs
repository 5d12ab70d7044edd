//! The macvlan of a DHCP VIP: made, adopted, made again, and what its client is told of it.

use std::time::{Duration, Instant};

use ipnet::{IpNet, Ipv4Net};
use jiff::Timestamp;
use l2_types::Mac;
use l2_types::{AddressLifetime, InetConfChange, Macvlan};

use super::super::dhcp_state::MacvlanState;
use super::super::vip::Vip;
use super::super::{Action, DhcpStart, Engine, Resumed, WireOp};
use super::MACVLAN_STAYED;
use crate::annotations::mac_of_a_node;
use crate::network::mac_is_taken;
use crate::plan::VipId;
use crate::reason::Reason;
use crate::screen::user_of_mac;
use crate::view::{Uid, is_told};

impl Resumed {
    /// What the client will say at once of a lease that is not over. The kernel counts whole seconds.
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
    /// The next thing that the macvlan or the client needs.
    pub(super) fn advance_dhcp(&mut self, now: Instant, uid: &Uid, settings: bool) {
        let id = VipId::Dhcp(uid.clone());
        let missing = |vip: &Vip| vip.dhcp.as_ref().is_some_and(|dhcp| dhcp.macvlan == MacvlanState::Absent);
        let resumed = self.resumed(&id);
        let refused = self.vips.get(&id).filter(|vip| missing(vip)).and_then(|_| self.mac_refused(&id));
        let Some(vip) = self.vips.get_mut(&id) else { return };
        let (Some(dhcp), Some(parent)) = (vip.dhcp.as_mut(), vip.place) else { return };
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
                if self.macvlan_awaits_rules(&wanted.name, resumed) {
                    return;
                }
                if let Some(dhcp) = self.vips.get_mut(&id).and_then(|vip| vip.dhcp.as_mut()) {
                    dhcp.macvlan = MacvlanState::Making;
                    dhcp.asked = Some((wanted.parent, wanted.name.clone()));
                }
                self.prepare_links(now);
                self.out.push(Action::Wire(WireOp::Macvlan(uid.clone(), wanted, resumed)));
            }
            MacvlanState::Ready(link, _) => {
                if settings {
                    self.out.push(Action::Wire(WireOp::Macvlan(uid.clone(), wanted, None)));
                }
                self.start_client(now, uid, link);
            }
            MacvlanState::Making | MacvlanState::Failed { .. } => {}
        }
    }

    fn start_client(&mut self, now: Instant, uid: &Uid, link: u32) {
        let Some(dhcp) = self.vips.get(&VipId::Dhcp(uid.clone())).and_then(|vip| vip.dhcp.as_ref()) else { return };
        if dhcp.client.running.is_some() || dhcp.client.retry.is_some_and(|at| at > now) {
            return;
        }
        let (trusted, copied) = match dhcp.facts.clone() {
            Some(facts) if is_told(&self.services, uid, facts.address) => (Some(facts), None),
            other => (None, other),
        };
        let vip = self.vips.get_mut(&VipId::Dhcp(uid.clone()));
        let Some(dhcp) = vip.and_then(|vip| vip.dhcp.as_mut()) else { return };
        self.clients += 1;
        dhcp.client.running = Some(self.clients);
        // What it is not, the next observation tells.
        dhcp.link_up = true;
        let start = DhcpStart {
            generation: self.clients,
            link,
            mac: dhcp.mac,
            hostname: dhcp.wishes.hostname.clone(),
            broadcast: dhcp.wishes.broadcast,
            requested: dhcp.wishes.requested.or(copied.map(|facts| facts.address)),
            lease: dhcp.leased.as_ref().map(|leased| leased.facts.clone()).or(trusted),
        };
        self.out.push(Action::StartDhcp(uid.clone(), start));
    }

    /// The lease that the client will go on with before the server has answered. Clients know its address, so the rules
    /// of service security are there already.
    fn resumed(&self, id: &VipId) -> Option<Resumed> {
        let VipId::Dhcp(uid) = id else { return None };
        let dhcp = self.vips.get(id)?.dhcp.as_ref()?;
        let known = dhcp.leased.as_ref().map(|leased| &leased.facts).or(dhcp.facts.as_ref());
        let facts = known.filter(|facts| is_told(&self.services, uid, facts.address))?;
        Some(Resumed { address: facts.address, expires: facts.expires, fence: self.fence })
    }

    /// Why the VIP cannot have its MAC. A machine's would lead the machine's own traffic here. Two macvlans of one interface
    /// cannot have the same: whose was there first keeps it.
    fn mac_refused(&self, id: &VipId) -> Option<String> {
        let vip = self.vips.get(id)?;
        let mac = vip.dhcp.as_ref()?.mac;
        if self.network.as_ref().is_some_and(|network| network.has_interface_with(mac)) || self.is_peer(mac) {
            return Some(mac_of_a_node(mac).to_string());
        }
        if let Some(user) = user_of_mac(&self.services, &vip.members, mac) {
            return Some(format!("{} (by Service {user})", mac_is_taken(mac)));
        }
        let other = self.vips.iter().find(|(other, found)| {
            *other != id
                && found.place == vip.place
                && found.dhcp.as_ref().is_some_and(|dhcp| {
                    dhcp.mac == mac && matches!(dhcp.macvlan, MacvlanState::Making | MacvlanState::Ready(..))
                })
        });
        let (_, other) = other?;
        let user = other.members.first().map_or(String::new(), |member| format!(" (by Service {member})"));
        Some(format!("{}{user}", mac_is_taken(mac)))
    }

    pub(in crate::engine) fn macvlan_done(&mut self, now: Instant, uid: &Uid, result: Result<(u32, Mac), String>) {
        let id = VipId::Dhcp(uid.clone());
        let observes = self.observes;
        let place = self.vips.get(&id).and_then(|vip| vip.place);
        let Some(dhcp) = self.vips.get_mut(&id).and_then(|vip| vip.dhcp.as_mut()) else {
            // Given up while it was being made.
            if let Ok((link, _)) = result {
                self.delete_link(link);
            }
            return;
        };
        match result {
            Ok((link, mac)) if mac == dhcp.mac && dhcp.is_as_asked(place) => {
                dhcp.macvlan = MacvlanState::Ready(link, observes);
                dhcp.made = Some(now);
                self.dirty = true;
            }
            // Made for annotations, or on an interface, that have changed since.
            Ok((link, _)) => {
                dhcp.macvlan = MacvlanState::Absent;
                self.delete_link(link);
                self.dirty = true;
            }
            Err(error) => {
                dhcp.macvlan = MacvlanState::Failed { until: dhcp.macvlan_retry(now) };
                let name = dhcp.name.clone();
                if let Some(vip) = self.vips.get_mut(&id) {
                    vip.refusals = vip.refusals.saturating_add(1);
                }
                self.dirty = true;
                tracing::warn!(macvlan = name, error, "cannot make the macvlan, trying again");
                self.tell_members(now, &id, Reason::CannotAnnounce, &format!("{error}; trying again"));
                self.observe(now);
            }
        }
    }

    /// Macvlans go with their parents, or by somebody's hand.
    pub(in crate::engine) fn check_macvlans(&mut self, now: Instant, observation: u64) {
        let network = self.network.as_ref().expect("called with a fresh observation");
        let gone: Vec<Uid> = self
            .vips
            .iter()
            .filter_map(|(id, vip)| match (id, vip.dhcp.as_ref()?.macvlan) {
                (VipId::Dhcp(uid), MacvlanState::Ready(link, from))
                    if observation > from && network.link(link).is_none() =>
                {
                    Some(uid.clone())
                }
                _ => None,
            })
            .collect();
        self.tell_links();
        for uid in gone {
            tracing::warn!(%uid, "the macvlan is gone: it is made again as soon as its interface is there");
            let id = VipId::Dhcp(uid);
            self.drop_macvlan(&id, None);
            let Some(dhcp) = self.vips.get_mut(&id).and_then(|vip| vip.dhcp.as_mut()) else { continue };
            if dhcp.made.is_some_and(|made| now >= made + MACVLAN_STAYED) {
                dhcp.troubles = 0;
            }
            if dhcp.troubles == 0 {
                // Most probably its interface went and comes back.
                dhcp.troubles = 1;
            } else {
                dhcp.macvlan = MacvlanState::Failed { until: dhcp.macvlan_retry(now) };
            }
        }
    }

    /// Tells clients of links that were lost or are back: what happened on the network meanwhile is not known, so the lease
    /// is confirmed.
    fn tell_links(&mut self) {
        let Some(network) = &self.network else { return };
        for (id, vip) in self.vips.iter_mut() {
            let (VipId::Dhcp(uid), Some(dhcp)) = (id, vip.dhcp.as_mut()) else { continue };
            let Some(link) = dhcp.link().and_then(|index| network.link(index)) else { continue };
            let up = link.is_usable();
            if dhcp.client.running.is_some() && std::mem::replace(&mut dhcp.link_up, up) != up {
                self.out.push(Action::DhcpLink { uid: uid.clone(), up });
            }
        }
    }

    /// Stops the client, keeping the lease, and forgets the macvlan, deleting it if it is still there.
    pub(super) fn drop_macvlan(&mut self, id: &VipId, delete: Option<u32>) {
        let VipId::Dhcp(uid) = id else { return };
        self.stop_client(uid, false);
        let Some(vip) = self.vips.get_mut(id) else { return };
        vip.put_down();
        if let Some(dhcp) = vip.dhcp.as_mut() {
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
