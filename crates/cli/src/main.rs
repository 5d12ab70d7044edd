//! Flags to configuration, and the wiring of both commands. No logic lives here.

mod ccm;
mod values;

/// Version, with the commit it was built from where that is known.
pub const VERSION: &str = env!("HCP_VERSION");

fn main() {}
