//! The DHCPv4 client and the lease of a VIP; its macvlan is in `dhcp/macvlan.rs`.

mod asking;
mod macvlan;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use super::dhcp_history::Undecided;
use super::dhcp_state::{Dhcp4, MacvlanState, Source};
use super::lease::Lease;
use super::{Action, Engine};
use crate::network::{is_macvlan_of, mac_of};
use crate::plan::VipId;
use crate::reason::Reason;
use crate::view::{DhcpWishes, Uid};

/// A macvlan that existed this long clears the count of earlier troubles.
const MACVLAN_STAYED: Duration = Duration::from_mins(2);

/// What has to be redone after the wishes or the place of a DHCP VIP have changed.
#[derive(Debug, PartialEq, Eq)]
enum Changed {
    /// Nothing, or only settings of the macvlan.
    Nothing,
    /// The client has to be restarted.
    Client,
    /// The macvlan has to be made again.
    Macvlan,
    /// To the server the VIP is another client. The server would keep the old client's lease and refuse the address to
    /// the new one.
    Identity,
}

impl Dhcp4 {
    /// Whether a client runs and has a lease.
    fn holds(&self) -> bool {
        self.lease.granted.is_some() && self.lease.client.running.is_some()
    }

    /// Takes over the current wishes of the Service. `moved`: the VIP goes to another interface.
    fn follow(&mut self, uid: &Uid, wishes: DhcpWishes, moved: bool) -> Changed {
        let mac = wishes.mac.unwrap_or(self.mac);
        let name = wishes.link_name.clone().unwrap_or_else(|| uid.link_name());
        if self.holds() && (mac != self.mac || wishes.hostname != self.wishes.hostname) {
            return Changed::Identity;
        }
        let changed = if moved || mac != self.mac || name != self.name {
            Changed::Macvlan
        } else if wishes.hostname != self.wishes.hostname || wishes.broadcast != self.wishes.broadcast {
            Changed::Client
        } else {
            Changed::Nothing
        };
        (self.mac, self.name, self.wishes) = (mac, name, wishes);
        changed
    }
}

impl Engine {
    /// The source of a VIP's address.
    pub(super) fn source_of(&mut self, id: &VipId) -> Source {
        let wishes = self.plan.vips.get(id).and_then(|planned| planned.dhcp.clone()).unwrap_or_default();
        match id {
            VipId::Static(_) => Source::Static,
            VipId::Dhcp(uid) => self.source4(uid, wishes),
            VipId::Dhcp6(uid) => self.source6(uid, &wishes),
        }
    }

    fn source4(&mut self, uid: &Uid, wishes: DhcpWishes) -> Source {
        let name = wishes.link_name.clone().unwrap_or_else(|| uid.link_name());
        // If the Service names no MAC, that of an existing macvlan is the best guess: kube-vip may have died before it
        // wrote the MAC.
        let found = self.observer.network().and_then(|network| network.link_by_name(&name));
        let found = found.filter(|link| is_macvlan_of(link, uid)).and_then(|link| link.mac);
        let mut lease = Lease::new(self.dhcp.usable4(uid, wishes.lease.as_ref()));
        // kube-vip leaves no more of a lease than its address.
        lease.inherited |= wishes.requested.is_some();
        Source::Dhcp4(Box::new(Dhcp4 {
            lease,
            mac: wishes.mac.or(found).unwrap_or_else(|| mac_of(uid)),
            last: wishes.lease.as_ref().map(|facts| facts.address),
            name,
            wishes,
            macvlan: MacvlanState::Absent,
            free: None,
            asked: None,
            made: None,
            troubles: 0,
            link_up: true,
            noted: None,
        }))
    }

    /// The VIPs with leases on this node, and their addresses.
    pub(super) fn leases(&self) -> BTreeMap<VipId, Option<IpAddr>> {
        let leased = self.vips.iter().filter(|(id, _)| id.is_dhcp());
        leased.map(|(id, vip)| (id.clone(), vip.source.leased())).collect()
    }

    pub(super) fn place_dhcp(&mut self, now: Instant, uid: &Uid, place: Option<u32>, wishes: Option<DhcpWishes>) {
        let id = VipId::Dhcp(uid.clone());
        let wishes = wishes.map(|wishes| self.without_refused(now, &id, wishes));
        let Some(vip) = self.vips.get_mut(&id) else { return };
        let before = std::mem::replace(&mut vip.place, place);
        let Source::Dhcp4(dhcp) = &mut vip.source else { return };
        // The place may have been unknown for a while, so the interface on which the macvlan was made counts, too.
        let made_on = dhcp.link().and(dhcp.asked.as_ref()).map(|(parent, _)| *parent);
        let moved = place.is_some_and(|place| before.into_iter().chain(made_on).any(|other| other != place));
        let settings = wishes.as_ref().is_some_and(|wishes| wishes.rp_filter != dhcp.wishes.rp_filter);
        let changed = match wishes {
            Some(wishes) => dhcp.follow(uid, wishes, moved),
            None if moved => Changed::Macvlan,
            None => Changed::Nothing,
        };
        match changed {
            Changed::Nothing => {}
            Changed::Client => self.stop_client(&id, false),
            Changed::Macvlan => {
                if let Some(link) = dhcp.link() {
                    tracing::info!(
                        %uid,
                        "the MAC, name or interface of the macvlan was changed; the announcer creates the macvlan \
                        again"
                    );
                    self.drop_macvlan(&id, Some(link));
                } else if let MacvlanState::Failed { .. } | MacvlanState::Asking(_) = dhcp.macvlan {
                    // The annotation that caused the failure was changed.
                    (dhcp.macvlan, dhcp.troubles) = (MacvlanState::Absent, 0);
                }
            }
            Changed::Identity => {
                self.give_back(now, &id, uid);
                return;
            }
        }
        self.advance_dhcp(now, uid, settings);
    }

    /// The wishes of a VIP, of which one that has a lease keeps its MAC and host name where it cannot have the others.
    /// Its lease is not given back for what it would be refused.
    fn without_refused(&mut self, now: Instant, id: &VipId, mut wishes: DhcpWishes) -> DhcpWishes {
        let Some(dhcp) = self.vips.get(id).and_then(|vip| vip.source.dhcp4()).filter(|dhcp| dhcp.holds()) else {
            return wishes;
        };
        let (mac, hostname) = (dhcp.mac, dhcp.wishes.hostname.clone());
        let other_mac = wishes.mac.filter(|wanted| *wanted != mac);
        let refused_mac = other_mac.and_then(|wanted| self.mac_refused(id, wanted, false));
        let other_name = wishes.hostname.as_deref().filter(|wanted| Some(*wanted) != hostname.as_deref());
        let refused_name = other_name.and_then(|wanted| self.hostname_refused(id, wanted));
        if refused_mac.is_some() {
            wishes.mac = Some(mac);
        }
        if refused_name.is_some() {
            wishes.hostname = hostname;
        }
        for why in refused_mac.into_iter().chain(refused_name) {
            let text = format!("{why}. The Service keeps its lease and is the same client as before");
            self.tell_members(now, id, Reason::CannotAnnounce, &text);
        }
        wishes
    }

    /// Gives a lease back, because the Service asks for it with another MAC or host name. The Service must not show the
    /// lease any longer: the next owner would go on with it, as a client that never had it.
    fn give_back(&mut self, now: Instant, id: &VipId, uid: &Uid) {
        let lease = self.vips.get_mut(id).and_then(|vip| vip.source.dhcp4_mut()).map(|dhcp| &mut dhcp.lease);
        if let Some(lease) = lease {
            if let Some(address) = lease.address() {
                self.dhcp.give_back(uid, address);
                self.dhcp.lose_address(address.into());
            }
            if let Some(facts) = lease.recorded.clone() {
                self.dhcp.lose(uid, facts);
            }
        }
        self.withdraw(now, id, true, "its lease is given back: its MAC or host name was changed");
    }

    /// Macvlans whose clients have not confirmed their address yet, and since when they could. What an earlier process
    /// left there stays meanwhile, because removing and setting it again would cost connections.
    pub(super) fn confirming4(&self, now: Instant) -> BTreeMap<&str, Instant> {
        let clients = self.vips.values().filter_map(|vip| vip.source.dhcp4());
        let since = |dhcp: &Dhcp4| match dhcp.macvlan {
            MacvlanState::Ready(..) => dhcp.made.unwrap_or(now),
            MacvlanState::Absent | MacvlanState::Asking(_) | MacvlanState::Making => now,
            MacvlanState::Failed { .. } => self.refresh.started(),
        };
        clients.filter(|dhcp| dhcp.lease.is_awaited()).map(|dhcp| (dhcp.name.as_str(), since(dhcp))).collect()
    }

    fn stop_client(&mut self, id: &VipId, release: bool) {
        let client = self.vips.get_mut(id).and_then(|vip| vip.source.client_mut());
        if client.is_some_and(|client| client.running.take().is_some()) {
            self.out.push(Action::StopDhcp { id: id.clone(), release });
        }
    }

    /// Ends the client of a withdrawn VIP. The lease is released only if its Service is gone. Otherwise the next owner
    /// continues it with the same MAC, and a RELEASE would let the server give the address to another client. So it
    /// would if this cluster is a copy. Returns true if the address goes with the macvlan.
    pub(super) fn leave_dhcp(&mut self, now: Instant, id: &VipId, source: &Source, release: bool) -> bool {
        let dhcp4 = source.dhcp4();
        let link = dhcp4.and_then(Dhcp4::link);
        let running = source.client().and_then(|client| client.running);
        // The lease may be the original's: to its server both are one client. That of a new Service is not.
        let doubtful = release && source.is_inherited() && self.may_be_a_copy(now);
        // What no client has yet may stand on the macvlan as an earlier process left it, so that goes at once.
        let waits = doubtful && source.leased().is_some() && self.awaits_word() && self.is_deleted(id);
        if let Some(client) = running.filter(|_| waits) {
            self.dhcp.wait_for_word(now, id.clone(), client, link);
            return false;
        }
        if doubtful {
            tell_kept(id);
        }
        let address = dhcp4.and_then(|dhcp| dhcp.lease.address());
        self.end_client(now, id, running, link.map(|link| (link, address)), release && !doubtful);
        dhcp4.is_some()
    }

    /// Whether the Service of a lease is there no more, or about to go.
    fn is_deleted(&self, id: &VipId) -> bool {
        id.leased_by().is_some_and(|uid| !self.services.values().any(|view| view.uid == *uid && !view.retired))
    }

    /// Stops a client, and deletes its macvlan with the address on it: at once, or when the RELEASE is sent. The client
    /// is told also while the lease is still being probed; it knows what to release. A DHCPv6 client sends RELEASE from
    /// the interface's own address, so it needs nothing that is left.
    fn end_client(
        &mut self,
        now: Instant,
        id: &VipId,
        running: Option<u64>,
        macvlan: Option<(u32, Option<Ipv4Addr>)>,
        release: bool,
    ) {
        if running.is_some() {
            self.out.push(Action::StopDhcp { id: id.clone(), release });
        }
        let (VipId::Dhcp(uid), Some((link, address))) = (id, macvlan) else { return };
        match running.filter(|_| release) {
            Some(client) => self.dhcp.leave(now, uid, link, client, address),
            None => self.delete_link(link),
        }
    }

    /// The controller has spoken, or nobody waits for it any longer: gives back the leases of deleted Services, or
    /// leaves them to end by themselves.
    pub(super) fn decide_leases(&mut self, now: Instant, undecided: BTreeMap<VipId, Undecided>, release: bool) {
        for (id, Undecided { client, link, .. }) in undecided {
            if !release {
                tell_kept(&id);
            }
            self.end_client(now, &id, Some(client), link.map(|link| (link, None)), release);
            self.out.replan();
        }
    }

    pub(super) fn leaving_timers(&mut self, now: Instant) {
        for link in self.dhcp.take_due(now) {
            self.delete_link(link);
            self.out.replan();
        }
        let overdue = self.dhcp.take_overdue(now);
        self.decide_leases(now, overdue, false);
    }
}

fn tell_kept(id: &VipId) {
    tracing::info!(
        vip = %id,
        "the announcer does not give the lease back, because this cluster may be a copy of another one that uses it; \
        the lease ends by itself"
    );
}
