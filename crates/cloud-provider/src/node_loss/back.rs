//! Undoes what was written for a node that turned out to be alive.

use tokio::time::Instant;

use super::case::{CaseState, LossCase};
use super::plan::Tenants;
use super::{AGAIN, BOOT, KUBELET_LIVES, LOOKS, NodeLoss, SELDOM};
use crate::node::reference;
use crate::view::{NodeView, Ready};

impl NodeLoss {
    /// Handles a node that is heard again. Returns false if nothing is left to do.
    pub(super) async fn heard(&mut self, node: &NodeView, case: &mut LossCase) -> bool {
        let CaseState::Heard(at, looks) = case.state else { return false };
        if case.is_untouched() {
            return false;
        }
        if looks == 0 {
            tracing::info!(node = node.name, "the node did not answer for a while and answers again");
            self.recorder.normal(
                &reference(node),
                "NodeHeardAgain",
                "its kubelet puts its pods back into their Services",
            );
        }
        let last = at.elapsed() >= KUBELET_LIVES;
        let short = at.duration_since(case.since) < BOOT;
        case.state = CaseState::Heard(at, looks + 1);
        let taken_back = match self.requests.tenants(&node.name, true).await {
            Ok(tenants) => self.take_back(node, case, &tenants, short || last && node.ready == Some(Ready::True)).await,
            Err(error) => {
                self.failed(&node.name, case, &error);
                false
            }
        };
        if taken_back {
            let pause = LOOKS.get(looks).copied().unwrap_or(KUBELET_LIVES.saturating_sub(at.elapsed()).max(AGAIN));
            case.next = Instant::now() + pause;
        }
        // If something could not be undone for this long, nothing waits for it any more.
        let is_over = taken_back || at.elapsed() >= SELDOM * 3;
        !(last && is_over)
    }

    /// Retries to restore the endpoints after a wrong verdict.
    pub(super) async fn withdraw(&mut self, node: &NodeView, case: &mut LossCase) {
        match self.requests.tenants(&node.name, true).await {
            Ok(tenants) => {
                let lives = self.lives(node).await;
                self.take_back_refuted(node, case, &tenants, lives).await;
            }
            Err(error) => self.failed(&node.name, case, &error),
        }
    }

    /// Undoes a wrong verdict. `lives`: the kubelet answers, so that pods are restored, too, and need not wait for its
    /// next comparison.
    pub(super) async fn take_back_refuted(
        &mut self,
        node: &NodeView,
        case: &mut LossCase,
        tenants: &Tenants,
        lives: bool,
    ) {
        let taken_back = self.take_back(node, case, tenants, lives).await;
        case.state = CaseState::Refuted(taken_back);
        if taken_back {
            case.next = Instant::now() + SELDOM;
        }
    }

    /// Undoes the marks. Returns false if something is left; `case` then has the time of the next attempt.
    async fn take_back(&mut self, node: &NodeView, case: &mut LossCase, tenants: &Tenants, pods: bool) -> bool {
        let plan = tenants.unmarks(&case.endpoints, pods);
        let done = self.requests.perform(&plan, true, "").await;
        match &done.error {
            Some(error) => self.failed(&node.name, case, error),
            None if done.conflicts > 0 => {
                case.back_off();
            }
            None => case.went_well(),
        }
        done.error.is_none() && done.conflicts == 0
    }
}
