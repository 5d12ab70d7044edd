//! What DHCP clients say, as far as it means the same for both versions of the protocol.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::dhcp_state::ClientState;
use super::vip::{Carrier, FAILED_RETRY};
use super::{Action, DhcpEvent, Engine, Tell, Vip, WireOp};
use crate::annotations::printable;
use crate::plan::VipId;
use crate::reason::Reason;
use crate::screen::user_of_leased;

/// A renewal is written down when it moves the end of the lease by this much: short leases must not cost the API a
/// write per renewal.
const FACTS_STEP: Duration = Duration::from_mins(1);
/// The same for a lease that would otherwise be over before its end is written down again.
const SHORT_FACTS_STEP: Duration = Duration::from_secs(8);
/// How often one kind of trouble is told.
const REPORT_INTERVAL: Duration = Duration::from_mins(1);

/// Whether the end of a lease that stands on the Service is not good enough for a successor any more: it moved by
/// [`FACTS_STEP`] and by a quarter of what is left until `expires`; or it comes before the next renewal, which is due
/// after half of that, and a successor would find a lease that is over, and it moved by [`SHORT_FACTS_STEP`]. An end that comes
/// sooner than recorded is always written.
pub(super) fn has_moved(
    recorded: Option<Timestamp>,
    end: Option<Timestamp>,
    expires: Option<Instant>,
    now: Instant,
) -> bool {
    let (Some(old), Some(new)) = (recorded, end) else { return recorded != end };
    let left = expires.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
    let moved = (new.as_second() - old.as_second()).unsigned_abs();
    // What stands there is in whole seconds.
    let soon_over = new > old && moved > (left / 2).as_secs() + 1;
    // A successor would go on with an address that the server may give to somebody else.
    let shortened = new < old && moved > 1;
    shortened || moved >= (left / 4).max(FACTS_STEP).as_secs() || (soon_over && moved >= SHORT_FACTS_STEP.as_secs())
}

impl Vip {
    fn client(&mut self) -> Option<&mut ClientState> {
        let v4 = self.dhcp.as_mut().map(|dhcp| &mut dhcp.client);
        v4.or(self.dhcp6.as_mut().map(|dhcp| &mut dhcp.client))
    }
}

impl Engine {
    /// A lease was granted. Declines it if this node knows who else has the address, which the probes from a macvlan do not
    /// find out about the interface beneath it (RFC 2131 3.1 step 5); false: it may be used.
    pub(super) fn decline_taken(&mut self, now: Instant, id: &VipId, address: IpAddr) -> bool {
        let (VipId::Dhcp(uid) | VipId::Dhcp6(uid)) = id else { return false };
        let own_link = self.own_interface_of(address);
        let Some(user) = user_of_leased(&self.services, &self.machines, own_link, uid, address) else { return false };
        self.out.push(Action::DhcpTaken { id: id.clone(), address, by: user.mac });
        let text = format!(
            "the DHCP server gave address {address}, which {}: it is declined. Take the address out of what the server may give",
            user.what
        );
        self.tell_members(now, id, Reason::AddressConflict, &text);
        true
    }

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
        if self.vips.get(id).is_some_and(|vip| vip.carrier.is_none()) {
            // It was declined, or is told of before it could be used.
            return;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The renewals, counted from the first, at which the end is written.
    fn written(lease: u64, renewals: usize) -> Vec<usize> {
        let (start, wall) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let lease = Duration::from_secs(lease);
        let mut recorded = wall + lease;
        let mut written = Vec::new();
        for renewal in 1..=renewals {
            // The client is early by up to 3 %.
            let passed = lease.mul_f64(0.49) * u32::try_from(renewal).unwrap();
            assert!(recorded > wall + passed, "a successor found a lease of {lease:?} that was over");
            let (end, now) = (wall + passed + lease, start + passed);
            if has_moved(Some(recorded), Some(end), Some(now + lease), now) {
                recorded = end;
                written.push(renewal);
            }
        }
        written
    }

    #[test]
    fn what_stands_on_the_service_is_never_over_and_short_leases_are_not_written_each_time() {
        assert_eq!(written(10, 4), [2, 4]);
        assert_eq!(written(30, 4), [2, 4]);
        assert_eq!(written(59, 4), [2, 4]);
        assert_eq!(written(3600, 3), [1, 2, 3]);
    }

    #[test]
    fn an_end_that_hardly_moves_is_not_written_and_one_that_comes_sooner_is() {
        let (now, wall) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let moved = |seconds: i64, left: u64| {
            let (old, new) = (wall + Duration::from_secs(1000), wall + jiff::SignedDuration::from_secs(1000 + seconds));
            has_moved(Some(old), Some(new), Some(now + Duration::from_secs(left)), now)
        };
        assert!(!moved(59, 3600) && !moved(600, 3600) && moved(900, 3600) && moved(-900, 3600));
        assert!(!moved(-1, 30) && moved(-20, 30) && moved(17, 30));
        assert!(has_moved(Some(wall), None, None, now) && !has_moved(None, None, None, now));
    }
}
