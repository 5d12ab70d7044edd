//! Names: of the guest cluster, of networks, and of the LoadBalancer that belongs to a Service.

use std::fmt;

use contract::names::is_dns_1035_label;
pub use contract::names::{is_dns_1123_label, is_label_value, is_object_name};

/// Name of the guest cluster, as given by `--cluster-name` and normalised. CCM spec 1.4, 3.1
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterName(String);

/// An oddity of a cluster name that an operator should know. Never an error: the Go provider accepts any name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClusterNameWarning {
    /// Blanks or quotes around it.
    #[error("--cluster-name {given:?}: blanks and quotes around the name are ignored, using {used:?}")]
    Trimmed {
        /// The value on the command line.
        given: String,
        /// The remaining name.
        used: String,
    },
    /// Nothing given.
    #[error(
        "--cluster-name is empty: load balancers of all unnamed clusters in the same namespace share this name; ensure \
        a unique name is set"
    )]
    Empty,
    /// The default name.
    #[error(
        "--cluster-name is the default \"kubernetes\", which is shared by every cluster that was not given a name: \
        ensure a unique name is set"
    )]
    Default,
    /// The name is not valid as a label value or an object name everywhere.
    #[error(
        "--cluster-name {0:?} is not an RFC 1123 label (lower-case letters, digits and '-', at most 63): Harvester may \
        refuse it"
    )]
    NotALabel(String),
}

impl ClusterName {
    /// Strips blanks, quotes and backticks from both ends, and returns warnings about the rest (CCM spec 1.4 step 2,
    /// 8.11).
    pub fn normalise(given: &str) -> (Self, Vec<ClusterNameWarning>) {
        let used = given.trim_matches([' ', '\t', '\r', '\n', '"', '\'', '`']);
        let mut warnings = Vec::new();
        if used != given {
            warnings.push(ClusterNameWarning::Trimmed { given: given.to_owned(), used: used.to_owned() });
        }
        match used {
            "" => warnings.push(ClusterNameWarning::Empty),
            "kubernetes" => warnings.push(ClusterNameWarning::Default),
            _ if !is_dns_1123_label(used) => warnings.push(ClusterNameWarning::NotALabel(used.to_owned())),
            _ => {}
        }
        (Self(used.to_owned()), warnings)
    }

    /// A name read back from an object or a record, taken as it is.
    pub fn from_record(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The names of a cluster that was given none.
    pub const DEFAULTS: [&str; 2] = ["", "kubernetes"];

    /// Whether the name is empty or `kubernetes`, and so identifies no cluster.
    pub fn is_default(&self) -> bool {
        Self::DEFAULTS.contains(&self.as_str())
    }

    /// Whether the API server accepts load balancers that are named after it, see [`ACCEPTED`](Self::ACCEPTED).
    pub fn can_name_objects(&self) -> bool {
        is_object_name(&self.load_balancer_name("a", "b", "c"))
    }

    /// Description of the names that [`Self::can_name_objects`] accepts, for messages.
    pub const ACCEPTED: &str =
        "accepted are lower-case letters, digits, '-' and '.', with a letter or digit at both ends and beside each '.'";

    /// Name of the LoadBalancer of a Service (CCM spec 3.1). It is stable over the life of the Service, and different
    /// for a successor of the same name. It is byte-identical to the Go provider's, so a bad cluster name leads to a
    /// name that the API server rejects.
    pub fn load_balancer_name(&self, namespace: &str, name: &str, uid: &str) -> String {
        const NAME_MAX: usize = 63;
        const SUFFIX: usize = 8;
        let prefix = if is_dns_1035_label(&self.0) { "" } else { "a" };
        let base = format!("{prefix}{}-{namespace}-{name}-", self.0);
        let checksum = crc32fast::hash(format!("{base}{uid}").as_bytes());
        // The cut may split a character, but only in a name that the API server rejects anyway.
        let kept = &base.as_bytes()[..base.len().min(NAME_MAX - SUFFIX)];
        format!("{}{checksum:08x}", String::from_utf8_lossy(kept))
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A network as `namespace/name` of its NetworkAttachmentDefinition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetworkName(String);

/// Why a text is not a valid network name (CCM spec 1.4, `NormalizeNetworkName`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkNameError {
    /// Nothing given.
    #[error("network type {kind}: network name is empty")]
    Empty {
        /// The network that was meant, for example `managementNetwork`.
        kind: String,
    },
    /// `/name`, `namespace/` or `/`.
    #[error("invalid network type {kind} format {value:?}, expected 'namespace/name'")]
    EmptyPart {
        /// The network that was meant.
        kind: String,
        /// The value.
        value: String,
    },
    /// More than one `/`.
    #[error("network type {kind} name {value:?} has too many slashes")]
    TooManySlashes {
        /// The network that was meant.
        kind: String,
        /// The value.
        value: String,
    },
}

impl NetworkName {
    /// Takes `namespace/name`, or a bare name in namespace `default`. `kind` goes into the error text; the management
    /// network's is `managementNetwork`. CCM spec 1.4, 8.12: no trimming, no check of the parts.
    pub fn parse(kind: &str, value: &str) -> Result<Self, NetworkNameError> {
        let (kind, given) = (kind.to_owned(), value.to_owned());
        match value.split('/').collect::<Vec<_>>().as_slice() {
            [""] => Err(NetworkNameError::Empty { kind }),
            [name] => Ok(Self(format!("default/{name}"))),
            ["", _] | [_, ""] => Err(NetworkNameError::EmptyPart { kind, value: given }),
            [_, _] => Ok(Self(given)),
            _ => Err(NetworkNameError::TooManySlashes { kind, value: given }),
        }
    }

    /// As `namespace/name`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NetworkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UID: &str = "d4b50d98-39ec-4d88-8098-36579de5db4a";

    /// CCM spec 3.1 and 8.1
    #[test]
    fn load_balancers_are_named_as_the_go_provider_names_them() {
        let long = "kube-system-rke2-ingress-nginx-controller";
        let table = [
            ("test", "default", "abcd", "test-default-abcd-7198d990"),
            ("1test", "default", "abcd", "a1test-default-abcd-725d6700"),
            ("test", "default-default", long, "test-default-default-kube-system-rke2-ingress-nginx-con5cd57013"),
            (
                "test",
                "default-default",
                "kube-system-rke2-ingress-nginx-co-abcd",
                "test-default-default-kube-system-rke2-ingress-nginx-co-88b790f1",
            ),
            ("1test", "default-default", long, "a1test-default-default-kube-system-rke2-ingress-nginx-c6fc0f001"),
            ("kubernetes", "default-default", long, "kubernetes-default-default-kube-system-rke2-ingress-ngi9255419d"),
            ("", "default", "abcd", "a-default-abcd-e85398a3"),
            ("My.Cluster", "default", "abcd", "aMy.Cluster-default-abcd-f8aea085"),
        ];
        for (cluster, namespace, service, expected) in table {
            let name = ClusterName::from_record(cluster).load_balancer_name(namespace, service, UID);
            assert_eq!(name, expected, "{cluster}/{namespace}/{service}");
        }
    }

    #[test]
    fn a_cluster_name_that_the_api_would_refuse_in_every_object_is_known_beforehand() {
        for good in ["", "kubernetes", "prod", "1prod", "prod.eu", "a-b"] {
            assert!(ClusterName::from_record(good).can_name_objects(), "{good:?}");
        }
        for bad in ["Bad Name", "Prod", "prod_eu", "prod/eu", "prod.", "prö"] {
            assert!(!ClusterName::from_record(bad).can_name_objects(), "{bad:?}");
        }
    }

    /// CCM spec 8.11
    #[test]
    fn a_cluster_name_is_trimmed_and_odd_ones_are_reported() {
        let table = [
            ("  \"\"  ", "", 2),
            ("kubernetes", "kubernetes", 1),
            ("good-guest-cluster", "good-guest-cluster", 0),
            ("Invalid.Cluster.Name", "Invalid.Cluster.Name", 1),
            ("\"`clean-me`\"", "clean-me", 1),
        ];
        for (given, used, warnings) in table {
            let (name, reported) = ClusterName::normalise(given);
            assert_eq!(name.as_str(), used, "{given}");
            assert_eq!(reported.len(), warnings, "{given}: {reported:?}");
        }
    }

    /// CCM spec 8.2
    #[test]
    fn a_name_that_identifies_no_cluster_asks_for_a_unique_one() {
        for (name, warned) in [("", true), ("kubernetes", true), ("production-cluster", false)] {
            let (_, warnings) = ClusterName::normalise(name);
            let text: String = warnings.iter().map(ToString::to_string).collect();
            assert_eq!(text.contains("ensure a unique name is set"), warned, "{name:?}: {text}");
            assert_eq!(ClusterName::from_record(name).is_default(), warned);
        }
    }

    /// CCM spec 8.12
    #[test]
    fn a_network_name_has_a_namespace_or_gets_default() {
        let parse = |value| {
            NetworkName::parse("managementNetwork", value).map(|name| name.to_string()).map_err(|e| e.to_string())
        };
        assert_eq!(parse("vlan-100").unwrap(), "default/vlan-100");
        assert_eq!(parse("harvester-public/vlan-200").unwrap(), "harvester-public/vlan-200");
        assert_eq!(parse("default/vlan-100").unwrap(), "default/vlan-100");
        assert_eq!(parse("").unwrap_err(), "network type managementNetwork: network name is empty");
        for value in ["namespace/", "/name", "/"] {
            let expected =
                format!("invalid network type managementNetwork format \"{value}\", expected 'namespace/name'");
            assert_eq!(parse(value).unwrap_err(), expected);
        }
        for value in ["too/many/slashes", "//"] {
            let expected = format!("network type managementNetwork name \"{value}\" has too many slashes");
            assert_eq!(parse(value).unwrap_err(), expected);
        }
    }

    proptest! {
        #[test]
        fn clean_parts_give_a_valid_object_name(cluster in "[a-z]([a-z0-9-]{0,61}[a-z0-9])?",
            namespace in "[a-z]([a-z0-9-]{0,61}[a-z0-9])?",
                                                name in "[a-z]([a-z0-9-]{0,61}[a-z0-9])?", uid in "[0-9a-f-]{36}") {
            let lb = ClusterName::from_record(&cluster).load_balancer_name(&namespace, &name, &uid);
            prop_assert!(is_dns_1035_label(&lb), "{}", lb);
        }

        #[test]
        fn no_input_panics(a in ".*", b in ".*", c in ".*") {
            let (name, _) = ClusterName::normalise(&a);
            let _ = name.load_balancer_name(&b, &c, &a);
            if let Ok(network) = NetworkName::parse(&a, &b) {
                prop_assert_eq!(network.as_str().matches('/').count(), 1);
            }
        }
    }
}
