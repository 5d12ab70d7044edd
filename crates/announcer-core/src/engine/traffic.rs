//! Services with `externalTrafficPolicy: Local`: reports those whose endpoints are not on the node that announces them.

use std::time::Instant;

use super::{Engine, Owner, Ownership};
use crate::config::ElectionMode;
use crate::endpoints::{eligible_nodes, ready_on};
use crate::reason::Reason;
use crate::view::ServiceView;

impl Engine {
    /// Warns authors if this node announces a Service without an endpoint here, because the node drops that traffic
    /// (decisions.md 18 and 21). Where owners follow endpoints, the Event is sent only if no better owner exists.
    pub(super) fn tell_traffic(&mut self, now: Instant) {
        let misplaced: Vec<&ServiceView> = self
            .services
            .values()
            .filter(|view| view.local_traffic && self.plan.of_service.contains_key(&view.key))
            .filter(|view| self.ownership.of(view) == Owner::Mine)
            .filter(|view| {
                self.services.endpoints().get(&view.key).is_some_and(|nodes| !nodes.contains(&self.config.node_name))
            })
            .collect();
        if misplaced.is_empty() {
            return;
        }
        let follows = self.config.election_mode != ElectionMode::Global;
        let mut told = Vec::new();
        for view in misplaced {
            let eligible = eligible_nodes(self.services.group_of(&view.key), self.services.endpoints());
            let moves_soon = follows
                && eligible.only.as_ref().is_some_and(|nodes| !nodes.is_empty())
                && !eligible.includes(&self.config.node_name);
            if moves_soon {
                continue;
            }
            let node = &self.config.node_name;
            let nodes = &self.services.endpoints()[&view.key];
            let where_else = if nodes.is_empty() {
                "no node has a ready endpoint of it".to_owned()
            } else {
                let remedy = if follows {
                    "the Services that share the address have no node in common"
                } else {
                    "election_mode global has one node announce everything; node follows the endpoints"
                };
                format!("{}: {remedy}", ready_on(nodes))
            };
            told.push((
                view.key.clone(),
                format!(
                    "externalTrafficPolicy is Local and node {node}, which announces the address, has no ready \
                     endpoint of this Service, so what clients send is dropped; {where_else}"
                ),
            ));
        }
        for (key, text) in told {
            self.out.warn(now, &key, Reason::NoLocalEndpoint, &text);
        }
    }
}
