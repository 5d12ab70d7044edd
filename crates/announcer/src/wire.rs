//! The seam to the kernel: one place where [`WireOp`]s are performed.

mod netlink;
pub mod ruleset;

pub use netlink::NetlinkWire;
pub(crate) use netlink::{obstacles, strict_filter};

use crate::engine::{WireDone, WireOp};

/// Performs requests to the kernel, one after the other, and [`WireOp::Protect`] beside the others. What is not there
/// any more counts as removed; setting up twice is setting up once.
pub trait Wire: Send + Sync + 'static {
    /// Performs one request; the answer is fed back into the engine.
    fn perform(&self, op: WireOp) -> impl Future<Output = Option<WireDone>> + Send;
}
