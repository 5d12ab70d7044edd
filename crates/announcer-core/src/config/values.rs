//! Converts names and texts to values: the syntax of each variable, and of kube-vip's flags.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use contract::leases;
use l2_types::check_interface_name;

use super::variables::{REQUIRED, UNSUPPORTED, VARIABLES, Variable};
use super::{ConfigError, ElectionMode, LeaseConfig, Listen, PrefixRule, is_label, is_subdomain};
use crate::detect::profile::Profile;

/// Values by variable. A flag counts only if the environment does not set the variable (kube-vip spec 1.1).
pub(super) struct Values(pub BTreeMap<&'static str, String>);

/// The arguments, as values of the variables that they stand for.
pub(super) fn flags(args: impl IntoIterator<Item = String>) -> Result<BTreeMap<&'static str, String>, ConfigError> {
    let mut values = BTreeMap::new();
    let mut args = args.into_iter().peekable();
    let mut first = true;
    while let Some(argument) = args.next() {
        let word = std::mem::take(&mut first) && argument == "manager";
        if word {
            continue;
        }
        let Some(flag) = argument.strip_prefix("--") else {
            if argument == "-n" {
                let value = args.next().ok_or_else(|| ConfigError::FlagWithoutValue(argument.clone()))?;
                values.insert("cp_namespace", value);
                continue;
            }
            return Err(ConfigError::UnexpectedArgument(argument));
        };
        let (flag, value) = match flag.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (flag, None),
        };
        let variable: &Variable = VARIABLES
            .iter()
            .find(|v| v.flag == Some(flag))
            .ok_or_else(|| ConfigError::UnknownFlag(format!("--{flag}")))?;
        let value = match value {
            Some(value) => value,
            // A boolean flag has no separate value; a value follows only after `=`.
            None if variable.is_boolean() => "true".to_owned(),
            None => args.next().ok_or_else(|| ConfigError::FlagWithoutValue(format!("--{flag}")))?,
        };
        values.insert(variable.name, value);
    }
    Ok(values)
}

const BOOLEAN: &str = "1, t, T, TRUE, true, True or 0, f, F, FALSE, false, False";

/// Reads a boolean by the syntax of Go's `strconv.ParseBool` (kube-vip spec 0.6).
fn parse_boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

impl Values {
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The words of a comma-separated list.
    pub fn list(&self, name: &str) -> BTreeSet<String> {
        let words = self.text(name).unwrap_or_default().split(',').map(str::trim);
        words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
    }

    pub fn bad(&self, variable: &'static str, accepted: &'static str) -> ConfigError {
        ConfigError::Value { variable, value: self.text(variable).unwrap_or_default().to_owned(), accepted }
    }

    pub fn boolean(&self, name: &'static str) -> Result<Option<bool>, ConfigError> {
        match self.text(name) {
            None => Ok(None),
            Some(text) => parse_boolean(text).map(Some).ok_or_else(|| self.bad(name, BOOLEAN)),
        }
    }

    pub fn number<T: std::str::FromStr>(
        &self,
        name: &'static str,
        accepted: &'static str,
    ) -> Result<Option<T>, ConfigError> {
        match self.text(name) {
            None => Ok(None),
            Some(text) => text.trim().parse().map(Some).map_err(|_| self.bad(name, accepted)),
        }
    }

    pub fn seconds(&self, name: &'static str, default: u64) -> Result<u64, ConfigError> {
        let accepted = "a whole number of seconds from 1 to 3600";
        match self.number::<u64>(name, accepted)? {
            None => Ok(default),
            Some(value @ 1..=3600) => Ok(value),
            Some(_) => Err(self.bad(name, accepted)),
        }
    }

    pub fn interface(&self, name: &'static str) -> Result<Option<String>, ConfigError> {
        match self.text(name).map(str::trim) {
            None | Some("") => Ok(None),
            Some(text) if check_interface_name(text).is_ok() => Ok(Some(text.to_owned())),
            Some(_) => Err(self.bad(name, "the name of a network interface (1 to 15 characters, no slash, no space)")),
        }
    }

    /// Refuses modes of kube-vip that the announcer does not have: starting without them would look like success.
    pub fn refuse_unsupported(&self) -> Result<(), ConfigError> {
        for (variable, why) in UNSUPPORTED {
            if self.boolean(variable)? == Some(true) {
                return Err(ConfigError::Unsupported {
                    variable,
                    value: self.text(variable).unwrap_or_default().to_owned(),
                    why,
                });
            }
        }
        for (variable, why) in REQUIRED {
            if self.boolean(variable)? == Some(false) {
                return Err(ConfigError::Unsupported {
                    variable,
                    value: self.text(variable).unwrap_or_default().to_owned(),
                    why,
                });
            }
        }
        Ok(())
    }

    /// Reads `vip_subnet`: `32`, `32,128`, `auto`, `auto,128`. A single length counts for IPv4, a single `auto` for
    /// both families.
    pub fn prefixes(&self) -> Result<(PrefixRule, PrefixRule), ConfigError> {
        const NAME: &str = "vip_subnet";
        let accepted =
            "a prefix length (0 to 32), two as IPv4,IPv6 (such as 32,128), or the word auto in place of either";
        let Some(text) = self.text(NAME) else { return Ok((PrefixRule::Length(32), PrefixRule::Length(128))) };
        let parse = |part: &str, longest: u8| match part.trim().trim_start_matches('/') {
            "auto" => Some(PrefixRule::Auto),
            part => part.parse().ok().filter(|length| *length <= longest).map(PrefixRule::Length),
        };
        let parts: Vec<&str> = text.split(',').collect();
        let parsed = match parts.as_slice() {
            [one] => match one.trim().trim_start_matches('/').parse::<u8>() {
                // An IPv6-only cluster sets only the IPv6 length.
                Ok(length @ 33..=128) => Some((PrefixRule::Length(32), PrefixRule::Length(length))),
                _ => parse(one, 32).map(|rule| match rule {
                    PrefixRule::Auto => (rule, rule),
                    PrefixRule::Length(_) => (rule, PrefixRule::Length(128)),
                }),
            },
            [four, six] => parse(four, 32).zip(parse(six, 128)),
            _ => None,
        };
        parsed.ok_or_else(|| self.bad(NAME, accepted))
    }

    /// `election_mode` if it is set, otherwise `service` with `svc_election=true`, otherwise `node` (decisions.md 17).
    pub fn election_mode(&self) -> Result<ElectionMode, ConfigError> {
        match self.text("election_mode") {
            Some("global") => Ok(ElectionMode::Global),
            Some("service") => Ok(ElectionMode::Service),
            Some("node") => Ok(ElectionMode::Node),
            Some(_) => Err(self.bad("election_mode", "global, service or node")),
            None if self.boolean("svc_election")? == Some(true) => Ok(ElectionMode::Service),
            None => Ok(ElectionMode::Node),
        }
    }

    /// The URL of the API server. It is checked here because the HTTP library panics on a wrong one when it is used.
    pub fn server(&self) -> Result<Option<String>, ConfigError> {
        match self.text("kubernetes_addr").map(str::trim) {
            None | Some("") => Ok(None),
            Some(text) if is_server_url(text) => Ok(Some(text.to_owned())),
            Some(_) => Err(self.bad("kubernetes_addr", SERVER_URL)),
        }
    }

    /// `failover_profile`.
    pub fn profile(&self) -> Result<Profile, ConfigError> {
        match self.text("failover_profile").map(str::trim) {
            None => Ok(Profile::default()),
            Some(text) => text.parse().map_err(|_| self.bad("failover_profile", "default, fast or patient")),
        }
    }

    /// `svc_leasename`: namespace and name.
    fn lease_name(&self) -> Result<(Option<String>, String), ConfigError> {
        let Some(text) = self.text("svc_leasename") else { return Ok((None, leases::GLOBAL.to_owned())) };
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                (Some(namespace.to_owned()), name.to_owned())
            }
            Some(_) => return Err(self.bad("svc_leasename", "a name or namespace/name")),
            None => (None, text.to_owned()),
        };
        if namespace.iter().all(|namespace| is_label(namespace)) && is_subdomain(&name) {
            return Ok((namespace, name));
        }
        Err(self.bad("svc_leasename", "the name of a Lease (a DNS subdomain) or namespace/name"))
    }

    pub fn lease(&self) -> Result<LeaseConfig, ConfigError> {
        let (namespace, name) = self.lease_name()?;
        let duration = self.seconds("vip_leaseduration", 15)?;
        let renew = self.seconds("vip_renewdeadline", 10)?;
        let retry = self.seconds("vip_retryperiod", 2)?;
        // The order lease > renew deadline > 1.2 x retry is required (kube-vip spec 4).
        if duration <= renew || renew * 10 <= retry * 12 {
            return Err(ConfigError::Timing { duration, renew, retry });
        }
        Ok(LeaseConfig {
            name,
            namespace,
            fallback_namespace: self.text("cp_namespace").unwrap_or("kube-system").to_owned(),
            duration: Duration::from_secs(duration),
            renew_deadline: Duration::from_secs(renew),
            retry_period: Duration::from_secs(retry),
        })
    }

    /// `vip_arpRate`; values below 500 are replaced by 3000 (kube-vip spec 1.2).
    pub fn announce_interval(&self) -> Result<Option<Duration>, ConfigError> {
        let milliseconds = self.number::<u64>("vip_arpRate", "a whole number of milliseconds")?;
        Ok(milliseconds.map(|ms| Duration::from_millis(if ms < 500 { 3000 } else { ms })))
    }

    pub fn metrics(&self) -> Result<Option<Listen>, ConfigError> {
        let accepted = ":<port> or <address>:<port>";
        match self.text("prometheus_server").unwrap_or(":2112").trim() {
            "" => Ok(None),
            text => match listen(text) {
                Some(listen) => Ok(Some(listen)),
                None => Err(ConfigError::Value { variable: "prometheus_server", value: text.to_owned(), accepted }),
            },
        }
    }

    pub fn health(&self) -> Result<Option<Listen>, ConfigError> {
        let accepted = "0 (off) or a port from 1024 to 65535";
        match self.number::<u16>("health_check_port", accepted)? {
            None | Some(0) => Ok(None),
            Some(port @ 1024..) => {
                Ok(Some(Listen { address: SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port) }))
            }
            Some(_) => Err(self.bad("health_check_port", accepted)),
        }
    }

    pub fn without_effect(&self) -> Result<Vec<String>, ConfigError> {
        let mut names = Vec::new();
        for variable in VARIABLES {
            let Some(value) = self.text(variable.name) else { continue };
            // Variables without effect are checked too. Otherwise a typing error would go unnoticed until the variable
            // has an effect.
            let on = if variable.is_boolean() { self.boolean(variable.name)? != Some(false) } else { true };
            if variable.has_no_effect() && on {
                names.push(format!("{}={value}", variable.name));
            }
        }
        Ok(names)
    }
}

/// The accepted form of the URL of an API server.
const SERVER_URL: &str =
    "http:// or https://, a host, and a port unless it is the scheme's own, such as https://10.0.0.1:6443";

/// Whether the HTTP client's parser accepts the URL.
fn is_server_url(text: &str) -> bool {
    let uri = text.parse::<http::Uri>().ok();
    uri.is_some_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
    })
}

/// Reads Go's form of a listen address: `:2112` means both families.
fn listen(text: &str) -> Option<Listen> {
    let (host, port) = text.rsplit_once(':')?;
    let port: u16 = port.parse().ok().filter(|port| *port != 0)?;
    let ip = match host {
        "" => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        _ => host.trim_start_matches('[').trim_end_matches(']').parse().ok()?,
    };
    Some(Listen { address: SocketAddr::new(ip, port) })
}
