//! Decides which clients may read: all of them, or those that the cluster allows (TokenReview and SubjectAccessReview),
//! as with delegated authorisation in Kubernetes' own programs. A client certificate is accepted if the authority of
//! `--client-ca-file` signed it. The authority in the cluster's `extension-apiserver-authentication` ConfigMap is not
//! used; the Go provider ignores it too.

use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::StatusCode;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::Instant;

use super::subject::{Subject, subject};
use crate::error::{api_code, chain};

/// How long an answer of the cluster is cached (`--authentication-token-webhook-cache-ttl` and similar flags).
const KEEP: Duration = Duration::from_secs(10);

/// Limit of the cache, so that a scanner with random tokens cannot exhaust the memory.
const CAPACITY: usize = 1024;

/// The clients that may read.
#[derive(Debug)]
pub enum Access {
    /// All clients: for plain HTTP on a port that the operator has opened on purpose.
    Open,
    /// Clients that the cluster allows.
    Delegated(Box<Delegated>),
}

/// Cached answers with their time.
type Kept<K, V> = Mutex<HashMap<K, (Instant, V)>>;

/// Asks the cluster.
pub struct Delegated {
    client: Client,
    always_allow: Vec<String>,
    users: Kept<String, User>,
    verdicts: Kept<(User, String, String), bool>,
    forbidden_logged: AtomicBool,
}

impl std::fmt::Debug for Delegated {
    // The caches hold tokens: they must not end up in a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delegated").field("always_allow", &self.always_allow).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum User {
    Unknown,
    Known { name: String, uid: Option<String>, groups: Vec<String>, extra: BTreeMap<String, Vec<String>> },
}

/// The user of a client certificate, from its subject: the common name is the user, the organisations are the groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Certified {
    name: String,
    groups: Vec<String>,
}

impl Certified {
    /// Reads a verified certificate; `None` if it has no user.
    pub(super) fn of(certificate: &[u8]) -> Option<Self> {
        let Subject { name, mut groups } = subject(certificate)?;
        let name = name.filter(|name| !name.is_empty())?;
        groups.push("system:authenticated".to_owned());
        Some(Self { name, groups })
    }
}

/// The reason why a client may not read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) text: String,
}

impl Refusal {
    fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: format!("{}\n", text.into()) }
    }
}

impl Access {
    /// [`Access::Delegated`] with this client. All clients may read the paths in `always_allow`
    /// (`--authorization-always-allow-paths`); one that ends in `*` stands for all paths with that prefix.
    pub fn delegated(client: Client, always_allow: Vec<String>) -> Self {
        Self::Delegated(Box::new(Delegated::new(client, always_allow)))
    }

    pub(super) async fn check(
        &self,
        certified: Option<&Certified>,
        token: Option<&str>,
        path: &str,
        verb: &str,
    ) -> Result<(), Refusal> {
        let Self::Delegated(cluster) = self else { return Ok(()) };
        if cluster.always_allow.iter().any(|allowed| covers(allowed, path)) {
            return Ok(());
        }
        let user = cluster.who_asks(certified, token).await?;
        let User::Known { name, groups, .. } = &user else {
            return Err(Refusal::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized: the cluster does not know this bearer token",
            ));
        };
        if groups.iter().any(|group| group == "system:masters") {
            return Ok(());
        }
        let verdict = cluster.allowed(&user, path, verb).await;
        if verdict.map_err(|error| cluster.cannot_tell(&error, "subjectaccessreviews.authorization.k8s.io"))? {
            return Ok(());
        }
        Err(Refusal::new(StatusCode::FORBIDDEN, format!("forbidden: user {name:?} may not {verb} path {path:?}")))
    }
}

impl Delegated {
    fn new(client: Client, always_allow: Vec<String>) -> Self {
        Self {
            client,
            always_allow,
            users: Mutex::default(),
            verdicts: Mutex::default(),
            forbidden_logged: AtomicBool::new(false),
        }
    }

    async fn who_asks(&self, certified: Option<&Certified>, token: Option<&str>) -> Result<User, Refusal> {
        let (name, groups) = match (certified, token) {
            (Some(Certified { name, groups }), _) => (name.clone(), groups.clone()),
            (None, Some(token)) => {
                let user = self.user(token).await;
                return user.map_err(|error| self.cannot_tell(&error, "tokenreviews.authentication.k8s.io"));
            }
            (None, None) => ("system:anonymous".to_owned(), vec!["system:unauthenticated".to_owned()]),
        };
        Ok(User::Known { name, uid: None, groups, extra: BTreeMap::new() })
    }

    async fn user(&self, token: &str) -> Result<User, kube::Error> {
        if let Some(user) = kept(&self.users, &token.to_owned()) {
            return Ok(user);
        }
        let review = TokenReview {
            spec: TokenReviewSpec { token: Some(token.to_owned()), audiences: None },
            ..TokenReview::default()
        };
        let review = Api::<TokenReview>::all(self.client.clone()).create(&PostParams::default(), &review).await?;
        let status = review.status.unwrap_or_default();
        let user = match (status.authenticated, status.user) {
            (Some(true), Some(user)) => User::Known {
                name: user.username.unwrap_or_default(),
                uid: user.uid,
                groups: user.groups.unwrap_or_default(),
                // An authorizer may use it: for example the node that a token is bound to, or the scopes of an OIDC
                // token.
                extra: user.extra.unwrap_or_default(),
            },
            _ => User::Unknown,
        };
        keep(&self.users, token.to_owned(), user.clone());
        Ok(user)
    }

    async fn allowed(&self, user: &User, path: &str, verb: &str) -> Result<bool, kube::Error> {
        let key = (user.clone(), path.to_owned(), verb.to_owned());
        if let Some(allowed) = kept(&self.verdicts, &key) {
            return Ok(allowed);
        }
        let User::Known { name, uid, groups, extra } = user else { return Ok(false) };
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(name.clone()),
                uid: uid.clone(),
                groups: Some(groups.clone()),
                extra: (!extra.is_empty()).then(|| extra.clone()),
                non_resource_attributes: Some(NonResourceAttributes {
                    path: Some(path.to_owned()),
                    verb: Some(verb.to_owned()),
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let review =
            Api::<SubjectAccessReview>::all(self.client.clone()).create(&PostParams::default(), &review).await?;
        let allowed = review.status.is_some_and(|status| status.allowed);
        keep(&self.verdicts, key, allowed);
        Ok(allowed)
    }

    fn cannot_tell(&self, error: &kube::Error, resource: &str) -> Refusal {
        if api_code(error) != Some(403) {
            tracing::warn!(error = %chain(error), "the API server did not say which users may read the metrics");
            return Refusal::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("cannot ask the API server whether you may read this: {}", chain(error)),
            );
        }
        let text = format!(
            "forbidden: this program may not create {resource}, so it cannot find out whether you may read this; grant \
             it that right, or open the path with --authorization-always-allow-paths"
        );
        if !self.forbidden_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!("{text}");
        }
        Refusal::new(StatusCode::FORBIDDEN, text)
    }
}

fn covers(allowed: &str, path: &str) -> bool {
    match allowed.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => allowed == path,
    }
}

fn kept<K: std::hash::Hash + Eq, V: Clone>(kept: &Kept<K, V>, key: &K) -> Option<V> {
    let kept = kept.lock();
    kept.get(key).filter(|(since, _)| since.elapsed() < KEEP).map(|(_, value)| value.clone())
}

fn keep<K: std::hash::Hash + Eq, V>(kept: &Kept<K, V>, key: K, value: V) {
    let mut kept = kept.lock();
    kept.retain(|_, (since, _)| since.elapsed() < KEEP);
    if kept.len() < CAPACITY {
        kept.insert(key, (Instant::now(), value));
    }
}
