//! The landmarks that this node knows from the cluster: gateway, members, API servers (decisions.md 24). Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use super::member::{link_towards, own_addresses};
use super::timing::FORMER_AFTER;
use super::{Card, Cluster, place};
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

    /// The landmarks on the interfaces `links`.
    fn landmarks(&self, now: Instant, network: &Network, links: &BTreeSet<u32>) -> Vec<Landmark> {
        let mut landmarks = Vec::new();
        for link in links {
            let mut there: BTreeMap<IpAddr, Landmark> = BTreeMap::new();
            let mut add = |landmark: Landmark| {
                there.entry(landmark.address).or_insert(landmark);
            };
            let members = self.landmark_members(now, network, *link);
            let (former, live): (Vec<Landmark>, Vec<Landmark>) =
                members.into_iter().partition(|landmark| matches!(landmark.who, LandmarkKind::FormerMember(_)));
            live.into_iter().for_each(&mut add);
            if let Some(address) = network.gateway_on(*link) {
                add(Landmark { link: *link, address, mac: None, who: LandmarkKind::Gateway });
            }
            let own = own_addresses(network, *link);
            let in_lan = |server: &&IpAddr| own.iter().any(|net| net.contains(*server) && net.addr() != **server);
            let elsewhere = |server: &&IpAddr| !self.facts.own_addresses().any(|(_, net)| net.addr() == **server);
            for server in self.facts.api_servers.iter().filter(in_lan).filter(elsewhere) {
                add(Landmark { link: *link, address: *server, mac: None, who: LandmarkKind::ApiServer });
            }
            // The address of a removed node may be another host's by now.
            former.into_iter().for_each(&mut add);
            landmarks.extend(there.into_values());
        }
        landmarks
    }

    /// The members that are asked on the interface `link`, the live ones first.
    fn landmark_members(&self, now: Instant, network: &Network, link: u32) -> Vec<Landmark> {
        let mut members: Vec<(LandmarkKind, &str, &Card)> =
            self.members().filter_map(|(node, card)| Some((self.landmark_kind(now, node)?, node, card))).collect();
        members.sort_by_key(|(who, node, _)| {
            (matches!(who, LandmarkKind::FormerMember(_)), std::cmp::Reverse(place::score(&self.me, node)))
        });
        let towards =
            members.into_iter().filter_map(|(who, _, card)| Some((who, link_towards(&card.links, network, link)?)));
        towards
            .take(MEMBERS)
            .filter_map(|(who, theirs)| {
                let address = theirs.addresses.first()?.addr();
                Some(Landmark { link, address, mac: Some(theirs.mac), who })
            })
            .collect()
    }

    /// The kind of landmark that a member is. A member whose Lease has expired is none at first, because its silence
    /// proves nothing. That also makes the detector forget its answers. When it has been expired for long, only what it
    /// answers from then on counts.
    fn landmark_kind(&self, now: Instant, node: &str) -> Option<LandmarkKind> {
        match self.facts.expired_since(now, node) {
            None => Some(LandmarkKind::Member(node.to_owned())),
            Some(since) if now >= since + FORMER_AFTER => Some(LandmarkKind::FormerMember(node.to_owned())),
            Some(_) => None,
        }
    }
}
