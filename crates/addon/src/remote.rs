//! The alternative way: Harvester itself creates account, token and binding (Harvester spec 10.3).

use harvester_api::cloud_config::{CloudConfig, CloudConfigError};
use harvester_api::keys::harvester::CLOUD_PROVIDER_ROLE;
use http::header::CONTENT_TYPE;
use kube::Client;
use runtime::error::api_code;
use serde_json::json;

use crate::request::Request;

/// Path below the administrator's URL, which has a path of its own behind Rancher.
const PATH: &str = "/v1/harvester/kubeconfig";

/// Why Harvester returned no kubeconfig.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The request was refused, or failed.
    #[error("failed to ask Harvester for a kubeconfig (POST {PATH}){hint}")]
    Request {
        /// The advice, with a leading separator.
        hint: &'static str,
        /// Cause.
        source: kube::Error,
    },
    /// Something else answered.
    #[error("the answer to POST {PATH} is not a JSON string; check that the server is the Harvester API")]
    NotAString(#[source] serde_json::Error),
    /// The kubeconfig in the answer is not usable.
    #[error("Harvester's kubeconfig is not usable")]
    Kubeconfig(#[from] CloudConfigError),
}

/// Requests the kubeconfig from Harvester; returns it unchanged.
pub async fn kubeconfig(client: &Client, request: &Request) -> Result<String, RemoteError> {
    // Up to Harvester 1.8 the request has to name the role; the binding gets this one whatever is sent.
    let body = json!({
        "namespace": request.namespace,
        "serviceAccountName": request.service_account,
        "clusterRoleName": CLOUD_PROVIDER_ROLE,
    });
    let ask = http::Request::post(PATH)
        .header(CONTENT_TYPE, "application/json")
        .body(body.to_string().into_bytes())
        .expect("path and header are constants");
    let answer = client.request_text(ask).await;
    let answer = answer.map_err(|source| RemoteError::Request { hint: hint(api_code(&source)), source })?;
    let text: String = serde_json::from_str(&answer).map_err(RemoteError::NotAString)?;
    CloudConfig::parse(text.as_bytes())?;
    Ok(text)
}

fn hint(code: Option<u16>) -> &'static str {
    match code {
        Some(401) => {
            "; it wants to be asked through Rancher or Harvester's own login, not at the API server: use a \
             kubeconfig downloaded from the UI, or --credentials own"
        }
        Some(404) => {
            "; the API server itself does not have it: use a kubeconfig downloaded from Harvester's UI, or \
             --credentials own"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::tests::request;
    use runtime::error::chain;
    use runtime::scenario::Scenario;

    const KUBECONFIG: &str = "apiVersion: v1\nkind: Config\nclusters: [{name: default, cluster: {server: \
        'https://10.0.0.9:6443'}}]\nusers: [{name: default, user: {token: t}}]\ncontexts: [{name: default, \
        context: {cluster: default, user: default, namespace: guests}}]\ncurrent-context: default\n";

    #[tokio::test]
    async fn the_answer_is_a_json_string_with_a_kubeconfig_inside() {
        let scenario = Scenario::answering(|_| (200, json!(KUBECONFIG)));
        assert_eq!(kubeconfig(&scenario.client(), &request()).await.unwrap(), KUBECONFIG);
        let seen = scenario.requests().remove(0);
        assert_eq!((seen.method.as_str(), seen.path.as_str()), ("POST", PATH));
        assert_eq!(seen.body["serviceAccountName"], "demo");
    }

    #[tokio::test]
    async fn a_refusal_says_which_kubeconfig_would_do() {
        let scenario = Scenario::answering(|_| (401, Scenario::status(401, "Unauthorized", "no")));
        let error = kubeconfig(&scenario.client(), &request()).await.unwrap_err();
        assert!(chain(&error).contains("downloaded from the UI"), "{}", chain(&error));
        let scenario = Scenario::answering(|_| (200, json!({"kind": "Status"})));
        let error = kubeconfig(&scenario.client(), &request()).await.unwrap_err();
        assert!(matches!(error, RemoteError::NotAString(_)));
        let scenario = Scenario::answering(|_| (200, json!("nonsense")));
        assert!(matches!(kubeconfig(&scenario.client(), &request()).await, Err(RemoteError::Kubeconfig(_))));
    }
}
