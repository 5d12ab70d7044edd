//! A client whose way to the server may change while it runs: several endpoints tried in turn, credentials replaced, connections
//! made anew after an outage. Nobody who holds the client notices.
//!
//! What the answers say about the other side is kept as a [`Link`]: away since when, credentials refused since when. While it is
//! away one small question per half second finds out when it is back, and tells everybody who waits.

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use kube::{Client, Config};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{ClientError, Settings, connect};
use crate::error::chain;

/// How often to ask a server that is away whether it is back.
const PROBE_EVERY: Duration = Duration::from_millis(500);
/// A server that does not answer its own health check within this time is still away.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);

/// One way to the server.
#[derive(Clone)]
pub struct Endpoint {
    /// Its URL, for messages.
    pub server: String,
    /// Address and credentials.
    pub config: Config,
}

/// Credentials stay out of logs.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("server", &self.server).finish_non_exhaustive()
    }
}

/// What the answers so far say about the other side.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    /// The endpoint in use.
    pub server: String,
    /// No endpoint answers, since when, and the last error.
    pub away: Option<(Instant, String)>,
    /// The credentials are answered 401 Unauthorized, since when.
    pub refused: Option<Instant>,
}

/// The replaceable part behind a client. Cheap to clone; all clones are the same switch.
#[derive(Clone)]
pub struct Switch {
    inner: Arc<Inner>,
}

impl fmt::Debug for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Switch").field("link", &*self.inner.link.borrow()).finish_non_exhaustive()
    }
}

struct Inner {
    settings: Settings,
    ways: Mutex<Ways>,
    link: watch::Sender<Link>,
    /// Counts the ends of outages and the replacements of credentials.
    returns: watch::Sender<u64>,
}

struct Ways {
    endpoints: Vec<Endpoint>,
    clients: Vec<Client>,
    current: usize,
    /// Changes with each move, so that requests that fail together move it once.
    epoch: u64,
    /// Moves since the last answer.
    misses: usize,
}

fn lock(ways: &Mutex<Ways>) -> MutexGuard<'_, Ways> {
    ways.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Switch {
    /// With these endpoints, of which there is at least one; the first is tried first. Sends nothing.
    pub fn new(endpoints: Vec<Endpoint>, settings: Settings) -> Result<Self, ClientError> {
        let clients = clients(&endpoints, &settings)?;
        let server = endpoints[0].server.clone();
        let ways = Mutex::new(Ways { endpoints, clients, current: 0, epoch: 0, misses: 0 });
        let link = watch::Sender::new(Link { server, ..Link::default() });
        Ok(Self { inner: Arc::new(Inner { settings, ways, link, returns: watch::Sender::default() }) })
    }

    /// A client that goes through this switch.
    pub fn client(&self) -> Client {
        let namespace = lock(&self.inner.ways).endpoints[0].config.default_namespace.clone();
        Client::new(self.clone(), namespace)
    }

    /// Other endpoints or other credentials from the next request on. Watches under way are restarted by who listens to
    /// [`Switch::returns`].
    pub fn replace(&self, endpoints: Vec<Endpoint>) -> Result<(), ClientError> {
        let clients = clients(&endpoints, &self.inner.settings)?;
        let server = endpoints[0].server.clone();
        {
            let mut ways = lock(&self.inner.ways);
            let epoch = ways.epoch + 1;
            *ways = Ways { endpoints, clients, current: 0, epoch, misses: 0 };
        }
        self.inner.link.send_modify(|link| {
            link.server = server;
            link.refused = None;
        });
        self.inner.returns.send_modify(|returns| *returns += 1);
        Ok(())
    }

    /// How the other side is doing, now and from now on.
    pub fn link(&self) -> watch::Receiver<Link> {
        self.inner.link.subscribe()
    }

    /// Changes when the server is back after an outage, and when credentials were replaced: who waits after a failure looks again.
    pub fn returns(&self) -> watch::Receiver<u64> {
        self.inner.returns.subscribe()
    }

    /// Finds out when a server that is away is back. Run it beside the client.
    pub async fn watch_over(self) -> Infallible {
        let mut link = self.link();
        loop {
            if link.wait_for(|link| link.away.is_some()).await.is_err() {
                return std::future::pending().await; // cannot happen: this holds the sender
            }
            tokio::time::sleep(PROBE_EVERY).await;
            self.probe().await;
        }
    }

    /// A fresh connection each time: one that was open when the packets began to vanish may stay silent for minutes.
    async fn probe(&self) {
        let (epoch, endpoint) = {
            let ways = lock(&self.inner.ways);
            (ways.epoch, ways.endpoints[ways.current].clone())
        };
        let settings = Settings { connect_timeout: PROBE_PATIENCE, ..self.inner.settings.clone() };
        let Ok(client) = connect(endpoint.config, &settings) else { return };
        let request = Request::get("/readyz").body(Body::empty()).expect("a constant path is a URI");
        match tokio::time::timeout(PROBE_PATIENCE, client.send(request)).await {
            // An ingress, or Rancher without its cluster, answers something else.
            Ok(Ok(answer)) if matches!(answer.status().as_u16(), 200 | 401 | 403) => self.answered(answer.status()),
            Ok(Ok(answer)) => self.missed(epoch, &format!("{} answered {}", endpoint.server, answer.status())),
            Ok(Err(error)) => self.missed(epoch, &chain(&error)),
            Err(_) => self.missed(epoch, &format!("{} does not answer", endpoint.server)),
        }
    }

    fn current(&self) -> (u64, usize, Client) {
        let ways = lock(&self.inner.ways);
        (ways.epoch, ways.endpoints.len(), ways.clients[ways.current].clone())
    }

    /// The server is there, whatever it thinks of the request.
    fn answered(&self, status: StatusCode) {
        let refused = status == StatusCode::UNAUTHORIZED;
        let mut returned = false;
        lock(&self.inner.ways).misses = 0;
        self.inner.link.send_if_modified(|link| {
            let news = link.refused.is_some() != refused;
            if news {
                link.refused = refused.then(Instant::now);
            }
            returned = link.away.take().is_some();
            news || returned
        });
        if returned {
            let mut ways = lock(&self.inner.ways);
            if let Ok(clients) = clients(&ways.endpoints, &self.inner.settings) {
                ways.clients = clients;
            }
            drop(ways);
            self.inner.returns.send_modify(|returns| *returns += 1);
        }
    }

    /// The endpoint of this epoch does not answer: the next one is in turn.
    fn missed(&self, epoch: u64, error: &str) {
        let (all, server) = {
            let mut ways = lock(&self.inner.ways);
            if ways.epoch == epoch {
                ways.current = (ways.current + 1) % ways.endpoints.len();
                ways.epoch += 1;
                ways.misses += 1;
            }
            (ways.misses >= ways.endpoints.len(), ways.endpoints[ways.current].server.clone())
        };
        self.inner.link.send_if_modified(|link| {
            let moved = link.server != server;
            link.server = server;
            let fell = all && link.away.is_none();
            if all {
                let since = link.away.as_ref().map_or_else(Instant::now, |(since, _)| *since);
                link.away = Some((since, error.to_owned()));
            }
            moved || fell
        });
    }

    async fn send(self, request: Request<Body>) -> Result<Response<Body>, kube::Error> {
        let mut request = request;
        let mut tries = 0;
        loop {
            tries += 1;
            let (epoch, ways, client) = self.current();
            let again = copy(&request).filter(|_| tries < ways);
            let method = request.method().clone();
            // Answered by a component of its own behind the API server, or not at all: says nothing about the way to it.
            let counts = !request.uri().path().starts_with("/apis/subresources.");
            let outcome = client.send(request).await;
            let harmless = match &outcome {
                Ok(answer) if is_gateways(answer.status()) => method == Method::GET,
                Ok(answer) => {
                    if counts {
                        self.answered(answer.status());
                    }
                    return outcome;
                }
                Err(error) => method == Method::GET || never_arrived(error),
            };
            if counts {
                let text = match &outcome {
                    Ok(answer) => format!("answered {}", answer.status()),
                    Err(error) => chain(error),
                };
                self.missed(epoch, &text);
            }
            match again {
                Some(copy) if harmless => request = copy,
                _ => return outcome,
            }
        }
    }
}

fn clients(endpoints: &[Endpoint], settings: &Settings) -> Result<Vec<Client>, ClientError> {
    endpoints.iter().map(|endpoint| connect(endpoint.config.clone(), settings)).collect()
}

/// What a proxy says when there is nothing behind it.
fn is_gateways(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT)
}

/// No connection was made, so nothing can have happened on the other side.
fn never_arrived(error: &kube::Error) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<hyper_util::client::legacy::Error>() {
            return error.is_connect();
        }
        next = error.source();
    }
    false
}

fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().try_clone()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

impl tower::Service<Request<Body>> for Switch {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::net::SocketAddr;

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use kube::api::PostParams;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    use super::*;

    /// A server that answers every request with the next status code, or the last one for ever; what it was asked.
    struct Server {
        address: SocketAddr,
        asked: Arc<Mutex<Vec<String>>>,
        task: JoinHandle<()>,
    }

    async fn server_at(address: &str, codes: &[u16]) -> Server {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let codes = Arc::new(Mutex::new(VecDeque::from(codes.to_vec())));
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let heard = Arc::clone(&asked);
        let task = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut bytes = vec![0; 4096];
                let count = stream.read(&mut bytes).await.unwrap_or(0);
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                heard.lock().unwrap().push(text.lines().next().unwrap_or_default().replace(" HTTP/1.1", ""));
                let code = {
                    let mut codes = codes.lock().unwrap();
                    if codes.len() > 1 { codes.pop_front().unwrap() } else { codes[0] }
                };
                let body = if code < 300 {
                    r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}"#.to_owned()
                } else {
                    format!(r#"{{"kind":"Status","status":"Failure","message":"no","reason":"No","code":{code}}}"#)
                };
                let answer = format!(
                    "HTTP/1.1 {code} X\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Server { address, asked, task }
    }

    impl Server {
        fn asked(&self) -> Vec<String> {
            self.asked.lock().unwrap().clone()
        }
    }

    fn endpoint(address: SocketAddr) -> Endpoint {
        let server = format!("http://{address}");
        Endpoint { config: Config::new(server.parse().unwrap()), server }
    }

    fn switch(endpoints: Vec<Endpoint>) -> Switch {
        Switch::new(endpoints, Settings { retry: false, ..Settings::new("harvester", "1") }).unwrap()
    }

    fn maps(switch: &Switch) -> Api<ConfigMap> {
        Api::namespaced(switch.client(), "x")
    }

    /// An address where nobody listens.
    async fn nobody() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
    }

    #[tokio::test]
    async fn the_next_endpoint_is_tried_where_the_first_does_not_answer_and_stays_in_use() {
        let second = server_at("127.0.0.1:0", &[200]).await;
        let switch = switch(vec![endpoint(nobody().await), endpoint(second.address)]);
        maps(&switch).get("a").await.unwrap();
        // Nothing reached the first: a write may go to the second just as well.
        maps(&switch).create(&PostParams::default(), &ConfigMap::default()).await.unwrap();
        assert_eq!(second.asked().len(), 2);
        let link = switch.link().borrow().clone();
        assert_eq!((link.away, link.server), (None, format!("http://{}", second.address)));
    }

    #[tokio::test]
    async fn a_write_that_a_proxy_could_not_deliver_is_not_repeated_elsewhere_but_the_next_request_goes_there() {
        let first = server_at("127.0.0.1:0", &[502]).await;
        let second = server_at("127.0.0.1:0", &[200]).await;
        let switch = switch(vec![endpoint(first.address), endpoint(second.address)]);
        assert!(maps(&switch).create(&PostParams::default(), &ConfigMap::default()).await.is_err());
        assert_eq!((first.asked().len(), second.asked().len()), (1, 0));
        maps(&switch).get("a").await.unwrap();
        assert_eq!((first.asked().len(), second.asked().len()), (1, 1));
    }

    #[tokio::test]
    async fn a_server_that_is_back_is_found_at_once_and_told() {
        let address = nobody().await;
        let switch = switch(vec![endpoint(address)]);
        let returns = switch.returns();
        let over = tokio::spawn(switch.clone().watch_over());
        assert!(maps(&switch).get("a").await.is_err());
        assert!(switch.link().borrow().away.is_some());
        // An ingress in the place of the API server is not the API server.
        let ingress = server_at(&address.to_string(), &[404]).await;
        tokio::time::sleep(PROBE_EVERY * 3).await;
        assert!(switch.link().borrow().away.is_some() && !returns.has_changed().unwrap());
        assert!(ingress.asked().contains(&"GET /readyz".to_owned()));
        ingress.task.abort();
        let _ = ingress.task.await;
        let _server = server_at(&address.to_string(), &[200]).await;
        let start = Instant::now();
        switch.link().wait_for(|link| link.away.is_none()).await.unwrap();
        assert!(returns.has_changed().unwrap());
        assert!(start.elapsed() < PROBE_EVERY * 4, "{:?}", start.elapsed());
        over.abort();
    }

    #[tokio::test]
    async fn refused_credentials_show_and_are_forgotten_when_they_were_replaced() {
        let old = server_at("127.0.0.1:0", &[200, 401]).await;
        let new = server_at("127.0.0.1:0", &[200]).await;
        let switch = switch(vec![endpoint(old.address)]);
        let (client, returns) = (maps(&switch), switch.returns());
        client.get("a").await.unwrap();
        assert!(switch.link().borrow().refused.is_none());
        assert!(client.get("a").await.is_err());
        assert!(switch.link().borrow().refused.is_some() && switch.link().borrow().away.is_none());
        switch.replace(vec![endpoint(new.address)]).unwrap();
        assert!(switch.link().borrow().refused.is_none() && returns.has_changed().unwrap());
        client.get("a").await.unwrap();
    }

    #[tokio::test]
    async fn a_guest_agent_that_does_not_answer_says_nothing_about_the_api() {
        let server = server_at("127.0.0.1:0", &[503]).await;
        let switch = switch(vec![endpoint(server.address)]);
        let path = "/apis/subresources.kubevirt.io/v1/namespaces/x/virtualmachineinstances/a/guestosinfo";
        let request = Request::get(path).body(Vec::new()).unwrap();
        assert!(switch.client().request_text(request).await.is_err());
        assert!(switch.link().borrow().away.is_none());
    }
}
