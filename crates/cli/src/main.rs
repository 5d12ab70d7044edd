//! The program: selects a command and assembles it. It contains no further logic.

use std::process::ExitCode;

mod announcer;
mod ccm;
mod cluster_names;
mod completion;
mod entry;
mod generate_addon;
mod identity;
mod output;
mod private_file;
mod probe;
#[cfg(test)]
mod reference;
mod status_and_doctor;
mod stdout;
mod values;
#[cfg(test)]
mod version;
mod version_command;
mod words;

/// Version, with the commit that it was built from, if known.
pub const VERSION: &str = env!("HCP_VERSION");

/// The identity of the program in requests and metrics.
const PRODUCT: runtime::Product =
    runtime::Product { name: "harvester-cloud-provider", metrics_prefix: "hcp", version: VERSION };

fn main() -> ExitCode {
    completion::answer();
    run(&std::env::args().collect::<Vec<_>>())
}

/// Selects the command; `arguments` includes the program's name.
fn run(arguments: &[String]) -> ExitCode {
    match arguments.get(1).map(String::as_str) {
        Some("announcer" | "manager") => announcer::main(&arguments[1..]),
        Some("identity") => identity::main(&arguments[1..]),
        Some("plan") => ccm::plan::main(&arguments[1..]),
        Some("probe") => probe::main(&arguments[1..]),
        Some("completion" | "man") => completion::main(arguments),
        Some("generate-addon") => generate_addon::main(&arguments[1..]),
        Some("status" | "doctor") => status_and_doctor::main(&arguments[1..]),
        Some("version") => version_command::main(&arguments[1..]),
        Some("help") => run(&words::help_of(arguments)),
        // A user at a terminal gets the help. In a pod this is a failed start, with the reason in the log.
        None if std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() => {
            ccm::main(&[arguments[0].clone(), "--help".to_owned()])
        }
        Some(word) if words::is_word(word) => words::refuse("harvester-cloud-provider", &words::commands(), word),
        _ => ccm::main(arguments),
    }
}
