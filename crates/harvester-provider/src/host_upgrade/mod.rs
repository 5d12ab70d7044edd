//! Upgrades of Harvester's hosts under a running guest cluster. They are detected by what the host's API reports and by
//! what the cluster's own machines do. The upgrade is shown on Nodes, in a ConfigMap and by metrics. The other
//! controllers ask [`Suspensions`] whether it suspends their actions.
//!
//! `facts` holds the input, `decide` the decision, `status` and `show` what is written, `controller` the loop around
//! them. `cooperation` is a loop of its own: if it is switched on, it empties Nodes before their machines go off. Both
//! send their requests by `requests`. Nothing is ever written to the host.

mod controller;
mod cooperation;
pub mod decide;
pub mod facts;
mod freeze;
mod machine_context;
mod node_history;
mod requests;
mod show;
mod shown;
mod signals;
mod stage;
pub mod status;
pub mod suspensions;
mod undone;
mod window;

pub use controller::{Controller, Sources};
pub use cooperation::{Cooperation, Sources as CooperationSources};
pub use freeze::{frozen_addresses, frozen_label};
pub use signals::{PlanCaches, Signals};
pub use suspensions::Suspensions;
