//! Writes on Services what the engine wants there. Apart from Leases and Events, objects of the cluster are changed here
//! and, where the owner changes, in `swap.rs`.
//!
//! GET, compare, PUT; then the status. Objects stay unstructured, so that fields which we do not know survive
//! (decisions.md 4); PUT and not PATCH, because the roles of the existing charts grant no patch (decisions.md 3).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::{Api, Client};
use runtime::error::chain;
use runtime::work_queue::{Backoff, QueueMetrics, WorkQueue};
use tokio::sync::mpsc;

use crate::engine::{Input, Record, Recorded};
use crate::record::{annotate, is_superseded, publish};
use crate::view::ServiceKey;

/// Requests at a time.
const WORKERS: usize = 8;
/// At the end: for the writes that are under way.
const LAST_WRITES: Duration = Duration::from_secs(2);
const BACKOFF: Backoff = Backoff { min: Duration::from_millis(20), max: Duration::from_secs(30) };

/// Why a Service could not be written.
#[derive(Debug, thiserror::Error)]
enum RecordError {
    /// GET.
    #[error("failed to read Service {0}")]
    Read(ServiceKey, #[source] kube::Error),
    /// PUT of the object.
    #[error("failed to write the annotations of Service {0}")]
    Annotations(ServiceKey, #[source] kube::Error),
    /// PUT of the status.
    #[error("failed to write the status of Service {0}")]
    Status(ServiceKey, #[source] kube::Error),
}

impl RecordError {
    fn cause(&self) -> &kube::Error {
        match self {
            Self::Read(_, cause) | Self::Annotations(_, cause) | Self::Status(_, cause) => cause,
        }
    }
}

#[derive(Debug)]
struct Wanted {
    record: Record,
    /// As the API returned it after our last write, so that the status can be written without reading again.
    object: Option<Box<DynamicObject>>,
}

/// What came of a write.
enum Outcome {
    /// The object as it is now.
    Written(Box<DynamicObject>),
    /// The Service that is meant is gone.
    Gone,
    /// Another owner stands there.
    Superseded,
}

/// What is wanted on each Service, and who writes it. Cheap to clone.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    queue: WorkQueue<ServiceKey>,
    wanted: Arc<Mutex<BTreeMap<ServiceKey, Wanted>>>,
    inputs: mpsc::UnboundedSender<Input>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Writer {
    /// Reports to `inputs`.
    pub fn new(client: Client, metrics: QueueMetrics, inputs: mpsc::UnboundedSender<Input>) -> Self {
        Self { client, queue: WorkQueue::new(BACKOFF, metrics), wanted: Arc::default(), inputs }
    }

    /// Writes this, instead of what was wanted before.
    pub fn want(&self, key: ServiceKey, record: Record) {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let object = wanted.remove(&key).and_then(|old| old.object);
        wanted.insert(key.clone(), Wanted { record, object });
        drop(wanted);
        self.queue.add(key);
    }

    /// Writes nothing there any more.
    pub fn forget(&self, key: &ServiceKey) {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        self.queue.forget(key);
    }

    /// Writes until `stop`.
    pub async fn run(self, stop: runtime::shutdown::Token) {
        let workers = (0..WORKERS).map(|_| async {
            while let Some(job) = self.queue.next().await {
                self.work(job.key()).await;
            }
        });
        let mut workers = std::pin::pin!(futures::future::join_all(workers));
        tokio::select! {
            () = stop.cancelled() => self.queue.shut_down(),
            _ = &mut workers => return,
        }
        // A write that is cut off may or may not have reached the API, and an annotation without its status misleads
        // clients until the next owner has written.
        if tokio::time::timeout(LAST_WRITES, workers).await.is_err() {
            tracing::warn!(
                "the API did not answer in time: what was being written on Services is left to the next owner"
            );
        }
    }

    async fn work(&self, key: &ServiceKey) {
        let next = {
            let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            wanted.get_mut(key).map(|wanted| (wanted.record.clone(), wanted.object.take()))
        };
        let Some((record, object)) = next else {
            // A retry that was on its way when it was given up.
            self.queue.forget(key);
            return;
        };
        let fresh = object.is_none();
        let recorded = match self.write(key, &record, object).await {
            Ok(Outcome::Written(object)) => {
                self.queue.forget(key);
                let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
                match wanted.get_mut(key) {
                    // Another record has come meanwhile: the queue has the key again.
                    Some(wanted) if wanted.record != record => {
                        wanted.object = Some(object);
                        return;
                    }
                    // The status is still to come, within milliseconds.
                    Some(wanted) if record.ingress.is_none() => wanted.object = Some(object),
                    // It stands there: a thousand records at rest are not worth their room.
                    _ => {
                        wanted.remove(key);
                    }
                }
                Recorded::Done
            }
            Ok(Outcome::Gone) if self.give_up(key, &record) => Recorded::Gone,
            Ok(Outcome::Superseded) if self.give_up(key, &record) => Recorded::Superseded,
            Ok(Outcome::Gone | Outcome::Superseded) => return,
            Err(error) => {
                let code = runtime::error::api_code(error.cause());
                // An object that we remembered may be old: read it and try at once.
                if code == Some(409) && !fresh {
                    self.queue.add(key.clone());
                    return;
                }
                if !self.is_wanted(key) {
                    // Given up while it was under way: no retry, and the next Service of the name begins without failures.
                    self.queue.forget(key);
                    return;
                }
                let delay = self.queue.add_rate_limited(key.clone());
                if code == Some(409) {
                    tracing::debug!(service = %key, "somebody else wrote the Service meanwhile, reading it again");
                } else {
                    tracing::warn!(error = %chain(&error), retry_ms = delay.as_millis(), "cannot write on a Service");
                }
                Recorded::Failed
            }
        };
        let _ = self.inputs.send(Input::Recorded(key.clone(), recorded));
    }

    fn is_wanted(&self, key: &ServiceKey) -> bool {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner).contains_key(key)
    }

    /// Wants `record` no more. False if another one has come meanwhile, for a later Service of the name or under a newer
    /// term: the queue has the key again, and what became of the old one is nobody's concern.
    fn give_up(&self, key: &ServiceKey, record: &Record) -> bool {
        self.queue.forget(key);
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if wanted.get(key).is_some_and(|wanted| wanted.record != *record) {
            return false;
        }
        wanted.remove(key);
        true
    }

    /// Writes `record`, starting from `object` where that is known, and reading it otherwise.
    async fn write(
        &self,
        key: &ServiceKey,
        record: &Record,
        object: Option<Box<DynamicObject>>,
    ) -> Result<Outcome, RecordError> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &key.namespace, &ApiResource::erase::<Service>(&()));
        let object = match object {
            Some(object) => Some(*object),
            None => api.get_opt(&key.name).await.map_err(|error| RecordError::Read(key.clone(), error))?,
        };
        let Some(mut object) = object.filter(|object| object.metadata.uid.as_deref() == Some(record.uid.0.as_str()))
        else {
            return Ok(Outcome::Gone);
        };
        if is_superseded(&object.metadata, record) {
            return Ok(Outcome::Superseded);
        }
        let gone = |error: &kube::Error| runtime::error::api_code(error) == Some(404);
        if annotate(&mut object.metadata, record) {
            object = match api.replace(&key.name, &PostParams::default(), &object).await {
                Ok(object) => object,
                Err(error) if gone(&error) => return Ok(Outcome::Gone),
                Err(error) => return Err(RecordError::Annotations(key.clone(), error)),
            };
        }
        if publish(&mut object.data, record, Timestamp::now()) {
            object = match api.replace_status(&key.name, &PostParams::default(), &object).await {
                Ok(object) => object,
                Err(error) if gone(&error) => return Ok(Outcome::Gone),
                Err(error) => return Err(RecordError::Status(key.clone(), error)),
            };
        }
        object.metadata.managed_fields = None;
        Ok(Outcome::Written(Box::new(object)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::ownership::node::{OwnerRecord, Term};
    use crate::record::sit;
    use crate::view::Port;

    fn object(status: &Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "default", "uid": "u", "annotations": {"mine": "1"}},
            "spec": {"type": "LoadBalancer", "future": {"field": true}},
            "status": status,
        }))
        .unwrap()
    }

    fn ports() -> Vec<Port> {
        vec![Port { port: 80, protocol: "TCP".into() }]
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_is_under_way_when_the_process_stops_is_finished_with_its_status() {
        let (arrived, mut requests) = mpsc::unbounded_channel();
        let (go_on, answers) = tokio::sync::watch::channel(false);
        let api = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let path = format!("{} {}", request.method(), request.uri().path().rsplit('/').next().unwrap_or_default());
            let (arrived, mut answers) = (arrived.clone(), answers.clone());
            async move {
                let _ = arrived.send(path);
                let _ = answers.wait_for(|go_on| *go_on).await;
                let body = serde_json::to_vec(&object(&json!({}))).unwrap();
                Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::from(body)))
            }
        });
        let (inputs, mut recorded) = mpsc::unbounded_channel();
        let writer = Writer::new(Client::new(api, "default"), QueueMetrics::default(), inputs);
        let stop = runtime::shutdown::Token::new();
        let running = tokio::spawn(writer.clone().run(stop.clone()));
        let ingress = vec![("10.0.0.5".parse().unwrap(), ports())];
        let record = Record {
            uid: crate::view::Uid("u".into()),
            vip_host: Some("node-1".into()),
            ingress: Some(ingress),
            ..Record::default()
        };
        writer.want(ServiceKey::new("default", "web"), record);
        assert_eq!(requests.recv().await.unwrap(), "GET web");
        stop.cancel();
        // The API is slower than the order to stop. The clock stands, so this is over when everybody else waits.
        tokio::time::sleep(Duration::from_millis(50)).await;
        go_on.send(true).unwrap();
        running.await.unwrap();
        assert!(writer.wanted.lock().unwrap().is_empty(), "what stands there is not remembered");
        assert_eq!([requests.try_recv(), requests.try_recv()].map(Result::unwrap), ["PUT web", "PUT status"]);
        assert!(matches!(recorded.try_recv(), Ok(Input::Recorded(_, Recorded::Done))));
    }

    /// An API server that answers each GET only when told to, with this object, and notes what it was asked.
    fn slow_api(object: DynamicObject) -> (Client, mpsc::UnboundedReceiver<String>, mpsc::UnboundedSender<()>) {
        let (arrived, requests) = mpsc::unbounded_channel();
        let (go_on, answers) = mpsc::unbounded_channel();
        let answers = Arc::new(tokio::sync::Mutex::new(answers));
        let api = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (arrived, answers, object) = (arrived.clone(), Arc::clone(&answers), object.clone());
            async move {
                let path = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
                let _ = arrived.send(format!("{} {path}", request.method()));
                if request.method() == http::Method::GET {
                    let _ = answers.lock().await.recv().await;
                }
                let body = serde_json::to_vec(&object).unwrap();
                Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::from(body)))
            }
        });
        (Client::new(api, "default"), requests, go_on)
    }

    #[tokio::test]
    async fn what_comes_to_be_wanted_while_an_older_record_turns_out_to_be_void_is_written() {
        let mut standing = object(&json!({}));
        sit(&mut standing.metadata, &OwnerRecord { host: "node-2".into(), term: Term(5) });
        let record = |uid: &str, term| Record {
            uid: crate::view::Uid(uid.into()),
            vip_host: Some("node-1".into()),
            term: Some(Term(term)),
            ..Record::default()
        };
        // Of a Service that is gone, and under a term that is over.
        for void in [record("before", 6), record("u", 4)] {
            let (client, mut requests, go_on) = slow_api(standing.clone());
            let (inputs, mut recorded) = mpsc::unbounded_channel();
            let writer = Writer::new(client, QueueMetrics::default(), inputs);
            let stop = runtime::shutdown::Token::new();
            let running = tokio::spawn(writer.clone().run(stop.clone()));
            let key = ServiceKey::new("default", "web");
            writer.want(key.clone(), void);
            assert_eq!(requests.recv().await.unwrap(), "GET web");
            writer.want(key, record("u", 6));
            go_on.send(()).unwrap();
            go_on.send(()).unwrap();
            let limit = Duration::from_secs(5);
            let next = tokio::time::timeout(limit, async { [requests.recv().await, requests.recv().await] }).await;
            assert_eq!(next.expect("it is written").map(Option::unwrap), ["GET web", "PUT web"]);
            let told = tokio::time::timeout(limit, recorded.recv()).await;
            assert!(matches!(told, Ok(Some(Input::Recorded(_, Recorded::Done)))), "{told:?}");
            stop.cancel();
            running.await.unwrap();
            assert!(recorded.try_recv().is_err(), "what became of the older one is not told");
        }
    }

    /// An API server that notes each request, and fails it when told to.
    fn failing_api() -> (Client, mpsc::UnboundedReceiver<()>, mpsc::UnboundedSender<()>) {
        let (arrived, requests) = mpsc::unbounded_channel();
        let (fail, failures) = mpsc::unbounded_channel();
        let failures = Arc::new(tokio::sync::Mutex::new(failures));
        let api = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            let (arrived, failures) = (arrived.clone(), Arc::clone(&failures));
            async move {
                let _ = arrived.send(());
                let _ = failures.lock().await.recv().await;
                let answer = http::Response::builder().status(500).body(kube::client::Body::empty()).unwrap();
                Ok::<_, std::convert::Infallible>(answer)
            }
        });
        (Client::new(api, "default"), requests, fail)
    }

    #[tokio::test]
    async fn a_service_that_was_given_up_leaves_no_failures_to_the_next_of_its_name() {
        let (client, mut requests, fail) = failing_api();
        let (inputs, _recorded) = mpsc::unbounded_channel();
        let writer = Writer::new(client, QueueMetrics::default(), inputs);
        let key = ServiceKey::new("default", "web");
        writer.want(key.clone(), Record { uid: crate::view::Uid("u".into()), ..Record::default() });
        let give_up = async {
            requests.recv().await.unwrap();
            writer.forget(&key);
            fail.send(()).unwrap();
        };
        tokio::join!(writer.work(&key), give_up);
        assert_eq!(writer.queue.failures(&key), 0, "given up while it was being written");

        writer.queue.add_rate_limited(key.clone());
        writer.work(&key).await;
        assert_eq!(writer.queue.failures(&key), 0, "given up while it waited to be tried again");
    }
}
