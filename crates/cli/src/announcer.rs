//! The announcer's command line: kube-vip's environment variables and flags, and the exit status.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use announcer_core::Config;
use announcer_core::config::{ConfigError, VARIABLES};
use announcer_core::status::Report;
use runtime::error::chain;
use runtime::host;
use runtime::logging::{self, Format, Verbosity};
use runtime::shutdown;

use crate::PRODUCT;
use crate::entry::WRONG_USAGE;
use crate::output::{self, Output};
use crate::stdout::say;
use crate::words;

const USAGE: &str = "\
Announces the addresses of Services of type LoadBalancer on the LAN (ARP, NDP, macvlan with DHCP); takes the \
place of kube-vip.

Usage: harvester-cloud-provider announcer [FLAGS]
       harvester-cloud-provider manager [FLAGS]      as kube-vip's manifests call it
       harvester-cloud-provider announcer status     who announces what (see its --help)

Configuration is kube-vip's: environment variables first, then its flags. Those that do something, with their defaults:
";

const NEEDS: &str = "
kube-vip's other variables and flags are accepted and do nothing; docs/reference.md lists them and every flag.

Needs the capabilities NET_ADMIN and NET_RAW, as user 0. Ends with 0 after SIGTERM, with 1 on an error, with 2 on a
word that is no command and on a flag or value that is not accepted.

Examples:
  harvester-cloud-provider announcer
        in the DaemonSet's pod
  k8s_config_file=./kubeconfig vip_interface=eth1 vip_nodename=node1 harvester-cloud-provider announcer
        by hand on a node";

fn help() -> String {
    const WIDTH: usize = 132;
    let mut text = String::from(USAGE);
    for variable in VARIABLES.iter().filter(|variable| !variable.has_no_effect()) {
        let setting = format!("{}={}", variable.name, variable.default);
        let mut line = format!("  {setting:<42}");
        for word in variable.meaning.replace('`', "").split_whitespace() {
            if line.len() + 1 + word.len() > WIDTH {
                text.push_str(&line);
                line = format!("\n{:<44}", "");
            }
            line.push(' ');
            line.push_str(word);
        }
        text.push_str(&line);
        text.push('\n');
    }
    text + NEEDS
}

/// The command for completion and manual pages; its configuration is kube-vip's and not parsed by clap.
pub fn command() -> clap::Command {
    let flag = |name: &'static str| clap::Arg::new(name).long(name);
    let status = clap::Command::new("status")
        .about("Shows which node announces which address, with terms, Leases and DHCP leases")
        .after_help(STATUS_HELP)
        .arg(flag("namespace").short('n').value_name("NAME").help("VIPs of Services of this namespace only"))
        .arg(flag("all-namespaces").short('A').num_args(0).help("VIPs of all namespaces, as without any flag"))
        .arg(output::flag())
        .arg(flag("kubeconfig").value_name("FILE").help(KUBECONFIG));
    let about = "Announces load balancer addresses on the LAN";
    clap::Command::new("announcer").about(about).after_help(help()).subcommand(status)
}

const KUBECONFIG: &str = "Credentials of the cluster [default: k8s_config_file, then KUBECONFIG, then \
    /etc/kubernetes/admin.conf or ~/.kube/config, in a pod its account]";

const STATUS_HELP: &str = "\
Shows which node announces which address, with terms, Leases and DHCP leases, as the API has them: the same from \
every node.

Usage: harvester-cloud-provider announcer status [-n NAMESPACE] [-o text|json|yaml] [FLAGS]

  -n, --namespace NAME     VIPs of Services of this namespace only; without it, and with -A, of all
  -o, --output FORMAT      what to print: text (for people; table is the same), json or yaml (for programs)
      --kubeconfig FILE    credentials of the cluster; without it k8s_config_file or --k8sConfigPath, then KUBECONFIG,
                           then /etc/kubernetes/admin.conf or ~/.kube/config, then the pod's account
  -h, --help               this text

The names of Leases come from the same environment variables and flags as the announcer's own (svc_leasename,
svc_namespace, ...); in its pod nothing has to be given.

A VIP is announced, pending (no address told to clients yet), unowned (no node announces it), owner silent (the Lease
of its node has run out, by this machine's clock) or DHCP lease expired. In json and yaml the last two are owner-silent
and lease-expired.

PROBED says how it answers the nodes that ask it as a client would, where that is wanted (vip_probe).

Ends with 0 if all VIPs are announced and answer whoever asks them, 3 if one does not, \
1 if the API cannot be read, 2 on wrong usage.

Examples:
  kubectl -n kube-system exec daemonset/kube-vip -- harvester-cloud-provider announcer status
  harvester-cloud-provider announcer status --kubeconfig ./kubeconfig -o json |
    jq '.vips[] | select(.state != \"announced\")'";

/// Exit status: a VIP is not announced, or does not answer.
const NOT_WELL: u8 = 3;

/// Runs `announcer status`; `arguments` are those after `status`.
fn status(arguments: &[String]) -> ExitCode {
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        return say(STATUS_HELP);
    }
    let usage = |problem: &str| {
        eprintln!("{problem}\nSee: harvester-cloud-provider announcer status --help");
        ExitCode::from(WRONG_USAGE)
    };
    let AnnouncerStatusArguments { output, kubeconfig: flag, namespace, rest } = match asked(arguments) {
        Ok(asked) => asked,
        Err(problem) => return usage(&problem),
    };
    let mut config = match Config::from_env_and_args(std::env::vars(), rest, &host::name()) {
        Ok(config) => config,
        Err(error) => return usage(&format!("{}{}", chain(&error), meant(&error))),
    };
    config.api.kubeconfig = kubeconfig(flag, config.api.kubeconfig.take(), std::env::var_os("KUBECONFIG"));
    let report = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(announcer::status::read(&config, &PRODUCT)).map_err(anyhow::Error::from),
        Err(error) => Err(error.into()),
    };
    match report {
        Ok(mut report) => {
            if let Some(namespace) = namespace {
                report.vips.retain(|vip| vip.service.split('/').next() == Some(&namespace));
            }
            let said = say(output.render(|| report.to_text(), &report).trim_end());
            ends_with(&report, said)
        }
        Err(error) => {
            eprintln!("cannot tell the status: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn ends_with(report: &Report, said: ExitCode) -> ExitCode {
    if report.is_well() { said } else { ExitCode::from(NOT_WELL) }
}

/// The parsed arguments of `announcer status`.
#[derive(Debug, PartialEq, Eq)]
struct AnnouncerStatusArguments {
    output: Output,
    /// `--kubeconfig`.
    kubeconfig: Option<String>,
    /// `--namespace`: namespace of the Services.
    namespace: Option<String>,
    /// The remaining arguments, for the configuration, after the word that it expects.
    rest: Vec<String>,
}

fn asked(arguments: &[String]) -> Result<AnnouncerStatusArguments, String> {
    let rest = vec!["manager".to_owned()];
    let mut asked = AnnouncerStatusArguments { output: Output::Text, kubeconfig: None, namespace: None, rest };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let (name, mut value) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (argument.as_str(), None),
        };
        if ["-A", "--all-namespaces"].contains(&name) {
            asked.namespace = None;
            continue;
        }
        if !["-o", "--output", "--kubeconfig", "-n", "--namespace"].contains(&name) {
            asked.rest.push(argument.clone());
            continue;
        }
        if value.is_none() {
            value = arguments.next().map(String::as_str);
        }
        let value = value.unwrap_or_default();
        match (name, value) {
            ("--kubeconfig", "") => return Err("flag --kubeconfig needs a value".to_owned()),
            ("-n" | "--namespace", "") => return Err(format!("flag {name} needs a value")),
            ("-n" | "--namespace", namespace) => asked.namespace = Some(namespace.to_owned()),
            ("--kubeconfig", path) => asked.kubeconfig = Some(path.to_owned()),
            (_, value) => asked.output = Output::parse(value)?,
        }
    }
    Ok(asked)
}

/// The kubeconfig for a call by a user: the flag, else the one that the announcer itself reads, else the one that
/// `kubectl` reads.
fn kubeconfig(flag: Option<String>, announcers: Option<PathBuf>, environment: Option<OsString>) -> Option<PathBuf> {
    let environment = environment.filter(|path| !path.is_empty()).map(PathBuf::from);
    flag.map(PathBuf::from).or(announcers).or(environment)
}

/// Runs the command; `arguments` are those after the program's name, with the command word.
pub fn main(arguments: &[String]) -> ExitCode {
    if arguments.get(1).is_some_and(|word| word == "status") {
        return status(&arguments[2..]);
    }
    let has = |words: &[&str]| arguments.iter().any(|argument| words.contains(&argument.as_str()));
    if has(&["--help", "-h"]) || arguments.get(1).is_some_and(|word| word == "help") {
        return say(&help());
    }
    if has(&["--version"]) {
        return say(crate::VERSION);
    }
    // A typing error of a user. In a manifest, which has `manager` here, it is a failed start instead, see below.
    if let [command, word, ..] = arguments
        && command == "announcer"
        && words::is_word(word)
    {
        return words::refuse("harvester-cloud-provider announcer", &["status", "help"], word);
    }
    // kube-vip accepts only the word `manager`.
    let words = arguments.iter().enumerate().map(|(i, word)| if i == 0 { "manager".to_owned() } else { word.clone() });
    let hostname = host::name();
    let config = match Config::from_env_and_args(std::env::vars(), words, &hostname) {
        Ok(config) => config,
        Err(error) => {
            logging::init(Format::Text, Verbosity::Slog(0));
            tracing::error!("the announcer cannot start: {error}{}", meant(&error));
            return ExitCode::from(WRONG_USAGE);
        }
    };
    logging::init(Format::Text, Verbosity::Slog(config.log_level));
    // One thread is enough for the work of one node; each further one would cost memory on every node.
    let result = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(run(config)),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("the announcer ends with an error: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// The known flag that is most similar to an unknown one.
fn meant(error: &ConfigError) -> String {
    let ConfigError::UnknownFlag(flag) = error else { return String::new() };
    let known: BTreeSet<&str> = VARIABLES.iter().filter_map(|variable| variable.flag).collect();
    let guess = words::like(flag, known.into_iter());
    guess.map(|guess| format!("; most like it is {guess}")).unwrap_or_default()
}

async fn run(config: Config) -> anyhow::Result<()> {
    let stop = shutdown::on_signals()?;
    Ok(announcer::run(config, &PRODUCT, stop).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn the_output_format_and_the_kubeconfig_are_read_and_the_rest_is_left_to_the_configuration() {
        let plain = || AnnouncerStatusArguments {
            output: Output::Text,
            kubeconfig: None,
            namespace: None,
            rest: words(&["manager"]),
        };
        let named = |path: &str| AnnouncerStatusArguments { kubeconfig: Some(path.to_owned()), ..plain() };
        for (given, expected) in [
            (&[][..], plain()),
            (&["-o", "json"], AnnouncerStatusArguments { output: Output::Json, ..plain() }),
            (&["-o=yaml"], AnnouncerStatusArguments { output: Output::Yaml, ..plain() }),
            (&["-o", "json", "-o", "table"], plain()),
            (&["-o=json", "--output", "text"], plain()),
            (&["--kubeconfig", "./guest"], named("./guest")),
            (&["--kubeconfig=/a=b"], named("/a=b")),
            (&["-n", "web"], AnnouncerStatusArguments { namespace: Some("web".into()), ..plain() }),
            (&["-n", "web", "-A"], plain()),
            (
                &["--output=json", "--leaseDuration", "20"],
                AnnouncerStatusArguments {
                    output: Output::Json,
                    rest: words(&["manager", "--leaseDuration", "20"]),
                    ..plain()
                },
            ),
        ] {
            assert_eq!(asked(&words(given)), Ok(expected), "{given:?}");
        }
        for wrong in [&["-o"][..], &["-o", "xml"], &["--output="]] {
            assert!(asked(&words(wrong)).expect_err("refused").contains("accepted are text, table, json, yaml"));
        }
        for wrong in [&["--kubeconfig"][..], &["--kubeconfig="]] {
            assert!(asked(&words(wrong)).expect_err("refused").contains("--kubeconfig needs a value"));
        }
    }

    #[test]
    fn a_vip_without_an_owner_is_told_by_the_exit_status_too() {
        use announcer_core::status::{State, VipRow};
        let report = |state: State| Report {
            trouble: None,
            vips: vec![VipRow {
                service: "default/web".into(),
                addresses: vec!["10.0.0.5".parse().unwrap()],
                owner: None,
                term: None,
                state,
                dhcp: Vec::new(),
                probes: None,
            }],
            leases: Vec::new(),
        };
        assert_eq!(ends_with(&report(State::Announced), ExitCode::SUCCESS), ExitCode::SUCCESS);
        for state in [State::Pending, State::Unowned, State::OwnerSilent, State::LeaseExpired] {
            assert_eq!(ends_with(&report(state), ExitCode::SUCCESS), ExitCode::from(3), "{state:?}");
        }
    }

    #[test]
    fn a_mistyped_flag_of_the_manual_is_answered_with_what_was_meant() {
        for (typed, expected) in
            [("--serviceInterfac", "--serviceInterface"), ("--prometheusHTTPServr", "--prometheusHTTPServer")]
        {
            let arguments = words(&["manager", typed, "x"]);
            let error = Config::from_env_and_args([], arguments, "node-1").unwrap_err();
            assert_eq!(meant(&error), format!("; most like it is {expected}"));
        }
        assert_eq!(meant(&ConfigError::UnknownFlag("--zebra".into())), "");
        assert_eq!(meant(&ConfigError::FlagWithoutValue("--x".into())), "");
    }

    #[test]
    fn the_flag_wins_over_the_announcers_file_and_that_over_the_environment_of_kubectl() {
        let chosen = |flag: Option<&str>, announcers: Option<&str>, environment: Option<&str>| {
            kubeconfig(flag.map(str::to_owned), announcers.map(PathBuf::from), environment.map(OsString::from))
        };
        assert_eq!(chosen(Some("f"), Some("a"), Some("e")), Some("f".into()));
        assert_eq!(chosen(None, Some("a"), Some("e")), Some("a".into()));
        assert_eq!(chosen(None, None, Some("e")), Some("e".into()));
        assert_eq!(chosen(None, None, Some("")), None);
    }
}
