//! The present state on Harvester: only the facts that the plan needs.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use harvester_api::keys::harvester::CLOUD_PROVIDER_ROLE;

use crate::request::Request;

/// Type of the Secrets that the token controller fills.
pub const TOKEN_TYPE: &str = "kubernetes.io/service-account-token";
/// Annotation of such a Secret: the account of the token.
pub const ACCOUNT_ANNOTATION: &str = "kubernetes.io/service-account.name";
/// Label of objects that this command has created.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "harvester-cloud-provider");

/// The present state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// The namespace of the virtual machines exists.
    pub namespace: bool,
    /// Harvester's role exists.
    pub role: bool,
    /// The service account.
    pub account: Option<Account>,
    /// Its long-lived tokens, oldest first.
    pub tokens: Vec<Token>,
    /// A Secret of another type has the name of the first token.
    pub name_taken: bool,
    /// The RoleBinding for this account.
    pub binding: Option<Binding>,
    /// The ClusterRoleBinding that the former shell script created.
    pub wide_binding: Option<Binding>,
}

/// The observed version of an object, as precondition for steps that change or delete it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectVersion {
    /// `metadata.uid`: another object of the same name has another one.
    pub uid: String,
    /// `metadata.resourceVersion`: each change creates a new one.
    pub resource_version: String,
}

impl ObjectVersion {
    fn of(metadata: &ObjectMeta) -> Self {
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
        }
    }
}

/// A service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The observed version.
    pub version: ObjectVersion,
    /// This command has created it.
    pub ours: bool,
}

/// A token Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Name of the Secret.
    pub name: String,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// The observed version.
    pub version: ObjectVersion,
}

/// A binding, from the service account's view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// Name.
    pub name: String,
    /// The observed version.
    pub version: ObjectVersion,
    /// It refers to Harvester's role for cloud providers.
    pub our_role: bool,
    /// The account is one of its subjects.
    pub our_subject: bool,
    /// It has other subjects.
    pub others: bool,
}

/// Name of the RoleBinding. Harvester's endpoint uses the same name, so both ways lead to the same object. The name
/// contains the namespace, so that two clusters with equal account names do not take each other's rights (CCM spec
/// W-49).
pub fn binding_name(request: &Request) -> String {
    format!("{}-{}", request.namespace, request.service_account)
}

/// Name of the Secret with the first token; the names of further ones end in a time stamp.
pub fn first_token(request: &Request) -> String {
    format!("{}-token", request.service_account)
}

/// Reads the present state.
pub async fn observe(client: &Client, request: &Request) -> Result<Observed, ObserveError> {
    let failed = |what: String| move |source| ObserveError { what, source };
    let namespace = &request.namespace;
    let account = &request.service_account;

    let namespaces: Api<Namespace> = Api::all(client.clone());
    let found = namespaces.get_opt(namespace).await.map_err(failed(format!("namespace {namespace}")))?.is_some();
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let role = roles.get_opt(CLOUD_PROVIDER_ROLE).await;
    let role = role.map_err(failed(format!("ClusterRole {CLOUD_PROVIDER_ROLE}")))?.is_some();
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let seen = accounts.get_opt(account).await;
    let seen = seen.map_err(failed(format!("ServiceAccount {namespace}/{account}")))?;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let tokens = secrets.list(&ListParams::default().fields(&format!("type={TOKEN_TYPE}"))).await;
    let tokens = tokens.map_err(failed(format!("Secrets of namespace {namespace}")))?;
    let tokens = token_views(&tokens.items, account);
    let first = first_token(request);
    // Only token Secrets were listed; this one may have any type.
    let name_taken = !tokens.iter().any(|token| token.name == first)
        && secrets.get_opt(&first).await.map_err(failed(format!("Secret {namespace}/{first}")))?.is_some();
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
    let name = binding_name(request);
    let binding = bindings.get_opt(&name).await.map_err(failed(format!("RoleBinding {namespace}/{name}")))?;
    let wide: Api<ClusterRoleBinding> = Api::all(client.clone());
    let wide = wide.get_opt(account).await.map_err(failed(format!("ClusterRoleBinding {account}")))?;

    Ok(Observed {
        namespace: found,
        role,
        account: seen.map(|account| Account {
            ours: account.labels().get(MANAGED_BY.0).is_some_and(|value| value == MANAGED_BY.1),
            version: ObjectVersion::of(&account.metadata),
        }),
        tokens,
        name_taken,
        binding: binding.map(|binding| Binding {
            name: binding.name_any(),
            version: ObjectVersion::of(&binding.metadata),
            our_role: binding.role_ref.kind == "ClusterRole" && binding.role_ref.name == CLOUD_PROVIDER_ROLE,
            our_subject: has(binding.subjects.as_deref(), request),
            others: has_others(binding.subjects.as_deref(), request),
        }),
        wide_binding: wide.map(|binding| Binding {
            name: binding.name_any(),
            version: ObjectVersion::of(&binding.metadata),
            our_role: binding.role_ref.name == CLOUD_PROVIDER_ROLE,
            our_subject: has(binding.subjects.as_deref(), request),
            others: has_others(binding.subjects.as_deref(), request),
        }),
    })
}

/// The certificate authority of the API server, from the ConfigMap in every namespace; a token has the same. `None` if
/// it cannot be read.
pub async fn root_authority(client: &Client, request: &Request) -> Option<String> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &request.namespace);
    let mut map = maps.get_opt("kube-root-ca.crt").await.ok()??;
    map.data.as_mut()?.remove("ca.crt")
}

fn token_views(secrets: &[Secret], account: &str) -> Vec<Token> {
    let ours = secrets.iter().filter(|secret| {
        secret.annotations().get(ACCOUNT_ANNOTATION).is_some_and(|name| name == account)
            && secret.metadata.deletion_timestamp.is_none()
    });
    let mut tokens: Vec<Token> = ours
        .map(|secret| Token {
            name: secret.name_any(),
            created: secret.creation_timestamp().map(|time| time.0),
            version: ObjectVersion::of(&secret.metadata),
        })
        .collect();
    tokens.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
    tokens
}

fn is_ours(subject: &Subject, request: &Request) -> bool {
    subject.kind == "ServiceAccount"
        && subject.name == request.service_account
        && subject.namespace.as_deref() == Some(&request.namespace)
}

fn has(subjects: Option<&[Subject]>, request: &Request) -> bool {
    subjects.unwrap_or_default().iter().any(|subject| is_ours(subject, request))
}

fn has_others(subjects: Option<&[Subject]>, request: &Request) -> bool {
    subjects.unwrap_or_default().iter().any(|subject| !is_ours(subject, request))
}

/// An object could not be read.
#[derive(Debug, thiserror::Error)]
#[error("failed to read {what} on Harvester{}", runtime::error::nothing_there(.source))]
pub struct ObserveError {
    what: String,
    source: kube::Error,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tokens_of_other_accounts_and_those_on_their_way_out_do_not_count_and_the_newest_is_last() {
        let secret = |name: &str, account: &str, created: &str, leaving: bool| -> Secret {
            let mut metadata = json!({"name": name, "creationTimestamp": created,
                "annotations": {ACCOUNT_ANNOTATION: account}});
            if leaving {
                metadata["deletionTimestamp"] = json!(created);
            }
            serde_json::from_value(json!({"metadata": metadata, "type": TOKEN_TYPE})).unwrap()
        };
        let secrets = [
            secret("demo-token-2", "demo", "2026-02-01T00:00:00Z", false),
            secret("other-token", "other", "2026-03-01T00:00:00Z", false),
            secret("demo-token", "demo", "2026-01-01T00:00:00Z", false),
            secret("demo-token-3", "demo", "2026-04-01T00:00:00Z", true),
        ];
        let names: Vec<String> = token_views(&secrets, "demo").into_iter().map(|token| token.name).collect();
        assert_eq!(names, ["demo-token", "demo-token-2"]);
    }
}
