//! AdmissionReview on the wire. A refusal has the host's shape: code 500, `Internal error occurred: <text>`.
//! Harvester spec 5.1

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

/// The part of a review that we read.
#[derive(Debug, Deserialize)]
pub struct Review {
    /// What is to be decided.
    pub request: Request,
}

/// `request` of a review.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Goes back in the answer.
    pub uid: String,
    /// `CREATE`, `UPDATE` or `DELETE`.
    pub operation: String,
    /// Which kind.
    pub resource: Resource,
    /// Who asks.
    #[serde(default)]
    pub user_info: UserInfo,
    /// Nothing will be stored.
    #[serde(default)]
    pub dry_run: bool,
    /// The new object; null on DELETE.
    #[serde(default)]
    pub object: Value,
    /// The stored object; null on CREATE.
    #[serde(default)]
    pub old_object: Value,
}

/// `request.resource`, trimmed.
#[derive(Debug, Deserialize)]
pub struct Resource {
    /// Plural.
    pub resource: String,
}

/// `request.userInfo`, trimmed.
#[derive(Debug, Default, Deserialize)]
pub struct UserInfo {
    /// User name.
    #[serde(default)]
    pub username: String,
}

/// An answer that lets the request through, with a JSON patch if that is not empty.
pub fn allowed(uid: &str, patch: &[Value]) -> Value {
    let mut response = json!({"uid": uid, "allowed": true});
    if !patch.is_empty() {
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(STANDARD.encode(Value::from(patch.to_vec()).to_string()));
    }
    answer(&response)
}

/// A refusal.
pub fn refused(uid: &str, text: &str) -> Value {
    answer(&json!({
        "uid": uid,
        "allowed": false,
        "status": {"status": "Failure", "code": 500, "reason": "InternalError",
            "message": format!("Internal error occurred: {text}")}
    }))
}

fn answer(response: &Value) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_looks_like_an_internal_error() {
        let answer = refused("u", "create loadbalancer a/b failed: x");
        assert_eq!(answer["response"]["status"]["code"], 500);
        assert_eq!(
            answer["response"]["status"]["message"],
            "Internal error occurred: create loadbalancer a/b failed: x"
        );
        assert_eq!((&answer["response"]["uid"], &answer["response"]["allowed"]), (&json!("u"), &json!(false)));
    }

    #[test]
    fn a_patch_travels_as_base64_and_none_not_at_all() {
        let answer = allowed("u", &[json!({"op": "add"})]);
        let patch = STANDARD.decode(answer["response"]["patch"].as_str().unwrap()).unwrap();
        assert_eq!(patch, br#"[{"op":"add"}]"#);
        assert_eq!(allowed("u", &[])["response"].get("patch"), None);
    }
}
