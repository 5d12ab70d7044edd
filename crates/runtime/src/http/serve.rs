//! The socket: plain or TLS, HTTP/1.1. All scrapers and kubelets support it; HTTP/2 would only be another way to occupy
//! a connection.

use std::error::Error;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::access::Certified;
use super::admission::Admission;
use super::handshake::Handshake;
use super::{Access, router};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::shutdown::Token;

/// A client that has not finished the TLS handshake, or the headers of a request, after this time is disconnected.
const PATIENCE: Duration = Duration::from_secs(10);

/// The protection of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tls {
    /// None.
    Off,
    /// A certificate that is made at the start, for `localhost` and `127.0.0.1`, and kept in memory only.
    SelfSigned,
    /// `--tls-cert-file` and `--tls-private-key-file`.
    Files {
        /// Certificate chain, PEM.
        certificate: PathBuf,
        /// Private key, PEM.
        key: PathBuf,
    },
}

/// The server's configuration.
#[derive(Debug)]
pub struct Server {
    /// Address and port to listen on.
    pub address: SocketAddr,
    /// The protection of the connection.
    pub tls: Tls,
    /// `--client-ca-file`: the authority whose client certificates are accepted, PEM. A client certificate is optional.
    pub client_ca: Option<PathBuf>,
    /// TLS versions and cipher suites.
    pub handshake: Handshake,
    /// The clients that may read.
    pub access: Access,
    /// Answers `/healthz`, `/livez`, `/readyz`.
    pub health: Health,
    /// Answers `/metrics`.
    pub metrics: Metrics,
}

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The port is in use, or the address is not local.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address and port.
        address: SocketAddr,
        /// Cause.
        source: std::io::Error,
    },
    /// The self-signed certificate could not be made.
    #[error("cannot make a self-signed certificate")]
    SelfSigned(#[source] rcgen::Error),
    /// A file is missing, or is not a PEM file of the expected kind.
    #[error("cannot read {}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: pem::Error,
    },
    /// The file cannot be used as a certificate authority.
    #[error("cannot use --client-ca-file {}", path.display())]
    ClientCa {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: VerifierBuilderError,
    },
    /// Certificate and key do not match.
    #[error("cannot use the serving certificate")]
    Certificate(#[source] tokio_rustls::rustls::Error),
}

/// A listening server; [`Bound::run`] serves requests.
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
        let Self { address, tls, client_ca, handshake, access, health, metrics } = self;
        let acceptor = acceptor(&tls, client_ca.as_deref(), &handshake)?;
        let listener = TcpListener::bind(address).await.map_err(|source| ServeError::Bind { address, source })?;
        Ok(Bound { listener, acceptor, router: router(health, metrics, access), patience: PATIENCE })
    }
}

/// Requests a client certificate of that authority, and also accepts clients without one.
fn verifier(authority: &Path, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, ServeError> {
    let path = || authority.to_owned();
    let found = CertificateDer::pem_file_iter(authority).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut roots = RootCertStore::empty();
    for certificate in found.map_err(|source| ServeError::File { path: path(), source })? {
        roots.add(certificate).map_err(ServeError::Certificate)?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    let built = verifier.allow_unauthenticated().build();
    built.map(|verifier| verifier as _).map_err(|source| ServeError::ClientCa { path: path(), source })
}

fn acceptor(tls: &Tls, client_ca: Option<&Path>, handshake: &Handshake) -> Result<Option<TlsAcceptor>, ServeError> {
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
    let provider = Arc::new(handshake.provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&handshake.versions())
        .map_err(ServeError::Certificate)?;
    let builder = match client_ca {
        Some(authority) => builder.with_client_cert_verifier(verifier(authority, &provider)?),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(ServeError::Certificate)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

impl Bound {
    /// The listening address, with the port that the kernel chose if port 0 was requested.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop`. Never fails: an error on a connection affects that client only.
    pub async fn run(self, stop: Token) {
        let Self { listener, acceptor, router, patience } = self;
        let admission = Arc::new(Admission::default());
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => {
                    accepted.and_then(|(stream, peer)| Ok((stream.local_addr()?, peer, stream)))
                }
            };
            // Removes ended connections, so that the set does not grow.
            while connections.try_join_next().is_some() {}
            match accepted {
                Ok((local, peer, stream)) => {
                    // The connection is closed instead of left in the listen queue, where it would block clients that
                    // have a place.
                    let Some(pass) = admission.admit(local.ip(), peer.ip()) else {
                        tracing::debug!(%peer, "there are too many connections; the server closed this one");
                        continue;
                    };
                    let (acceptor, router) = (acceptor.clone(), router.clone());
                    connections.spawn(async move {
                        if let Err(error) = converse(stream, acceptor, router, patience).await {
                            tracing::debug!(%peer, %error, "the connection ended with an error");
                        }
                        drop(pass);
                    });
                }
                Err(error) => {
                    // Out of descriptors, for example: do not spin.
                    tracing::warn!(%error, "the server cannot accept a connection; it tries again");
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
    // Applies from the first byte on, and between requests: it is the only limit on a silent client.
    http.timer(TokioTimer::new()).header_read_timeout(patience);
    match acceptor {
        None => http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await?,
        Some(acceptor) => {
            let handshake = tokio::time::timeout(patience, acceptor.accept(stream)).await;
            let stream = handshake.map_err(|_| "TLS handshake timed out")??;
            let shown = stream.get_ref().1.peer_certificates().and_then(|chain| Certified::of(chain.first()?));
            let router = match shown {
                Some(certified) => router.layer(Extension(certified)),
                None => router,
            };
            http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
