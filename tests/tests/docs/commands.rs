//! Flags that the pages give to our commands are in the help of these commands.

use std::collections::BTreeSet;
use std::process::Command;

use e2e::documents::all as documents;
use e2e::product;

const PROGRAM: &str = "harvester-cloud-provider";
/// Where a pod runs it.
const IN_A_POD: &str = "-- harvester-cloud-provider ";
/// What has a help of its own: longer names before shorter ones, at last the cloud controller, which has no name.
const COMMANDS: [&str; 11] = [
    "announcer status",
    "announcer",
    "doctor",
    "generate-addon",
    "identity confirm",
    "identity rename",
    "identity show",
    "plan",
    "probe",
    "status",
    "",
];

/// The words of a help, flags among them: a flag that is there has a word of its own, and is no part of a longer one.
fn words_of_help(command: &str) -> BTreeSet<String> {
    let mut program = Command::new(product::binary().unwrap());
    let output = program.args(command.split_whitespace()).arg("--help").output().unwrap();
    assert!(output.status.success(), "{command:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.split(|c: char| !(c.is_alphanumeric() || c == '-')).map(str::to_owned).collect()
}

/// The words behind our program's name, in a line or between back quotes.
fn arguments(text: &str) -> Option<Vec<&str>> {
    let behind = text.strip_prefix(PROGRAM).filter(|rest| rest.starts_with(' '));
    let behind = behind.or_else(|| text.split_once(IN_A_POD).map(|(_, rest)| rest))?;
    // A note, another program, or a file. A name in angle brackets is none of these.
    let ends = [" #", " |", " > "].iter().filter_map(|mark| behind.find(mark)).min();
    Some(behind[..ends.unwrap_or(behind.len())].split_whitespace().collect())
}

#[test]
fn every_flag_of_our_commands_exists() {
    let commands = COMMANDS.map(|command| (command, words_of_help(command)));
    let (mut checked, mut used) = (0, BTreeSet::new());
    for document in documents() {
        let joined = document.text.replace("\\\n", " ");
        for words in joined.split(['`', '\n']).map(str::trim).filter_map(arguments) {
            let begins = |command: &str| {
                let of_command: Vec<&str> = command.split_whitespace().collect();
                words.starts_with(&of_command)
            };
            let (command, known) = commands.iter().find(|(command, _)| begins(command)).expect("the last one fits all");
            for flag in words.iter().filter(|word| word.starts_with("--")) {
                let name = flag.split_once('=').map_or(*flag, |(name, _)| name);
                let place = document.name();
                assert!(known.contains(name), "{place}: the help of `{PROGRAM} {command}` does not know {name}");
                used.insert(*command);
                checked += 1;
            }
        }
    }
    assert!(checked > 20, "{checked} flags");
    for command in ["generate-addon", "identity confirm", "plan"] {
        assert!(used.contains(command), "no page gives a flag to {command} any more: {used:?}");
    }
}
