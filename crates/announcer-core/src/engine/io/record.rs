//! What this node writes on a Service, and what becomes of that.

use std::net::IpAddr;

use crate::annotations::{LeaseFacts, LeaseFacts6};
use crate::ownership::node::Term;
use crate::view::{Port, Published, Uid};

/// What became of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// It is written, or was so already.
    Done,
    /// The Service is gone.
    Gone,
    /// A newer owner stands there: nothing was written.
    Superseded,
    /// It could not be written; it is tried again.
    Failed,
}

/// What this node writes on a Service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// The Service that is meant, not a later one of its name.
    pub uid: Uid,
    /// `vipHost`; absent: nobody announces it yet, and the record is only to be written while no owner stands there.
    pub vip_host: Option<String>,
    /// The term beside it, in `node` mode. Never written over a newer one.
    pub term: Option<Term>,
    /// `hwaddr`, for DHCP.
    pub hwaddr: Option<String>,
    /// `requestedIP`, for DHCP.
    pub requested_ip: Option<String>,
    /// Lease facts, for DHCP.
    pub lease: Option<LeaseFacts>,
    /// Instead of them: these, if they still stand there, are of leases that are lost.
    pub lost: LostLeases,
    /// Lease facts, for DHCPv6.
    pub lease6: Option<LeaseFacts6>,
    /// `status.loadBalancer.ingress`; absent: not to be touched yet.
    pub ingress: Option<Vec<(IpAddr, Vec<Port>)>>,
    /// In which turn it has joined others that had its address (`seniority.rs`); written with `ingress`.
    pub turn: u32,
}

/// The facts of leases that a server has refused or not renewed, as they may still stand on their Service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LostLeases {
    /// That of DHCP.
    pub v4: Option<LeaseFacts>,
    /// That of DHCPv6.
    pub v6: Option<LeaseFacts6>,
}

impl LostLeases {
    /// Those of them that stand on the Service.
    pub fn standing(&self, published: &Published) -> Self {
        Self {
            v4: self.v4.clone().filter(|lost| published.lease.as_ref() == Some(lost)),
            v6: self.v6.clone().filter(|lost| published.lease6.as_ref() == Some(lost)),
        }
    }

    /// Whether none is lost.
    pub fn is_empty(&self) -> bool {
        self.v4.is_none() && self.v6.is_none()
    }
}
