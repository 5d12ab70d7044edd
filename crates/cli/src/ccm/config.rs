//! Makes a validated configuration from the flags (CCM spec 1.3-1.5). The first error ends the start, with a text that
//! names the flag, the value and what is accepted.

use std::path::{Path, PathBuf};

use cloud_provider::controllers::{Controllers, UnknownController};
use harvester_api::cloud_config::{CloudConfig, CloudConfigFileError};
use harvester_api::names::{
    ClusterName, ClusterNameWarning, NetworkName, NetworkNameError, is_dns_1123_label, is_object_name,
};
use harvester_api::node_ip::{ExcludeRangeError, NodeIpCidr, NodeIpCidrError, parse_exclude_ranges};
use harvester_provider::{GarbageConfig, OwnNode, ProviderConfig};
use runtime::host;
use runtime::http::{Handshake, HandshakeError};
use runtime::leader::{Timing, TimingError};

use super::flags::Flags;

/// The complete configuration of the cloud controller manager.
#[derive(Debug)]
pub struct Configuration {
    /// Configuration of the provider.
    pub provider: ProviderConfig,
    /// Credentials and endpoints of Harvester.
    pub cloud_config: CloudConfig,
    /// The selected controllers.
    pub controllers: Controllers,
    /// Durations of the leader election; `None` without one.
    pub election: Option<Timing>,
    /// Certificate and key files for serving; without them a certificate is made in memory.
    pub serving_files: Option<(PathBuf, PathBuf)>,
    /// TLS versions and cipher suites for serving.
    pub handshake: Handshake,
    /// The warning that the command line gives no name to this cluster. It does not matter where another source has
    /// one.
    pub unnamed: Option<String>,
    /// Oddities that an operator should know, although the configuration works.
    pub warnings: Vec<String>,
    /// Remarks about settings that are left to their defaults, for the log.
    pub remarks: Vec<String>,
}

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// `--cloud-provider` has an unknown value.
    #[error("--cloud-provider: unknown cloud provider {0:?}; accepted: harvester")]
    CloudProvider(String),
    /// `--controllers`.
    #[error("--controllers")]
    Controllers(#[from] UnknownController),
    /// A worker count of zero.
    #[error("{flag} must be a positive number, got 0")]
    Workers {
        /// Name of the flag.
        flag: &'static str,
    },
    /// `--leader-elect-resource-lock`.
    #[error("--leader-elect-resource-lock={0}: resourceLock value must be \"leases\"")]
    ResourceLock(String),
    /// The durations of the election contradict each other.
    #[error("leader election flags")]
    Election(#[source] TimingError),
    /// One of the two files is missing.
    #[error("--tls-cert-file and --tls-private-key-file go together; only {0} was given")]
    ServingFiles(&'static str),
    /// `--tls-min-version` or `--tls-cipher-suites`.
    #[error(transparent)]
    Handshake(HandshakeError),
    /// The value of `--leader-elect-resource-name` or `--leader-elect-resource-namespace` is not valid for a Lease.
    #[error("{flag}={value}: {accepted}")]
    Lease {
        /// Name of the flag.
        flag: &'static str,
        /// The value.
        value: String,
        /// The accepted values.
        accepted: &'static str,
    },
    /// `--management-network`. These three begin with the Go provider's text, because users search for it.
    #[error(
        "invalid configuration for --management-network: {0}; accepted: the [namespace/]name of a network \
         attachment definition, such as default/vlan100"
    )]
    ManagementNetwork(NetworkNameError),
    /// `--node-ip-cidr`.
    #[error("{0}; accepted: at most one IPv4 and one IPv6 address or range, such as 192.168.0.0/24,2001:db8::/64")]
    NodeIpCidr(NodeIpCidrError),
    /// `--node-exclude-ip-ranges`.
    #[error("{0}; accepted: addresses and ranges, comma separated, such as 10.0.0.1,10.0.1.0/24")]
    ExcludeRanges(ExcludeRangeError),
    /// The cloud-config.
    #[error("Cloud provider harvester could not be initialized")]
    CloudConfig(#[source] CloudConfigFileError),
}

/// Validates the flags and reads the cloud-config.
pub fn configure(flags: &Flags) -> Result<Configuration, ConfigurationError> {
    if flags.cloud.cloud_provider != "harvester" {
        return Err(ConfigurationError::CloudProvider(flags.cloud.cloud_provider.clone()));
    }
    let controllers = Controllers::parse(flags.cloud.controllers.iter().map(String::as_str))?;
    for (flag, count) in [
        ("--concurrent-service-syncs", flags.cloud.concurrent_service_syncs),
        ("--concurrent-node-syncs", flags.cloud.concurrent_node_syncs),
    ] {
        if count == 0 {
            return Err(ConfigurationError::Workers { flag });
        }
    }
    let (cluster_name, name_warnings) = ClusterName::normalise(&flags.cloud.cluster_name);
    let anonymous =
        |warning: &ClusterNameWarning| matches!(warning, ClusterNameWarning::Default | ClusterNameWarning::Empty);
    let (unnamed, name_warnings): (Vec<_>, Vec<_>) = name_warnings.into_iter().partition(anonymous);
    let unnamed = unnamed.first().map(ToString::to_string);
    let mut warnings: Vec<String> = name_warnings.iter().map(ToString::to_string).collect();

    let management_network = match flags.harvester.management_network.as_str() {
        "" => None,
        value => Some(NetworkName::parse("managementNetwork", value).map_err(ConfigurationError::ManagementNetwork)?),
    };
    let mut remarks = Vec::new();
    if management_network.is_none() {
        remarks.push(
            "--management-network is not set: node addresses come from the first network of each virtual machine \
             and load balancers from the first matching pool; name it where machines have several networks"
                .to_owned(),
        );
    }
    let node_ip_cidr =
        NodeIpCidr::parse(&flags.harvester.node_ip_cidr).map_err(ConfigurationError::NodeIpCidr)?.unwrap_or_default();
    let node_exclude_ip_ranges =
        parse_exclude_ranges(&flags.harvester.node_exclude_ip_ranges).map_err(ConfigurationError::ExcludeRanges)?;
    let election = election(flags)?;
    let serving_files = serving_files(flags)?;
    let (handshake, handshake_warnings) =
        Handshake::parse(&flags.serving.tls_min_version, &flags.serving.tls_cipher_suites)
            .map_err(ConfigurationError::Handshake)?;
    warnings.extend(handshake_warnings);

    let cloud_config =
        read_cloud_config(flags.cloud.cloud_config.as_deref()).map_err(ConfigurationError::CloudConfig)?;
    warnings.extend(cloud_config.warnings.iter().map(ToString::to_string));
    Ok(Configuration {
        provider: ProviderConfig {
            cluster_name,
            management_network,
            node_ip_cidr: node_ip_cidr.prefixes,
            node_exclude_ip_ranges,
            ignore_node_annotations: flags.harvester.disable_annotation_alpha_provided_ip_addr,
            disable_vmi_controller: flags.harvester.disable_vmi_controller,
            disable_hostname_lookup: flags.harvester.disable_hostname_lookup,
            garbage: GarbageConfig::new(
                flags.harvester.garbage_collection,
                flags.harvester.garbage_collection_grace_period,
            ),
            share_across_namespaces: flags.harvester.share_across_namespaces,
            max_load_balancers: Some(flags.harvester.max_load_balancers).filter(|limit| *limit > 0),
            namespace: cloud_config.namespace.clone(),
            server: cloud_config.endpoints.first().map(|endpoint| endpoint.server.clone()).unwrap_or_default(),
            authority: cloud_config.authority().map(|authority| harvester_provider::fingerprint(&authority)),
            own_node: own_node(),
            paused: flags.harvester.paused,
        },
        cloud_config,
        controllers,
        election,
        serving_files,
        handshake,
        unnamed,
        warnings,
        remarks,
    })
}

/// The Node that this process runs on: from the chart's `NODE_NAME`, else the host name, because the pod uses the
/// host's network. The kubelet writes it in lower case.
fn own_node() -> Option<OwnNode> {
    let told = std::env::var("NODE_NAME").ok().map(|name| OwnNode { name, told: true });
    let host = Some(OwnNode { name: host::name().to_lowercase(), told: false });
    told.into_iter().chain(host).find(|node| !node.name.is_empty())
}

fn election(flags: &Flags) -> Result<Option<Timing>, ConfigurationError> {
    let election = &flags.election;
    if election.leader_elect_resource_lock != "leases" {
        return Err(ConfigurationError::ResourceLock(election.leader_elect_resource_lock.clone()));
    }
    let timing = Timing {
        lease_duration: election.leader_elect_lease_duration,
        renew_deadline: election.leader_elect_renew_deadline,
        retry_period: election.leader_elect_retry_period,
    };
    timing.validate().map_err(ConfigurationError::Election)?;
    if !election.leader_elect {
        return Ok(None);
    }
    let refuse =
        |flag, value: &str, accepted| Err(ConfigurationError::Lease { flag, value: value.to_owned(), accepted });
    let (name, namespace) = (&election.leader_elect_resource_name, &election.leader_elect_resource_namespace);
    if !is_object_name(name) {
        let accepted =
            "not a name of a Lease; accepted: lower-case letters, digits, '-' and '.' (an RFC 1123 subdomain)";
        return refuse("--leader-elect-resource-name", name, accepted);
    }
    if !is_dns_1123_label(namespace) {
        let accepted = "not a namespace; accepted: lower-case letters, digits and '-', at most 63 (an RFC 1123 label)";
        return refuse("--leader-elect-resource-namespace", namespace, accepted);
    }
    Ok(Some(timing))
}

fn serving_files(flags: &Flags) -> Result<Option<(PathBuf, PathBuf)>, ConfigurationError> {
    match (&flags.serving.tls_cert_file, &flags.serving.tls_private_key_file) {
        (Some(certificate), Some(key)) => Ok(Some((certificate.clone(), key.clone()))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(ConfigurationError::ServingFiles("--tls-cert-file")),
        (None, Some(_)) => Err(ConfigurationError::ServingFiles("--tls-private-key-file")),
    }
}

fn read_cloud_config(path: Option<&Path>) -> Result<CloudConfig, CloudConfigFileError> {
    let path = path.filter(|path| !path.as_os_str().is_empty()).ok_or(CloudConfigFileError::NotGiven)?;
    let bytes =
        std::fs::read(path).map_err(|source| CloudConfigFileError::Unreadable { path: path.to_owned(), source })?;
    CloudConfig::parse(&bytes).map_err(|source| CloudConfigFileError::Invalid { path: path.to_owned(), source })
}

#[cfg(test)]
pub(super) mod tests {
    use runtime::error::chain;

    use super::super::flags::parse;
    use super::*;

    pub(in crate::ccm) const CLOUD_CONFIG: &str = "\
apiVersion: v1
kind: Config
clusters: [{name: h, cluster: {server: 'https://10.0.0.1:6443', insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: c, context: {cluster: h, user: u, namespace: guests}}]
current-context: c
";

    fn configured(arguments: &[&str], cloud_config: &str) -> Result<Configuration, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cloud-config");
        std::fs::write(&path, cloud_config).unwrap();
        let file = format!("--cloud-config={}", path.display());
        let flags = parse(["harvester-cloud-provider", &file].iter().chain(arguments)).unwrap();
        configure(&flags).map_err(|error| chain(&error))
    }

    /// W-09.
    #[test]
    fn a_good_command_line_is_normalised() {
        let arguments = ["--cluster-name=\"prod\"", "--management-network=vlan100", "--node-ip-cidr= 192.168.0.0/24, "];
        let configuration = configured(&arguments, CLOUD_CONFIG).unwrap();
        assert_eq!(configuration.provider.cluster_name.as_str(), "prod");
        assert_eq!(configuration.provider.namespace, "guests");
        assert_eq!(configuration.provider.management_network.unwrap().to_string(), "default/vlan100");
        assert_eq!(configuration.provider.node_ip_cidr.len(), 1);
        assert_eq!(configuration.warnings.len(), 1, "the quotes: {:?}", configuration.warnings);
        assert!(configuration.election.is_some());
    }

    #[test]
    fn that_no_name_is_given_is_kept_apart_from_what_is_wrong() {
        for (argument, said) in [
            ("--cluster-name=kubernetes", Some("the default \"kubernetes\"")),
            ("--cluster-name=", Some("--cluster-name is empty")),
            ("--cluster-name=prod", None),
        ] {
            let configuration = configured(&[argument], CLOUD_CONFIG).unwrap();
            assert_eq!(configuration.warnings, Vec::<String>::new(), "{argument}");
            assert_eq!(configuration.unnamed.is_some(), said.is_some(), "{argument}");
            assert!(configuration.unnamed.unwrap_or_default().contains(said.unwrap_or_default()), "{argument}");
        }
    }

    /// W-43.
    #[test]
    fn each_mistake_names_its_flag() {
        for (argument, expected) in [
            ("--cloud-provider=aws", "unknown cloud provider \"aws\""),
            ("--controllers=loadbalancer", "\"loadbalancer\" is not in the list of known controllers"),
            ("--concurrent-service-syncs=0", "--concurrent-service-syncs must be a positive number"),
            ("--leader-elect-resource-lock=endpoints", "resourceLock value must be \"leases\""),
            ("--leader-elect-lease-duration=5s", "leader election flags: "),
            ("--tls-cert-file=/tls.crt", "only --tls-cert-file was given"),
            ("--tls-min-version=1.3", "accepted: VersionTLS12, VersionTLS13"),
            ("--tls-cipher-suites=TLS_RSA_WITH_RC4_128_SHA", "--tls-cipher-suites"),
            ("--management-network=a/b/c", "invalid configuration for --management-network: "),
            ("--node-ip-cidr=127.0.0.0/8", "loopback addresses not allowed"),
            ("--node-exclude-ip-ranges=x", "--node-exclude-ip-ranges"),
        ] {
            let error = configured(&[argument], CLOUD_CONFIG).unwrap_err();
            assert!(error.contains(expected), "{argument}: {error}");
        }
    }

    #[test]
    fn a_value_that_cannot_be_used_is_answered_with_its_flag_and_what_is_accepted() {
        for (flag, value) in [
            ("--management-network", "a/b/c"),
            ("--node-ip-cidr", "10.0.0.0/33"),
            ("--node-ip-cidr", "10.0.0.1,10.0.0.2"),
            ("--node-exclude-ip-ranges", "10.0.0.1-9"),
            ("--leader-elect-resource-name", "A/B"),
            ("--leader-elect-resource-name", ""),
            ("--leader-elect-resource-namespace", "kube.system"),
        ] {
            let error = configured(&[&format!("{flag}={value}")], CLOUD_CONFIG).unwrap_err();
            assert!(error.contains(flag) && error.contains(value) && error.contains("accepted: "), "{error}");
            assert_eq!(error.matches(flag).count(), 1, "{error}");
        }
        let alone = configured(&["--leader-elect=false", "--leader-elect-resource-name=A/B"], CLOUD_CONFIG);
        assert!(alone.unwrap().election.is_none());
    }

    #[test]
    fn a_cloud_config_that_cannot_be_used_says_what_is_wrong_with_it() {
        let missing = parse(["harvester-cloud-provider"]).unwrap();
        let error = chain(&configure(&missing).unwrap_err());
        assert!(error.contains("can't init from an empty reader (io.Reader), check the --cloud-config"), "{error}");
        assert!(
            error.contains("initialized: --cloud-config was not given") && error.contains("Harvester's kubeconfig"),
            "{error}"
        );
        let unreadable = parse(["harvester-cloud-provider", "--cloud-config=/does/not/exist"]).unwrap();
        let error = chain(&configure(&unreadable).unwrap_err());
        assert!(error.contains("Couldn't open cloud provider configuration /does/not/exist: No such file"), "{error}");
        for (content, expected) in [
            ("", "the file is empty"),
            ("{", "not valid YAML"),
            (&CLOUD_CONFIG.replace("current-context: c", "current-context: d"), "\"d\""),
        ] {
            let error = configured(&[], content).unwrap_err();
            assert!(error.contains(expected), "{content:?}: {error}");
        }
        let without_namespace = configured(&[], &CLOUD_CONFIG.replace(", namespace: guests", "")).unwrap();
        assert_eq!(without_namespace.provider.namespace, "default");
        assert!(without_namespace.warnings.iter().any(|w| w.contains("has no namespace")));
    }
}
