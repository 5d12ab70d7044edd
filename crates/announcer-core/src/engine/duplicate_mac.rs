//! Detects another host with the MAC of one of our leases: a Service copied to another cluster, or a machine with the
//! same MAC. Switches then send the traffic of one to the other, and a DHCP server takes both for one client.

use std::time::{Duration, Instant};

use super::Engine;
use super::vip::{Announcing, DuplicateMac, Vip};
use crate::claim::tag;
use crate::frames::{Frame, Heard};
use crate::plan::VipId;
use crate::reason::Reason;
use crate::view::Uid;

/// A frame must be seen again after this time. A single one may be an echo, or come from a member that stops as soon as
/// it has read the record.
const AGAIN: Duration = Duration::from_millis(300);
/// For this time after a tagged claim no warning is sent: a member with that lease proves itself with claims.
const MEMBER: Duration = Duration::from_mins(1);

impl Engine {
    /// Takes in an announcement with the MAC of a lease that is ours by the record, while this node sends no
    /// announcements.
    pub(super) fn notice_duplicate_mac(&mut self, now: Instant, frame: &Frame) {
        let Frame { link, address, mac, what, payload, .. } = frame;
        let ours = |vip: &Vip| vip.source.dhcp4().is_some_and(|dhcp| dhcp.mac == *mac) && vip.is_up();
        let there = |vip: &Vip| vip.place == Some(*link) || vip.carrier.is_some_and(|carrier| carrier.link == *link);
        let mut leased = self.vips.range(VipId::Dhcp(Uid::default())..);
        let found = leased.find(|(_, vip)| *what == Heard::Claim && ours(vip) && there(vip));
        let Some(id) = found.map(|(id, _)| id.clone()) else { return };
        let confirmed = self.is_confirmed(&self.vips[&id].members);
        let Some(vip) = self.vips.get_mut(&id) else { return };
        if tag::is_tagged(payload.as_ref()) {
            vip.duplicate_mac = Some(DuplicateMac::Member(now));
            return;
        }
        // Some switches send our own frames back.
        if vip.announcing != Announcing::Silent || !confirmed || self.shutdown.has_begun() {
            return;
        }
        match vip.duplicate_mac {
            Some(DuplicateMac::Member(at)) if now < at + MEMBER => {}
            Some(DuplicateMac::Heard(at)) if (at + AGAIN..at + MEMBER).contains(&now) => {
                let text = format!(
                    "MAC {mac} of this Service's lease is used by another host as well, which announces {address} with \
                     it: switches send the traffic of one to the other. Look for a copy of this Service in another \
                     cluster or for a machine with this MAC, and remove or change annotation kube-vip.io/hwaddr there; \
                     changed here, this Service gets another address"
                );
                self.tell_members(now, &id, Reason::AddressConflict, &text);
            }
            Some(DuplicateMac::Heard(at)) if now < at + AGAIN => {}
            _ => vip.duplicate_mac = Some(DuplicateMac::Heard(now)),
        }
    }
}
