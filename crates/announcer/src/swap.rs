//! Changes the owner in the record of a Service: compare and swap, in a hurry (decisions.md 20). Clients wait for this
//! write, and the node that has just died may have carried the API server that we talk to.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ApiResource, DynamicObject, ListParams, PostParams};
use kube::{Api, Client};
use runtime::client::{ClientError, Settings, connect};
use runtime::error::{api_code, chain};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::engine::Input;
use crate::ownership::node::{Swap, Swapped};
use crate::record::{seat, sit};
use crate::view::ServiceKey;

/// For each request of the first attempt; an answer takes a few milliseconds.
const FIRST_LIMIT: Duration = Duration::from_millis(100);
/// For each request of the others, with the handshake of a fresh connection: a slow API server is better than none.
const LIMIT: Duration = Duration::from_millis(300);
const ATTEMPTS: usize = 4;
/// Swaps at a time: a node that dies with 200 VIPs must not make the API server slow for all of them.
const AT_ONCE: usize = 16;
/// What has waited for longer than this is decided anew: its owner may answer again by now.
const WAIT_LIMIT: Duration = Duration::from_secs(2);
/// How often the API servers are listed.
const ENDPOINTS_EVERY: Duration = Duration::from_mins(1);

/// Performs swaps. Cheap to clone.
#[derive(Clone)]
pub struct Swapper {
    client: Client,
    config: kube::Config,
    settings: Settings,
    /// API servers by address, in the order of the EndpointSlice.
    servers: Arc<Mutex<Vec<String>>>,
    /// What one swap has found out helps the others.
    way: Arc<Mutex<Way>>,
    inputs: mpsc::UnboundedSender<Input>,
}

impl std::fmt::Debug for Swapper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Swapper").finish_non_exhaustive()
    }
}

/// The connection that swaps begin with.
#[derive(Clone)]
struct Way {
    client: Client,
    /// A swap has found it; it is not the usual one.
    found: bool,
    /// Another one, another number.
    number: u64,
}

/// Swaps that were asked for. Of each Service one is under way and one waits, the last: while the API does not answer they
/// are asked for again and again.
#[derive(Debug, Default)]
struct Backlog {
    /// With the time at which it was asked for last.
    waiting: BTreeMap<ServiceKey, (Swap, Instant)>,
    /// What waits, by the time it was first asked for.
    order: VecDeque<ServiceKey>,
    running: BTreeMap<ServiceKey, Swap>,
}

impl Backlog {
    fn ask(&mut self, now: Instant, key: ServiceKey, swap: Swap) {
        if self.running.get(&key) == Some(&swap) {
            self.waiting.remove(&key);
            self.order.retain(|waiting| *waiting != key);
        } else if self.waiting.insert(key.clone(), (swap, now)).is_none() {
            self.order.push_back(key);
        }
    }

    /// The next one, and whether it has waited for too long.
    fn begin(&mut self, now: Instant) -> Option<(ServiceKey, Swap, bool)> {
        let at = self.order.iter().position(|key| !self.running.contains_key(key))?;
        let key = self.order.remove(at)?;
        let (swap, asked) = self.waiting.remove(&key)?;
        self.running.insert(key.clone(), swap.clone());
        Some((key, swap, now.saturating_duration_since(asked) > WAIT_LIMIT))
    }

    fn ended(&mut self, key: &ServiceKey) {
        self.running.remove(key);
    }
}

/// What came of one attempt.
enum Attempt {
    Done(Swapped),
    /// Somebody else wrote the object: read it again, at once.
    Conflict,
    Failed(String),
}

impl Swapper {
    /// `config` is that of `client`, for fresh connections.
    pub fn new(client: Client, config: kube::Config, settings: Settings, inputs: mpsc::UnboundedSender<Input>) -> Self {
        let way = Arc::new(Mutex::new(Way { client: client.clone(), found: false, number: 0 }));
        Self { client, config, settings, servers: Arc::default(), way, inputs }
    }

    /// Performs those that are asked for, beside one another, and tells the engine what became of them.
    pub async fn run(self, mut asked: mpsc::UnboundedReceiver<(ServiceKey, Swap)>) {
        let mut running = FuturesUnordered::new();
        let mut backlog = Backlog::default();
        loop {
            while running.len() < AT_ONCE
                && let Some((key, swap, late)) = backlog.begin(Instant::now())
            {
                let this = &self;
                running.push(async move {
                    let swapped = if late {
                        Swapped::Failed(format!("it had to wait for more than {WAIT_LIMIT:?}"))
                    } else {
                        this.perform(&key, &swap).await
                    };
                    let _ = this.inputs.send(Input::Swapped(key.clone(), swap, swapped));
                    key
                });
            }
            tokio::select! {
                Some(key) = running.next(), if !running.is_empty() => backlog.ended(&key),
                Some((key, swap)) = asked.recv() => backlog.ask(Instant::now(), key, swap),
                else => return,
            }
        }
    }

    async fn perform(&self, key: &ServiceKey, swap: &Swap) -> Swapped {
        let mut way = self.way().clone();
        let mut fresh: Option<Client> = None;
        let (mut last, mut stuck) = (String::new(), None);
        for attempt in 0..ATTEMPTS {
            let limit = if attempt == 0 { FIRST_LIMIT } else { LIMIT };
            match once(fresh.as_ref().unwrap_or(&way.client), key, swap, limit).await {
                Attempt::Done(swapped) => {
                    if let Some(client) = fresh {
                        self.replace(way.number, client, true);
                    }
                    return swapped;
                }
                Attempt::Conflict => "somebody else writes the Service all the time".clone_into(&mut last),
                Attempt::Failed(error) => {
                    tracing::debug!(service = %key, error, attempt, "cannot change the owner");
                    last = error;
                    if attempt + 1 == ATTEMPTS {
                        break;
                    }
                    let now = self.way().clone();
                    if now.number != way.number {
                        (way, fresh) = (now, None);
                        continue;
                    }
                    if fresh.is_none() && way.found {
                        // It was what lived in the last outage; the usual way may be the better one in this.
                        way = self.replace(way.number, self.client.clone(), false);
                    }
                    match self.fresh(attempt) {
                        Ok(client) => (fresh, stuck) = (Some(client), None),
                        Err(error) => stuck = Some(chain(&error)),
                    }
                }
            }
        }
        Swapped::Failed(match stuck {
            Some(error) => format!("{last}; no other connection: {error}"),
            None => last,
        })
    }

    fn way(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Swaps begin with this client instead of the one of this number, unless somebody was faster. What they begin with then.
    fn replace(&self, number: u64, client: Client, found: bool) -> Way {
        let mut way = self.way();
        if way.number == number {
            *way = Way { client, found, number: number + 1 };
        }
        way.clone()
    }

    /// A client with a connection of its own, to another API server where there is one.
    fn fresh(&self, attempt: usize) -> Result<Client, ClientError> {
        let server = {
            let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
            let count = servers.len().max(1);
            servers.get(attempt % count).cloned()
        };
        let usual = self.config.clone();
        let config = match server {
            Some(server) => towards(usual, &server),
            None => usual,
        };
        connect(config, &self.settings)
    }

    /// Keeps the list of API servers. Without the right to read it, fresh connections go to the usual address.
    pub async fn follow_servers(self) {
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), "default");
        let mut told = false;
        let of_kubernetes = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
        loop {
            match slices.list(&of_kubernetes).await {
                Ok(list) => {
                    let found: Vec<String> = list.items.iter().flat_map(addresses).collect();
                    let hosts = found.iter().filter_map(|server| Some(server.parse::<SocketAddr>().ok()?.ip()));
                    let hosts = hosts.collect();
                    let before = {
                        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
                        std::mem::replace(&mut *servers, found.clone())
                    };
                    if before != found {
                        let _ = self.inputs.send(Input::ApiServers(hosts));
                    }
                }
                Err(error) if api_code(&error) == Some(403) && !told => {
                    told = true;
                    tracing::info!(
                        "no right to read EndpointSlices in namespace default: fail-over uses the usual address of the API"
                    );
                }
                Err(error) => tracing::debug!(error = %chain(&error), "cannot list the API servers"),
            }
            tokio::time::sleep(ENDPOINTS_EVERY).await;
        }
    }
}

/// The way to this API server, if the usual one is by TLS.
fn towards(mut config: kube::Config, server: &str) -> kube::Config {
    if config.cluster_url.scheme_str() == Some("https")
        && let Ok(url) = format!("https://{server}").parse()
    {
        // The certificate is for the name under which everybody knows the API. In a URL an IPv6 address has brackets, in a
        // certificate it has none.
        let usual = config.cluster_url.host().map(|host| host.trim_matches(['[', ']']).to_owned());
        config.tls_server_name = config.tls_server_name.or(usual);
        config.cluster_url = url;
    }
    config
}

/// Address and port of each API server.
fn addresses(slice: &EndpointSlice) -> Vec<String> {
    let port = slice.ports.iter().flatten().find_map(|port| port.port).unwrap_or(443);
    let v6 = slice.address_type == "IPv6";
    let hosts = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
    hosts.map(|host| if v6 { format!("[{host}]:{port}") } else { format!("{host}:{port}") }).collect()
}

/// No other API server and no later attempt is answered otherwise: annotations that are too large, a missing right, a rule of
/// admission.
fn is_refusal(error: &kube::Error) -> bool {
    matches!(api_code(error), Some(400 | 403 | 413 | 422))
}

/// GET, compare, PUT; nothing is written over a record that we did not know.
async fn once(client: &Client, key: &ServiceKey, swap: &Swap, limit: Duration) -> Attempt {
    let api: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), &key.namespace, &ApiResource::erase::<Service>(&()));
    let failed = |error: &kube::Error| {
        if is_refusal(error) { Attempt::Done(Swapped::Refused(chain(error))) } else { Attempt::Failed(chain(error)) }
    };
    let object = match tokio::time::timeout(limit, api.get_opt(&key.name)).await {
        Ok(Ok(object)) => object,
        Ok(Err(error)) => return failed(&error),
        Err(_) => return Attempt::Failed(format!("no answer within {limit:?}")),
    };
    let Some(mut object) = object.filter(|object| object.metadata.uid.as_deref() == Some(swap.uid.0.as_str())) else {
        return Attempt::Done(Swapped::Gone);
    };
    let standing = seat(&object.metadata);
    // An earlier attempt was written and its answer lost.
    if standing.as_ref() == Some(&swap.seat) {
        return Attempt::Done(Swapped::Won);
    }
    if let Some(other) = standing.filter(|standing| !swap.may_replace(Some(standing))) {
        return Attempt::Done(Swapped::Other(other));
    }
    sit(&mut object.metadata, &swap.seat);
    match tokio::time::timeout(limit, api.replace(&key.name, &PostParams::default(), &object)).await {
        Ok(Ok(_)) => Attempt::Done(Swapped::Won),
        Ok(Err(error)) if api_code(&error) == Some(409) => Attempt::Conflict,
        Ok(Err(error)) if api_code(&error) == Some(404) => Attempt::Done(Swapped::Gone),
        Ok(Err(error)) => failed(&error),
        Err(_) => Attempt::Failed(format!("no answer within {limit:?}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::ownership::node::{Seat, Term};
    use crate::view::Uid;

    fn object(host: &str, term: u64, version: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "default", "uid": "u", "resourceVersion": version,
                "annotations": {"mine": "1", "kube-vip.io/vipHost": host,
                    "cloudprovider.harvesterhci.io/announcer-term": term.to_string()}},
            "spec": {"future": true},
        })
    }

    /// Answers in this order, and notes what was asked.
    fn api(answers: Vec<(u16, Value)>) -> (Client, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
        let log = Arc::clone(&asked);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            log.lock().unwrap().push(request.method().to_string());
            let (code, body) = answers.lock().unwrap().pop_front().expect("an answer for each request");
            async move {
                let mut response = http::Response::new(kube::client::Body::from(body.to_string().into_bytes()));
                *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
                Ok::<_, std::convert::Infallible>(response)
            }
        });
        (Client::new(service, "default"), asked)
    }

    #[test]
    fn of_each_service_one_swap_is_under_way_and_one_waits_however_often_it_is_asked_for() {
        let swap =
            |term| Swap { uid: Uid("u".into()), expect: None, seat: Seat { host: "node-1".into(), term: Term(term) } };
        let (web, api) = (ServiceKey::new("default", "web"), ServiceKey::new("default", "api"));
        let mut backlog = Backlog::default();
        let start = Instant::now();
        let late = start + Duration::from_secs(1);
        backlog.ask(start, web.clone(), swap(1));
        assert_eq!(backlog.begin(late), Some((web.clone(), swap(1), false)));
        for term in 2..1000 {
            backlog.ask(late, web.clone(), swap(term));
            backlog.ask(late, api.clone(), swap(7));
        }
        assert_eq!((backlog.waiting.len(), backlog.order.len()), (2, 2));
        assert_eq!(backlog.begin(late), Some((api.clone(), swap(7), false)), "web is still under way");
        assert_eq!(backlog.begin(late), None);
        backlog.ended(&web);
        assert_eq!(backlog.begin(late), Some((web.clone(), swap(999), false)), "the last that was asked for");
        backlog.ask(late, web.clone(), swap(1000));
        backlog.ask(late, web.clone(), swap(999));
        backlog.ended(&web);
        assert_eq!(backlog.begin(late), None, "what was asked for last has just been answered");
    }

    #[test]
    fn a_swap_that_had_to_wait_is_late_unless_it_was_asked_for_again() {
        let swap = Swap { uid: Uid("u".into()), expect: None, seat: Seat { host: "node-1".into(), term: Term(1) } };
        let (web, api) = (ServiceKey::new("default", "web"), ServiceKey::new("default", "api"));
        let (start, mut backlog) = (Instant::now(), Backlog::default());
        for key in [&web, &api] {
            backlog.ask(start, key.clone(), swap.clone());
        }
        let late = start + WAIT_LIMIT + Duration::from_millis(1);
        backlog.ask(late, api.clone(), swap.clone());
        assert_eq!(backlog.begin(late), Some((web, swap.clone(), true)));
        assert_eq!(backlog.begin(late), Some((api, swap, false)));
    }

    #[tokio::test]
    async fn another_api_server_is_known_by_the_name_of_the_usual_one() {
        for (usual, name) in [
            ("https://[fd00:10:96::1]:443", "fd00:10:96::1"),
            ("https://10.96.0.1", "10.96.0.1"),
            ("https://api", "api"),
        ] {
            let mut config = towards(kube::Config::new(usual.parse().unwrap()), "[fd00::2]:6443");
            config.root_cert = Some(Vec::new());
            assert_eq!(config.cluster_url.to_string(), "https://[fd00::2]:6443/");
            assert_eq!(config.tls_server_name.as_deref(), Some(name));
            assert!(connect(config, &settings()).is_ok(), "{usual}");
        }
        let plain = towards(kube::Config::new("http://10.96.0.1".parse().unwrap()), "[fd00::2]:6443");
        assert_eq!(plain.cluster_url.to_string(), "http://10.96.0.1/");
    }

    fn swap() -> Swap {
        let seat = |host: &str, term| Seat { host: host.into(), term: Term(term) };
        Swap { uid: Uid("u".into()), expect: Some(seat("node-1", 3)), seat: seat("node-2", 4) }
    }

    async fn attempt(answers: Vec<(u16, Value)>) -> (Attempt, Vec<String>) {
        let (client, asked) = api(answers);
        let attempt = once(&client, &ServiceKey::new("default", "web"), &swap(), LIMIT).await;
        let asked = asked.lock().unwrap().clone();
        (attempt, asked)
    }

    #[tokio::test]
    async fn only_a_record_that_is_as_believed_is_replaced() {
        for (name, standing, writes) in [
            ("as believed", object("node-1", 3, "5"), true),
            ("older: somebody put it back", object("node-9", 2, "5"), true),
            ("another owner of the same term", object("node-3", 3, "5"), false),
            ("a newer owner", object("node-3", 4, "5"), false),
        ] {
            let (attempt, asked) = attempt(vec![(200, standing), (200, object("node-2", 4, "6"))]).await;
            assert_eq!(asked.len() == 2, writes, "{name}");
            match attempt {
                Attempt::Done(Swapped::Won) => assert!(writes, "{name}"),
                Attempt::Done(Swapped::Other(seat)) => assert!(!writes && seat.host == "node-3", "{name}"),
                _ => panic!("{name}"),
            }
        }
    }

    #[tokio::test]
    async fn a_write_whose_answer_was_lost_is_recognised() {
        let (attempt, asked) = attempt(vec![(200, object("node-2", 4, "6"))]).await;
        assert!(matches!(attempt, Attempt::Done(Swapped::Won)));
        assert_eq!(asked, ["GET"]);
    }

    #[tokio::test]
    async fn another_service_of_the_same_name_is_left_alone() {
        let mut other = object("node-1", 3, "5");
        other["metadata"]["uid"] = json!("new");
        let (attempt, asked) = attempt(vec![(200, other)]).await;
        assert!(matches!(attempt, Attempt::Done(Swapped::Gone)));
        assert_eq!(asked, ["GET"]);
    }

    fn swapper(client: Client, settings: Settings) -> Swapper {
        let (inputs, _heard) = mpsc::unbounded_channel();
        // Nobody listens there.
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        Swapper::new(client, config, settings, inputs)
    }

    fn settings() -> Settings {
        Settings::new("guest", &runtime::Product { name: "test", metrics_prefix: "test", version: "1" })
    }

    #[tokio::test]
    async fn a_failure_says_why_the_last_attempt_failed() {
        let failure = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "InternalError", "code": 500, "message": "etcd is away"});
        let away = Settings { retry: false, ..settings() };
        let unusable = Settings { user_agent: "\n".into(), ..settings() };
        // The others take a fresh connection, if there is one.
        for (settings, said, usual) in
            [(away, &["refused"][..], 1), (unusable, &["etcd is away", "User-Agent"], ATTEMPTS)]
        {
            let (client, asked) = api(vec![(500, failure.clone()); usual]);
            let swapped = swapper(client, settings).perform(&ServiceKey::new("default", "web"), &swap()).await;
            let Swapped::Failed(why) = swapped else { panic!("{swapped:?}") };
            assert!(said.iter().all(|said| why.contains(said)), "{why}");
            assert_eq!(asked.lock().unwrap().len(), usual);
        }
    }

    #[tokio::test]
    async fn what_an_api_server_refuses_is_asked_of_no_other() {
        for code in [400, 403, 413, 422] {
            let refusal = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Refused", "code": code, "message": "annotations too long"});
            let (client, asked) = api(vec![(200, object("node-1", 3, "5")), (code, refusal)]);
            let swapped = swapper(client, settings()).perform(&ServiceKey::new("default", "web"), &swap()).await;
            assert_eq!(swapped, Swapped::Refused("annotations too long".into()));
            assert_eq!(asked.lock().unwrap().as_slice(), ["GET", "PUT"]);
        }
    }

    /// An API server that gives each request this answer.
    async fn server(answer: Value) -> (kube::Config, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let serving = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = stream.read(&mut [0; 4096]).await.unwrap();
                let body = answer.to_string();
                let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json";
                let text = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(text.as_bytes()).await.unwrap();
            }
        });
        (kube::Config::new(url), serving)
    }

    #[tokio::test]
    async fn one_swap_finds_the_server_that_lives_and_the_next_ones_begin_there() {
        let usual = Arc::new(Mutex::new(0));
        let asked = Arc::clone(&usual);
        let dead = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            *asked.lock().unwrap() += 1;
            std::future::pending::<Result<http::Response<kube::client::Body>, std::convert::Infallible>>()
        });
        let (config, serving) = server(object("node-2", 4, "6")).await;
        let (inputs, _heard) = mpsc::unbounded_channel();
        let mut swapper = Swapper::new(Client::new(dead, "default"), config, settings(), inputs);
        for _ in 0..3 {
            assert_eq!(swapper.perform(&ServiceKey::new("default", "web"), &swap()).await, Swapped::Won);
        }
        assert_eq!(*usual.lock().unwrap(), 1, "the dead one is asked once");

        // That one dies too: the usual way may be the better one again.
        serving.abort();
        let _ = serving.await;
        swapper.settings.retry = false;
        for _ in 0..2 {
            let swapped = swapper.perform(&ServiceKey::new("default", "web"), &swap()).await;
            assert!(matches!(swapped, Swapped::Failed(_)), "{swapped:?}");
        }
        assert_eq!(*usual.lock().unwrap(), 2);
    }

    #[tokio::test]
    async fn a_conflict_is_read_again_at_once_and_decided_by_what_stands_then() {
        let conflict = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Conflict", "code": 409, "message": "changed"});
        for (standing, won) in [(object("node-1", 3, "6"), true), (object("node-3", 4, "6"), false)] {
            let (client, asked) = api(vec![
                (200, object("node-1", 3, "5")),
                (409, conflict.clone()),
                (200, standing),
                (200, object("node-2", 4, "7")),
            ]);
            let swapped = swapper(client, settings()).perform(&ServiceKey::new("default", "web"), &swap()).await;
            assert_eq!(swapped == Swapped::Won, won, "{swapped:?}");
            assert_eq!(asked.lock().unwrap().len(), if won { 4 } else { 3 });
        }
    }
}
