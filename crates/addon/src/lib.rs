//! `generate-addon`: gives a guest cluster credentials for the Harvester API and prints them in the forms that a
//! cluster is set up with. Run by an administrator of Harvester. ccm.md 6.4 (the shell script whose place it takes),
//! W-49
//!
//! Observe, decide, act: [`view`] reads what is there, [`plan`](mod@plan) says what to do (pure), [`apply`] does it;
//! [`endpoint`] looks at the Harvester API as a guest would, [`usage`] which token asks, and [`output`] prints
//! (pure). [`run`] is the whole command.

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

pub use request::{Request, RequestError, Road, Task};
pub use run::{Error, Outcome, run};
pub use step::Undo;
