//! Where a command finds the guest cluster: in the file where `kubectl` finds it. The API server is a thread.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_harvester-cloud-provider");

/// Answers every request with this object, for as long as the test runs; its URL.
fn serve(body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let lines = BufReader::new(connection.try_clone().unwrap()).lines();
            lines.map_while(Result::ok).find(String::is_empty);
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
            write!(connection, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        }
    });
    url
}

/// Exit status and output of a command by a user with this home.
fn run(home: &Path, words: &[&str], variable: Option<&str>) -> (Option<i32>, String) {
    let mut command = Command::new(PROGRAM);
    command.args(words).env("HOME", home).env("NO_PROXY", "127.0.0.1").env_remove("KUBECONFIG");
    command.env_remove("KUBERNETES_SERVICE_HOST");
    let output = command.envs(variable.map(|path| ("KUBECONFIG", path))).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn identity_reads_the_file_that_kubectl_reads() {
    let home = tempfile::tempdir().unwrap();
    let (code, said) = run(home.path(), &["identity", "show"], None);
    assert!(code == Some(1) && said.contains("no credentials of the guest cluster"), "{said}");

    let url = serve(r#"{"metadata": {"name": "harvester-cloud-provider"}, "data": {"cluster-name": "prod"}}"#);
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: \"{url}\"}}}}]\n\
         users: [{{name: c, user: {{}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: c}}}}]\n"
    );
    std::fs::create_dir(home.path().join(".kube")).unwrap();
    std::fs::write(home.path().join(".kube/config"), kubeconfig).unwrap();
    for words in [&["identity", "show"][..], &["identity", "confirm", "--dry-run"]] {
        let (code, said) = run(home.path(), words, None);
        assert!(code == Some(0) && said.starts_with("name        prod\n"), "{words:?}: {said}");
    }

    // A file that is named counts alone: another one may belong to another cluster.
    for (words, variable) in
        [(&["identity", "show"][..], Some("/no/guest")), (&["identity", "show", "--kubeconfig", "/no/guest"], None)]
    {
        let (code, said) = run(home.path(), words, variable);
        assert!(code == Some(1) && said.contains("/no/guest"), "{words:?}: {said}");
    }
}
