use k8s_openapi::api::core::v1::Service as KubeService;
use kube::Api;
use kube::api::WatchParams;
use kube::client::ClientBuilder;
use kube::client::retry::RetryPolicy;
use kube::core::Status;
use tower::retry::RetryLayer;
use tower::service_fn;

use super::*;
use crate::error::chain;

#[test]
fn requests_are_counted_under_kubernetes_own_verbs_and_resources() {
    for (method, uri, verb, resource) in [
        (Method::GET, "/api/v1/namespaces/a/services/b", "get", "services"),
        (Method::GET, "/api/v1/services?limit=500", "list", "services"),
        (Method::GET, "/api/v1/namespaces/a/services?&watch=true&x=1", "watch", "services"),
        (Method::PATCH, "/api/v1/namespaces/a/services/b/status", "patch", "services/status"),
        (
            Method::POST,
            "/apis/loadbalancer.harvesterhci.io/v1beta1/namespaces/a/loadbalancers",
            "create",
            "loadbalancers",
        ),
        (Method::PUT, "/apis/coordination.k8s.io/v1/namespaces/a/leases/b", "update", "leases"),
        (Method::DELETE, "/api/v1/nodes/n", "delete", "nodes"),
        (Method::GET, "/api/v1/namespaces/a", "get", "namespaces"),
        (Method::GET, "/api/v1/namespaces", "list", "namespaces"),
        (
            Method::GET,
            "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/b/guestosinfo",
            "get",
            "virtualmachineinstances/guestosinfo",
        ),
        (Method::GET, "/healthz", "get", "/healthz"),
    ] {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        assert_eq!(Call::of(&method, path, query), Call { verb, resource: resource.into() }, "{uri}");
    }
}

fn client<F, A, B>(answer: F) -> (kube::Client, ApiMetrics)
where
    F: FnMut(Request<Body>) -> A + Send + 'static,
    A: Future<Output = Result<Response<B>, BoxError>> + Send + 'static,
    B: HttpBody<Data = hyper::body::Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let metrics = ApiMetrics::register(&mut Registry::default(), &Product::TEST);
    let settings = Settings::new("guest", &Product::TEST).metrics(&metrics);
    let builder = ClientBuilder::new(service_fn(answer), "default");
    (builder.with_layer(&ObserveLayer::new(&settings, "https://guest:6443/")).build(), metrics)
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_given_up_after_ten_seconds() {
    let (client, metrics) = client(|_| std::future::pending::<Result<Response<Body>, BoxError>>());
    let start = Instant::now();
    let error = Api::<KubeService>::default_namespaced(client).get("web").await.unwrap_err();
    assert_eq!(start.elapsed(), Duration::from_secs(10));
    assert_eq!(chain(&error), "no complete answer to GET /api/v1/namespaces/default/services/web within 10s");
    assert_eq!(metrics.count("guest", "get", "services", "error"), 1);
}

#[tokio::test(start_paused = true)]
async fn requests_leave_at_the_rate_of_the_flags_and_leases_at_once() {
    let answer = service_fn(|_: Request<Body>| async {
        let body = serde_json::to_vec(&serde_json::json!({"metadata": {"name": "web"}}))?;
        Ok::<_, BoxError>(Response::new(Body::from(body)))
    });
    let settings = Settings::new("guest", &Product::TEST).limit(Limit::new(2.0, 1));
    let layer = ObserveLayer::new(&settings, "https://guest:6443/");
    let client = ClientBuilder::new(answer, "default").with_layer(&layer).build();
    let start = Instant::now();
    let services = Api::<KubeService>::default_namespaced(client.clone());
    for expected in [0, 500, 1000] {
        services.get("web").await.unwrap();
        assert_eq!(start.elapsed(), Duration::from_millis(expected));
    }
    let leases = Api::<k8s_openapi::api::coordination::v1::Lease>::default_namespaced(client);
    leases.get("web").await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_stops_half_way_is_given_up_too() {
    let (client, metrics) = client(|_| async { Ok(Response::new(Silent)) });
    let start = Instant::now();
    assert!(Api::<KubeService>::default_namespaced(client).get("web").await.is_err());
    assert_eq!(start.elapsed(), Duration::from_secs(10));
    assert_eq!(metrics.count("guest", "get", "services", "200"), 1);
}

/// The library waits inside its own stack, for as long as the server says.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_told_to_come_back_much_later_is_not_frozen_until_then() {
    let busy = service_fn(|_: Request<Body>| async {
        Ok::<_, BoxError>(Response::builder().status(503).header("Retry-After", "600").body(Body::empty())?)
    });
    let waiting = RetryLayer::new(RetryPolicy::server_retry()).layer(busy);
    let layer = ObserveLayer::new(&Settings::new("guest", &Product::TEST), "https://guest:6443/");
    let client = ClientBuilder::new(waiting, "default").with_layer(&layer).build();
    let start = Instant::now();
    let services = Api::<KubeService>::default_namespaced(client);
    assert!(services.watch(&WatchParams::default(), "0").await.is_err());
    assert_eq!(start.elapsed(), WATCH_START_TIMEOUT);
}

#[derive(Debug)]
struct Listener(std::time::Instant, parking_lot::Mutex<Vec<String>>);

impl ServerTime for Listener {
    fn now(&self) -> std::time::Instant {
        self.0
    }

    fn answered(&self, asked: std::time::Instant, date: &str) {
        assert_eq!(asked, self.0);
        self.1.lock().push(date.to_owned());
    }
}

#[tokio::test]
async fn the_time_is_told_by_each_answer_that_has_it_whatever_it_says() {
    let date = "Thu, 01 Jan 2026 12:00:00 GMT";
    let answer = service_fn(move |request: Request<Body>| async move {
        let builder = Response::builder().status(404);
        let dated = if request.method() == Method::GET { builder.header(DATE, date) } else { builder };
        Ok::<_, BoxError>(dated.body(Body::empty())?)
    });
    let listener = Arc::new(Listener(std::time::Instant::now(), parking_lot::Mutex::default()));
    let settings = Settings::new("guest", &Product::TEST).time(Arc::clone(&listener) as Arc<dyn ServerTime>);
    let layer = ObserveLayer::new(&settings, "https://guest:6443/");
    let services =
        Api::<KubeService>::default_namespaced(ClientBuilder::new(answer, "default").with_layer(&layer).build());
    assert!(
        services.get("web").await.is_err()
            && services.delete("web", &kube::api::DeleteParams::default()).await.is_err()
    );
    assert_eq!(*listener.1.lock(), [date]);
}

#[tokio::test]
async fn a_refusal_is_counted_with_its_code() {
    let (client, metrics) = client(|_| async {
        let body = serde_json::to_vec(&Status::failure("no", "Forbidden").with_code(403))?;
        Ok(Response::builder().status(403).body(Body::from(body))?)
    });
    assert!(Api::<KubeService>::default_namespaced(client).get("web").await.is_err());
    assert_eq!(metrics.count("guest", "get", "services", "403"), 1);
}

/// A body that never ends and never says anything.
struct Silent;

impl HttpBody for Silent {
    type Data = hyper::body::Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, BoxError>>> {
        Poll::Pending
    }
}
