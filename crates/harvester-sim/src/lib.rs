//! Stand-in for the Harvester side, for development and the demo: pools and their books, the LoadBalancer controller,
//! the webhooks, and virtual machines, on a real API server. It does what the Harvester
//! spec says, at the pace of the host pace spec.
//!
//! It refuses what Harvester refuses and answers in Harvester's words. Nothing of it is part of the shipped product.

pub mod admission;
pub mod allocator;
pub mod apply;
pub mod credentials;
pub mod faults;
pub mod guest;
pub mod host;
pub mod install;
pub mod ranges;
pub mod replay;
pub mod selector;
pub mod serve;
pub mod sim;
pub mod version;
