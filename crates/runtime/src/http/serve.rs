//! The socket: plain or TLS, HTTP/1.1. Scrapers and kubelets speak it all; HTTP/2 would be one more way to hold a connection.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::admission::Admission;
use super::handshake::Handshake;
use super::{Access, router};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::shutdown::Token;

/// Whoever has not finished the TLS handshake by then, or the headers of the first or the next request, is hung up on.
const PATIENCE: Duration = Duration::from_secs(10);

/// How the connection is protected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tls {
    /// Not at all.
    Off,
    /// A certificate made at start, for `localhost` and `127.0.0.1`, kept in memory only.
    SelfSigned,
    /// `--tls-cert-file` and `--tls-private-key-file`.
    Files {
        /// Chain, PEM.
        certificate: PathBuf,
        /// Private key, PEM.
        key: PathBuf,
    },
}

/// What to serve, and where.
#[derive(Debug)]
pub struct Server {
    /// Address and port to listen on.
    pub address: SocketAddr,
    /// How the connection is protected.
    pub tls: Tls,
    /// How the parties agree.
    pub handshake: Handshake,
    /// Who may read what.
    pub access: Access,
    /// Answers `/healthz`, `/livez`, `/readyz`.
    pub health: Health,
    /// Answers `/metrics`.
    pub metrics: Metrics,
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The port is taken, or the address is not ours.
    #[error("cannot listen on {address}")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// Cause.
        source: std::io::Error,
    },
    /// No certificate could be made.
    #[error("cannot make a self-signed certificate")]
    SelfSigned(#[source] rcgen::Error),
    /// A file is missing or is no PEM of the expected kind.
    #[error("cannot read {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Cause.
        source: pem::Error,
    },
    /// Certificate and key do not fit.
    #[error("cannot use the serving certificate")]
    Certificate(#[source] tokio_rustls::rustls::Error),
}

/// A server that listens; [`Bound::run`] answers.
pub struct Bound {
    listener: TcpListener,
    acceptor: Option<TlsAcceptor>,
    router: Router,
    patience: Duration,
}

impl std::fmt::Debug for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bound").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl Server {
    /// Reads the certificates and binds the port.
    pub async fn bind(self) -> Result<Bound, ServeError> {
        let Self { address, tls, handshake, access, health, metrics } = self;
        let acceptor = acceptor(&tls, &handshake)?;
        let listener = TcpListener::bind(address).await.map_err(|source| ServeError::Bind { address, source })?;
        Ok(Bound { listener, acceptor, router: router(health, metrics, access), patience: PATIENCE })
    }
}

fn acceptor(tls: &Tls, handshake: &Handshake) -> Result<Option<TlsAcceptor>, ServeError> {
    let (chain, key) = match tls {
        Tls::Off => return Ok(None),
        Tls::SelfSigned => {
            let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
            let made = rcgen::generate_simple_self_signed(names).map_err(ServeError::SelfSigned)?;
            let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("rcgen writes PKCS #8");
            (vec![made.cert.der().clone()], key)
        }
        Tls::Files { certificate, key } => {
            let file = |path: &PathBuf, source| ServeError::File { path: path.clone(), source };
            let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
            let chain = chain.map_err(|source| file(certificate, source))?;
            (chain, PrivateKeyDer::from_pem_file(key).map_err(|source| file(key, source))?)
        }
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(handshake.provider()))
        .with_protocol_versions(&handshake.versions())
        .map_err(ServeError::Certificate)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(ServeError::Certificate)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

impl Bound {
    /// Where it listens: the port that the kernel chose, if 0 was asked for.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until `stop`. Never fails: a connection that goes wrong is that client's problem.
    pub async fn run(self, stop: Token) {
        let Self { listener, acceptor, router, patience } = self;
        let admission = Arc::new(Admission::default());
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => accepted.and_then(|(stream, peer)| Ok((stream.local_addr()?, peer, stream))),
            };
            // Collect what has ended, so that the set does not grow.
            while connections.try_join_next().is_some() {}
            match accepted {
                Ok((local, peer, stream)) => {
                    // Hung up on, not left in the listen queue: there it would be in the way of those who have a place.
                    let Some(pass) = admission.admit(local.ip(), peer.ip()) else {
                        tracing::debug!(%peer, "too many connections");
                        continue;
                    };
                    let (acceptor, router) = (acceptor.clone(), router.clone());
                    connections.spawn(async move {
                        if let Err(error) = converse(stream, acceptor, router, patience).await {
                            tracing::debug!(%peer, %error, "connection ended");
                        }
                        drop(pass);
                    });
                }
                Err(error) => {
                    // Out of descriptors, for example: do not spin.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

async fn converse(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    router: Router,
    patience: Duration,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut http = http1::Builder::new();
    // From the first byte on, and between requests: there is no other limit on a silent client.
    http.timer(TokioTimer::new()).header_read_timeout(patience);
    let service = TowerToHyperService::new(router);
    match acceptor {
        None => http.serve_connection(TokioIo::new(stream), service).await?,
        Some(acceptor) => {
            let handshake = tokio::time::timeout(patience, acceptor.accept(stream)).await;
            let stream = handshake.map_err(|_| "TLS handshake timed out")??;
            http.serve_connection(TokioIo::new(stream), service).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::pki_types::ServerName;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};

    use super::super::admission::NODE;
    use super::*;
    use crate::error::chain;

    fn server(tls: Tls) -> Server {
        Server {
            address: "127.0.0.1:0".parse().unwrap(),
            tls,
            handshake: Handshake::default(),
            access: Access::Open,
            health: Health::new(),
            metrics: Metrics::new(&crate::Product::TEST),
        }
    }

    const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

    #[tokio::test]
    async fn plain_http_answers_and_stops() {
        let bound = server(Tls::Off).bind().await.unwrap();
        let address = bound.address().unwrap();
        let stop = Token::new();
        let task = tokio::spawn(bound.run(stop.clone()));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(REQUEST).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok"), "{answer}");
        stop.cancel();
        task.await.unwrap();
    }

    /// `text` is sent on each of many connections, then nothing.
    async fn silent(address: SocketAddr, text: &[u8]) -> Vec<TcpStream> {
        let mut silent = Vec::new();
        for _ in 0..NODE {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(text).await.unwrap();
            silent.push(stream);
        }
        silent
    }

    /// Ends when the server has hung up.
    async fn hung_up(stream: &mut TcpStream) {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "still connected");
    }

    #[tokio::test]
    async fn who_says_nothing_takes_nobodys_place_for_long() {
        for (tls, text) in [
            (Tls::Off, &b""[..]),
            (Tls::Off, b"GET /healthz HTTP/1.1\r\n"),
            (Tls::Off, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
            (Tls::Off, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            (Tls::SelfSigned, b""),
        ] {
            let bound = Bound { patience: Duration::from_millis(300), ..server(tls.clone()).bind().await.unwrap() };
            let address = bound.address().unwrap();
            let stop = Token::new();
            let task = tokio::spawn(bound.run(stop.clone()));
            let mut all = silent(address, text).await;
            for stream in &mut all {
                hung_up(stream).await;
            }
            if tls == Tls::Off {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(REQUEST).await.unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.unwrap();
                assert!(answer.starts_with("HTTP/1.1 200"), "{text:?}: {answer}");
            }
            stop.cancel();
            task.await.unwrap();
        }
    }

    #[tokio::test]
    async fn who_has_no_place_is_hung_up_on_at_once() {
        let bound = server(Tls::Off).bind().await.unwrap();
        let address = bound.address().unwrap();
        let stop = Token::new();
        let task = tokio::spawn(bound.run(stop.clone()));
        let silent = silent(address, b"").await;
        let begin = std::time::Instant::now();
        hung_up(&mut TcpStream::connect(address).await.unwrap()).await;
        assert!(begin.elapsed() < PATIENCE && silent.len() == NODE);
        stop.cancel();
        task.await.unwrap();
    }

    #[tokio::test]
    async fn https_serves_the_given_certificate() {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let directory = std::env::temp_dir().join(format!("hcp-serve-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&directory).unwrap();
        let (certificate, key) = (directory.join("tls.crt"), directory.join("tls.key"));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let bound = server(Tls::Files { certificate, key }).bind().await.unwrap();
        let address = bound.address().unwrap();
        let stop = Token::new();
        let task = tokio::spawn(bound.run(stop.clone()));

        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        stream.write_all(REQUEST).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        stop.cancel();
        task.await.unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[tokio::test]
    async fn a_port_that_is_taken_and_a_file_that_is_missing_are_named() {
        let bound = server(Tls::SelfSigned).bind().await.unwrap();
        let address = bound.address().unwrap();
        let error = Server { address, ..server(Tls::Off) }.bind().await.unwrap_err();
        assert!(chain(&error).starts_with(&format!("cannot listen on {address}: Address already in use")));
        let missing = Tls::Files { certificate: "/does/not/exist".into(), key: "/does/not/exist".into() };
        let error = server(missing).bind().await.unwrap_err();
        assert!(chain(&error).starts_with("cannot read /does/not/exist: "), "{}", chain(&error));
    }
}
