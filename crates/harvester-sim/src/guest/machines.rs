//! The verbs of a pretended machine, done on the API: create, delete, power, addresses, agent, migration.

use std::time::Duration;

use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::wait::{await_condition, conditions::is_deleted};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::machine::{MACHINE, Machine, Migration};
use super::render;
use crate::host::world::{is_conflict, is_not_found, now};

/// Field manager of everything that the stand-in applies.
pub const FIELD_MANAGER: &str = "harvester-sim";

/// Machines of one host.
#[derive(Clone)]
pub struct Machines {
    client: Client,
}

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// Not there.
    #[error("virtual machine {namespace}/{name} does not exist")]
    NotFound {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
    },
    /// There, but made by somebody else.
    #[error(
        "virtual machine {namespace}/{name} was not made by harvester-sim: annotation {MACHINE} is missing or \
        unreadable"
    )]
    Foreign {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
    },
    /// No such network card.
    #[error("virtual machine {name} has no network card {nic:?}; it has: {known}")]
    NoSuchNic {
        /// Machine.
        name: String,
        /// As asked for.
        nic: String,
        /// What there is.
        known: String,
    },
    /// The API refused.
    #[error("failed to {what}")]
    Api {
        /// What was tried.
        what: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// The watch for a deletion broke.
    #[error("failed to wait until {what} is gone")]
    Wait {
        /// Which object.
        what: String,
        /// Why.
        #[source]
        source: Box<kube::runtime::wait::Error>,
    },
}

/// Turns an API error into ours, with what was tried.
fn api_error(what: impl Into<String>) -> impl FnOnce(kube::Error) -> MachineError {
    let what = what.into();
    move |source| MachineError::Api { what, source: Box::new(source) }
}

impl Machines {
    /// On this API.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    fn api(&self, kind: &str, plural: &str, namespace: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("kubevirt.io", "v1", kind), plural);
        Api::namespaced_with(self.client.clone(), namespace, &resource)
    }

    fn vms(&self, namespace: &str) -> Api<DynamicObject> {
        self.api("VirtualMachine", "virtualmachines", namespace)
    }

    fn vmis(&self, namespace: &str) -> Api<DynamicObject> {
        self.api("VirtualMachineInstance", "virtualmachineinstances", namespace)
    }

    /// Makes VM and VMI look like this machine: creates, changes or (VMI of a machine that is off) deletes.
    pub async fn save(&self, machine: &Machine) -> Result<(), MachineError> {
        let Machine { namespace, name, .. } = machine;
        let vms = self.vms(namespace);
        let apply = PatchParams::apply(FIELD_MANAGER).force();
        let vm = vms
            .patch(name, &apply, &Patch::Apply(render::vm(machine)))
            .await
            .map_err(api_error(format!("apply virtual machine {namespace}/{name}")))?;
        let status = json!({"status": render::vm_status(machine)});
        vms.patch_status(name, &PatchParams::default(), &Patch::Merge(status))
            .await
            .map_err(api_error(format!("write the status of virtual machine {namespace}/{name}")))?;
        match render::vmi(machine, &vm.uid().unwrap_or_default()) {
            Some(vmi) => self.put_vmi(namespace, name, vmi).await,
            None => delete(&self.vmis(namespace), namespace, name).await,
        }
    }

    /// Whole-object PUT (a VMI has no status subresource), anew after a conflict.
    async fn put_vmi(&self, namespace: &str, name: &str, wanted: Value) -> Result<(), MachineError> {
        let vmis = self.vmis(namespace);
        let failed = || api_error(format!("write virtual machine instance {namespace}/{name}"));
        let wanted: DynamicObject = serde_json::from_value(wanted).expect("a rendered VMI has kind and metadata");
        loop {
            let outcome = match vmis.get_opt(name).await.map_err(failed())? {
                None => vmis.create(&PostParams::default(), &wanted).await,
                Some(current) => {
                    let mut new = wanted.clone();
                    new.metadata.resource_version = current.metadata.resource_version;
                    new.metadata.uid = current.metadata.uid;
                    vmis.replace(name, &PostParams::default(), &new).await
                }
            };
            if !is_conflict(&outcome) {
                return outcome.map(drop).map_err(failed());
            }
        }
    }

    /// The machine as it was last saved.
    pub async fn load(&self, namespace: &str, name: &str) -> Result<Machine, MachineError> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let found = self.vms(&namespace).get_opt(&name).await;
        let Some(vm) = found.map_err(api_error(format!("read virtual machine {namespace}/{name}")))? else {
            return Err(MachineError::NotFound { namespace, name });
        };
        let stored = vm.annotations().get(MACHINE).and_then(|text| serde_json::from_str(text).ok());
        stored.ok_or(MachineError::Foreign { namespace, name })
    }

    /// Loads, changes, saves.
    pub async fn change(
        &self,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Machine),
    ) -> Result<Machine, MachineError> {
        let mut machine = self.load(namespace, name).await?;
        change(&mut machine);
        self.save(&machine).await?;
        Ok(machine)
    }

    /// Switches the machine on (with a new VMI) or off.
    pub async fn power(&self, namespace: &str, name: &str, on: bool) -> Result<(), MachineError> {
        self.change(namespace, name, |machine| machine.powered = on).await.map(drop)
    }

    /// Connects or silences the guest agent.
    pub async fn agent(&self, namespace: &str, name: &str, connected: bool) -> Result<(), MachineError> {
        self.change(namespace, name, |machine| machine.agent = connected).await.map(drop)
    }

    /// Gives a network card other addresses.
    pub async fn addresses(
        &self,
        namespace: &str,
        name: &str,
        nic: &str,
        addresses: &[String],
    ) -> Result<(), MachineError> {
        let mut machine = self.load(namespace, name).await?;
        let known: Vec<_> = machine.nics.iter().map(|nic| nic.name.clone()).collect();
        let Some(found) = machine.nics.iter_mut().find(|known| known.name == nic) else {
            return Err(MachineError::NoSuchNic {
                name: name.to_owned(),
                nic: nic.to_owned(),
                known: known.join(", "),
            });
        };
        found.addresses = addresses.to_vec();
        self.save(&machine).await
    }

    /// Begins a live migration to another host node.
    pub async fn start_migration(&self, namespace: &str, name: &str, target: &str) -> Result<(), MachineError> {
        let begin = |machine: &mut Machine| {
            machine.migration = Some(Migration {
                source: machine.host.clone(),
                target: target.to_owned(),
                started: now(),
                ended: None,
                failed: false,
            });
        };
        self.change(namespace, name, begin).await.map(drop)
    }

    /// Ends it: the topology of the target host shows from now on. A failed one leaves the machine where it was.
    pub async fn finish_migration(
        &self,
        namespace: &str,
        name: &str,
        outcome: MigrationOutcome<'_>,
    ) -> Result<(), MachineError> {
        let end = |machine: &mut Machine| {
            let Some(migration) = &mut machine.migration else { return };
            migration.ended = Some(now());
            match outcome {
                MigrationOutcome::Failed => migration.failed = true,
                MigrationOutcome::Moved { region, zone } => {
                    machine.host.clone_from(&migration.target);
                    machine.region = region.map(ToOwned::to_owned);
                    machine.zone = zone.map(ToOwned::to_owned);
                }
            }
        };
        self.change(namespace, name, end).await.map(drop)
    }

    /// Deletes VM and VMI. `tear_down`: marked as Rancher does when it removes the whole guest cluster.
    pub async fn delete(&self, namespace: &str, name: &str, tear_down: bool) -> Result<(), MachineError> {
        if tear_down {
            let mark =
                json!({"metadata": {"annotations": {harvester_api::keys::harvester::REMOVE_ALL_VOLUMES: "true"}}});
            let marked = self.vms(namespace).patch(name, &PatchParams::default(), &Patch::Merge(mark)).await;
            marked.map_err(api_error(format!("mark virtual machine {namespace}/{name}")))?;
        }
        delete(&self.vmis(namespace), namespace, name).await?;
        delete(&self.vms(namespace), namespace, name).await
    }
}

/// How a migration ends.
#[derive(Debug, Clone, Copy)]
pub enum MigrationOutcome<'a> {
    /// On the target, whose node has these labels.
    Moved {
        /// Region label.
        region: Option<&'a str>,
        /// Zone label.
        zone: Option<&'a str>,
    },
    /// Still on the source.
    Failed,
}

/// What is not there any more counts as deleted. Waits until the object is gone, because a machine may come back by
/// name.
async fn delete(api: &Api<DynamicObject>, namespace: &str, name: &str) -> Result<(), MachineError> {
    let kind = api.resource_url().rsplit('/').next().unwrap_or_default().to_owned();
    let failed = || api_error(format!("delete {kind} {namespace}/{name}"));
    let Some(current) = api.get_opt(name).await.map_err(failed())? else { return Ok(()) };
    let uid = current.uid();
    let params = DeleteParams {
        preconditions: Some(Preconditions { uid: uid.clone(), resource_version: None }),
        ..DeleteParams::default()
    };
    let outcome = api.delete(name, &params).await;
    if is_not_found(&outcome) || is_conflict(&outcome) {
        return Ok(());
    }
    outcome.map_err(failed())?;
    if current.finalizers().is_empty() {
        return Ok(());
    }
    let uid = uid.unwrap_or_default();
    let gone = await_condition(api.clone(), name, is_deleted(&uid));
    match tokio::time::timeout(Duration::from_secs(10), gone).await {
        // A finalizer may take longer when the controllers are not running; that is how the real one behaves, too.
        Err(_) | Ok(Ok(_)) => Ok(()),
        Ok(Err(source)) => {
            Err(MachineError::Wait { what: format!("{kind} {namespace}/{name}"), source: Box::new(source) })
        }
    }
}
