//! Kubeconfig files.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::cluster::pki::KeyAndCertificate;

/// Who a kubeconfig speaks for.
#[derive(Debug, Clone)]
pub enum Identity {
    /// A client certificate.
    Certificate(KeyAndCertificate),
    /// A bearer token.
    Token(String),
}

/// A kubeconfig with everything inlined; JSON, which every reader of YAML accepts.
pub fn kubeconfig(server: &str, authority_pem: &str, identity: &Identity, namespace: Option<&str>) -> String {
    let encode = |text: &str| BASE64_STANDARD.encode(text);
    let user = match identity {
        Identity::Certificate(pair) => {
            json!({ "client-certificate-data": encode(&pair.certificate_pem),
                "client-key-data": encode(&pair.key_pem) })
        }
        Identity::Token(token) => json!({ "token": token }),
    };
    let mut context = json!({ "cluster": "cluster", "user": "user" });
    if let Some(namespace) = namespace {
        context["namespace"] = Value::from(namespace);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "cluster",
            "cluster": { "server": server, "certificate-authority-data": encode(authority_pem) } }],
        "users": [{ "name": "user", "user": user }],
        "contexts": [{ "name": "context", "context": context }],
        "current-context": "context",
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kube_understands_it() {
        let text = kubeconfig("https://10.99.0.2:6443", "ca", &Identity::Token("t".into()), Some("vms"));
        let config: kube::config::Kubeconfig = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(config.current_context.as_deref(), Some("context"));
        assert_eq!(config.contexts[0].context.as_ref().unwrap().namespace.as_deref(), Some("vms"));
    }
}
