//! Reads kube-vip's configuration into one plain struct: environment variables and flags in, a [`Config`] or an error
//! with the name of the variable out.
//!
//! This module does not look at the machine. The few facts that it needs (host name, existing files) are arguments or
//! left to the caller.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

mod values;
mod variables;

use crate::class::ClassRules;
use crate::detect::profile::Profile;
use values::{Values, flags};
pub use variables::{VARIABLES, Variable};

/// Why the configuration cannot be used. The text is what the user reads when the process exits.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// A value that cannot be parsed.
    #[error("environment variable {variable} is {value:?}: accepted is {accepted}")]
    Value {
        /// Name of the variable.
        variable: &'static str,
        /// The value that was found.
        value: String,
        /// What is accepted.
        accepted: &'static str,
    },
    /// A mode of kube-vip that this announcer does not have.
    #[error("environment variable {variable} is {value:?}: {why}")]
    Unsupported {
        /// Name of the variable.
        variable: &'static str,
        /// The value that was found.
        value: String,
        /// What to do instead.
        why: &'static str,
    },
    /// Lease timings that cannot work together.
    #[error(
        "lease timings do not fit: vip_leaseduration ({duration} s) must be greater than vip_renewdeadline \
         ({renew} s), and that greater than 1.2 times vip_retryperiod ({retry} s)"
    )]
    Timing {
        /// `vip_leaseduration` in seconds.
        duration: u64,
        /// `vip_renewdeadline` in seconds.
        renew: u64,
        /// `vip_retryperiod` in seconds.
        retry: u64,
    },
    /// A flag that kube-vip does not have.
    #[error("unknown flag {0}: accepted are kube-vip's flags for services in ARP mode")]
    UnknownFlag(String),
    /// A flag that needs a value came last.
    #[error("flag {0} needs a value")]
    FlagWithoutValue(String),
    /// A word that is not `manager`.
    #[error("{0:?} is not accepted here: the announcer takes flags of the form --name=value, see --help")]
    UnexpectedArgument(String),
}

/// How the owner of a Service is determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElectionMode {
    /// One Lease for all Services, kube-vip's `svc_election=false`.
    Global,
    /// One Lease per Service, kube-vip's `svc_election=true`.
    Service,
    /// One membership Lease per node, and a record of the owner on each Service.
    Node,
}

impl ElectionMode {
    /// The value of `election_mode`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Service => "service",
            Self::Node => "node",
        }
    }
}

/// Name of the Lease, and client-go's three timings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseConfig {
    /// `svc_leasename` without its namespace.
    pub name: String,
    /// Namespace given as `namespace/name`; absent: the pod's own.
    pub namespace: Option<String>,
    /// The namespace if the pod's own cannot be read: `cp_namespace`.
    pub fallback_namespace: String,
    /// `vip_leaseduration`.
    pub duration: Duration,
    /// `vip_renewdeadline`.
    pub renew_deadline: Duration,
    /// `vip_retryperiod`.
    pub retry_period: Duration,
}

/// Prefix length of an address on an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixRule {
    /// This length.
    Length(u8),
    /// The prefix length of the interface's own subnet that contains the address.
    Auto,
}

/// Where the credentials of the cluster come from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ApiConfig {
    /// `k8s_config_file`: the file must exist if it is set.
    pub kubeconfig: Option<PathBuf>,
    /// `HOME`, for `.kube/config`.
    pub home: Option<PathBuf>,
    /// `kubernetes_addr`: replaces the server's URL.
    pub server: Option<String>,
}

/// Where metrics and health are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    /// The address; the unspecified IPv6 address means both families.
    pub address: SocketAddr,
}

/// The configuration of the announcer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // independent switches of users, not the states of one machine
pub struct Config {
    /// Identity in elections and in `kube-vip.io/vipHost`, lower-cased.
    pub node_name: String,
    /// `vip_interface`; absent: the interface of the default route.
    pub interface: Option<String>,
    /// `vip_servicesinterface`; absent: `interface`. May be the word `auto`.
    pub services_interface: Option<String>,
    /// `vip_subnet`, IPv4 part.
    pub prefix4: PrefixRule,
    /// `vip_subnet`, IPv6 part.
    pub prefix6: PrefixRule,
    /// The mode of ownership (decisions.md 17).
    pub election_mode: ElectionMode,
    /// `failover_profile`: how fast `node` mode suspects a silent owner.
    pub profile: Profile,
    /// `vip_failback`: in `node` mode, hand an address back to the node where it belongs.
    pub fail_back: bool,
    /// `vip_handover`: in `node` mode, hand all addresses over when the process ends, even if the node stays in
    /// service.
    pub hand_over_on_stop: bool,
    /// `vip_probe`: in `node` mode, probe Services from two other nodes; annotations override it.
    pub probe: bool,
    /// `vip_claim_keys`: the directory with the keys of claims; absent: the UIDs of Services are the keys.
    pub claim_keys: Option<PathBuf>,
    /// The Lease of `global` mode.
    pub lease: LeaseConfig,
    /// The rules for the class of a Service.
    pub class: ClassRules,
    /// `svc_controller`: whether a cloud controller gives Services their addresses; absent: its finalizer tells.
    pub controller: Option<bool>,
    /// `svc_lease_namespaces`: in `service` mode, the namespaces where Services of other namespaces may have their
    /// Leases.
    pub lease_namespaces: BTreeSet<String>,
    /// `svc_namespace`: watch one namespace only.
    pub watch_namespace: Option<String>,
    /// `vip_arpRate`: interval of repeated announcements. Absent, if the variable is not set: one burst, then silence.
    pub announce_interval: Option<Duration>,
    /// `enable_service_security`.
    pub service_security: bool,
    /// `disable_service_updates`.
    pub disable_service_updates: bool,
    /// `prometheus_server`; absent: not served.
    pub metrics: Option<Listen>,
    /// `health_check_port`; absent: not served on a port of its own.
    pub health: Option<Listen>,
    /// How to reach the cluster.
    pub api: ApiConfig,
    /// `vip_loglevel`, in the levels of Go's `log/slog`: -8 trace, -4 debug, 0 info, 4 warn, 8 error.
    pub log_level: i32,
    /// Variables that are set and have no effect.
    pub without_effect: Vec<String>,
}

impl Config {
    /// Reads kube-vip's environment and arguments. `args` are the arguments after the program's name, with or without
    /// the leading word `manager`. `hostname` is the node's name if neither `vip_nodename` nor `NODE_NAME` is set.
    pub fn from_env_and_args<E, A>(env: E, args: A, hostname: &str) -> Result<Self, ConfigError>
    where
        E: IntoIterator<Item = (String, String)>,
        A: IntoIterator<Item = String>,
    {
        let mut values = flags(args)?;
        let mut node_name = None;
        let mut home = None;
        for (name, value) in env {
            match name.as_str() {
                "NODE_NAME" if !value.is_empty() => node_name = Some(value),
                "HOME" if !value.is_empty() => home = Some(PathBuf::from(value)),
                _ => {
                    if let Some(variable) = VARIABLES.iter().find(|v| v.name == name) {
                        // An empty value means "not set", except where empty is meaningful (kube-vip spec 1.1).
                        if !value.is_empty() || variable.name == "lb_class_name" {
                            values.insert(variable.name, value);
                        }
                    }
                }
            }
        }
        let values = Values(values);
        values.refuse_unsupported()?;

        let (prefix4, prefix6) = values.prefixes()?;
        let class = ClassRules {
            name: values.text("lb_class_name").map_or_else(|| ClassRules::default().name, str::to_owned),
            only: values.boolean("lb_class_only")?.unwrap_or(false),
            legacy: values.boolean("lb_class_legacy_handling")?.unwrap_or(true),
        };
        if values.text("svc_namespace").is_some_and(|namespace| !is_label(namespace)) {
            return Err(values.bad("svc_namespace", "the name of a namespace (a DNS label)"));
        }
        let (variable, named) = match (values.text("vip_nodename"), node_name.as_deref()) {
            (Some(name), _) => ("vip_nodename", name),
            (None, Some(name)) => ("NODE_NAME", name),
            (None, None) => ("vip_nodename", hostname),
        };
        let node_name = named.trim().to_lowercase();
        // The node's name becomes a part of the names of Leases.
        if !is_subdomain(&node_name) {
            let accepted = "the name of a node: letters, digits, - and ., at most 253 (a DNS subdomain)";
            return Err(ConfigError::Value { variable, value: named.to_owned(), accepted });
        }
        let config = Self {
            node_name,
            interface: values.interface("vip_interface")?,
            services_interface: values.interface("vip_servicesinterface")?,
            prefix4,
            prefix6,
            election_mode: values.election_mode()?,
            profile: values.profile()?,
            fail_back: values.boolean("vip_failback")?.unwrap_or(false),
            hand_over_on_stop: values.boolean("vip_handover")?.unwrap_or(false),
            probe: values.boolean("vip_probe")?.unwrap_or(false),
            claim_keys: values.text("vip_claim_keys").map(PathBuf::from),
            lease: values.lease()?,
            class,
            controller: values.boolean("svc_controller")?,
            lease_namespaces: values.list("svc_lease_namespaces"),
            watch_namespace: values.text("svc_namespace").map(str::to_owned),
            announce_interval: values.announce_interval()?,
            // The default differs from kube-vip's `false`, which leaves every port of the node open on each VIP
            // (decisions.md 16).
            service_security: values.boolean("enable_service_security")?.unwrap_or(true),
            disable_service_updates: values.boolean("disable_service_updates")?.unwrap_or(false),
            metrics: values.metrics()?,
            health: values.health()?,
            api: ApiConfig {
                kubeconfig: values.text("k8s_config_file").map(PathBuf::from),
                home,
                server: values.server()?,
            },
            log_level: values.number("vip_loglevel", "-8 trace, -4 debug, 0 info, 4 warn, 8 error")?.unwrap_or(0),
            without_effect: values.without_effect()?,
        };
        Ok(config)
    }
}

/// Whether a text is a DNS label (RFC 1123), as names of namespaces must be.
fn is_label(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.len() <= 63
        && text.bytes().all(|byte| plain(byte) || byte == b'-')
        && text.bytes().next().is_some_and(plain)
        && text.bytes().last().is_some_and(plain)
}

/// Whether a text is a DNS subdomain, as names of nodes and Leases must be.
fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests;
