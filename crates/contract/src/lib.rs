//! What cloud controller and announcer, and one announcer and the next, write for one another in the guest cluster's
//! API, in one place: who changes a word here changes it for every writer and every reader. No kube client, no I/O, no
//! clock.
//!
//! [`keys`]: annotations on Services, LoadBalancers, Nodes and Leases. [`leases`]: names of Leases. [`OwnerRecord`] and
//! [`Term`]: who announces a Service. [`LeaseFacts`]: what goes with a DHCP lease. [`Card`]: what a node says about
//! itself. [`joined`]: in which turn a Service has joined an address. [`names`]: what Kubernetes accepts as a name.
//! [`spelling`]: what a mistyped word was meant to be.

mod card;
mod dhcp_lease;
pub mod joined;
pub mod keys;
pub mod leases;
pub mod names;
mod object;
mod owner;
pub mod spelling;
mod term;
mod unicast;

pub use card::{Card, CardLink, Probed, Silence};
pub use dhcp_lease::{LeaseFacts, LeaseFacts6};
pub use object::{ServiceKey, Uid};
pub use owner::OwnerRecord;
pub use term::Term;
pub use unicast::is_unicast;
