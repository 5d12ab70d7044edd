//! `completion` and `man`: the completion scripts and manual pages for a package, made from the definitions that parse
//! the flags.
//!
//! The completion script calls the program itself with the variable [`ASKED`] set. So it knows every word of every
//! command, and the names of Services and namespaces in the cluster.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory, Parser, Subcommand};
use clap_complete::env::{CompleteEnv, Shells};

use crate::{announcer, ccm, entry, generate_addon, identity, probe, status_and_doctor, stdout, version_command};

/// The variable by which a completion script requests candidates.
const ASKED: &str = "HCP_COMPLETE";
const PROGRAM: &str = "harvester-cloud-provider";

/// The two commands.
#[derive(Debug, Parser)]
#[command(name = "harvester-cloud-provider", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: CompletionCommand,
}

#[derive(Debug, Subcommand)]
enum CompletionCommand {
    /// Prints a completion script
    #[command(after_help = "\
Examples:
  source <(harvester-cloud-provider completion bash)        in ~/.bashrc
  source <(harvester-cloud-provider completion zsh)         in ~/.zshrc, behind compinit
  harvester-cloud-provider completion fish | source         in ~/.config/fish/config.fish")]
    Completion {
        /// For which shell
        #[arg(value_parser = ["bash", "zsh", "fish", "elvish", "powershell"])]
        shell: String,
    },
    /// Writes manual pages (section 1), one for each command
    #[command(after_help = "\
Examples:
  mkdir -p ~/.local/share/man/man1 && harvester-cloud-provider man ~/.local/share/man/man1
  man harvester-cloud-provider-status")]
    Man {
        /// Into this directory, which has to exist
        directory: PathBuf,
    },
}

/// If a completion script has called, prints the candidates and exits.
pub fn answer() {
    CompleteEnv::with_factory(tree).var(ASKED).complete();
}

/// Runs either command; `arguments` includes the program's name.
pub fn main(arguments: &[String]) -> ExitCode {
    let arguments: Arguments = match entry::parsed(arguments) {
        Ok(arguments) => arguments,
        Err(status) => return status,
    };
    let result = match arguments.command {
        CompletionCommand::Completion { shell } => completion(&shell),
        CompletionCommand::Man { directory } => man(&directory),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// All commands in one tree. The program itself selects a command by the first word before clap parses flags. Otherwise
/// the cloud controller manager, which has no subcommand, could not reject stray words as the Go provider does.
fn tree() -> Command {
    let words = Arguments::command();
    let own = words.get_subcommands().cloned().collect::<Vec<_>>();
    ccm::flags::command()
        .disable_help_subcommand(true)
        .bin_name(PROGRAM)
        .subcommand(announcer::command())
        .subcommand(generate_addon::Arguments::command().name("generate-addon"))
        .subcommand(ccm::plan::command().name("plan"))
        .subcommand(identity::Arguments::command().name("identity"))
        .subcommand(status_and_doctor::StatusArguments::command().name("status"))
        .subcommand(status_and_doctor::DoctorArguments::command().name("doctor"))
        .subcommand(probe::Arguments::command().name("probe"))
        .subcommand(version_command::Arguments::command().name("version"))
        .subcommands(own)
}

/// Both commands, for the reference.
#[cfg(test)]
pub fn commands() -> Command {
    Arguments::command()
}

fn completion(shell: &str) -> Result<()> {
    stdout::print(&script(shell)?)
}

fn script(shell: &str) -> Result<String> {
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let shell = shells.completer(shell).with_context(|| format!("no completion for {shell}"))?;
    shell.write_registration(ASKED, "harvester_cloud_provider", PROGRAM, PROGRAM, &mut script)?;
    String::from_utf8(script).context("the script is not UTF-8")
}

fn man(directory: &std::path::Path) -> Result<()> {
    clap_mangen::generate_to(tree(), directory)
        .with_context(|| format!("failed to write manual pages to {}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        man(directory.path()).unwrap();
        for command in [
            "announcer",
            "announcer-status",
            "generate-addon",
            "identity",
            "plan",
            "status",
            "doctor",
            "completion",
            "man",
        ] {
            let page = directory.path().join(format!("harvester-cloud-provider-{command}.1"));
            assert!(page.exists(), "{}", page.display());
        }
    }

    #[test]
    fn the_help_of_every_command_has_an_example() {
        fn look(command: &Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:\n  "), "{path}: {help}");
            command.get_subcommands().for_each(|word| look(word, &path));
        }
        look(&tree(), "");
    }

    /// What the shells ask for; they themselves are tried in the tests of the whole product.
    #[test]
    fn what_could_follow_is_known_behind_every_word() {
        let after = |words: &[&str]| -> Vec<String> {
            let words = std::iter::once(&PROGRAM).chain(words).map(std::ffi::OsString::from).collect::<Vec<_>>();
            let last = words.len() - 1;
            let found = clap_complete::engine::complete(&mut tree(), words, last, None).unwrap();
            found.into_iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect()
        };
        for (words, expected) in [
            (&["sta"][..], "status"),
            (&["status", "--out"], "--output"),
            (&["status", "-o", "wi"], "wide"),
            (&["doctor", "-o", "j"], "json"),
            (&["announcer", "st"], "status"),
            (&["identity", "con"], "confirm"),
            (&["generate-addon", "--distri"], "--distribution"),
            (&["completion", "z"], "zsh"),
            (&["--cloud-c"], "--cloud-config"),
        ] {
            assert!(after(words).iter().any(|word| word.contains(expected)), "{words:?}: {:?}", after(words));
        }
        for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
            assert!(script(shell).unwrap().contains(ASKED), "{shell}");
        }
    }
}
