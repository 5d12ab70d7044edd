//! Asks about the address of a lease before its macvlan is made, while this cluster may be a copy of another one: the
//! macvlan gets the address at once, and the original may serve it. The question comes from the interface beneath.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use l2_types::{Address, Mac};

use super::super::dhcp_state::MacvlanState;
use super::super::vip::CONFLICT_RETRY;
use super::super::vip_timers::NO_CARRIER;
use super::super::{Action, Engine};
use crate::frames::{Frame, Heard};
use crate::network::is_macvlan_of;
use crate::plan::VipId;
use crate::probes::Probes;
use crate::reason::Reason;
use crate::view::Uid;

impl Engine {
    /// Whether the macvlan of this VIP has to wait for an answer to a question about its address, which begins now. An
    /// address that stands on its macvlan already is adopted.
    pub(super) fn begins_to_ask(&mut self, now: Instant, id: &VipId) -> bool {
        let Some(address) = self.told_address(id).filter(|_| self.asks_first_for_lease(now, id)) else { return false };
        if self.stands_on_its_macvlan(id, address) {
            return false;
        }
        let Some(dhcp) = self.vips.get_mut(id).and_then(|vip| vip.source.dhcp4_mut()) else { return false };
        if dhcp.free == Some(address) {
            return false;
        }
        dhcp.macvlan = MacvlanState::Asking(Probes::before_use(now));
        true
    }

    /// Whether an earlier process has left the address on the macvlan of this VIP. Another interface does not count:
    /// that of kube-proxy's IPVS mode carries every published address.
    pub(super) fn stands_on_its_macvlan(&self, id: &VipId, address: Ipv4Addr) -> bool {
        let (VipId::Dhcp(uid), Some(network)) = (id, self.observer.network()) else { return false };
        let Some(dhcp) = self.vips.get(id).and_then(|vip| vip.source.dhcp4()) else { return false };
        let Some(link) = network.link_by_name(&dhcp.name).filter(|link| is_macvlan_of(link, uid)) else { return false };
        let is_it = |own: &Address| own.interface == link.index && own.net.addr() == IpAddr::V4(address);
        network.addresses.iter().any(|own| is_it(own) && !self.observer.is_removed(own))
    }

    /// The address that the macvlan would get at once.
    pub(super) fn told_address(&self, id: &VipId) -> Option<Ipv4Addr> {
        self.resumed(id).map(|resumed| resumed.address)
    }

    /// Asks again, or ends the question: nobody has answered.
    pub(in crate::engine) fn asking_timer(&mut self, now: Instant, id: &VipId) {
        let address = self.told_address(id);
        let Some(vip) = self.vips.get_mut(id) else { return };
        let link = vip.place.and_then(|index| self.observer.network()?.link(index));
        let Some(dhcp) = vip.source.dhcp4_mut() else { return };
        let MacvlanState::Asking(probes) = &mut dhcp.macvlan else { return };
        if probes.deadline() > now {
            return;
        }
        let Some(link) = link else {
            dhcp.macvlan = MacvlanState::Absent;
            return;
        };
        if let Some(address) = address.filter(|_| probes.go_on(now)) {
            let (link, mac) = (link.index, link.mac.unwrap_or(Mac::ZERO));
            self.out.push(Action::Probe { link, mac, address: address.into() });
            return;
        }
        if !link.is_usable() {
            // No host has received the probes.
            *probes = Probes::before_use(now + NO_CARRIER);
            return;
        }
        (dhcp.macvlan, dhcp.free) = (MacvlanState::Absent, address);
        self.out.replan();
    }

    /// The last probe could not be sent.
    pub(in crate::engine) fn lease_not_probed(&mut self, link: u32, address: IpAddr) {
        let Some(id) = self.asking_about(link, address) else { return };
        if let Some(dhcp) = self.vips.get_mut(&id).and_then(|vip| vip.source.dhcp4_mut())
            && let MacvlanState::Asking(probes) = &mut dhcp.macvlan
        {
            probes.not_sent();
        }
    }

    /// Another host has an address that this node asks about: its macvlan waits, at the pace of a conflict. The MAC of
    /// a lease is the same on all nodes and in a copy, so an answer from it counts, too. The first one may come from a
    /// member that is about to withdraw, which nobody has to be told. An answer from a member's own MAC does not count:
    /// that member answers by proxy, as kube-proxy in IPVS mode does, and has no lease.
    pub(in crate::engine) fn judge_answer_about_lease(&mut self, now: Instant, frame: &Frame) {
        let Frame { link, address, mac, what, .. } = *frame;
        if what == Heard::Probe || self.is_peer(mac) {
            return;
        }
        let Some(id) = self.asking_about(link, address) else { return };
        let longest_retry = self.longest_retry();
        let Some(vip) = self.vips.get_mut(&id) else { return };
        vip.conflicts += 1;
        let first = vip.conflicts == 1;
        let Some(dhcp) = vip.source.dhcp4_mut() else { return };
        if first && mac == dhcp.mac {
            dhcp.macvlan = MacvlanState::Failed { until: now + longest_retry };
            tracing::warn!(%address, "another host uses the lease of a Service; the announcer waits and asks again");
            return;
        }
        dhcp.macvlan = MacvlanState::Failed { until: now + CONFLICT_RETRY };
        let text = format!(
            "address {address}, the lease of this Service, is used by {mac} on the network, and the cloud controller \
             has not said that this cluster is no copy of another one: it is not announced; tried again every {} s, \
             and without a question when the controller says so",
            CONFLICT_RETRY.as_secs()
        );
        tracing::warn!(
            %address,
            %mac,
            "another host uses the address of a lease, and this cluster may be a copy; the announcer does not announce \
            it and asks again later"
        );
        self.tell_members(now, &id, Reason::AddressConflict, &text);
        self.out.replan();
    }

    fn asking_about(&self, link: u32, address: IpAddr) -> Option<VipId> {
        let leased = self.vips.range(VipId::Dhcp(Uid::default())..);
        let mut asking = leased.filter(|(id, vip)| {
            vip.place == Some(link)
                && vip.source.dhcp4().is_some_and(|dhcp| matches!(dhcp.macvlan, MacvlanState::Asking(_)))
                && self.told_address(id).map(IpAddr::V4) == Some(address)
        });
        asking.next().map(|(id, _)| id.clone())
    }
}
