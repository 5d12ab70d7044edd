//! The announcer's command line: kube-vip's environment and flags, and the way out.

use std::process::ExitCode;

use announcer::Config;
use runtime::error::chain;
use runtime::logging::{self, Format};
use runtime::shutdown;

use crate::VERSION;

const HELP: &str = "\
Announces the addresses of Services of type LoadBalancer on the LAN (ARP, NDP, macvlan with DHCP); takes the place of kube-vip.

Usage: harvester-cloud-provider announcer [FLAGS]
       harvester-cloud-provider manager [FLAGS]      as kube-vip's manifests call it

Configuration is kube-vip's: environment variables first, then its flags. The ones that matter:
  vip_arp=true svc_enable=true   what kube-vip needs to do this job; accepted, and what this does anyway
  vip_interface=eth0             NIC for addresses; empty: the one of the default route
  vip_subnet=32,128              prefix length of addresses, IPv4 and IPv6; `auto` takes the NIC's
  vip_nodename=NAME              name of this node; without it NODE_NAME, then the host name
  election_mode=global           who owns an address: this version has `global`, one Lease for all
  svc_leasename=plndr-svcs-lock  name of that Lease
  vip_leaseduration=15 vip_renewdeadline=10 vip_retryperiod=2   its timing in seconds
  vip_arpRate=3000               repeat announcements for ever, in milliseconds; without it a short burst, then silence
  prometheus_server=:2112        serves /metrics, /healthz, /livez and /readyz; empty: nothing is served
  vip_loglevel=0                 -4 debug, 0 info, 4 warnings, 8 errors

Needs the capabilities NET_ADMIN and NET_RAW, as user 0. Ends with 0 after SIGTERM, with 1 on an error.

Examples:
  harvester-cloud-provider announcer
        in the DaemonSet's pod
  k8s_config_file=./kubeconfig vip_interface=eth1 vip_nodename=node1 harvester-cloud-provider announcer
        by hand on a node";

/// The command as completion and manual pages show it; its configuration is kube-vip's, not clap's.
pub fn command() -> clap::Command {
    clap::Command::new("announcer").about("Announces load balancer addresses on the LAN").after_help(HELP)
}

/// Runs the command; `arguments` are those after the program's name, the command word included.
pub fn main(arguments: &[String]) -> ExitCode {
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    // kube-vip knows the word `manager` only.
    let words = arguments.iter().enumerate().map(|(i, word)| if i == 0 { "manager".to_owned() } else { word.clone() });
    let hostname = hostname();
    let config = match Config::from_env_and_args(std::env::vars(), words, &hostname) {
        Ok(config) => config,
        Err(error) => {
            logging::init(Format::Text, 0);
            tracing::error!("the announcer cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    // slog counts downwards: -4 is debug, and what is below means more.
    logging::init(
        Format::Text,
        match config.log_level {
            ..=-8 => 5,
            -7..=-1 => 3,
            _ => 0,
        },
    );
    // The work of one node fits on one thread; more would cost memory on each of them.
    let result = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(run(config)),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("the announcer ends: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

async fn run(config: Config) -> anyhow::Result<()> {
    let stop = shutdown::on_signals()?;
    Ok(announcer::run(config, VERSION, stop).await?)
}

fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}
