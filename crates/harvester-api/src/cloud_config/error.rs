//! Defects of a cloud-config, with texts for the person who has to correct it.

use std::path::PathBuf;

use super::DEFAULT_NAMESPACE;

/// An oddity that does not prevent the use.
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
    /// Another context refers to a further endpoint that cannot be used.
    #[error("{0}; not used as a further endpoint")]
    EndpointSkipped(CloudConfigError),
}

/// Why a cloud-config cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloudConfigError {
    /// The file contains only whitespace.
    #[error("cloud-config: the file is empty; expected a kubeconfig for the Harvester API (YAML or JSON)")]
    Empty,
    /// Not UTF-8.
    #[error(
        "cloud-config: not a text file (invalid UTF-8 after {valid} bytes); expected a kubeconfig for the Harvester \
        API (YAML or JSON)"
    )]
    NotText {
        /// Number of bytes before the first invalid one.
        valid: usize,
    },
    /// The text cannot be parsed.
    #[error("cloud-config: {}not valid YAML: {problem}", at_line(*.line))]
    Syntax {
        /// Line number from one, if known.
        line: Option<u64>,
        /// Message of the parser.
        problem: String,
    },
    /// A field has a wrong type.
    #[error("cloud-config: {field} is {found}, expected {expected}")]
    Type {
        /// Path of the field.
        field: String,
        /// The type that was found.
        found: &'static str,
        /// The accepted type.
        expected: &'static str,
    },
    /// A required field is missing.
    #[error("cloud-config: {field} is missing or empty; expected {expected}")]
    Missing {
        /// Path of the field.
        field: String,
        /// The accepted value.
        expected: String,
    },
    /// The current context is not in the list.
    #[error("cloud-config: context {name:?} named by current-context does not exist; contexts: {}", list(.known))]
    UnknownContext {
        /// The name in `current-context`.
        name: String,
        /// The existing names.
        known: Vec<String>,
    },
    /// A context's cluster is not in the list.
    #[error("cloud-config: cluster {name:?} named by context {context:?} does not exist; clusters: {}", list(.known))]
    UnknownCluster {
        /// Name of the context.
        context: String,
        /// The name of the cluster.
        name: String,
        /// The existing names.
        known: Vec<String>,
    },
    /// A context's user is not in the list.
    #[error("cloud-config: user {name:?} named by context {context:?} does not exist; users: {}", list(.known))]
    UnknownUser {
        /// Name of the context.
        context: String,
        /// The name of the user.
        name: String,
        /// The existing names.
        known: Vec<String>,
    },
    /// The server is not a usable URL.
    #[error(
        "cloud-config: server {value:?} of cluster {cluster:?} {problem}; expected a URL such as \
        https://192.0.2.10:6443"
    )]
    Server {
        /// Name of the cluster.
        cluster: String,
        /// The value.
        value: String,
        /// The problem.
        problem: &'static str,
    },
    /// Embedded data is not base64.
    #[error("cloud-config: {field} is not valid base64 ({problem}); expected base64 of PEM text on one line")]
    Base64 {
        /// Path of the field.
        field: String,
        /// Message of the decoder.
        problem: String,
    },
    /// Embedded data is not PEM of the right kind.
    #[error("cloud-config: {field} does not contain {expected} once decoded from base64")]
    NotPem {
        /// Path of the field.
        field: String,
        /// The expected content.
        expected: &'static str,
    },
    /// The user has no credentials.
    #[error(
        "cloud-config: user {user:?} has no credentials; expected one of token, tokenFile, client-certificate(-data) \
         with client-key(-data), username with password"
    )]
    NoCredentials {
        /// Name of the user.
        user: String,
    },
    /// The credentials come from a program that would have to be run.
    #[error(
        "cloud-config: user {user:?} logs in by {plugin}, a plug-in that is not run here; accepted are token, \
         tokenFile, client-certificate(-data) with client-key(-data), username with password: make such credentials \
         with generate-addon"
    )]
    Plugin {
        /// Name of the user.
        user: String,
        /// Name of the field.
        plugin: &'static str,
    },
    /// One of two fields that belong together is missing.
    #[error("cloud-config: user {user:?} has {present} but no {missing}; expected both")]
    IncompletePair {
        /// Name of the user.
        user: String,
        /// The field that is present.
        present: &'static str,
        /// The field that is missing.
        missing: &'static str,
    },
}

/// Why the provider cannot use its cloud-config file. The texts are those of CCM spec 1.5, because users search for
/// them.
#[derive(Debug, thiserror::Error)]
pub enum CloudConfigFileError {
    /// `--cloud-config` was not given.
    #[error(
        "--cloud-config was not given, and without it there is no way to Harvester. It names the file with Harvester's \
         kubeconfig; the chart sets it, from cloudConfig.secretName or cloudConfigPath (the Go provider: can't init \
         from an empty reader (io.Reader), check the --cloud-config to ensure it has a valid cloud-config)"
    )]
    NotGiven,
    /// The file cannot be read.
    #[error("Couldn't open cloud provider configuration {}", .path.display())]
    Unreadable {
        /// Value of the flag.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The content cannot be used.
    #[error("could not init cloud provider \"harvester\" from {}", .path.display())]
    Invalid {
        /// Value of the flag.
        path: PathBuf,
        /// The cause.
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
