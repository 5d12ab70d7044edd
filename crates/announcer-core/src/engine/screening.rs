//! Reports what Services ask for and do not get.

use std::time::Instant;

use contract::keys::kubernetes::FINALIZER;

use super::{Engine, Owners};
use crate::annotations::LOADBALANCER_IPS;
use crate::reason::Reason;
use crate::screen::Reporter;

impl Engine {
    /// Warns about Services that wait for a grant. Without a cloud controller no other program would tell their
    /// authors.
    pub(super) fn tell_ungranted(&mut self, now: Instant) {
        for (key, asked) in self.services.long_ungranted(now) {
            if !self.ownership.announces(self.services.get(&key)) {
                continue;
            }
            let asked: Vec<String> = asked.iter().map(ToString::to_string).collect();
            let text = format!(
                "{} is what this Service asks for, and no cloud controller has given it any address (annotation \
                 {LOADBALANCER_IPS} beside the finalizer {FINALIZER}): nothing is announced. The cloud controller's \
                 Events on this Service say why; without any see whether it runs. Where there is none, set \
                 svc_controller=false for the announcer",
                asked.join(", ")
            );
            self.out.warn(now, &key, Reason::CannotAnnounce, &text);
        }
    }

    /// `node` mode: updates the addresses that no Service may have.
    pub(super) fn note_forbidden(&mut self) {
        if let Owners::Node(cluster) = &self.ownership {
            // A Service with the gateway's address would take it while the router restarts, and a gateway that is a VIP
            // tells nothing about the LAN.
            self.services.set_forbidden(cluster.forbidden(self.observer.gateway()));
        }
    }

    pub(super) fn tell_refused(&mut self, now: Instant) {
        for (key, refusal) in self.services.refusals() {
            let ours = match &refusal.reporter {
                Reporter::Node(node) => *node == self.config.node_name,
                Reporter::OwnerOf(owner) => self.ownership.announces(self.services.get(owner)),
            };
            if ours {
                self.out.warn(now, key, Reason::CannotAnnounce, &refusal.text);
            }
        }
    }
}
