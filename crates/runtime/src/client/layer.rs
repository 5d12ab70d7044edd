//! The layer around every request: a time-out that exempts watches, and a count by server, verb, resource and code.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::BoxFuture;
use http::header::DATE;
use http::{Method, Request, Response};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use kube::client::Body;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::{Instant, Sleep, sleep_until};
use tower::{BoxError, Layer, Service};

use super::{Limit, ServerTime, Settings};
use crate::Product;

/// Time-out for the beginning of an answer to a watch. It includes a `Retry-After` that the library waits for; the
/// watcher itself makes the next attempt. Longer than an API server queues a request (15 s by default).
const WATCH_START_TIMEOUT: Duration = Duration::from_secs(20);

/// Target of the log line for each request.
pub(crate) const REQUESTS: &str = "api_requests";

/// `<prefix>_api_requests_total{server,verb,resource,code}` and `<prefix>_api_request_duration_seconds{server,verb}`.
#[derive(Debug, Clone)]
pub struct ApiMetrics {
    requests: Family<RequestLabels, Counter>,
    duration: Family<DurationLabels, Histogram, fn() -> Histogram>,
}

type DurationLabels = [(&'static str, &'static str); 2];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    server: &'static str,
    verb: &'static str,
    resource: String,
    code: String,
}

impl ApiMetrics {
    /// Registers the metrics under the product's prefix.
    pub fn register(registry: &mut Registry, product: &Product) -> Self {
        let buckets = || Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]);
        let metrics =
            Self { requests: Family::default(), duration: Family::new_with_constructor(buckets as fn() -> Histogram) };
        registry.register(
            product.metric("api_requests"),
            "API requests by server, verb, resource and HTTP code; code is 'error' where no answer came",
            metrics.requests.clone(),
        );
        registry.register(
            product.metric("api_request_duration_seconds"),
            "Time until the API server began to answer, without watches",
            metrics.duration.clone(),
        );
        metrics
    }

    /// Number of requests to `server`, by verb, resource and code. For tests and reports.
    pub fn count(&self, server: &'static str, verb: &'static str, resource: &str, code: &str) -> u64 {
        let labels = RequestLabels { server, verb, resource: resource.to_owned(), code: code.to_owned() };
        self.requests.get(&labels).map_or(0, |counter| counter.get())
    }

    fn record(&self, server: &'static str, call: &Call, code: Option<u16>, took: Duration) {
        let code = code.map_or_else(|| "error".to_owned(), |code| code.to_string());
        let labels = RequestLabels { server, verb: call.verb, resource: call.resource.clone(), code };
        self.requests.get_or_create(&labels).inc();
        if call.verb != "watch" {
            self.duration.get_or_create(&[("server", server), ("verb", call.verb)]).observe(took.as_secs_f64());
        }
    }
}

/// The operation of a request, in Kubernetes' terms.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Call {
    verb: &'static str,
    /// For example `services` or `services/status`; the path itself if it has no resource.
    resource: String,
}

impl Call {
    fn of(method: &Method, path: &str, query: &str) -> Self {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (["api", _, rest @ ..] | ["apis", _, _, rest @ ..]) = parts.as_slice() else {
            return Self { verb: plain_verb(method), resource: path.to_owned() };
        };
        let rest = match rest {
            // `namespaces/x` itself is a resource; `namespaces/x/services` is not about namespaces.
            ["namespaces", _, inner @ ..] if !inner.is_empty() && !matches!(inner, ["status" | "finalize"]) => inner,
            rest => rest,
        };
        let named = rest.len() > 1;
        let resource = match rest {
            [resource, _name, subresource, ..] => format!("{resource}/{subresource}"),
            [resource, ..] => (*resource).to_owned(),
            [] => path.to_owned(),
        };
        let watching = is_watch(query);
        let verb = match (method, named) {
            (&Method::GET, _) if watching => "watch",
            (&Method::GET, false) if !rest.is_empty() => "list",
            (&Method::DELETE, false) => "deletecollection",
            _ => plain_verb(method),
        };
        Self { verb, resource }
    }
}

/// Whether a request with this query is a watch, whose answer does not end.
pub(super) fn is_watch(query: &str) -> bool {
    query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1"))
}

fn plain_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    }
}

/// There was no complete answer in time.
#[derive(Debug, thiserror::Error)]
#[error("no complete answer to {method} {path} within {limit:?}")]
struct RequestTimeout {
    method: Method,
    path: String,
    limit: Duration,
}

/// The connection failed. Added because the cause does not name the server.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to the {server} server at {url}")]
struct NotConnected {
    server: &'static str,
    url: String,
    source: BoxError,
}

/// A client that only reads refused a request that could change something.
#[derive(Debug, thiserror::Error)]
#[error("{method} {path} is not sent: this client only reads")]
struct NotSent {
    method: Method,
    path: String,
}

#[derive(Debug, Clone)]
pub(super) struct ObserveLayer {
    server: &'static str,
    url: String,
    limit: Duration,
    rate: Option<Limit>,
    read_only: bool,
    metrics: Option<ApiMetrics>,
    time: Option<Arc<dyn ServerTime>>,
}

impl ObserveLayer {
    /// Creates the layer; `url` is the server's name in errors.
    pub(super) fn new(settings: &Settings, url: &str) -> Self {
        Self {
            server: settings.server,
            url: url.to_owned(),
            limit: settings.request_timeout,
            rate: settings.limit.clone(),
            read_only: settings.read_only,
            metrics: settings.metrics.clone(),
            time: settings.time.clone(),
        }
    }

    /// Passes the date of an answer to the listener.
    fn tell_time<B>(&self, asked: Option<std::time::Instant>, answer: &Response<B>) {
        let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok());
        if let (Some(time), Some(asked), Some(date)) = (&self.time, asked, date) {
            time.answered(asked, date);
        }
    }

    /// Adds the server to an error, but only to a failed connection: among the others, the library looks for its own
    /// types.
    fn named(&self, error: BoxError) -> BoxError {
        match error.downcast_ref::<hyper_util::client::legacy::Error>() {
            Some(cause) if cause.is_connect() => {
                NotConnected { server: self.server, url: self.url.clone(), source: error }.into()
            }
            _ => error,
        }
    }
}

impl<S> Layer<S> for ObserveLayer {
    type Service = Observe<S>;

    fn layer(&self, inner: S) -> Observe<S> {
        Observe { inner, layer: self.clone() }
    }
}

#[derive(Debug)]
pub(super) struct Observe<S> {
    inner: S,
    layer: ObserveLayer,
}

impl<S, B> Service<Request<Body>> for Observe<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody + Send + 'static,
{
    type Response = Response<TimedBody<B>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if self.layer.read_only && !matches!(*request.method(), Method::GET | Method::HEAD) {
            let refused = NotSent { method: request.method().clone(), path: request.uri().path().to_owned() };
            return Box::pin(std::future::ready(Err(refused.into())));
        }
        let call = Call::of(request.method(), request.uri().path(), request.uri().query().unwrap_or_default());
        let endless = call.verb == "watch";
        let limit = if endless { WATCH_START_TIMEOUT } else { self.layer.limit };
        let timeout = RequestTimeout { method: request.method().clone(), path: request.uri().path().to_owned(), limit };
        let layer = self.layer.clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            // A Lease that is renewed late is lost. Therefore these requests are exempt from the limit, as in
            // client-go's controllers.
            if let Some(rate) = layer.rate.as_ref().filter(|_| call.resource != "leases") {
                tokio::time::sleep(rate.take(Instant::now())).await;
            }
            let start = Instant::now();
            let asked = layer.time.as_ref().map(|time| time.now());
            let deadline = start + limit;
            let result = tokio::time::timeout_at(deadline, answer).await;
            let code =
                result.as_ref().ok().and_then(|answer| answer.as_ref().ok()).map(|answer| answer.status().as_u16());
            let took = start.elapsed();
            let server = layer.server;
            tracing::debug!(target: REQUESTS, server, method = %timeout.method, path = %timeout.path, code, ?took);
            if let Some(metrics) = &layer.metrics {
                metrics.record(server, &call, code, took);
            }
            let response = match result {
                Ok(answer) => answer.map_err(|error| layer.named(error.into()))?,
                Err(_) => return Err(timeout.into()),
            };
            layer.tell_time(asked, &response);
            let limit = (!endless).then(|| (Box::pin(sleep_until(deadline)), Some(timeout)));
            Ok(response.map(|inner| TimedBody { inner: Box::pin(inner), limit }))
        })
    }
}

/// A body that has to be complete by a deadline, so that an answer that stalls does not block a worker.
pub(super) struct TimedBody<B> {
    inner: Pin<Box<B>>,
    limit: Option<(Pin<Box<Sleep>>, Option<RequestTimeout>)>,
}

impl<B> fmt::Debug for TimedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimedBody").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl<B> HttpBody for TimedBody<B>
where
    B: HttpBody,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = this.inner.as_mut().poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let Some((sleep, timeout)) = &mut this.limit else { return Poll::Pending };
        ready!(sleep.as_mut().poll(context));
        Poll::Ready(timeout.take().map(|timeout| Err(timeout.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
#[path = "layer_tests.rs"]
mod tests;
