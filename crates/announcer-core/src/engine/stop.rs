//! How to leave, in the order that costs clients least.
//!
//! kube-vip takes the addresses off and then releases the Lease: nobody answers until a follower has polled, seconds
//! later. Here the Lease is released *first*, while everything is still served: a successor of our kind sees that at
//! once, sets the addresses and announces them; its claim is heard on the wire and the address withdrawn in the same
//! moment (make before break). Two nodes answer for a few milliseconds, with the same Service behind both. A kube-vip
//! that takes over polls within 2.2 retry periods and announces later still; until it holds the Lease we serve.
//!
//! If nobody takes the Lease in that time there is no successor (one node, or all pods replaced at once): the addresses
//! stay, with a deadline, for the next process to adopt (decisions.md 26).

use std::time::{Duration, Instant};

use super::vip::Phase;
use super::{Action, Engine, LeaseState, Owners, WireOp};
use crate::plan::VipId;

/// decisions.md 26.
const LEFT_BEHIND: Duration = Duration::from_mins(5);
/// For the request that releases the Lease.
const RELEASE_LIMIT: Duration = Duration::from_secs(4);
/// Between seeing the successor's name and withdrawing, if its claim is not heard before: it is setting its addresses
/// just now.
const AFTER_SUCCESSOR: Duration = Duration::from_millis(500);
/// `node` mode: for the API to take the new owners, and for them to be heard. Less than a pod has to end.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(6);

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stopping {
    Releasing {
        until: Instant,
    },
    Waiting {
        until: Instant,
    },
    /// Put off with each address that the successor claims: a thousand of them take it some seconds.
    Lingering {
        until: Instant,
    },
    /// `node` mode: successors have been named, and take over one by one.
    HandingOver {
        until: Instant,
    },
    Done,
}

impl Stopping {
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Releasing { until }
            | Self::Waiting { until }
            | Self::Lingering { until }
            | Self::HandingOver { until } => Some(*until),
            Self::Done => None,
        }
    }
}

impl Engine {
    pub(super) fn stop(&mut self, now: Instant) {
        if self.stopping.is_some() {
            return;
        }
        if let Owners::Node(_) = self.ownership {
            self.stopping = Some(Stopping::HandingOver { until: now + HAND_OVER_LIMIT });
            self.dirty = true;
            return;
        }
        if let Owners::Service(_) = self.ownership {
            if self.campaigning.is_empty() && !self.handing_back {
                self.exit();
                return;
            }
            // The elections end with the next plan, if they have not already, and say when all Leases are handed back.
            self.stopping = Some(Stopping::Releasing { until: now + RELEASE_LIMIT });
            self.dirty = true;
            return;
        }
        if !matches!(self.lease(), LeaseState::Held { .. }) {
            // Nothing of ours is here, or it is not known whose it is and its deadline runs.
            self.exit();
            return;
        }
        self.stopping = Some(Stopping::Releasing { until: now + RELEASE_LIMIT });
        self.out.push(Action::ReleaseLease);
    }

    pub(super) fn released(&mut self, now: Instant, released: bool) {
        self.handing_back = false;
        if !matches!(self.stopping, Some(Stopping::Releasing { .. })) {
            return;
        }
        if self.vips.is_empty() {
            self.exit();
        } else if released {
            // A follower of kube-vip polls.
            let patience = self.longest_retry() + Duration::from_secs(1);
            self.stopping = Some(Stopping::Waiting { until: now + patience });
        } else {
            // Others will take it by expiry: by then the kernel must have removed what is here.
            self.leave(now, self.fence);
        }
    }

    pub(super) fn successor(&mut self, now: Instant, node: &str) {
        if !matches!(self.stopping, Some(Stopping::Waiting { .. })) {
            return;
        }
        if node == self.config.node_name {
            // The next process of this node is there already and adopts.
            self.leave(now, self.fence);
        } else {
            tracing::info!(node, "the Lease has a new holder");
            self.stopping = Some(Stopping::Lingering { until: now + AFTER_SUCCESSOR });
        }
    }

    /// The successor has claimed an address: it is at work, and may need time for the others.
    pub(super) fn claimed_by_successor(&mut self, now: Instant) {
        if let Some(Stopping::Lingering { until }) = &mut self.stopping {
            *until = (*until).max(now + AFTER_SUCCESSOR);
        }
    }

    pub(super) fn stop_timer(&mut self, now: Instant) {
        let Some(stopping) = self.stopping else { return };
        if self.vips.is_empty() && matches!(stopping, Stopping::Waiting { .. } | Stopping::Lingering { .. }) {
            // The successor has claimed all of them.
            self.exit();
            return;
        }
        if stopping.deadline().is_none_or(|until| now < until) {
            return;
        }
        match stopping {
            Stopping::Releasing { .. } => self.leave(now, self.fence),
            // Who has taken which of the Leases is not known, and they announce within the lease duration.
            Stopping::Waiting { .. } if matches!(self.ownership, Owners::Service(_)) => self.leave(now, self.fence),
            Stopping::Waiting { .. } => {
                tracing::info!(
                    "nobody takes the Lease: leaving the addresses for the next process, for {} s",
                    LEFT_BEHIND.as_secs()
                );
                self.leave(now, LEFT_BEHIND);
            }
            Stopping::Lingering { .. } => {
                let all: Vec<VipId> = self.vips.keys().cloned().collect();
                for id in all {
                    self.withdraw(now, &id, false, "another node owns it");
                }
                self.exit();
            }
            Stopping::HandingOver { .. } => self.dirty = true,
            Stopping::Done => {}
        }
    }

    /// `node` mode, after each review: everything that has a successor is handed over by name and kept until that one is
    /// heard; what has none stays for the next process (decisions.md 26). It is still ours in the record, and nobody
    /// takes what a kernel answers for.
    pub(super) fn finish_hand_over(&mut self, now: Instant) {
        let (Some(Stopping::HandingOver { until }), Owners::Node(cluster)) = (self.stopping, &self.ownership) else {
            return;
        };
        let handed: Vec<VipId> = self
            .vips
            .iter()
            .filter(|(_, vip)| vip.members.iter().any(|key| cluster.is_handed_over(key)))
            .map(|(id, _)| id.clone())
            .collect();
        if now < until && (cluster.has_swaps() || !handed.is_empty()) {
            return;
        }
        for id in handed {
            self.withdraw(now, &id, false, "another node owns it");
        }
        self.leave(now, LEFT_BEHIND);
    }

    /// Leaves everything as it is, with a last deadline.
    fn leave(&mut self, now: Instant, valid: Duration) {
        let asked_for =
            self.vips.iter().filter(|(id, vip)| vip.phase != Phase::Adding || !self.awaiting_rules.contains(id));
        let puts: Vec<_> = asked_for.filter_map(|(_, vip)| vip.put(now, valid)).collect();
        if !puts.is_empty() {
            self.out.push(Action::Wire(WireOp::Put(puts)));
        }
        for (id, vip) in self.vips.iter_mut() {
            vip.phase = Phase::Idle;
            if let (VipId::Dhcp6(uid), Some(_)) = (id, &vip.dhcp6) {
                self.out.push(Action::StopDhcp6 { uid: uid.clone(), release: false });
            }
            if let (VipId::Dhcp(uid), Some(_)) = (id, &vip.dhcp) {
                self.out.push(Action::StopDhcp { uid: uid.clone(), release: false });
            }
        }
        self.exit();
    }

    fn exit(&mut self) {
        self.stopping = Some(Stopping::Done);
        self.restore_unused_links();
        self.unprotect();
        self.out.push(Action::Exit);
    }
}
