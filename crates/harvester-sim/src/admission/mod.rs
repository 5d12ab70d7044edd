//! What the host's webhooks refuse and change, as pure functions. Harvester spec 5

pub mod ip_pool;
pub mod load_balancer;
pub mod network;
pub mod review;
