//! What was asked of an API server, by whom: its audit log.

use std::io::{Read, Seek, SeekFrom};
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

/// The policy: every request once, without its body.
pub(crate) const POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy",
    "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}"#;

/// How many API servers a cluster has at most.
const SERVERS: usize = 3;

/// The audit log of a cluster's API servers.
#[derive(Debug, Clone)]
pub struct AuditLog {
    paths: Vec<PathBuf>,
}

/// A place in the log: everything up to it is past.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AuditMark([u64; SERVERS]);

/// One request. A watch counts when it begins, everything else when it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// `system:serviceaccount:kube-system:...` for pods.
    pub user: String,
    /// The first word of the user agent tells programs of one user apart.
    pub user_agent: String,
    /// Where it came from: tells replicas of one user apart.
    pub source: Option<IpAddr>,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// Plural, with subresource: `services/status`; empty for paths such as `/healthz`.
    pub resource: String,
    /// Namespace of the object, if any.
    pub namespace: Option<String>,
    /// Name of the object, if known.
    pub name: Option<String>,
    /// HTTP status.
    pub code: u16,
    /// Path and query.
    pub uri: String,
    /// When it arrived.
    pub at: Option<Timestamp>,
}

impl Request {
    /// True for requests that change something, or try to. Reviews are created, but change nothing.
    pub fn is_write(&self) -> bool {
        let reads = matches!(self.verb.as_str(), "get" | "list" | "watch" | "head" | "options");
        !reads && !self.resource.ends_with("reviews")
    }

    /// Whether it is about an Event or a Lease, which processes write all the time.
    pub fn is_bookkeeping(&self) -> bool {
        matches!(self.resource.as_str(), "events" | "leases")
    }
}

/// The user name by which an API server knows a ServiceAccount.
pub fn service_account_user(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

impl AuditLog {
    /// One file for each API server, at most [`SERVERS`].
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        assert!(paths.len() <= SERVERS, "a mark has {SERVERS} places: {paths:?}");
        Self { paths }
    }

    /// Now.
    pub fn mark(&self) -> AuditMark {
        let mut places = [0; SERVERS];
        for (place, path) in places.iter_mut().zip(&self.paths) {
            *place = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        }
        AuditMark(places)
    }

    /// All requests since `mark`; from the beginning with `AuditMark::default()`. Those of one server are in its order.
    pub fn since(&self, mark: AuditMark) -> Result<Vec<Request>> {
        let mut requests = Vec::new();
        for (place, path) in mark.0.iter().zip(&self.paths) {
            let failed = || format!("failed to read the audit log {}", path.display());
            let mut file = std::fs::File::open(path).with_context(failed)?;
            file.seek(SeekFrom::Start(*place)).with_context(failed)?;
            let mut text = String::new();
            file.read_to_string(&mut text).with_context(failed)?;
            requests.extend(text.lines().filter_map(parse));
        }
        if self.paths.len() > 1 {
            requests.sort_by_key(|request| request.at);
        }
        Ok(requests)
    }

    /// Requests since `mark` that change something, of users whose name ends with `user`; Events and Leases left out.
    pub fn writes_by(&self, mark: AuditMark, user: &str) -> Result<Vec<Request>> {
        let mut requests = self.since(mark)?;
        requests.retain(|request| request.is_write() && !request.is_bookkeeping() && request.user.ends_with(user));
        Ok(requests)
    }
}

/// One line; `None` for a line that is not complete yet and for the end of a watch.
fn parse(line: &str) -> Option<Request> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Line {
        stage: String,
        #[serde(rename = "requestURI")]
        request_uri: String,
        request_received_timestamp: Option<Timestamp>,
        verb: String,
        user: User,
        #[serde(default)]
        user_agent: String,
        #[serde(default, rename = "sourceIPs")]
        source_ips: Vec<IpAddr>,
        object_ref: Option<Object>,
        response_status: Option<Status>,
    }
    #[derive(Deserialize)]
    struct User {
        #[serde(default)]
        username: String,
    }
    #[derive(Deserialize)]
    struct Object {
        #[serde(default)]
        resource: String,
        subresource: Option<String>,
        namespace: Option<String>,
        name: Option<String>,
    }
    #[derive(Deserialize)]
    struct Status {
        #[serde(default)]
        code: u16,
    }
    let line: Line = serde_json::from_str(line).ok()?;
    let counted = if line.verb == "watch" { "ResponseStarted" } else { "ResponseComplete" };
    // A watch that is refused never starts.
    let refused = line.verb == "watch" && line.response_status.as_ref().is_some_and(|status| status.code >= 400);
    if line.stage != counted && !(refused && line.stage == "ResponseComplete") {
        return None;
    }
    let (resource, namespace, name) = line.object_ref.map_or_else(Default::default, |object| {
        let resource = match object.subresource {
            Some(subresource) => format!("{}/{subresource}", object.resource),
            None => object.resource,
        };
        (resource, object.namespace, object.name)
    });
    Some(Request {
        user: line.user.username,
        user_agent: line.user_agent,
        source: line.source_ips.first().copied(),
        verb: line.verb,
        resource,
        namespace,
        name,
        code: line.response_status.map_or(0, |status| status.code),
        uri: line.request_uri,
        at: line.request_received_timestamp,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_write_is_a_write_and_a_watch_counts_once() {
        let line = concat!(
            r#"{"kind":"Event","stage":"ResponseComplete","#,
            r#""requestURI":"/api/v1/namespaces/default/services/web/status","verb":"patch","#,
            r#""user":{"username":"system:serviceaccount:kube-system:announcer"},"#,
            r#""userAgent":"announcer/1","sourceIPs":["10.99.1.1"],"#,
            r#""objectRef":{"resource":"services","namespace":"default","name":"web","subresource":"status"},"#,
            r#""responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-02T03:04:05.678901Z","#,
            r#""stageTimestamp":"2026-01-02T03:04:06.000000Z"}"#
        );
        let request = parse(line).unwrap();
        assert_eq!(request.resource, "services/status");
        assert_eq!(request.code, 200);
        assert_eq!(request.at, Some("2026-01-02T03:04:05.678901Z".parse().unwrap()));
        assert_eq!(request.source, Some([10, 99, 1, 1].into()));
        assert!(request.is_write() && !request.is_bookkeeping());

        let watch = |stage: &str| {
            format!(
                r#"{{"stage":"{stage}","requestURI":"/api/v1/nodes?watch=true","verb":"watch",
                "user":{{"username":"u"}},"objectRef":{{"resource":"nodes"}},"responseStatus":{{"code":200}}}}"#
            )
        };
        assert!(parse(&watch("ResponseStarted")).is_some_and(|request| !request.is_write()));
        assert_eq!(parse(&watch("ResponseComplete")), None);
        assert_eq!(parse("{\"stage\":"), None);
    }

    #[test]
    fn a_review_is_created_and_is_no_write() {
        for (resource, is_write) in [("services", true), ("tokenreviews", false), ("selfsubjectaccessreviews", false)] {
            let line = format!(
                r#"{{"stage":"ResponseComplete","requestURI":"/","verb":"create","user":{{"username":"u"}},
                "objectRef":{{"resource":"{resource}"}}}}"#
            );
            assert_eq!(parse(&line).unwrap().is_write(), is_write, "{resource}");
        }
    }
}
