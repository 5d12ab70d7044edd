//! A client whose endpoints and credentials can change at run time. Several endpoints are tried in turn, credentials
//! are replaced, and connections are made anew after an outage. The holder of the client does not notice.
//!
//! The state of the server, as its answers show it, is kept as a [`Link`]: since when it is away, since when it refuses
//! the credentials. While it is away, one small probe per half second detects when it is back, and then all waiting
//! parts are notified.

use parking_lot::Mutex;
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
use super::outcome::{copy, is_gateways, never_arrived};
use super::{ClientError, Settings, connect};
use crate::error::{chain, is_denied};

/// Interval of the probes of a server that is away.
const PROBE_EVERY: Duration = Duration::from_millis(500);
/// Time-out of a probe: without an answer to its health check the server is still away.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);
/// If all endpoints refuse the same request, the others are not asked again for this long.
const REFUSED_ALIKE: Duration = Duration::from_mins(1);
/// When the server is back, requests under way get this long for their answer: they may have been sent just now.
const GRACE: Duration = Duration::from_millis(200);

/// One endpoint of the server.
#[derive(Clone)]
pub struct Endpoint {
    /// Its URL, for messages.
    pub server: String,
    /// Address and credentials.
    pub config: Config,
}

/// Keeps credentials out of logs.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("server", &self.server).finish_non_exhaustive()
    }
}

/// The state of the server, as the answers so far show it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    /// The endpoint in use.
    pub server: String,
    /// Since when no endpoint answers, with the last error.
    pub away: Option<(Instant, String)>,
    /// Since when the credentials are rejected with 401 Unauthorized.
    pub refused: Option<Instant>,
}

/// The replaceable part behind a client. Clones share one state.
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
    state: Mutex<SwitchState>,
    link: watch::Sender<Link>,
    /// Counts the ends of outages and the replacements of credentials.
    returns: watch::Sender<u64>,
    /// Counts the ends of outages.
    ends: watch::Sender<u64>,
}

struct SwitchState {
    endpoints: Vec<Endpoint>,
    clients: Vec<Clients>,
    current: usize,
    /// Changes with each move, so that requests that fail together move it once.
    epoch: u64,
    /// Moves since the last answer.
    misses: usize,
    /// When that answer came.
    answered: Option<Instant>,
    /// When the other endpoints refused the same as the current one, or could not be reached.
    refused_alike: Option<Instant>,
}

impl SwitchState {
    fn new(endpoints: Vec<Endpoint>, clients: Vec<Clients>, epoch: u64) -> Self {
        Self { endpoints, clients, current: 0, epoch, misses: 0, answered: None, refused_alike: None }
    }
}

/// The clients of one endpoint.
#[derive(Clone)]
struct Clients {
    requests: Client,
    /// Client for watches, without retries. A newly started API server answers each watch with a second of
    /// `Retry-After`, although it could serve it much sooner, and watchers have a back-off of their own.
    watches: Client,
}

/// The request will not be answered any more, although the server is back.
#[derive(Debug, thiserror::Error)]
#[error("the request was sent before the server stopped answering; it is given up now that the server answers again")]
struct LeftBehind;

impl Switch {
    /// Creates a switch with at least one endpoint; the first one is tried first. Sends nothing.
    pub fn new(endpoints: Vec<Endpoint>, settings: Settings) -> Result<Self, ClientError> {
        let clients = clients(&endpoints, &settings)?;
        let server = endpoints[0].server.clone();
        let state = Mutex::new(SwitchState::new(endpoints, clients, 0));
        let link = watch::Sender::new(Link { server, ..Link::default() });
        Ok(Self {
            inner: Arc::new(Inner {
                settings,
                state,
                link,
                returns: watch::Sender::default(),
                ends: watch::Sender::default(),
            }),
        })
    }

    /// A client that uses this switch.
    pub fn client(&self) -> Client {
        let namespace = self.inner.state.lock().endpoints[0].config.default_namespace.clone();
        Client::new(self.clone(), namespace)
    }

    /// Replaces endpoints and credentials for all further requests. Watches that are under way are restarted by the
    /// listeners of [`Switch::returns`].
    pub fn replace(&self, endpoints: Vec<Endpoint>) -> Result<(), ClientError> {
        let clients = clients(&endpoints, &self.inner.settings)?;
        let server = endpoints[0].server.clone();
        {
            let mut state = self.inner.state.lock();
            *state = SwitchState::new(endpoints, clients, state.epoch + 1);
        }
        self.inner.link.send_modify(|link| {
            link.server = server;
            link.refused = None;
        });
        self.inner.returns.send_modify(|returns| *returns += 1);
        Ok(())
    }

    /// The state of the server; the receiver sees every change.
    pub fn link(&self) -> watch::Receiver<Link> {
        self.inner.link.subscribe()
    }

    /// The receiver changes when the server is back after an outage, and when credentials were replaced, so that parts
    /// that wait after a failure can try again.
    pub fn returns(&self) -> watch::Receiver<u64> {
        self.inner.returns.subscribe()
    }

    /// Detects when a server that is away is back. Has to run besides the client.
    pub async fn watch_over(self) -> Infallible {
        let mut link = self.link();
        loop {
            if link.wait_for(|link| link.away.is_some()).await.is_err() {
                return std::future::pending().await; // cannot happen: this holds the sender
            }
            // Probes overlap. A probe that was sent into a dead network waits for TCP's next retransmission, even if
            // the network has recovered meanwhile.
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

    /// Sends a probe on a new connection: an old one may stay silent for minutes after packets were lost.
    async fn probe(&self) {
        let (epoch, index, endpoint) = {
            let state = self.inner.state.lock();
            (state.epoch, state.current, state.endpoints[state.current].clone())
        };
        let settings = Settings { connect_timeout: PROBE_PATIENCE, retry: false, ..self.inner.settings.clone() };
        let Ok(client) = connect(endpoint.config, &settings) else { return };
        let request = Request::get("/readyz").body(Body::empty()).expect("a constant path is a URI");
        let asked = Instant::now();
        let missed = |error: &str| self.missed(epoch, asked, error);
        match tokio::time::timeout(PROBE_PATIENCE, client.send(request)).await {
            // An ingress, or Rancher without its cluster, answers with another status.
            Ok(Ok(answer)) if answer.status() == StatusCode::OK || is_denied(answer.status().as_u16()) => {
                self.prefer(index, &endpoint.server);
                self.answered(answer.status());
            }
            Ok(Ok(answer)) => missed(&format!("{} answered {}", endpoint.server, answer.status())),
            Ok(Err(error)) => missed(&chain(&error)),
            Err(_) => missed(&format!("{} does not answer", endpoint.server)),
        }
    }

    /// Switches to the endpoint that has answered, even if another one is current by now.
    fn prefer(&self, index: usize, server: &str) {
        let mut state = self.inner.state.lock();
        if state.current != index && state.endpoints.get(index).is_some_and(|endpoint| endpoint.server == server) {
            (state.current, state.epoch) = (index, state.epoch + 1);
            drop(state);
            self.inner.link.send_modify(|link| server.clone_into(&mut link.server));
        }
    }

    fn current(&self, watching: bool) -> (u64, usize, Client) {
        let state = self.inner.state.lock();
        let Clients { requests, watches } = &state.clients[state.current];
        (state.epoch, state.endpoints.len(), if watching { watches } else { requests }.clone())
    }

    /// Asks the other endpoints after the current one has rejected the credentials or rights: another endpoint may
    /// grant other rights. The first one that accepts the request becomes the current endpoint. The endpoint that
    /// refused is tried again when that one does not answer.
    async fn elsewhere(&self, request: Request<Body>, watching: bool) -> Option<Response<Body>> {
        let others: Vec<(usize, String, Client)> = {
            let state = self.inner.state.lock();
            if state.refused_alike.is_some_and(|at| at.elapsed() < REFUSED_ALIKE) {
                return None;
            }
            let all = state.endpoints.len();
            let others = (1..all).map(|step| (state.current + step) % all);
            let client = |clients: &Clients| if watching { &clients.watches } else { &clients.requests }.clone();
            others.map(|at| (at, state.endpoints[at].server.clone(), client(&state.clients[at]))).collect()
        };
        for (index, server, client) in others {
            let Some(copy) = copy(&request) else { break };
            let Ok(answer) = client.send(copy).await else { continue };
            if !is_denied(answer.status().as_u16()) && !is_gateways(answer.status()) {
                tracing::info!(
                    server,
                    "this endpoint answers a request that another endpoint refuses; the client uses this endpoint \
                    from now on"
                );
                self.prefer(index, &server);
                return Some(answer);
            }
        }
        self.inner.state.lock().refused_alike = Some(Instant::now());
        None
    }

    /// Records an answer: the server is there, whatever the status is.
    fn answered(&self, status: StatusCode) {
        let refused = status == StatusCode::UNAUTHORIZED;
        let mut returned = false;
        {
            let mut state = self.inner.state.lock();
            (state.misses, state.answered) = (0, Some(Instant::now()));
        }
        self.inner.link.send_if_modified(|link| {
            let news = link.refused.is_some() != refused;
            if news {
                link.refused = refused.then(Instant::now);
            }
            returned = link.away.take().is_some();
            news || returned
        });
        if returned {
            let mut state = self.inner.state.lock();
            if let Ok(clients) = clients(&state.endpoints, &self.inner.settings) {
                state.clients = clients;
            }
            drop(state);
            self.inner.ends.send_modify(|ends| *ends += 1);
            self.inner.returns.send_modify(|returns| *returns += 1);
        }
    }

    /// Records that the endpoint of this epoch has not answered what was sent at `asked`: the next one becomes current.
    /// It is no outage if another request was answered since: this one hangs, for example at a webhook.
    fn missed(&self, epoch: u64, asked: Instant, error: &str) {
        let (all, server) = {
            let mut state = self.inner.state.lock();
            let hangs = state.answered.is_some_and(|answered| answered > asked);
            if state.epoch == epoch && (!hangs || state.endpoints.len() > 1) {
                state.current = (state.current + 1) % state.endpoints.len();
                state.epoch += 1;
                state.misses += usize::from(!hangs);
            }
            (state.misses >= state.endpoints.len(), state.endpoints[state.current].server.clone())
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
            let (asked, (epoch, endpoints, client)) = (Instant::now(), self.current(watching));
            let again = copy(&request).filter(|_| tries < endpoints);
            let method = request.method().clone();
            // A separate component behind the API server answers these requests, or does not answer. That says nothing
            // about the connection to the API server.
            let counts = !request.uri().path().starts_with("/apis/subresources.");
            // During an outage TCP retransmits less and less often. A request that waited for that would not notice the
            // end of the outage.
            let left_behind = async {
                let _ = ends.changed().await;
                tokio::time::sleep(GRACE).await;
            };
            let outcome = tokio::select! {
                biased;
                outcome = client.send(request) => outcome,
                () = left_behind => return Err(kube::Error::Service(Box::new(LeftBehind))),
            };
            let refused = counts && outcome.as_ref().is_ok_and(|answer| is_denied(answer.status().as_u16()));
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
                self.missed(epoch, asked, &text);
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
