//! The interface to the kernel: the one place where [`KernelOp`]s are performed.

mod netlink;
pub mod ruleset;

pub use netlink::NetlinkKernel;
pub(crate) use netlink::{obstacles, strict_filter};

use announcer_core::engine::{KernelDone, KernelOp};

/// Performs requests to the kernel, one after the other, and [`KernelOp::Protect`] beside the others. Requests are
/// idempotent: an item that does not exist counts as removed, and setting up twice equals setting up once.
pub trait Kernel: Send + Sync + 'static {
    /// Performs one request. The caller feeds the answer back into the engine.
    fn perform(&self, op: KernelOp) -> impl Future<Output = Option<KernelDone>> + Send;
}
