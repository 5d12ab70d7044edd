//! The text about the garbage that was found.

use super::list::Garbage;
use crate::config::{GarbageConfig, GarbageMode};

/// The largest number of objects that one Event names.
const NAMED: usize = 8;

/// What was found, and what becomes of it.
pub fn summary(garbage: &[Garbage], settings: GarbageConfig, namespace: &str) -> String {
    if garbage.is_empty() {
        return format!("every load balancer of this cluster in namespace {namespace} of Harvester has its Service");
    }
    let named: Vec<String> = garbage
        .iter()
        .take(NAMED)
        .map(|garbage| {
            let service = garbage.service.as_ref().map(|key| format!(" of {key}")).unwrap_or_default();
            format!("{}{service} ({})", garbage.lb.name, garbage.kind.label())
        })
        .collect();
    let more = garbage.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let what = match settings.mode {
        GarbageMode::Delete => {
            format!("What is ours by the UID of this cluster is deleted after {} s.", settings.grace.as_secs())
        }
        GarbageMode::List | GarbageMode::Off => {
            "Nothing is deleted: look at them and delete them on Harvester, or set --garbage-collection=delete."
                .to_owned()
        }
    };
    format!(
        "{} load balancers in namespace {namespace} of Harvester have no Service: {}{more}. {what}",
        garbage.len(),
        named.join(", ")
    )
}
