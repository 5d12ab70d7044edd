//! LoadBalancer objects of this cluster without a Service: listed always, deleted only where that was asked for
//! (decision 11).
//!
//! [`list`] tells what they are, [`sweep`] when one may be deleted, [`collector`] looks, tells and deletes.

pub mod collector;
pub mod list;
pub mod sweep;
