//! `generate-addon`: makes a request from the flags, and prints the outcome or writes it to a file that only its owner
//! may read.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use addon::output::{self, Distribution};
use addon::{Issuer, Outcome, Request, Task, Undo};
use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use k8s_openapi::jiff::Timestamp;
use kube::Config;
use runtime::client::KubeconfigFiles;
use runtime::error::chain;
use serde_json::json;

use crate::values::go_duration;
use crate::{PRODUCT, VERSION, entry, private_file, stdout};

const COMMAND: &str = "harvester-cloud-provider generate-addon";

const EXAMPLES: &str = "\
Examples:
  harvester-cloud-provider generate-addon demo guests
        account `demo` for the machines in namespace `guests`; prints cloud-config and cloud-init user data
  harvester-cloud-provider generate-addon demo guests --dry-run
        what would be done, and whether guests can reach the API
  harvester-cloud-provider generate-addon demo guests --server https://192.168.1.10:6443 -o cloud-init \\
    --distribution rke2
        user data for the machines of an RKE2 cluster, with the name of the cluster for the bundled chart
  harvester-cloud-provider generate-addon demo guests -o secret --output-file secret.yaml
  harvester-cloud-provider generate-addon demo guests -o helm-values --output-file values.yaml
        for a cluster that runs already: kubectl apply -f secret.yaml, then helm install -f values.yaml
  harvester-cloud-provider generate-addon demo guests --rotate
        a further token; --revoke-old when all nodes have it
  harvester-cloud-provider generate-addon demo guests --revoke        no access any more

Exit status: 0 done, 1 failed (the message says what to correct), 2 wrong usage.
Running it again changes nothing and prints the same credentials. Progress goes to standard error.";

#[allow(clippy::struct_excessive_bools)] // flags are what they are
/// Makes credentials with which a guest cluster's cloud provider may use the Harvester API, and prints them.
#[derive(Debug, Parser)]
#[command(name = COMMAND, bin_name = COMMAND, version = VERSION, after_help = EXAMPLES)]
pub struct Arguments {
    /// Service account on Harvester, by custom the name of the guest cluster.
    service_account: String,
    /// Namespace of the guest's virtual machines on Harvester.
    namespace: String,
    /// Kubeconfig of an administrator of Harvester [default: KUBECONFIG, then ~/.kube/config].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of that kubeconfig [default: the current one].
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Name of the guest cluster for Helm values [default: the service account's].
    #[arg(long, value_name = "NAME")]
    cluster_name: Option<String>,
    /// URL of the Harvester API as guests reach it [default: that of the kubeconfig].
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Authority (PEM) that signed the certificate of that URL [default: found out].
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// What makes account and token.
    #[arg(long, value_enum, default_value_t = Credentials::Own)]
    credentials: Credentials,
    /// What to print: credentials, in the form in which they are used. They are no report, so the values are others
    /// than those of status and doctor.
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    output: Format,
    /// Name of the Secret in the guest: the one that the chart's value cloudConfig.secretName has.
    #[arg(long, value_name = "NAME", default_value = output::GUEST_SECRET)]
    secret_name: String,
    /// Write it there, mode 0600, instead of to standard output.
    #[arg(long, value_name = "FILE")]
    output_file: Option<PathBuf>,
    /// What the machines run, for cloud-init.
    #[arg(long, value_enum, default_value_t = DistributionArgument::Any)]
    distribution: DistributionArgument,
    /// Show the plan; look at name, port, certificate, answer, token and rights; write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Make a further token; the old one stays valid.
    #[arg(long, group = "task")]
    rotate: bool,
    /// Delete all tokens but the newest, after that one was tried and the guest was seen to use it and no older one.
    #[arg(long, group = "task")]
    revoke_old: bool,
    /// How long --revoke-old watches which token asks; watches of the cloud provider last up to five minutes.
    #[arg(long, value_name = "DURATION", default_value = "5m30s", value_parser = go_duration)]
    watch_tokens_for: Duration,
    /// Delete tokens, rights and the account.
    #[arg(long, group = "task")]
    revoke: bool,
    /// Do not look whether the URL answers and the rights suffice.
    #[arg(long)]
    skip_checks: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Credentials {
    /// This command, with the rights of the kubeconfig.
    Own,
    /// Harvester, by its endpoint /v1/harvester/kubeconfig.
    Harvester,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Cloud-config and user data under headings, as the old script.
    Text,
    /// The cloud-config alone.
    Kubeconfig,
    /// User data alone.
    CloudInit,
    /// A Secret for the guest cluster.
    Secret,
    /// Values for the chart, to go with that Secret.
    HelmValues,
    /// Everything, with steps and checks.
    Json,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum DistributionArgument {
    /// None in particular.
    Any,
    /// RKE2.
    Rke2,
    /// K3s.
    K3s,
}

/// Runs the command; `arguments` are those after the program's name, with the command word.
pub fn main(arguments: &[String]) -> ExitCode {
    let arguments: Arguments = match entry::parsed(arguments) {
        Ok(arguments) => arguments,
        Err(status) => return status,
    };
    match entry::run(run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(error.as_ref()));
            if let Some(addon::Error::Unfinished { undo, .. }) = error.downcast_ref() {
                eprintln!("{}", what_now(&arguments, undo));
            }
            ExitCode::from(status(&error))
        }
    }
}

/// The exit status: invalid values are a usage error, wherever they are detected.
fn status(error: &anyhow::Error) -> u8 {
    let wrong = |error: &addon::Error| matches!(error, addon::Error::Request(_));
    if error.is::<addon::RequestError>() || error.downcast_ref().is_some_and(wrong) { 2 } else { 1 }
}

async fn run(arguments: &Arguments) -> Result<()> {
    let request = request(arguments)?;
    request.validate()?;
    if let Some(path) = &arguments.output_file {
        // Checked before anything is created on Harvester that could then not be written to the file.
        private_file::check_writable(path).with_context(|| unwritable(path))?;
    }
    let admin = admin(arguments).await?;
    // Two rotations within a second count as one.
    let stamp = Timestamp::now().strftime("%Y%m%d%H%M%S").to_string();
    let outcome = addon::run(admin, &request, &stamp, &PRODUCT, &mut |line| eprintln!("{line}")).await?;
    for note in &outcome.notes {
        eprintln!("note: {note}");
    }
    let text = render(arguments, &request, &outcome);
    match &arguments.output_file {
        _ if text.is_empty() => Ok(()),
        Some(path) => {
            private_file::write(path, &text).with_context(|| unwritable(path))?;
            eprintln!("written: {}", path.display());
            Ok(())
        }
        None => stdout::print(&text),
    }
}

fn request(arguments: &Arguments) -> Result<Request> {
    let ca_pem = arguments.ca_file.as_ref().map(|path| {
        std::fs::read_to_string(path).with_context(|| format!("failed to read --ca-file {}", path.display()))
    });
    Ok(Request {
        service_account: arguments.service_account.clone(),
        namespace: arguments.namespace.clone(),
        cluster_name: arguments.cluster_name.clone().unwrap_or_else(|| arguments.service_account.clone()),
        server: arguments.server.as_deref().map(|server| server.trim_end_matches('/').to_owned()),
        ca_pem: ca_pem.transpose()?,
        issuer: match arguments.credentials {
            Credentials::Own => Issuer::Own,
            Credentials::Harvester => Issuer::Harvester,
        },
        task: match (arguments.rotate, arguments.revoke_old, arguments.revoke) {
            (true, ..) => Task::Rotate,
            (_, true, _) => Task::RevokeOld,
            (.., true) => Task::Revoke,
            _ => Task::Ensure,
        },
        secret_name: arguments.secret_name.clone(),
        watch_tokens_for: arguments.watch_tokens_for,
        dry_run: arguments.dry_run,
        skip_checks: arguments.skip_checks,
    })
}

async fn admin(arguments: &Arguments) -> Result<Config> {
    let files = KubeconfigFiles::read(arguments.kubeconfig.as_deref())
        .context("failed to read the kubeconfig of a Harvester administrator (--kubeconfig, or KUBECONFIG)")?;
    files
        .config(arguments.context.as_deref())
        .await
        .context("the kubeconfig of the Harvester administrator is not usable")
}

fn render(arguments: &Arguments, request: &Request, outcome: &Outcome) -> String {
    let distribution = match arguments.distribution {
        DistributionArgument::Any => Distribution::Any,
        DistributionArgument::Rke2 => Distribution::Rke2,
        DistributionArgument::K3s => Distribution::K3s,
    };
    let cloud_init = |kubeconfig: &str| output::cloud_init(kubeconfig, &request.cluster_name, distribution);
    if arguments.output == Format::Json {
        let mut document = json!(outcome);
        if let Some(kubeconfig) = &outcome.kubeconfig {
            document["cloudInit"] = json!(cloud_init(kubeconfig));
            document["secret"] = json!(output::secret_manifest(kubeconfig, &request.secret_name));
            document["helmValues"] = json!(output::helm_values(&request.cluster_name, &request.secret_name));
        }
        return format!("{document:#}\n");
    }
    let Some(kubeconfig) = &outcome.kubeconfig else { return String::new() };
    match arguments.output {
        Format::Text => output::script_text(kubeconfig, &cloud_init(kubeconfig)),
        Format::Kubeconfig | Format::Json => kubeconfig.clone(),
        Format::CloudInit => cloud_init(kubeconfig),
        Format::Secret => output::secret_manifest(kubeconfig, &request.secret_name),
        Format::HelmValues => output::helm_values(&request.cluster_name, &request.secret_name),
    }
}

/// The advice after a run that did not finish.
fn what_now(arguments: &Arguments, undo: &Undo) -> String {
    let again = "the same command again goes on where this one stopped";
    match undo {
        Undo::Nothing => again.to_owned(),
        Undo::DeleteToken(secret) => {
            format!("{again}; to undo, on Harvester: kubectl -n {} delete secret {secret}", arguments.namespace)
        }
        Undo::Revoke { fresh } => {
            let before = if *fresh { "" } else { " (takes away what the account had before, too)" };
            format!("{again}; to undo{before}: {}", revocation(arguments))
        }
    }
}

/// The command line that revokes everything of the same account on the same Harvester.
fn revocation(arguments: &Arguments) -> String {
    let mut words =
        vec![format!("harvester-cloud-provider generate-addon {} {}", arguments.service_account, arguments.namespace)];
    words.extend(arguments.kubeconfig.as_ref().map(|path| format!("--kubeconfig {}", quoted(&path.to_string_lossy()))));
    words.extend(arguments.context.as_ref().map(|name| format!("--context {}", quoted(name))));
    words.push("--revoke".to_owned());
    words.join(" ")
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@+=~".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

fn unwritable(path: &Path) -> String {
    format!("failed to write --output-file {}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parsed(words: &str) -> Arguments {
        Arguments::try_parse_from(words.split_whitespace()).unwrap()
    }

    #[test]
    fn the_command_line_is_consistent_and_takes_the_scripts_two_words() {
        Arguments::command().debug_assert();
        let request = request(&parsed("generate-addon demo guests")).unwrap();
        assert_eq!((request.task, request.issuer, request.cluster_name.as_str()), (Task::Ensure, Issuer::Own, "demo"));
    }

    #[test]
    fn one_word_alone_and_two_tasks_at_once_are_wrong_usage() {
        for words in ["generate-addon demo", "generate-addon demo guests --rotate --revoke"] {
            assert_eq!(Arguments::try_parse_from(words.split_whitespace()).unwrap_err().exit_code(), 2);
        }
    }

    #[test]
    fn a_value_that_cannot_be_meant_is_wrong_usage_too() {
        for words in ["Demo guests", "demo guests --server http://h", "demo guests --server https://me:pw@h"] {
            let request = request(&parsed(&format!("generate-addon {words}"))).unwrap();
            let error = anyhow::Error::from(request.validate().unwrap_err());
            assert_eq!(status(&error), 2, "{words}");
            assert!(!error.to_string().contains("pw"), "{error}");
        }
        assert_eq!(status(&anyhow::anyhow!("the API is away")), 1);
    }

    /// The administrator's kubeconfig comes later, and Harvester after that.
    #[tokio::test]
    async fn a_file_that_cannot_be_written_is_said_first() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name).display().to_string();
        let words = |output| format!("generate-addon demo guests --kubeconfig {} --output-file {output}", file("none"));
        let error = chain(run(&parsed(&words(file("missing/cloud-config")))).await.unwrap_err().as_ref());
        assert!(error.starts_with("failed to write --output-file "), "{error}");
        let error = chain(run(&parsed(&words(file("cloud-config")))).await.unwrap_err().as_ref());
        assert!(error.contains("kubeconfig of a Harvester administrator"), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "the look left something behind");
    }

    #[test]
    fn a_run_that_stopped_on_its_way_says_how_to_undo_it_on_the_same_harvester() {
        let arguments =
            parsed("generate-addon demo guests --kubeconfig /a/b --context c -o secret --output-file s.yaml");
        assert_eq!(
            what_now(&arguments, &Undo::Revoke { fresh: true }),
            "the same command again goes on where this one stopped; to undo: harvester-cloud-provider \
             generate-addon demo guests --kubeconfig /a/b --context c --revoke"
        );
        assert!(what_now(&arguments, &Undo::Revoke { fresh: false }).contains("what the account had before"));
        let token = Undo::DeleteToken("demo-token-s".into());
        assert!(what_now(&arguments, &token).ends_with("kubectl -n guests delete secret demo-token-s"));
        assert_eq!(quoted("it's here"), r"'it'\''s here'");
    }

    #[test]
    fn a_dry_run_prints_no_credentials_and_json_says_what_would_be_done() {
        let arguments = parsed("generate-addon demo guests --dry-run -o json");
        let outcome = Outcome { steps: vec!["create ServiceAccount guests/demo".into()], ..Outcome::default() };
        let text = render(&arguments, &request(&arguments).unwrap(), &outcome);
        assert!(text.contains("create ServiceAccount guests/demo") && !text.contains("kubeconfig"), "{text}");
        let arguments = parsed("generate-addon demo guests --dry-run");
        assert_eq!(render(&arguments, &request(&arguments).unwrap(), &outcome), "");
    }
}
