//! Data of one review: its input, what is known of each group of Services, and its results. `standing.rs` and
//! `review.rs` fill it in.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use l2_types::{Link, Mac};

use super::candidates::Candidates;
use super::member::Fitness;
use super::reach::chosen;
use super::{LostVip, OwnerRecord, Swap, Targets};
use crate::config::Config;
use crate::detect::GatewayState;
use crate::endpoints::Endpoints;
use crate::group::Groups;
use crate::network::{Family, InterfaceError, Network};
use crate::prober;
use crate::reason::Reason;
use crate::view::{ServiceKey, ServiceView};

/// The input of a review, beside the state of the cluster.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // independent facts, not the states of one machine
pub struct ReviewContext<'a> {
    /// The Services that the announcers of this cluster serve.
    pub services: &'a BTreeMap<ServiceKey, ServiceView>,
    /// Which Services share an address.
    pub groups: &'a Groups,
    /// Where Services with `externalTrafficPolicy: Local` have endpoints.
    pub endpoints: &'a Endpoints,
    /// Interfaces and addresses of this node.
    pub network: &'a Network,
    /// The announcer's configuration.
    pub config: &'a Config,
    /// VIPs that are on this node, or were when the process started.
    pub holding: &'a BTreeSet<IpAddr>,
    /// Services whose addresses the kernel has repeatedly refused.
    pub refused: &'a BTreeSet<ServiceKey>,
    /// Whether owners that this node watches answer at addresses of their own. One of which that is not known is left
    /// out.
    pub at_own_addresses: &'a BTreeMap<String, bool>,
    /// What this node knows of its default gateways, by interface.
    pub gateways: &'a BTreeMap<u32, GatewayState>,
    /// This process is about to end.
    pub stopping: bool,
    /// The node stays in service, and another process will follow.
    pub stays: bool,
    /// The cloud controller is in safe mode.
    pub safe_mode: bool,
    /// It is known whether kube-proxy on this node is healthy. Until then the node's own card says that it is not.
    pub kube_proxy_known: bool,
}

/// The results of a review.
#[derive(Debug, Default)]
pub struct Review {
    /// Records to swap.
    pub swaps: Vec<(ServiceKey, Swap)>,
    /// Addresses to ask for by broadcast, with the interface.
    pub questions: Vec<(u32, IpAddr)>,
    /// Owners to watch.
    pub targets: Targets,
    /// Former owners that have to learn that a VIP is ours now.
    pub former_owners: Vec<LostVip>,
    /// All addresses that Services want.
    pub vips: BTreeSet<IpAddr>,
    /// Interfaces on which answers and claims have to be received.
    pub links: BTreeSet<(u32, Family)>,
    /// Interfaces on which the gateway has to be asked for anew, because members hear it and this owner does not; with
    /// the moment from which the cards of those members tell so.
    pub sought_gateways: BTreeMap<u32, Instant>,
    /// Services that no node may announce yet; this node writes their addresses to the status.
    pub unannounced: BTreeSet<ServiceKey>,
    /// Services to probe as a client.
    pub probes: prober::Targets,
    /// Messages for authors of Services that no node takes: Service, reason, text.
    pub told: Vec<(ServiceKey, Reason, String)>,
}

/// What is the same for all groups of one review.
#[derive(Clone, Copy)]
pub(super) struct Round<'a> {
    pub now: Instant,
    pub context: &'a ReviewContext<'a>,
    pub fitness: &'a BTreeMap<String, Fitness>,
    /// Nodes that most probably answer nobody at this moment, whatever their Leases say.
    pub silent: &'a BTreeSet<String>,
    /// Of each of our interfaces, the nodes in that LAN that have lost the gateway, while this node hears it.
    pub without_gateway: &'a BTreeMap<u32, BTreeSet<String>>,
    /// Of each of our interfaces on which this node has lost the gateway, the members that hear it, and from when on a
    /// card of each tells so.
    pub awaited: &'a BTreeMap<u32, BTreeMap<String, Instant>>,
    /// Set while a foreign holder has all Services. Until then this node goes on serving VIPs for which that holder
    /// does not answer yet.
    pub yield_at: Option<Instant>,
    /// The announcers may just be starting, and some have no membership Lease yet.
    pub unsettled: bool,
}

impl Round<'_> {
    /// Whether most probably `node` answers nobody, or no client, in the LAN of our interface `link`.
    pub fn is_silent(&self, link: Option<u32>, node: &str) -> bool {
        let lost = link.and_then(|link| self.without_gateway.get(&link));
        self.silent.contains(node) || lost.is_some_and(|lost| lost.contains(node))
    }
}

/// One group with all facts about it.
pub(super) struct Standing<'a> {
    pub key: String,
    pub members: Vec<&'a ServiceView>,
    /// Addresses on the wire, with the MAC of their macvlan.
    pub addresses: Vec<(IpAddr, Option<Mac>)>,
    /// Whether one of the addresses is on this node.
    pub holding: bool,
    /// The Service whose annotations choose the interface.
    pub placed_by: &'a ServiceView,
    /// This node's interface for the group.
    pub link: Option<u32>,
    pub owner_record: Option<OwnerRecord>,
    /// The nodes that may own the group.
    pub candidates: Candidates<'a>,
    pub eligible: bool,
    /// The nodes with ready endpoints, if only these may own the group.
    pub only: Option<BTreeSet<String>>,
}

impl Standing<'_> {
    /// The key that selects the home of the group. For DHCP this is the UID, so that the group does not move when its
    /// lease or its address changes. A move would cost clients their connections.
    pub fn home_key(&self) -> &str {
        let primary = self.primary();
        if primary.wants_dhcp() || primary.wants_dhcp6() { &primary.uid.0 } else { &self.key }
    }

    /// The Service whose record counts.
    pub fn primary(&self) -> &ServiceView {
        self.members[0]
    }

    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.addresses.iter().map(|(address, _)| *address)
    }

    /// The addresses that the owner has to answer for, with the MAC of their macvlan: those that stand in the status of
    /// a member, or all while none does. Beside an address that was published, one that never was is on no node: a
    /// stranger has it, or the kernel refuses it. Silence about it says nothing about the owner, and the next owner
    /// would meet the same.
    pub fn owed(&self) -> impl Iterator<Item = (IpAddr, Option<Mac>)> + '_ {
        let members = &self.members;
        let is_told = move |address: IpAddr| members.iter().any(|view| view.published.has(address));
        let is_any_told = self.addresses().any(is_told);
        self.addresses.iter().copied().filter(move |(address, _)| !is_any_told || is_told(*address))
    }

    /// The same without the MACs.
    pub fn owed_addresses(&self) -> Vec<IpAddr> {
        self.owed().map(|(address, _)| address).collect()
    }

    /// Whether the group has no owner, and no node may own it before an endpoint is ready.
    pub fn awaits_endpoint(&self) -> bool {
        self.owner_record.is_none() && self.only.as_ref().is_some_and(BTreeSet::is_empty)
    }

    pub fn is_of(&self, node: &str) -> bool {
        self.owner_record.as_ref().is_some_and(|owner_record| owner_record.host == node)
    }

    /// This node's interface for the group, usable or not.
    pub fn chosen<'a>(&self, context: &ReviewContext<'a>) -> Result<&'a Link, InterfaceError> {
        chosen(context.network, context.config, self.placed_by, self.addresses().next())
    }
}

/// An owner that this node may have to succeed, and this node's place in the line of successors.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Succession {
    pub owner: String,
    /// This node's interface towards the owner.
    pub link: u32,
    pub rank: u8,
    /// The first successor, if this node is the second.
    pub ahead: Option<String>,
}

/// The next moment at which something is due. Moments in the past are ignored, because the review has handled them.
pub(super) struct Wake {
    pub now: Instant,
    pub next: Option<Instant>,
}

impl Wake {
    pub fn at(&mut self, time: Instant) {
        if time > self.now {
            self.next = Some(self.next.map_or(time, |next| next.min(time)));
        }
    }
}
