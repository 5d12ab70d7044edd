//! Names from the cluster and from the kubeconfig file, for shell completion.

use std::ffi::OsStr;
use std::time::Duration;

use clap_complete::engine::CompletionCandidate;
use k8s_openapi::api::core::v1::{Namespace, Service};
use kube::api::ListParams;
use kube::config::Kubeconfig;
use kube::{Api, Client, ResourceExt};

/// Time-out for the API server, because a user waits for the completion.
const PATIENCE: Duration = Duration::from_millis(800);

/// Asks the cluster; `None` if it does not answer in time.
fn ask<T>(question: impl AsyncFnOnce(Client) -> Option<T>) -> Option<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(async {
        let question = async { question(Client::try_default().await.ok()?).await };
        tokio::time::timeout(PATIENCE, question).await.ok()?
    })
}

fn candidates(names: impl IntoIterator<Item = String>, begun: &OsStr) -> Vec<CompletionCandidate> {
    let begun = begun.to_string_lossy();
    names.into_iter().filter(|name| name.starts_with(begun.as_ref())).map(CompletionCandidate::new).collect()
}

/// Names of the Services of type LoadBalancer.
pub fn services(begun: &OsStr) -> Vec<CompletionCandidate> {
    let found = ask(async |client| Api::<Service>::all(client).list(&ListParams::default()).await.ok());
    let wanted =
        |service: &Service| service.spec.as_ref().is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer"));
    candidates(found.into_iter().flatten().filter(wanted).map(|service| service.name_any()), begun)
}

/// Names of namespaces.
pub fn namespaces(begun: &OsStr) -> Vec<CompletionCandidate> {
    let found = ask(async |client| Api::<Namespace>::all(client).list(&ListParams::default()).await.ok());
    candidates(found.into_iter().flatten().map(|namespace| namespace.name_any()), begun)
}

/// Names of contexts.
pub fn contexts(begun: &OsStr) -> Vec<CompletionCandidate> {
    candidates(Kubeconfig::read().into_iter().flat_map(|file| file.contexts).map(|context| context.name), begun)
}
