//! Every request about machines that we send besides the watches: guest agents, and the proof that a VM is gone.

use std::collections::BTreeSet;
use std::fmt;

use harvester_api::virtual_machine::VirtualMachine;
use harvester_api::virtual_machine_instance::GuestOsInfo;
use kube::Client;
use kube::api::{Api, ListParams};
use kube::core::Request;

use super::lookup::Live;

/// Sends the requests.
#[derive(Clone)]
pub struct Requests {
    client: Client,
    namespace: String,
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Requests {
    /// For machines in `namespace` of Harvester.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned() }
    }

    /// Host name that the guest agent of a VMI reports.
    pub async fn hostname(&self, vmi: &str) -> Result<String, kube::Error> {
        let collection = Request::new(GuestOsInfo::collection_path(&self.namespace));
        let request = collection.get_subresource(GuestOsInfo::SUBRESOURCE, vmi).map_err(kube::Error::BuildRequest)?;
        Ok(self.client.request::<GuestOsInfo>(request).await?.hostname)
    }

    /// Asks the API itself about a VM that the cache does not have. `others`: UIDs of the machines of other Nodes.
    pub async fn prove(&self, name: &str, uid: &str, others: &BTreeSet<String>) -> Live {
        let vms: Api<VirtualMachine> = Api::namespaced(self.client.clone(), &self.namespace);
        match vms.get_metadata(name).await {
            Ok(vm) => Live::Named(vm.metadata.uid.unwrap_or_default()),
            Err(error) if is_not_found(&error, name) => {
                let listed = vms.list_metadata(&ListParams::default()).await;
                let uids: Option<Vec<String>> =
                    listed.ok().map(|vms| vms.items.into_iter().filter_map(|vm| vm.metadata.uid).collect());
                Live::NotFound {
                    uid_listed: uids.as_ref().map(|uids| uids.iter().any(|listed| listed == uid)),
                    canary: uids.iter().flatten().any(|listed| others.contains(listed)),
                }
            }
            Err(error) => Live::Failed(runtime::error::chain(&error)),
        }
    }
}

/// A Status of the API server for this very VM. A 404 of a proxy, or of an API server that has no VMs, is none: it names nothing.
fn is_not_found(error: &kube::Error, name: &str) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let named = status.details.as_ref().is_some_and(|details| details.name == name);
    status.code == 404 && status.reason == "NotFound" && named
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
                json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "x", "uid": uid}})
            })
            .collect();
        (
            200,
            json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": items}),
        )
    }

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
