//! Reads when certificates expire: that of an API server, and that in the credentials for it.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::Config;
use kube::config::AuthInfo;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

use super::validity::not_after;
use crate::snapshot::{Certificate, Owner};

/// Time-out of the handshake.
const LIMIT: Duration = Duration::from_secs(5);

/// The certificates of this API server and of the credentials for it. One that cannot be read is left out: a failed
/// connection is reported elsewhere.
pub async fn read(config: &Config) -> Vec<Certificate> {
    let ours = of_credentials(&config.auth_info).map(|expires| Certificate { owner: Owner::Credentials, expires });
    // A proxy would present its own certificate.
    let served = match config.proxy_url {
        None => tokio::time::timeout(LIMIT, served(config)).await.ok().flatten(),
        Some(_) => None,
    };
    let first = served.and_then(|chain| chain.iter().filter_map(|der| not_after(der)).min());
    let theirs = first.map(|expires| Certificate { owner: Owner::Server, expires });
    ours.into_iter().chain(theirs).collect()
}

fn of_credentials(credentials: &AuthInfo) -> Option<jiff::Timestamp> {
    let pem = match (&credentials.client_certificate_data, &credentials.client_certificate) {
        (Some(data), _) => STANDARD.decode(data.trim()).ok()?,
        (None, Some(path)) => std::fs::read(path).ok()?,
        (None, None) => return None,
    };
    not_after(&CertificateDer::from_pem_slice(&pem).ok()?)
}

/// The certificate chain that the server presents.
async fn served(config: &Config) -> Option<Vec<CertificateDer<'static>>> {
    let host = config.cluster_url.host()?.trim_matches(['[', ']']);
    let port = config.cluster_url.port_u16().unwrap_or(443);
    let name = config.tls_server_name.as_deref().unwrap_or(host);
    let name = ServerName::try_from(name.to_owned()).ok()?;
    let provider = Arc::new(ring::default_provider());
    let tls = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .ok()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
        .with_no_client_auth();
    let stream = TcpStream::connect((host, port)).await.ok()?;
    let stream = TlsConnector::from(Arc::new(tls)).connect(name, stream).await.ok()?;
    Some(stream.get_ref().1.peer_certificates()?.iter().cloned().map(CertificateDer::into_owned).collect())
}

/// Accepts every certificate, so that an expired one can be read. Nothing is sent over such a connection.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::pki_types::PrivateKeyDer;

    use super::*;

    fn pair(year: i32) -> (rcgen::Certificate, KeyPair) {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap(), key)
    }

    /// One that has run out is what this is for.
    #[tokio::test]
    async fn what_a_server_shows_and_what_the_credentials_hold_is_read_whoever_has_signed_it() {
        let (shown, key) = pair(2020);
        let server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![shown.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(server));
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let _ = acceptor.accept(stream).await;
        });
        let mut config = Config::new(format!("https://{address}").parse().unwrap());
        config.auth_info.client_certificate_data = Some(STANDARD.encode(pair(2031).0.pem()));
        let year = |year: i16| format!("{year}-01-01T00:00:00Z").parse().unwrap();
        assert_eq!(
            read(&config).await,
            [
                Certificate { owner: Owner::Credentials, expires: year(2031) },
                Certificate { owner: Owner::Server, expires: year(2020) },
            ]
        );
    }

    #[tokio::test]
    async fn a_server_that_is_away_and_credentials_without_a_certificate_say_nothing() {
        let mut config = Config::new("https://127.0.0.1:1".parse().unwrap());
        assert_eq!(read(&config).await, []);
        config.auth_info.client_certificate_data = Some("nonsense".into());
        assert_eq!(read(&config).await, []);
    }
}
