//! The interface to the kernel: the one place where [`WireOp`]s are performed.

mod netlink;
pub mod ruleset;

pub use netlink::NetlinkWire;
pub(crate) use netlink::{obstacles, strict_filter};

use crate::engine::{WireDone, WireOp};

/// Performs requests to the kernel, one after the other, and [`WireOp::Protect`] beside the others. Requests are
/// idempotent: an item that does not exist counts as removed, and setting up twice equals setting up once.
pub trait Wire: Send + Sync + 'static {
    /// Performs one request. The caller feeds the answer back into the engine.
    fn perform(&self, op: WireOp) -> impl Future<Output = Option<WireDone>> + Send;
}
