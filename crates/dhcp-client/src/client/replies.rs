//! Handles replies: which reply counts in which phase, and what it changes.

use std::{net::Ipv4Addr, time::Instant};

use ipnet::Ipv4Net;

use super::{Client, Exchange, Goal, Nak, Offer, Output, V4};
use crate::{
    Expiry, Lease, LostReason, Report,
    config::is_host_address,
    lease::{self, ASSUMED_LEASE},
    machine::{DhcpVersion, Phase, REFUSAL_PATIENCE},
    message::{Reply, ReplyKind},
    timing,
};

impl Client {
    /// Handles a reply. It counts only if it answers the open request: by its transaction ID, and by its server if one
    /// server was asked. Any other reply is meant for another client, late or repeated. `chaddr` was checked before.
    pub(super) fn reply(&mut self, now: Instant, reply: Reply, out: &mut Vec<Output>) {
        let Phase::Asking { exchange, goal } = &self.phase else { return };
        let exchange = *exchange;
        let transaction = &exchange.transaction;
        let asked_server = match (goal, &self.in_use) {
            (Goal::Requesting { offer }, _) => Some(offer.server_id),
            (Goal::Renewing, Some(lease)) => Some(lease.server_id),
            _ => None,
        };
        if reply.server_id.zip(asked_server).is_some_and(|(answering, asked)| answering != asked) {
            return;
        }
        match reply.kind {
            ReplyKind::Offer => {
                let looks = match goal {
                    Goal::Selecting | Goal::Rebinding { .. } => true,
                    // While a running lease is being confirmed, DISCOVER is sent too.
                    Goal::Rebooting { .. } => self.in_use.is_some(),
                    Goal::Requesting { .. } | Goal::Renewing => false,
                };
                if !looks || reply.xid != transaction.xid {
                    return;
                }
                match acceptable_offer(&reply) {
                    Ok(offer) => self.take_offer(now, exchange, offer, out),
                    Err(why) => unusable(&reply, why, out),
                }
            }
            ReplyKind::Ack | ReplyKind::Nak => {
                let (address, asked_at) = match (goal, &self.in_use) {
                    (Goal::Requesting { offer }, _) => {
                        (offer.address, (reply.xid == transaction.xid).then_some(exchange.started))
                    }
                    (Goal::Rebooting { address, .. }, _) => (*address, transaction.sent_at(reply.xid)),
                    (Goal::Renewing | Goal::Rebinding { .. }, Some(lease)) => {
                        (lease.address, transaction.sent_at(reply.xid))
                    }
                    _ => return,
                };
                let Some(asked_at) = asked_at else { return };
                if reply.kind == ReplyKind::Nak {
                    return self.nak(now, reply, address, out);
                }
                match self.granted(now, &reply, asked_at, asked_server, out) {
                    Ok(lease) => self.take_lease(now, lease, address, out),
                    Err(why) => unusable(&reply, why, out),
                }
            }
        }
    }

    fn take_offer(&mut self, now: Instant, exchange: Exchange, offer: Offer, out: &mut Vec<Output>) {
        match (&self.in_use, self.wish) {
            (Some(lease), _) if lease.address != offer.address => {
                out.push(Output::Report(Report::OfferIgnored {
                    kept: lease.address,
                    offered: offer.address,
                    server: offer.server_id,
                }));
                return;
            }
            (None, Some(wanted)) if wanted != offer.address => {
                out.push(Output::Report(Report::OtherAddress {
                    wanted,
                    given: offer.address,
                    server: offer.server_id,
                }));
            }
            _ => {}
        }
        self.request(now, exchange, offer, out);
    }

    /// The lease that an ACK grants. `asked_server` replaces a missing option 54.
    fn granted(
        &mut self,
        now: Instant,
        reply: &Reply,
        asked_at: Instant,
        asked_server: Option<Ipv4Addr>,
        out: &mut Vec<Output>,
    ) -> Result<Lease, &'static str> {
        check_address(reply)?;
        let server_id = reply.server_id.or(asked_server).unwrap_or(reply.sender);
        let address = reply.your_address;
        let lease_seconds = match reply.lease_seconds {
            Some(0) => return Err("its lease time is zero"),
            Some(seconds) => seconds,
            None => {
                out.push(Output::Report(Report::NoLeaseTime { server: server_id, assumed: ASSUMED_LEASE }));
                u32::try_from(ASSUMED_LEASE.as_secs()).expect("an hour fits")
            }
        };
        let times = lease::times(lease_seconds, reply.renewal_seconds, reply.rebinding_seconds);
        let expiry = times.map_or(Expiry::Never, |times| Expiry::At(asked_at + times.length));
        if expiry.is_past(now) {
            return Err("its lease was over when it arrived");
        }
        Ok(Lease {
            address,
            network: network(reply),
            routers: reply.routers.clone(),
            server_id,
            server_mac: Some(reply.sender_mac).filter(|mac| mac.is_unicast()),
            since: asked_at,
            renew_at: times.map(|times| asked_at + timing::fuzz(times.renew, &mut self.rng)),
            rebind_at: times.map(|times| asked_at + times.rebind),
            expiry,
        })
    }

    /// Uses a granted lease. It is probed first, unless this address is already in use: the probe would meet this node
    /// or the previous owner.
    fn take_lease(&mut self, now: Instant, mut lease: Lease, asked: Ipv4Addr, out: &mut Vec<Output>) {
        match &self.in_use {
            Some(old) if old.address == lease.address => {
                // Some servers omit options in a renewal.
                lease.network = lease.network.or(old.network);
                self.use_lease(lease.clone());
                out.push(Output::Renewed(lease));
            }
            Some(_) => {
                self.lose(LostReason::AddressChanged { server: lease.server_id, to: lease.address }, out);
                self.probe(now, lease, out);
            }
            None => {
                if lease.address != asked {
                    let (given, server) = (lease.address, lease.server_id);
                    out.push(Output::Report(Report::OtherAddress { wanted: asked, given, server }));
                }
                self.probe(now, lease, out);
            }
        }
    }

    fn nak(&mut self, now: Instant, reply: Reply, address: Ipv4Addr, out: &mut Vec<Output>) {
        let nak = Nak { server: reply.server(), message: reply.message };
        if let (
            Phase::Asking { exchange, goal: Goal::Rebooting { foreign_nak, .. } | Goal::Rebinding { foreign_nak } },
            Some(lease),
        ) = (&mut self.phase, &self.in_use)
            && nak.server != lease.server_id
        {
            // Another server on this LAN may refuse every address outside its own range. Its NAK counts only if the
            // granting server does not answer before the next transmission, which is soon now.
            exchange.next_at = exchange.next_at.min(now + REFUSAL_PATIENCE);
            *foreign_nak = Some(nak);
            return;
        }
        self.refused(now, address, nak, out);
    }

    /// A server takes the address back: the client stops using it at once (RFC 2131 4.4.5) and starts a new search.
    pub(super) fn refused(&mut self, now: Instant, address: Ipv4Addr, nak: Nak, out: &mut Vec<Output>) {
        let Nak { server, message } = nak;
        self.lose(LostReason::Nak { server, message: message.clone() }, out);
        // A lease that the server has forgotten can be granted again on request. An address that it offered and then
        // refused cannot.
        let offered = matches!(self.phase, Phase::Asking { goal: Goal::Requesting { .. }, .. });
        self.wish = if offered { None } else { Some(address) };
        self.remembered = None;
        self.refusals = self.refusals.saturating_add(1);
        let retry_in = timing::pause_after_nak(self.refusals, &mut self.rng);
        out.push(Output::Report(Report::Nak { server, address, message, retry_in }));
        if retry_in.is_zero() {
            V4::look_again(self, now, out);
        } else {
            self.phase = Phase::Pausing { until: now + retry_in };
        }
    }
}

/// RFC 2131 3.1 step 3 leaves the choice of an offer to the client. The first usable offer is taken, because waiting
/// for a better one would cost time at every start.
fn acceptable_offer(reply: &Reply) -> Result<Offer, &'static str> {
    let server_id = reply.server_id.ok_or("its offer names no server (option 54)")?;
    check_address(reply)?;
    if reply.lease_seconds == Some(0) {
        return Err("its offer has a lease time of zero");
    }
    Ok(Offer { address: reply.your_address, server_id, server_mac: reply.sender_mac })
}

fn unusable(reply: &Reply, why: &'static str, out: &mut Vec<Output>) {
    out.push(Output::Report(Report::UnusableReply { server: reply.server(), why }));
}

fn network(reply: &Reply) -> Option<Ipv4Net> {
    let network = Ipv4Net::with_netmask(reply.your_address, reply.netmask?).ok()?;
    (network.prefix_len() > 0).then_some(network)
}

fn check_address(reply: &Reply) -> Result<(), &'static str> {
    let address = reply.your_address;
    if !is_host_address(address) {
        return Err("its address cannot be a host's");
    }
    if reply.server_id == Some(address) {
        return Err("it gives its own address away");
    }
    match network(reply) {
        Some(net) if net.prefix_len() < 31 && (address == net.network() || address == net.broadcast()) => {
            Err("its address is the network's own or its broadcast address")
        }
        _ => Ok(()),
    }
}
