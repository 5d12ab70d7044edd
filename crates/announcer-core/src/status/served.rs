//! Whether an address is served, as the cards of the probing nodes say.

use std::net::{IpAddr, SocketAddr};

use contract::keys::cloudprovider::CARD;
use contract::leases::MEMBER_PREFIX;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use serde::Serialize;

use crate::annotations::printable;
use crate::ownership::node::Card;
use crate::view::ServiceView;

/// The results of the nodes that probe a Service. Each node is in one list, by the worst result of the addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Probes {
    /// Nodes whose connections are accepted.
    pub served: Vec<String>,
    /// Nodes whose connections are refused.
    pub refused: Vec<String>,
    /// Nodes that get no answer.
    pub no_answer: Vec<String>,
}

impl Probes {
    /// Whether no node probes, or no result is known yet.
    fn is_empty(&self) -> bool {
        self.served.is_empty() && !self.has_failed()
    }

    /// Whether a node is refused or gets no answer.
    pub fn has_failed(&self) -> bool {
        !self.refused.is_empty() || !self.no_answer.is_empty()
    }

    /// The text for users.
    pub fn text(&self) -> String {
        let failed = [("no answer", &self.no_answer), ("refused", &self.refused)];
        let failed = failed.into_iter().filter(|(_, nodes)| !nodes.is_empty());
        let failed = failed.map(|(what, nodes)| format!("{what} ({})", nodes.join(", ")));
        let served = self.served.len();
        let all = served + self.refused.len() + self.no_answer.len();
        let served = (served > 0).then(|| format!("served {served}/{all}"));
        served.into_iter().chain(failed).collect::<Vec<_>>().join("; ")
    }
}

/// The cards of members whose Leases have not expired, by node.
pub(super) fn fresh_cards(leases: &[Lease], now: Timestamp) -> Vec<(String, contract::Probed)> {
    let mut cards: Vec<(String, contract::Probed)> = leases
        .iter()
        .filter_map(|lease| {
            let node = lease.metadata.name.as_deref()?.strip_prefix(MEMBER_PREFIX)?;
            let spec = lease.spec.as_ref()?;
            let ago = now.as_second() - spec.renew_time.as_ref()?.0.as_second();
            let card = Card::parse(lease.metadata.annotations.as_ref()?.get(CARD)?);
            (ago <= i64::from(spec.lease_duration_seconds?)).then(|| (printable(node), card.probed))
        })
        .collect();
    cards.sort_by(|a, b| a.0.cmp(&b.0));
    cards
}

/// The results for a Service with these addresses; `None`: there are none.
pub(super) fn probes(view: &ServiceView, addresses: &[IpAddr], cards: &[(String, contract::Probed)]) -> Option<Probes> {
    let port = view.first_tcp_port()?;
    let asked: Vec<SocketAddr> = addresses.iter().map(|address| SocketAddr::new(*address, port)).collect();
    let mut probes = Probes::default();
    for (node, card) in cards {
        let any = |all: &std::collections::BTreeSet<SocketAddr>| asked.iter().any(|at| all.contains(at));
        if any(&card.silent) {
            probes.no_answer.push(node.clone());
        } else if any(&card.refused) {
            probes.refused.push(node.clone());
        } else if any(&card.served) {
            probes.served.push(node.clone());
        }
    }
    (!probes.is_empty()).then_some(probes)
}
