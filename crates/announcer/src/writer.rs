//! Writes the records that the engine wants on Services. Apart from Leases and Events, objects of the cluster are
//! changed only here and in `swap.rs`, which changes owners.
//!
//! [`RecordWriter`] decides what is written when, and what an answer means: GET, compare, PUT; then the status. Objects
//! stay unstructured, so that unknown fields survive (decisions.md 4). Writes use PUT and not PATCH, because the roles
//! of the existing charts grant no patch (decisions.md 3).

use std::sync::Arc;
use std::time::Duration;

use announcer_core::engine::{Input, Record};
use announcer_core::record_writer::{
    End, Object, RecordAnswer, RecordRequest, RecordStep, RecordWriter, Requeue, Write,
};
use announcer_core::view::ServiceKey;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use kube::api::{ApiResource, DynamicObject, PostParams, TypeMeta};
use kube::{Api, Client};
use parking_lot::Mutex;
use runtime::error::{api_code, chain};
use runtime::work_queue::{Backoff, QueueMetrics, WorkQueue};
use tokio::sync::mpsc;

/// Concurrent writes.
const WORKERS: usize = 8;
/// Limit at the end of the process for writes that are under way.
const LAST_WRITES: Duration = Duration::from_secs(2);
/// Pause between the attempts to write one record.
pub const BACKOFF: Backoff = Backoff { min: Duration::from_millis(20), max: Duration::from_secs(30) };

/// The wanted records and their writer; cheap to clone.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    queue: WorkQueue<ServiceKey>,
    records: Arc<Mutex<RecordWriter>>,
    inputs: mpsc::UnboundedSender<Input>,
}

impl Writer {
    /// Results go to `inputs`.
    pub fn new(client: Client, metrics: QueueMetrics, inputs: mpsc::UnboundedSender<Input>) -> Self {
        Self { client, queue: WorkQueue::new(BACKOFF, metrics), records: Arc::default(), inputs }
    }

    /// Requests that this record is written; it replaces an earlier request.
    pub fn want(&self, key: ServiceKey, record: Record) {
        self.records.lock().want(key.clone(), record);
        self.queue.add(key);
    }

    /// Cancels the request for a Service.
    pub fn forget(&self, key: &ServiceKey) {
        self.records.lock().forget(key);
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
        // A write that is cut off may or may not have reached the API server. An annotation without its status misleads
        // clients until the next owner has written.
        if tokio::time::timeout(LAST_WRITES, workers).await.is_err() {
            tracing::warn!(
                "the API server did not answer in time; the next owner finishes what the announcer was writing to \
                Services"
            );
        }
    }

    async fn work(&self, key: &ServiceKey) {
        let begun = self.records.lock().begin(key);
        let Some(mut write) = begun else {
            // A retry of a request that was cancelled.
            self.queue.forget(key);
            return;
        };
        let (end, error) = self.write(key, &mut write).await;
        let conflict = end == End::Conflict;
        let (recorded, again) = self.records.lock().ended(key, &write, end);
        match again {
            Requeue::No => self.queue.forget(key),
            Requeue::AtOnce => self.queue.add(key.clone()),
            Requeue::Later => {
                let retry_ms = self.queue.add_rate_limited(key.clone()).as_millis();
                let error = error.unwrap_or_default();
                if conflict {
                    tracing::debug!(
                        service = %key,
                        "another client changed the Service meanwhile; the announcer reads it again"
                    );
                } else {
                    tracing::warn!(
                        service = %key,
                        error,
                        retry_ms,
                        "the announcer cannot write to the Service; it tries again"
                    );
                }
            }
        }
        if let Some(recorded) = recorded {
            let _ = self.inputs.send(Input::Recorded(key.clone(), recorded));
        }
    }

    /// Sends the requests of a write one after the other. Returns its result and the last error.
    async fn write(&self, key: &ServiceKey, write: &mut Write) -> (End, Option<String>) {
        let (mut answer, mut error) = (None, None);
        loop {
            match write.next(Timestamp::now(), answer) {
                RecordStep::End(end) => return (end, error),
                RecordStep::Send(ask) => (answer, error) = self.request(key, ask).await,
            }
        }
    }

    async fn request(&self, key: &ServiceKey, ask: RecordRequest) -> (Option<RecordAnswer>, Option<String>) {
        let resource = ApiResource::erase::<Service>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &key.namespace, &resource);
        let params = PostParams::default();
        let (tried, found) = match ask {
            RecordRequest::Read => ("read", api.get_opt(&key.name).await),
            RecordRequest::Annotate(object) => {
                ("write the annotations of", api.replace(&key.name, &params, &whole(*object)).await.map(Some))
            }
            RecordRequest::Publish(object) => {
                ("write the status of", api.replace_status(&key.name, &params, &whole(*object)).await.map(Some))
            }
        };
        match found {
            Ok(found) => {
                let parts = |DynamicObject { metadata, data, .. }| Box::new(Object { metadata, data });
                (Some(RecordAnswer::Service(found.map(parts))), None)
            }
            Err(error) => match api_code(&error) {
                Some(404) => (Some(RecordAnswer::Service(None)), None),
                Some(409) => (Some(RecordAnswer::Conflict), None),
                _ => (Some(RecordAnswer::Failed), Some(format!("failed to {tried} the Service: {}", chain(&error)))),
            },
        }
    }
}

fn whole(Object { metadata, data }: Object) -> DynamicObject {
    let types = TypeMeta { api_version: "v1".to_owned(), kind: "Service".to_owned() };
    DynamicObject { types: Some(types), metadata, data }
}

#[cfg(test)]
mod tests {
    use announcer_core::engine::Recorded;
    use announcer_core::ownership::node::{OwnerRecord, Term};
    use announcer_core::record::sit;
    use announcer_core::view::Port;
    use serde_json::{Value, json};

    use super::*;

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
            uid: announcer_core::view::Uid("u".into()),
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
        assert!(writer.records.lock().is_empty(), "what stands there is not remembered");
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
            uid: announcer_core::view::Uid(uid.into()),
            vip_host: Some("node-1".into()),
            term: Some(Term(term)),
            ..Record::default()
        };
        // Of a Service that is gone, and under a term that is over.
        for outdated in [record("before", 6), record("u", 4)] {
            let (client, mut requests, go_on) = slow_api(standing.clone());
            let (inputs, mut recorded) = mpsc::unbounded_channel();
            let writer = Writer::new(client, QueueMetrics::default(), inputs);
            let stop = runtime::shutdown::Token::new();
            let running = tokio::spawn(writer.clone().run(stop.clone()));
            let key = ServiceKey::new("default", "web");
            writer.want(key.clone(), outdated);
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
        writer.want(key.clone(), Record { uid: announcer_core::view::Uid("u".into()), ..Record::default() });
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
