//! One pass over the pods of a Node that is drained. It runs beside the loop, because an eviction may take as long as
//! any request, for example if a webhook of the cluster does not answer.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use runtime::error::{chain, is_absent};

use super::super::requests::Requests;
use super::pods::{PodDrainAction, drain_action, key};

/// How many evictions of one Node are under way at a time.
const AT_ONCE: usize = 16;

/// What one pass has found and done. Pods are named as in [`key`].
#[derive(Debug, Default)]
pub struct DrainPass {
    /// Pods are terminating.
    pub ending: bool,
    /// Pods that were evicted.
    pub evicted: BTreeSet<String>,
    /// Pods whose eviction was refused, with the reason.
    pub refused: BTreeMap<String, String>,
    /// Pods that stay and stop with the machine.
    pub left: BTreeSet<String>,
}

/// Evicts the pods of this Node that may be evicted. `Err`: they could not be listed.
pub async fn pass(requests: Requests, node: String) -> Result<DrainPass, kube::Error> {
    let mut pods = requests.pods_on(&node).await?;
    // Pods in `kube-system` come last, this controller among them. When they are evicted, all other evictions have at
    // least begun.
    pods.sort_by_key(|pod| (pod.namespace().as_deref() == Some("kube-system"), key(pod)));
    let mut pass = DrainPass::default();
    let mut evictions = Vec::new();
    for pod in pods {
        match drain_action(&pod) {
            PodDrainAction::Belongs => {}
            PodDrainAction::Ending => pass.ending = true,
            PodDrainAction::LocalData | PodDrainAction::Unmanaged => {
                pass.left.insert(key(&pod));
            }
            PodDrainAction::Evicted => evictions.push(evict(requests.clone(), pod)),
        }
    }
    // Started in this order, and answered in any: one that hangs holds no other up.
    let mut answers = futures::stream::iter(evictions).buffer_unordered(AT_ONCE);
    while let Some((pod, answer)) = answers.next().await {
        match answer {
            Ok(()) => {
                pass.ending = true;
                pass.evicted.insert(pod);
            }
            Err(error) if is_absent(&error) => {}
            Err(error) => {
                pass.refused.insert(pod, chain(&error));
            }
        }
    }
    Ok(pass)
}

async fn evict(requests: Requests, pod: Pod) -> (String, Result<(), kube::Error>) {
    (key(&pod), requests.evict(&pod).await)
}
