//! Sends the requests of [`Swaps`] to the API servers. That machine decides when, over which connection, and what an
//! answer means.

use std::collections::BTreeMap;

use announcer_core::engine::Input;
use announcer_core::ownership::node::Swap;
use announcer_core::record::{owner_record, sit};
use announcer_core::swap::{FoundService, SwapAct, SwapAnswer, SwapRequest, Swaps, USUAL};
use announcer_core::view::{ServiceKey, Uid};
use futures::StreamExt;
use futures::future::{AbortHandle, abortable};
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::Service;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::{Api, Client};
use runtime::client::{Servers, Settings, connect, towards};
use runtime::error::{api_code, chain, is_refused_write};
use tokio::sync::mpsc;

use crate::clock::{runtime_now as now, runtime_sleep_until as sleep_until};

type Object = Box<DynamicObject>;

/// Performs swaps; cheap to clone.
#[derive(Clone)]
pub struct Swapper {
    client: Client,
    config: kube::Config,
    settings: Settings,
    servers: Servers,
    inputs: mpsc::UnboundedSender<Input>,
}

impl Swapper {
    /// `config` is that of `client`; it is used for further connections, to `servers` in turn.
    pub fn new(
        client: Client,
        config: kube::Config,
        settings: Settings,
        servers: Servers,
        inputs: mpsc::UnboundedSender<Input>,
    ) -> Self {
        Self { client, config, settings, servers, inputs }
    }

    /// Performs the requested swaps, and tells the engine their results.
    pub async fn run(self, mut asked: mpsc::UnboundedReceiver<(ServiceKey, Swap)>) {
        let mut swaps = Swaps::default();
        let mut connections = BTreeMap::from([(USUAL, Ok(self.client.clone()))]);
        let mut sent: BTreeMap<u64, AbortHandle> = BTreeMap::new();
        let mut under_way = FuturesUnordered::new();
        let mut is_asked = true;
        loop {
            for act in swaps.acts() {
                match act {
                    SwapAct::Open { connection, server } => {
                        connections.insert(connection, self.connect(server));
                    }
                    SwapAct::Close(connection) => {
                        connections.remove(&connection);
                    }
                    SwapAct::Send { id, connection, key, ask } => {
                        let client = connections.get(&connection).cloned();
                        let client = client.unwrap_or_else(|| Err("the connection was closed".to_owned()));
                        let (request, handle) = abortable(async move { (id, request(client, &key, ask).await) });
                        sent.insert(id, handle);
                        under_way.push(request);
                    }
                    SwapAct::Drop(id) => {
                        if let Some(handle) = sent.remove(&id) {
                            handle.abort();
                        }
                    }
                    SwapAct::Tell(key, swap, swapped) => {
                        let _ = self.inputs.send(Input::Swapped(key, swap, swapped));
                    }
                }
            }
            let deadline = swaps.deadline(now());
            if !is_asked && deadline.is_none() {
                return;
            }
            tokio::select! {
                Some(answered) = under_way.next() => if let Ok((id, answer)) = answered {
                    sent.remove(&id);
                    swaps.answered(now(), id, answer);
                },
                next = asked.recv(), if is_asked => match next {
                    Some((key, swap)) => swaps.ask(now(), key, swap),
                    None => is_asked = false,
                },
                () = sleep_until(deadline) => swaps.tick(now()),
            }
        }
    }

    /// A client with its own connection, to another API server if there is one.
    fn connect(&self, server: usize) -> Result<Client, String> {
        let config = match self.servers.other(server) {
            Some(server) => towards(&self.config, server),
            None => self.config.clone(),
        };
        connect(config, &self.settings).map_err(|error| format!("no other connection: {}", chain(&error)))
    }
}

async fn request(client: Result<Client, String>, key: &ServiceKey, ask: SwapRequest<Object>) -> SwapAnswer<Object> {
    let client = match client {
        Ok(client) => client,
        Err(error) => return SwapAnswer::Failed(error),
    };
    let api: Api<DynamicObject> = Api::namespaced_with(client, &key.namespace, &ApiResource::erase::<Service>(&()));
    match ask {
        SwapRequest::Read => api
            .get_opt(&key.name)
            .await
            .map_or_else(|error| failure(&error), |found| SwapAnswer::Found(found.map(read))),
        SwapRequest::Write(mut object, swap) => {
            sit(&mut object.metadata, &swap.owner_record);
            match api.replace(&key.name, &PostParams::default(), &object).await {
                Ok(_) => SwapAnswer::Written,
                Err(error) if api_code(&error) == Some(409) => SwapAnswer::Conflict,
                Err(error) if api_code(&error) == Some(404) => SwapAnswer::Found(None),
                Err(error) => failure(&error),
            }
        }
    }
}

fn read(object: DynamicObject) -> FoundService<Object> {
    let uid = Uid(object.metadata.uid.clone().unwrap_or_default());
    FoundService { uid, owner_record: owner_record(&object.metadata), object: Box::new(object) }
}

fn failure(error: &kube::Error) -> SwapAnswer<Object> {
    // Another API server or a later attempt would refuse too, for example because the annotations are too large.
    if is_refused_write(error) { SwapAnswer::Refused(chain(error)) } else { SwapAnswer::Failed(chain(error)) }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use announcer_core::ownership::node::{OwnerRecord, Swapped, Term};
    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    fn object(host: &str, term: u64, version: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "default", "uid": "u", "resourceVersion": version,
                "annotations": {"mine": "1", "kube-vip.io/vipHost": host,
                    "cloudprovider.harvesterhci.io/announcer-term": term.to_string()}},
            "spec": {"future": true},
        })
    }

    /// Methods and bodies of requests.
    type Asked = Arc<Mutex<Vec<(String, Value)>>>;

    /// Answers in this order, and notes what was asked.
    fn api(answers: Vec<(u16, Value)>) -> (Client, Asked) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
        let log = Arc::clone(&asked);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (code, body) = answers.lock().pop_front().expect("an answer for each request");
            let log = Arc::clone(&log);
            async move {
                let method = request.method().to_string();
                let sent = request.into_body().collect_bytes().await.unwrap();
                log.lock().push((method, serde_json::from_slice(&sent).unwrap_or_default()));
                let mut response = http::Response::new(kube::client::Body::from(body.to_string().into_bytes()));
                *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
                Ok::<_, std::convert::Infallible>(response)
            }
        });
        (Client::new(service, "default"), asked)
    }

    fn swap() -> Swap {
        let owner_record = |host: &str, term| OwnerRecord { host: host.into(), term: Term(term) };
        Swap { uid: Uid("u".into()), expect: Some(owner_record("node-1", 3)), owner_record: owner_record("node-2", 4) }
    }

    fn settings() -> Settings {
        Settings::new("guest", &runtime::Product { name: "test", metrics_prefix: "test", version: "1" })
    }

    /// What becomes of each swap, asked for one after the other.
    async fn perform(client: Client, config: kube::Config, settings: Settings, swaps: usize) -> Vec<Swapped> {
        let (inputs, mut heard) = mpsc::unbounded_channel();
        let (ask, asked) = mpsc::unbounded_channel();
        let running = tokio::spawn(Swapper::new(client, config, settings, Servers::default(), inputs).run(asked));
        let mut all = Vec::new();
        for _ in 0..swaps {
            ask.send((ServiceKey::new("default", "web"), swap())).unwrap();
            let Some(Input::Swapped(_, _, swapped)) = heard.recv().await else { panic!("a swap is answered") };
            all.push(swapped);
        }
        drop(ask);
        running.await.unwrap();
        all
    }

    /// Nobody listens there.
    fn nowhere() -> kube::Config {
        kube::Config::new("http://127.0.0.1:1".parse().unwrap())
    }

    fn status(code: u16, message: &str) -> Value {
        let reason = if code == 404 { "NotFound" } else { "No" };
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code,
            "message": message})
    }

    #[tokio::test]
    async fn the_object_that_was_read_is_written_with_its_new_owner_and_nothing_else_changed() {
        let (client, asked) = api(vec![(200, object("node-1", 3, "5")), (200, object("node-2", 4, "6"))]);
        assert_eq!(perform(client, nowhere(), settings(), 1).await, [Swapped::Won]);
        let asked = asked.lock().clone();
        assert_eq!([&asked[0].0, &asked[1].0], ["GET", "PUT"]);
        assert_eq!(asked[1].1, object("node-2", 4, "5"));
    }

    #[tokio::test]
    async fn each_answer_is_what_it_says() {
        let found = || (200, object("node-1", 3, "5"));
        let refused = |code| vec![found(), (code, status(code, "annotations too long"))];
        let no = Swapped::Refused("annotations too long".into());
        for (answers, expected) in [
            (refused(400), no.clone()),
            (refused(403), no.clone()),
            (refused(413), no.clone()),
            (refused(422), no),
            (vec![(404, status(404, "no"))], Swapped::Gone),
            (vec![found(), (404, status(404, "no"))], Swapped::Gone),
            (vec![found(), (409, status(409, "changed")), found(), (200, object("node-2", 4, "7"))], Swapped::Won),
        ] {
            let count = answers.len();
            let (client, asked) = api(answers);
            assert_eq!(perform(client, nowhere(), settings(), 1).await, [expected]);
            assert_eq!(asked.lock().len(), count);
        }
    }

    #[tokio::test]
    async fn a_failure_says_why_the_last_request_failed() {
        let away = Settings { retry: false, ..settings() };
        let unusable = Settings { user_agent: "\n".into(), ..settings() };
        for (settings, said) in [(away, "refused"), (unusable, "User-Agent")] {
            let (client, asked) = api(vec![(500, status(500, "etcd is away"))]);
            let swapped = perform(client, nowhere(), settings, 1).await;
            let [Swapped::Failed(why)] = swapped.as_slice() else { panic!("{swapped:?}") };
            assert!(why.contains(said), "{why}");
            assert_eq!(asked.lock().len(), 1, "others go over another connection");
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
    async fn a_swap_finds_the_server_that_lives_and_the_next_ones_begin_there() {
        let usual = Arc::new(Mutex::new(0));
        let asked = Arc::clone(&usual);
        let dead = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            *asked.lock() += 1;
            std::future::pending::<Result<http::Response<kube::client::Body>, std::convert::Infallible>>()
        });
        let (config, serving) = server(object("node-2", 4, "6")).await;
        let all = perform(Client::new(dead, "default"), config, settings(), 3).await;
        assert_eq!(all, [Swapped::Won, Swapped::Won, Swapped::Won]);
        assert_eq!(*usual.lock(), 1, "the dead one is asked once");
        serving.abort();
    }
}
