//! Renders `docs/reference.md` from the definitions that the program itself uses, and fails while the file says
//! something else. `HCP_UPDATE=1 cargo test --workspace --bin harvester-cloud-provider reference` writes it anew.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use announcer_core::config::{VARIABLES, Variable};
use clap::{Arg, Command, CommandFactory};
use cloud_provider::provider::{HARVESTER_SILENT, NOT_READ_YET};
use harvester_provider::Source;

use crate::{ccm, completion, generate_addon, identity, output, probe, status_and_doctor};

const CONTRACT: &str = include_str!("../../contract/src/keys.rs");
const HARVESTER: &str = include_str!("../../harvester-api/src/keys.rs");
const WAITS: &str = include_str!("../../harvester-provider/src/load_balancers/wait_reason.rs");

const INTRODUCTION: &str = "\
# Reference

This page lists every flag, variable, reason and annotation. It is generated from the code
(`HCP_UPDATE=1 cargo test --workspace --bin harvester-cloud-provider reference`); do not edit it.
The chart's values are in its `values.yaml`.
";

fn render() -> String {
    let mut text = String::from(INTRODUCTION);
    text.push_str("\n## Flags of the cloud controller manager\n");
    flags(&mut text, &ccm::flags::command());
    text.push_str("\n## Flags of `plan`\n\nThose of the cloud controller manager, and:\n");
    flags(&mut text, &Command::new("plan").arg(output::flag()));
    sources(&mut text);
    text.push_str("\n## Flags of `generate-addon`\n");
    flags(&mut text, &generate_addon::Arguments::command());
    text.push_str("\n## Flags of `status`\n");
    flags(&mut text, &status_and_doctor::StatusArguments::command());
    text.push_str("\n## Flags of `doctor`\n");
    flags(&mut text, &status_and_doctor::DoctorArguments::command());
    text.push_str("\n## Words of `identity`\n");
    words(&mut text, &identity::Arguments::command());
    text.push_str("\n## Flags of `probe`\n");
    flags(&mut text, &probe::Arguments::command());
    text.push_str("\n## Words of `completion` and `man`\n");
    words(&mut text, &completion::commands());
    text.push_str("\n## Flags of `announcer status`\n\nVariables and flags of the announcer, and:\n");
    let announcer = crate::announcer::command();
    flags(&mut text, announcer.find_subcommand("status").expect("the announcer has this command"));
    variables(&mut text);
    reasons(&mut text);
    waits(&mut text);
    text.push_str("\n## Annotations, labels, finalizers and taints\n");
    keys(&mut text, CONTRACT);
    keys(&mut text, HARVESTER);
    text
}

fn flags(text: &mut String, command: &Command) {
    let mut headings: Vec<&str> = Vec::new();
    for arg in command.get_arguments() {
        let heading = arg.get_help_heading().unwrap_or_default();
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    for heading in headings {
        if !heading.is_empty() {
            write!(text, "\n### {heading}\n").expect("a String takes everything");
        }
        text.push_str("\n| flag | default | meaning |\n| --- | --- | --- |\n");
        for arg in command.get_arguments().filter(|arg| arg.get_help_heading().unwrap_or_default() == heading) {
            let default: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
            let meaning = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let default = if default.concat().is_empty() { String::new() } else { format!("`{}`", default.join(",")) };
            let meaning = cell(&format!("{meaning}{}", accepted(arg, &meaning)));
            writeln!(text, "| {} | {default} | {meaning} |", name(arg)).expect("a String takes everything");
        }
    }
}

/// The values that a flag accepts, where its help does not name all of them.
fn accepted(arg: &Arg, meaning: &str) -> String {
    let values: Vec<_> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    let takes_one = arg.get_action().takes_values() && !values.is_empty();
    if !takes_one || values.iter().all(|value| meaning.contains(value.as_str())) {
        return String::new();
    }
    format!("; accepted: `{}`", values.join("`, `"))
}

/// Each word of a command, with its flags.
fn words(text: &mut String, command: &Command) {
    let name = command.get_name().strip_prefix("harvester-cloud-provider").unwrap_or(command.get_name()).trim();
    for word in command.get_subcommands() {
        let about = word.get_about().map(ToString::to_string).unwrap_or_default();
        let word_in_full = format!("{name} {}", word.get_name());
        write!(text, "\n### `{}`\n\n{about}.\n", word_in_full.trim_start()).expect("a String takes everything");
        flags(text, word);
    }
}

/// Where `plan` has the name of the cluster from.
fn sources(text: &mut String) {
    text.push_str("\nValues of `clusterNameFrom` in its JSON:\n\n| value | the name is |\n| --- | --- |\n");
    for source in Source::ALL {
        writeln!(text, "| `{}` | {} |", source.word(), source.words()).expect("a String takes everything");
    }
}

fn variables(text: &mut String) {
    text.push_str(
        "\n## Variables of the announcer\n\nkube-vip's names. In the chart they are `kube-vip.env`; the \
         environment wins over flags.\n\n| variable | flag | default | meaning |\n| --- | --- | --- | --- |\n",
    );
    let code = |value: &str| if value.is_empty() { String::new() } else { format!("`{value}`") };
    let flag = |variable: &Variable| variable.flag.map(|flag| format!("`--{flag}`"));
    for variable in VARIABLES.iter().filter(|variable| !variable.has_no_effect()) {
        let flag = flag(variable).unwrap_or_default();
        let (default, meaning) = (code(variable.default), cell(variable.meaning));
        writeln!(text, "| `{}` | {flag} | {default} | {meaning} |", variable.name).expect("a String takes everything");
    }
    let idle = VARIABLES.iter().filter(|variable| variable.has_no_effect()).map(|variable| {
        let flag = flag(variable).map(|flag| format!(" ({flag})")).unwrap_or_default();
        format!("`{}`{flag}", variable.name)
    });
    let idle = idle.collect::<Vec<_>>().join(", ");
    write!(text, "\nAccepted, without effect: {idle}.\n").expect("a String takes everything");
}

/// What the words of the column `kind` mean.
const KINDS: &str = "\
`Normal` and `Warning` are Events. `condition` is the status of `LoadBalancerReady` with this reason; a Service that \
is served has the same reason in `LoadBalancerWarning`; `warning` is one of that condition alone. `condition \
joined-address` is `cloudprovider.harvesterhci.io/joined-address`, a condition of its own. `maintenance` is the \
status of the Node's condition `HarvesterHostMaintenance` with this reason. `phase`: no object shows it, but [a \
metric](#what-services-wait-for) and the command `plan`. `plan`: only that command. *The record* is ConfigMap \
`kube-system/harvester-cloud-provider`; a `reason of SafeMode` is the first word of its key `safe-mode`.";

fn reasons(text: &mut String) {
    write!(
        text,
        "\n## Reasons of Events and conditions\n\n{KINDS}\n\n| reason | on | kind | what has happened | what to do \
         |\n| --- | --- | --- | --- | --- |\n"
    )
    .expect("a String takes everything");
    for diagnose::reasons::Reason { word, on, kind, means, remedy } in diagnose::reasons::REASONS {
        writeln!(text, "| `{word}` | {on} | {kind} | {} | {} |", cell(means), cell(remedy))
            .expect("a String takes everything");
    }
}

/// Values of the metric's label, each with the reason of the table above whose meaning it has.
fn waits(text: &mut String) {
    text.push_str(
        "\n## What Services wait for\n\nThe metric `harvester_loadbalancer_waiting` counts Services by its label \
         `reason`. Of a Service that counts as `user`, the condition often has another reason of the table above.\n\n| \
         value | reason above | what the Services wait for | what to do |\n| --- | --- | --- | --- |\n",
    );
    for (label, word) in labels(WAITS) {
        let known = diagnose::reasons::find(word).expect("each wait has a reason in the list");
        let (means, remedy) = (cell(known.means), cell(known.remedy));
        writeln!(text, "| `{label}` | `{word}` | {means} | {remedy} |").expect("a String takes everything");
    }
}

/// Label and reason of each wait, from the source of its two functions.
fn labels(source: &str) -> Vec<(&str, &str)> {
    let arms = |function: &str| {
        let body = source.split(function).nth(1).and_then(|rest| rest.split("\n    }\n").next());
        let lines = body.expect("the function is there").lines();
        let arms = lines.filter_map(|line| line.trim().strip_prefix("Self::")?.strip_suffix(',')?.split_once(" => "));
        arms.collect::<Vec<_>>()
    };
    let words: BTreeMap<&str, &str> = arms("pub fn word(").into_iter().collect();
    let word = |wait: &str| match words[wait] {
        "NOT_READ_YET" => NOT_READ_YET,
        "HARVESTER_SILENT" => HARVESTER_SILENT,
        quoted => quoted.trim_matches('"'),
    };
    arms("pub fn label(").into_iter().map(|(wait, label)| (label.trim_matches('"'), word(wait))).collect()
}

fn name(arg: &Arg) -> String {
    match (arg.get_long(), arg.get_short()) {
        (Some(long), Some(short)) if long.len() > 1 => format!("`--{long}`, `-{short}`"),
        (Some(long), _) => format!("`--{long}`"),
        (None, Some(short)) => format!("`-{short}`"),
        (None, None) => format!("`<{}>`", arg.get_id()),
    }
}

/// Doc comments and constants of a source, module by module.
fn keys(text: &mut String, source: &str) {
    let mut comment = String::new();
    for line in source.lines().map(str::trim) {
        if let Some(words) = line.strip_prefix("///") {
            comment.push_str(words);
        } else if line.starts_with("pub mod ") {
            write!(text, "\n{}\n\n| key | meaning |\n| --- | --- |\n", comment.trim())
                .expect("a String takes everything");
            comment.clear();
        } else if let Some((_, value)) = line.strip_prefix("pub const ").and_then(|rest| rest.split_once("&str = \"")) {
            let key = value.trim_end_matches("\";");
            let meaning = cell(comment.trim()).replace("[`", "`").replace("`]", "`");
            writeln!(text, "| `{key}` | {meaning} |").expect("a String takes everything");
            comment.clear();
        } else {
            comment.clear();
        }
    }
}

/// A text that does not end its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// The chart's list of flags, for its notes on `extraArgs`.
#[test]
fn the_chart_knows_the_flags_that_the_code_knows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/harvester-cloud-provider/files/flags.txt");
    let mut names: Vec<String> = vec!["help".into()];
    for arg in ccm::flags::command().get_arguments() {
        names.extend(arg.get_long_and_visible_aliases().unwrap_or_default().into_iter().map(str::to_owned));
    }
    names.sort_unstable();
    names.dedup();
    written(&path, &format!("{}\n", names.join("\n")));
    assert!(
        ["cloud-config", "kube-api-qps", "v"].iter().all(|flag| names.iter().any(|name| name == flag)),
        "{names:?}"
    );
}

/// Whether the file says so; with `HCP_UPDATE=1` it does from now on.
fn written(path: &Path, expected: &str) {
    if std::env::var("HCP_UPDATE").is_ok_and(|value| value == "1") {
        std::fs::write(path, expected).unwrap();
    }
    assert!(
        std::fs::read_to_string(path).unwrap_or_default() == expected,
        "{} is out of date: HCP_UPDATE=1 cargo test --workspace --bin harvester-cloud-provider reference",
        path.display()
    );
}

#[test]
fn the_reference_says_what_the_code_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference.md");
    let rendered = render();
    written(&path, &rendered);
    for needed in [
        "`--cloud-config`",
        "`--distribution`",
        "### `identity rename`",
        "## Flags of `announcer status`",
        "| `loadBalancers` |",
        "`vip_servicesinterface` | `--serviceInterface`",
        "`dhcp_backoff_attempts` (`--dhcpBackoffAttempts`)",
        "`cloudprovider.harvesterhci.io/ipam`",
        "`cloudprovider.harvesterhci.io/announcer-term`",
        "`cloudprovider.harvesterhci.io/dhcp-lease`",
        "`cloudprovider.harvesterhci.io/dhcp6-lease`",
        "`cloudprovider.harvesterhci.io/list-garbage`",
        "Accepted, without effect",
        "| `PoolExhausted` | Service |",
        "| `host_silent` | `HarvesterSilent` |",
        "| `turn` | `WaitingForTurn` |",
        "| `user` | `NotAccepted` |",
    ] {
        assert!(rendered.contains(needed), "{needed}");
    }
}
