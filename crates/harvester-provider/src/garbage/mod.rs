//! LoadBalancer objects of this cluster without a Service. They are always listed, and deleted only if the user asked
//! for that (decision 11).
//!
//! [`list`] decides what is garbage, [`sweep`] when it may be deleted; [`collector`] looks, reports and deletes.

pub mod collector;
pub mod list;
mod restore;
mod summary;
pub mod sweep;
