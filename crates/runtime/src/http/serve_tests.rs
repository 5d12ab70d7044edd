use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;

use super::super::admission::NODE;
use super::*;
use crate::error::chain;

fn server(tls: Tls) -> Server {
    Server {
        address: "127.0.0.1:0".parse().unwrap(),
        tls,
        client_ca: None,
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

/// Whom the cluster lets is asked by the name and the groups of the certificate.
#[tokio::test]
async fn a_client_certificate_of_the_authority_opens_what_its_user_may_read_and_another_one_nothing() {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

    let authority = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key).unwrap().pem();
        (Issuer::new(params, key), pem)
    };
    let client = |issuer: &Issuer<'_, KeyPair>, user: &str, group: &str| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, user);
        params.distinguished_name.push(DnType::OrganizationName, group);
        let certificate = params.signed_by(&key, issuer).unwrap();
        (certificate.der().clone(), PrivateKeyDer::try_from(key.serialize_der()).unwrap())
    };
    let ((ours, pem), (foreign, _)) = (authority("ours"), authority("foreign"));
    let directory = std::env::temp_dir().join(format!("hcp-client-ca-{}", uuid::Uuid::new_v4()));
    std::fs::create_dir(&directory).unwrap();
    let file = directory.join("ca.crt");
    std::fs::write(&file, pem).unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (directory.join("tls.crt"), directory.join("tls.key"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let cluster = crate::scenario::Scenario::answering(|request| {
        assert!(request.path.ends_with("subjectaccessreviews"), "no token is reviewed: {}", request.path);
        let (user, groups) = (&request.body["spec"]["user"], request.body["spec"]["groups"].to_string());
        let mut answer = request.body.clone();
        answer["status"]["allowed"] =
            (user == "prometheus" && groups.contains("monitoring") && groups.contains("system:authenticated")).into();
        (201, answer)
    });
    let access = Access::delegated(cluster.client(), Vec::new());
    let bound =
        Server { client_ca: Some(file), access, ..server(Tls::Files { certificate, key }) }.bind().await.unwrap();
    let address = bound.address().unwrap();
    let stop = Token::new();
    let task = tokio::spawn(bound.run(stop.clone()));
    let ask = async |shown: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>| -> Option<String> {
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match shown {
            Some((certificate, key)) => builder.with_client_auth_cert(vec![certificate], key).unwrap(),
            None => builder.with_no_client_auth(),
        };
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer.split_whitespace().nth(1)?.to_owned())
    };
    assert_eq!(ask(Some(client(&ours, "prometheus", "monitoring"))).await.as_deref(), Some("200"));
    assert_eq!(ask(Some(client(&ours, "somebody", "else"))).await.as_deref(), Some("403"));
    assert_eq!(ask(Some(client(&foreign, "prometheus", "monitoring"))).await, None, "the handshake fails");
    assert_eq!(ask(None).await.as_deref(), Some("403"), "anonymous");
    stop.cancel();
    task.await.unwrap();
    let nothing = directory.join("empty.crt");
    std::fs::write(&nothing, "no certificate").unwrap();
    let error = Server { client_ca: Some(nothing), ..server(Tls::SelfSigned) }.bind().await.unwrap_err();
    assert!(chain(&error).starts_with("cannot use --client-ca-file "), "{}", chain(&error));
    std::fs::remove_dir_all(&directory).unwrap();
}
