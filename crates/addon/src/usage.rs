//! Detects which tokens are still in use. An API server writes the date of use to the Secret of a token. If the date is
//! removed, the next request with the token writes it again. So the host itself shows whether the guest's leader has
//! the new token, whatever the guest's replicas report.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::Instant;

/// Label in which the API server writes the date (since Kubernetes 1.26).
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
/// Interval of the checks.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Time for the proof. The watches of a cloud provider end and restart within five minutes, each time with the current
/// token.
pub const USUAL_WINDOW: Duration = Duration::from_secs(330);

/// Why the older tokens are kept.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// An older token is still in use, so its user would be locked out.
    #[error(
        "the older token of Secret {secret} is still in use: some replica of the guest's cloud provider has not \
         read the new cloud-config. Put the new one into the Secret or file that the provider reads (see \
         --secret-name), wait for Event CloudConfigReloaded of each replica, and try again"
    )]
    OldInUse {
        /// Namespace and name.
        secret: String,
    },
    /// The newest token was not used.
    #[error(
        "within {} s Harvester saw no request with the newest token, which is in Secret {secret}: the leading cloud \
        provider of the guest does not use it, or does not run. --watch-tokens-for waits for longer, --skip-checks \
        leaves this check out (a Harvester before Kubernetes 1.26 does not say which token a request carries)",
             window.as_secs()
    )]
    NewUnused {
        /// Namespace and name.
        secret: String,
        /// How long the tokens were watched.
        window: Duration,
    },
    /// The Secrets cannot be read or written.
    #[error("failed to {verb} Secret {secret} on Harvester")]
    Request {
        /// The operation.
        verb: &'static str,
        /// Namespace and name.
        secret: String,
        /// Cause.
        source: kube::Error,
    },
}

/// Watches for `window` which of these Secrets' tokens are used. `Ok`: the newest one is, and no other.
pub async fn prove(
    client: &Client,
    namespace: &str,
    newest: &str,
    old: &[&str],
    window: Duration,
) -> Result<(), UsageError> {
    let secrets = Secrets { api: Api::namespaced(client.clone(), namespace), namespace };
    for name in old.iter().chain([&newest]) {
        secrets.forget_use(name).await?;
    }
    let end = Instant::now() + window;
    let mut seen = false;
    loop {
        tokio::time::sleep_until(end.min(Instant::now() + LOOK_EVERY)).await;
        for name in old {
            if secrets.is_used(name).await? {
                return Err(UsageError::OldInUse { secret: secrets.full(name) });
            }
        }
        seen = seen || secrets.is_used(newest).await?;
        if Instant::now() >= end {
            let unused = UsageError::NewUnused { secret: secrets.full(newest), window };
            return if seen { Ok(()) } else { Err(unused) };
        }
    }
}

struct Secrets<'a> {
    api: Api<Secret>,
    namespace: &'a str,
}

impl Secrets<'_> {
    fn full(&self, name: &str) -> String {
        format!("{}/{name}", self.namespace)
    }

    async fn forget_use(&self, name: &str) -> Result<(), UsageError> {
        let patch = Patch::Merge(json!({"metadata": {"labels": {LAST_USED: null}}}));
        let answer = self.api.patch_metadata(name, &PatchParams::default(), &patch).await;
        answer.map(drop).map_err(|source| UsageError::Request { verb: "patch", secret: self.full(name), source })
    }

    async fn is_used(&self, name: &str) -> Result<bool, UsageError> {
        let found = self.api.get_metadata(name).await;
        let found = found.map_err(|source| UsageError::Request { verb: "read", secret: self.full(name), source })?;
        Ok(found.labels().contains_key(LAST_USED))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use runtime::scenario::Scenario;

    use super::*;

    /// Of the Secrets `new` and `old`, those of `used` are dated again at the third look.
    async fn watched(used: &'static [&'static str]) -> (Result<(), UsageError>, Duration, Vec<String>) {
        let looks = Arc::new(AtomicU32::new(0));
        let server = Scenario::answering(move |seen| {
            let name = seen.path.rsplit('/').next().unwrap_or_default().to_owned();
            let look = if seen.method == "GET" { looks.fetch_add(1, Ordering::Relaxed) } else { 0 };
            let labels =
                if look >= 4 && used.contains(&name.as_str()) { json!({LAST_USED: "2026-01-01"}) } else { json!({}) };
            (
                200,
                json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                    "metadata": {"name": name, "labels": labels}}),
            )
        });
        let start = Instant::now();
        let result = prove(&server.client(), "guests", "new", &["old"], USUAL_WINDOW).await;
        let patched = server.writes().iter().map(|seen| format!("{} {}", seen.method, seen.path)).collect();
        (result, start.elapsed(), patched)
    }

    #[tokio::test(start_paused = true)]
    async fn older_tokens_go_only_after_the_new_one_alone_has_asked_for_as_long_as_a_watch_lasts() {
        let (result, took, patched) = watched(&["new"]).await;
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(took, USUAL_WINDOW);
        let path = "PATCH /api/v1/namespaces/guests/secrets/";
        assert_eq!(patched, [format!("{path}old"), format!("{path}new")]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_older_token_that_asks_once_more_stays_and_is_named() {
        for used in [&["old"][..], &["old", "new"]] {
            let (result, took, _) = watched(used).await;
            let error = result.unwrap_err();
            assert!(matches!(&error, UsageError::OldInUse { secret } if secret == "guests/old"), "{error}");
            assert!(took < Duration::from_secs(30), "it is told at once: {took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_no_proof() {
        let error = watched(&[]).await.0.unwrap_err();
        assert!(matches!(error, UsageError::NewUnused { .. }), "{error}");
    }
}
