//! Sends all requests about load balancers.
//!
//! Harvester grants neither PATCH nor a status subresource. An object is changed by a GET, a modification, and a PUT
//! with the resourceVersion that was read (Harvester spec 8.2). Objects are handled as raw JSON, so that fields of a
//! newer host survive.
//!
//! [`Requests::create`] and [`Requests::delete`] are the only ways to create and delete an object. They do no pacing:
//! for an object with a pool address, the caller has asked the `Pacer` before (`provider/perform.rs`,
//! `garbage/collector.rs`).

use std::collections::BTreeSet;

use cloud_provider::managed_fields::find_other_writer;
use cloud_provider::view::{ServiceKey, ServiceView, Uid};
use harvester_api::load_balancer::LoadBalancer;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Client, Resource};
use runtime::error::{is_absent, is_conflict};
use serde_json::{Value, json};

use super::desired::{self, Change};
use super::service_patch::{Role, ServicePatch};
use super::view::LbView;
use crate::identity::record::{RecordError, Records};

/// Limit of attempts after conflicts: the host itself writes an object up to three times in its first second.
const ATTEMPTS: usize = 4;

/// A failed request; the text tells which. Texts that end in `, error` are exactly the Go provider's, because users
/// look for them in Events and logs; in the printed chain a colon and the cause follow.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// POST, GET before PUT, or PUT.
    #[error("create or update lb {lb} failed, error")]
    Write {
        /// `namespace/name`.
        lb: String,
        /// The answer.
        source: kube::Error,
    },
    /// GET.
    #[error("fail to get lb {lb}")]
    Read {
        /// `namespace/name`.
        lb: String,
        /// The answer.
        source: kube::Error,
    },
    /// DELETE.
    #[error("delete lb {lb} failed, error")]
    Delete {
        /// `namespace/name`.
        lb: String,
        /// The answer.
        source: kube::Error,
    },
    /// PATCH of the Service.
    #[error("failed to update {role} service {service} with ip {address}")]
    Patch {
        /// Role of the Service.
        role: Role,
        /// The Service.
        service: ServiceKey,
        /// The address that was to be published.
        address: String,
        /// The answer.
        source: kube::Error,
    },
    /// GET of a Service.
    #[error("failed to get service {service}")]
    Service {
        /// The Service.
        service: ServiceKey,
        /// The answer.
        source: kube::Error,
    },
    /// JSON, and no LoadBalancer. The source says what was found and what would be accepted.
    #[error("the answer for load balancer {lb} is not a LoadBalancer: {field} cannot be read")]
    Malformed {
        /// `namespace/name`.
        lb: String,
        /// The field that cannot be read.
        field: String,
        /// Why it cannot be read.
        source: serde_json::Error,
    },
}

/// The outcome of a POST.
#[derive(Debug)]
pub enum Created {
    /// The object was created.
    New(Box<LbView>),
    /// An object of this name existed before; nothing was changed.
    AlreadyExists,
}

/// The outcome of a change.
#[derive(Debug)]
pub enum Updated {
    /// The object was written; this is its new state.
    Written(LbView),
    /// The object already was as wanted.
    Unchanged(LbView),
    /// The object is gone, is being deleted, or is another one of the same name: the caller has to decide anew.
    Different(Option<LbView>),
}

/// The outcome of a DELETE.
#[derive(Debug)]
pub enum Deleted {
    /// The object still exists, because the host releases the address first.
    Terminating(Box<LbView>),
    /// Accepted; the watch delivers what follows.
    Accepted,
    /// The object does not exist (any more).
    Gone,
}

/// Sends the requests.
#[derive(Clone)]
pub struct Requests {
    harvester: Client,
    guest: Client,
    namespace: String,
}

impl Requests {
    /// Sends requests for load balancers in `namespace` on Harvester, and for Services of the guest cluster.
    pub fn new(guest: Client, harvester: Client, namespace: &str) -> Self {
        Self { harvester, guest, namespace: namespace.to_owned() }
    }

    fn objects(&self) -> Api<LoadBalancer> {
        Api::namespaced(self.harvester.clone(), &self.namespace)
    }

    fn raw(&self) -> Request {
        Request::new(LoadBalancer::url_path(&(), Some(&self.namespace)))
    }

    fn lb(&self, name: &str) -> String {
        format!("{}/{name}", self.namespace)
    }

    /// Creates the object (POST).
    pub async fn create(&self, object: &LoadBalancer) -> Result<Created, RequestError> {
        match self.objects().create(&PostParams::default(), object).await {
            Ok(created) => Ok(Created::New(Box::new(LbView::from(&created)))),
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(Created::AlreadyExists),
            Err(source) => {
                let lb = self.lb(object.metadata.name.as_deref().unwrap_or_default());
                Err(RequestError::Write { lb, source })
            }
        }
    }

    /// Reads the object; `None` if the API server answers that it does not exist.
    pub async fn read(&self, name: &str) -> Result<Option<LbView>, RequestError> {
        match self.objects().get(name).await {
            Ok(object) => Ok(Some(LbView::from(&object))),
            Err(error) if is_absent(&error) => Ok(None),
            Err(source) => Err(RequestError::Read { lb: self.lb(name), source }),
        }
    }

    /// Changes the object by GET and PUT, and tries again after a conflict. With `readmit` the PUT is sent even without
    /// a change, to run the host's webhook.
    pub async fn update(
        &self,
        name: &str,
        uid: &str,
        changes: &[Change],
        readmit: bool,
    ) -> Result<Updated, RequestError> {
        let failed = |source| RequestError::Write { lb: self.lb(name), source };
        let malformed = |(field, source)| RequestError::Malformed { lb: self.lb(name), field, source };
        let mut attempt = 1;
        loop {
            let get = self.raw().get(name, &GetParams::default()).map_err(kube::Error::BuildRequest).map_err(failed)?;
            let mut object = match self.harvester.request::<Value>(get).await {
                Ok(object) => object,
                Err(error) if is_absent(&error) => return Ok(Updated::Different(None)),
                Err(error) => return Err(failed(error)),
            };
            let now = view(&object).map_err(malformed)?;
            if now.uid != uid || now.terminating {
                return Ok(Updated::Different(Some(now)));
            }
            if !desired::apply(&mut object, changes) && !readmit {
                return Ok(Updated::Unchanged(now));
            }
            let body = serde_json::to_vec(&object).expect("what was read as JSON can be written as such");
            let put = self.raw().replace(name, &PostParams::default(), body);
            match self.harvester.request::<Value>(put.map_err(kube::Error::BuildRequest).map_err(failed)?).await {
                Ok(object) => return Ok(Updated::Written(view(&object).map_err(malformed)?)),
                Err(error) if is_conflict(&error) && attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Another program that writes the object, by its managed fields.
    pub async fn other_writer(&self, name: &str) -> Result<Option<String>, RequestError> {
        let found = find_other_writer(&self.objects(), name, &[]).await;
        found.map_err(|source| RequestError::Read { lb: self.lb(name), source })
    }

    /// Deletes the object, with the UID as precondition.
    pub async fn delete(&self, name: &str, uid: &str) -> Result<Deleted, RequestError> {
        let precondition = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        match self.objects().delete(name, &DeleteParams::background().preconditions(precondition)).await {
            Ok(answer) => Ok(match answer.left() {
                Some(object) if object.terminating() => Deleted::Terminating(Box::new(LbView::from(&object))),
                _ => Deleted::Accepted,
            }),
            Err(error) if is_absent(&error) => Ok(Deleted::Gone),
            Err(source) => Err(RequestError::Delete { lb: self.lb(name), source }),
        }
    }

    /// Reads a Service of the guest cluster; `None` if the API server answers that it does not exist.
    pub async fn read_service(&self, key: &ServiceKey) -> Result<Option<ServiceView>, RequestError> {
        let services: Api<Service> = Api::namespaced(self.guest.clone(), &key.namespace);
        match services.get(&key.name).await {
            Ok(service) => Ok(Some(cloud_provider::observe::service(&service))),
            Err(error) if is_absent(&error) => Ok(None),
            Err(source) => Err(RequestError::Service { service: key.clone(), source }),
        }
    }

    /// The present revision of the guest cluster's etcd; `None` if it is not a number.
    pub async fn guest_revision(&self) -> Result<Option<u64>, kube::Error> {
        let services: Api<Service> = Api::all(self.guest.clone());
        let listed = services.list_metadata(&ListParams::default().limit(1)).await?;
        Ok(listed.metadata.resource_version.and_then(|revision| revision.parse().ok()))
    }

    /// Records in the guest cluster that this object is left behind (decision 12).
    pub async fn note_orphan(&self, what: &str, when: &str) -> Result<(), RecordError> {
        Records::new(self.guest.clone()).add_orphan(what, when).await.map(drop)
    }

    /// Records in the guest cluster that Services have vanished as after a restore of etcd.
    pub async fn note_restore(&self, stamp: Timestamp) -> Result<(), RecordError> {
        Records::new(self.guest.clone()).suspect_restore(stamp).await.map(drop)
    }

    /// UIDs of the load balancers whose Services a restore of etcd has lost for good, as an operator has confirmed.
    pub async fn confirmed_lost(&self) -> Result<BTreeSet<String>, RecordError> {
        Ok(Records::new(self.guest.clone()).read().await?.confirmed_lost)
    }

    /// Changes these UIDs in the record.
    pub async fn change_lost(&self, change: impl Fn(BTreeSet<String>) -> BTreeSet<String>) -> Result<(), RecordError> {
        Records::new(self.guest.clone()).change_lost(change).await.map(drop)
    }

    /// Patches the Service with one merge PATCH and its UID as precondition. Returns the new resourceVersion.
    pub async fn patch_service(
        &self,
        key: &ServiceKey,
        uid: &Uid,
        patch: &ServicePatch,
    ) -> Result<String, RequestError> {
        let services: Api<Service> = Api::namespaced(self.guest.clone(), &key.namespace);
        let body = Patch::Merge(patch.body(&uid.0));
        match services.patch_metadata(&key.name, &PatchParams::default(), &body).await {
            Ok(service) => {
                let (role, address) = (patch.role, &patch.address);
                if address.is_empty() {
                    tracing::info!(service = %key, "withdrew the address of an earlier life from service {key}");
                } else {
                    tracing::info!(
                        service = %key,
                        "loadbalancer successfully gets {role} service {key} to update ip {address}"
                    );
                }
                Ok(service.metadata.resource_version.unwrap_or_default())
            }
            Err(source) => {
                let (role, address) = (patch.role, patch.address.clone());
                Err(RequestError::Patch { role, service: key.clone(), address, source })
            }
        }
    }
}

/// The view of the object, or the field that cannot be read.
fn view(object: &Value) -> Result<LbView, (String, serde_json::Error)> {
    let read = serde_json::from_value::<LoadBalancer>(object.clone());
    read.map(|lb| LbView::from(&lb)).map_err(|error| (unreadable(object), error))
}

/// Finds the field that cannot be parsed on its own. Fields in spec and status always can, because they are parsed
/// leniently.
fn unreadable(object: &Value) -> String {
    let members = |object: &Value| object.as_object().cloned().unwrap_or_default().into_iter();
    let metadata =
        members(&object["metadata"]).map(|(key, value)| (format!("metadata.{key}"), json!({"metadata": {key: value}})));
    let all = metadata.chain(members(object).map(|(key, value)| (key.clone(), json!({key: value}))));
    all.into_iter()
        .find(|(_, alone)| serde_json::from_value::<LoadBalancer>(alone.clone()).is_err())
        .map_or_else(|| "the object".to_owned(), |(field, _)| field)
}

#[cfg(test)]
mod tests {
    use runtime::error::chain;
    use runtime::scenario::Scenario;

    use super::*;

    #[tokio::test]
    async fn an_answer_that_is_no_load_balancer_is_told_with_field_value_and_what_is_accepted() {
        for (answer, field, expected) in [
            (
                json!({"metadata": {"name": "web", "resourceVersion": 5}, "spec": 7}),
                "metadata.resourceVersion",
                "integer `5`, expected a string",
            ),
            (json!({"kind": false}), "kind", "boolean `false`, expected a string"),
            (json!({"metadata": {"labels": "all"}}), "metadata.labels", "string \"all\", expected a map"),
        ] {
            let host = Scenario::answering(move |_| (200, answer.clone()));
            let requests = Requests::new(host.client(), host.client(), "guests");
            let error = requests.update("web", "uid", &[], false).await.unwrap_err();
            assert_eq!(
                chain(&error),
                format!(
                    "the answer for load balancer guests/web is not a LoadBalancer: {field} cannot be read: invalid \
                    type: {expected}"
                )
            );
        }
    }
}
