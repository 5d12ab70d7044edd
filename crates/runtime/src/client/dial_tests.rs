//! Against servers on loopback.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Response;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Config};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tower::{ServiceExt, service_fn};

use super::super::{Settings, connect};
use super::*;
use crate::Product;

/// A server that counts what it is asked.
async fn server() -> (SocketAddr, Arc<Mutex<u32>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(Mutex::new(0));
    let count = Arc::clone(&asked);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            *count.lock() += 1;
            let body = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}"#;
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length:";
            let _ = stream.write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes()).await;
        }
    });
    (address, asked)
}

/// An address where nobody listens.
async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// A server that answers no SYN: its queue is full. What is returned keeps it so.
fn silent() -> (SocketAddr, (socket2::Socket, Vec<TcpStream>)) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let waiting = std::iter::from_fn(|| TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok());
    let waiting = waiting.collect();
    (address, (socket, waiting))
}

fn maps(usual: SocketAddr, servers: &Servers) -> Api<ConfigMap> {
    let config = Config::new(format!("http://{usual}").parse().unwrap());
    let settings = Settings::new("guest", &Product::TEST).retries(false).servers(Some(servers.clone()));
    Api::namespaced(connect(config, &settings).unwrap(), "x")
}

#[tokio::test]
async fn a_lost_server_is_left_for_the_next_one_which_stays_in_use() {
    let ((usual, at_usual), (alive, at_alive)) = (server().await, server().await);
    let (mute, _queue) = silent();
    let servers = Servers::default();
    servers.learn(vec![mute, alive], true);
    servers.serves(mute);
    let usually = maps(usual, &servers);
    usually.get("a").await.unwrap();
    assert_eq!((*at_usual.lock(), *at_alive.lock()), (1, 0), "while nothing is lost the usual address is used");
    // The usual address leads to the lost server.
    let maps = maps(mute, &servers);
    let begun = Instant::now();
    maps.create(&PostParams::default(), &ConfigMap::default()).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(servers.candidates()[0], alive);
    usually.get("a").await.unwrap();
    assert_eq!((*at_usual.lock(), *at_alive.lock()), (1, 2), "after a loss the servers are used directly");
}

#[tokio::test]
async fn where_no_server_of_the_list_answers_the_usual_address_is_used() {
    let (usual, at_usual) = server().await;
    let servers = Servers::default();
    let maps = maps(usual, &servers);
    maps.get("a").await.unwrap();
    servers.learn(vec![nobody().await, nobody().await], true);
    servers.lost();
    maps.get("a").await.unwrap();
    assert_eq!(*at_usual.lock(), 2);
}

/// Whom a connection that is opened right after a loss is asked of, and when, in ms; three servers are known, and each
/// takes `delay` for its answer. The usual address answers at once.
async fn asked_in_turn(delay: Duration) -> Vec<(String, u128)> {
    let servers = Servers::default();
    servers.learn([1, 2, 3].map(|number| SocketAddr::from(([192, 0, 2, number], 6443))).to_vec(), true);
    servers.lost();
    let preferred = servers.candidates().iter().map(ToString::to_string).collect::<Vec<_>>();
    let begun = tokio::time::Instant::now();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let said = Arc::clone(&asked);
    let connector = service_fn(move |uri: Uri| {
        let whom = uri.authority().map(ToString::to_string).unwrap_or_default();
        let delay = if whom == "usual" { Duration::ZERO } else { delay };
        // By its place in the order, which the dice decide.
        let place = preferred.iter().position(|server| *server == whom);
        said.lock().push((place.map_or(whom, |place| place.to_string()), begun.elapsed().as_millis()));
        async move {
            tokio::time::sleep(delay).await;
            Ok::<_, BoxError>(())
        }
    });
    let dial = Dial { usual: connector.clone(), near: Some((connector, servers)) };
    dial.oneshot(Uri::from_static("http://usual")).await.unwrap();
    Arc::try_unwrap(asked).map_or_else(|asked| asked.lock().clone(), Mutex::into_inner)
}

#[tokio::test(start_paused = true)]
async fn two_servers_of_the_list_are_tried_for_one_and_a_half_seconds_each() {
    let turns = |turns: &[(&str, u128)]| turns.iter().map(|(whom, at)| ((*whom).to_owned(), *at)).collect::<Vec<_>>();
    let silent = Duration::from_hours(1);
    assert_eq!(asked_in_turn(silent).await, turns(&[("0", 0), ("1", 1500), ("usual", 3000)]), "not the third one");
    assert_eq!(asked_in_turn(Duration::from_millis(1499)).await, turns(&[("0", 0)]), "a slow one is waited for");
}

/// What a request comes to whose first `lost` attempts end so; how often it was sent.
async fn attempts(method: Method, lost: u32, error: impl Fn() -> BoxError + Clone + Send + 'static) -> (bool, u32) {
    let sent = Arc::new(Mutex::new(0));
    let count = Arc::clone(&sent);
    let inner = service_fn(move |_: Request<Body>| {
        *count.lock() += 1;
        let answer = if *count.lock() <= lost { Err(error()) } else { Ok(Response::new(Body::empty())) };
        std::future::ready(answer)
    });
    let request = Request::builder().method(method).uri("/").body(Body::empty()).unwrap();
    let answer = RepeatLayer(Servers::default()).layer(inner).oneshot(request).await;
    let sent = *sent.lock();
    (answer.is_ok(), sent)
}

#[tokio::test]
async fn only_what_does_no_harm_twice_is_sent_again_and_only_if_the_server_fell_silent() {
    let ended = |kind: ErrorKind| move || BoxError::from(io::Error::from(kind));
    for (method, expected) in [
        (Method::GET, (true, 2)),
        (Method::PUT, (true, 2)),
        (Method::PATCH, (true, 2)),
        (Method::POST, (false, 1)),
        (Method::DELETE, (false, 1)),
    ] {
        assert_eq!(attempts(method.clone(), 1, ended(ErrorKind::TimedOut)).await, expected, "{method}");
    }
    assert_eq!(attempts(Method::GET, 1, ended(ErrorKind::HostUnreachable)).await, (true, 2));
    assert_eq!(attempts(Method::PUT, 1, ended(ErrorKind::ConnectionReset)).await, (false, 1));
    // Idle connections to the lost server were left.
    assert_eq!(attempts(Method::GET, 3, ended(ErrorKind::TimedOut)).await, (true, 4));
    assert_eq!(attempts(Method::GET, 9, ended(ErrorKind::TimedOut)).await, (false, 4));
}
