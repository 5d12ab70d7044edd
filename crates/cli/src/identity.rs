//! `identity`: shows which cluster the record describes, and writes an operator's confirmation to the record. The
//! leader compares the confirmation with the machines that it sees, writes a new card and continues.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use diagnose::collect::guest_config;
use harvester_api::names::ClusterName;
use harvester_provider::{OperatorConfirmation, Record, Records};
use runtime::client::{Settings, connect};
use runtime::error::chain;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::PRODUCT;
use crate::entry::{self, WRONG_USAGE};
use crate::output::{self, Output};
use crate::stdout::say;

/// The controller that leads watches the record; a new one needs its Lease first.
const PATIENCE: Duration = Duration::from_mins(1);
const PERIOD: Duration = Duration::from_millis(500);

const COMMAND: &str = "harvester-cloud-provider identity";

const EXAMPLES: &str = "\
Examples:
  kubectl -n kube-system exec deployment/harvester-cloud-provider -- \\
    harvester-cloud-provider identity show
  kubectl -n kube-system exec deployment/harvester-cloud-provider -- \\
    harvester-cloud-provider identity confirm --dry-run";

const SHOW_EXAMPLES: &str = "\
Examples:
  harvester-cloud-provider identity show
  harvester-cloud-provider identity show -o json | jq -r .safeMode";

const CONFIRM_EXAMPLES: &str = "\
Examples:
  harvester-cloud-provider identity confirm --dry-run        what it would do
  harvester-cloud-provider identity confirm";

const RENAME_EXAMPLES: &str = "\
Examples:
  harvester-cloud-provider identity rename prod2 --copy --dry-run        what it would do
  harvester-cloud-provider identity rename prod2 --copy                  this is a copy of prod
  harvester-cloud-provider identity rename prod2                         this is prod, and gets another name";

const RECORD: &str = "The record is ConfigMap kube-system/harvester-cloud-provider; `identity show` prints it.";

const EXIT_STATUS: &str = "\
Exit status: 0 done, 1 the cluster was not reached, or no controller carried the order out within 60 s, 2 wrong usage.";

/// Shows or changes which cluster this is on Harvester
#[derive(Debug, Parser)]
#[command(name = COMMAND, bin_name = COMMAND, disable_help_subcommand = true)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}"))]
pub struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print the record of this cluster, ConfigMap kube-system/harvester-cloud-provider
    #[command(after_help = format!("{SHOW_EXAMPLES}\n\n{EXIT_STATUS}"))]
    Show(Common),
    /// The cluster that runs here now is the one in the record: it was restored on new machines, or its machines were
    /// moved
    #[command(after_help = format!("{CONFIRM_EXAMPLES}\n\n{RECORD}\n\n{EXIT_STATUS}"))]
    Confirm {
        #[command(flatten)]
        change: Change,
        #[command(flatten)]
        common: Common,
    },
    /// The cluster has this name on Harvester from now on
    #[command(after_help = format!("{RENAME_EXAMPLES}\n\n{RECORD}\n\n{EXIT_STATUS}"))]
    Rename {
        /// The new name, as in --cluster-name
        name: String,
        /// This is a copy of the cluster in the record: it leaves the load balancers of the original alone and gets
        /// its own
        #[arg(long)]
        copy: bool,
        #[command(flatten)]
        change: Change,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Debug, Args)]
struct Change {
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
struct Common {
    /// Kubeconfig of the guest cluster [default: KUBECONFIG, then ~/.kube/config, in a pod its account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    #[arg(long, short, value_enum, default_value_t, value_name = "FORMAT", help = output::HELP)]
    output: Output,
}

/// Runs the command; `arguments` begin with its name.
pub fn main(arguments: &[String]) -> ExitCode {
    let arguments: Arguments = match entry::parsed(arguments) {
        Ok(arguments) => arguments,
        Err(status) => return status,
    };
    let (common, change) = match arguments.verb {
        Verb::Show(common) => (common, None),
        Verb::Confirm { change, common } => (common, Some((OperatorConfirmation::Confirm, change.dry_run))),
        Verb::Rename { name, copy, change, common } => {
            let cluster = ClusterName::from_record(&name);
            if !cluster.can_name_objects() || cluster.is_default() {
                eprintln!("{name:?} cannot be the name of a cluster on Harvester: {}", ClusterName::ACCEPTED);
                return ExitCode::from(WRONG_USAGE);
            }
            let asked = if copy { OperatorConfirmation::Copy(cluster) } else { OperatorConfirmation::Rename(cluster) };
            (common, Some((asked, change.dry_run)))
        }
    };
    match entry::run(run(&common, change)) {
        Ok(text) => say(text.trim_end()),
        Err(error) => {
            eprintln!("{}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// `change`: what is asked for, and whether it is only told what it would do.
async fn run(common: &Common, change: Option<(OperatorConfirmation, bool)>) -> anyhow::Result<String> {
    let config = guest_config(common.kubeconfig.as_deref(), None).await.map_err(anyhow::Error::msg);
    let config = config.context("no access to the guest cluster")?;
    let records = Records::new(connect(config, &Settings::new("guest", &PRODUCT))?);
    let before = records.read().await?;
    let told = |record: &Record| common.output.render(|| shown(record), &document(record, None));
    let Some((asked, dry_run)) = change else { return Ok(told(&before)) };
    if let OperatorConfirmation::Copy(name) = &asked {
        let cluster_uid = records.cluster_uid().await.ok().flatten();
        if let Some(why) = before.refuses_copy(name, cluster_uid.as_deref()) {
            bail!("{why}");
        }
    }
    if dry_run {
        return Ok(foreseen(common.output, &before, &asked));
    }
    records.ask(&annotation(&asked)).await?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = records.read().await?;
        if now.confirmation.is_none() {
            let name = match &asked {
                OperatorConfirmation::Confirm => None,
                OperatorConfirmation::Rename(name) | OperatorConfirmation::Copy(name) => Some(name),
            };
            if name.is_some() && name != now.cluster_name.as_ref() {
                bail!(
                    "the controller has refused that name: Event ClusterNameRefused of ConfigMap \
                    kube-system/harvester-cloud-provider says why, and so does its log"
                );
            }
            return Ok(told(&now));
        }
        if Instant::now() >= deadline {
            bail!(
                "the request is stored, but no controller has carried it out within {} s; the leading controller does \
                so as soon as it can list the virtual machines; see the log of deployment harvester-cloud-provider",
                PATIENCE.as_secs()
            );
        }
        sleep(PERIOD).await;
    }
}

/// The confirmation as the annotation of the record says it to the leader.
fn annotation(asked: &OperatorConfirmation) -> String {
    match asked {
        OperatorConfirmation::Confirm => "confirm".to_owned(),
        OperatorConfirmation::Rename(name) => format!("rename {name}"),
        OperatorConfirmation::Copy(name) => format!("copy {name}"),
    }
}

/// Describes the confirmation before it is written.
fn meaning(asked: &OperatorConfirmation) -> String {
    let what = match asked {
        OperatorConfirmation::Copy(name) => format!(
            "calls this cluster {name}, takes its machines as they are now, and disowns every load balancer of \
             another name: each Service gets a new load balancer and a new address"
        ),
        OperatorConfirmation::Rename(name) => format!(
            "calls this cluster {name} and takes its machines as they are now: load balancers that exist keep \
             name and address, new ones are named after {name}"
        ),
        OperatorConfirmation::Confirm => {
            "takes the machines, the namespace and the Harvester of this cluster as they are now; its name \
            and its load balancers stay. It ends the suspicion of a restore (RestoreSuspected). For ten minutes more \
            than a third of the Services may get other addresses (TooManyAtOnce), and the load balancers that are \
            held back as garbage may be collected (GarbageNotDeleted)"
                .to_owned()
        }
    };
    format!("The controller that leads {what}.")
}

/// The record, and what would be done.
fn foreseen(output: Output, record: &Record, asked: &OperatorConfirmation) -> String {
    output.render(
        || format!("{}\n{}\nNothing was changed (--dry-run).", shown(record), meaning(asked)),
        &document(record, Some(&meaning(asked))),
    )
}

/// The record for programs; `foreseen` says what would be done.
fn document(record: &Record, foreseen: Option<&str>) -> Value {
    let mut all = json!({
        "name": record.cluster_name.as_ref().map(ClusterName::as_str),
        "restoreSuspected": record.restore_suspected.map(|stamp| stamp.to_string()),
        "safeMode": record.safe_mode,
    });
    if let Some(card) = &record.card {
        all["identity"] = json!({"cluster": card.cluster_uid, "namespace": card.namespace,
            "authority": card.authority, "names": card.names, "machines": card.machines, "absent": card.absent,
            "outside": card.outside});
    }
    if let Some(foreseen) = foreseen {
        all["foreseen"] = json!(foreseen);
    }
    all
}

/// The record as text.
fn shown(record: &Record) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        let _ = writeln!(text, "{key:<12}{}", if value.is_empty() { "-" } else { value });
    };
    line("name", record.cluster_name.as_ref().map(ClusterName::as_str).unwrap_or_default());
    if let Some(card) = &record.card {
        let list = |values: &std::collections::BTreeSet<String>| {
            // A cluster without a name has the empty one, too.
            let words = values.iter().map(String::as_str).filter(|value| !value.is_empty());
            words.collect::<Vec<_>>().join(" ")
        };
        line("cluster", &card.cluster_uid);
        line("namespace", &card.namespace);
        line("authority", &card.authority);
        line("names", &list(&card.names));
        line("machines", &list(&card.machines));
        if !card.absent.is_empty() {
            line("absent", &list(&card.absent));
        }
        if card.outside {
            line("controller", "outside this cluster");
        }
    }
    if let Some(stamp) = record.restore_suspected {
        line("restore", &format!("suspected since {stamp}: no garbage is collected for a day, nor 1 h after a start"));
    }
    line("safe mode", record.safe_mode.as_deref().unwrap_or("no"));
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use harvester_provider::IdentityCard;
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn name(name: &str) -> ClusterName {
        ClusterName::from_record(name)
    }

    #[test]
    fn what_is_asked_for_is_what_the_leader_reads_in_the_record() {
        for asked in [
            OperatorConfirmation::Confirm,
            OperatorConfirmation::Rename(name("prod2")),
            OperatorConfirmation::Copy(name("prod2")),
        ] {
            let mut config_map = ConfigMap::default();
            let key = "cloudprovider.harvesterhci.io/identity".to_owned();
            config_map.metadata.annotations = Some([(key, annotation(&asked))].into());
            assert_eq!(Record::from(&config_map).confirmation, Some(asked));
        }
    }

    #[test]
    fn the_command_line_is_read_and_a_name_is_a_name() {
        for (line, good) in [
            ("identity show", true),
            ("identity show -o json", true),
            ("identity show -o xml", false),
            ("identity confirm --dry-run", true),
            ("identity rename prod2 --copy --dry-run", true),
            ("identity rename", false),
            ("identity", false),
            ("identity forget", false),
        ] {
            assert_eq!(Arguments::try_parse_from(line.split(' ')).is_ok(), good, "{line}");
        }
        let arguments = ["identity", "rename", "My_Cluster"].map(str::to_owned);
        assert_eq!(main(&arguments), ExitCode::from(WRONG_USAGE));
    }

    #[test]
    fn what_is_asked_for_says_what_becomes_of_load_balancers() {
        let copy = OperatorConfirmation::Copy(name("prod2"));
        assert!(meaning(&copy).contains("each Service gets a new load balancer"));
        assert!(meaning(&OperatorConfirmation::Rename(name("prod2"))).contains("keep name and address"));
        assert!(meaning(&OperatorConfirmation::Confirm).contains("its load balancers stay"));
        let text = shown(&Record { safe_mode: Some("WrongHarvester: x".into()), ..Record::default() });
        assert_eq!(text, "name        -\nsafe mode   WrongHarvester: x");
    }

    #[test]
    fn programs_get_the_record_and_what_would_be_done() {
        let card =
            IdentityCard { namespace: "guests".into(), machines: ["u1".to_owned()].into(), ..IdentityCard::default() };
        let record = Record { cluster_name: Some(name("prod")), card: Some(card), ..Record::default() };
        let all: Value =
            serde_json::from_str(&foreseen(Output::Json, &record, &OperatorConfirmation::Confirm)).unwrap();
        assert_eq!((&all["name"], &all["safeMode"]), (&json!("prod"), &Value::Null));
        assert_eq!((&all["identity"]["namespace"], &all["identity"]["machines"]), (&json!("guests"), &json!(["u1"])));
        assert!(all["foreseen"].as_str().unwrap().contains("its load balancers stay"), "{all}");
        assert_eq!(document(&Record::default(), None)["identity"], Value::Null);
        assert!(
            foreseen(Output::Text, &record, &OperatorConfirmation::Confirm)
                .ends_with("Nothing was changed (--dry-run).")
        );
    }
}
