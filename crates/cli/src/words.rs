//! The first words that choose a command, and the answer to one that is none. A manifest begins with a flag; a word was typed by a person.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command};

/// As everywhere for a command line that cannot be read.
const WRONG_USAGE: u8 = 2;

/// Commands of the program.
pub const COMMANDS: [&str; 11] = [
    "announcer",
    "manager",
    "generate-addon",
    "identity",
    "plan",
    "status",
    "doctor",
    "completion",
    "man",
    "probe",
    "help",
];

/// What clap says to a word that is none of these, with the one that is most like it, and then all of them.
fn message(program: &'static str, known: &[&'static str], word: &str) -> String {
    let command = Command::new(program)
        .disable_help_subcommand(true)
        .subcommand_required(true)
        .subcommands(known.iter().map(|name| Command::new(*name)));
    let said = command.try_get_matches_from([program, word]).err().map(|error| error.render().to_string());
    let said = said.unwrap_or_default();
    let mut paragraphs = said.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty());
    let first = paragraphs.next().unwrap_or_default();
    let guess = paragraphs.find(|paragraph| paragraph.trim().starts_with("tip: "));
    let guess = guess.map(|guess| format!("\n\n{guess}")).unwrap_or_default();
    format!("{first}{guess}\n\nCommands: {}\nSee: {program} --help", known.join(", "))
}

/// Of these flags (without their dashes) the one that is most like `flag`, as clap guesses.
pub fn like(flag: &str, known: impl Iterator<Item = &'static str>) -> Option<String> {
    let command = Command::new("flags").disable_help_flag(true).args(known.map(|name| Arg::new(name).long(name)));
    let error = command.try_get_matches_from(["flags", flag]).err()?;
    match error.get(ContextKind::SuggestedArg)? {
        ContextValue::String(guess) => Some(guess.split_whitespace().next()?.to_owned()),
        _ => None,
    }
}

/// Says it.
pub fn refuse(program: &'static str, known: &[&'static str], word: &str) -> ExitCode {
    eprintln!("{}", message(program, known, word));
    ExitCode::from(WRONG_USAGE)
}

/// A flag begins with a dash; so does nothing that is meant as a word.
pub fn is_word(argument: &str) -> bool {
    argument.starts_with(|c: char| c.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_command_is_answered_with_what_was_meant() {
        for (word, meant) in [("anouncer", "announcer"), ("generate-adon", "generate-addon"), ("prob", "probe")] {
            let said = message("harvester-cloud-provider", &COMMANDS, word);
            assert!(said.contains(&format!("'{word}'")) && said.contains(&format!("'{meant}'")), "{said}");
        }
        let said = message("harvester-cloud-provider announcer", &["status"], "staus");
        assert!(said.contains("'status'") && said.ends_with("harvester-cloud-provider announcer --help"), "{said}");
        assert!(message("x", &COMMANDS, "zebra").contains("Commands: announcer, "));
    }

    #[test]
    fn flags_are_no_words() {
        for flag in ["--cluster-name=x", "-v", "", "--"] {
            assert!(!is_word(flag), "{flag:?}");
        }
        assert!(is_word("anouncer"));
    }
}
