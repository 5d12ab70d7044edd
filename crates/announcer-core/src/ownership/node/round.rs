//! One review: what it looks at, what is known of each group of Services, and what comes of it. Data; `standing.rs` and
//! `review.rs` fill it in.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use l2_types::Link;

use super::candidates::Candidates;
use super::member::Fitness;
use super::reach::chosen;
use super::{LostVip, OwnerRecord, Swap, Targets};
use crate::config::Config;
use crate::endpoints::Endpoints;
use crate::group::Groups;
use crate::network::{InterfaceError, Network};
use crate::prober;
use crate::reason::Reason;
use crate::view::{ServiceKey, ServiceView};

/// What a review looks at, beside what the cluster has told.
#[derive(Debug)]
pub struct ReviewContext<'a> {
    /// Services that are ours to announce.
    pub services: &'a BTreeMap<ServiceKey, ServiceView>,
    /// Which of them share an address.
    pub groups: &'a Groups,
    /// Where those with policy Local have endpoints.
    pub endpoints: &'a Endpoints,
    /// This node.
    pub network: &'a Network,
    /// The configuration.
    pub config: &'a Config,
    /// Service addresses that are on this node, or were when we began.
    pub holding: &'a BTreeSet<IpAddr>,
    /// Services whose address the kernel has refused again and again.
    pub refused: &'a BTreeSet<ServiceKey>,
    /// The process is about to end.
    pub stopping: bool,
    /// Its node goes on, and another process will come.
    pub stays: bool,
    /// The cloud controller is in safe mode.
    pub safe_mode: bool,
}

/// What comes of it.
#[derive(Debug, Default)]
pub struct Review {
    /// Records to swap.
    pub swaps: Vec<(ServiceKey, Swap)>,
    /// Addresses to ask everybody about, with the interface.
    pub questions: Vec<(u32, IpAddr)>,
    /// Owners to watch.
    pub targets: Targets,
    /// Who has to learn that an address is ours now.
    pub former_owners: Vec<LostVip>,
    /// All addresses that Services want.
    pub vips: BTreeSet<IpAddr>,
    /// Interfaces on which answers and claims have to be heard.
    pub links: BTreeSet<(u32, bool)>,
    /// Services that no node may announce yet, whose addresses this node tells clients of.
    pub unannounced: BTreeSet<ServiceKey>,
    /// Whom to ask whether they are served.
    pub probes: prober::Targets,
    /// What authors have to know of Services that no node takes: reason and text.
    pub told: Vec<(ServiceKey, Reason, String)>,
}

/// What holds for all groups of one review.
#[derive(Clone, Copy)]
pub(super) struct Round<'a> {
    pub now: Instant,
    pub context: &'a ReviewContext<'a>,
    pub fitness: &'a BTreeMap<String, Fitness>,
    /// A kube-vip has everything, and what it does not answer for yet is served here until then.
    pub yield_at: Option<Instant>,
    /// All announcers may just be starting, and some are not there yet.
    pub unsettled: bool,
}

/// One group with all that is known of it.
pub(super) struct Standing<'a> {
    pub key: String,
    pub members: Vec<&'a ServiceView>,
    /// Addresses on the wire, with the MAC of their macvlan.
    pub addresses: Vec<(IpAddr, Option<l2_types::Mac>)>,
    /// One of them is on this node.
    pub holding: bool,
    /// Whose wish says on which interface they are.
    pub placed_by: &'a ServiceView,
    /// Our interface for them.
    pub link: Option<u32>,
    pub owner_record: Option<OwnerRecord>,
    /// Who may have it.
    pub candidates: Candidates<'a>,
    pub keeps: bool,
    /// Where its endpoints are, if that counts.
    pub only: Option<BTreeSet<String>>,
}

impl Standing<'_> {
    /// By what its home is chosen. A lease moves nothing when it is granted, nor when another address is: clients would
    /// lose their connections for it.
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

    /// Nobody has it, and no node may have it before an endpoint is ready.
    pub fn awaits_endpoint(&self) -> bool {
        self.owner_record.is_none() && self.only.as_ref().is_some_and(BTreeSet::is_empty)
    }

    pub fn is_of(&self, node: &str) -> bool {
        self.owner_record.as_ref().is_some_and(|owner_record| owner_record.host == node)
    }

    /// This node's interface for it, whether it can be used or not.
    pub fn chosen<'a>(&self, context: &ReviewContext<'a>) -> Result<&'a Link, InterfaceError> {
        chosen(context.network, context.config, self.placed_by, self.addresses().next())
    }
}

/// Whom this node may have to succeed, and at which place in the line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Succession {
    pub owner: String,
    /// Our interface towards it.
    pub link: u32,
    pub rank: u8,
    /// Who stands before us, as the second.
    pub ahead: Option<String>,
}

/// The next moment at which something is due. What is past has been seen to.
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
