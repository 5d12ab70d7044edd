//! The election record, and its representation in a Lease. The Lease is handled as unstructured JSON, so that fields of
//! a newer API server survive a PUT (decisions.md 4).

use std::time::Duration;

use jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value, json};

/// The record that the holder of a Lease writes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// `holderIdentity`; empty when released.
    pub holder: String,
    /// `leaseDurationSeconds`.
    pub lease_duration: Duration,
    /// `acquireTime`.
    pub acquire_time: Option<Timestamp>,
    /// `renewTime`. Only its change matters, never its value, because clocks differ.
    pub renew_time: Option<Timestamp>,
    /// `leaseTransitions`.
    pub transitions: i64,
}

/// The largest value: the field is an int32, and each change of holder adds one.
const MOST_TRANSITIONS: i64 = i32::MAX as i64 - 1;

/// The API resource of Leases.
pub fn resource() -> ApiResource {
    ApiResource::erase::<k8s_openapi::api::coordination::v1::Lease>(&())
}

/// Reads the record. Missing or malformed fields are empty, as in client-go, where such a Lease is free to take.
pub fn read(lease: &DynamicObject) -> Record {
    let spec = &lease.data["spec"];
    let text = |field: &str| spec[field].as_str();
    let seconds = spec["leaseDurationSeconds"].as_u64().unwrap_or(0);
    Record {
        holder: text("holderIdentity").unwrap_or_default().to_owned(),
        lease_duration: Duration::from_secs(seconds),
        acquire_time: text("acquireTime").and_then(|time| time.parse().ok()),
        renew_time: text("renewTime").and_then(|time| time.parse().ok()),
        transitions: spec["leaseTransitions"].as_i64().unwrap_or(0).clamp(0, MOST_TRANSITIONS),
    }
}

/// Writes the record to `lease`; all other fields stay.
pub fn write(lease: &mut DynamicObject, record: &Record) {
    if !lease.data.is_object() {
        lease.data = json!({});
    }
    if !lease.data["spec"].is_object() {
        lease.data["spec"] = json!({});
    }
    let spec = &mut lease.data["spec"];
    spec["holderIdentity"] = json!(record.holder);
    spec["leaseDurationSeconds"] = json!(record.lease_duration.as_secs());
    spec["acquireTime"] = time(record.acquire_time);
    spec["renewTime"] = time(record.renew_time);
    spec["leaseTransitions"] = json!(record.transitions);
}

/// The desired state of an annotation of the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Annotation {
    /// Unchanged, because nothing else is known yet.
    Keep,
    /// The annotation is removed.
    Remove,
    /// The annotation has this value.
    Set(String),
}

/// Applies the desired state. The second key, `by`, names the holder that wrote the value, so that a value of a former
/// holder that the successor does not repeat becomes invalid with the change of holder.
pub fn annotate(lease: &mut DynamicObject, [key, by]: [&str; 2], holder: &str, value: Annotation) {
    let annotations = lease.metadata.annotations.get_or_insert_default();
    match value {
        Annotation::Set(value) => drop(annotations.insert(key.to_owned(), value)),
        Annotation::Remove => drop(annotations.remove(key)),
        Annotation::Keep => {}
    }
    if annotations.contains_key(key) {
        annotations.insert(by.to_owned(), holder.to_owned());
    } else {
        annotations.remove(by);
    }
}

/// Format of MicroTime: always six digits.
fn time(time: Option<Timestamp>) -> Value {
    time.map_or(Value::Null, |time| json!(format!("{time:.6}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new process leads before it has looked: what its predecessor has said of this cluster stands until it knows
    /// better.
    #[test]
    fn what_is_not_known_yet_leaves_the_annotation_as_it_stands() {
        for (before, value, after) in [
            (None, Annotation::Keep, None),
            (None, Annotation::Set("Doubt".into()), Some("Doubt")),
            (Some("Doubt"), Annotation::Keep, Some("Doubt")),
            (Some("Doubt"), Annotation::Set("Other".into()), Some("Other")),
            (Some("Doubt"), Annotation::Remove, None),
        ] {
            let mut lease = DynamicObject::new("l", &resource());
            let text = |value: &str| value.to_owned();
            lease.metadata.annotations =
                before.map(|value| [(text("key"), text(value)), (text("key-holder"), text("old"))].into());
            annotate(&mut lease, ["key", "key-holder"], "new", value.clone());
            let shown = lease.metadata.annotations.unwrap_or_default();
            assert_eq!(shown.get("key").map(String::as_str), after, "{before:?} {value:?}");
            assert_eq!(shown.get("key-holder").map(String::as_str), after.map(|_| "new"), "{before:?} {value:?}");
        }
    }

    #[test]
    fn a_record_survives_the_lease_and_unknown_fields_survive_the_record() {
        let mut lease = DynamicObject::new("l", &resource());
        lease.data = json!({"spec": {"strategy": "OldestEmulationVersion", "future": [1]}});
        let record = Record {
            holder: "node_1".into(),
            lease_duration: Duration::from_secs(15),
            acquire_time: Some("2026-01-02T03:04:05Z".parse().unwrap()),
            renew_time: Some("2026-01-02T03:04:05.1Z".parse().unwrap()),
            transitions: 3,
        };
        write(&mut lease, &record);
        assert_eq!(read(&lease), record);
        assert_eq!(lease.data["spec"]["future"], json!([1]));
        assert_eq!(lease.data["spec"]["renewTime"], json!("2026-01-02T03:04:05.100000Z"));
    }

    /// What does not fit would be refused for ever, and nobody would lead.
    #[test]
    fn transitions_that_somebody_wrote_leave_room_for_one_more() {
        let mut lease = DynamicObject::new("l", &resource());
        for (written, read_as) in [(i64::from(i32::MAX), MOST_TRANSITIONS), (-7, 0), (5, 5)] {
            lease.data = json!({"spec": {"leaseTransitions": written}});
            assert_eq!(read(&lease).transitions, read_as);
            assert!(i32::try_from(read(&lease).transitions + 1).is_ok());
        }
    }

    #[test]
    fn an_empty_lease_is_an_empty_record() {
        assert_eq!(read(&DynamicObject::new("l", &resource())), Record::default());
    }
}
