//! Identifies other writers of an object by its managed fields.

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::Api;
use serde::de::DeserializeOwned;

/// The field manager of this program's writes: API servers derive it from the first part of the `User-Agent`.
pub const FIELD_MANAGER: &str = "harvester-cloud-provider";

/// The last other manager that wrote the object, with its operation and the time. With `members`, such as `labels` or
/// `addresses`, managers that own one of these fields take precedence: a kubelet writes its Node every few seconds, but
/// other fields.
pub fn other_writer(fields: &[ManagedFieldsEntry], members: &[&str]) -> Option<String> {
    let others =
        || fields.iter().filter(|entry| entry.manager.as_deref().is_some_and(|manager| manager != FIELD_MANAGER));
    let owns = |entry: &&ManagedFieldsEntry| {
        let owned = entry.fields_v1.as_ref().map(|fields| fields.0.to_string()).unwrap_or_default();
        members.iter().any(|member| owned.contains(&format!("\"f:{member}\"")))
    };
    let time = |entry: &&ManagedFieldsEntry| entry.time.as_ref().map(|time| time.0);
    let last = others().filter(owns).max_by_key(time).or_else(|| others().max_by_key(time))?;
    let manager = last.manager.as_deref().unwrap_or_default();
    let operation = last.operation.as_deref().unwrap_or_default();
    let time = last.time.as_ref().map(|time| format!(" at {}", time.0)).unwrap_or_default();
    Some(format!("{manager:?} ({operation}{time})"))
}

/// The same of the object with this name, as it is now.
pub async fn find_other_writer<K>(api: &Api<K>, name: &str, members: &[&str]) -> Result<Option<String>, kube::Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    let found = api.get_metadata(name).await?;
    Ok(other_writer(&found.metadata.managed_fields.unwrap_or_default(), members))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, Time};
    use serde_json::json;

    use super::*;

    #[test]
    fn the_other_writer_is_the_last_one_that_is_not_us_and_owns_what_is_undone() {
        let entry = |manager: &str, time: &str, member: &str| ManagedFieldsEntry {
            manager: Some(manager.into()),
            operation: Some("Update".into()),
            time: Some(Time(time.parse().unwrap())),
            fields_v1: Some(FieldsV1(json!({"f:metadata": {format!("f:{member}"): {}}}))),
            ..ManagedFieldsEntry::default()
        };
        let fields = [
            entry("kubectl", "2026-01-01T00:00:00Z", "labels"),
            entry("argocd", "2026-01-01T00:05:00Z", "labels"),
            entry(FIELD_MANAGER, "2026-01-01T00:06:00Z", "labels"),
            entry("kubelet", "2026-01-01T00:07:00Z", "conditions"),
        ];
        let argocd = "\"argocd\" (Update at 2026-01-01T00:05:00Z)";
        assert_eq!(other_writer(&fields, &["labels", "taints"]).unwrap(), argocd);
        assert_eq!(other_writer(&fields[..3], &[]).unwrap(), argocd);
        assert!(other_writer(&fields, &["spec"]).unwrap().starts_with("\"kubelet\""), "nobody owns it: the last one");
        assert_eq!(other_writer(&fields[2..3], &[]), None);
    }
}
