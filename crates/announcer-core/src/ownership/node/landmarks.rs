//! The landmarks that this node knows from the cluster: gateway, members, API servers (decisions.md 24). Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use super::member::{link_towards, own_addresses};
use super::{Cluster, place};
use crate::detect::landmarks::{Landmark, LandmarkKind, Neighbourhood};
use crate::network::Network;

/// Members that are asked on each interface. Each node picks different ones, so that in a large cluster every member is
/// asked by some node.
const MEMBERS: usize = 8;

impl Cluster {
    /// What this node knows of the hosts on the interfaces `links`; `vips`: all addresses that Services want.
    pub fn neighbourhood(
        &self,
        now: Instant,
        network: &Network,
        links: BTreeSet<u32>,
        mut vips: BTreeSet<IpAddr>,
    ) -> Neighbourhood {
        // A second interface of a member in this LAN may not be on its card, and its address is.
        vips.extend(self.facts.own_addresses().map(|(_, net)| net.addr()));
        vips.extend(self.facts.occupied().map(|(.., address)| address));
        let named = self.landmarks(now, network, &links);
        Neighbourhood { named, links, members: self.facts.macs_of_members(), excluded: vips }
    }

    /// The landmarks on the interfaces `links`. Members with an expired Lease are left out, because their silence
    /// proves nothing.
    fn landmarks(&self, now: Instant, network: &Network, links: &BTreeSet<u32>) -> Vec<Landmark> {
        let mut landmarks = Vec::new();
        for link in links {
            let mut there: BTreeMap<IpAddr, Landmark> = BTreeMap::new();
            let mut add = |address, mac, who| {
                there.entry(address).or_insert(Landmark { link: *link, address, mac, who });
            };
            let mut members: Vec<(&str, _)> =
                self.members().filter(|(node, _)| !self.facts.is_expired(now, node)).collect();
            members.sort_by_key(|(node, _)| std::cmp::Reverse(place::score(&self.me, node)));
            let towards =
                members.iter().filter_map(|(node, card)| Some((*node, link_towards(&card.links, network, *link)?)));
            for (node, theirs) in towards.take(MEMBERS) {
                if let Some(net) = theirs.addresses.first() {
                    add(net.addr(), Some(theirs.mac), LandmarkKind::Member(node.to_owned()));
                }
            }
            if let Some(gateway) = network.gateway_on(*link) {
                add(gateway, None, LandmarkKind::Gateway);
            }
            let own = own_addresses(network, *link);
            let in_lan = |server: &&IpAddr| own.iter().any(|net| net.contains(*server) && net.addr() != **server);
            let elsewhere = |server: &&IpAddr| !self.facts.own_addresses().any(|(_, net)| net.addr() == **server);
            for server in self.facts.api_servers.iter().filter(in_lan).filter(elsewhere) {
                add(*server, None, LandmarkKind::ApiServer);
            }
            landmarks.extend(there.into_values());
        }
        landmarks
    }
}
