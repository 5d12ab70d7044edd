//! Everything that the cloud controller and the announcers write for each other in the API of the guest cluster.
//! Because it is defined in one place, a change affects every writer and every reader. No kube client, no I/O, no
//! clock.
//!
//! [`keys`]: annotations and labels on Services, LoadBalancers, Nodes and Leases. [`leases`]: names of Leases.
//! [`config_maps`]: names and keys of ConfigMaps.
//! [`OwnerRecord`] and [`Term`]: the node that announces a Service. [`LeaseFacts`]: the state of a DHCP lease.
//! [`Card`]: the report of a node about itself. [`joined`]: the order in which Services have joined an address.
//! [`names`]: what Kubernetes accepts as a name. [`spelling`]: the likely meaning of a mistyped word.

mod card;
pub mod config_maps;
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
pub use dhcp_lease::{LeaseFacts, LeaseFacts6, LeaseRecord};
pub use object::{ServiceKey, Uid};
pub use owner::OwnerRecord;
pub use term::Term;
pub use unicast::is_unicast;
