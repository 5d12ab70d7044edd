//! `status`: every Service that wants a load balancer, the pools, the nodes and their hosts, and an upgrade of these
//! hosts. Pure.

mod mode;
mod rows;
mod text;

pub use rows::{NodeRow, PoolRow, Report, Scope, ServiceRow, UpgradeRow, report};

#[cfg(test)]
mod tests;
