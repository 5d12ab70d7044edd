//! What this node writes on a Service, and the result of writing it.

use std::net::IpAddr;

use crate::annotations::{LeaseFacts, LeaseFacts6};
use crate::ownership::node::{OwnerRecord, Term};
use crate::view::{Port, Published, Uid};

/// Result of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// The record is written, or was there already.
    Done,
    /// The Service is deleted, or is being deleted.
    Gone,
    /// A newer owner is recorded; nothing was written.
    Superseded,
    /// The record could not be written; the write is retried.
    Failed,
}

/// What this node writes on a Service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// UID of the Service; a later Service of the same name is not meant.
    pub uid: Uid,
    /// `vipHost`; `None`: no node announces the Service yet, and the record is only written while no owner is recorded.
    pub vip_host: Option<String>,
    /// The term beside `vipHost`, in `node` mode. It is never written over a newer one.
    pub term: Option<Term>,
    /// A record on the Service that no term can exceed, and that does not count because the Service is not the first of
    /// its group. This one, and no other, is written over.
    pub void: Option<OwnerRecord>,
    /// `hwaddr`, for DHCP.
    pub hwaddr: Option<String>,
    /// `requestedIP`, for DHCP.
    pub requested_ip: Option<String>,
    /// Lease facts, for DHCP.
    pub lease: Option<LeaseFacts>,
    /// Lease facts of lost leases; they are removed if they are still there.
    pub lost: LostLeases,
    /// Lease facts, for DHCPv6.
    pub lease6: Option<LeaseFacts6>,
    /// `status.loadBalancer.ingress`; `None`: it is not changed yet.
    pub ingress: Option<Vec<(IpAddr, Vec<Port>)>>,
    /// The turn in which the Service has joined others with its address (`seniority.rs`); written with `ingress`.
    pub turn: u32,
}

impl Record {
    /// Whether it says anything of a lease.
    pub fn is_of_lease(&self) -> bool {
        self.lease.is_some() || self.lease6.is_some() || !self.lost.is_empty()
    }

    /// Whether `standing`, the record on the Service, names another owner that this record must not overwrite.
    pub fn is_superseded_by(&self, standing: &OwnerRecord) -> bool {
        if self.void.as_ref() == Some(standing) {
            return false;
        }
        match (&self.vip_host, self.term) {
            (None, _) => true,
            (Some(host), Some(term)) => standing.term > term || (standing.term == term && standing.host != *host),
            (Some(_), None) => false,
        }
    }
}

/// The facts of leases that a server has refused or not renewed. Their Service may still show them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LostLeases {
    /// The DHCPv4 lease.
    pub v4: Option<LeaseFacts>,
    /// The DHCPv6 lease.
    pub v6: Option<LeaseFacts6>,
}

impl LostLeases {
    /// Those that the Service still shows.
    pub fn standing(&self, published: &Published) -> Self {
        Self {
            v4: self.v4.clone().filter(|lost| published.lease.as_ref() == Some(lost)),
            v6: self.v6.clone().filter(|lost| published.lease6.as_ref() == Some(lost)),
        }
    }

    /// Whether no lease is lost.
    pub fn is_empty(&self) -> bool {
        self.v4.is_none() && self.v6.is_none()
    }
}
