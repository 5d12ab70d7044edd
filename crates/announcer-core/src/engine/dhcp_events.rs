//! Handles the events of DHCPv4 and DHCPv6 clients.

use std::net::IpAddr;
use std::time::Instant;

use jiff::Timestamp;

use super::carrier::Carrier;
use super::dhcp_state::{Source, VersionFacts};
use super::lease::Lease;
use super::vip::FAILED_RETRY;
use super::{Action, ClientEvent, DhcpEvent, Engine, KernelOp, Leased};
use crate::network::LeaseEnd;
use crate::plan::VipId;
use crate::reason::Reason;
use crate::screen::user_of_leased;
use crate::view::Uid;

/// Text for the case that no server answers, with its consequence and the remedy. It stays the same while that lasts.
fn silence(leased: Option<IpAddr>, expires: Option<Timestamp>, parent: &str) -> String {
    let end = expires.map_or("it ends".to_owned(), |end| end.strftime("%Y-%m-%d %H:%M:%S UTC").to_string());
    let meanwhile = match leased {
        Some(address) => format!("the lease of {address} is not renewed: it stays announced until {end}"),
        None => "the Service gets no address until one does".to_owned(),
    };
    format!(
        "no DHCP server answered on the network of interface {parent}: {meanwhile}. Look whether the DHCP server of \
         that network runs and has free addresses, whether kube-vip.io/serviceInterface names an interface of that \
         network, and whether UDP ports 67 and 68 (DHCPv6: 546 and 547) get through"
    )
}

impl Engine {
    pub(super) fn dhcp_event(&mut self, now: Instant, uid: &Uid, generation: u64, event: ClientEvent) {
        match event {
            ClientEvent::V4(event) => self.client_event(now, &VipId::Dhcp(uid.clone()), uid, generation, event),
            ClientEvent::V6(event) => self.client_event(now, &VipId::Dhcp6(uid.clone()), uid, generation, event),
        }
    }

    fn client_event<F: VersionFacts>(
        &mut self,
        now: Instant,
        id: &VipId,
        uid: &Uid,
        generation: u64,
        event: DhcpEvent<F>,
    ) {
        if matches!(event, DhcpEvent::Stopped) {
            if let Some(link) = self.dhcp.ended(uid, generation) {
                self.delete_link(link);
                self.out.replan();
            }
            return;
        }
        // Events of a client that was stopped may still be in the queue; they are dropped.
        let client = self.vips.get(id).and_then(|vip| vip.source.client());
        if client.is_none_or(|client| client.running != Some(generation)) {
            return;
        }
        match event {
            DhcpEvent::Bound(leased) if self.decline_taken(now, id, uid, leased.facts.address().into()) => {}
            DhcpEvent::Bound(leased) | DhcpEvent::Renewed(leased) => self.granted(now, id, uid, leased),
            DhcpEvent::Lost { address, why } => self.lost::<F>(now, id, uid, address, &why),
            DhcpEvent::Report { reason, text } => {
                if reason == Reason::DhcpRefused {
                    self.refused(id);
                }
                self.tell_report(now, id, reason, &text);
            }
            DhcpEvent::State(state) => {
                if let Some(client) = self.vips.get_mut(id).and_then(|vip| vip.source.client_mut()) {
                    client.state = state;
                }
            }
            DhcpEvent::Failed(error) => self.client_failed(now, id, &error),
            DhcpEvent::Stopped => {}
        }
    }

    /// Declines a granted lease if this node knows that its address is in use; the probes from a macvlan cannot detect
    /// the interface beneath it (RFC 2131 3.1 step 5). Returns false if the address may be used.
    fn decline_taken(&mut self, now: Instant, id: &VipId, uid: &Uid, address: IpAddr) -> bool {
        let own_link = self.own_interface_of(address).map(|(_, link)| link);
        let forbidden = self.services.forbidden();
        let Some(user) = user_of_leased(&self.services, forbidden, own_link, uid, address) else { return false };
        self.out.push(Action::DhcpTaken { id: id.clone(), address, by: user.mac });
        let text = format!(
            "the DHCP server gave address {address}, which {}: it is declined. Take the address out of what the server \
             may give",
            user.what
        );
        self.tell_members(now, id, Reason::AddressConflict, &text);
        true
    }

    /// A lease was granted or renewed: sets its address or extends it.
    fn granted<F: VersionFacts>(&mut self, now: Instant, id: &VipId, uid: &Uid, leased: Leased<F>) {
        let Some(vip) = self.vips.get_mut(id) else { return };
        let address: IpAddr = leased.facts.address().into();
        let Some(carrier) = vip.source.carrier(address) else { return };
        let mut before = None;
        if let (Source::Dhcp4(dhcp), IpAddr::V4(v4)) = (&mut vip.source, address) {
            before = dhcp.last.replace(v4).filter(|before| *before != v4);
            let end = leased.expires.map_or(LeaseEnd::Never, LeaseEnd::At);
            if dhcp.noted.replace((carrier.link, end)) != Some((carrier.link, end)) {
                self.out.push(Action::Kernel(KernelOp::Note { link: carrier.link, uid: uid.clone(), end }));
            }
        }
        if let Some(lease) = F::lease(&mut vip.source) {
            lease.grant(leased, now);
        }
        self.dhcp.regain::<F>(uid);
        self.carry_lease(now, id, carrier);
        if let Some(before) = before {
            self.tell_other_address(now, id, address, before.into());
        }
        self.out.replan();
    }

    fn carry_lease(&mut self, now: Instant, id: &VipId, carrier: Carrier) {
        let Some(vip) = self.vips.get(id) else { return };
        if vip.carrier == Some(carrier) && vip.is_up() {
            // The lifetime in the kernel may have been limited by the end of the lease.
            let put = vip.put(now, self.config.fence());
            self.out.extend(put.map(|put| Action::Kernel(KernelOp::Put(vec![put]))));
        } else {
            self.carry(now, id, Some(carrier));
        }
    }

    fn tell_other_address(&mut self, now: Instant, id: &VipId, address: IpAddr, before: IpAddr) {
        let Some(vip) = self.vips.get(id) else { return };
        let server = vip.source.dhcp4().and_then(|dhcp| dhcp.lease.granted.as_ref()).map(|leased| leased.facts.server);
        let server = server.map_or(String::new(), |server| format!(" {server}"));
        let text = format!("the address has changed from {before} to {address}: DHCP server{server} gave another one");
        for member in &vip.members {
            self.out.inform(now, member, Reason::DhcpAddressChanged, &text);
        }
    }

    /// A lease is lost: neither this node nor the next owner continues it.
    fn lost<F: VersionFacts>(&mut self, now: Instant, id: &VipId, uid: &Uid, address: IpAddr, why: &str) {
        let Some(vip) = self.vips.get_mut(id) else { return };
        if let Some(facts) = F::lease(&mut vip.source).and_then(Lease::lose) {
            self.dhcp.lose(uid, facts);
        }
        self.dhcp.lose_address(address);
        if vip.carrier.is_none() {
            // The lease was declined, or lost before it was used.
            return;
        }
        self.carry(now, id, None);
        let text = format!("address {address} is not announced any more: {why}");
        for member in self.vips.get(id).into_iter().flat_map(|vip| &vip.members) {
            self.out.news(member, true, Reason::DhcpLeaseLost, &text);
        }
        self.tell_over(id, address);
        self.out.replan();
    }

    /// A server does not want an address to be used. What an earlier process left of it may not wait for the client any
    /// longer (RFC 2131 4.4.5). An address that the client had was lost before.
    fn refused(&mut self, id: &VipId) {
        if let Some(client) = self.vips.get_mut(id).and_then(|vip| vip.source.client_mut()) {
            client.refused = true;
            self.out.replan();
        }
    }

    fn client_failed(&mut self, now: Instant, id: &VipId, error: &str) {
        if let Some(client) = self.vips.get_mut(id).and_then(|vip| vip.source.client_mut()) {
            client.running = None;
            client.retry = Some(now + FAILED_RETRY);
        }
        tracing::warn!(vip = %id, error, "the DHCP client failed; the announcer starts it again");
        self.tell_members(now, id, Reason::CannotAnnounce, &format!("{error}; trying again"));
        self.observe(now);
    }

    /// Reports of a client change with each attempt; users get one per minute.
    fn tell_report(&mut self, now: Instant, id: &VipId, reason: Reason, text: &str) {
        let Some(vip) = self.vips.get(id) else { return };
        let parent = vip.place.and_then(|index| self.observer.network()?.link(index));
        let parent = parent.map_or("?", |link| link.name.as_str());
        if reason == Reason::DhcpNoAnswer {
            // The client's text changes with each attempt, and each text would be a new Event.
            let text = silence(vip.source.leased(), vip.source.facts_expire(), parent);
            return self.tell_members(now, id, reason, &text);
        }
        let text = format!("{text} (network of interface {parent})");
        for member in &vip.members {
            self.out.report(now, member, reason, &text);
        }
    }
}
