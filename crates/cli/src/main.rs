//! Flags to configuration, and the wiring of the commands. No logic lives here.

use std::process::ExitCode;

mod announcer;
mod ccm;
mod completion;
mod generate_addon;
mod probe;
#[cfg(test)]
mod reference;
mod values;

/// Version, with the commit it was built from where that is known.
pub const VERSION: &str = env!("HCP_VERSION");

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("announcer" | "manager") => announcer::main(&arguments[1..]),
        Some("probe") => probe::main(&arguments[2..]),
        Some("completion" | "man") => completion::main(&arguments),
        Some("generate-addon") => generate_addon::main(&arguments[1..]),
        _ => ccm::main(&arguments),
    }
}
