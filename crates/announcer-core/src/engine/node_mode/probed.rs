//! Services that this node probes as a client: the results, what the card says of them, and what authors are told.
//!
//! One of the two probers reports. The first does so after three failures. The second does so after three more, unless
//! a card says by then that another node knows. The prober that reported the failure also reports its end. A node that
//! does not probe any more reports nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::super::Engine;
use super::Action;
use crate::ownership::Owners;
use crate::prober::{Outcome, PERSISTS, ProbeFinding, Targets};
use crate::reason::Reason;

/// The results of the probes.
#[derive(Debug, Default)]
pub(super) struct ProbeResults {
    asked: Targets,
    found: BTreeMap<SocketAddr, Outcome>,
    told: BTreeSet<SocketAddr>,
}

impl ProbeResults {
    /// Sets the targets, and forgets the results of others. Returns true if the targets have changed.
    fn watch(&mut self, targets: &Targets) -> bool {
        if self.asked == *targets {
            return false;
        }
        let before = std::mem::replace(&mut self.asked, targets.clone());
        let service = |all: &Targets, at: &SocketAddr| all.get(at).map(|target| target.service.clone());
        let stays = |at: &SocketAddr| targets.contains_key(at) && service(&before, at) == service(targets, at);
        self.found.retain(|at, _| stays(at));
        self.told.retain(stays);
        true
    }

    /// The results for the card, which other nodes and `announcer status` read.
    pub fn on_card(&self) -> contract::Probed {
        let of = |wanted: &[Outcome]| {
            self.found.iter().filter(|(_, outcome)| wanted.contains(outcome)).map(|(at, _)| *at).collect()
        };
        contract::Probed {
            served: of(&[Outcome::Served]),
            refused: of(&[Outcome::Refused]),
            silent: of(&[Outcome::Silent, Outcome::NoNeighbor]),
        }
    }

    /// Takes in a finding. Returns what to report, if anything: whether it is a warning, and the reason.
    fn note(&mut self, finding: &ProbeFinding, others_know: bool) -> Option<(bool, Reason)> {
        let at = finding.target.at;
        if self.asked.get(&at).is_none_or(|target| target.service != finding.target.service) {
            return None;
        }
        self.found.insert(at, finding.outcome);
        if finding.outcome == Outcome::Served {
            return self.told.remove(&at).then_some((false, Reason::AddressServedAgain));
        }
        let tells = finding.target.first || (finding.failures >= PERSISTS && !others_know);
        (tells && self.told.insert(at)).then_some((true, Reason::AddressNotServed))
    }
}

impl Engine {
    pub(super) fn probe(&mut self, targets: Targets) {
        if self.node_mode.probed.watch(&targets) {
            self.out.push(Action::ProbeServices(targets));
        }
    }

    /// Takes in a finding. It does not lead to a plan; the card shows it with its next renewal.
    pub(in crate::engine) fn probed(&mut self, finding: &ProbeFinding) {
        let Owners::Node(cluster) = &self.ownership else { return };
        let others_know = cluster.members().any(|(_, card)| card.probed.is_unserved(&finding.target.at));
        if let Some((warning, reason)) = self.node_mode.probed.note(finding, others_know) {
            let text = text(finding, &self.config.node_name);
            self.out.news(&finding.target.service, warning, reason, &text);
        }
    }
}

/// Text for the author of the Service.
fn text(finding: &ProbeFinding, me: &str) -> String {
    let ProbeFinding { target, outcome, failures } = finding;
    let (address, port, owner) = (target.at.ip(), target.at.port(), &target.owner);
    let asked = format!("asked {failures} times in a row by node {me}");
    match outcome {
        Outcome::Served => {
            format!("{address} port {port}, announced by node {owner}, accepts connections again, as node {me} sees it")
        }
        Outcome::Refused => format!(
            "{address} is announced by node {owner}, but connections to port {port} are refused, {asked}: look whether \
             the Service has endpoints that are ready and listen on its target port"
        ),
        Outcome::Silent => format!(
            "{address} is announced by node {owner}, but connections to port {port} get no answer, {asked}: look at \
             kube-proxy on node {owner}, at endpoints that do not listen, at network policies and packet filters; with \
             externalTrafficPolicy Local, whether node {owner} has an endpoint"
        ),
        Outcome::NoNeighbor => {
            let how = if address.is_ipv4() { "ARP" } else { "neighbour discovery" };
            format!(
                "{address} is announced by node {owner}, but nobody answers for it by {how}, {asked}: look at the \
                 network between the two nodes (VLAN, port security) and whether the interface of node {owner} has the \
                 address"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prober::Target;
    use crate::view::ServiceKey;

    fn target(first: bool) -> Target {
        Target {
            service: ServiceKey::new("default", "web"),
            at: "10.0.0.5:80".parse().unwrap(),
            owner: "node-1".into(),
            link: 2,
            mac: [2, 0, 0, 0, 0, 2].into(),
            source: "10.0.0.2".parse().unwrap(),
            first,
        }
    }

    fn asking(first: bool) -> ProbeResults {
        let mut results = ProbeResults::default();
        assert!(results.watch(&[(target(first).at, target(first))].into()));
        results
    }

    fn finding(first: bool, outcome: Outcome, failures: u32) -> ProbeFinding {
        ProbeFinding { target: target(first), outcome, failures }
    }

    #[test]
    fn the_first_in_line_tells_and_the_second_only_what_nobody_else_seems_to_know() {
        use Outcome::{Refused, Served, Silent};
        for (name, first, found, told) in [
            ("well from the start", true, vec![(Served, 0, false)], vec![]),
            (
                "the first",
                true,
                vec![(Silent, 3, true), (Silent, 6, true), (Refused, 9, true), (Served, 0, false)],
                vec![Reason::AddressNotServed, Reason::AddressServedAgain],
            ),
            (
                "the second, and the first knows",
                false,
                vec![(Silent, 3, false), (Silent, 6, true), (Served, 0, true)],
                vec![],
            ),
            (
                "the second alone",
                false,
                vec![(Refused, 3, false), (Refused, 6, false), (Served, 0, false), (Silent, 3, false)],
                vec![Reason::AddressNotServed, Reason::AddressServedAgain],
            ),
        ] {
            let mut results = asking(first);
            let said = found.into_iter().filter_map(|(outcome, failures, others_know)| {
                results.note(&finding(first, outcome, failures), others_know)
            });
            let said: Vec<(bool, Reason)> = said.collect();
            let told: Vec<(bool, Reason)> =
                told.into_iter().map(|reason| (reason == Reason::AddressNotServed, reason)).collect();
            assert_eq!(said, told, "{name}");
        }
    }

    #[test]
    fn the_card_says_how_each_answers_and_forgets_who_is_not_asked_any_more() {
        let at = target(true).at;
        for (outcome, served, refused, silent) in [
            (Outcome::Served, true, false, false),
            (Outcome::Refused, false, true, false),
            (Outcome::Silent, false, false, true),
            (Outcome::NoNeighbor, false, false, true),
        ] {
            let mut results = asking(true);
            assert!(results.on_card().is_empty());
            results.note(&finding(true, outcome, 3), false);
            let card = results.on_card();
            let has = [&card.served, &card.refused, &card.silent].map(|all| all.contains(&at));
            assert_eq!(has, [served, refused, silent], "{outcome:?}");
            let moved = Target { owner: "node-3".into(), ..target(true) };
            assert!(results.watch(&[(at, moved)].into()) && results.on_card() == card, "another owner");
            let other = Target { service: ServiceKey::new("default", "other"), ..target(true) };
            assert!(results.watch(&[(at, other.clone())].into()) && results.on_card().is_empty());
            assert!(!results.watch(&[(at, other)].into()));
            assert_eq!(results.note(&finding(true, outcome, 3), false), None, "it is another Service's by now");
        }
    }

    #[test]
    fn what_is_told_names_address_port_owner_asker_and_remedy() {
        for (outcome, remedy) in [
            (Outcome::Refused, "endpoints that are ready"),
            (Outcome::Silent, "kube-proxy on node node-1"),
            (Outcome::NoNeighbor, "VLAN"),
            (Outcome::Served, "again"),
        ] {
            let text = text(&finding(true, outcome, 3), "node-2");
            for part in ["10.0.0.5", "port", "node-1", "node-2", remedy] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    }
}
