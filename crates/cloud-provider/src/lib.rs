//! A cloud controller manager framework: provider traits, and the service, node, node-lifecycle and node-loss
//! controllers.
//!
//! This crate sends no request to a cloud; providers plug in through traits. Some reasons and messages, and two
//! ConfigMaps that `node_loss` reads, bear Harvester's name.
//!
//! Each controller has three steps: observe (a view made from a watch cache), decide (a pure function) and act (one
//! place that sends requests, reports, and schedules the key again).

pub mod at_once;
pub mod cache;
pub mod controllers;
pub mod damping;
mod lifecycle;
pub mod managed_fields;
pub mod node;
pub mod node_loss;
pub mod observe;
mod outlook;
mod own_write;
pub mod preview;
pub mod provider;
pub mod service;
pub mod start;
mod tags;
pub mod view;
mod worker;

#[cfg(test)]
mod test_support;
