//! Marking the pods of a lost node.

use tokio::time::Instant;

use super::case::{CaseState, LossCase};
use super::decide::Agreed;
use super::plan::{self, Tenants};
use super::{AGAIN, LOOKS, NodeLoss};
use crate::node::reference;
use crate::view::NodeView;

/// The reason why nothing may be written; `None` if writes are allowed.
type WriteHold = Result<Option<&'static str>, kube::Error>;

impl NodeLoss {
    /// Reads the pods and endpoints on the node, and whether writes are allowed. A replica that does not lead learns
    /// only from the record that they are not. Both are read concurrently before each mark, so the check costs no extra
    /// time.
    async fn requests_of(&self, node: &NodeView, again: bool) -> (Result<Tenants, kube::Error>, WriteHold) {
        let held = async {
            let here = self.instances.hold().map(|_| "the controller is held");
            if here.is_some() { Ok(here) } else { self.requests.held().await }
        };
        tokio::join!(self.requests.tenants(&node.name, again), held)
    }

    fn settled(
        &mut self,
        node: &NodeView,
        case: &mut LossCase,
        again: bool,
        answers: (Result<Tenants, kube::Error>, WriteHold),
    ) -> Option<Tenants> {
        match answers {
            (Ok(tenants), Ok(None)) => return Some(tenants),
            (_, Ok(Some(why))) => {
                if case.back_off() && !again {
                    tracing::warn!(
                        node = node.name,
                        "the node is lost, but the controller leaves its pods in their Services: {why}"
                    );
                }
            }
            (Err(error), _) | (_, Err(error)) => self.failed(&node.name, case, &error),
        }
        None
    }

    /// Marks the pods and endpoints that are not marked. If some were marked before, a kubelet that accepts a
    /// connection now, or has corrected a mark since, proves that the node is alive. Returns false after a failure;
    /// `case` then has the time of the next attempt.
    pub(super) async fn mark(&mut self, node: &NodeView, word: &Agreed, case: &mut LossCase) -> bool {
        let again = case.is_lost() || !case.is_untouched();
        let (tenants, lives) = tokio::join!(self.requests_of(node, again), async { again && self.lives(node).await });
        // Marks may be undone even while nothing may be marked.
        let tenants = match tenants {
            (Ok(found), Ok(Some(_))) if again && (lives || found.is_refuted(&case.pods)) => (Ok(found), Ok(None)),
            answers => answers,
        };
        let Some(tenants) = self.settled(node, case, again, tenants) else { return false };
        if lives || again && tenants.is_refuted(&case.pods) {
            tracing::warn!(
                node = node.name,
                evidence = word.evidence,
                "the kubelet of a node that was reported as silent still runs; the controller puts the pods of the \
                node back"
            );
            self.metrics.is_false();
            self.take_back_refuted(node, case, &tenants, lives).await;
            return true;
        }
        let plan = tenants.marks();
        let why = format!(
            "node {} does not answer ({}). The condition goes when the node is heard again: docs/node-loss.md",
            node.name, word.evidence
        );
        let done = self.requests.perform(&plan, false, &why).await;
        case.endpoints.extend(plan.slices.iter().flat_map(|(_, chosen)| chosen).map(|endpoint| endpoint.pod.clone()));
        case.pods.extend(done.pods.iter().cloned());
        let ours = case.pods.len();
        if again {
            // Including the marks of another replica: if they are corrected, they must not be repeated.
            case.pods.extend(tenants.pods.iter().filter(|pod| pod.marked).map(|pod| pod.uid.clone()));
        }
        if let Some(error) = &done.error {
            self.failed(&node.name, case, error);
            return false;
        }
        case.went_well();
        if !case.is_lost() {
            self.is_lost(node, word, case, ours);
            case.next = Instant::now() + if done.conflicts > 0 { AGAIN / 5 } else { LOOKS[0] };
        }
        true
    }

    /// Handles the first complete mark of a node.
    fn is_lost(&self, node: &NodeView, word: &Agreed, case: &mut LossCase, pods: usize) {
        case.state = CaseState::Marked(0);
        self.metrics.verdict("lost");
        // If no pod was written here, another replica has marked and reported them.
        if pods > 0 {
            let text = format!(
                "node {} does not answer: {}. {pods} of its pods were taken out of their Services until it is heard \
                 again",
                node.name, word.evidence
            );
            tracing::warn!(
                node = node.name,
                pods,
                evidence = word.evidence,
                "the node is lost; the controller took its pods out of their Services"
            );
            self.recorder.warning(&reference(node), plan::REASON, &text);
        }
    }
}
