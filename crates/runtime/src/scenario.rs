//! A scripted stand-in for an API server behind a real `kube::Client`, for tests of request bodies and of what follows
//! an answer.

use parking_lot::Mutex;
use std::convert::Infallible;
use std::sync::Arc;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

/// One request as the server would see it.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceivedRequest {
    /// HTTP method.
    pub method: String,
    /// Path without query.
    pub path: String,
    /// Query, without the question mark.
    pub query: String,
    /// `content-type`.
    pub content_type: String,
    /// JSON body; null if there is none.
    pub body: Value,
}

type Responder = dyn Fn(&ReceivedRequest) -> (u16, Value) + Send + Sync;

/// The stand-in: answers by a function, remembers every request.
#[derive(Clone)]
pub struct Scenario {
    answer: Arc<Responder>,
    seen: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl std::fmt::Debug for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scenario").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl Scenario {
    /// Answers each request with the status code and body that `answer` gives; with code 0 it never answers.
    pub fn answering(answer: impl Fn(&ReceivedRequest) -> (u16, Value) + Send + Sync + 'static) -> Self {
        Self { answer: Arc::new(answer), seen: Arc::default() }
    }

    /// A client of this server. Needs a tokio runtime.
    pub fn client(&self) -> Client {
        let scenario = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let scenario = scenario.clone();
            async move { Ok::<_, Infallible>(scenario.handle(request).await) }
        });
        Client::new(service, "default")
    }

    async fn handle(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let bytes = body.collect_bytes().await.expect("a request body of a test is in memory");
        let content_type = parts.headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let seen = ReceivedRequest {
            method: parts.method.to_string(),
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            content_type: content_type.unwrap_or_default().to_owned(),
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        };
        let (code, body) = (self.answer)(&seen);
        self.seen.lock().push(seen);
        if code == 0 {
            std::future::pending::<()>().await;
        }
        let body = serde_json::to_vec(&body).expect("a JSON value is serialised");
        Response::builder().status(code).body(Body::from(body)).expect("status and body are valid")
    }

    /// Every request so far, in order.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.seen.lock().clone()
    }

    /// Requests so far that change something.
    pub fn writes(&self) -> Vec<ReceivedRequest> {
        self.requests().into_iter().filter(|seen| seen.method != "GET").collect()
    }

    /// Forgets the requests so far.
    pub fn clear(&self) {
        self.seen.lock().clear();
    }

    /// The body of a refusal.
    pub fn status(code: u16, reason: &str, message: &str) -> Value {
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
            "message": message})
    }
}
