//! Performs the steps. All requests that change anything on Harvester are here.

use std::collections::BTreeMap;
use std::time::Duration;

use harvester_api::keys::harvester::CLOUD_PROVIDER_ROLE;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use runtime::error::api_code;
use serde_json::{Value, json};

use crate::request::Request;
use crate::step::Step;
use crate::view::{ACCOUNT_ANNOTATION, MANAGED_BY, ObjectVersion, TOKEN_TYPE, binding_name};

/// Time for the token controller to fill a Secret; it usually needs milliseconds.
const TOKEN_LIMIT: Duration = Duration::from_secs(30);

/// A token, and the certificate authority of the API server that issued it.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Bearer token.
    pub token: String,
    /// Certificate authority, PEM.
    pub ca_pem: String,
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// A request was refused or failed.
    #[error("failed to {verb} {kind} {name} on Harvester")]
    Request {
        /// The operation.
        verb: &'static str,
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
        /// Cause.
        source: kube::Error,
    },
    /// Somebody else was there between our look and our step; what is there now has to be looked at anew.
    #[error(
        "failed to {verb} {kind} {name} on Harvester: another client has changed it meanwhile; run the command \
    again"
    )]
    Changed {
        /// The operation.
        verb: &'static str,
        /// Kind of the object.
        kind: &'static str,
        /// Its name.
        name: String,
        /// Cause.
        source: Box<kube::Error>,
    },
    /// The Secret could not be watched.
    #[error("failed to wait for the token in Secret {name}")]
    Wait {
        /// Namespace and name.
        name: String,
        /// Cause.
        source: kube::runtime::wait::Error,
    },
    /// The token controller did not fill the Secret.
    #[error("Secret {name} got no token within {} s: does Harvester's kube-controller-manager run, and does the \
        service account exist?", TOKEN_LIMIT.as_secs())]
    NoToken {
        /// Namespace and name.
        name: String,
    },
}

/// Performs one step, unless the object has changed since the plan. If an object to delete is already gone, the step
/// succeeds.
pub async fn perform(client: &Client, request: &Request, step: &Step) -> Result<(), ApplyError> {
    let namespace = request.namespace.as_str();
    let account = request.service_account.as_str();
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
    let wide_bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    let post = PostParams::default();
    let result = match step {
        Step::CreateAccount => {
            let document = json!({"metadata": {"name": account, "labels": labels()}});
            accounts.create(&post, &typed(document)).await.map(drop)
        }
        Step::CreateBinding => bindings.create(&post, &typed(binding(request))).await.map(drop),
        Step::UpdateBinding { others, version } => {
            // If the array exists, an `add` of the whole array would replace it; if it does not exist, nothing can be
            // appended.
            let add = if *others {
                json!({"op": "add", "path": "/subjects/-", "value": subject(request)})
            } else {
                json!({"op": "add", "path": "/subjects", "value": [subject(request)]})
            };
            // A failed `test` leads to 422, like other errors; a changed resourceVersion leads to 409, which is
            // recognised as a conflict.
            let seen = json!({"op": "replace", "path": "/metadata/resourceVersion", "value": version.resource_version});
            let patch = json!([seen, add]);
            let patch = Patch::<Value>::Json(typed(patch));
            bindings.patch(&binding_name(request), &PatchParams::default(), &patch).await.map(drop)
        }
        Step::CreateToken(name) => match accounts.get(account).await {
            Ok(found) => {
                let uid = found.metadata.uid.unwrap_or_default();
                secrets.create(&post, &typed(token_secret(request, name, &uid))).await.map(drop)
            }
            Err(error) => Err(error),
        },
        Step::DeleteToken(name, seen) => secrets.delete(name, &only(seen)).await.map(drop),
        Step::DeleteBinding(name, seen) => bindings.delete(name, &only(seen)).await.map(drop),
        Step::DeleteWideBinding(name, seen) => wide_bindings.delete(name, &only(seen)).await.map(drop),
        Step::DeleteAccount(seen) => accounts.delete(account, &only(seen)).await.map(drop),
    };
    let (verb, kind, name) = step.describe(request);
    match result {
        Err(error) if (verb, api_code(&error)) == ("delete", Some(404)) => Ok(()),
        // The object, or the one that it belongs to, was created, changed or deleted since the observation.
        Err(source) if matches!(api_code(&source), Some(404 | 409)) => {
            Err(ApplyError::Changed { verb, kind, name, source: Box::new(source) })
        }
        Err(source) => Err(ApplyError::Request { verb, kind, name, source }),
        Ok(()) => Ok(()),
    }
}

/// Preconditions that restrict the deletion to the observed version of the object.
fn only(seen: &ObjectVersion) -> DeleteParams {
    let preconditions =
        Preconditions { uid: Some(seen.uid.clone()), resource_version: Some(seen.resource_version.clone()) };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }
}

/// Waits for the token controller and returns the token of a Secret.
pub async fn credentials(client: &Client, request: &Request, secret: &str) -> Result<Credentials, ApplyError> {
    let name = format!("{}/{secret}", request.namespace);
    let api: Api<Secret> = Api::namespaced(client.clone(), &request.namespace);
    let filled = await_condition(api, secret, |found: Option<&Secret>| found.and_then(content).is_some());
    match tokio::time::timeout(TOKEN_LIMIT, filled).await {
        Ok(Ok(found)) => found.as_ref().and_then(content).ok_or(ApplyError::NoToken { name }),
        Ok(Err(source)) => Err(ApplyError::Wait { name, source }),
        Err(_) => Err(ApplyError::NoToken { name }),
    }
}

fn content(secret: &Secret) -> Option<Credentials> {
    let text = |key: &str| {
        let ByteString(bytes) = secret.data.as_ref()?.get(key)?;
        String::from_utf8(bytes.clone()).ok().filter(|text| !text.is_empty())
    };
    Some(Credentials { token: text("token")?, ca_pem: text("ca.crt")? })
}

fn labels() -> BTreeMap<&'static str, &'static str> {
    BTreeMap::from([MANAGED_BY])
}

fn subject(request: &Request) -> Value {
    json!({"kind": "ServiceAccount", "name": request.service_account, "namespace": request.namespace})
}

fn binding(request: &Request) -> Value {
    json!({
        "metadata": {"name": binding_name(request), "labels": labels()},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": CLOUD_PROVIDER_ROLE},
        "subjects": [subject(request)],
    })
}

fn token_secret(request: &Request, name: &str, account_uid: &str) -> Value {
    json!({
        "metadata": {
            "name": name,
            "labels": labels(),
            // With the uid, a later account of the same name does not inherit the token.
            "annotations": {ACCOUNT_ANNOTATION: request.service_account,
                "kubernetes.io/service-account.uid": account_uid},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "ServiceAccount", "name": request.service_account, "uid": account_uid}
            ],
        },
        "type": TOKEN_TYPE,
    })
}

fn typed<T: serde::de::DeserializeOwned>(document: Value) -> T {
    serde_json::from_value(document).expect("the document is written here, with the members of its kind")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::tests::request;
    use runtime::scenario::Scenario;

    async fn perform_against(
        code: u16,
        step: &Step,
    ) -> (Result<(), ApplyError>, Vec<runtime::scenario::ReceivedRequest>) {
        let scenario = Scenario::answering(move |seen| match seen.method.as_str() {
            "GET" => (200, json!({"metadata": {"name": "demo", "uid": "u-1"}})),
            _ if code >= 400 => (code, Scenario::status(code, "Reason", "no")),
            "DELETE" => (200, json!({"kind": "Status", "status": "Success"})),
            "PATCH" => (code, binding(&request())),
            _ => (code, seen.body.clone()),
        });
        let result = perform(&scenario.client(), &request(), step).await;
        (result, scenario.writes())
    }

    #[tokio::test]
    async fn the_rights_are_bound_in_the_namespace_of_the_machines_and_nowhere_else() {
        let (result, writes) = perform_against(201, &Step::CreateBinding).await;
        result.unwrap();
        assert_eq!(writes[0].path, "/apis/rbac.authorization.k8s.io/v1/namespaces/guests/rolebindings");
        assert_eq!(writes[0].body["metadata"]["name"], "guests-demo");
        assert_eq!(writes[0].body["roleRef"]["name"], "harvesterhci.io:cloudprovider");
        assert_eq!(writes[0].body["subjects"][0]["namespace"], "guests");
    }

    #[tokio::test]
    async fn a_token_belongs_to_its_account_and_goes_with_it() {
        let (result, writes) = perform_against(201, &Step::CreateToken("demo-token".into())).await;
        result.unwrap();
        assert_eq!(writes[0].body["type"], TOKEN_TYPE);
        assert_eq!(writes[0].body["metadata"]["ownerReferences"][0]["uid"], "u-1");
        assert_eq!(writes[0].body["metadata"]["annotations"]["kubernetes.io/service-account.uid"], "u-1");
    }

    fn seen() -> ObjectVersion {
        ObjectVersion { uid: "u-1".into(), resource_version: "7".into() }
    }

    #[tokio::test]
    async fn what_is_gone_already_is_deleted_and_a_refusal_names_the_object() {
        assert!(perform_against(404, &Step::DeleteToken("demo-token".into(), seen())).await.0.is_ok());
        let error = perform_against(403, &Step::CreateBinding).await.0.unwrap_err();
        assert_eq!(error.to_string(), "failed to create RoleBinding guests/guests-demo on Harvester");
    }

    #[tokio::test]
    async fn what_was_made_changed_or_replaced_meanwhile_is_not_taken_for_done() {
        for step in [
            Step::CreateAccount,
            Step::CreateBinding,
            Step::CreateToken("demo-token".into()),
            Step::UpdateBinding { others: true, version: seen() },
            Step::DeleteToken("demo-token".into(), seen()),
            Step::DeleteAccount(seen()),
        ] {
            let error = perform_against(409, &step).await.0.unwrap_err();
            assert!(matches!(error, ApplyError::Changed { .. }), "{step:?}: {error}");
        }
        let gone = perform_against(404, &Step::UpdateBinding { others: false, version: seen() }).await.0.unwrap_err();
        assert!(matches!(gone, ApplyError::Changed { .. }), "{gone}");
    }

    #[tokio::test]
    async fn only_the_object_that_was_seen_is_deleted() {
        for step in [
            Step::DeleteToken("demo-token".into(), seen()),
            Step::DeleteBinding("guests-demo".into(), seen()),
            Step::DeleteWideBinding("demo".into(), seen()),
            Step::DeleteAccount(seen()),
        ] {
            let (result, writes) = perform_against(200, &step).await;
            result.unwrap();
            assert_eq!(writes[0].body["preconditions"], json!({"uid": "u-1", "resourceVersion": "7"}), "{step:?}");
        }
    }

    #[tokio::test]
    async fn an_account_that_is_added_to_a_binding_takes_nobodys_place() {
        let ours = json!({"kind": "ServiceAccount", "name": "demo", "namespace": "guests"});
        for (others, path, value) in [(true, "/subjects/-", ours.clone()), (false, "/subjects", json!([ours]))] {
            let (result, writes) = perform_against(200, &Step::UpdateBinding { others, version: seen() }).await;
            result.unwrap();
            let version = json!({"op": "replace", "path": "/metadata/resourceVersion", "value": "7"});
            assert_eq!(writes[0].body, json!([version, {"op": "add", "path": path, "value": value}]));
        }
    }
}
