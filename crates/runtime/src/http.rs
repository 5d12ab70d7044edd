//! The server for health and metrics: `/healthz`, `/livez`, `/readyz`, `/metrics`, over HTTPS with delegated
//! authorisation, or over plain HTTP.

mod access;
mod admission;
mod handshake;
mod serve;
mod subject;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::{AUTHORIZATION, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, StatusCode};

use access::Certified;
pub use access::{Access, Delegated};
pub use handshake::{Handshake, HandshakeError};
pub use serve::{Bound, ServeError, Server, Tls};

use crate::health::{Health, Probe};
use crate::metrics::{self, Metrics};

/// The content that the server serves.
#[derive(Debug, Clone)]
struct Content {
    health: Health,
    metrics: Metrics,
    access: Arc<Access>,
}

/// The routes. Separate from the socket, so that tests can call them without one.
fn router(health: Health, metrics: Metrics, access: Access) -> Router {
    let content = Content { health, metrics, access: Arc::new(access) };
    let mut router = Router::new().route("/metrics", get(show_metrics));
    for probe in [Probe::Healthz, Probe::Livez, Probe::Readyz] {
        let all = move |State(content): State<Content>,
                        Query(query): Query<BTreeMap<String, String>>,
                        raw: axum::extract::RawQuery| {
            std::future::ready(show_health(&content.health, probe, &query, raw.0.as_deref()))
        };
        let one = |State(content): State<Content>, Path(name): Path<String>| {
            std::future::ready(show_check(&content.health, &name))
        };
        router = router
            .route(&format!("/{}", probe.name()), get(all))
            .route(&format!("/{}/{{check}}", probe.name()), get(one));
    }
    router.layer(middleware::from_fn_with_state(content.clone(), guard)).with_state(content)
}

async fn guard(State(content): State<Content>, request: Request, next: Next) -> Response {
    let certified = request.extensions().get::<Certified>();
    let token = bearer(request.headers());
    let verb = request.method().as_str().to_lowercase();
    match content.access.check(certified, token, request.uri().path(), &verb).await {
        Ok(()) => next.run(request).await,
        Err(refusal) => plain(refusal.status, refusal.text),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|token| !token.is_empty())
}

fn show_health(health: &Health, probe: Probe, query: &BTreeMap<String, String>, raw: Option<&str>) -> Response {
    // `exclude` may occur several times, while a map would keep only one of them.
    let pairs = raw.unwrap_or_default().split('&').filter_map(|pair| pair.strip_prefix("exclude="));
    let exclude: Vec<String> = pairs.map(str::to_owned).collect();
    let report = health.ask(probe, &exclude);
    if health.is_news(&report) {
        let outcome = if report.is_well() { "passes again" } else { "failed" };
        tracing::info!(probe = probe.name(), "the health check {outcome}:\n{}", report.text(true).trim_end());
    }
    let status = if report.is_well() { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    plain(status, report.text(query.contains_key("verbose")))
}

fn show_check(health: &Health, name: &str) -> Response {
    match health.ask_one(name) {
        None => plain(StatusCode::NOT_FOUND, format!("no check {name:?}; there are: {}\n", health.names().join(", "))),
        Some(Ok(())) => plain(StatusCode::OK, "ok".into()),
        Some(Err(reason)) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{reason}\n")),
    }
}

async fn show_metrics(State(content): State<Content>) -> Response {
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], content.metrics.encode()).into_response()
}

fn plain(status: StatusCode, text: String) -> Response {
    (status, [(CONTENT_TYPE, "text/plain; charset=utf-8"), (X_CONTENT_TYPE_OPTIONS, "nosniff")], text).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use serde_json::json;
    use tower::ServiceExt;

    use super::*;
    use crate::health::OnFailure;
    use crate::scenario::{ReceivedRequest, Scenario};

    async fn ask(router: &Router, path: &str, token: Option<&str>) -> (u16, String) {
        let mut request = http::Request::builder().uri(path);
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let response = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    fn open(health: Health) -> Router {
        router(health, Metrics::new(&crate::Product::TEST), Access::Open)
    }

    /// W-45.
    #[tokio::test]
    async fn the_endpoints_answer_as_kubernetes_own_servers_do() {
        let health = Health::new();
        health.register("leaderElection", OnFailure::Restart, Arc::new(|| Ok(())));
        health.register("caches", OnFailure::NotReady, Arc::new(|| Err("services not listed yet".into())));
        let router = open(health);
        for (path, status, body) in [
            ("/healthz", 200, "ok"),
            ("/livez", 200, "ok"),
            ("/healthz?verbose", 200, "[+]leaderElection ok\nhealthz check passed\n"),
            ("/readyz", 500, "[-]caches failed: services not listed yet\nreadyz check failed\n"),
            ("/readyz?exclude=caches", 200, "ok"),
            ("/healthz/leaderElection", 200, "ok"),
            ("/readyz/caches", 500, "services not listed yet\n"),
            ("/healthz/none", 404, "no check \"none\"; there are: caches, leaderElection\n"),
        ] {
            assert_eq!(ask(&router, path, None).await, (status, body.to_owned()), "{path}");
        }
        let (status, text) = ask(&router, "/metrics", None).await;
        assert!(status == 200 && text.contains("tested_build_info"));
        assert_eq!(ask(&router, "/debug/pprof", None).await.0, 404);
    }

    /// A guest API server that knows one token and lets one user read metrics.
    fn reviewer() -> Scenario {
        Scenario::answering(|ReceivedRequest { path, body, .. }| {
            let mut answer = body.clone();
            answer["status"] = if path.ends_with("tokenreviews") {
                match body["spec"]["token"].as_str() {
                    Some("good") => {
                        json!({"authenticated": true, "user": {"username": "prometheus", "groups": ["scrapers"],
                            "extra": {"authentication.kubernetes.io/node-name": ["node-1"]}}})
                    }
                    Some("admin") => {
                        json!({"authenticated": true, "user": {"username": "root", "groups": ["system:masters"]}})
                    }
                    Some("stranger") => json!({"authenticated": true, "user": {"username": "stranger"}}),
                    _ => json!({"authenticated": false}),
                }
            } else {
                let spec = &body["spec"];
                let allowed = spec["user"] == "prometheus"
                    && spec["groups"][0] == "scrapers"
                    && spec["extra"] == json!({"authentication.kubernetes.io/node-name": ["node-1"]})
                    && spec["nonResourceAttributes"] == json!({"path": "/metrics", "verb": "get"});
                json!({"allowed": allowed})
            };
            (201, answer)
        })
    }

    fn delegated(scenario: &Scenario) -> Router {
        let access = Access::delegated(scenario.client(), ["/healthz", "/readyz", "/livez"].map(String::from).to_vec());
        router(Health::new(), Metrics::new(&crate::Product::TEST), access)
    }

    /// W-45.
    #[tokio::test]
    async fn metrics_need_a_token_that_the_cluster_knows_and_allows() {
        let scenario = reviewer();
        let router = delegated(&scenario);
        assert_eq!(ask(&router, "/healthz", None).await.0, 200);
        assert!(scenario.requests().is_empty(), "probes cost the API server nothing");

        assert_eq!(ask(&router, "/metrics", Some("good")).await.0, 200);
        assert_eq!(ask(&router, "/metrics", Some("admin")).await.0, 200);
        let (status, text) = ask(&router, "/metrics", Some("stranger")).await;
        assert_eq!((status, text.as_str()), (403, "forbidden: user \"stranger\" may not get path \"/metrics\"\n"));
        let (status, text) = ask(&router, "/metrics", Some("forged")).await;
        assert!(status == 401 && text.contains("token"), "{text}");
        let (status, text) = ask(&router, "/metrics", None).await;
        assert!(status == 403 && text.contains("system:anonymous"), "{text}");
        assert_eq!(ask(&router, "/healthz/leaderElection", Some("stranger")).await.0, 403);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_kept_for_ten_seconds() {
        let scenario = reviewer();
        let router = delegated(&scenario);
        for _ in 0..3 {
            assert_eq!(ask(&router, "/metrics", Some("good")).await.0, 200);
        }
        assert_eq!(scenario.requests().len(), 2, "one review of the token, one of the access");
        tokio::time::advance(std::time::Duration::from_secs(11)).await;
        assert_eq!(ask(&router, "/metrics", Some("good")).await.0, 200);
        assert_eq!(scenario.requests().len(), 4);
    }

    #[tokio::test]
    async fn without_the_right_to_review_the_answer_says_what_is_missing() {
        let scenario = Scenario::answering(|_| (403, Scenario::status(403, "Forbidden", "tokenreviews is forbidden")));
        let (status, text) = ask(&delegated(&scenario), "/metrics", Some("good")).await;
        assert_eq!(status, 403);
        assert!(text.contains("tokenreviews") && text.contains("--authorization-always-allow-paths"), "{text}");
    }

    #[tokio::test]
    async fn a_path_with_a_star_is_allowed_with_all_below_it() {
        let scenario = reviewer();
        let access = Access::delegated(scenario.client(), vec!["/healthz/*".into(), "/metrics".into()]);
        let router = router(Health::new(), Metrics::new(&crate::Product::TEST), access);
        assert_eq!(ask(&router, "/metrics", None).await.0, 200);
        assert_eq!(ask(&router, "/healthz/x", None).await.0, 404);
        assert_eq!(ask(&router, "/healthz", None).await.0, 403);
    }
}
