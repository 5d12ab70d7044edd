//! Objects, keys, names and the cloud-config file that the Harvester cloud provider reads and writes on the Harvester
//! side.
//!
//! Only types and pure rules: no I/O, no clock, no runtime. Objects that are only read are trimmed to the fields that
//! decisions use. The one object that is written, [`load_balancer::LoadBalancer`], keeps unknown fields.

pub mod cloud_config;
pub mod features;
pub mod ip_pool;
pub mod keys;
mod lenient;
pub mod load_balancer;
pub mod names;
pub mod node_ip;
pub mod quorum;
mod resource;
pub mod upgrade;
pub mod virtual_machine;
pub mod virtual_machine_instance;
