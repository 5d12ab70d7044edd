//! The task that sends the Events.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::waiting::{Noted, Waiting};
use super::{Correlator, Entry, Write, correlator};
use crate::error::{api_code, chain};

/// Pauses before the retries of an Event that the API server did not accept. After the last one the Event is dropped,
/// so that it does not delay the next ones.
const RETRIES: [Duration; 3] = [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(8)];

pub(super) async fn run(client: Client, mut entries: mpsc::Receiver<Entry>) {
    let mut writer = Writer { client, correlator: Correlator::default(), forbidden_logged: false };
    let mut waiting = Waiting::new(Instant::now());
    loop {
        let due = waiting.due(Instant::now());
        tokio::select! {
            entry = entries.recv() => match entry {
                Some(entry) => take(&mut waiting, entry),
                None => break,
            },
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                let Some(noted) = waiting.pop(Instant::now()) else { continue };
                let written = writer.write(&noted);
                tokio::pin!(written);
                // New Events are queued meanwhile, so that a slow API server does not cause the loss of a Warning.
                loop {
                    tokio::select! {
                        () = &mut written => break,
                        Some(entry) = entries.recv() => take(&mut waiting, entry),
                    }
                }
            }
        }
    }
    for noted in waiting.last_words() {
        writer.write(&noted).await;
    }
}

fn take(waiting: &mut Waiting, entry: Entry) {
    if !waiting.push(Noted { entry, at: Timestamp::now() }) {
        tracing::debug!("too many Events wait to be written; one Event was dropped");
    }
}

struct Writer {
    client: Client,
    correlator: Correlator,
    forbidden_logged: bool,
}

impl Writer {
    async fn write(&mut self, noted: &Noted) {
        let entry = &noted.entry;
        match self.correlator.observe(Instant::now(), noted.at, entry) {
            Some(write) => self.deliver(entry, write).await,
            None => {
                tracing::debug!(reason = entry.reason, object = ?entry.object.name,
                    "there are too many Events about one object; one Event was dropped");
            }
        }
    }

    async fn deliver(&mut self, entry: &Entry, mut write: Write) {
        let mut pauses = RETRIES.iter();
        loop {
            let Err(error) = self.send(entry, &write).await else { return };
            match (api_code(&error), &write) {
                // The Event has expired or was deleted: create a new one.
                (Some(404), Write::Count { .. }) => {
                    self.correlator.forget(entry);
                    let time = Timestamp::now();
                    write = Write::Create { name: correlator::name(entry, time), time };
                    continue;
                }
                // An earlier attempt succeeded, although its answer was lost.
                (Some(409), Write::Create { .. }) => return,
                (Some(403), _) if is_terminating(&error) => {
                    tracing::debug!(reason = entry.reason, "an Event was dropped: its namespace is being deleted");
                }
                (Some(403), _) => {
                    if !std::mem::replace(&mut self.forbidden_logged, true) {
                        tracing::warn!(
                            error = %chain(&error),
                            "the process has no right to write Events; it goes on without them"
                        );
                    }
                }
                (Some(code), _) if code < 500 && code != 429 => {
                    tracing::debug!(error = %chain(&error), reason = entry.reason, "the API server refused an Event");
                }
                _ => {
                    if let Some(pause) = pauses.next() {
                        tokio::time::sleep(*pause).await;
                        continue;
                    }
                    tracing::debug!(
                        error = %chain(&error),
                        reason = entry.reason,
                        "the process failed to write an Event and dropped it"
                    );
                }
            }
            if matches!(write, Write::Create { .. }) {
                self.correlator.forget(entry);
            }
            return;
        }
    }

    async fn send(&self, entry: &Entry, write: &Write) -> Result<(), kube::Error> {
        // Events about cluster-wide objects live in `default`.
        let namespace =
            entry.object.namespace.as_deref().filter(|namespace| !namespace.is_empty()).unwrap_or("default");
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        match write {
            Write::Create { name, time } => {
                api.create(&PostParams::default(), &event(entry, namespace, name, *time)).await?;
            }
            Write::Count { name, last, count } => {
                let patch = json!({"count": count, "lastTimestamp": Time(*last)});
                api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            }
        }
        Ok(())
    }
}

/// Whether the namespace of the object is being deleted. Nothing can be created there any more, whatever rights there
/// are. The cause is that of the admission plug-in `NamespaceLifecycle`.
fn is_terminating(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    causes.any(|cause| cause.reason == "NamespaceTerminating")
}

/// The object as client-go's recorder makes it.
fn event(entry: &Entry, namespace: &str, name: &str, time: Timestamp) -> Event {
    Event {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: entry.object.clone(),
        type_: Some(entry.kind.as_str().to_owned()),
        reason: Some(entry.reason.clone()),
        message: Some(entry.message.clone()),
        source: Some(EventSource { component: Some(entry.component.to_string()), host: None }),
        reporting_component: Some(entry.component.to_string()),
        reporting_instance: Some(String::new()),
        first_timestamp: Some(Time(time)),
        last_timestamp: Some(Time(time)),
        count: Some(1),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;
    use crate::events::Recorder;
    use crate::scenario::Scenario;

    fn service() -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Service".into()),
            namespace: Some("default".into()),
            name: Some("web".into()),
            uid: Some("u1".into()),
            ..ObjectReference::default()
        }
    }

    #[tokio::test]
    async fn an_event_has_the_shape_that_client_go_gives_it_and_a_repetition_is_a_patch() {
        let scenario = Scenario::answering(|request| (201, request.body.clone()));
        let (recorder, task) = Recorder::new(scenario.client(), "service-controller");
        recorder.normal(&service(), "EnsuringLoadBalancer", "Ensuring load balancer");
        recorder.normal(&service(), "EnsuringLoadBalancer", "Ensuring load balancer");
        drop(recorder);
        task.await;

        let requests = scenario.requests();
        assert_eq!(requests.len(), 2);
        let (create, patch) = (&requests[0], &requests[1]);
        assert_eq!((create.method.as_str(), create.path.as_str()), ("POST", "/api/v1/namespaces/default/events"));
        assert_eq!(create.body["source"], json!({"component": "service-controller"}));
        assert_eq!(create.body["involvedObject"]["uid"], json!("u1"));
        assert_eq!(create.body["count"], json!(1));
        assert_eq!(create.body["type"], json!("Normal"));
        assert_eq!(patch.method, "PATCH");
        assert_eq!(patch.path, format!("{}/{}", create.path, create.body["metadata"]["name"].as_str().unwrap()));
        assert_eq!(patch.body["count"], json!(2));
        assert_eq!(patch.body.as_object().unwrap().len(), 2);
    }

    #[tokio::test]
    async fn without_the_right_to_write_events_life_goes_on() {
        let scenario = Scenario::answering(|_| (403, Scenario::status(403, "Forbidden", "events is forbidden")));
        let (recorder, task) = Recorder::new(scenario.client(), "service-controller");
        recorder.normal(&service(), "A", "a");
        recorder.normal(&service(), "A", "a");
        drop(recorder);
        task.await;
        let methods: Vec<_> = scenario.requests().iter().map(|request| request.method.clone()).collect();
        assert_eq!(methods, ["POST", "POST"], "what was never created is not patched");
    }

    #[tokio::test]
    async fn a_namespace_that_is_being_deleted_is_no_missing_right() {
        let terminating = json!({"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]});
        for (details, logged) in [(terminating, false), (json!({"kind": "events"}), true)] {
            let mut status = Scenario::status(403, "Forbidden", "events is forbidden");
            status["details"] = details;
            let scenario = Scenario::answering(move |_| (403, status.clone()));
            let client = scenario.client();
            let mut writer = Writer { client, correlator: Correlator::default(), forbidden_logged: false };
            let (recorder, mut entries) = Recorder::to_channel("service-controller");
            recorder.warning(&service(), "A", "a");
            writer.write(&Noted { entry: entries.recv().await.unwrap(), at: Timestamp::now() }).await;
            assert_eq!((scenario.requests().len(), writer.forbidden_logged), (1, logged));
        }
    }

    #[tokio::test]
    async fn an_event_that_is_gone_is_created_anew() {
        let scenario = Scenario::answering(|request| {
            if request.method == "PATCH" {
                (404, Scenario::status(404, "NotFound", "events not found"))
            } else {
                (201, request.body.clone())
            }
        });
        let (recorder, task) = Recorder::new(scenario.client(), "service-controller");
        recorder.warning(&service(), "A", "a");
        recorder.warning(&service(), "A", "a");
        drop(recorder);
        task.await;
        let methods: Vec<_> = scenario.requests().iter().map(|request| request.method.clone()).collect();
        assert_eq!(methods, ["POST", "PATCH", "POST"]);
    }
}
