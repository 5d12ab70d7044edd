//! What is known of kube-proxy on this node, and how long decisions wait for it after a start.

use std::time::{Duration, Instant};

use super::super::Engine;
use crate::ownership::Owners;

/// How long decisions wait for the first word about kube-proxy. A process that decides before counts its own node as
/// ill: it hands over what the process before it has left, and gets it back a minute after the word has come. Both cost
/// every connection. A kube-proxy that answers badly is found ill after 6 s. One that does not answer at all would take
/// longer, and the node would take no part until then.
const PATIENCE: Duration = Duration::from_secs(10);

/// Its name among the facts that are not known yet.
const UNKNOWN: &str = "whether kube-proxy is healthy";

/// Whether kube-proxy on this node is healthy.
#[derive(Debug)]
pub(super) struct KubeProxy {
    /// `None`: nothing was heard of it yet.
    healthy: Option<bool>,
    /// When it counts as ill without a word.
    until: Instant,
}

impl KubeProxy {
    /// Nothing is known at the start of the process.
    pub fn new(now: Instant) -> Self {
        Self { healthy: None, until: now + PATIENCE }
    }

    /// Whether decisions can be made.
    pub fn is_known(&self) -> bool {
        self.healthy.is_some()
    }

    pub fn is_healthy(&self) -> bool {
        self.healthy == Some(true)
    }

    /// When the patience ends.
    pub fn deadline(&self) -> Option<Instant> {
        self.healthy.is_none().then_some(self.until)
    }
}

impl Engine {
    /// Takes in whether kube-proxy is healthy.
    pub(in crate::engine) fn kube_proxy(&mut self, healthy: bool) {
        let before = self.node_mode.kube_proxy.healthy.replace(healthy);
        self.out.replan_if(before != Some(healthy));
    }

    /// Ends the wait for the first word.
    pub(super) fn kube_proxy_timer(&mut self, now: Instant) {
        if self.node_mode.kube_proxy.deadline().is_none_or(|at| now < at) {
            return;
        }
        // While lists of the API are missing too, nothing depends on this yet.
        if self.unknown() == Some(UNKNOWN) {
            tracing::warn!(
                "kube-proxy on this node has not shown for {} s whether it is healthy; the announcer counts it as \
                unhealthy until it does",
                PATIENCE.as_secs()
            );
        }
        self.kube_proxy(false);
    }

    /// `node` mode: what is missing for decisions, beside the lists of the API.
    pub(in crate::engine) fn unknown_here(&self) -> Option<&'static str> {
        let missing = matches!(self.ownership, Owners::Node(_)) && !self.node_mode.kube_proxy.is_known();
        missing.then_some(UNKNOWN)
    }
}
