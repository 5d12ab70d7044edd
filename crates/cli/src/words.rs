//! The words that select a command, and the answer to an unknown one. The arguments of a manifest begin with a flag, so
//! an unknown word was typed by a user.

use std::process::ExitCode;

use contract::spelling::nearest;

use crate::entry::WRONG_USAGE;

/// The commands of the program with their descriptions.
pub const COMMANDS: [(&str, &str); 13] = [
    ("status", "Services of type LoadBalancer with address, node and reason; pools, nodes, hosts"),
    ("doctor", "what is wrong, why it matters, and the command that corrects it"),
    ("generate-addon", "credentials of a guest cluster: make, check, rotate, revoke"),
    ("identity", "which cluster this is on Harvester: show, confirm, rename"),
    ("plan", "what the cloud controller would write over this cluster; it writes nothing"),
    ("announcer", "the announcer of addresses, as the DaemonSet runs it"),
    ("announcer status", "which node announces which address, with Leases"),
    ("manager", "the announcer, as kube-vip's manifests call it"),
    ("probe", "asks URLs, Leases and DaemonSets until all are well; helm test runs it"),
    ("completion", "completion for bash, zsh, fish, elvish or powershell"),
    ("man", "writes manual pages"),
    ("version", "the version"),
    ("help", "this text; help COMMAND: that of the command"),
];

/// The first words of the commands.
pub fn commands() -> Vec<&'static str> {
    COMMANDS.iter().map(|(name, _)| *name).filter(|name| !name.contains(' ')).collect()
}

/// The commands as listed by `--help`.
pub fn overview() -> String {
    COMMANDS.map(|(name, about)| format!("  {name:<18}{about}")).join("\n") + "\n"
}

/// The command line that `help WORDS` means: `WORDS --help`.
pub fn help_of(arguments: &[String]) -> Vec<String> {
    let program = arguments.iter().take(1);
    let words = arguments.iter().skip(1).skip_while(|word| *word == "help").filter(|word| is_word(word));
    program.chain(words).cloned().chain(["--help".to_owned()]).collect()
}

/// The message for an unknown word: the most similar command, and the list of all.
fn message(program: &'static str, known: &[&'static str], word: &str) -> String {
    let guess = nearest(word, known.iter().copied());
    let guess = guess.map(|guess| format!("\n\n  tip: a similar command exists: '{guess}'")).unwrap_or_default();
    format!("error: '{word}' is no command{guess}\n\nCommands: {}\nSee: {program} --help", known.join(", "))
}

/// The most similar of these flags (without their dashes).
pub fn like(flag: &str, known: impl Iterator<Item = &'static str>) -> Option<String> {
    let name = flag.trim_start_matches('-').split('=').next().unwrap_or_default();
    nearest(name, known).map(|guess| format!("--{guess}"))
}

/// Prints the message for an unknown word; returns the exit status.
pub fn refuse(program: &'static str, known: &[&'static str], word: &str) -> ExitCode {
    eprintln!("{}", message(program, known, word));
    ExitCode::from(WRONG_USAGE)
}

/// Whether the argument is a word, and not a flag.
pub fn is_word(argument: &str) -> bool {
    argument.starts_with(|c: char| c.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_command_is_answered_with_what_was_meant() {
        for (word, meant) in [
            ("anouncer", "announcer"),
            ("generate-adon", "generate-addon"),
            ("prob", "probe"),
            ("sttaus", "status"),
            ("docotr", "doctor"),
        ] {
            let said = message("harvester-cloud-provider", &commands(), word);
            assert!(said.contains(&format!("'{word}'")) && said.contains(&format!("'{meant}'")), "{said}");
        }
        let said = message("harvester-cloud-provider announcer", &["status"], "staus");
        assert!(said.contains("'status'") && said.ends_with("harvester-cloud-provider announcer --help"), "{said}");
        assert!(message("x", &commands(), "zebra").contains("Commands: status, "));
    }

    #[test]
    fn help_with_words_is_that_of_the_command() {
        for (line, expected) in [
            ("hcp help", "hcp --help"),
            ("hcp help help", "hcp --help"),
            ("hcp help --help", "hcp --help"),
            ("hcp help status", "hcp status --help"),
            ("hcp help announcer status -o json", "hcp announcer status json --help"),
            ("hcp help nope", "hcp nope --help"),
        ] {
            let given: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(help_of(&given).join(" "), expected, "{line}");
        }
    }

    #[test]
    fn flags_are_no_words() {
        for flag in ["--cluster-name=x", "-v", "", "--"] {
            assert!(!is_word(flag), "{flag:?}");
        }
        assert!(is_word("anouncer"));
    }
}
