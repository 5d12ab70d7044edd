//! A certificate authority in memory, and HTTPS with certificates of it. The API server learns the authority from the
//! webhook configurations and the APIService, so nothing has to be kept on disk.

use std::io;
use std::sync::Arc;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// A fresh certificate authority.
pub struct Authority {
    /// For `caBundle`.
    pub certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// Why a certificate could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Making keys or certificates.
    #[error("failed to make a certificate for {0}")]
    Certificate(String, #[source] rcgen::Error),
    /// Reading what somebody else has made.
    #[error("the given {0} is not readable as PEM")]
    Pem(String, #[source] pem::Error),
    /// Setting up TLS.
    #[error("failed to set up TLS for {0}")]
    Tls(String, #[source] rustls::Error),
}

impl Authority {
    /// Makes one.
    pub fn new() -> Result<Self, TlsError> {
        let failed = |error| TlsError::Certificate("the stand-in's authority".to_owned(), error);
        let mut params = CertificateParams::new(Vec::new()).map_err(failed)?;
        params.distinguished_name.push(DnType::CommonName, "harvester-sim");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().map_err(failed)?;
        let certificate_pem = params.self_signed(&key).map_err(failed)?.pem();
        Ok(Self { certificate_pem, issuer: Issuer::new(params, key) })
    }

    /// A server certificate for these DNS names and addresses.
    pub fn acceptor(&self, names: &[String]) -> Result<TlsAcceptor, TlsError> {
        let failed = |error| TlsError::Certificate(names.join(", "), error);
        let mut params = CertificateParams::new(names).map_err(failed)?;
        params.distinguished_name.push(DnType::CommonName, "harvester-sim");
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        accept_with(vec![certificate.der().clone()], key).map_err(|error| TlsError::Tls(names.join(", "), error))
    }
}

/// With a certificate that somebody else has made.
pub fn acceptor(certificate_pem: &str, key_pem: &str) -> Result<TlsAcceptor, TlsError> {
    let unread = |what: &str, error| TlsError::Pem(what.to_owned(), error);
    let chain = CertificateDer::pem_slice_iter(certificate_pem.as_bytes()).collect::<Result<_, _>>();
    let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).map_err(|error| unread("key", error))?;
    accept_with(chain.map_err(|error| unread("certificate", error))?, key)
        .map_err(|error| TlsError::Tls("the given certificate".to_owned(), error))
}

fn accept_with(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<TlsAcceptor, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves for ever. Connections end with the task.
pub async fn serve(listener: TcpListener, acceptor: TlsAcceptor, router: Router) -> io::Result<()> {
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => accepted?,
            Some(_) = connections.join_next() => continue,
        };
        // An answer must not wait for the peer's acknowledgement of what was sent before.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, %error, "small answers may be late");
        }
        let acceptor = acceptor.clone();
        let service = TowerToHyperService::new(router.clone());
        connections.spawn(async move {
            let stream = match acceptor.accept(stream).await {
                Ok(stream) => stream,
                Err(error) => return tracing::debug!(%peer, %error, "TLS handshake failed"),
            };
            if let Err(error) = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await
            {
                tracing::debug!(%peer, %error, "connection ended");
            }
        });
    }
}
