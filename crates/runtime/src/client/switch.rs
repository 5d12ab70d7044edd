//! A client whose way to the server may change while it runs: several endpoints tried in turn, credentials replaced,
//! connections made anew after an outage. Nobody who holds the client notices.
//!
//! What the answers say about the other side is kept as a [`Link`]: away since when, credentials refused since when.
//! While it is away one small question per half second finds out when it is back, and tells everybody who waits.

use parking_lot::{Mutex, MutexGuard};
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use kube::{Client, Config};
use tokio::sync::watch;
use tokio::time::Instant;

use super::layer::is_watch;
use super::outcome::{copy, is_gateways, is_refused, never_arrived};
use super::{ClientError, Settings, connect};
use crate::error::chain;

/// How often to ask a server that is away whether it is back.
const PROBE_EVERY: Duration = Duration::from_millis(500);
/// A server that does not answer its own health check within this time is still away.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);
/// Where all endpoints refuse alike, nobody is asked a second time for so long.
const REFUSED_ALIKE: Duration = Duration::from_mins(1);
/// A request that is under way when the server is back may have just been sent: it gets so long to be answered.
const GRACE: Duration = Duration::from_millis(200);

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
    /// Counts the ends of outages.
    ends: watch::Sender<u64>,
}

struct Ways {
    endpoints: Vec<Endpoint>,
    clients: Vec<Clients>,
    current: usize,
    /// Changes with each move, so that requests that fail together move it once.
    epoch: u64,
    /// Moves since the last answer.
    misses: usize,
    /// When the others refused what the one in use had refused, or could not be asked.
    refused_alike: Option<Instant>,
}

/// Of one endpoint.
#[derive(Clone)]
struct Clients {
    requests: Client,
    /// Does not try again by itself: an API server that has just started asks for a second of patience per watch, and
    /// is able to serve it long before. Who watches has a back-off of its own.
    watches: Client,
}

/// No answer will come any more, although the server is back.
#[derive(Debug, thiserror::Error)]
#[error("the request was sent before the server stopped answering; it is given up now that the server answers again")]
struct LeftBehind;

fn lock(ways: &Mutex<Ways>) -> MutexGuard<'_, Ways> {
    ways.lock()
}

impl Switch {
    /// With these endpoints, of which there is at least one; the first is tried first. Sends nothing.
    pub fn new(endpoints: Vec<Endpoint>, settings: Settings) -> Result<Self, ClientError> {
        let clients = clients(&endpoints, &settings)?;
        let server = endpoints[0].server.clone();
        let ways = Mutex::new(Ways { endpoints, clients, current: 0, epoch: 0, misses: 0, refused_alike: None });
        let link = watch::Sender::new(Link { server, ..Link::default() });
        Ok(Self {
            inner: Arc::new(Inner {
                settings,
                ways,
                link,
                returns: watch::Sender::default(),
                ends: watch::Sender::default(),
            }),
        })
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
            *ways = Ways { endpoints, clients, current: 0, epoch, misses: 0, refused_alike: None };
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

    /// Changes when the server is back after an outage, and when credentials were replaced: who waits after a failure
    /// looks again.
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
            // Side by side: a question that was sent into a dead wire stays without an answer for as long as TCP waits
            // before it sends again, also when the wire is whole by then.
            let mut probes = FuturesUnordered::new();
            let mut ask = tokio::time::interval_at(Instant::now() + PROBE_EVERY, PROBE_EVERY);
            while link.borrow_and_update().away.is_some() {
                tokio::select! {
                    _ = ask.tick() => probes.push(self.probe()),
                    Some(()) = probes.next() => {}
                    _ = link.changed() => {}
                }
            }
        }
    }

    /// A fresh connection each time: one that was open when the packets began to vanish may stay silent for minutes.
    async fn probe(&self) {
        let (epoch, index, endpoint) = {
            let ways = lock(&self.inner.ways);
            (ways.epoch, ways.current, ways.endpoints[ways.current].clone())
        };
        let settings = Settings { connect_timeout: PROBE_PATIENCE, retry: false, ..self.inner.settings.clone() };
        let Ok(client) = connect(endpoint.config, &settings) else { return };
        let request = Request::get("/readyz").body(Body::empty()).expect("a constant path is a URI");
        match tokio::time::timeout(PROBE_PATIENCE, client.send(request)).await {
            // An ingress, or Rancher without its cluster, answers something else.
            Ok(Ok(answer)) if matches!(answer.status().as_u16(), 200 | 401 | 403) => {
                self.prefer(index, &endpoint.server);
                self.answered(answer.status());
            }
            Ok(Ok(answer)) => self.missed(epoch, &format!("{} answered {}", endpoint.server, answer.status())),
            Ok(Err(error)) => self.missed(epoch, &chain(&error)),
            Err(_) => self.missed(epoch, &format!("{} does not answer", endpoint.server)),
        }
    }

    /// The endpoint that has answered, also if another one's turn has come meanwhile.
    fn prefer(&self, index: usize, server: &str) {
        let mut ways = lock(&self.inner.ways);
        if ways.current != index && ways.endpoints.get(index).is_some_and(|endpoint| endpoint.server == server) {
            (ways.current, ways.epoch) = (index, ways.epoch + 1);
            drop(ways);
            self.inner.link.send_modify(|link| server.clone_into(&mut link.server));
        }
    }

    fn current(&self, watching: bool) -> (u64, usize, Client) {
        let ways = lock(&self.inner.ways);
        let Clients { requests, watches } = &ways.clients[ways.current];
        (ways.epoch, ways.endpoints.len(), if watching { watches } else { requests }.clone())
    }

    /// What the other endpoints say to a request that the one in use has refused for who we are: an endpoint may be
    /// another way in, with rights of its own. The first that lets us in stays in use; the one that refused is tried
    /// again when that one does not answer.
    async fn elsewhere(&self, request: Request<Body>, watching: bool) -> Option<Response<Body>> {
        let others: Vec<(usize, String, Client)> = {
            let ways = lock(&self.inner.ways);
            if ways.refused_alike.is_some_and(|at| at.elapsed() < REFUSED_ALIKE) {
                return None;
            }
            let all = ways.endpoints.len();
            let others = (1..all).map(|step| (ways.current + step) % all);
            let client = |clients: &Clients| if watching { &clients.watches } else { &clients.requests }.clone();
            others.map(|at| (at, ways.endpoints[at].server.clone(), client(&ways.clients[at]))).collect()
        };
        for (index, server, client) in others {
            let Some(copy) = copy(&request) else { break };
            let Ok(answer) = client.send(copy).await else { continue };
            if !is_refused(answer.status()) && !is_gateways(answer.status()) {
                tracing::info!(
                    server,
                    "this endpoint answers a request that another endpoint refuses; the client uses this endpoint \
                    from now on"
                );
                self.prefer(index, &server);
                return Some(answer);
            }
        }
        lock(&self.inner.ways).refused_alike = Some(Instant::now());
        None
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
            self.inner.ends.send_modify(|ends| *ends += 1);
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
        let watching = is_watch(request.uri().query().unwrap_or_default());
        loop {
            tries += 1;
            let mut ends = self.inner.ends.subscribe();
            let (epoch, ways, client) = self.current(watching);
            let again = copy(&request).filter(|_| tries < ways);
            let method = request.method().clone();
            // Answered by a component of its own behind the API server, or not at all: says nothing about the way to
            // it.
            let counts = !request.uri().path().starts_with("/apis/subresources.");
            // Through an outage TCP falls silent for longer and longer; nobody who waits for that would notice that it
            // is over.
            let left_behind = async {
                let _ = ends.changed().await;
                tokio::time::sleep(GRACE).await;
            };
            let outcome = tokio::select! {
                biased;
                outcome = client.send(request) => outcome,
                () = left_behind => return Err(kube::Error::Service(Box::new(LeftBehind))),
            };
            let refused = counts && outcome.as_ref().is_ok_and(|answer| is_refused(answer.status()));
            let mut again = again;
            if let Some(copy) = again.take_if(|_| refused)
                && let Some(better) = self.elsewhere(copy, watching).await
            {
                self.answered(better.status());
                return Ok(better);
            }
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

fn clients(endpoints: &[Endpoint], settings: &Settings) -> Result<Vec<Clients>, ClientError> {
    let impatient = Settings { retry: false, ..settings.clone() };
    endpoints
        .iter()
        .map(|endpoint| {
            let requests = connect(endpoint.config.clone(), settings)?;
            Ok(Clients { requests, watches: connect(endpoint.config.clone(), &impatient)? })
        })
        .collect()
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
#[path = "switch_tests.rs"]
mod tests;
