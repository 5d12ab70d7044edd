//! `version`: prints the version.

use std::process::ExitCode;

use clap::Parser;

use crate::stdout::say;
use crate::{VERSION, entry};

const COMMAND: &str = "harvester-cloud-provider version";

/// Prints the version
#[derive(Debug, Parser)]
#[command(name = COMMAND, bin_name = COMMAND, after_help = "\
Examples:
  harvester-cloud-provider version
  harvester-cloud-provider --version            the number alone
  harvester-cloud-provider --version=raw        with the processor's architecture")]
pub struct Arguments {}

/// Runs the command; `arguments` begin with its name.
pub fn main(arguments: &[String]) -> ExitCode {
    match entry::parsed::<Arguments>(arguments) {
        Ok(_) => say(&format!("harvester-cloud-provider {VERSION}")),
        Err(status) => status,
    }
}
