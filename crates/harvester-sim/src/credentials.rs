//! Credentials of a guest cluster, as the host's kubeconfig endpoint makes them: narrow rights in the VM namespace, and
//! a cloud-config with everything called `default`. Harvester spec 10.2, 10.3

use std::time::Duration;

use harvester_api::cloud_config;
use harvester_api::keys::harvester::CLOUD_PROVIDER_ROLE;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::api::PostParams;
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::apply::{ApplyError, apply, apply_all};

/// Whose credentials, and where they lead.
#[derive(Debug, Clone)]
pub struct CredentialsRequest {
    /// Namespace of the guest's virtual machines.
    pub namespace: String,
    /// Service account, normally the name of the guest cluster.
    pub name: String,
    /// URL of the Harvester API, as the guest reaches it.
    pub server: String,
    /// Authority of that API, PEM.
    pub ca_pem: String,
    /// Where the token comes from.
    pub token: TokenSource,
}

/// Where the token comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenSource {
    /// The long-lived token Secret, as on a real host. Needs a controller manager.
    Secret,
    /// A token request, for an API server without a controller manager. Lasts for a day.
    Request,
}

/// Why there are no credentials.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A document was refused.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// Nobody filled the token Secret.
    #[error(
        "token Secret {0} got no token within {1:?}: does a kube-controller-manager with service account controllers \
        run?"
    )]
    NoToken(String, Duration),
    /// The token Secret could not be watched.
    #[error("failed to wait for the token of Secret {0}")]
    Wait(String, #[source] Box<kube::runtime::wait::Error>),
    /// The token request was refused.
    #[error("failed to request a token for service account {0}")]
    Request(String, #[source] Box<kube::Error>),
}

/// Makes account, token and binding (again: changes nothing) and returns the cloud-config text.
pub async fn credentials(client: &Client, request: &CredentialsRequest) -> Result<String, CredentialsError> {
    let CredentialsRequest { namespace, name, server, ca_pem, token } = request;
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}});
    let uid = apply(client, &account).await?.metadata.uid.unwrap_or_default();
    apply_all(client, &documents(namespace, name, &uid)).await?;
    let token = match token {
        TokenSource::Secret => token_of_secret(client, namespace, &format!("{name}-token")).await?,
        TokenSource::Request => requested_token(client, namespace, name).await?,
    };
    Ok(cloud_config::render(server, ca_pem, namespace, &token))
}

fn documents(namespace: &str, name: &str, account_uid: &str) -> [Value; 2] {
    let owner = json!([{"apiVersion": "v1", "kind": "ServiceAccount", "name": name, "uid": account_uid}]);
    [
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": {"name": format!("{name}-token"), "namespace": namespace, "ownerReferences": owner,
                         "annotations": {"kubernetes.io/service-account.name": name}},
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": format!("{namespace}-{name}"), "namespace": namespace, "ownerReferences": owner},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": CLOUD_PROVIDER_ROLE},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }),
    ]
}

async fn token_of_secret(client: &Client, namespace: &str, name: &str) -> Result<String, CredentialsError> {
    const LIMIT: Duration = Duration::from_secs(30);
    let token = |secret: &Secret| {
        let bytes = secret.data.as_ref()?.get("token")?;
        String::from_utf8(bytes.0.clone()).ok()
    };
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let filled = await_condition(api, name, move |secret: Option<&Secret>| secret.and_then(token).is_some());
    let full_name = format!("{namespace}/{name}");
    match tokio::time::timeout(LIMIT, filled).await {
        Ok(Ok(secret)) => secret.as_ref().and_then(token).ok_or(CredentialsError::NoToken(full_name, LIMIT)),
        Ok(Err(source)) => Err(CredentialsError::Wait(full_name, Box::new(source))),
        Err(_) => Err(CredentialsError::NoToken(full_name, LIMIT)),
    }
}

async fn requested_token(client: &Client, namespace: &str, name: &str) -> Result<String, CredentialsError> {
    let spec = TokenRequestSpec { expiration_seconds: Some(24 * 3600), ..TokenRequestSpec::default() };
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let api: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let failed = |source| CredentialsError::Request(format!("{namespace}/{name}"), Box::new(source));
    let answer = api.create_token_request(name, &PostParams::default(), &request).await.map_err(failed)?;
    Ok(answer.status.map(|status| status.token).unwrap_or_default())
}
