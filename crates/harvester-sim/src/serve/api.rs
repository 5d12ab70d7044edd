//! The host's API as guests reach it: a proxy in front of the API server. It imitates API servers under load and caches
//! that lag behind. Credentials are passed on. Without a fault each request is passed on unchanged.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::State;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_LENGTH, HOST, RETRY_AFTER};
use axum::http::{Method, Request, Response, StatusCode, Uri, Version};
use axum::response::{IntoResponse, Json};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::json;
use tokio::time::Instant;

use super::watches;
use crate::faults::{ALL_NAMESPACES, FaultSwitch, Faults};

/// How often the version of the host's objects is noted, for the cache that is behind.
const NOTED: Duration = Duration::from_millis(500);
/// More than the API server takes.
const LARGEST: usize = 8 << 20;

/// What the proxy needs.
pub struct Front {
    /// The API server, without credentials of its own.
    pub upstream: Client,
    /// What is to go wrong.
    pub faults: Arc<FaultSwitch>,
    reads: AtomicU64,
    watches: AtomicU64,
    /// When the host's objects had which version, oldest first.
    versions: Mutex<VecDeque<(Instant, String)>>,
}

impl Front {
    /// Nothing runs yet; see [`router`] and [`Front::note_versions`].
    pub fn new(upstream: Client, faults: Arc<FaultSwitch>) -> Self {
        let (reads, watches) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { upstream, faults, reads, watches, versions: Mutex::default() }
    }

    /// Notes the version of the host's objects while a cache is to be behind. Never ends.
    pub async fn note_versions(self: Arc<Self>, admin: Client) {
        let namespaces: Api<Namespace> = Api::all(admin);
        let mut changed = self.faults.subscribe();
        loop {
            let lag = self.faults.all().values().map(|faults| faults.stale_seconds).max().unwrap_or_default();
            if lag == 0 {
                self.versions.lock().clear();
                if changed.changed().await.is_err() {
                    return;
                }
                continue;
            }
            if let Ok(list) = namespaces.list_metadata(&ListParams::default().limit(1)).await
                && let Some(version) = list.metadata.resource_version
            {
                let now = Instant::now();
                let mut versions = self.versions.lock();
                versions.push_back((now, version));
                // One that is old enough stays, and only one.
                while versions.get(1).is_some_and(|(noted, _)| now - *noted > Duration::from_secs(lag.into())) {
                    versions.pop_front();
                }
            }
            tokio::time::sleep(NOTED).await;
        }
    }

    /// The version that the cache behind has.
    fn old_version(&self) -> Option<String> {
        self.versions.lock().front().map(|(_, version)| version.clone())
    }

    /// Every second one is the other cache's.
    fn is_behind(turn: &AtomicU64) -> bool {
        turn.fetch_add(1, Ordering::Relaxed) % 2 == 1
    }
}

/// The proxy.
pub fn router(front: Arc<Front>) -> Router {
    Router::new().fallback(pass).with_state(front)
}

async fn pass(State(front): State<Arc<Front>>, request: Request<Body>) -> Response<Body> {
    let asked = Asked::of(request.method(), request.uri());
    let faults = front.faults.get(&asked.namespace);
    if front.faults.take(&asked.namespace, |faults| &mut faults.too_many_requests) {
        return too_many(&faults);
    }
    if asked.continues && front.faults.take(&asked.namespace, |faults| &mut faults.expired_continues) {
        let message = "The provided continue parameter is too old to display a consistent list result. You can start a \
                       new list without the continue parameter, or use the continue token in this response to retrieve \
                       the remainder";
        return status(StatusCode::GONE, "Expired", message, &json!({}));
    }
    let mut query = request.uri().query().map(ToOwned::to_owned);
    if asked.is_list() && faults.stale_seconds > 0 && Front::is_behind(&front.reads) {
        query = front.old_version().map(|version| at_version(query.as_deref(), &version)).or(query);
    }
    let answer = match front.send(request, query.as_deref()).await {
        Ok(answer) => answer,
        Err(error) => return (StatusCode::BAD_GATEWAY, format!("{error}\n")).into_response(),
    };
    if !asked.watches || answer.status() != StatusCode::OK {
        return answer;
    }
    let behind = Front::is_behind(&front.watches);
    let (parts, body) = answer.into_parts();
    Response::from_parts(parts, watches::relay(body, front.faults.clone(), asked.watch(behind)))
}

impl Front {
    async fn send(&self, request: Request<Body>, query: Option<&str>) -> anyhow::Result<Response<Body>> {
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path();
        parts.uri = query.map_or_else(|| path.to_owned(), |query| format!("{path}?{query}")).parse()?;
        for header in [HOST, ACCEPT_ENCODING, CONTENT_LENGTH] {
            parts.headers.remove(header);
        }
        parts.version = Version::HTTP_11;
        let body: Bytes = to_bytes(body, LARGEST).await?;
        let request = Request::from_parts(parts, kube::client::Body::from(body.to_vec()));
        let answer = self.upstream.send(request).await?;
        Ok(answer.map(Body::new))
    }
}

/// What a request wants, as far as faults differ by it.
#[derive(Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // a query's own switches
struct Asked {
    namespace: String,
    resource: String,
    /// Of one object, not of all.
    named: bool,
    get: bool,
    watches: bool,
    bookmarks: bool,
    continues: bool,
    version: String,
}

impl Asked {
    fn of(method: &Method, uri: &Uri) -> Self {
        let mut words = uri.path().split('/').skip_while(|word| *word != "namespaces").skip(1);
        let namespace = words.next().filter(|word| !word.is_empty()).unwrap_or(ALL_NAMESPACES).to_owned();
        let resource = words.next().unwrap_or_default().to_owned();
        let value = |name: &str| {
            let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
            pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
        };
        let is = |name: &str| value(name).is_some_and(|value| value == "true" || value == "1");
        let get = method == Method::GET;
        Self {
            namespace,
            named: words.next().is_some(),
            get,
            watches: get && is("watch"),
            bookmarks: is("allowWatchBookmarks"),
            continues: get && value("continue").is_some_and(|token| !token.is_empty()),
            version: value("resourceVersion").unwrap_or_default(),
            resource,
        }
    }

    /// The first page of one: later ones belong to it.
    fn is_list(&self) -> bool {
        self.get && !self.watches && !self.continues && !self.named && !self.resource.is_empty()
    }

    fn watch(self, behind: bool) -> watches::Watch {
        let Self { namespace, resource, bookmarks, version, .. } = self;
        watches::Watch { namespace, resource, bookmarks, version, behind }
    }
}

/// The same list as it was.
fn at_version(query: Option<&str>, version: &str) -> String {
    let kept =
        query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("resourceVersion"));
    let own = [format!("resourceVersion={version}"), "resourceVersionMatch=Exact".to_owned()];
    kept.map(ToOwned::to_owned).chain(own).collect::<Vec<_>>().join("&")
}

fn too_many(faults: &Faults) -> Response<Body> {
    let seconds = faults.retry_after_seconds.max(1);
    let details = json!({"retryAfterSeconds": seconds});
    let message = "Too many requests, please try again later.";
    let mut answer = status(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message, &details);
    answer.headers_mut().insert(RETRY_AFTER, seconds.into());
    answer
}

fn status(code: StatusCode, reason: &str, message: &str, details: &serde_json::Value) -> Response<Body> {
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason, "details": details, "code": code.as_u16()});
    (code, Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: &Method, uri: &str) -> Asked {
        Asked::of(method, &uri.parse().unwrap())
    }

    #[test]
    fn lists_watches_and_pages_are_told_apart() {
        let base = "/apis/loadbalancer.harvesterhci.io/v1beta1/namespaces/guests/loadbalancers";
        let list = asked(&Method::GET, &format!("{base}?limit=500"));
        assert!(list.is_list() && list.namespace == "guests" && list.resource == "loadbalancers");
        assert!(!asked(&Method::GET, &format!("{base}/web")).is_list(), "one object is read live");
        assert!(!asked(&Method::POST, base).is_list());
        let page = asked(&Method::GET, &format!("{base}?limit=500&continue=abc"));
        assert!(page.continues && !page.is_list());
        let watch = asked(&Method::GET, &format!("{base}?watch=true&allowWatchBookmarks=true&resourceVersion=7"));
        assert!(watch.watches && watch.bookmarks && watch.version == "7" && !watch.is_list());
        assert_eq!(asked(&Method::GET, "/version").namespace, ALL_NAMESPACES);
    }

    #[test]
    fn a_list_of_the_past_keeps_everything_else() {
        assert_eq!(at_version(None, "7"), "resourceVersion=7&resourceVersionMatch=Exact");
        let query = "limit=500&resourceVersion=0&resourceVersionMatch=NotOlderThan&labelSelector=a%3Db";
        assert_eq!(
            at_version(Some(query), "7"),
            "limit=500&labelSelector=a%3Db&resourceVersion=7&resourceVersionMatch=Exact"
        );
    }
}
