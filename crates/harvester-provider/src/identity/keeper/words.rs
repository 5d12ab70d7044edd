//! Texts of log lines and Events about the cluster's name.

use harvester_api::names::ClusterName;
use runtime::error::chain;

use super::super::judge::rename;
use super::super::record::{self, NAME, NAMESPACE, RecordError};

/// Logs that the name could not be recorded: as a warning once per outage.
pub(super) fn not_yet(error: &RecordError, told: bool) {
    let error = chain(error);
    if told {
        tracing::debug!(
            error,
            "the controller cannot store the name of this cluster in ConfigMap {NAMESPACE}/{NAME} yet; it tries again"
        );
    } else {
        tracing::warn!(
            error,
            "the controller cannot store the name of this cluster in ConfigMap {NAMESPACE}/{NAME} yet; it tries again"
        );
    }
}

pub(super) fn not_allowed(error: &RecordError) {
    tracing::warn!(
        error = chain(error),
        "the controller has no right to store the name of this cluster, so it notices a changed --cluster-name only \
        while load balancers exist; grant get, list, watch, create and update of configmaps in namespace {NAMESPACE}"
    );
}

/// The text about an invalid name in the record, which is not used.
pub(super) fn not_followed(bad: &str, used: &ClusterName) -> String {
    format!(
        "{} in ConfigMap {NAMESPACE}/{NAME} is {bad:?}, and no load balancer can be named after it: {}. This cluster \
        keeps the name {:?}",
        record::CLUSTER_NAME,
        ClusterName::ACCEPTED,
        used.as_str()
    )
}

/// The advice about a flag that is not used.
pub(super) fn mismatch(used: &ClusterName, flag: &ClusterName) -> String {
    let new = if flag.is_default() { ClusterName::from_record("NEW-NAME") } else { flag.clone() };
    format!(
        "--cluster-name is {:?}, but this cluster is known on Harvester as {:?} and keeps that name. If the flag was \
        lost or mistyped, set --cluster-name={used}. To really change the name, run `{}`",
        flag.as_str(),
        used.as_str(),
        rename(&new)
    )
}
