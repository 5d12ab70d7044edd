//! What metrics and people see of the engine.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::detect;
use crate::plan::VipId;
use crate::view::ServiceKey;

/// What has happened on this node since the start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observations {
    /// Of the failure detector.
    pub probes: detect::Counters,
    /// VIPs that former owners may not know to be ours.
    pub claims: usize,
    /// Claims with a wrong tag.
    pub forged: u64,
    /// The kernel refuses the rules of service security.
    pub unprotected: bool,
    /// Addresses that were found gone, by the kernel's deadline or somebody's hand.
    pub fallen: u64,
    /// Times that the API did not take a change of owner, nor say who the owner is.
    pub failed_swaps: u64,
    /// Changes of owner to this node, by reason.
    pub changes: BTreeMap<&'static str, u64>,
    /// How long clients had no answer at the last take-over from a silent owner.
    pub last_gap: Option<Duration>,
}

/// One VIP as it stands, for metrics and people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VipStatus {
    /// Which.
    pub id: VipId,
    /// Its address, if it has one by now.
    pub address: Option<IpAddr>,
    /// The first of its Services.
    pub service: Option<ServiceKey>,
    /// On the interface and answering.
    pub up: bool,
    /// State of the DHCP client.
    pub dhcp_state: Option<&'static str>,
    /// End of the DHCP lease.
    pub expires: Option<Instant>,
}
