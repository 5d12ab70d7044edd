//! Adds addresses: when the kernel is asked, and what its answer means.

use std::time::Instant;

use ipnet::IpNet;

use super::vip::{Adding, Announcing, FAILED_RETRY, Phase, STATUS_WAIT};
use super::{Action, Engine, KernelOp};
use crate::plan::VipId;
use crate::reason::Reason;

impl Engine {
    /// Adds all addresses that are due and whose rules are set, in one request. Two hundred addresses at once then cost
    /// one set of rules and one request.
    pub(super) fn add_all(&mut self, now: Instant) {
        if !self.vips.is_touched() {
            return;
        }
        let due = self.vips.iter().filter(|(_, vip)| vip.phase == Phase::Adding(Adding::Due));
        let due: Vec<VipId> = due.map(|(id, _)| id.clone()).collect();
        if due.iter().any(VipId::is_dhcp) {
            self.protect();
        }
        let fence = self.config.fence();
        let mut puts = Vec::new();
        for id in due {
            let waits = self.vips[&id].carrier.is_some_and(|carrier| self.awaits_rules(carrier));
            let Some(vip) = self.vips.get_mut(&id) else { continue };
            vip.phase = if waits {
                Phase::Adding(Adding::AwaitsRules)
            } else if let Some(put) = vip.put(now, fence) {
                puts.push(put);
                Phase::Adding(Adding::Asked)
            } else {
                Phase::Idle
            };
        }
        if puts.is_empty() {
            return;
        }
        // The settings come first, because the node would otherwise answer for the address on every interface.
        self.prepare_links(now);
        self.out.push(Action::Kernel(KernelOp::Put(puts)));
    }

    pub(super) fn put_done(&mut self, now: Instant, id: &VipId, net: IpNet, result: Result<(), String>) {
        match result {
            Ok(()) => {
                if self.vips.get(id).is_some_and(|vip| matches!(vip.phase, Phase::Adding(_))) {
                    self.came_up(now, id);
                }
            }
            Err(error) => {
                let Some(vip) = self.vips.get_mut(id) else { return };
                tracing::warn!(
                    address = %net,
                    error,
                    "the announcer cannot set the address on this node; it tries again"
                );
                vip.refusals = vip.refusals.saturating_add(1);
                self.out.replan();
                vip.phase = Phase::Blocked { until: now + FAILED_RETRY };
                vip.announcing = Announcing::Silent;
                self.tell_members(
                    now,
                    id,
                    Reason::CannotAnnounce,
                    &format!("address {}: {error}; trying again", net.addr()),
                );
                self.observe(now);
            }
        }
    }

    fn came_up(&mut self, now: Instant, id: &VipId) {
        let asked = self.observer.asked();
        let Some(vip) = self.vips.get_mut(id) else { return };
        let Some(address) = vip.address() else { return };
        let told = self.config.disable_service_updates || self.services.was_in_use(&vip.members, address);
        (vip.phase, vip.up_since) = (Phase::Up { doubt: None }, Some(now));
        (vip.conflicts, vip.refusals) = (0, 0);
        vip.seen_from = asked;
        vip.announcing = if told {
            Announcing::Burst { begun: now, step: 0 }
        } else {
            Announcing::AwaitingStatus { until: now + STATUS_WAIT }
        };
        self.conceded.remove(id);
        self.dhcp.came_up(address);
        tracing::info!(
            %address,
            services = ?vip.members.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "the VIP is up on this node"
        );
        self.out.replan();
        self.vip_timer(now, id);
        self.claim(now, id);
    }
}
