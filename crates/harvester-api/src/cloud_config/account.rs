//! The service account behind the credentials of a cloud-config, for advice that names it.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use super::CloudConfig;
use crate::names::{is_dns_1123_label, is_object_name};

/// A service account on Harvester.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Account {
    /// Parses the user name that API servers give to a service account. The parts are checked, because advice with
    /// them is pasted into a shell.
    pub fn of_user(user: &str) -> Option<Self> {
        let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
        (is_dns_1123_label(namespace) && is_object_name(name))
            .then(|| Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }

    /// Reads the subject of a token. The signature is not verified, so this is for advice only.
    fn of_token(token: &str) -> Option<Self> {
        let claims = token.trim().split('.').nth(1)?.trim_end_matches('=');
        let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
        Self::of_user(claims["sub"].as_str()?)
    }
}

impl CloudConfig {
    /// The service account whose token the cloud-config contains; `None` for other credentials.
    pub fn account(&self) -> Option<Account> {
        Account::of_token(self.credentials.get("token")?.as_str()?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::render;
    use super::*;

    const CA: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";

    fn token(claims: &str) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn a_token_of_a_service_account_tells_whose_it_is() {
        let of = |token: &str| {
            let text = render("https://10.0.0.9:6443", CA, "guests", token);
            CloudConfig::parse(text.as_bytes()).unwrap().account().map(|one| format!("{}/{}", one.namespace, one.name))
        };
        for (token, expected) in [
            (token(r#"{"sub": "system:serviceaccount:guests:demo"}"#), Some("guests/demo")),
            (token(r#"{"sub": "system:serviceaccount:guests:a.b"}"#), Some("guests/a.b")),
            (token(r#"{"sub": "jane"}"#), None),
            (token(r#"{"sub": "system:serviceaccount:guests:x; reboot"}"#), None),
            (token(r#"{"iss": "kubernetes"}"#), None),
            (token("no claims"), None),
            ("kubeconfig-user-abc:secret".to_owned(), None),
            ("1.2.3".to_owned(), None),
        ] {
            assert_eq!(of(&token).as_deref(), expected, "{token}");
        }
    }
}
