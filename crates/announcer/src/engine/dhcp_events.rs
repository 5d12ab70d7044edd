//! What DHCP clients say, as far as it means the same for both versions of the protocol.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::dhcp_state::ClientState;
use super::vip::Carrier;
use super::{Action, DhcpEvent, Engine, Tell, Vip, WireOp};
use crate::annotations::printable;
use crate::plan::VipId;
use crate::reason::Reason;

const FAILED_RETRY: Duration = Duration::from_secs(5);
/// A renewal is written down when it moves the end of the lease by this much: short leases must not cost the API a
/// write per renewal.
const FACTS_STEP: Duration = Duration::from_mins(1);
/// How often one kind of trouble is told.
const REPORT_INTERVAL: Duration = Duration::from_mins(1);

/// Whether the end of a lease that stands on the Service is not good enough for a successor any more: it moved by
/// [`FACTS_STEP`], or by a quarter of what is left until `expires`.
pub(super) fn has_moved(
    recorded: Option<Timestamp>,
    end: Option<Timestamp>,
    expires: Option<Instant>,
    now: Instant,
) -> bool {
    let (Some(old), Some(new)) = (recorded, end) else { return recorded != end };
    let quarter = expires.map_or(Duration::ZERO, |at| at.saturating_duration_since(now) / 4);
    (new.as_second() - old.as_second()).unsigned_abs() >= quarter.max(FACTS_STEP).as_secs()
}

impl Vip {
    fn client(&mut self) -> Option<&mut ClientState> {
        let v4 = self.dhcp.as_mut().map(|dhcp| &mut dhcp.client);
        v4.or(self.dhcp6.as_mut().map(|dhcp| &mut dhcp.client))
    }
}

impl Engine {
    /// A lease was granted or renewed: its address is set there, or stays for longer.
    pub(super) fn carry_lease(&mut self, now: Instant, id: &VipId, carrier: Carrier) {
        let fence = self.fence;
        let Some(vip) = self.vips.get_mut(id) else { return };
        if vip.carrier == Some(carrier) && vip.is_up() {
            // The kernel's deadline may have been cut to the end of the lease.
            if let Some(put) = vip.put(now, fence) {
                self.out.push(Action::Wire(WireOp::Put(vec![put])));
            }
        } else {
            self.carry(now, id, Some(carrier));
        }
    }

    /// A lease is over; what was known of it is forgotten already.
    pub(super) fn lease_lost(&mut self, now: Instant, id: &VipId, address: IpAddr, why: &str) {
        self.carry(now, id, None);
        let text = format!("address {address} is not announced any more: {why}");
        self.tell_members(now, id, Reason::DhcpLeaseLost, &text);
        self.dirty = true;
    }

    /// What a client says about itself rather than about its lease.
    pub(super) fn client_said<F>(&mut self, now: Instant, id: &VipId, event: DhcpEvent<F>) {
        let Some(client) = self.vips.get_mut(id).and_then(Vip::client) else { return };
        match event {
            DhcpEvent::Report { reason, text } => self.tell_report(now, id, reason, &text),
            DhcpEvent::State(state) => client.state = state,
            DhcpEvent::Failed(error) => {
                client.running = None;
                client.retry = Some(now + FAILED_RETRY);
                tracing::warn!(vip = %id, error, "the DHCP client failed, starting it again");
                self.tell_members(now, id, Reason::CannotAnnounce, &format!("{error}; trying again"));
                self.observe(now);
            }
            DhcpEvent::Bound(_) | DhcpEvent::Renewed(_) | DhcpEvent::Lost { .. } | DhcpEvent::Stopped => {}
        }
    }

    /// What a client reports changes with each attempt; people need it once a minute.
    fn tell_report(&mut self, now: Instant, id: &VipId, reason: Reason, text: &str) {
        let Some(vip) = self.vips.get(id) else { return };
        let parent = vip
            .place
            .and_then(|index| self.network.as_ref()?.link(index))
            .map_or("?", |link| link.name.as_str())
            .to_owned();
        for member in vip.members.clone() {
            if self.may_tell(now, &member, reason.as_str(), REPORT_INTERVAL) {
                let text = printable(&format!("{text} (network of interface {parent})"));
                self.out.push(Action::Tell(member, Tell { warning: reason != Reason::DhcpOtherAddress, reason, text }));
            }
        }
    }
}
