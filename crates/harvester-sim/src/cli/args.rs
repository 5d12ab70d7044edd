//! What the command line accepts.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use harvester_api::ip_pool::{IpRange, ScopeTuple};
use harvester_sim::faults::Faults;
use harvester_sim::install::Network;
use harvester_sim::version::HostVersion;

/// Stand-in for the Harvester side of the cloud provider, on a real API server. For development and the demo only.
#[derive(Debug, Parser)]
#[command(name = "harvester-sim", version, after_help = EXAMPLES)]
pub struct Cli {
    /// Kubeconfig of an administrator of the API server that plays the Harvester host.
    #[arg(long, global = true, env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  harvester-sim install --namespace guests --project local:p-demo1 --network guests/mgmt:100
  harvester-sim run --webhook-bind 127.0.0.1:9443 --subresources-bind 127.0.0.1:9444 --control-bind 127.0.0.1:9445
  harvester-sim run --profile fast --host-version '<=1.8' --faults '{\"allocationDelayMs\":3000}'
  harvester-sim pool create edge --range 10.20.0.0/16,start=10.20.4.1,end=10.20.4.99 --network guests/mgmt --scope \
  namespace=guests
  harvester-sim vm create node1 --namespace guests --cluster demo --nic guests/mgmt,eth0,10.20.0.11 --region lab \
  --zone rack-1
  harvester-sim vm power node1 off --namespace guests
  harvester-sim vm migrate node1 --namespace guests --to host-2 --region lab --zone rack-2
  harvester-sim credentials --namespace guests --name demo --server https://10.20.0.2:6443 --ca-file ca.crt \
  >cloud-config

Faults of a running stand-in, by its control endpoint (namespace `*` is all that have no entry of their own):
  curl -X PUT 127.0.0.1:9445/faults/guests -d '{\"webhookOutage\": true}'
  curl -X PUT 127.0.0.1:9445/faults/guests -d '{\"staleSeconds\": 10, \"tooManyRequests\": 5, \"retryAfterSeconds\": 2}'
  curl -X PUT '127.0.0.1:9445/faults/*' -d '{}'
  curl -X POST 127.0.0.1:9445/restart
  curl -X POST 127.0.0.1:9445/lose-booking/guests/demo-default-web-7198d990";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Install kinds, roles, namespaces and networks. A second time changes nothing.
    Install(InstallArgs),
    /// Run the controllers, the webhooks and the aggregated API until a signal comes. Prints `ready` once it serves.
    Run(RunArgs),
    /// Play an upgrade of the hosts from a file: its plan, and what becomes of the machines.
    Replay(ReplayArgs),
    /// Virtual machines of guest clusters.
    Vm(VmArgs),
    /// Address pools.
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Make credentials for a guest cluster and print its cloud-config.
    Credentials(CredentialsArgs),
}

/// `install`.
#[derive(Debug, Args)]
pub struct InstallArgs {
    /// Namespace for virtual machines; may be repeated.
    #[arg(long = "namespace", default_value = "guests")]
    pub namespaces: Vec<String>,
    /// Rancher project of these namespaces, CLUSTER:PROJECT.
    #[arg(long)]
    pub project: Option<String>,
    /// Network to define, NAMESPACE/NAME[:VLAN]; may be repeated.
    #[arg(long = "network", value_parser = network)]
    pub networks: Vec<Network>,
}

/// `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Host to play: `<=1.8`, `>=1.9` or `1.9-rc`.
    #[arg(long, default_value_t = HostVersion::default())]
    pub host_version: HostVersion,
    /// Pace of the host.
    #[arg(long, value_enum, default_value_t = PaceArg::Real)]
    pub profile: PaceArg,
    /// Address of the webhooks; without it there is no admission, as on a host that has just started.
    #[arg(long, value_name = "ADDR:PORT")]
    pub webhook_bind: Option<SocketAddr>,
    /// Address or name at which the API server reaches the webhooks [default: the address bound].
    #[arg(long, requires = "webhook_bind", value_name = "HOST")]
    pub webhook_url_host: Option<String>,
    /// Address of the aggregated API with the guest agents.
    #[arg(long, value_name = "ADDR:PORT")]
    pub subresources_bind: Option<SocketAddr>,
    /// Address at which the API server reaches the aggregated API [default: the address bound].
    #[arg(long, requires = "subresources_bind", value_name = "ADDR")]
    pub subresources_host: Option<String>,
    /// Address of the control endpoint (HTTP).
    #[arg(long, value_name = "ADDR:PORT")]
    pub control_bind: Option<SocketAddr>,
    /// Address of the host's API as guests reach it, where it can be stale, slow or strict. Without it those faults do
    /// not come about.
    #[arg(long, requires_all = ["api_cert_file", "api_key_file"], value_name = "ADDR:PORT")]
    pub api_bind: Option<SocketAddr>,
    /// Certificate for it, PEM, of the authority that guests trust.
    #[arg(long, value_name = "FILE")]
    pub api_cert_file: Option<PathBuf>,
    /// Key of that certificate, PEM.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// What goes wrong from the start in all namespaces, as the control endpoint takes it.
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = faults)]
    pub faults: Faults,
}

/// Pace of the host.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum PaceArg {
    /// An answer after 20 ms, no limit, no collisions.
    Fast,
    /// The same after half a second.
    Slow,
    /// As measured on a real host: 5 requests per second after a burst of 10, two workers.
    Real,
}

/// `replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// What to play; see the files in `crates/harvester-sim/replays`.
    pub file: PathBuf,
    /// Namespace of the machines.
    #[arg(long, default_value = "guests")]
    pub namespace: String,
    /// Guest cluster that new machines are labelled with.
    #[arg(long, default_value = "demo")]
    pub cluster: String,
    /// Network of new machines.
    #[arg(long, default_value = "guests/mgmt")]
    pub network: String,
    /// So many times as fast as written.
    #[arg(long, default_value_t = 1.0)]
    pub speed: f64,
}

/// `vm`.
#[derive(Debug, Args)]
pub struct VmArgs {
    /// Namespace of the machine.
    #[arg(long, global = true, default_value = "guests")]
    pub namespace: String,
    /// What to do with it.
    #[command(subcommand)]
    pub command: VmCommand,
}

/// `vm …`.
#[derive(Debug, Subcommand)]
pub enum VmCommand {
    /// Create a machine, or make an existing one look like this.
    Create(VmCreateArgs),
    /// Delete machine and instance.
    Delete {
        /// Machine.
        name: String,
        /// As when Rancher removes the whole guest cluster: its load balancers go, too.
        #[arg(long)]
        tear_down: bool,
    },
    /// Switch on or off.
    Power {
        /// Machine.
        name: String,
        /// State.
        #[arg(value_enum)]
        state: OnOff,
    },
    /// Give a network card other addresses.
    Address {
        /// Machine.
        name: String,
        /// Network card.
        #[arg(long, default_value = "nic-0")]
        nic: String,
        /// Addresses, all of them; none at all: the card has none.
        addresses: Vec<String>,
    },
    /// Connect or silence the guest agent.
    Agent {
        /// Machine.
        name: String,
        /// State.
        #[arg(value_enum)]
        state: OnOff,
    },
    /// Migrate to another host node, whose topology shows afterwards.
    Migrate {
        /// Machine.
        name: String,
        /// Host node.
        #[arg(long)]
        to: String,
        /// Its region label.
        #[arg(long)]
        region: Option<String>,
        /// Its zone label.
        #[arg(long)]
        zone: Option<String>,
        /// How long the migration takes.
        #[arg(long, default_value_t = 500, value_name = "MS")]
        duration_ms: u64,
        /// It fails.
        #[arg(long)]
        fail: bool,
    },
}

/// `vm create`.
#[derive(Debug, Args)]
pub struct VmCreateArgs {
    /// Machine.
    pub name: String,
    /// Guest cluster; none: nobody labelled the machine.
    #[arg(long)]
    pub cluster: Option<String>,
    /// Network card, NETWORK,INTERFACE[,ADDRESS…]; may be repeated, in order.
    #[arg(long = "nic", value_parser = nic, required = true)]
    pub nics: Vec<NicArg>,
    /// Host name that the guest agent reports [default: the machine's name].
    #[arg(long)]
    pub hostname: Option<String>,
    /// Host node.
    #[arg(long, default_value = "host-1")]
    pub host: String,
    /// Region label of the host node.
    #[arg(long)]
    pub region: Option<String>,
    /// Zone label of the host node.
    #[arg(long)]
    pub zone: Option<String>,
    /// Made by hand, not by the node driver.
    #[arg(long)]
    pub hand_made: bool,
}

/// One `--nic`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicArg {
    /// `namespace/name`.
    pub network: String,
    /// Name inside the guest.
    pub interface: String,
    /// All addresses.
    pub addresses: Vec<String>,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    /// On.
    On,
    /// Off.
    Off,
}

/// `pool …`.
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Create a pool.
    Create {
        /// Name.
        name: String,
        /// SUBNET[,start=IP][,end=IP][,gateway=IP]; may be repeated.
        #[arg(long = "range", value_parser = range, required = true)]
        ranges: Vec<IpRange>,
        /// Network of the pool, NAMESPACE/NAME.
        #[arg(long, default_value = "")]
        network: String,
        /// Higher wins; 0 is none.
        #[arg(long, default_value_t = 0)]
        priority: u32,
        /// Who may use it, [project=P][,namespace=N][,cluster=C], `*` for each one not named; may be repeated [default:
        /// everybody].
        #[arg(long = "scope", value_parser = scope)]
        scopes: Vec<ScopeTuple>,
    },
}

/// `credentials`.
#[derive(Debug, Args)]
pub struct CredentialsArgs {
    /// Namespace of the guest's virtual machines.
    #[arg(long, default_value = "guests")]
    pub namespace: String,
    /// Service account, normally the name of the guest cluster.
    #[arg(long)]
    pub name: String,
    /// URL of the Harvester API as the guest reaches it.
    #[arg(long)]
    pub server: String,
    /// Authority of that API, PEM.
    #[arg(long)]
    pub ca_file: PathBuf,
    /// Request a token for a day instead of waiting for the token Secret, where no controller manager runs.
    #[arg(long)]
    pub request_token: bool,
}

fn faults(text: &str) -> Result<Faults, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

fn network(text: &str) -> Result<Network, String> {
    let accepted = || format!("{text:?} is not NAMESPACE/NAME[:VLAN]");
    let (name, vlan) = match text.split_once(':') {
        Some((name, vlan)) => (name, vlan.parse().map_err(|_| accepted())?),
        None => (text, 0),
    };
    match name.split('/').collect::<Vec<_>>().as_slice() {
        [namespace, name] if !namespace.is_empty() && !name.is_empty() => {
            Ok(Network { namespace: (*namespace).to_owned(), name: (*name).to_owned(), vlan })
        }
        _ => Err(accepted()),
    }
}

fn nic(text: &str) -> Result<NicArg, String> {
    let mut parts = text.split(',').map(str::trim).map(ToOwned::to_owned);
    match (parts.next().filter(|part| part.contains('/')), parts.next().filter(|part| !part.is_empty())) {
        (Some(network), Some(interface)) => {
            Ok(NicArg { network, interface, addresses: parts.filter(|part| !part.is_empty()).collect() })
        }
        _ => Err(format!("{text:?} is not NETWORK,INTERFACE[,ADDRESS...] such as guests/mgmt,eth0,10.20.0.11")),
    }
}

fn range(text: &str) -> Result<IpRange, String> {
    let mut parts = text.split(',');
    let mut range = IpRange { subnet: parts.next().unwrap_or_default().to_owned(), ..IpRange::default() };
    for part in parts {
        match part.split_once('=') {
            Some(("start", ip)) => range.range_start = Some(ip.to_owned()),
            Some(("end", ip)) => range.range_end = Some(ip.to_owned()),
            Some(("gateway", ip)) => range.gateway = Some(ip.to_owned()),
            _ => return Err(format!("{part:?} is none of start=IP, end=IP, gateway=IP")),
        }
    }
    Ok(range)
}

fn scope(text: &str) -> Result<ScopeTuple, String> {
    let mut tuple = ScopeTuple { project: "*".to_owned(), namespace: "*".to_owned(), guest_cluster: "*".to_owned() };
    for part in text.split(',') {
        match part.split_once('=') {
            Some(("project", value)) => value.clone_into(&mut tuple.project),
            Some(("namespace", value)) => value.clone_into(&mut tuple.namespace),
            Some(("cluster", value)) => value.clone_into(&mut tuple.guest_cluster),
            _ => return Err(format!("{part:?} is none of project=P, namespace=N, cluster=C")),
        }
    }
    Ok(tuple)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent_and_its_examples_parse() {
        Cli::command().debug_assert();
        for line in EXAMPLES.lines().filter_map(|line| line.trim().strip_prefix("harvester-sim ")) {
            let words =
                line.split_whitespace().take_while(|word| !word.starts_with('>')).map(|word| word.trim_matches('\''));
            let words: Vec<_> = std::iter::once("harvester-sim").chain(words).collect();
            Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    /// Without a flag the stand-in is as slow as a real host, so that nobody measures a fast one by mistake.
    #[test]
    fn a_host_has_the_pace_of_a_real_one_unless_another_is_asked_for() {
        for (words, expected) in [(&[][..], "Real"), (&["--profile", "fast"], "Fast"), (&["--profile=slow"], "Slow")] {
            let line = [&["harvester-sim", "run"][..], words].concat();
            let Command::Run(args) = Cli::try_parse_from(&line).unwrap().command else { panic!("{line:?}") };
            assert_eq!(format!("{:?}", args.profile), expected, "{line:?}");
        }
    }

    #[test]
    fn bad_values_say_what_is_accepted() {
        assert!(nic("mgmt").unwrap_err().contains("NETWORK,INTERFACE"));
        assert!(network("a/b:x").unwrap_err().contains("NAMESPACE/NAME"));
        assert!(range("10.0.0.0/8,first=1").unwrap_err().contains("start=IP"));
        assert!(scope("tenant=1").unwrap_err().contains("project=P"));
        assert_eq!(network("a/b:7"), Ok(Network { namespace: "a".to_owned(), name: "b".to_owned(), vlan: 7 }));
    }
}
