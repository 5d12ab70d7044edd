//! What a VIP knows of its DHCP client, its lease and its macvlan. Data; what becomes of it is decided in `dhcp.rs`,
//! `dhcp6.rs` and `dhcp_events.rs`.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use l2_types::Mac;

use super::Leased;
use crate::annotations::{LeaseFacts, LeaseFacts6};
use crate::view::DhcpWishes;

/// A macvlan that cannot be made is tried again after 1, 2, 4 ... seconds, at most this many; so is one that vanishes:
/// whoever removes it may go on doing so.
const MACVLAN_RETRY_MAX_SECONDS: u64 = 60;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MacvlanState {
    Absent,
    Making,
    /// Index, and from which observation on it must be visible.
    Ready(u32, u64),
    /// Refused, or gone too often.
    Failed {
        until: Instant,
    },
}

/// A VIP's client, of either version.
#[derive(Debug)]
pub(super) struct ClientState {
    /// Generation of the client that runs.
    pub running: Option<u64>,
    /// Where it is, by its own name for it.
    pub state: &'static str,
    /// When one that failed is started again.
    pub retry: Option<Instant>,
}

impl Default for ClientState {
    fn default() -> Self {
        Self { running: None, state: "init", retry: None }
    }
}

impl ClientState {
    /// Whether the time to start it again has come.
    fn wake(&mut self, now: Instant) -> bool {
        self.retry.take_if(|at| *at <= now).is_some()
    }
}

/// The DHCP side of a VIP.
#[derive(Debug)]
pub(super) struct Dhcp {
    pub wishes: DhcpWishes,
    pub name: String,
    pub mac: Mac,
    pub macvlan: MacvlanState,
    /// On which interface and under which name it was asked for last.
    pub asked: Option<(u32, String)>,
    /// When it was there last, and how often since then it could not be made or did not stay.
    pub made: Option<Instant>,
    pub troubles: u32,
    pub client: ClientState,
    pub leased: Option<Leased>,
    /// The lease facts that should stand on the Service.
    pub facts: Option<LeaseFacts>,
    /// What the client was told last of its link.
    pub link_up: bool,
    /// The address that clients may know.
    pub last: Option<Ipv4Addr>,
    /// What is noted on the macvlan.
    pub noted: Option<String>,
}

impl Dhcp {
    pub fn deadline(&self) -> Option<Instant> {
        let macvlan = match self.macvlan {
            MacvlanState::Failed { until } => Some(until),
            _ => None,
        };
        macvlan.into_iter().chain(self.client.retry).min()
    }

    /// Whether something that waited is due.
    pub fn wake(&mut self, now: Instant) -> bool {
        let mut due = self.client.wake(now);
        if matches!(self.macvlan, MacvlanState::Failed { until } if until <= now) {
            self.macvlan = MacvlanState::Absent;
            due = true;
        }
        due
    }

    pub fn link(&self) -> Option<u32> {
        match self.macvlan {
            MacvlanState::Ready(link, _) => Some(link),
            _ => None,
        }
    }

    /// Whether what was asked for last is still wanted where it was.
    pub fn is_as_asked(&self, place: Option<u32>) -> bool {
        let Some((parent, name)) = &self.asked else { return true };
        *name == self.name && place.is_none_or(|place| place == *parent)
    }

    /// When the macvlan is tried again.
    pub fn macvlan_retry(&mut self, now: Instant) -> Instant {
        self.troubles = (self.troubles + 1).min(10);
        now + Duration::from_secs((1 << (self.troubles - 1)).min(MACVLAN_RETRY_MAX_SECONDS))
    }

    pub fn link_name(&self) -> &str {
        &self.name
    }
}

/// What a client speaks from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mouth {
    pub link: u32,
    pub mac: Mac,
    pub source: Ipv6Addr,
}

/// The DHCPv6 side of a VIP.
#[derive(Debug, Default)]
pub(super) struct Dhcp6 {
    pub mouth: Option<Mouth>,
    pub client: ClientState,
    pub leased: Option<Leased<LeaseFacts6>>,
    /// The lease facts that should stand on the Service.
    pub facts: Option<LeaseFacts6>,
}

impl Dhcp6 {
    pub fn deadline(&self) -> Option<Instant> {
        self.client.retry
    }

    pub fn wake(&mut self, now: Instant) -> bool {
        self.client.wake(now)
    }
}
