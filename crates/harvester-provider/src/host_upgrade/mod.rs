//! Upgrades of Harvester's hosts under a running guest cluster: seen by what the host tells and by what the cluster's
//! own machines do, shown on Nodes, in a ConfigMap and by metrics, and obeyed by the other controllers, who ask
//! [`Caution`].
//!
//! `facts` is what is known, `decide` what follows, `status` and `show` what is written, `controller` the loop around
//! them. `cooperation` is a loop of its own: where it is asked for, it empties Nodes before their machines go off.
//! Nothing is ever written on the host.

pub mod caution;
mod controller;
mod cooperation;
mod course;
pub mod decide;
pub mod facts;
mod freeze;
mod look;
mod show;
mod shown;
mod signals;
mod stage;
pub mod status;

pub use caution::Caution;
pub use controller::{Controller, Sources};
pub use cooperation::{Cooperation, Sources as CooperationSources};
pub use freeze::{frozen_addresses, frozen_label};
pub use signals::{PlanCaches, Signals};
