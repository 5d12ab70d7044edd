//! `generate-addon --credentials harvester`: account, token and rights made by Harvester's own endpoint, reached as an
//! administrator with a kubeconfig of its UI reaches it: behind a proxy with a path of its own, which knows who is
//! logged in. Harvester spec 10.3
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use parking_lot::Mutex;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use e2e::{Bed, PATIENCE, VM_NAMESPACE, product, wait_for};
use harvester_api::cloud_config;
use harvester_sim::serve::tls::{Authority, serve};
use serde_json::{Value, json};
use testbed::Task;
use testbed::addresses::HARVESTER;

const ACCOUNT: &str = "addon-demo";
const PORT: u16 = 8443;
const TOKEN: &str = "kubeconfig-admin-x7k2p:w9";

/// What the endpoint was asked, and what it answers.
#[derive(Clone, Default)]
struct Endpoint(Arc<Mutex<Exchange>>);

#[derive(Default)]
struct Exchange {
    asked: Vec<Value>,
    code: StatusCode,
    text: String,
}

impl Endpoint {
    /// Of Harvester from 1.7.2 on: it wants to be asked by somebody whom the proxy in front knows. One who is not known
    /// gets 401.
    fn answer(&self, headers: &HeaderMap, body: Value) -> Response {
        if headers.get("authorization").and_then(|value| value.to_str().ok()) != Some(&format!("Bearer {TOKEN}")) {
            return (StatusCode::UNAUTHORIZED, "unauthorized").into_response();
        }
        let mut exchange = self.0.lock();
        exchange.asked.push(body);
        let (code, text) = (exchange.code, exchange.text.clone());
        // Errors are plain text.
        if code.is_success() { Json(text).into_response() } else { (code, text).into_response() }
    }

    fn answers(&self, code: u16, text: &str) {
        let mut exchange = self.0.lock();
        (exchange.code, exchange.text) = (StatusCode::from_u16(code).unwrap(), text.to_owned());
    }

    /// What it was asked since the last look.
    fn asked(&self) -> Vec<Value> {
        std::mem::take(&mut self.0.lock().asked)
    }
}

/// A proxy in front of Harvester's cluster `local` that serves nothing else, and the administrator's kubeconfig for it.
async fn proxy(bed: &Bed, endpoint: &Endpoint) -> (Task, PathBuf) {
    let authority = Authority::new().unwrap();
    let acceptor = authority.acceptor(&[HARVESTER.to_string()]).unwrap();
    let answer = async |State(endpoint): State<Endpoint>, headers: HeaderMap, Json(body): Json<Value>| {
        endpoint.answer(&headers, body)
    };
    let router =
        Router::new().route("/k8s/clusters/local/v1/harvester/kubeconfig", post(answer)).with_state(endpoint.clone());
    let task = bed
        .harvester
        .namespace()
        .task("proxy", move || async move {
            let listener = tokio::net::TcpListener::bind((HARVESTER, PORT)).await.expect("nobody else has this port");
            let _ = serve(listener, acceptor, router).await;
        })
        .unwrap();
    let server = format!("https://{HARVESTER}:{PORT}/k8s/clusters/local");
    let kubeconfig = cloud_config::render(&server, &authority.certificate_pem, "default", TOKEN);
    let kubeconfig = bed.dir().write("harvester.yaml", kubeconfig).unwrap();
    wait_for("the proxy to listen", PATIENCE, || async {
        let listens = bed
            .lan
            .host(1)
            .run(|| std::net::TcpStream::connect_timeout(&(HARVESTER, PORT).into(), Duration::from_secs(1)));
        listens.map(drop).map_err(|error| error.to_string())
    })
    .await
    .unwrap();
    (task, kubeconfig)
}

/// Runs the command where an administrator would, and where guests are, too.
fn run(bed: &Bed, kubeconfig: &Path, words: &[&str]) -> (Output, String) {
    let mut command = std::process::Command::new(product::binary().unwrap());
    command.env_remove("KUBECONFIG").args(["generate-addon", ACCOUNT, VM_NAMESPACE, "--credentials", "harvester"]);
    command.arg("--kubeconfig").arg(kubeconfig).args(words);
    let output = bed.lan.host(1).run(move || command.output()).unwrap();
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    (output, said)
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn what_harvester_makes_is_looked_at_and_written_for_its_owner_alone() {
    if e2e::skip() {
        return;
    }
    let bed = Bed::builder().nodes(1).without_ccm().without_announcers().start().await.unwrap();
    let endpoint = Endpoint::default();
    let (_proxy, admin) = proxy(&bed, &endpoint).await;
    // What the endpoint makes: account, token, binding, and a kubeconfig with the virtual IP of Harvester.
    let made = bed.harvester.cloud_config(VM_NAMESPACE, ACCOUNT).unwrap();
    endpoint.answers(200, &made);
    let file = bed.dir().path().join("made-by-harvester");
    let path = file.display().to_string();

    // To ask is to make: a dry run does not.
    let (output, said) = run(&bed, &admin, &["--dry-run", "-o", "kubeconfig", "--output-file", &path]);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("dry run: Harvester was not asked"), "{said}");
    assert!(endpoint.asked().is_empty() && !file.exists());

    let (output, said) = run(&bed, &admin, &["-o", "kubeconfig", "--output-file", &path]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b""[..]), "{said}");
    assert_eq!((std::fs::read_to_string(&file).unwrap(), mode(&file)), (made.clone(), 0o600));
    let wanted = json!({"namespace": VM_NAMESPACE, "serviceAccountName": ACCOUNT,
        "clusterRoleName": "harvesterhci.io:cloudprovider"});
    assert_eq!(endpoint.asked(), [wanted]);
    let begun: Vec<&str> = said.lines().map(|line| line.split(" (").next().unwrap_or_default()).collect();
    let first = format!("ask Harvester for the credentials of {VM_NAMESPACE}/{ACCOUNT}");
    let last = format!("written: {path}");
    assert_eq!((begun.first(), begun.last()), (Some(&first.as_str()), Some(&last.as_str())), "{said}");
    let checks = &begun[1..begun.len() - 1];
    assert!(checks.iter().all(|line| line.starts_with("ok: ")), "{said}");
    for name in ["ok: port: ", "ok: rights: "] {
        assert!(checks.iter().any(|line| line.starts_with(name)), "{name:?} is missing in\n{said}");
    }

    // A file that everybody may read is replaced by one that nobody else may.
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (output, said) = run(&bed, &admin, &["-o", "secret", "--output-file", &path]);
    assert_eq!((output.status.code(), mode(&file)), (Some(0), 0o600), "{said}");
    let secret: Value = serde_saphyr::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((&secret["kind"], &secret["metadata"]["name"]), (&"Secret".into(), &"harvester-cloud-config".into()));

    // Without a file it goes to standard output, and progress does not.
    let (output, said) = run(&bed, &admin, &["-o", "json"]);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&document["kubeconfig"], &document["steps"]), (&made.as_str().into(), &json!([first])));
    assert!(document["checks"].as_array().unwrap().iter().all(|check| check["ok"] == true), "{document}");
}

#[tokio::test]
async fn a_refusal_or_a_kubeconfig_that_no_guest_can_use_ends_with_1_and_leaves_the_file_as_it_was() {
    if e2e::skip() {
        return;
    }
    let bed = Bed::builder().nodes(1).without_ccm().without_announcers().start().await.unwrap();
    let endpoint = Endpoint::default();
    let (_proxy, admin) = proxy(&bed, &endpoint).await;
    let file = bed.dir().write("former", "the one before").unwrap();
    let path = file.display().to_string();
    let refused = |admin: &Path, parts: &[&str]| {
        let (output, said) = run(&bed, admin, &["-o", "kubeconfig", "--output-file", &path]);
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]), "{said}");
        for part in parts {
            assert!(said.contains(part), "{part:?} is missing in\n{said}");
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "the one before");
        assert!(!said.contains(TOKEN) && !said.contains("written: "), "{said}");
    };
    endpoint.answers(422, "clusterRoleName none-such not found");
    refused(&admin, &["error: failed to ask Harvester for a kubeconfig", "none-such not found"]);
    assert_eq!(endpoint.asked().len(), 1, "a refusal is not asked for again");

    endpoint.answers(200, "nonsense");
    refused(&admin, &["error: Harvester's kubeconfig is not usable"]);

    // Made, but of no use: the message says what is there now, and how it is taken back.
    let made = bed.harvester.cloud_config(VM_NAMESPACE, ACCOUNT).unwrap();
    endpoint.answers(200, &made.replace(&bed.harvester.url_inside(), "https://127.0.0.1:6443"));
    let undo = format!("generate-addon {ACCOUNT} {VM_NAMESPACE} --kubeconfig {} --revoke", admin.display());
    refused(&admin, &["Harvester made the credentials of", "leads a guest to itself", &undo]);

    // A token of nobody.
    let text = std::fs::read_to_string(&admin).unwrap().replace(TOKEN, "kubeconfig-nobody:x");
    let nobody = bed.dir().write("nobody.yaml", text).unwrap();
    refused(&nobody, &["unauthorized", "use a kubeconfig downloaded from the UI"]);
}
