//! Handles temporary refusals (403). For a moment after its start, an API server refuses allowed requests, because it
//! has not read roles and bindings yet. Announcers and controllers start at the same moment when a whole cluster is
//! switched on.

use std::error::Error;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::api_code;

/// A refusal that lasts longer is meant. An API server on an idle machine needs one to two seconds.
pub const STARTING: Duration = Duration::from_secs(10);

const PAUSE: Duration = Duration::from_millis(500);

/// Repeats a request while it is refused, for up to [`STARTING`]; returns the last answer. Has to be used wherever a
/// missing right has permanent consequences.
pub async fn settled<T, E, F>(mut ask: impl FnMut() -> F) -> Result<T, E>
where
    E: Error + 'static,
    F: Future<Output = Result<T, E>>,
{
    let begin = Instant::now();
    loop {
        match ask().await {
            Err(error) if api_code(&error) == Some(403) && begin.elapsed() < STARTING => sleep(PAUSE).await,
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use serde_json::json;

    use super::*;
    use crate::scenario::Scenario;

    async fn asked(refused_for: Duration) -> (Result<ConfigMap, kube::Error>, Duration) {
        let begin = Instant::now();
        let scenario = Scenario::answering(move |_| {
            if begin.elapsed() < refused_for {
                (403, Scenario::status(403, "Forbidden", "cannot get"))
            } else {
                (200, json!({"metadata": {"name": "a"}}))
            }
        });
        let api = Api::<ConfigMap>::namespaced(scenario.client(), "x");
        (settled(|| api.get("a")).await, begin.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_of_a_server_that_has_just_started_is_waited_out() {
        let (answer, took) = asked(Duration::from_secs(2)).await;
        assert!(answer.is_ok() && took < Duration::from_secs(3), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_that_lasts_is_believed() {
        let (answer, took) = asked(Duration::from_hours(1)).await;
        assert_eq!(api_code(&answer.unwrap_err()), Some(403));
        assert!((STARTING..STARTING * 2).contains(&took), "{took:?}");
    }
}
