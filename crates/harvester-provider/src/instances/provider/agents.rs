//! Asks guest agents for their host names, in the background.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cloud_provider::provider::NodeWake;
use futures::stream::StreamExt;

use super::super::hostnames::AgentRequest;
use super::{AgentRequests, HarvesterInstances};

/// Number of guest agents that are asked concurrently.
const ASKED_AT_ONCE: usize = 4;
/// Time-out of one request, because a hanging guest agent occupies one of these places.
const AGENT_PATIENCE: Duration = Duration::from_secs(10);

impl HarvesterInstances {
    /// Processes the requests for guest agents, a few concurrently.
    pub async fn run(self: Arc<Self>, mut asked: AgentRequests) -> Infallible {
        let asked = futures::stream::poll_fn(move |context| asked.poll_recv(context));
        asked.for_each_concurrent(ASKED_AT_ONCE, |ask| self.ask(ask)).await;
        // `self` holds a sender, so the stream does not end.
        std::future::pending().await
    }

    /// Waits until an agent has answered since this was called last. `false`: none is being asked.
    pub async fn next_answer(&self) -> bool {
        let is_asking = self.memory().hostnames.is_asking();
        if is_asking {
            self.answered.notified().await;
        }
        is_asking
    }

    async fn ask(&self, ask: AgentRequest) {
        let answer = tokio::time::timeout(AGENT_PATIENCE, self.requests.hostname(&ask.vm)).await;
        let hostname = match answer {
            Ok(Ok(hostname)) => {
                tracing::debug!(vm = ask.vm, hostname, "get agent info success, using hostname as node name");
                Some(hostname)
            }
            Ok(Err(error)) => {
                let error = runtime::error::chain(&error);
                tracing::debug!(
                    vm = ask.vm,
                    error,
                    "failed to get guest agent info, fallback to use vmi name as node name"
                );
                None
            }
            Err(_) => {
                tracing::debug!(vm = ask.vm, "guest agent did not answer, fallback to use vmi name as node name");
                None
            }
        };
        if hostname.is_none() {
            self.metrics.guest_agent_failures.inc();
        }
        let mut memory = self.memory();
        memory.hostnames.answered(&ask, hostname.as_deref(), Instant::now());
        self.answered.notify_one();
        #[expect(clippy::cast_precision_loss, reason = "a gauge of a few thousand at most")]
        self.metrics.known_hostnames.set(memory.hostnames.known() as f64);
        // All other waiting Nodes are woken only after the last answer, because a thousand Nodes may join at once.
        let last = !memory.hostnames.is_asking();
        let unresolved: Vec<String> = if last {
            memory.unresolved.keys().cloned().collect()
        } else {
            let called = std::iter::once(ask.vm.as_str()).chain(memory.hostnames.names_of(&ask.vm));
            called.filter(|node| memory.unresolved.contains_key(*node)).map(str::to_owned).collect()
        };
        memory.listeners.retain(|listener| {
            unresolved.iter().all(|node| listener.send(NodeWake::Node(node.clone())).is_ok()) && !listener.is_closed()
        });
    }
}
