//! Connects the election of the one Lease with the engine: its holder, its release, and the next holder.

use announcer_core::engine::Input;
use announcer_core::ownership::LeaseState;
use announcer_core::successor;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use runtime::error::chain;
use runtime::leader::{Election, HandBack, Leadership};
use runtime::shutdown::Token;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::clock::{runtime_now as now, runtime_sleep_until as sleep_until};

/// Translates the state of an election for the engine.
pub fn lease_state(leadership: &Leadership) -> LeaseState {
    match leadership {
        Leadership::Unknown => LeaseState::Unknown,
        Leadership::Following { holder } => LeaseState::Other(holder.clone()),
        Leadership::Leading { confirmed, .. } => LeaseState::Held { confirmed: *confirmed },
    }
}

/// Tells the engine the state of the election.
pub async fn feed_leadership(
    mut leadership: tokio::sync::watch::Receiver<Leadership>,
    inputs: mpsc::UnboundedSender<Input>,
    stop: Token,
) {
    loop {
        let state = lease_state(&leadership.borrow_and_update());
        let _ = inputs.send(Input::Lease(state));
        tokio::select! {
            () = stop.cancelled() => return,
            changed = leadership.changed() => if changed.is_err() {
                // The election has ended because the process is stopping; the engine knows that.
                stop.cancelled().await;
                return;
            },
        }
    }
}

/// Finds the next holder of the Lease after this node has released it.
pub struct SuccessorSearch {
    /// API of the Lease.
    pub lease: Api<Lease>,
    /// Name of the Lease.
    pub name: String,
    /// Channel to the engine.
    pub inputs: mpsc::UnboundedSender<Input>,
}

impl SuccessorSearch {
    async fn watch(&self) {
        let mut successor = successor::Search::new(now());
        while let Some(at) = successor.deadline() {
            sleep_until(Some(at)).await;
            if !successor.reads(now()) {
                continue;
            }
            let read = tokio::time::timeout(successor::LIMIT, self.lease.get_opt(&self.name)).await;
            let holder = read.ok().and_then(Result::ok).flatten().and_then(|lease| lease.spec?.holder_identity);
            if let Some(holder) = successor.answered(now(), holder) {
                let _ = self.inputs.send(Input::Successor(holder));
            }
        }
    }
}

/// Takes part in the election until `release`, then looks for the next holder.
pub async fn elect(election: Election, after: SuccessorSearch, release: CancellationToken, stop: Token) {
    let work = async {
        let left = election.run(release).await.unwrap_or_else(|error| {
            tracing::warn!(lease = after.name, error = %chain(&error), "the leader election ended with an error");
            HandBack::Uncertain
        });
        let _ = after.inputs.send(Input::Released(left.is_confirmed()));
        after.watch().await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = work => {}
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use std::collections::VecDeque;

    use runtime::scenario::Scenario;
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_read_that_fails_after_the_lease_was_handed_back_takes_nothing_back() {
        let lease = |holder: &str| json!({"metadata": {"name": "lock"}, "spec": {"holderIdentity": holder}});
        let away = (500, Scenario::status(500, "InternalError", "away"));
        let answers = Mutex::new(VecDeque::from([away, (200, lease("")), (200, lease("node-2"))]));
        let server = Scenario::answering(move |_| answers.lock().pop_front().expect("nothing more is asked"));
        let (inputs, mut heard) = mpsc::unbounded_channel();
        let successor =
            SuccessorSearch { lease: Api::namespaced(server.client(), "kube-system"), name: "lock".into(), inputs };
        successor.watch().await;
        assert!(matches!(heard.try_recv(), Ok(Input::Successor(node)) if node == "node-2"));
        assert!(heard.try_recv().is_err());
    }
}
