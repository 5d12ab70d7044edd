//! `generate-addon`: creates credentials of a guest cluster for the Harvester API, and prints them in the forms that a
//! cluster's setup needs. An administrator of Harvester runs it (CCM spec 6.4 describes the shell script that it
//! replaces; W-49).
//!
//! Observe, decide, act: [`view`] reads the present state, [`plan`](mod@plan) decides what to do (pure), [`apply`] does
//! it. [`endpoint`] checks the Harvester API as a guest would, [`usage`] detects which tokens are in use, and
//! [`output`] formats the result (pure). [`run`] is the whole command.

pub mod apply;
pub mod endpoint;
pub mod output;
pub mod plan;
mod remote;
pub mod request;
mod run;
pub mod step;
pub mod usage;
pub mod view;

pub use request::{Issuer, Request, RequestError, Task};
pub use run::{Error, Outcome, run};
pub use step::Undo;
