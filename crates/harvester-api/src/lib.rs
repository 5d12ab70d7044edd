//! What the Harvester cloud provider reads and writes on the Harvester side: objects, keys, names and the cloud-config
//! file.
//!
//! Types and pure rules only: nothing here does I/O, knows a clock or needs a runtime. Objects that we only read are
//! trimmed to the fields somebody decides on; the one object that we write, [`load_balancer::LoadBalancer`], keeps
//! fields it does not know.

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
