//! Every request about load balancers that we can send, side by side.
//!
//! Harvester grants neither patch nor a status endpoint: a change is a read, a change of what was read, and a PUT with
//! its resourceVersion (harvester-side.md 8.2). Objects are handled as raw JSON, so that members of a newer host
//! survive.
//!
//! [`Requests::create`] and [`Requests::delete`] are the only ways to create and delete an object. They know of no
//! turns: who calls them for an object with a pool address has asked the `Pacer` before (`provider/perform.rs`,
//! `garbage/collector.rs`).

use cloud_provider::managed_fields::other_writer;
use cloud_provider::view::{ServiceKey, ServiceView, Uid};
use harvester_api::load_balancer::LoadBalancer;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Client, Resource};
use serde_json::{Value, json};

use super::desired::{self, Change};
use super::service_patch::{Role, ServicePatch};
use super::view::LbView;
use crate::identity::record::{RecordError, Records};

/// The host writes an object up to three times in its first second: that often a PUT may meet a conflict.
const ATTEMPTS: usize = 4;

/// A request that failed. The text says what we tried. Texts that end in `, error` are the Go provider's, word for
/// word: users look for them in Events and logs, and whoever prints the chain adds a colon and the cause.
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
        /// Of the Service.
        role: Role,
        /// The Service.
        service: ServiceKey,
        /// What was to be published.
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
        /// What cannot be read.
        field: String,
        /// What is wrong.
        source: serde_json::Error,
    },
}

/// Answer to a POST.
#[derive(Debug)]
pub enum Created {
    /// It is there now.
    New(Box<LbView>),
    /// It was there before; nothing was changed.
    AlreadyExists,
}

/// Answer to a change.
#[derive(Debug)]
pub enum Updated {
    /// Written; what it is now.
    Written(LbView),
    /// It is like that already.
    Unchanged(LbView),
    /// It is gone, going, or another one of the same name: decide anew.
    Different(Option<LbView>),
}

/// Answer to a DELETE.
#[derive(Debug)]
pub enum Deleted {
    /// The host releases the address first.
    Terminating(Box<LbView>),
    /// Accepted; the watch shows what follows.
    Accepted,
    /// There is no such object (any more).
    Gone,
}

/// Sends the requests.
#[derive(Clone)]
pub struct Requests {
    harvester: Client,
    guest: Client,
    namespace: String,
}

impl std::fmt::Debug for Requests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Requests").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Requests {
    /// For objects in `namespace` of Harvester, and the Services of the guest cluster.
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

    /// POST.
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

    /// GET; `None` where the API says that there is none.
    pub async fn read(&self, name: &str) -> Result<Option<LbView>, RequestError> {
        match self.objects().get(name).await {
            Ok(object) => Ok(Some(LbView::from(&object))),
            Err(error) if is_absent(&error) => Ok(None),
            Err(source) => Err(RequestError::Read { lb: self.lb(name), source }),
        }
    }

    /// GET and PUT, again after a conflict. With `readmit` the PUT is sent even if nothing changes, to run the host's
    /// webhook.
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
                Err(error) if runtime::error::is_conflict(&error) && attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Who writes the object beside us, by its managed fields.
    pub async fn other_writer(&self, name: &str) -> Result<Option<String>, RequestError> {
        let found = self.objects().get_metadata(name).await;
        let found = found.map_err(|source| RequestError::Read { lb: self.lb(name), source })?;
        Ok(other_writer(&found.metadata.managed_fields.unwrap_or_default(), &[]))
    }

    /// DELETE of exactly this object.
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

    /// GET of a Service of the guest cluster; `None` where the API server says that there is none.
    pub async fn read_service(&self, key: &ServiceKey) -> Result<Option<ServiceView>, RequestError> {
        let services: Api<Service> = Api::namespaced(self.guest.clone(), &key.namespace);
        match services.get(&key.name).await {
            Ok(service) => Ok(Some(cloud_provider::observe::service(&service))),
            Err(error) if is_absent(&error) => Ok(None),
            Err(source) => Err(RequestError::Service { service: key.clone(), source }),
        }
    }

    /// Notes in the guest cluster that this object is left behind (decision 12).
    pub async fn note_orphan(&self, what: &str, when: &str) -> Result<(), RecordError> {
        Records::new(self.guest.clone()).add_orphan(what, when).await.map(drop)
    }

    /// Notes in the guest cluster that Services have vanished as after a restore of etcd.
    pub async fn note_restore(&self, stamp: Timestamp) -> Result<(), RecordError> {
        Records::new(self.guest.clone()).suspect_restore(stamp).await.map(drop)
    }

    /// One merge PATCH of the Service, on the condition that it is still the same one; gives its new resourceVersion.
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

/// What is decided on, or which member cannot be read.
fn view(object: &Value) -> Result<LbView, (String, serde_json::Error)> {
    let read = serde_json::from_value::<LoadBalancer>(object.clone());
    read.map(|lb| LbView::from(&lb)).map_err(|error| (unreadable(object), error))
}

/// The member that cannot be read even alone. Nothing in spec and status can be unreadable.
fn unreadable(object: &Value) -> String {
    let members = |object: &Value| object.as_object().cloned().unwrap_or_default().into_iter();
    let metadata =
        members(&object["metadata"]).map(|(key, value)| (format!("metadata.{key}"), json!({"metadata": {key: value}})));
    let all = metadata.chain(members(object).map(|(key, value)| (key.clone(), json!({key: value}))));
    all.into_iter()
        .find(|(_, alone)| serde_json::from_value::<LoadBalancer>(alone.clone()).is_err())
        .map_or_else(|| "the object".to_owned(), |(field, _)| field)
}

/// The API server itself says that this object does not exist. A 404 without reason may come from a proxy, or from an
/// API server that does not know the kind.
fn is_absent(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 && status.reason == "NotFound")
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
