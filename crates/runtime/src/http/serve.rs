//! The socket: plain or TLS, HTTP/1.1 and HTTP/2.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::{Access, router};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::shutdown::Token;

/// Connections at a time; more wait in the listen queue. A scraper and the kubelet need a handful.
const CONNECTIONS: usize = 128;

/// Whoever has not finished the TLS handshake by then, or the request's headers, is hung up on.
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
}

impl std::fmt::Debug for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bound").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl Server {
    /// Reads the certificates and binds the port.
    pub async fn bind(self) -> Result<Bound, ServeError> {
        let Self { address, tls, access, health, metrics } = self;
        let acceptor = acceptor(&tls)?;
        let listener = TcpListener::bind(address).await.map_err(|source| ServeError::Bind { address, source })?;
        Ok(Bound { listener, acceptor, router: router(health, metrics, access) })
    }
}

fn acceptor(tls: &Tls) -> Result<Option<TlsAcceptor>, ServeError> {
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
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(ServeError::Certificate)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(ServeError::Certificate)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

impl Bound {
    /// Where it listens: the port that the kernel chose, if 0 was asked for.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until `stop`. Never fails: a connection that goes wrong is that client's problem.
    pub async fn run(self, stop: Token) {
        let Self { listener, acceptor, router } = self;
        let slots = Arc::new(Semaphore::new(CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            let slot = tokio::select! {
                () = stop.cancelled() => break,
                slot = Arc::clone(&slots).acquire_owned() => slot.expect("the semaphore is never closed"),
            };
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            // Collect what has ended, so that the set does not grow.
            while connections.try_join_next().is_some() {}
            match accepted {
                Ok((stream, _)) => {
                    let (acceptor, router) = (acceptor.clone(), router.clone());
                    connections.spawn(async move {
                        converse(stream, acceptor, router).await;
                        drop(slot);
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

async fn converse(stream: TcpStream, acceptor: Option<TlsAcceptor>, router: Router) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    let service = TowerToHyperService::new(router);
    let result = match acceptor {
        None => builder.serve_connection(TokioIo::new(stream), service).await,
        Some(acceptor) => match tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => builder.serve_connection(TokioIo::new(stream), service).await,
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err("TLS handshake timed out".into()),
        },
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::pki_types::ServerName;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};

    use super::*;
    use crate::error::chain;

    fn server(tls: Tls) -> Server {
        Server {
            address: "127.0.0.1:0".parse().unwrap(),
            tls,
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
