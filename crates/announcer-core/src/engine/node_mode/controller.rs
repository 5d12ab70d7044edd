//! The word of the cloud controller, which alone can tell whether this cluster is a copy of another one that serves the
//! same addresses (decisions.md, safe mode).

use std::time::{Duration, Instant};

use super::super::{Engine, Phase};
use super::OwnerChanges;
use crate::ownership::Owners;
use crate::plan::VipId;
use crate::view::ServiceKey;

/// How long a process waits for the word of the controller, counted from its first list of Leases. A copy's controller
/// takes the Lease of the original's after 15 s, and has judged 15 s later; the rest is for its pod to start. The time
/// ends, because a cluster may have no controller of ours, or one whose Lease has another name.
const WORD_WAIT: Duration = Duration::from_mins(1);

/// What the controller has said to this process.
#[derive(Debug)]
pub(in crate::engine) struct ControllerWord {
    /// Whether it is in safe mode; `None`: nothing was heard.
    safe_mode: Option<bool>,
    /// When the Leases were listed. Before, nothing is decided.
    listed: Option<Instant>,
}

impl ControllerWord {
    /// Starts without a word. `exists`: whether there is a controller of ours; `None`: not configured. Where there is
    /// said to be none, none is waited for.
    pub fn new(exists: Option<bool>) -> Self {
        Self { safe_mode: exists.filter(|exists| !exists), listed: None }
    }

    /// The controller says whether it is in safe mode. Returns true if that is news.
    pub fn heard(&mut self, safe_mode: bool) -> bool {
        self.safe_mode.replace(safe_mode) != Some(safe_mode)
    }

    /// The first list of Leases is complete.
    pub fn listed(&mut self, now: Instant) {
        self.listed.get_or_insert(now);
    }

    /// Whether the controller is in safe mode.
    pub fn is_safe_mode(&self) -> bool {
        self.safe_mode == Some(true)
    }

    /// Whether nothing was heard of it.
    pub fn is_silent(&self) -> bool {
        self.safe_mode.is_none()
    }

    /// Whether this cluster may be a copy: the controller says that it may, or has said nothing and still has time.
    pub fn may_be_a_copy(&self, now: Instant) -> bool {
        self.safe_mode.unwrap_or_else(|| self.listed.is_none_or(|listed| now < listed + WORD_WAIT))
    }
}

impl Engine {
    /// The controller has said whether it is in safe mode. What waits because another host answers is asked about again
    /// at once when it is not.
    pub(in crate::engine) fn safe_mode(&mut self, now: Instant, yes: bool) {
        if !self.node_mode.controller.heard(yes) {
            return;
        }
        self.out.replan();
        let undecided = self.dhcp.take_undecided();
        self.decide_leases(now, undecided, !yes);
        for vip in self.vips.values_mut().filter(|vip| !yes && vip.conflicts > 0) {
            if let Phase::Blocked { until } = &mut vip.phase {
                *until = now.min(*until);
            }
            vip.source.ask_again(now);
        }
    }

    /// The first list of membership Leases is complete.
    pub(in crate::engine) fn members_synced(&mut self, now: Instant) {
        self.node_mode.controller.listed(now);
        self.tell_cluster(|cluster| cluster.facts.members_synced(now));
    }

    /// Whether this cluster may be a copy of another one, which serves the same addresses. The modes with Leases do not
    /// read the word of the controller.
    pub(in crate::engine) fn may_be_a_copy(&self, now: Instant) -> bool {
        matches!(self.ownership, Owners::Node(_)) && self.node_mode.controller.may_be_a_copy(now)
    }

    /// Whether the controller has still to say whether this cluster is a copy.
    pub(in crate::engine) fn awaits_word(&self) -> bool {
        self.node_mode.controller.is_silent()
    }

    /// Whether an address that clients know has to be asked about before this node sets it. In safe mode that is each
    /// one. While nothing is known, it is each one but those that this process takes from an owner for which nobody
    /// answered: it has just asked.
    pub(in crate::engine) fn asks_first(&self, now: Instant, members: &[ServiceKey]) -> bool {
        let asked = || self.came(members, OwnerChanges::is_from_the_silent);
        self.may_be_a_copy(now) && (self.node_mode.controller.is_safe_mode() || !asked())
    }

    /// The same for a lease, which has one MAC on all nodes: an answer does not tell the member that hands it over from
    /// a stranger. So a lease that has come from another node while this process watched is not asked about.
    pub(in crate::engine) fn asks_first_for_lease(&self, now: Instant, id: &VipId) -> bool {
        let Some(vip) = self.vips.get(id) else { return false };
        self.may_be_a_copy(now) && !self.came(&vip.members, OwnerChanges::is_from_another)
    }

    fn came(&self, members: &[ServiceKey], how: impl Fn(&OwnerChanges, &ServiceKey) -> bool) -> bool {
        let Owners::Node(cluster) = &self.ownership else { return false };
        members.iter().any(|member| how(&self.node_mode.changes, cluster.primary(member)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_may_be_a_copy_until_its_controller_says_that_it_is_none_and_not_for_ever() {
        let (now, mut word) = (Instant::now(), ControllerWord::new(Some(true)));
        assert!(!ControllerWord::new(Some(false)).may_be_a_copy(now) && ControllerWord::new(None).may_be_a_copy(now));
        assert!(word.may_be_a_copy(now + WORD_WAIT * 9), "nothing was read yet");
        word.listed(now);
        word.listed(now + WORD_WAIT);
        assert!(word.may_be_a_copy(now) && !word.may_be_a_copy(now + WORD_WAIT) && !word.is_safe_mode());
        assert!(word.heard(true) && !word.heard(true));
        assert!(word.may_be_a_copy(now + WORD_WAIT) && word.is_safe_mode());
        assert!(word.heard(false));
        assert!(!word.may_be_a_copy(now) && !word.is_safe_mode());
    }
}
