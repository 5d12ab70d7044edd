//! The cloud-provider traits for Harvester: load balancers from IP pools, by DHCP and shared; VMs behind Nodes; the
//! network mapping.
//!
//! Every rule is a pure function over small views (`plan`, `sharing.rs`, `identity/decide.rs`, `addresses.rs`, …). Only
//! these files send requests: `load_balancers/apply.rs`, `identity/record.rs`, `instances/requests.rs`,
//! `nad_mapping/writer.rs`, and, to read the host's schema and the announcers' Leases, `features.rs` and
//! `announcers.rs`.

mod announcers;
mod config;
mod connection;
mod events;
mod features;
mod garbage;
mod host_upgrade;
mod identity;
mod instances;
mod load_balancers;
mod metrics;
mod nad_mapping;
mod provider;

pub use config::{GarbageConfig, GarbageMode, GarbagePace, OwnNode, ProviderConfig};
pub use connection::{Connection, ConnectionError};
pub use identity::decide::Source;
pub use identity::identity_card::{IdentityCard, fingerprint};
pub use identity::judge::OperatorConfirmation;
pub use identity::record::{Record, RecordError, Records};
pub use provider::{Foresight, HarvesterProvider, Unreadable};
