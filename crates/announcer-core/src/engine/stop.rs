//! The end of the process, in the order that costs clients least.
//!
//! kube-vip removes the addresses and then releases the Lease. So no node answers until a follower has polled, seconds
//! later. Here the Lease is released *first*, while everything is still served. A successor of our kind sees that at
//! once, sets the addresses and announces them. This node hears its claim and withdraws the address in the same moment
//! (make before break). Two nodes answer for a few milliseconds, with the same Service behind both. A kube-vip that
//! takes over polls within 2.2 retry periods and announces later still; this node serves until then.
//!
//! In `node` mode the addresses stay, unless the node itself is leaving: it is cordoned, not ready, excluded or gone,
//! or its kube-proxy is not healthy. A hand-over would reset every connection (`conntrack` entries do not move), and
//! twice if the addresses go back. The kernel answers until the next process adopts the addresses. If no process comes,
//! the kernel removes them, and a watcher of this node takes them over within a quarter of a second. Until then the
//! node answers on the wire, and no other node takes them.
//!
//! If no node takes the Lease in time, there is no successor (a single node, or all pods replaced at once). Then the
//! addresses stay, with a limited lifetime, for the next process to adopt (decisions.md 26).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::carrier::Carrier;
use super::dhcp_state::Source;
use super::vip::{Adding, Phase, Vip};
use super::{Action, Engine, KernelOp, Owners};
use crate::fence::LEFT_BEHIND;
use crate::plan::VipId;
use crate::view::ServiceKey;

/// Limit for the request that releases the Lease.
const RELEASE_LIMIT: Duration = Duration::from_secs(4);
/// Time between reading the successor's name and withdrawing, if its claim is not heard before. The successor is
/// setting its addresses during this time.
const AFTER_SUCCESSOR: Duration = Duration::from_millis(500);
/// `node` mode: limit for the API to accept the new owners and for their claims to arrive. It is shorter than a pod's
/// termination.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(6);

/// Progress of the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Progress {
    #[default]
    Running,
    Releasing {
        until: Instant,
    },
    Waiting {
        until: Instant,
    },
    /// The limit is extended with each address that the successor claims: a thousand addresses take some seconds.
    Lingering {
        until: Instant,
    },
    /// `node` mode: the successors are recorded, and take over one by one.
    HandingOver {
        until: Instant,
    },
    Done,
}

/// What gives this node its VIPs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnedBy {
    /// Nothing: it has no VIPs, or their owner is unknown and their lifetimes run.
    None,
    /// Leases, which are released.
    Leases,
    /// Records that name this node; they are changed to name successors.
    Records,
}

/// The next step of the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Wait.
    Wait,
    /// Make a plan: it leaves elections or hands VIPs over.
    Plan,
    /// Leave the addresses, with a last lifetime. `long`: for the next process, because no other node takes them.
    /// Otherwise the usual lifetime, because other nodes take the addresses when it has ended.
    Leave {
        /// Whether the lifetime is the long one.
        long: bool,
    },
    /// Withdraw everything and exit.
    Withdraw,
    /// Exit.
    Exit,
}

/// The end of the process as a state machine.
#[derive(Debug, Default)]
pub(super) struct Shutdown {
    progress: Progress,
    /// Another process will follow on this node.
    stays: bool,
}

impl Shutdown {
    /// Whether the process has to end.
    pub fn has_begun(&self) -> bool {
        self.progress != Progress::Running
    }

    /// Whether everything is done.
    pub fn is_done(&self) -> bool {
        self.progress == Progress::Done
    }

    /// Whether the VIPs are kept for the next process on this node, although other nodes could have them.
    pub fn stays(&self) -> bool {
        self.stays
    }

    /// Marks the end as done.
    pub fn finish(&mut self) {
        self.progress = Progress::Done;
    }

    /// When the next step is due.
    pub fn deadline(&self) -> Option<Instant> {
        match self.progress {
            Progress::Releasing { until }
            | Progress::Waiting { until }
            | Progress::Lingering { until }
            | Progress::HandingOver { until } => Some(until),
            Progress::Running | Progress::Done => None,
        }
    }

    /// Starts the end.
    pub fn begin(&mut self, now: Instant, owned_by: OwnedBy) -> Step {
        if self.has_begun() {
            return Step::Wait;
        }
        self.progress = match owned_by {
            OwnedBy::None => return Step::Exit,
            OwnedBy::Leases => Progress::Releasing { until: now + RELEASE_LIMIT },
            OwnedBy::Records => Progress::HandingOver { until: now + HAND_OVER_LIMIT },
        };
        Step::Plan
    }

    /// The Leases were released; `released` is false if they may still name this node. `patience`: how long a follower
    /// needs to take one.
    pub fn released(&mut self, now: Instant, released: bool, serves: bool, patience: Duration) -> Step {
        match self.progress {
            Progress::Releasing { .. } if !serves => Step::Exit,
            Progress::Releasing { .. } if released => {
                self.progress = Progress::Waiting { until: now + patience };
                Step::Wait
            }
            // Other nodes will take the Lease when it expires. The kernel must have removed the addresses by then.
            Progress::Releasing { .. } => Step::Leave { long: false },
            _ => Step::Wait,
        }
    }

    /// The Lease has a new holder. `itself`: the next process of this node, which adopts the addresses.
    pub fn succeeded(&mut self, now: Instant, itself: bool) -> Step {
        match self.progress {
            Progress::Waiting { .. } if itself => Step::Leave { long: false },
            Progress::Waiting { .. } => {
                self.progress = Progress::Lingering { until: now + AFTER_SUCCESSOR };
                Step::Wait
            }
            _ => Step::Wait,
        }
    }

    /// The successor has claimed an address, so it is working and may need time for the others.
    pub fn claimed(&mut self, now: Instant) {
        if let Progress::Lingering { until } = &mut self.progress {
            *until = (*until).max(now + AFTER_SUCCESSOR);
        }
    }

    /// The step that is due. `one_lease`: all VIPs have the same new holder.
    pub fn take_due(&mut self, now: Instant, serves: bool, one_lease: bool) -> Step {
        match self.progress {
            // The successor has claimed all VIPs.
            Progress::Waiting { .. } | Progress::Lingering { .. } if !serves => Step::Exit,
            _ if self.deadline().is_none_or(|until| now < until) => Step::Wait,
            Progress::Releasing { .. } => Step::Leave { long: false },
            // It is unknown which nodes have taken the Leases; they announce within the duration of the Lease.
            Progress::Waiting { .. } => Step::Leave { long: one_lease },
            Progress::Lingering { .. } => Step::Withdraw,
            Progress::HandingOver { .. } => Step::Plan,
            Progress::Running | Progress::Done => Step::Wait,
        }
    }

    /// `node` mode: whether the hand-over ends with this plan. `open`: a hand-over is still under way.
    pub fn ends_hand_over(&self, now: Instant, open: bool) -> bool {
        matches!(self.progress, Progress::HandingOver { until } if now >= until || !open)
    }
}

impl Engine {
    pub(super) fn stop(&mut self, now: Instant) {
        if matches!(self.ownership, Owners::Elected(_)) {
            self.drop_unused(now);
        }
        let owned_by = match &self.ownership {
            Owners::Node(cluster) => {
                if !self.shutdown.has_begun() {
                    self.shutdown.stays = !self.config.hand_over_on_stop && cluster.stays();
                }
                OwnedBy::Records
            }
            Owners::Elected(leases) if leases.has_any() => OwnedBy::Leases,
            Owners::Elected(_) => OwnedBy::None,
        };
        let undecided = self.dhcp.take_undecided();
        self.decide_leases(now, undecided, false);
        let step = self.shutdown.begin(now, owned_by);
        self.end(now, step);
    }

    /// Drops the addresses that are not on this node yet: they would be set up beside the next holder of the Lease. One
    /// that the kernel has refused to extend may still be there, and one of a lease may be on its macvlan before the
    /// client has confirmed it.
    fn drop_unused(&mut self, now: Instant) {
        let there = |vip: &Vip| vip.carrier.is_some_and(|carrier| self.is_found(carrier));
        let waits = |id: &VipId, vip: &Vip| match vip.phase {
            Phase::Adding(Adding::Asked) | Phase::Up { .. } => false,
            _ if id.is_dhcp() => !there(vip) && !self.has_leased_address(id, vip),
            Phase::Probing(_) | Phase::Adding(Adding::Due | Adding::AwaitsRules) => true,
            Phase::Blocked { .. } => !there(vip),
            Phase::Idle => false,
        };
        let unused = self.vips.iter().filter(|(id, vip)| waits(id, vip));
        for id in unused.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.withdraw(now, &id, false, "the announcer ends");
        }
    }

    /// Whether the macvlan of a VIP has or gets the address with which it began, or an earlier process has left the
    /// address of its DHCPv6 lease.
    fn has_leased_address(&self, id: &VipId, vip: &Vip) -> bool {
        let Some(network) = self.observer.network() else { return false };
        let mut addresses = network.addresses.iter().filter(|found| !self.observer.is_removed(found));
        match &vip.source {
            Source::Static => false,
            Source::Dhcp4(dhcp) => {
                let link = network.link_by_name(&dhcp.name).map(|link| link.index);
                self.is_made_with_address(id) || addresses.any(|found| Some(found.interface) == link)
            }
            Source::Dhcp6(_) => {
                let awaited = self.awaited6();
                addresses.any(|found| awaited.contains(&(found.interface, found.net.addr())))
            }
        }
    }

    /// This node ends, and this address is still on it.
    pub(super) fn leaves_behind(&self, carrier: Carrier) -> bool {
        self.shutdown.has_begun() && self.is_found(carrier)
    }

    pub(super) fn released(&mut self, now: Instant, released: bool) {
        if let Owners::Elected(leases) = &mut self.ownership {
            leases.handed_back();
        }
        // A follower of kube-vip's kind polls the Lease.
        let patience = self.longest_retry() + Duration::from_secs(1);
        let step = self.shutdown.released(now, released, !self.vips.is_empty(), patience);
        self.end(now, step);
    }

    pub(super) fn successor(&mut self, now: Instant, node: &str) {
        let itself = node == self.config.node_name;
        tracing::info!(node, itself, "the Lease has a new holder");
        let step = self.shutdown.succeeded(now, itself);
        self.end(now, step);
    }

    pub(super) fn stop_timer(&mut self, now: Instant) {
        let one_lease = matches!(&self.ownership, Owners::Elected(leases) if leases.for_all().is_some());
        let step = self.shutdown.take_due(now, !self.vips.is_empty(), one_lease);
        self.end(now, step);
    }

    fn end(&mut self, now: Instant, step: Step) {
        match step {
            Step::Wait => {}
            Step::Plan => self.out.replan(),
            Step::Leave { long: false } => {
                let fence = self.config.fence();
                self.leave(now, |_| fence);
            }
            Step::Leave { long: true } => {
                tracing::info!(
                    "no other node takes the Lease; the announcer leaves its addresses on this node for its next \
                    process, for {} s",
                    LEFT_BEHIND.as_secs()
                );
                self.leave(now, |_| LEFT_BEHIND);
            }
            Step::Withdraw => {
                let all: Vec<VipId> = self.vips.keys().cloned().collect();
                for id in all {
                    self.withdraw(now, &id, false, "another node owns it");
                }
                self.exit();
            }
            Step::Exit => self.exit(),
        }
    }

    /// `node` mode, after each plan: ends the hand-over. A VIP with a successor was handed over by name and is kept
    /// until the successor is heard. A VIP without one stays for the next process (decisions.md 26). Its record still
    /// names this node, and no node takes an address for which a kernel answers. Where the API may still write a
    /// hand-over, the record may name the successor soon. So the kernel answers beside it for no longer than for a dead
    /// process.
    pub(super) fn finish_hand_over(&mut self, now: Instant) {
        let Owners::Node(cluster) = &self.ownership else { return };
        if !self.shutdown.has_begun() {
            return;
        }
        let handed = self.vips_of(|key| cluster.is_handed_over(key));
        let unanswered = self.vips_of(|key| cluster.may_have_given(key));
        let asks = cluster.has_swaps() || cluster.reads_records(now);
        if !self.shutdown.ends_hand_over(now, asks || !handed.is_empty()) {
            return;
        }
        for id in handed {
            self.withdraw(now, &id, false, "another node owns it");
        }
        if self.shutdown.stays() && !self.vips.is_empty() {
            tracing::info!(
                "this node stays in service; the announcer leaves its addresses on this node for its next process; \
                after {} s other nodes take them",
                LEFT_BEHIND.as_secs()
            );
        }
        let fence = self.config.fence();
        self.leave(now, |id| if unanswered.contains(id) { fence } else { LEFT_BEHIND });
    }

    /// The VIPs of Services for which `is` holds.
    fn vips_of(&self, is: impl Fn(&ServiceKey) -> bool) -> BTreeSet<VipId> {
        self.vips.iter().filter(|(_, vip)| vip.members.iter().any(&is)).map(|(id, _)| id.clone()).collect()
    }

    /// Leaves the addresses on the node, each with a last lifetime.
    fn leave(&mut self, now: Instant, valid: impl Fn(&VipId) -> Duration) {
        let there = self.vips.iter().filter(|(_, vip)| vip.phase != Phase::Adding(Adding::AwaitsRules));
        let puts: Vec<_> = there.filter_map(|(id, vip)| vip.put(now, valid(id))).collect();
        if !puts.is_empty() {
            self.out.push(Action::Kernel(KernelOp::Put(puts)));
        }
        for (id, vip) in self.vips.iter_mut() {
            vip.phase = Phase::Idle;
            if id.is_dhcp() {
                self.out.push(Action::StopDhcp { id: id.clone(), release: false });
            }
        }
        self.exit();
    }

    fn exit(&mut self) {
        self.shutdown.finish();
        self.restore_unused_links();
        self.unprotect();
        self.out.push(Action::Exit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    fn waiting(now: Instant) -> Shutdown {
        let mut shutdown = Shutdown::default();
        assert!(!shutdown.has_begun() && shutdown.deadline().is_none());
        assert_eq!(shutdown.begin(now, OwnedBy::Leases), Step::Plan);
        assert_eq!(shutdown.begin(now, OwnedBy::Leases), Step::Wait, "it was asked before");
        assert_eq!(shutdown.released(now, true, true, PATIENCE), Step::Wait);
        shutdown
    }

    #[test]
    fn a_node_that_has_nothing_ends_at_once() {
        let now = Instant::now();
        assert_eq!(Shutdown::default().begin(now, OwnedBy::None), Step::Exit);
        let mut shutdown = Shutdown::default();
        shutdown.begin(now, OwnedBy::Leases);
        assert_eq!(shutdown.released(now, true, false, PATIENCE), Step::Exit);
    }

    #[test]
    fn what_may_still_be_in_our_name_is_left_with_the_usual_deadline() {
        let now = Instant::now();
        let mut shutdown = Shutdown::default();
        shutdown.begin(now, OwnedBy::Leases);
        assert_eq!(shutdown.released(now, false, true, PATIENCE), Step::Leave { long: false });
        assert_eq!(shutdown.take_due(now, true, true), Step::Wait);
        assert_eq!(shutdown.take_due(now + RELEASE_LIMIT, true, true), Step::Leave { long: false }, "no answer");
    }

    #[test]
    fn where_nobody_takes_the_lease_the_next_process_has_time_if_all_depends_on_that_lease() {
        let now = Instant::now();
        let mut shutdown = waiting(now);
        assert_eq!(shutdown.take_due(now + PATIENCE, true, true), Step::Leave { long: true });
        assert_eq!(shutdown.take_due(now + PATIENCE, true, false), Step::Leave { long: false });
        assert_eq!(shutdown.take_due(now, false, false), Step::Exit, "all were claimed meanwhile");
    }

    #[test]
    fn a_successor_has_half_a_second_for_its_first_address_and_for_each_next_one() {
        let now = Instant::now();
        let mut shutdown = waiting(now);
        assert_eq!(waiting(now).succeeded(now, true), Step::Leave { long: false }, "the next process adopts");
        assert_eq!(shutdown.succeeded(now, false), Step::Wait);
        let claimed = now + AFTER_SUCCESSOR / 2;
        shutdown.claimed(claimed);
        assert_eq!(shutdown.take_due(now + AFTER_SUCCESSOR, true, true), Step::Wait);
        assert_eq!(shutdown.take_due(claimed + AFTER_SUCCESSOR, true, true), Step::Withdraw);
    }

    #[test]
    fn a_hand_over_ends_when_nothing_is_open_or_its_time_is_over() {
        let now = Instant::now();
        let mut shutdown = Shutdown::default();
        assert!(!shutdown.ends_hand_over(now, false), "nobody has asked for it");
        assert_eq!(shutdown.begin(now, OwnedBy::Records), Step::Plan);
        assert!(!shutdown.ends_hand_over(now, true) && shutdown.ends_hand_over(now, false));
        let late = now + HAND_OVER_LIMIT;
        assert!(shutdown.ends_hand_over(late, true));
        assert_eq!(shutdown.take_due(late, true, false), Step::Plan);
        shutdown.finish();
        assert!(shutdown.is_done() && shutdown.deadline().is_none() && !shutdown.ends_hand_over(late, false));
    }
}
