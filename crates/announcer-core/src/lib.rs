//! Rules and state machines that decide which node announces which virtual IP. Compatible with kube-vip (kube-vip spec,
//! section 0).
//!
//! Observe, decide, act: [`view`] extracts small structs from Services, and [`network`] from the node. `plan` says
//! which VIPs this node should have, and asks [`ownership`]. [`engine`] is the machine that sets VIPs up, keeps,
//! defends and withdraws them. Beside it: [`detect`] (is the owner alive?), [`claim`] (telling former owners),
//! [`dhcp_session`] (a lease), [`record`] (what is written on a Service), [`status`] (the report for users). The parts
//! between the engine and the outside are machines too: [`swap`] (changes of owner), [`membership`] (this node's
//! Lease), [`record_writer`] (writes on Services), [`campaigns`] and [`successor`] (elections of the other modes),
//! [`kernel_queue`] (order of requests to the kernel), [`prober`] (is the Service served?).
//!
//! No clock, no client, no socket: `announcer` runs all of it on a node, `announcer-sim` in virtual time.

// Tests make an instant to count from.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod annotations;
pub mod api_clock;
pub mod campaigns;
pub mod claim;
pub mod class;
pub mod config;
pub mod detect;
pub mod dhcp_session;
pub mod endpoints;
pub mod engine;
mod fence;
pub mod frames;
mod group;
mod interface_wish;
pub mod kernel_queue;
pub mod membership;
pub mod network;
mod node_watch;
pub mod ownership;
pub mod pace;
mod plan;
pub mod prober;
mod probes;
mod reason;
pub mod record;
pub mod record_writer;
mod screen;
pub mod security;
mod seniority;
pub mod status;
pub mod successor;
pub mod swap;
mod turns;
pub mod view;
mod vip_id;

pub use config::{Config, ConfigError, ElectionMode};
pub use plan::VipId;
pub use reason::Reason;

/// Services, a network and a configuration, for tests.
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures {
    pub use crate::network::fixtures::{address, config, link, macvlan, network, own_address};
    pub use crate::plan::fixtures::{told, view};
}
