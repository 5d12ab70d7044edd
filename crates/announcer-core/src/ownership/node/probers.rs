//! Chooses the Services that this node probes as a client. Each is probed by the first two nodes in the line of
//! successors of its owner, among the nodes that may announce in its LAN. Pure.

use std::net::{IpAddr, SocketAddr};

use super::Cluster;
use super::candidates::{Candidates, Penalties};
use super::member::{Fitness, own_addresses};
use super::round::{Round, Standing};
use crate::prober::Target;
use crate::view::ServiceView;

/// Number of nodes that probe one address.
const PROBERS: usize = 2;

impl Cluster {
    /// Notes the results of the probes for this node's card. The next renewal of the Lease writes them.
    pub fn note_probed(&mut self, probed: contract::Probed) {
        self.card.probed = probed;
    }

    /// The probe targets of a group. The owner does not probe its own addresses, because its own kernel would answer.
    pub(super) fn to_probe(&self, round: &Round<'_>, standing: &Standing<'_>) -> Vec<Target> {
        let context = round.context;
        let wants = |view: &ServiceView| view.probe.unwrap_or(context.config.probe) && !view.retired;
        let wanting: Vec<&ServiceView> = standing.members.iter().copied().filter(|view| wants(view)).collect();
        let (Some(owner_record), Some(link)) = (&standing.owner_record, standing.link) else { return Vec::new() };
        if wanting.is_empty() || owner_record.host == self.me || round.yield_at.is_some() || context.stopping {
            return Vec::new();
        }
        let Some(rank) = self.place_among_probers(round, standing, &owner_record.host) else { return Vec::new() };
        let Some(mac) = context.network.link(link).and_then(|link| link.mac) else { return Vec::new() };
        let own = own_addresses(context.network, link);
        let source = |address: IpAddr| {
            let same = own.iter().filter(|net| net.addr().is_ipv4() == address.is_ipv4());
            same.min_by_key(|net| !net.contains(&address)).map(ipnet::IpNet::addr)
        };
        let asked = wanting.iter().flat_map(|view| {
            let port = view.first_tcp_port();
            let told = standing.addresses().filter(move |address| view.published.has(*address));
            told.filter_map(move |address| Some((view.key.clone(), SocketAddr::new(address, port?))))
        });
        let target = |(service, at): (_, SocketAddr)| {
            let (owner, first) = (owner_record.host.clone(), rank == 0);
            Some(Target { service, at, owner, link, mac, source: source(at.ip())?, first })
        };
        asked.filter_map(target).collect()
    }

    /// This node's place in the line of successors. Nodes without an endpoint of a Service with policy Local probe too.
    fn place_among_probers(&self, round: &Round<'_>, standing: &Standing<'_>, owner: &str) -> Option<usize> {
        let line = Candidates::new(round.fitness.iter().filter_map(|(node, fitness)| {
            let Fitness::Fit(defects) = *fitness else { return None };
            self.reach(round.context, standing.placed_by, standing.link, standing.addresses().next(), node)?;
            Some((node.as_str(), Penalties { defects, ..Penalties::default() }))
        }));
        line.rank(owner, &self.me, |node| self.facts.host(node)).filter(|rank| *rank < PROBERS)
    }
}
