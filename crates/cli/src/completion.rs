//! `completion` and `man`: what a package of this program carries, made from the same definitions that parse the flags.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::{announcer, ccm, generate_addon, status_and_doctor, stdout};

/// The two commands.
#[derive(Debug, Parser)]
#[command(name = "harvester-cloud-provider", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Words,
}

#[derive(Debug, Subcommand)]
enum Words {
    /// Prints a completion script, for example: source <(harvester-cloud-provider completion bash)
    Completion {
        /// For which shell.
        shell: Shell,
    },
    /// Writes manual pages (section 1), one for each command
    Man {
        /// Into this directory, which has to exist.
        directory: PathBuf,
    },
}

/// Runs either command; `arguments` includes the program's name.
pub fn main(arguments: &[String]) -> ExitCode {
    let words = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments.command,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let result = match words {
        Words::Completion { shell } => completion(shell),
        Words::Man { directory } => man(&directory),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// All commands in one tree. The program itself chooses by the first word before any flag is parsed, because the cloud controller
/// manager, which has no subcommand, has to refuse stray words as the Go provider does.
fn tree() -> Command {
    let words = Arguments::command();
    let own = words.get_subcommands().cloned().collect::<Vec<_>>();
    ccm::flags::command()
        .subcommand(announcer::command())
        .subcommand(generate_addon::Arguments::command().name("generate-addon"))
        .subcommand(ccm::plan::command().name("plan"))
        .subcommand(status_and_doctor::StatusArguments::command().name("status"))
        .subcommand(status_and_doctor::DoctorArguments::command().name("doctor"))
        .subcommands(own)
}

fn completion(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut tree(), "harvester-cloud-provider", &mut script);
    stdout::print(&String::from_utf8(script).context("the script is not UTF-8")?)
}

fn man(directory: &std::path::Path) -> Result<()> {
    clap_mangen::generate_to(tree(), directory)
        .with_context(|| format!("failed to write manual pages to {}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_completed_and_has_a_page() {
        let mut script = Vec::new();
        clap_complete::generate(Shell::Bash, &mut tree(), "harvester-cloud-provider", &mut script);
        let script = String::from_utf8(script).unwrap();
        let directory = tempfile::tempdir().unwrap();
        man(directory.path()).unwrap();
        for command in ["announcer", "generate-addon", "plan", "status", "doctor", "completion", "man"] {
            assert!(script.contains(&format!("harvester__cloud__provider,{command}")), "{command}");
            let page = directory.path().join(format!("harvester-cloud-provider-{command}.1"));
            assert!(page.exists(), "{}", page.display());
        }
        assert!(script.contains("--cloud-config") && script.contains("--distribution"));
    }
}
