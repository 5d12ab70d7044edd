//! What a user gets for each way in which a cloud-config can be wrong.

use super::*;
use proptest::prelude::*;

const PEM: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
const KEY: &str = "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n";

/// Harvester spec 10.3: what Harvester hands out.
fn good() -> String {
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: default\n  cluster:\n    \
             certificate-authority-data: {}\n    server: https://10.0.0.9:6443\n\
         contexts:\n- name: default\n  context:\n    cluster: default\n    namespace: guests\n    user: default\n\
         current-context: default\nusers:\n- name: default\n  user:\n    token: sEcReT\n",
        STANDARD.encode(PEM)
    )
}

fn error(text: &str) -> String {
    CloudConfig::parse(text.as_bytes()).expect_err("is refused").to_string()
}

#[test]
fn what_harvester_hands_out_is_accepted() {
    let config = CloudConfig::parse(good().as_bytes()).unwrap();
    assert_eq!(
        (config.context.as_str(), config.user.as_str(), config.namespace.as_str()),
        ("default", "default", "guests")
    );
    assert!(config.warnings.is_empty());
    assert_eq!(config.endpoints.len(), 1);
    assert_eq!(config.endpoints[0].server, "https://10.0.0.9:6443");
    let kubeconfig = config.kubeconfig(&config.endpoints[0]);
    assert_eq!(kubeconfig.current_context.as_deref(), Some("default"));
    assert_eq!(kubeconfig.contexts[0].context.as_ref().unwrap().namespace.as_deref(), Some("guests"));
    assert!(kubeconfig.auth_infos[0].auth_info.as_ref().unwrap().token.is_some());
}

#[test]
fn json_is_accepted_even_with_tabs_and_a_byte_order_mark() {
    let value: Value = serde_saphyr::from_str(&good()).unwrap();
    let json = serde_json::to_string_pretty(&value).unwrap().replace("  ", "\t");
    let config = CloudConfig::parse(format!("\u{feff}{json}").as_bytes()).unwrap();
    assert_eq!(config.namespace, "guests");
}

#[test]
fn a_path_prefix_of_the_server_is_kept() {
    let text = good().replace("https://10.0.0.9:6443", "https://rancher.example.org/k8s/clusters/local");
    assert_eq!(
        CloudConfig::parse(text.as_bytes()).unwrap().endpoints[0].server,
        "https://rancher.example.org/k8s/clusters/local"
    );
}

#[test]
fn a_context_without_namespace_works_with_default_and_says_so() {
    for text in [good().replace("    namespace: guests\n", ""), good().replace("namespace: guests", "namespace: \"\"")]
    {
        let config = CloudConfig::parse(text.as_bytes()).unwrap();
        assert_eq!(config.namespace, "default");
        let [CloudConfigWarning::NamespaceMissing { context }] = config.warnings.as_slice() else {
            panic!("{:?}", config.warnings)
        };
        assert_eq!(context, "default");
        assert!(config.warnings[0].to_string().contains("context.namespace"));
    }
}

#[test]
fn contexts_with_the_same_user_and_namespace_are_further_endpoints() {
    let more = "contexts:\n\
        - {name: second, context: {cluster: second, user: default, namespace: guests}}\n\
        - {name: other-user, context: {cluster: third, user: somebody, namespace: guests}}\n\
        - {name: other-namespace, context: {cluster: third, user: default}}\n\
        - {name: gone, context: {cluster: gone, user: default, namespace: guests}}\n";
    let text = good().replace("contexts:\n", more).replace(
        "clusters:\n",
        "clusters:\n\
             - {name: second, cluster: {server: 'https://10.0.0.10:6443'}}\n\
             - {name: third, cluster: {server: 'https://10.0.0.11:6443'}}\n",
    );
    let config = CloudConfig::parse(text.as_bytes()).unwrap();
    let servers: Vec<_> = config.endpoints.iter().map(|endpoint| endpoint.server.as_str()).collect();
    assert_eq!(servers, ["https://10.0.0.9:6443", "https://10.0.0.10:6443"], "the current context comes first");
    assert_eq!(
        config.warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["cloud-config: cluster \"gone\" named by context \"gone\" does not exist; clusters: second, third, default; \
             not used as a further endpoint"]
    );
}

#[test]
fn every_defect_names_the_field_the_value_and_what_is_accepted() {
    let g = good();
    let ca = STANDARD.encode(PEM);
    let table = [
        (String::new(), "cloud-config: the file is empty; expected a kubeconfig for the Harvester API (YAML or JSON)"),
        (
            " \n# nothing\n".to_owned(),
            "cloud-config: the file is empty; expected a kubeconfig for the Harvester API (YAML or JSON)",
        ),
        ("hello".to_owned(), "cloud-config: the document is a string, expected a kubeconfig object"),
        (
            g.replace("current-context: default\n", ""),
            "cloud-config: current-context is missing or empty; expected the name of a context; contexts: default",
        ),
        (
            g.replace("current-context: default", "current-context: x"),
            "cloud-config: context \"x\" named by current-context does not exist; contexts: default",
        ),
        (
            g.replace("    cluster: default\n", "    cluster: a\n"),
            "cloud-config: cluster \"a\" named by context \"default\" does not exist; clusters: default",
        ),
        (
            g.replace("    user: default\n", "    user: a\n"),
            "cloud-config: user \"a\" named by context \"default\" does not exist; users: default",
        ),
        (
            g.replace("    user: default\n", ""),
            "cloud-config: contexts[0].context.user is missing or empty; expected the name of a user",
        ),
        (
            g.replace("    cluster: default\n", ""),
            "cloud-config: contexts[0].context.cluster is missing or empty; expected the name of a cluster",
        ),
        (
            g.replace("    server: https://10.0.0.9:6443\n", ""),
            "cloud-config: clusters[0].cluster.server is missing or empty; expected a URL such as \
            https://192.0.2.10:6443",
        ),
        (
            g.replace("https://10.0.0.9:6443", "10.0.0.9"),
            "cloud-config: server \"10.0.0.9\" of cluster \"default\" has no scheme; expected a URL such as \
            https://192.0.2.10:6443",
        ),
        (
            g.replace("https://10.0.0.9:6443", "ftp://10.0.0.9"),
            "cloud-config: server \"ftp://10.0.0.9\" of cluster \"default\" has a scheme other than https or http; \
            expected a URL such as https://192.0.2.10:6443",
        ),
        (
            g.replace("https://10.0.0.9:6443", "'https://a b'"),
            "cloud-config: server \"https://a b\" of cluster \"default\" is not a valid URL; expected a URL such as \
            https://192.0.2.10:6443",
        ),
        (g.replace("https://10.0.0.9:6443", "https://10.0.0.9:64430"), ""),
        (
            g.replace("https://10.0.0.9:6443", "https://10.0.0.9:70000"),
            "cloud-config: server \"https://10.0.0.9:70000\" of cluster \"default\" has a port that is not within \
            1-65535; expected a URL such as https://192.0.2.10:6443",
        ),
        (
            g.replace(&ca, "'###'"),
            "cloud-config: certificate-authority-data of cluster \"default\" is not valid base64 (Invalid symbol 35, \
            offset 0.); expected base64 of PEM text on one line",
        ),
        (
            g.replace(&ca, "aGVsbG8="),
            "cloud-config: certificate-authority-data of cluster \"default\" does not contain a PEM certificate once \
            decoded from base64",
        ),
        (
            g.replace("    token: sEcReT\n", "    token: ''\n"),
            "cloud-config: user \"default\" has no credentials; expected one of token, tokenFile, \
            client-certificate(-data) with client-key(-data), username with password",
        ),
        (
            g.replace("token: sEcReT", "token: 12345"),
            "cloud-config: users[0].user.token is a number, expected a string (quote it)",
        ),
        (
            g.replace("token: sEcReT", &format!("client-certificate-data: {ca}")),
            "cloud-config: user \"default\" has a client certificate but no client-key or client-key-data; expected \
            both",
        ),
        (
            g.replace("token: sEcReT", &format!("client-key-data: {}", STANDARD.encode(KEY))),
            "cloud-config: user \"default\" has a client key but no client-certificate or client-certificate-data; \
            expected both",
        ),
        ("clusters: 3".to_owned(), "cloud-config: clusters is a number, expected a list"),
        ("contexts: [3]".to_owned(), "cloud-config: contexts[0] is a number, expected an object with name"),
        (
            "contexts: [{name: a, context: b}]".to_owned(),
            "cloud-config: contexts[0].context is a string, expected an object",
        ),
    ];
    for (text, expected) in table {
        match CloudConfig::parse(text.as_bytes()) {
            Ok(_) => assert_eq!(expected, "", "accepted:\n{text}"),
            Err(error) => assert_eq!(error.to_string(), expected, "for:\n{text}"),
        }
    }
}

#[test]
fn malformed_yaml_names_the_line_and_shows_no_secret() {
    let text = good().replace("current-context: default", "current-context: [default");
    let message = error(&text);
    assert!(message.starts_with("cloud-config: line "), "{message}");
    let message = error(&good().replace("token: sEcReT", "token: sEcReT: x\n   - y"));
    assert!(message.contains("line ") && !message.contains("sEcReT"), "{message}");
    assert!(error("a: b\na: c").contains("line 2"), "{}", error("a: b\na: c"));
}

#[test]
fn other_ways_to_log_in_are_accepted() {
    let pair =
        format!("client-certificate-data: {}\n    client-key-data: {}", STANDARD.encode(PEM), STANDARD.encode(KEY));
    for credentials in [
        "tokenFile: /run/token",
        "client-certificate: /a.crt\n    client-key: /a.key",
        pair.as_str(),
        "username: a\n    password: b",
    ] {
        let text = good().replace("token: sEcReT", credentials);
        let config = CloudConfig::parse(text.as_bytes()).unwrap_or_else(|e| panic!("{credentials}: {e}"));
        config.kubeconfig(&config.endpoints[0]);
    }
}

#[test]
fn a_plug_in_is_refused_also_beside_a_token() {
    for (credentials, plugin) in [
        ("exec: {apiVersion: client.authentication.k8s.io/v1, command: get-token}", "exec"),
        ("auth-provider: {name: oidc}", "auth-provider"),
        ("token: sEcReT\n    exec: {apiVersion: client.authentication.k8s.io/v1, command: get-token}", "exec"),
    ] {
        let message = error(&good().replace("token: sEcReT", credentials));
        assert!(
            message.contains(&format!("logs in by {plugin}, ")) && message.contains("accepted are token"),
            "{message}"
        );
        assert!(!message.contains("sEcReT"), "{message}");
    }
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    assert!(CloudConfig::parse(b"\xff\xfe").unwrap_err().to_string().contains("not a text file"));
}

#[test]
fn credentials_stay_out_of_debug_output() {
    let config = CloudConfig::parse(good().as_bytes()).unwrap();
    assert!(!format!("{config:?}").contains("sEcReT"));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = CloudConfig::parse(&bytes);
    }

    #[test]
    fn no_damage_to_a_good_file_panics(at in 0usize..400, with in "\\PC{0,8}") {
        let text = good();
        let at = at.min(text.len());
        if text.is_char_boundary(at) {
            if let Ok(config) = CloudConfig::parse(format!("{}{with}{}", &text[..at], &text[at..]).as_bytes()) {
                config.endpoints.iter().for_each(|endpoint| drop(config.kubeconfig(endpoint)));
            }
            let _ = CloudConfig::parse(&text.as_bytes()[..at]);
        }
    }
}
