//! Sends all requests about pods and endpoints of a lost node.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::config_maps::host_upgrade::STATUS;
use contract::config_maps::record::{PAUSED, SAFE_MODE};
use contract::config_maps::{HOST_UPGRADE, NAMESPACE, RECORD};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use runtime::error::{api_code, is_absent, is_conflict};
use serde_json::Value;

use super::plan::{Plan, PodView, SliceView, Tenants};

/// Number of concurrent requests.
const PARALLEL: usize = 16;
/// Time-out; an API server that takes longer may itself be affected.
const PATIENCE: Duration = Duration::from_secs(2);

/// The outcome of a plan.
#[derive(Debug, Default)]
pub struct Done {
    /// UIDs of pods whose status was written, as confirmed by the API server.
    pub pods: Vec<String>,
    /// Number of objects that were written by others meanwhile, and have to be read again.
    pub conflicts: usize,
    /// Any other error.
    pub error: Option<kube::Error>,
}

/// Sends the requests.
#[derive(Clone)]
pub struct Requests {
    client: Client,
}

impl Requests {
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Whether pods and endpoints may be read. Asked once at the start, so that a missing right is reported before it
    /// is needed.
    pub async fn may_read(&self) -> Result<(), kube::Error> {
        let one = ListParams::default().limit(1);
        Api::<Pod>::all(self.client.clone()).list_metadata(&one).await?;
        Api::<EndpointSlice>::all(self.client.clone()).list_metadata(&one).await?;
        Ok(())
    }

    /// The reason in the record why nothing may be written now. A replica that does not lead has no other source for
    /// it. If the record does not exist or may not be read, nothing is forbidden.
    pub async fn held(&self) -> Result<Option<&'static str>, kube::Error> {
        let record = self.data(RECORD).await?;
        let is_paused = record.get(PAUSED).is_some_and(|paused| paused.trim() == "true");
        Ok(is_paused.then_some("the controller is paused").or(record.contains_key(SAFE_MODE).then_some(
            "the \
        controller is in safe mode",
        )))
    }

    /// Whether hosts are being upgraded, according to the leader's ConfigMap. The window in it closes with the end of
    /// the upgrade, even a failed one, and is marked as spent when it has lasted too long.
    pub async fn host_upgrade(&self) -> Result<bool, kube::Error> {
        let status = self.data(HOST_UPGRADE).await?.remove(STATUS).unwrap_or_default();
        let status: Value = serde_json::from_str(&status).unwrap_or_default();
        let window = &status["window"];
        // A window that only silence opened does not count: a host without power is silent too, and its node is lost.
        Ok(window["suspended"] == true && window["upgrade"] != false)
    }

    /// The data of a ConfigMap; empty if it does not exist or may not be read.
    async fn data(&self, name: &str) -> Result<BTreeMap<String, String>, kube::Error> {
        let api = Api::<ConfigMap>::namespaced(self.client.clone(), NAMESPACE);
        let found = tokio::time::timeout(PATIENCE, api.get(name)).await.unwrap_or_else(|_| Err(too_late()));
        match found {
            Ok(found) => Ok(found.data.unwrap_or_default()),
            Err(error) if matches!(api_code(&error), Some(403 | 404)) => Ok(BTreeMap::new()),
            Err(error) => Err(error),
        }
    }

    /// Reads the pods and endpoints on a node. `now`: the latest state from etcd; otherwise from the API server's watch
    /// cache, which is faster.
    pub async fn tenants(&self, node: &str, now: bool) -> Result<Tenants, kube::Error> {
        let params = || if now { ListParams::default() } else { ListParams::default().match_any() };
        let on_node = params().fields(&format!("spec.nodeName={node}"));
        let (pods, slices) = (Api::<Pod>::all(self.client.clone()), Api::<EndpointSlice>::all(self.client.clone()));
        let every = params();
        let both = async { tokio::try_join!(pods.list(&on_node), slices.list(&every)) };
        let (pods, slices) = tokio::time::timeout(PATIENCE, both).await.unwrap_or_else(|_| Err(too_late()))?;
        Ok(Tenants {
            pods: pods.items.iter().map(PodView::of).collect(),
            slices: slices.items.iter().filter_map(|slice| SliceView::of(slice, node)).collect(),
        })
    }

    /// Sends the changes. Pods come first: the endpoint controller, if it runs, draws the same conclusion from them.
    pub async fn perform(&self, plan: &Plan<'_>, ready: bool, why: &str) -> Done {
        let mut done = Done::default();
        let at = Timestamp::now().to_string();
        let pods: Vec<(PodView, Value)> =
            plan.pods.iter().map(|pod| ((*pod).clone(), pod.ready_patch(ready, why, &at))).collect();
        let writes = pods.into_iter().map(|(pod, patch)| {
            let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
            async move {
                let written = api.patch_status(&pod.name, &PatchParams::default(), &Patch::Strategic(patch)).await;
                (pod.uid, written.map(|_| ()))
            }
        });
        let mut writes = futures::stream::iter(writes).buffer_unordered(PARALLEL);
        while let Some((uid, written)) = writes.next().await {
            if done.note(written) {
                done.pods.push(uid);
            }
        }
        // Marked endpoints alone would have no effect: the endpoint controller derives them from the pods.
        if !ready && done.is_refused() {
            return done;
        }
        let slices: Vec<(String, String, Value)> = plan
            .slices
            .iter()
            .map(|(slice, endpoints)| (slice.namespace.clone(), slice.name.clone(), slice.patch(endpoints, ready)))
            .collect();
        let writes = slices.into_iter().map(|(namespace, name, patch)| {
            let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &namespace);
            async move {
                let patch = serde_json::from_value(patch).expect("made as a list of operations");
                api.patch(&name, &PatchParams::default(), &Patch::Json::<()>(patch)).await.map(|_| ())
            }
        });
        let mut writes = futures::stream::iter(writes).buffer_unordered(PARALLEL);
        while let Some(written) = writes.next().await {
            done.note(written);
        }
        done
    }
}

impl Done {
    fn is_refused(&self) -> bool {
        self.error.as_ref().and_then(|error| api_code(error)) == Some(403)
    }

    /// Records the result of one write. Returns true if it succeeded. An object that is gone needs no write.
    fn note(&mut self, written: Result<(), kube::Error>) -> bool {
        match written {
            Ok(()) => true,
            // 422: the test of a JSON patch has failed.
            Err(error) if is_conflict(&error) || api_code(&error) == Some(422) => {
                self.conflicts += 1;
                false
            }
            Err(error) if is_absent(&error) => false,
            Err(error) => {
                // A missing right takes precedence over other errors, because it does not go away by itself.
                if self.error.is_none() || api_code(&error) == Some(403) {
                    self.error = Some(error);
                }
                false
            }
        }
    }
}

fn too_late() -> kube::Error {
    kube::Error::Service(format!("no answer within {PATIENCE:?}").into())
}
