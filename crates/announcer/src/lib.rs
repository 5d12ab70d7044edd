//! The announcer on a node: it connects [`announcer_core`] with a cluster, a kernel and a LAN.
//!
//! Watches feed the engine (`run`, `membership`, `endpoint_watch`), [`node`](mod@node) performs what it asks for:
//! requests to the kernel ([`kernel`]), frames (`listen`), DHCP clients ([`dhcp_driver`]), records on Services
//! ([`writer`]), changes of owner (`swap`), elections, questions to Services (`probing`). [`metrics`] and [`status`]
//! tell people. [`run()`] wires it up.
//! What is decided, is decided in the core.

pub mod api_time;
mod claim_keys;
mod clients;
mod clock;
pub mod dhcp_driver;
mod elections;
mod endpoint_watch;
mod global_election;
mod keep;
pub mod kernel;
mod kubelet;
mod listen;
mod macvlan_probe;
mod membership;
pub mod metrics;
pub mod node;
mod probing;
mod run;
mod serving;
pub mod status;
mod swap;
pub mod writer;

pub use global_election::lease_state;
pub use run::{Error, leader_config, run};
