//! The state of the engine for metrics and users.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use dhcp_client::State;

use crate::detect;
use crate::plan::VipId;
use crate::view::ServiceKey;

/// Counters since the start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observations {
    /// Counters of the failure detector.
    pub probes: detect::Counters,
    /// VIPs whose former owners may not know that they are ours.
    pub claims: usize,
    /// Claims with a wrong tag.
    pub forged: u64,
    /// The kernel refuses the rules of service security.
    pub unprotected: bool,
    /// Addresses that were found missing, because their lifetime ended or another program removed them.
    pub fallen: u64,
    /// How often the API accepted no change of owner and named no other owner.
    pub failed_swaps: u64,
    /// Changes of owner to this node, by reason.
    pub changes: BTreeMap<&'static str, u64>,
    /// How long clients had no answer at the last take-over from a silent owner.
    pub last_gap: Option<Duration>,
}

/// State of one VIP, for metrics and users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VipStatus {
    /// Identity of the VIP.
    pub id: VipId,
    /// Its address, if it is known.
    pub address: Option<IpAddr>,
    /// The first of its Services.
    pub service: Option<ServiceKey>,
    /// Whether it is on the interface and answers.
    pub up: bool,
    /// State of the DHCP client.
    pub dhcp_state: Option<State>,
    /// End of the DHCP lease.
    pub expires: Option<Instant>,
}
