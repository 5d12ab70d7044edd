//! The flag `--output` of the commands that print a report: one name, one set of values, one help text.

use clap::{Arg, ValueEnum};
use serde::Serialize;

/// The help of the flag.
pub const HELP: &str = "What to print: text (for people; table is the same), json or yaml (for programs)";

/// Its values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    #[value(alias = "table")]
    Text,
    /// For programs.
    Json,
    /// The same as json, in YAML.
    Yaml,
}

/// The accepted values, for messages.
pub const ACCEPTED: &str = "text, table, json, yaml";

impl Output {
    /// Parses a value of the flag where clap does not.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::from_str(text, false).map_err(|_| format!("output format {text:?} is not known: accepted are {ACCEPTED}"))
    }

    /// The report in this form.
    pub fn render(self, text: impl FnOnce() -> String, report: &impl Serialize) -> String {
        match self {
            Self::Text => text(),
            Self::Json => serde_json::to_string_pretty(report).expect("plain fields are always valid JSON"),
            Self::Yaml => serde_saphyr::to_string(report).expect("plain fields are always valid YAML"),
        }
    }
}

/// The flag, for commands that are not derived.
pub fn flag() -> Arg {
    Arg::new("output")
        .long("output")
        .short('o')
        .value_name("FORMAT")
        .default_value("text")
        .value_parser(clap::value_parser!(Output))
        .help(HELP)
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};
    use serde_json::{Value, json};

    use super::*;
    use crate::{announcer, ccm, generate_addon, identity, status_and_doctor};

    fn help(command: &Command) -> String {
        let arg = command.get_arguments().find(|arg| arg.get_id() == "output").expect("each report has the flag");
        assert_eq!((arg.get_long(), arg.get_short()), (Some("output"), Some('o')), "{}", command.get_name());
        arg.get_help().expect("the flag is explained").to_string()
    }

    #[test]
    fn each_report_has_the_same_flag_with_the_same_words_and_values() {
        let (announcer, identity) = (announcer::command(), identity::Arguments::command());
        let mut commands = vec![ccm::plan::command(), status_and_doctor::DoctorArguments::command()];
        commands.push(announcer.find_subcommand("status").expect("a command").clone());
        commands.extend(identity.get_subcommands().cloned());
        assert_eq!(commands.len(), 6);
        for command in commands {
            assert_eq!(help(&command), HELP, "{}", command.get_name());
            let arg = command.get_arguments().find(|arg| arg.get_id() == "output").expect("found above");
            let values = arg.get_possible_values();
            let names: Vec<&str> = values.iter().map(clap::builder::PossibleValue::get_name).collect();
            assert_eq!(names, ["text", "json", "yaml"], "{}", command.get_name());
            for accepted in ACCEPTED.split(", ") {
                assert!(values.iter().any(|value| value.matches(accepted, false)), "{accepted}");
            }
        }
        let status = help(&status_and_doctor::StatusArguments::command());
        assert!(status.starts_with(HELP), "status prints more, and this as all others: {status}");
        let addon = help(&generate_addon::Arguments::command());
        assert!(addon.contains("no report"), "the values of generate-addon are others, and it says so: {addon}");
    }

    #[test]
    fn a_report_is_the_same_in_json_and_in_yaml() {
        let report = json!({"a": ["b: c", 1]});
        let render = |output: &str| Output::parse(output).map(|output| output.render(|| "A".to_owned(), &report));
        for text in ["text", "table"] {
            assert_eq!(render(text).as_deref(), Ok("A"));
        }
        assert_eq!(serde_json::from_str::<Value>(&render("json").unwrap()).unwrap(), report);
        let yaml = render("yaml").unwrap();
        assert!(yaml.starts_with("a:") && yaml.contains("b: c"), "{yaml}");
        let refused = render("xml").unwrap_err();
        assert_eq!(refused, "output format \"xml\" is not known: accepted are text, table, json, yaml");
    }
}
