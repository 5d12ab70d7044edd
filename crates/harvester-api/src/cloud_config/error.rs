//! What can be wrong with a cloud-config, in words for the person who has to mend it.

use std::path::PathBuf;

use super::DEFAULT_NAMESPACE;

/// Something odd that does not prevent work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloudConfigWarning {
    /// The context names no namespace.
    #[error(
        "cloud-config: context {context:?} has no namespace, using {DEFAULT_NAMESPACE:?}; load balancers and virtual \
         machines of this guest cluster are looked up there only. Set contexts[].context.namespace to the namespace of \
         the cluster's virtual machines"
    )]
    NamespaceMissing {
        /// Name of the current context.
        context: String,
    },
    /// Another context names a further endpoint that cannot be used.
    #[error("{0}; not used as a further endpoint")]
    EndpointSkipped(CloudConfigError),
}

/// Why a cloud-config cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloudConfigError {
    /// Nothing but blanks.
    #[error("cloud-config: the file is empty; expected a kubeconfig for the Harvester API (YAML or JSON)")]
    Empty,
    /// Not UTF-8.
    #[error(
        "cloud-config: not a text file (invalid UTF-8 after {valid} bytes); expected a kubeconfig for the Harvester \
        API (YAML or JSON)"
    )]
    NotText {
        /// Bytes before the first bad one.
        valid: usize,
    },
    /// The parser gave up.
    #[error("cloud-config: {}not valid YAML: {problem}", at_line(*.line))]
    Syntax {
        /// One-based, where known.
        line: Option<u64>,
        /// What the parser found.
        problem: String,
    },
    /// A member of a wrong type.
    #[error("cloud-config: {field} is {found}, expected {expected}")]
    Type {
        /// Path of the member.
        field: String,
        /// What is there.
        found: &'static str,
        /// What is accepted.
        expected: &'static str,
    },
    /// A member that must be there.
    #[error("cloud-config: {field} is missing or empty; expected {expected}")]
    Missing {
        /// Path of the member.
        field: String,
        /// What is accepted.
        expected: String,
    },
    /// The current context is not in the list.
    #[error("cloud-config: context {name:?} named by current-context does not exist; contexts: {}", list(.known))]
    UnknownContext {
        /// As named.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// A context's cluster is not in the list.
    #[error("cloud-config: cluster {name:?} named by context {context:?} does not exist; clusters: {}", list(.known))]
    UnknownCluster {
        /// Whose.
        context: String,
        /// As named.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// A context's user is not in the list.
    #[error("cloud-config: user {name:?} named by context {context:?} does not exist; users: {}", list(.known))]
    UnknownUser {
        /// Whose.
        context: String,
        /// As named.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The server is not a usable URL.
    #[error(
        "cloud-config: server {value:?} of cluster {cluster:?} {problem}; expected a URL such as \
        https://192.0.2.10:6443"
    )]
    Server {
        /// Whose.
        cluster: String,
        /// As written.
        value: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Embedded data is not base64.
    #[error("cloud-config: {field} is not valid base64 ({problem}); expected base64 of PEM text on one line")]
    Base64 {
        /// Path of the member.
        field: String,
        /// What the decoder found.
        problem: String,
    },
    /// Embedded data is not PEM of the right kind.
    #[error("cloud-config: {field} does not contain {expected} once decoded from base64")]
    NotPem {
        /// Path of the member.
        field: String,
        /// What should be there.
        expected: &'static str,
    },
    /// The user cannot log in.
    #[error(
        "cloud-config: user {user:?} has no credentials; expected one of token, tokenFile, client-certificate(-data) \
         with client-key(-data), username with password"
    )]
    NoCredentials {
        /// Name of the user.
        user: String,
    },
    /// A program would have to be run.
    #[error(
        "cloud-config: user {user:?} logs in by {plugin}, a plug-in that is not run here; accepted are token, \
         tokenFile, client-certificate(-data) with client-key(-data), username with password: make such credentials \
         with generate-addon"
    )]
    Plugin {
        /// Name of the user.
        user: String,
        /// Which member.
        plugin: &'static str,
    },
    /// Half of a pair.
    #[error("cloud-config: user {user:?} has {present} but no {missing}; expected both")]
    IncompletePair {
        /// Name of the user.
        user: String,
        /// What is there.
        present: &'static str,
        /// What is not.
        missing: &'static str,
    },
}

/// Why the provider could not get at its cloud-config. Texts of ccm.md 1.5, which users grep for.
#[derive(Debug, thiserror::Error)]
pub enum CloudConfigFileError {
    /// `--cloud-config` was not given.
    #[error(
        "can't init from an empty reader (io.Reader), check the --cloud-config to ensure it has a valid cloud-config: \
         the flag was not given, and without it there is no way to Harvester. It names the file with Harvester's \
         kubeconfig; the chart sets it, from cloudConfig.secretName or cloudConfigPath"
    )]
    NotGiven,
    /// The file cannot be read.
    #[error("Couldn't open cloud provider configuration {}", .path.display())]
    Unreadable {
        /// Value of the flag.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The content cannot be used.
    #[error("could not init cloud provider \"harvester\" from {}", .path.display())]
    Invalid {
        /// Value of the flag.
        path: PathBuf,
        /// Why.
        #[source]
        source: CloudConfigError,
    },
}

fn at_line(line: Option<u64>) -> String {
    line.map(|line| format!("line {line}: ")).unwrap_or_default()
}

pub(super) fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
