//! Sends all requests about machines besides the watches: to guest agents, and for the proof that a VM is gone.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use harvester_api::virtual_machine::VirtualMachine;
use harvester_api::virtual_machine_instance::{GuestOsInfo, VirtualMachineInstance};
use kube::Client;
use kube::api::{Api, ListParams};
use kube::core::Request;
use runtime::error::{chain, is_absent};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::lookup::Live;
use super::view::{VmView, VmiView};

/// One list of all machines answers all queries within this time, because hundreds of machines may be removed at once.
/// A UID never returns, so a list proves that a machine is gone, whichever query it was made for.
const LIST_LASTS: Duration = Duration::from_secs(1);
/// Machines per page.
const PAGE: u32 = 500;

/// The UIDs of all machines; `None` if they could not be listed.
struct Listed {
    at: Instant,
    uids: Option<HashSet<String>>,
}

/// Sends the requests.
#[derive(Clone)]
pub struct Requests {
    client: Client,
    namespace: String,
    listed: Arc<Mutex<Option<Listed>>>,
}

impl Requests {
    /// Sends requests about machines in `namespace` on Harvester.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned(), listed: Arc::default() }
    }

    /// Host name that the guest agent of a VMI reports.
    pub async fn hostname(&self, vmi: &str) -> Result<String, kube::Error> {
        let collection = Request::new(GuestOsInfo::collection_path(&self.namespace));
        let request = collection.get_subresource(GuestOsInfo::SUBRESOURCE, vmi).map_err(kube::Error::BuildRequest)?;
        Ok(self.client.request::<GuestOsInfo>(request).await?.hostname)
    }

    /// Asks the API server about a VM that the cache does not contain. `others`: UIDs of the machines of other Nodes.
    pub async fn prove(&self, name: &str, uid: &str, others: &BTreeSet<String>) -> Live {
        let vms: Api<VirtualMachine> = Api::namespaced(self.client.clone(), &self.namespace);
        match vms.get_metadata(name).await {
            Ok(vm) => Live::Named(vm.metadata.uid.unwrap_or_default()),
            Err(error) if is_not_found(&error, name) => {
                let (uid_listed, canary) = self.is_listed(uid, others).await;
                Live::NotFound { uid_listed, canary }
            }
            Err(error) => Live::Failed(chain(&error)),
        }
    }

    /// Whether a machine has this UID, and whether any machine has one of `others`. Concurrent callers wait for the
    /// same list.
    async fn is_listed(&self, uid: &str, others: &BTreeSet<String>) -> (Option<bool>, bool) {
        let mut listed = self.listed.lock().await;
        let last = listed.take().filter(|listed| listed.at.elapsed() < LIST_LASTS);
        let last = if let Some(last) = last {
            last
        } else {
            let uids = self.uids().await.ok();
            Listed { at: Instant::now(), uids }
        };
        let found = last.uids.as_ref().map(|uids| uids.contains(uid));
        let canary = others.iter().any(|other| last.uids.as_ref().is_some_and(|uids| uids.contains(other)));
        *listed = Some(last);
        (found, canary)
    }

    async fn uids(&self) -> Result<HashSet<String>, kube::Error> {
        let vms: Api<VirtualMachine> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut uids = HashSet::new();
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let list = vms.list_metadata(&page).await?;
            uids.extend(list.items.into_iter().filter_map(|vm| vm.metadata.uid));
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok(uids),
            }
        }
    }

    /// Reads a machine and its instance from the API server; `None` if there is no machine of this name.
    pub async fn read(&self, name: &str) -> Result<Option<(VmView, Option<VmiView>)>, kube::Error> {
        let vms: Api<VirtualMachine> = Api::namespaced(self.client.clone(), &self.namespace);
        let Some(vm) = vms.get_opt(name).await? else { return Ok(None) };
        let vmis: Api<VirtualMachineInstance> = Api::namespaced(self.client.clone(), &self.namespace);
        let vmi = vmis.get_opt(name).await?;
        Ok(Some((VmView::from(&vm), vmi.as_ref().map(VmiView::from))))
    }
}

/// Whether the error is the API server's NotFound for this VM. A 404 of a proxy, or of an API server without VMs, does
/// not count: it does not name the VM.
fn is_not_found(error: &kube::Error, name: &str) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let named = status.details.as_ref().is_some_and(|details| details.name == name);
    is_absent(error) && named
}

#[cfg(test)]
mod tests {
    use runtime::scenario::Scenario;
    use serde_json::{Value, json};

    use super::*;

    fn not_found(details: &Value) -> Value {
        let mut status = Scenario::status(404, "NotFound", "virtualmachines.kubevirt.io \"a\" not found");
        status["details"] = details.clone();
        status
    }

    async fn prove(get: (u16, Value), list: (u16, Value)) -> Live {
        let server = Scenario::answering(move |request| {
            assert_eq!(request.method, "GET");
            if request.path.ends_with("/virtualmachines/a") { get.clone() } else { list.clone() }
        });
        Requests::new(server.client(), "guests").prove("a", "u", &["other".to_owned()].into()).await
    }

    fn list(uids: &[&str]) -> (u16, Value) {
        let items: Vec<Value> = uids
            .iter()
            .map(|uid| {
                json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                    "metadata": {"name": "x", "uid": uid}})
            })
            .collect();
        (
            200,
            json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {},
                "items": items}),
        )
    }

    /// H2.
    #[tokio::test]
    async fn only_a_status_about_that_very_vm_is_a_proof() {
        let named = json!({"name": "a", "group": "kubevirt.io", "kind": "virtualmachines"});
        let gone = prove((404, not_found(&named)), list(&["other"])).await;
        assert_eq!(gone, Live::NotFound { uid_listed: Some(false), canary: true });
        let elsewhere = prove((404, not_found(&named)), list(&["x"])).await;
        assert_eq!(elsewhere, Live::NotFound { uid_listed: Some(false), canary: false });
        let renamed = prove((404, not_found(&named)), list(&["other", "u"])).await;
        assert_eq!(renamed, Live::NotFound { uid_listed: Some(true), canary: true });
        let no_list = prove((404, not_found(&named)), (403, Scenario::status(403, "Forbidden", "no"))).await;
        assert_eq!(no_list, Live::NotFound { uid_listed: None, canary: false });

        for (code, body) in [
            (404, Value::String("404 page not found".into())),
            (404, not_found(&Value::Null)),
            (404, not_found(&json!({"name": "b"}))),
            (403, Scenario::status(403, "Forbidden", "no")),
            (503, Scenario::status(503, "ServiceUnavailable", "later")),
        ] {
            let live = prove((code, body.clone()), list(&[])).await;
            assert!(matches!(live, Live::Failed(_)), "{body}: {live:?}");
        }
    }

    /// Seen: 500 removed machines cost a thousand lists.
    #[tokio::test(start_paused = true)]
    async fn many_removed_machines_cost_one_list_in_pages() {
        let server = Scenario::answering(|request| {
            if !request.path.ends_with("/virtualmachines") {
                let name = request.path.rsplit('/').next().unwrap_or_default();
                return (404, not_found(&json!({ "name": name })));
            }
            let (_, mut page) = list(&["other"]);
            if !request.query.contains("continue=") {
                page["metadata"]["continue"] = json!("next");
            }
            (200, page)
        });
        let requests = Requests::new(server.client(), "guests");
        let lost: Vec<String> = (0..100).map(|n| format!("vm-{n}")).collect();
        let nobody = BTreeSet::new();
        let asked = lost.iter().map(|name| requests.prove(name, name, &nobody));
        let found = futures::future::join_all(asked).await;
        assert!(found.iter().all(|live| *live == Live::NotFound { uid_listed: Some(false), canary: false }));
        let lists = || server.requests().iter().filter(|seen| seen.path.ends_with("/virtualmachines")).count();
        assert_eq!(lists(), 2, "two pages of one list");
        tokio::time::advance(LIST_LASTS).await;
        requests.prove("vm-1", "vm-1", &nobody).await;
        assert_eq!(lists(), 4, "a later question gets a list of its own");
    }

    #[tokio::test]
    async fn a_guest_agent_is_asked_by_the_subresource() {
        let server = Scenario::answering(|_| (200, json!({"guestAgentVersion": "8", "hostname": "node-1", "os": {}})));
        let hostname = Requests::new(server.client(), "guests").hostname("vm-1").await.unwrap();
        assert_eq!(hostname, "node-1");
        assert_eq!(
            server.requests()[0].path,
            "/apis/subresources.kubevirt.io/v1/namespaces/guests/virtualmachineinstances/vm-1/guestosinfo"
        );
    }
}
