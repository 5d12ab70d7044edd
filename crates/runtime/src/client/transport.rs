//! Connections that detect a dead peer. An API server that loses power sends nothing any more, so a client that only
//! listens, such as a watch, would wait for its time-out. TCP keepalive probes detect it within seconds; the library's
//! own connections send none.

use std::net::SocketAddr;
use std::time::Duration;

use http::{Method, Request};
use hyper::body::Incoming;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::Config;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder, ConfigExt};
use tower::retry::{Policy, RetryLayer};
use tower::util::BoxService;
use tower::{BoxError, ServiceBuilder, ServiceExt};

use super::dial::{Dial, RepeatLayer};
use super::servers::Servers;

/// A connection without traffic is probed after this time. A lost node may have been the API server of the watch that
/// tells of the loss, so the probes decide how long users wait (docs/node-loss.md).
const PROBE_AFTER: Duration = Duration::from_secs(1);
/// Interval of the probes.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Time-out for unacknowledged data and probes: with it Linux does not count probes (tcp(7), `TCP_USER_TIMEOUT`). It is
/// longer than the pause of a live migration.
const UNACKNOWLEDGED: Duration = Duration::from_secs(3);
/// Limit for the TCP handshake: one repeated SYN. A Service of several API servers leads the next attempt elsewhere.
const CONNECT: Duration = Duration::from_secs(2);
/// The same two limits where another API server is known, which costs a connection and nothing else. The kernels of the
/// two machines keep them, so neither a stalled process nor a slow API server ends anything. Two probes have to be
/// lost.
const UNACKNOWLEDGED_NEAR: Duration = Duration::from_millis(2100);
const CONNECT_NEAR: Duration = Duration::from_millis(500);

type HttpService = BoxService<Request<Body>, http::Response<Incoming>, BoxError>;

fn tcp(connect: Duration, unacknowledged: Duration) -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(connect));
    tcp.set_keepalive(Some(PROBE_AFTER));
    tcp.set_keepalive_interval(Some(PROBE_EVERY));
    tcp.set_tcp_user_timeout(Some(unacknowledged));
    // A request directly follows the end of the TLS handshake; without this option it would wait for the
    // acknowledgement of the handshake.
    tcp.set_nodelay(true);
    tcp
}

/// The library's retries, of everything but evictions. The server is not busy when it refuses one with 429: a
/// PodDisruptionBudget protects the pod. Retries would keep that answer back until the request times out.
#[derive(Clone)]
struct Retries(RetryPolicy);

impl<B> Policy<Request<Body>, http::Response<B>, BoxError> for Retries {
    type Future = tokio::time::Sleep;

    fn retry(
        &mut self,
        request: &mut Request<Body>,
        result: &mut Result<http::Response<B>, BoxError>,
    ) -> Option<Self::Future> {
        self.0.retry(request, result)
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        if *request.method() == Method::POST && request.uri().path().ends_with("/eviction") {
            return None; // without a copy there is no retry
        }
        Policy::<Request<Body>, http::Response<B>, BoxError>::clone_request(&mut self.0, request)
    }
}

/// The library's client stack, for a server that is reached without a proxy, on connections of this module.
pub(super) fn direct(config: &Config, servers: Option<&Servers>) -> Result<ClientBuilder<HttpService>, kube::Error> {
    let usual = config.rustls_https_connector_with_connector(tcp(CONNECT, UNACKNOWLEDGED))?;
    let near = servers.map(|servers| {
        let tcp = tcp(CONNECT_NEAR, UNACKNOWLEDGED_NEAR);
        Ok::<_, kube::Error>((named_as_usual(config).rustls_https_connector_with_connector(tcp)?, servers.clone()))
    });
    let mut connector = TimeoutConnector::new(Dial { usual, near: near.transpose()? });
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(Retries(RetryPolicy::server_retry()))))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .option_layer(servers.cloned().map(RepeatLayer))
        .map_err(BoxError::from)
        .service(HttpClient::builder(TokioExecutor::new()).build(connector));
    Ok(ClientBuilder::new(service.boxed(), config.default_namespace.clone()))
}

/// The name in the certificate of each API server is the usual name of the API. An IPv6 address has brackets in a URL,
/// but not in a certificate.
fn named_as_usual(config: &Config) -> Config {
    let usual = config.cluster_url.host().map(|host| host.trim_matches(['[', ']']).to_owned());
    let mut named = config.clone();
    named.tls_server_name = named.tls_server_name.or(usual);
    named
}

/// The configuration for connections to this API server alone, if the usual one uses TLS.
pub fn towards(usual: &Config, server: SocketAddr) -> Config {
    let mut config = named_as_usual(usual);
    if usual.cluster_url.scheme_str() == Some("https")
        && let Ok(url) = format!("https://{server}").parse()
    {
        config.cluster_url = url;
    }
    config
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use kube::api::WatchParams;
    use socket2::SockRef;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::super::{Settings, connect};
    use super::*;
    use crate::Product;

    #[tokio::test]
    async fn another_api_server_is_known_by_the_name_of_the_usual_one() {
        let server = "[fd00::2]:6443".parse().unwrap();
        for (usual, name) in [
            ("https://[fd00:10:96::1]:443", "fd00:10:96::1"),
            ("https://10.96.0.1", "10.96.0.1"),
            ("https://api", "api"),
        ] {
            let mut config = towards(&Config::new(usual.parse().unwrap()), server);
            config.root_cert = Some(Vec::new());
            assert_eq!(config.cluster_url.to_string(), "https://[fd00::2]:6443/");
            assert_eq!(config.tls_server_name.as_deref(), Some(name));
            assert!(connect(config, &Settings::new("guest", &Product::TEST)).is_ok(), "{usual}");
        }
        let plain = towards(&Config::new("http://10.96.0.1".parse().unwrap()), server);
        assert_eq!(plain.cluster_url.to_string(), "http://10.96.0.1/");
    }

    #[tokio::test]
    async fn a_dead_peer_is_noticed_within_seconds_and_a_request_leaves_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let connection = tower::Service::call(&mut tcp(CONNECT, UNACKNOWLEDGED), uri).await.unwrap();
        let socket = SockRef::from(connection.inner());
        assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap());
        let probes = (socket.tcp_keepalive_time().unwrap(), socket.tcp_keepalive_interval().unwrap());
        assert_eq!(probes, (PROBE_AFTER, PROBE_EVERY));
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(UNACKNOWLEDGED));
    }

    /// In how many hundredths of a second the kernel probes the connection to this server, if at all (proc_pid_net(5),
    /// timer 2).
    fn probed_in(server: SocketAddr) -> Option<u64> {
        let peer = format!("0100007F:{:04X}", server.port());
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let timers: Vec<String> = lines.filter(|line| line[2] == peer).map(|line| line[5].to_owned()).collect();
        assert_eq!(timers.len(), 1, "{table}");
        u64::from_str_radix(timers[0].strip_prefix("02:")?, 16).ok()
    }

    #[tokio::test]
    async fn a_watch_that_hears_nothing_is_probed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
            stream.write_all(head).await.unwrap();
            stream
        });
        let config = Config::new(format!("http://{server}").parse().unwrap());
        let maps: Api<ConfigMap> =
            Api::namespaced(connect(config, &Settings::new("host", &Product::TEST)).unwrap(), "x");
        let watch = maps.watch(&WatchParams::default(), "0").await.unwrap();
        let stream = serving.await.unwrap();
        let probed_in = probed_in(server);
        assert!(probed_in.is_some_and(|hundredths| hundredths <= 110), "{probed_in:?}");
        drop((watch, stream));
    }
}
