//! The common parts of long-running commands: leader election, server for health and metrics, work queue, Events,
//! shutdown, tracing.
//!
//! Nothing here depends on the use. Each module has a pure core (`step`, `observe`, `decide`) and one thin part that
//! sends the requests.

pub mod cache;
pub mod client;
pub mod der;
pub mod error;
pub mod events;
pub mod freshness;
pub mod health;
pub mod host;
pub mod http;
pub mod leader;
pub mod logging;
pub mod metrics;
mod product;
pub mod reflect;
pub mod refusal;
pub mod shutdown;
pub mod tasks;
pub mod work_queue;

pub use product::Product;

#[cfg(any(test, feature = "scenario"))]
pub mod log_lines;
#[cfg(any(test, feature = "scenario"))]
pub mod scenario;
