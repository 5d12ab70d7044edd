//! Who announces which virtual IP, and the adapters that make it so. Compatible with kube-vip (kube-vip spec, section
//! 0).
//!
//! Observe, decide, act: [`view`] makes small structs of Services and [`network`] of the node; `plan` says which VIPs
//! should be here, asking [`ownership`]; [`engine`] is the sans-IO machine that brings them up, keeps, defends and
//! withdraws them. At the edge: [`wire`] (the kernel), [`dhcp_driver`] (DHCP clients), [`record`] (what is written on
//! Services), and [`node`](mod@node), which runs the engine on all of them. [`run`] wires it up.

pub mod annotations;
pub mod claim;
pub mod class;
mod clients;
mod clock;
pub mod config;
pub mod detect;
pub mod dhcp_driver;
mod elections;
mod endpoints;
pub mod engine;
pub mod frames;
mod group;
mod handover;
mod keep;
mod listen;
mod membership;
pub mod metrics;
pub mod network;
pub mod node;
pub mod ownership;
mod pace;
mod plan;
mod reason;
pub mod record;
mod run;
mod screen;
pub mod security;
mod seniority;
mod serving;
pub mod status;
mod swap;
mod term {
    pub use contract::Term;
}
pub mod view;
pub mod wire;

pub use config::{Config, ConfigError, ElectionMode};
pub use handover::lease_state;
pub use plan::VipId;
pub use reason::Reason;
pub use run::{Error, leader_config, run};
