//! Checks the Harvester API as a guest would, step by step: name, port, certificate, answer, token, rights. The first
//! failure is the one to correct. Without this check, a guest that cannot reach Harvester would only show nodes that
//! stay uninitialised.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use runtime::Product;
use runtime::client::{Settings, connect, from_document};
use runtime::error::{api_code, chain, is_denied};

use crate::request::{Request, is_loopback};
use crate::step::{CLUSTER_ROLE_BINDINGS, Right, Step};

/// Time-out for an answer.
const LIMIT: Duration = Duration::from_secs(5);
/// Within this time each API server knows a token that was made.
const NEW_TOKEN: Duration = Duration::from_secs(10);
/// Until a token is tried again that is not known yet.
const AGAIN: Duration = Duration::from_millis(250);
/// The rights that the cloud provider needs all the time.
const NEEDED: [Right; 5] = [
    ("loadbalancer.harvesterhci.io", "loadbalancers", "create"),
    ("loadbalancer.harvesterhci.io", "loadbalancers", "delete"),
    ("loadbalancer.harvesterhci.io", "loadbalancers", "list"),
    ("kubevirt.io", "virtualmachines", "list"),
    ("kubevirt.io", "virtualmachineinstances", "watch"),
];

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    /// Name of the check.
    pub name: &'static str,
    /// The check has passed.
    pub ok: bool,
    /// The result, and the remedy if the check has failed.
    pub text: String,
    /// Duration in milliseconds.
    pub ms: u64,
}

/// The problem of a URL that guests cannot use, because it leads them to themselves; `None` if there is none. Sends
/// nothing.
pub fn unreachable_for_guests(server: &str) -> Option<String> {
    let uri: Uri = server.parse().ok()?;
    let host = uri.host()?.trim_matches(['[', ']']);
    let own = is_loopback(host) || host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified());
    own.then(|| {
        format!(
            "{server} leads a guest to itself, not to Harvester: give --server with Harvester's virtual IP, for \
             example https://192.168.1.10:6443"
        )
    })
}

/// Certificates in PEM.
pub fn pem(certificates: &[Vec<u8>]) -> String {
    let block = |der: &Vec<u8>| {
        let text = STANDARD.encode(der);
        let lines: Vec<&str> =
            text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).expect("base64 is ASCII")).collect();
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
    };
    certificates.iter().map(block).collect()
}

/// Host and port of a URL.
fn address(server: &str) -> Option<(String, u16)> {
    let uri: Uri = server.parse().ok()?;
    let host = uri.host()?.trim_matches(['[', ']']).to_owned();
    Some((host, uri.port_u16().unwrap_or(443)))
}

/// Checks the name and the port.
pub async fn check_port(server: &str) -> Vec<Check> {
    let Some((host, port)) = address(server) else {
        return vec![Check { name: "url", ok: false, text: format!("{server:?} is not a URL"), ms: 0 }];
    };
    let begun = Instant::now();
    let found = tokio::time::timeout(LIMIT, tokio::net::lookup_host((host.as_str(), port))).await;
    let addresses: Vec<SocketAddr> = match found {
        Ok(Ok(addresses)) => addresses.collect(),
        Ok(Err(error)) => return vec![check("name", begun, false, format!("{host} does not resolve: {error}"))],
        Err(_) => {
            return vec![check("name", begun, false, format!("{host} does not resolve within {} s", LIMIT.as_secs()))];
        }
    };
    let list = addresses.iter().map(|address| address.ip().to_string()).collect::<Vec<_>>().join(", ");
    let list = if list == host { "an address".to_owned() } else { list };
    let mut checks = vec![check("name", begun, !addresses.is_empty(), format!("{host} is {list}"))];
    let begun = Instant::now();
    let mut last = String::new();
    for address in addresses {
        match tokio::time::timeout(LIMIT, tokio::net::TcpStream::connect(address)).await {
            Ok(Ok(_)) => {
                checks.push(check("port", begun, true, format!("{address} accepts connections")));
                return checks;
            }
            Ok(Err(error)) => last = unconnected(address, &error),
            Err(_) => last = format!("{address} does not answer within {} s: a firewall between?", LIMIT.as_secs()),
        }
    }
    checks.push(check("port", begun, false, last));
    checks
}

/// Why a connection could not be made. Only the machine itself can refuse one; without a route nobody was asked.
fn unconnected(address: SocketAddr, error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => format!("{address} refuses connections: {error}"),
        _ => format!("{address} cannot be reached: {error}"),
    }
}

/// Checks the certificate and the answer. Also returns the first of these authorities (PEM) that has signed the
/// certificate. Behind Rancher's proxy it is not the API server's authority (Harvester spec 10.4).
pub async fn check_certificate<'a>(
    server: &str,
    authorities: &[&'a str],
    product: &Product,
) -> (Vec<Check>, Option<&'a str>) {
    let begun = Instant::now();
    let mut last = "there is no authority to check it with: give --ca-file".to_owned();
    for ca_pem in authorities {
        let (ok, text) = match version(server, ca_pem, product).await {
            VersionAnswer::Version(version) => (true, version),
            VersionAnswer::Other(text) => (false, text),
            VersionAnswer::None(error) => {
                last = certificate_trouble(&error);
                continue;
            }
        };
        let trusted = "signed by this authority, valid now and for this name".to_owned();
        return (vec![check("certificate", begun, true, trusted), check("answer", begun, ok, text)], Some(ca_pem));
    }
    (vec![check("certificate", begun, false, last)], None)
}

/// The result of `GET /version`.
enum VersionAnswer {
    /// The expected answer.
    Version(String),
    /// Another answer; the certificate was already accepted.
    Other(String),
    /// No answer, because the connection failed.
    None(String),
}

async fn version(server: &str, ca_pem: &str, product: &Product) -> VersionAnswer {
    let client = match client(&anonymous(server, ca_pem), product).await {
        Ok(client) => client,
        Err(error) => return VersionAnswer::None(error),
    };
    let error = match client.apiserver_version().await {
        Ok(version) => return VersionAnswer::Version(format!("/version: Kubernetes {}", version.git_version)),
        Err(error) => error,
    };
    match (api_code(&error), &error) {
        // The server demands credentials, which the guest will have.
        (Some(code), _) if is_denied(code) => {
            VersionAnswer::Version(format!("/version: {code} without credentials, as it may"))
        }
        (Some(_), _) | (None, kube::Error::SerdeError(_)) => {
            VersionAnswer::Other(format!("/version: {}: is that the URL of the Harvester API?", chain(&error)))
        }
        _ => VersionAnswer::None(chain(&error)),
    }
}

/// The advice for a failed connection although the port is open. Only the text of the TLS library distinguishes the
/// problems.
fn certificate_trouble(error: &str) -> String {
    let remedy = [
        ("certificate expired", "renew it on Harvester, and see whether the clocks agree"),
        ("certificate not valid yet", "see whether the clocks of this machine and of Harvester agree"),
        ("certificate not valid for name", "give --server with a name or address that the certificate has"),
        ("UnknownIssuer", "if another authority has signed this certificate, give --ca-file"),
        ("InvalidContentType", "that port does not speak TLS: give --server with the port of the Harvester API"),
    ];
    match remedy.iter().find(|(word, _)| error.contains(word)) {
        Some((_, remedy)) => format!("{error}; {remedy}"),
        None => format!("{error}; if another authority has signed the certificate, give --ca-file"),
    }
}

/// Checks the token and the rights, with the credentials that the guest will get. A token that was made just now is
/// refused by an API server whose watch has not shown it yet, so that answer is not believed at once.
pub async fn check_rights(kubeconfig: &str, request: &Request, product: &Product) -> Vec<Check> {
    match client(kubeconfig, product).await {
        Ok(client) => rights_of(&client, request, NEW_TOKEN).await,
        Err(error) => vec![check("token", Instant::now(), false, error)],
    }
}

async fn rights_of(client: &Client, request: &Request, patience: Duration) -> Vec<Check> {
    let (begun, mut refusals) = (Instant::now(), 0);
    let missing = loop {
        match missing_rights(client, request, &NEEDED).await {
            Ok(missing) => break missing,
            Err(kube::Error::Api(status)) if status.code == 401 && begun.elapsed() < patience => {
                refusals += 1;
                // Nothing tells when the API server knows the token.
                tokio::time::sleep(AGAIN).await;
            }
            Err(error) => return vec![check("token", begun, false, format!("not accepted: {}", chain(&error)))],
        }
    };
    let text = match refusals {
        0 => "accepted".to_owned(),
        _ => format!("accepted, after {refusals} refusals: the API server did not know the new token at once"),
    };
    let accepted = check("token", begun, true, text);
    let text = if missing.is_empty() {
        format!("load balancers and virtual machines of namespace {}", request.namespace)
    } else {
        format!("not allowed in namespace {}: {}", request.namespace, missing.join(", "))
    };
    vec![accepted, check("rights", begun, missing.is_empty(), text)]
}

/// Checks only the token, by a TokenReview, if the guest's URL cannot be reached from here.
pub async fn check_token(client: &Client, token: &str) -> Check {
    let begun = Instant::now();
    let spec = TokenReviewSpec { token: Some(token.to_owned()), ..TokenReviewSpec::default() };
    let review = TokenReview { spec, ..TokenReview::default() };
    let (ok, text) = match Api::<TokenReview>::all(client.clone()).create(&PostParams::default(), &review).await {
        Ok(answer) => match answer.status.unwrap_or_default() {
            status if status.authenticated == Some(true) => (true, "the API server accepts it".to_owned()),
            status => {
                (false, format!("not accepted: {}", status.error.unwrap_or_else(|| "no reason given".to_owned())))
            }
        },
        Err(error) => (false, format!("the API server cannot be asked about it: {}", chain(&error))),
    };
    check("token", begun, ok, text)
}

/// Whether the administrator has the rights for these steps, which a dry run would not detect otherwise.
pub async fn check_administrator(client: &Client, request: &Request, steps: &[Step]) -> Check {
    let begun = Instant::now();
    let needed: Vec<Right> = steps.iter().map(Step::right).collect();
    let (ok, text) = match missing_rights(client, request, &needed).await {
        Ok(missing) if missing.is_empty() => (true, "every step of the plan is allowed".to_owned()),
        Ok(missing) => (false, format!("this kubeconfig may not {}: take an administrator's", missing.join(", "))),
        Err(error) => (false, format!("cannot be asked for: {}", chain(&error))),
    };
    check("administrator", begun, ok, text)
}

/// The missing rights of the client's user, in the namespace, or cluster-wide for resources without one.
async fn missing_rights(client: &Client, request: &Request, needed: &[Right]) -> Result<Vec<String>, kube::Error> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut missing = Vec::new();
    for (group, resource, verb) in needed {
        let attributes = ResourceAttributes {
            namespace: (*resource != CLUSTER_ROLE_BINDINGS).then(|| request.namespace.clone()),
            group: Some((*group).into()),
            resource: Some((*resource).into()),
            verb: Some((*verb).into()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
        let review = SelfSubjectAccessReview { spec, ..Default::default() };
        let answer = reviews.create(&PostParams::default(), &review).await?;
        if !answer.status.is_some_and(|status| status.allowed) {
            let group = if group.is_empty() { String::new() } else { format!(".{group}") };
            missing.push(format!("{verb} {resource}{group}"));
        }
    }
    Ok(missing)
}

async fn client(kubeconfig: &str, product: &Product) -> Result<Client, String> {
    let config = from_document(kubeconfig, "the new cloud-config").await.map_err(|error| chain(&error))?;
    let settings = Settings {
        connect_timeout: LIMIT,
        request_timeout: LIMIT,
        retry: false,
        ..Settings::new("harvester", product)
    };
    connect(config, &settings).map_err(|error| chain(&error))
}

fn check(name: &'static str, begun: Instant, ok: bool, text: String) -> Check {
    Check { name, ok, text, ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX) }
}

/// A kubeconfig without credentials, in JSON, which is valid YAML.
fn anonymous(server: &str, ca_pem: &str) -> String {
    serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "default",
        "clusters": [{"name": "default",
            "cluster": {"server": server, "certificate-authority-data": STANDARD.encode(ca_pem)}}],
        "users": [{"name": "default", "user": {}}],
        "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::request::tests::request;
    use runtime::scenario::Scenario;

    #[test]
    fn a_url_that_leads_a_guest_to_itself_is_found_before_it_is_written_anywhere() {
        for own in ["https://127.0.0.1:6443", "https://localhost", "https://[::1]:6443", "https://0.0.0.0:6443"] {
            assert!(unreachable_for_guests(own).is_some(), "{own}");
        }
        for far in ["https://192.168.1.10:6443", "https://rancher.example/k8s/clusters/local", "https://[fd00::1]:6443"]
        {
            assert_eq!(unreachable_for_guests(far), None, "{far}");
        }
    }

    #[tokio::test]
    async fn a_new_token_is_tried_again_until_the_api_server_knows_it() {
        for (patience, refused, expected) in [
            (NEW_TOKEN, 2, "accepted, after 2 refusals: the API server did not know the new token at once"),
            (NEW_TOKEN, 0, "accepted"),
            (Duration::ZERO, 2, "not accepted: "),
        ] {
            let asked = AtomicUsize::new(0);
            let scenario = Scenario::answering(move |seen| {
                if asked.fetch_add(1, Ordering::SeqCst) < refused {
                    return (401, Scenario::status(401, "Unauthorized", "Unauthorized"));
                }
                let mut review = seen.body.clone();
                review["status"] = serde_json::json!({"allowed": true});
                (201, review)
            });
            let checks = rights_of(&scenario.client(), &request(), patience).await;
            assert!(checks[0].text.starts_with(expected), "{patience:?}, {refused}: {checks:?}");
            assert_eq!(checks.iter().all(|check| check.ok), !expected.starts_with("not"), "{patience:?}, {refused}");
        }
    }

    #[test]
    fn the_port_of_https_is_443_unless_the_url_has_one() {
        assert_eq!(address("https://rancher.example/k8s"), Some(("rancher.example".into(), 443)));
        assert_eq!(address("https://[fd00::1]:6443"), Some(("fd00::1".into(), 6443)));
    }

    #[tokio::test]
    async fn a_port_where_nobody_listens_is_named() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("https://{}", listener.local_addr().unwrap());
        let checks = check_port(&server).await;
        assert!(checks.iter().all(|check| check.ok), "{checks:?}");
        drop(listener);
        let checks = check_port(&server).await;
        assert_eq!((checks.len(), checks[1].name, checks[1].ok), (2, "port", false));
        assert!(checks[1].text.contains("refuses connections: "), "{checks:?}");
    }

    #[test]
    fn an_address_without_a_route_has_refused_nothing() {
        let said = |kind: std::io::ErrorKind| unconnected("10.99.0.77:6443".parse().unwrap(), &kind.into());
        assert_eq!(said(std::io::ErrorKind::HostUnreachable), "10.99.0.77:6443 cannot be reached: host unreachable");
        assert!(said(std::io::ErrorKind::ConnectionRefused).starts_with("10.99.0.77:6443 refuses connections: "));
    }

    #[test]
    fn each_trouble_with_a_certificate_has_its_own_remedy() {
        for (words, remedy) in [
            ("invalid peer certificate: certificate expired: verification time 9 (UNIX)", "renew it on Harvester"),
            ("invalid peer certificate: certificate not valid yet: verification time 1", "clocks"),
            ("invalid peer certificate: certificate not valid for name \"h\"", "--server"),
            ("invalid peer certificate: UnknownIssuer", "--ca-file"),
            ("received corrupt message of type InvalidContentType", "does not speak TLS"),
            ("connection reset", "--ca-file"),
        ] {
            let text = certificate_trouble(words);
            assert!(text.starts_with(words) && text.contains(remedy), "{text}");
        }
    }

    #[tokio::test]
    async fn a_port_that_speaks_no_tls_fails_at_the_certificate() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("https://{}", listener.local_addr().unwrap());
        let plain = tokio::spawn(async move {
            use tokio::io::AsyncWriteExt;
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
            stream
        });
        let ca = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let (checks, trusted) = check_certificate(&server, &[ca], &Product::TEST).await;
        assert_eq!(
            (checks.len(), checks[0].name, checks[0].ok, trusted),
            (1, "certificate", false, None),
            "{checks:?}"
        );
        drop(plain);
    }

    #[tokio::test]
    async fn an_administrator_who_may_not_take_a_step_learns_of_it_in_a_dry_run() {
        let steps = [Step::CreateAccount, Step::CreateBinding, Step::CreateToken("demo-token".into())];
        for (refused, ok, part) in [("", true, "every step"), ("rolebindings", false, "create rolebindings.rbac")] {
            let scenario = Scenario::answering(move |seen| {
                let mut answer = seen.body.clone();
                let allowed = answer["spec"]["resourceAttributes"]["resource"] != refused;
                answer["status"] = serde_json::json!({"allowed": allowed});
                (201, answer)
            });
            let check = check_administrator(&scenario.client(), &request(), &steps).await;
            assert!(check.ok == ok && check.text.contains(part), "{check:?}");
            assert_eq!(scenario.requests().len(), 3);
        }
    }
}
