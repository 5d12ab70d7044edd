//! Checks whether a cloud-config leads to the Harvester that has this cluster's machines. The check comes before the
//! first use, because what was written to a wrong Harvester cannot be taken back.

use std::collections::BTreeSet;
use std::time::Duration;

use harvester_api::cloud_config::CloudConfig;
use harvester_api::virtual_machine::VirtualMachine;
use kube::Api;
use kube::api::ListParams;
use runtime::client::{Endpoint, Settings, connect};
use runtime::error::chain;

/// How long a candidate may take to answer.
const PATIENCE: Duration = Duration::from_secs(4);

/// The result of the check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CandidateCheck {
    /// Machines of this cluster are there, or this cluster has no machines yet.
    Ours,
    /// The namespace has this many machines, and none of them belongs to this cluster.
    Strange(usize),
    /// The candidate could not be asked.
    NoAnswer(String),
}

/// Whether server, authority and namespace are those in use, so that only the credentials are new. Both have the
/// authority's certificates in them ([`CloudConfig::with_authorities`]).
pub(super) fn is_same_place(used: &CloudConfig, candidate: &CloudConfig) -> bool {
    let server = |config: &CloudConfig| config.endpoints.first().map(|endpoint| endpoint.server.clone());
    server(used) == server(candidate)
        && used.authority() == candidate.authority()
        && used.namespace == candidate.namespace
}

/// Lists the machines in the namespace and looks for those that Nodes run on, by UID.
pub(super) async fn prove(
    endpoint: &Endpoint,
    settings: &Settings,
    namespace: &str,
    expected: &BTreeSet<String>,
) -> CandidateCheck {
    if expected.is_empty() {
        return CandidateCheck::Ours;
    }
    let client = match connect(endpoint.config.clone(), &settings.clone().retries(false)) {
        Ok(client) => client,
        Err(error) => return CandidateCheck::NoAnswer(chain(&error)),
    };
    let machines: Api<VirtualMachine> = Api::namespaced(client, namespace);
    match tokio::time::timeout(PATIENCE, machines.list_metadata(&ListParams::default())).await {
        Ok(Ok(machines)) => {
            judge(machines.items.iter().filter_map(|machine| machine.metadata.uid.as_deref()), expected)
        }
        Ok(Err(error)) => CandidateCheck::NoAnswer(chain(&error)),
        Err(_) => {
            CandidateCheck::NoAnswer(format!("{} has not answered for {} s", endpoint.server, PATIENCE.as_secs()))
        }
    }
}

fn judge<'a>(found: impl Iterator<Item = &'a str>, expected: &BTreeSet<String>) -> CandidateCheck {
    let found: Vec<&str> = found.collect();
    if found.iter().any(|uid| expected.contains(*uid)) {
        CandidateCheck::Ours
    } else {
        CandidateCheck::Strange(found.len())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use serde_json::{Value, json};

    use super::*;

    const CLOUD_CONFIG: &str = "\
apiVersion: v1
kind: Config
clusters: [{name: h, cluster: {server: 'https://10.0.0.1:6443', insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: c, context: {cluster: h, user: u, namespace: guests}}]
current-context: c
";

    #[test]
    fn new_credentials_for_the_same_place_need_no_proof_and_anything_else_does() {
        let parse = |text: &str| CloudConfig::parse(text.as_bytes()).unwrap();
        let used = parse(CLOUD_CONFIG);
        let directory = tempfile::tempdir().unwrap();
        let authority = directory.path().join("ca.crt");
        std::fs::write(&authority, "other").unwrap();
        let with_authority = format!("certificate-authority: '{}'", authority.display());
        for (from, to, same) in [
            ("secret", "new", true),
            ("name: h", "name: h", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("namespace: guests", "namespace: others", false),
            ("insecure-skip-tls-verify: true", with_authority.as_str(), false),
        ] {
            assert_eq!(is_same_place(&used, &parse(&CLOUD_CONFIG.replace(from, to))), same, "{to}");
        }
    }

    /// Decision 15. The file was read for both sides when they were compared, and was always the same.
    #[test]
    fn a_file_of_the_authority_with_other_content_is_another_place() {
        let directory = tempfile::tempdir().unwrap();
        let authority = directory.path().join("ca.crt");
        let named = format!("certificate-authority: '{}'", authority.display());
        let named = CLOUD_CONFIG.replace("insecure-skip-tls-verify: true", &named);
        let found = |content: &str| {
            std::fs::write(&authority, content).unwrap();
            CloudConfig::parse(named.as_bytes()).unwrap().with_authorities()
        };
        let used = found("old");
        assert!(is_same_place(&used, &found("old")));
        assert!(!is_same_place(&used, &found("new")));
    }

    #[test]
    fn one_machine_by_its_uid_proves_it_and_names_prove_nothing() {
        let expected = ["a".to_owned(), "b".to_owned()].into();
        assert_eq!(judge(["x", "b"].into_iter(), &expected), CandidateCheck::Ours);
        assert_eq!(judge(["x", "y"].into_iter(), &expected), CandidateCheck::Strange(2));
        assert_eq!(judge([].into_iter(), &expected), CandidateCheck::Strange(0));
    }

    /// A server that gives this answer, once.
    fn server(code: u16, body: &Value) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let body = body.to_string();
        let head = format!("content-type: application/json\r\nconnection: close\r\ncontent-length: {}", body.len());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = write!(stream, "HTTP/1.1 {code} X\r\n{head}\r\n\r\n{body}");
        });
        url
    }

    #[tokio::test]
    async fn an_endpoint_that_refuses_or_shows_only_strange_machines_is_not_taken() {
        let product = runtime::Product { name: "test", metrics_prefix: "test", version: "1" };
        let settings = Settings::new("harvester", &product);
        let machines = |uid: &str| {
            json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": [
                {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "n", "uid": uid}}
            ]})
        };
        let no = |code: u16| json!({"kind": "Status", "status": "Failure", "reason": "No", "code": code});
        for (code, body, taken) in [
            (200, machines("a"), true),
            (200, machines("x"), false),
            (401, no(401), false),
            (403, no(403), false),
            (404, no(404), false),
            (500, no(500), false),
        ] {
            let server = server(code, &body);
            let endpoint = Endpoint { config: kube::Config::new(server.parse().unwrap()), server };
            let found = prove(&endpoint, &settings, "guests", &["a".to_owned()].into()).await;
            assert_eq!(found == CandidateCheck::Ours, taken, "{code}: {found:?}");
        }
    }

    #[tokio::test]
    async fn a_cluster_without_machines_asks_nobody() {
        let kubeconfig = CloudConfig::parse(CLOUD_CONFIG.as_bytes()).unwrap();
        let kubeconfig = kubeconfig.kubeconfig(&kubeconfig.endpoints[0]);
        let config =
            kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default()).await;
        let endpoint = Endpoint { server: "https://10.0.0.1:6443".into(), config: config.unwrap() };
        let product = runtime::Product { name: "test", metrics_prefix: "test", version: "1" };
        let settings = Settings::new("harvester", &product);
        assert_eq!(prove(&endpoint, &settings, "guests", &BTreeSet::new()).await, CandidateCheck::Ours);
    }
}
