//! The cloud controller manager's command line.

pub mod controllers;
pub mod flags;
pub mod startup_error;
