//! The cloud-provider traits for Harvester: load balancers from IP pools, by DHCP and shared; VMs behind Nodes; the network mapping.
//!
//! Every rule is a pure function over small views (`plan`, `sharing.rs`, `identity/decide.rs`, `addresses.rs`, …). Requests are sent by
//! `load_balancers/apply.rs`, `identity/record.rs`, `instances/requests.rs`, `nad_mapping/writer.rs` and, to read the host's schema,
//! `features.rs`, and nowhere else.

pub mod config;
pub mod features;
pub mod garbage;
pub mod identity;
pub mod instances;
pub mod load_balancers;
pub mod metrics;
pub mod nad_mapping;
pub mod provider;

pub use config::ProviderConfig;
pub use provider::HarvesterProvider;
