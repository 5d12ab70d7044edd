//! Writes a cloud-config.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// A kubeconfig in the form of Harvester's own endpoint: every name is `default` (Harvester spec 10.3).
pub fn render(server: &str, ca_pem: &str, namespace: &str, token: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: default\n  cluster:\n    \
         certificate-authority-data: {}\n    server: {}\n\
         contexts:\n- name: default\n  context:\n    cluster: default\n    namespace: {}\n    user: default\n\
         current-context: default\nusers:\n- name: default\n  user:\n    token: {}\n",
        STANDARD.encode(ca_pem),
        quoted(server),
        quoted(namespace),
        quoted(token),
    )
}

/// The text as a JSON string, which is also a valid YAML string.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::super::CloudConfig;
    use super::*;
    use proptest::prelude::*;

    const CA: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";

    #[test]
    fn the_provider_accepts_it_without_a_warning() {
        let config = CloudConfig::parse(render("https://10.0.0.9:6443", CA, "guests", "1.2.3").as_bytes()).unwrap();
        assert_eq!((config.context.as_str(), config.user.as_str()), ("default", "default"));
        assert_eq!((config.namespace.as_str(), config.warnings.len()), ("guests", 0));
        assert_eq!(config.endpoints[0].server, "https://10.0.0.9:6443");
    }

    proptest! {
        #[test]
        fn whatever_a_token_or_url_holds_survives(token in "[!-~]{1,40}", namespace in "[a-z][a-z0-9-]{0,20}[a-z0-9]") {
            let text = render("https://[fd00::1]:6443/k8s/clusters/c-1", CA, &namespace, &token);
            let config = CloudConfig::parse(text.as_bytes()).unwrap();
            prop_assert_eq!(&config.namespace, &namespace);
            let document = serde_json::to_value(config.kubeconfig(&config.endpoints[0])).unwrap();
            prop_assert_eq!(&document["users"][0]["user"]["token"], &Value::from(token));
        }
    }
}
