//! Questions on the LAN: from whom they come, and what follows if one could not be sent.

use std::net::Ipv6Addr;

use l2_types::Mac;

use super::super::Engine;
use super::Action;
use crate::detect::Ask;
use crate::network::Network;

impl Engine {
    /// A question could not be sent: a host that was not asked is not silent. A broadcast may be about an owner that is
    /// not known, or a probe for an address of this node.
    pub(in crate::engine) fn not_sent(&mut self, ask: &Ask) {
        self.node_mode.detector.not_sent(ask);
        if ask.to != Mac::BROADCAST {
            return;
        }
        self.not_probed(ask.link, ask.address);
        if let Some(cluster) = self.cluster() {
            cluster.not_sent(ask.link, ask.address);
        }
    }

    /// Sends a question from our interface's own MAC; for IPv6 also from one of its addresses (`frames`).
    pub(super) fn ask(&mut self, ask: Ask) {
        match self.observer.network().and_then(|network| speaker(network, ask)) {
            Some((mac, source)) => self.out.push(Action::Ask { mac, source, ask }),
            None => self.not_sent(&ask),
        }
    }
}

/// Our MAC on the interface of a question, and the source address for IPv6.
fn speaker(network: &Network, ask: Ask) -> Option<(Mac, Option<Ipv6Addr>)> {
    let source = if ask.address.is_ipv6() { network.ipv6_source(ask.link) } else { None };
    Some((network.link(ask.link)?.mac?, source))
}
