//! Every flag that the Go provider accepts (CCM spec 1.2, 1.3). Existing charts and users' `extraArgs` must keep
//! working, so a flag without a meaning here is accepted, and `--help` lists it as such. Any other unknown flag is
//! rejected.

#![allow(clippy::struct_field_names)] // a field is named like its flag

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgAction, Args, Command, CommandFactory, FromArgMatches, Parser};
use harvester_provider::GarbageMode;
use runtime::logging::Format;

use super::without_effect::{Kind, WITHOUT_EFFECT};
use crate::values::{address, count, go_bool, go_duration, go_period, log_level, one_of, port};
use crate::words;

/// Cloud controller manager for Kubernetes on Harvester.
#[derive(Debug, Parser)]
#[command(name = "harvester-cloud-provider", version = crate::VERSION, disable_version_flag = true)]
#[command(override_usage = USAGE, help_template = TEMPLATE, after_help = EXAMPLES, arg_required_else_help = false)]
pub struct Flags {
    #[command(flatten)]
    pub cloud: Cloud,
    #[command(flatten)]
    pub harvester: Harvester,
    #[command(flatten)]
    pub election: Election,
    #[command(flatten)]
    pub serving: Serving,
    /// Log level as klog counts it: 3 and more is debug, 5 and more is trace
    #[arg(short = 'v', long = "v", default_value_t = 0, value_parser = log_level, allow_negative_numbers = true)]
    #[arg(help_heading = "Global")]
    pub verbosity: i32,
    /// `text` or `json`
    #[arg(long, default_value = "text", value_parser = one_of(&LOGGING_FORMATS), help_heading = "Global")]
    pub logging_format: Format,
    /// Print the version and exit; `raw` prints more
    #[arg(long, short = 'V', num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(value_name = "raw", value_parser = version_form, help_heading = "Global")]
    pub version: Option<VersionForm>,
}

impl Flags {
    /// The verbosity as the logger takes it: klog's negative numbers mean 0, and no level is above the highest one.
    pub fn log_level(&self) -> u8 {
        u8::try_from(self.verbosity.max(0)).unwrap_or(u8::MAX)
    }
}

/// What `--version` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionForm {
    /// Nothing: the command runs.
    None,
    /// The version.
    Plain,
    /// More.
    Raw,
}

/// Parses `--version` as client-go does.
fn version_form(text: &str) -> Result<VersionForm, String> {
    match (text, go_bool(text)) {
        ("raw", _) => Ok(VersionForm::Raw),
        (_, Ok(true)) => Ok(VersionForm::Plain),
        (_, Ok(false)) => Ok(VersionForm::None),
        _ => Err("accepted: raw, true, false, or the flag alone".to_owned()),
    }
}

/// Words of `--logging-format`.
const LOGGING_FORMATS: [(&str, Format); 2] = [("text", Format::Text), ("json", Format::Json)];

/// Words of `--garbage-collection`.
const GARBAGE_MODES: [(&str, GarbageMode); 3] =
    [("off", GarbageMode::Off), ("list", GarbageMode::List), ("delete", GarbageMode::Delete)];

const USAGE: &str = "\
harvester-cloud-provider COMMAND     one of the commands below; each has a --help of its own
       harvester-cloud-provider [FLAGS]     the cloud controller manager, with the flags below";

/// Flags that users type come before those of manifests.
const TEMPLATE: &str = "{about-with-newline}\nUsage: {usage}\n\n{before-help}{all-args}{after-help}";

const EXAMPLES: &str = "\
Examples:
  harvester-cloud-provider --cloud-config=/etc/kubernetes/cloud-config/cloud-config --cluster-name=prod
        run as cloud controller manager, in the cluster's own pod, with the Secret mounted as a directory
  harvester-cloud-provider --cloud-config=./cloud-config --kubeconfig=./guest.yaml --cluster-name=prod \\
    --leader-elect=false
        the same from a workstation
  harvester-cloud-provider announcer
        run as announcer of load balancer addresses (see `harvester-cloud-provider announcer --help`)
  harvester-cloud-provider generate-addon demo guests
        make credentials for a guest cluster (see `harvester-cloud-provider generate-addon --help`)
  harvester-cloud-provider completion bash; harvester-cloud-provider man DIRECTORY
        completion for a shell; manual pages

Exit status: 0 after SIGTERM, 1 on a flag, configuration or start-up error and on loss of the lease,
2 on a word that is no command.";

#[derive(Debug, Args)]
#[command(next_help_heading = "Cloud and controllers")]
pub struct Cloud {
    /// Kubeconfig file of the Harvester cluster; its current context names the namespace of the virtual machines
    #[arg(long, value_name = "FILE")]
    pub cloud_config: Option<PathBuf>,
    /// Only `harvester` is known
    #[arg(long, default_value = "harvester")]
    pub cloud_provider: String,
    /// Name of this guest cluster on Harvester; must be unique in its namespace there
    #[arg(long, default_value = "kubernetes")]
    pub cluster_name: String,
    /// Controllers to run: `*`, a name, or `-name` to leave one out; the first match wins. Names: `cloud-node`,
    /// `cloud-node-lifecycle`, `service`, `route`, `node-loss`; the long ones of health checks are accepted, too
    #[arg(long, value_delimiter = ',', default_value = "*", action = ArgAction::Append, allow_hyphen_values = true)]
    pub controllers: Vec<String>,
    /// Kubeconfig file of the guest cluster; without it $KUBECONFIG, then the pod's service account
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// URL of the guest cluster's API server, overrides the one in the kubeconfig
    #[arg(long, value_name = "URL")]
    pub master: Option<String>,
    /// Requests to the guest cluster per second; 0: no limit. Leases are renewed past it
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true, value_name = "NUMBER")]
    pub kube_api_qps: f64,
    /// Requests to the guest cluster at once before --kube-api-qps counts; 0: one second's worth
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    pub kube_api_burst: u32,
    /// Services reconciled at the same time; fewer than 16 count as 16
    #[arg(long, default_value_t = 1, value_parser = count)]
    pub concurrent_service_syncs: usize,
    /// Nodes initialised at the same time; fewer than 16 count as 16
    #[arg(long, default_value_t = 1, value_parser = count)]
    pub concurrent_node_syncs: usize,
    /// How often nodes that are not ready are compared with their virtual machines
    #[arg(long, default_value = "5s", value_parser = go_period)]
    pub node_monitor_period: Duration,
    /// How often addresses of all nodes are compared again, beside the watch
    #[arg(long, default_value = "5m", value_parser = go_period)]
    pub node_status_update_frequency: Duration,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Harvester")]
#[allow(clippy::struct_excessive_bools)] // flags that have nothing to do with each other
pub struct Harvester {
    /// Do not watch virtual machine instances for topology, host names and network mapping
    #[arg(long, action = ArgAction::Set, default_value = "false")]
    pub disable_vmi_controller: bool,
    /// A node is on the virtual machine of its name: do not ask guest agents which machine has another host name
    #[arg(long, action = ArgAction::Set, default_value = "false")]
    pub disable_hostname_lookup: bool,
    /// Ignore the node annotations alpha.kubernetes.io/provided-node-ip and
    /// cloudprovider.harvesterhci.io/additional-internal-ips
    #[arg(long, action = ArgAction::Set, default_value = "false")]
    pub disable_annotation_alpha_provided_ip_addr: bool,
    /// Network attachment definition, `[namespace/]name`, whose NIC gives the node addresses
    #[arg(long, default_value = "")]
    pub management_network: String,
    /// At most one IPv4 and one IPv6 range, comma separated, that chooses the InternalIP
    #[arg(long, default_value = "")]
    pub node_ip_cidr: String,
    /// Addresses and ranges that are never shown as ExternalIP; comma separated, may be repeated
    #[arg(long, value_delimiter = ',', action = ArgAction::Append)]
    pub node_exclude_ip_ranges: Vec<String>,
    /// Taint a node out-of-service, which gives its pods and volumes free, once its virtual machine has been switched
    /// off for so long; 0 never does
    #[arg(long, default_value = "0s", value_parser = go_duration)]
    pub node_out_of_service_after: Duration,
    /// Taint nodes whose Harvester host is being upgraded with PreferNoSchedule, so that new pods go elsewhere where
    /// they can
    #[arg(long, action = ArgAction::Set, default_value = "false")]
    pub host_upgrade_taint: bool,
    /// Before the upgrade of a Harvester host moves or shuts down a node's virtual machine, hand over the addresses
    /// that the node announces; before a shutdown also cordon and drain it, and uncordon it when it is back
    #[arg(long, action = ArgAction::Set, default_value = "false")]
    pub host_upgrade_cooperation: bool,
    /// How long such a drain may take; the host waits for nobody
    #[arg(long, default_value = "5m", value_parser = go_duration)]
    pub host_upgrade_drain_timeout: Duration,
    /// At most so many load balancers on Harvester for this cluster; further Services wait with an Event. 0: no limit
    #[arg(long, default_value_t = 0, value_parser = count)]
    pub max_load_balancers: usize,
    /// Services may share the address of a Service in another namespace without its consent, as with the Go provider
    #[arg(long, action = ArgAction::Set, default_value = "false")]
    pub share_across_namespaces: bool,
    /// Load balancers on Harvester that no Service has: `off`, `list` (metric and Event), or `delete`
    #[arg(long, default_value = "list", value_parser = one_of(&GARBAGE_MODES))]
    pub garbage_collection: GarbageMode,
    /// How long a load balancer must have been without a Service before it is deleted
    #[arg(long, default_value = "24h", value_parser = go_duration)]
    pub garbage_collection_grace_period: Duration,
    /// Other contexts of the cloud-config with the same user and namespace are further ways to Harvester, once they
    /// have shown a virtual machine of this cluster
    #[arg(long, action = ArgAction::Set, default_value = "false")]
    pub cloud_config_all_contexts: bool,
    /// Observe and tell, and write nothing, neither in this cluster nor on Harvester
    #[arg(long, action = ArgAction::Set, default_value = "false")]
    pub paused: bool,
    /// Print this help when the start fails
    #[arg(long, action = ArgAction::Set, default_value = "false")]
    pub show_full_help_on_error: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Leader election")]
pub struct Election {
    /// Run only while holding the lease
    #[arg(long, action = ArgAction::Set, default_value = "true")]
    pub leader_elect: bool,
    /// How long others wait after the last renewal before they take the lease
    #[arg(long, default_value = "15s", value_parser = go_duration)]
    pub leader_elect_lease_duration: Duration,
    /// How long the holder tries to renew before it gives up
    #[arg(long, default_value = "10s", value_parser = go_duration)]
    pub leader_elect_renew_deadline: Duration,
    /// Time between two tries
    #[arg(long, default_value = "2s", value_parser = go_duration)]
    pub leader_elect_retry_period: Duration,
    /// Only `leases` is known
    #[arg(long, default_value = "leases")]
    pub leader_elect_resource_lock: String,
    /// Name of the lease
    #[arg(long, default_value = "cloud-controller-manager")]
    pub leader_elect_resource_name: String,
    /// Namespace of the lease
    #[arg(long, default_value = "kube-system")]
    pub leader_elect_resource_namespace: String,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Serving")]
pub struct Serving {
    /// Address to serve health and metrics on
    #[arg(long, default_value = "0.0.0.0", value_parser = address)]
    pub bind_address: std::net::IpAddr,
    /// Port to serve health and metrics on; 0 serves nothing
    #[arg(long, default_value_t = 10258, value_parser = port)]
    pub secure_port: u16,
    /// Certificate for serving; without it one is made in memory
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,
    /// Private key of --tls-cert-file
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: Option<PathBuf>,
    /// Oldest version of TLS that is served: VersionTLS12 or VersionTLS13
    #[arg(long, default_value = "", value_name = "VERSION")]
    pub tls_min_version: String,
    /// Cipher suites of TLS 1.2 that are served, by Go's names; those of TLS 1.3 cannot be chosen
    #[arg(long, value_delimiter = ',', action = ArgAction::Append, value_name = "NAMES")]
    pub tls_cipher_suites: Vec<String>,
    /// Authority whose client certificates count as users, beside tokens of the guest cluster; read at the start
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// Paths served to every reader
    #[arg(long, value_delimiter = ',', default_value = "/healthz,/readyz,/livez", action = ArgAction::Append)]
    pub authorization_always_allow_paths: Vec<String>,
}

/// The command line with every flag.
pub fn command() -> Command {
    let before = format!("Commands:\n{}", words::overview());
    let names: Vec<_> = WITHOUT_EFFECT.iter().map(|(name, ..)| format!("--{name}")).collect();
    let after = format!(
        "{EXAMPLES}\n\nAppendix: flags of the Go provider that are accepted and have no effect here; \
         docs/reference.md has the reasons.\n{}",
        names.join(", ")
    );
    let without_effect = WITHOUT_EFFECT.iter().map(|&(name, kind, reason)| {
        let arg =
            Arg::new(name).long(name).hide(true).help_heading("Accepted, without effect").action(ArgAction::Append);
        match kind {
            Kind::Bool => boolean(arg),
            Kind::Value => arg.allow_hyphen_values(true).value_parser(clap::value_parser!(String)),
        }
        .help(reason)
    });
    let flags = Flags::command().mut_args(|arg| if is_boolean(&arg) { boolean(arg) } else { arg });
    flags.before_help(before).after_help(after).args(without_effect)
}

fn is_boolean(arg: &Arg) -> bool {
    matches!(arg.get_default_values(), [value] if value == "true" || value == "false")
}

/// A boolean flag with Go's syntax: alone, or with a value after `=`.
fn boolean(arg: Arg) -> Arg {
    arg.num_args(0..=1).require_equals(true).default_missing_value("true").value_parser(go_bool)
}

/// Parses the command line, including the program name.
pub fn parse<I, T>(arguments: I) -> Result<Flags, clap::Error>
where
    I: IntoIterator<Item = T>,
    T: Into<std::ffi::OsString> + Clone,
{
    let matches = command().args_override_self(true).try_get_matches_from(arguments)?;
    Flags::from_arg_matches(&matches)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Flags, String> {
        parse(std::iter::once(&"harvester-cloud-provider").chain(arguments)).map_err(|e| e.to_string())
    }

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn the_help_names_every_controller() {
        let command = command();
        let flag = command.get_arguments().find(|arg| arg.get_id() == "controllers").unwrap();
        let help = flag.get_help().unwrap().to_string();
        for controller in cloud_provider::controllers::Controller::ALL {
            assert!(help.contains(&format!("`{}`", controller.metric_name())), "{controller}: {help}");
        }
    }

    /// W-54.
    #[test]
    fn defaults_are_those_of_the_go_provider() {
        let flags = parsed(&[]).unwrap();
        assert_eq!(flags.cloud.cluster_name, "kubernetes");
        assert_eq!(flags.cloud.controllers, ["*"]);
        assert_eq!(flags.cloud.node_status_update_frequency, Duration::from_mins(5));
        assert_eq!(flags.serving.secure_port, 10258);
        assert_eq!(flags.election.leader_elect_resource_name, "cloud-controller-manager");
        assert!(flags.election.leader_elect);
        let other = parsed(&["--leader-elect-resource-name=other"]).unwrap();
        assert_eq!(other.election.leader_elect_resource_name, "other", "the flag changes it");
    }

    #[test]
    fn flags_are_spelt_as_go_spells_them() {
        let flags = parsed(&[
            "--leader-elect=false",
            "--disable-vmi-controller",
            "--disable-hostname-lookup",
            "--node-monitor-period",
            "1m30s",
            "-v=4",
            "--controllers=*,-service",
        ])
        .unwrap();
        assert!(!flags.election.leader_elect);
        assert!(flags.harvester.disable_vmi_controller && flags.harvester.disable_hostname_lookup);
        assert_eq!(flags.cloud.node_monitor_period, Duration::from_secs(90));
        assert_eq!(flags.verbosity, 4);
        assert_eq!(flags.cloud.controllers, ["*", "-service"]);
        assert_eq!(parsed(&["-v", "2"]).unwrap().verbosity, 2);
        assert_eq!(parsed(&["-v4"]).unwrap().verbosity, 4);
        assert_eq!(parsed(&["--v=5", "--v=3"]).unwrap().verbosity, 3, "the last one wins");
        assert_eq!(
            parsed(&["--node-exclude-ip-ranges=10.0.0.1,10.0.1.0/24", "--node-exclude-ip-ranges=fd00::/64"])
                .unwrap()
                .harvester
                .node_exclude_ip_ranges
                .len(),
            3
        );
    }

    #[test]
    fn every_spelling_of_the_log_level_that_is_accepted_reaches_the_logger() {
        for (arguments, level) in [
            (&[][..], 0),
            (&["-v4"], 4),
            (&["-v=4"], 4),
            (&["-v", "3"], 3),
            (&["--v", "6", "-v=2"], 2),
            (&["--v=300"], u8::MAX),
            (&["--v=-1"], 0),
        ] {
            assert_eq!(parsed(arguments).unwrap().log_level(), level, "{arguments:?}");
        }
    }

    #[test]
    fn a_word_gives_its_value_and_another_is_answered_with_those_that_are_accepted() {
        let words = |flags: &Flags| (flags.harvester.garbage_collection, flags.logging_format);
        assert_eq!(words(&parsed(&[]).unwrap()), (GarbageMode::List, Format::Text));
        let given = parsed(&["--garbage-collection=delete", "--logging-format=json"]).unwrap();
        assert_eq!(words(&given), (GarbageMode::Delete, Format::Json));
        let error = parsed(&["--garbage-collection=all"]).unwrap_err();
        assert!(error.contains("--garbage-collection") && error.contains("off, list, delete"), "{error}");
    }

    #[test]
    fn the_version_is_asked_for_as_client_go_has_it() {
        for (arguments, form) in [
            (&[][..], None),
            (&["--version"], Some(VersionForm::Plain)),
            (&["-V"], Some(VersionForm::Plain)),
            (&["--version=T"], Some(VersionForm::Plain)),
            (&["--version=raw"], Some(VersionForm::Raw)),
            (&["--version=false"], Some(VersionForm::None)),
        ] {
            assert_eq!(parsed(arguments).unwrap().version, form, "{arguments:?}");
        }
        let error = parsed(&["--version=foo"]).unwrap_err();
        assert!(
            error.contains("'foo'") && error.contains("--version") && error.contains("raw, true, false"),
            "{error}"
        );
    }

    #[test]
    fn every_flag_without_effect_is_accepted_in_the_form_that_manifests_use() {
        for &(name, kind, _) in WITHOUT_EFFECT {
            let value = match kind {
                Kind::Bool => "true",
                Kind::Value => "x",
            };
            parsed(&[&format!("--{name}={value}")]).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }

    #[test]
    fn unknown_flags_and_positional_arguments_are_refused() {
        assert!(parsed(&["--loadbalancer-network=x"]).unwrap_err().contains("--loadbalancer-network"));
        assert!(parsed(&["stray"]).unwrap_err().contains("stray"));
        // The timers behind these would panic, in the replica that leads.
        for flag in ["--node-monitor-period", "--node-status-update-frequency"] {
            let error = parsed(&[&format!("{flag}=0s")]).unwrap_err();
            assert!(error.contains(flag) && error.contains("'0s'") && error.contains("above 0"), "{error}");
        }
        assert!(parsed(&["--leader-elect=perhaps"]).unwrap_err().contains("accepted: 1, t, T, true"));
    }

    #[test]
    fn a_value_that_cannot_be_read_is_answered_with_its_flag_and_what_is_accepted() {
        for (flag, value) in [
            ("--v", "foo"),
            ("--bind-address", "localhost"),
            ("--bind-address", "0.0.0.0:10258"),
            ("--secure-port", "70000"),
            ("--max-load-balancers", "-1"),
            ("--concurrent-service-syncs", "many"),
            ("--concurrent-node-syncs", "1.5"),
        ] {
            let error = parsed(&[&format!("{flag}={value}")]).unwrap_err();
            let named = error.contains(flag) && error.contains(&format!("'{value}'"));
            assert!(named && error.contains("accepted: "), "{error}");
        }
        assert_eq!(parsed(&["--v=-1"]).unwrap().verbosity, -1);
    }
}
