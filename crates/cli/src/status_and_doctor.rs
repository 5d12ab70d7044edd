//! `status` and `doctor`: read a snapshot of both clusters, and print the result.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser};
use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter, CompletionCandidate};
use diagnose::collect::{CollectOptions, collect};
use diagnose::jsonpath::Template;
use diagnose::status::Scope;
use diagnose::{Snapshot, doctor, status};
use runtime::error::chain;

use crate::output::Output;
use crate::stdout::{print, say};
use crate::{PRODUCT, VERSION, cluster_names, entry, output};

/// Interval of `--watch`.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The help of [`output::HELP`], and what this command prints besides.
const STATUS_OUTPUT: &str = "What to print: text (for people; table is the same), json or yaml (for programs); also \
    wide (more columns, and what could not be read) or jsonpath=TEMPLATE";
const STATUS: &str = "harvester-cloud-provider status";
const DOCTOR: &str = "harvester-cloud-provider doctor";

const STATUS_EXAMPLES: &str = "\
Examples:
  harvester-cloud-provider status
  harvester-cloud-provider status web -n default -o wide
  harvester-cloud-provider status --watch
  harvester-cloud-provider status web -o jsonpath='{.services[0].addresses[0]}'
  harvester-cloud-provider status -o json | jq '.services[] | select(.reason != \"\")'
  kubectl -n kube-system exec deployment/harvester-cloud-provider -- harvester-cloud-provider status

Column MODE is how the address of a Service came about (pool, dhcp, static, shared); without one, what it asks for.

Exit status: 0 every Service that is ours is announced and none has a reason, 3 one is not or has a reason, a named \
one does not exist, or Harvester or the announcers cannot be asked, 1 the guest cluster or its Services cannot be \
read, 2 wrong usage. What else these credentials may not read is left out; -o wide and json name it.";

const DOCTOR_EXAMPLES: &str = "\
Examples:
  harvester-cloud-provider doctor
  harvester-cloud-provider doctor --cloud-config cloud-config      where it lies on the nodes only
  harvester-cloud-provider doctor -o json | jq -r '.findings[] | .check + \": \" + .remedy'

Exit status: 0 nothing is wrong, 3 warnings, 4 errors, 1 it cannot start, 2 wrong usage. It changes nothing. Give it \
an administrator's credentials of the guest cluster: in the cloud controller's pod it may look at less; it names what \
it could not read.";

/// Which clusters.
#[derive(Debug, Args)]
struct Clusters {
    /// Kubeconfig of the guest cluster [default: KUBECONFIG, then ~/.kube/config, in a pod its account].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of that kubeconfig [default: the current one].
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(cluster_names::contexts))]
    context: Option<String>,
    /// The cloud controller's way to Harvester [default: the Secret that its Deployment mounts].
    #[arg(long, value_name = "FILE")]
    cloud_config: Option<PathBuf>,
}

/// Shows every Service of type LoadBalancer with its address, pools, nodes with their machines and hosts, and an
/// upgrade of these hosts.
#[derive(Debug, Parser)]
#[command(name = STATUS, bin_name = STATUS, version = VERSION, after_help = STATUS_EXAMPLES)]
pub struct StatusArguments {
    /// Services [default: all].
    #[arg(add = ArgValueCompleter::new(cluster_names::services))]
    names: Vec<String>,
    /// Services of this namespace only.
    #[arg(long, short, value_name = "NAME", conflicts_with = "all_namespaces")]
    #[arg(add = ArgValueCompleter::new(cluster_names::namespaces))]
    namespace: Option<String>,
    /// Services of all namespaces, as without any flag.
    #[arg(long, short = 'A')]
    all_namespaces: bool,
    // The words of all reports, and more.
    #[arg(long, short, value_parser = status_format, default_value = "text", value_name = "FORMAT")]
    #[arg(help = STATUS_OUTPUT)]
    #[arg(add = ArgValueCandidates::new(formats))]
    output: StatusFormat,
    /// Print it again whenever it changes.
    #[arg(long, short)]
    watch: bool,
    #[command(flatten)]
    clusters: Clusters,
}

#[derive(Debug, Clone, PartialEq)]
enum StatusFormat {
    Of(Output),
    Wide,
    JsonPath(Template),
}

fn status_format(text: &str) -> Result<StatusFormat, String> {
    match text {
        "wide" => Ok(StatusFormat::Wide),
        _ => match text.strip_prefix("jsonpath=") {
            Some(template) => Template::parse(template).map(StatusFormat::JsonPath),
            None => {
                Output::parse(text).map(StatusFormat::Of).map_err(|error| format!("{error}, wide, jsonpath=TEMPLATE"))
            }
        },
    }
}

fn formats() -> Vec<CompletionCandidate> {
    ["text", "wide", "json", "yaml", "jsonpath="].map(CompletionCandidate::new).into()
}

/// Looks for what is wrong: what, why it matters, and the command that corrects it.
#[derive(Debug, Parser)]
#[command(name = DOCTOR, bin_name = DOCTOR, version = VERSION, after_help = DOCTOR_EXAMPLES)]
pub struct DoctorArguments {
    #[arg(long, short, value_enum, default_value_t, value_name = "FORMAT", help = output::HELP)]
    output: Output,
    #[command(flatten)]
    clusters: Clusters,
}

/// Runs either command; `arguments` are those after the program's name, with the command word.
pub fn main(arguments: &[String]) -> ExitCode {
    let result = if arguments.first().is_some_and(|word| word == "doctor") {
        DoctorArguments::try_parse_from(arguments).map(|arguments| run(examine(arguments)))
    } else {
        StatusArguments::try_parse_from(arguments).map(|arguments| run(show(arguments)))
    };
    result.unwrap_or_else(|error| entry::refused(&error))
}

fn run(work: impl Future<Output = anyhow::Result<ExitCode>>) -> ExitCode {
    entry::run(work).unwrap_or_else(|error| {
        eprintln!("{}", chain(error.as_ref()));
        ExitCode::FAILURE
    })
}

async fn look(clusters: &Clusters, thorough: bool) -> anyhow::Result<Snapshot> {
    // Names of Leases come from the announcer's environment, because this may run in its pod. On a user's machine there
    // is no node name.
    let words = ["manager".to_owned()];
    let config = announcer_core::Config::from_env_and_args(std::env::vars(), words, "desk")?;
    let asked = CollectOptions {
        kubeconfig: clusters.kubeconfig.clone(),
        context: clusters.context.clone(),
        cloud_config: clusters.cloud_config.clone(),
        thorough,
    };
    Ok(collect(&asked, &config, &PRODUCT).await)
}

async fn show(arguments: StatusArguments) -> anyhow::Result<ExitCode> {
    let scope = Scope { namespace: arguments.namespace, names: arguments.names.into_iter().collect() };
    let mut before = String::new();
    loop {
        let snapshot = look(&arguments.clusters, false).await?;
        let report = status::report(&snapshot, &scope);
        let text = match &arguments.output {
            StatusFormat::Of(output) => output.render(|| report.to_text(false), &report),
            StatusFormat::Wide => report.to_text(true),
            StatusFormat::JsonPath(template) => template.render(&serde_json::to_value(&report)?),
        };
        let text = text.trim_end();
        let for_people = matches!(arguments.output, StatusFormat::Of(Output::Text) | StatusFormat::Wide);
        let notes = || {
            for note in report.notes.iter().filter(|_| for_people) {
                eprintln!("{note}");
            }
        };
        if !arguments.watch {
            let said = say(text);
            notes();
            let status = report.exit_status();
            return Ok(if status == 0 { said } else { ExitCode::from(status) });
        }
        if text != before {
            print(&format!("{}{text}\n", if before.is_empty() { "" } else { "---\n" }))?;
            notes();
            before = text.to_owned();
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn examine(arguments: DoctorArguments) -> anyhow::Result<ExitCode> {
    let found = doctor::examine(&look(&arguments.clusters, true).await?);
    let text = arguments.output.render(|| found.to_text(), &found);
    let said = say(text.trim_end());
    let status = found.exit_status();
    Ok(if status == 0 { said } else { ExitCode::from(status) })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_lines_are_well_formed() {
        StatusArguments::command().debug_assert();
        DoctorArguments::command().debug_assert();
        let parsed =
            StatusArguments::try_parse_from(["status", "web", "api", "-n", "default", "-o", "wide", "-w"]).unwrap();
        assert_eq!((parsed.names.len(), parsed.namespace.as_deref(), parsed.watch), (2, Some("default"), true));
        let parsed = StatusArguments::try_parse_from(["status", "-A", "-o", "jsonpath={.services[*].name}"]).unwrap();
        assert!(matches!(parsed.output, StatusFormat::JsonPath(_)) && parsed.namespace.is_none());
        let parsed = StatusArguments::try_parse_from(["status", "-o", "table"]).unwrap();
        assert_eq!(parsed.output, StatusFormat::Of(Output::Text));
        assert_eq!(DoctorArguments::try_parse_from(["doctor", "-o", "yaml"]).unwrap().output, Output::Yaml);
        for wrong in
            [&["status", "-n", "a", "-A"][..], &["status", "-o", "xml"], &["status", "-o", "jsonpath={.services"]]
        {
            assert!(StatusArguments::try_parse_from(wrong).is_err(), "{wrong:?}");
        }
        assert!(DoctorArguments::try_parse_from(["doctor", "web"]).is_err());
    }

    #[tokio::test]
    async fn without_credentials_doctor_says_so_and_how_to_give_them() {
        let clusters = Clusters { kubeconfig: Some("/does/not/exist".into()), context: None, cloud_config: None };
        let found = doctor::examine(&look(&clusters, true).await.unwrap());
        assert_eq!(found.exit_status(), 4);
        assert_eq!(found.findings[0].check, doctor::Check::GuestCredentialsMissing);
        assert!(found.findings[0].what.contains("/does/not/exist"), "{found:?}");
    }
}
