//! Performs a replay on an API server that plays the host.

use kube::{Api, Client};
use serde_json::{Value, json};

use super::{Placement, Snapshot};
use crate::apply::{ApplyError, apply};
use crate::guest::machines::{MachineError, Machines};
use harvester_api::upgrade::{UPGRADE_NAMESPACE, Upgrade, UpgradePlan};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::runtime::wait::{await_condition, conditions::is_crd_established};

/// Why a step could not be played.
#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    /// A plan, a kind or a right.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// A machine.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A kind was not served in time.
    #[error("kind {0} is not served")]
    Kind(String),
}

/// Plays snapshots.
pub struct Player {
    client: Client,
    machines: Machines,
    placement: Placement,
}

impl Player {
    /// On this API server; it changes nothing yet.
    pub fn new(client: Client, namespace: &str, cluster: &str, network: &str) -> Self {
        let placement = Placement { namespace: namespace.into(), cluster: cluster.into(), network: network.into() };
        Self { machines: Machines::new(client.clone()), client, placement }
    }

    /// Where its machines live.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The kinds by which a host tells of its upgrade, and, with `rights`, the binding that lets guest clusters of the
    /// namespace read them.
    pub async fn install(&self, rights: bool) -> Result<(), PlayError> {
        let kinds: Vec<Value> = serde_saphyr::from_multiple(include_str!("upgrade_crds.yaml")).expect("a valid file");
        for kind in &kinds {
            apply(&self.client, kind).await?;
            let name = kind["metadata"]["name"].as_str().unwrap_or_default();
            let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
            let established = await_condition(crds, name, is_crd_established());
            let waited = tokio::time::timeout(std::time::Duration::from_secs(30), established).await;
            waited.ok().and_then(Result::ok).ok_or_else(|| PlayError::Kind(name.to_owned()))?;
        }
        if rights {
            for document in self.binding() {
                apply(&self.client, &document).await?;
            }
        }
        Ok(())
    }

    /// The optional binding on the host; docs/host-upgrade.md shows the same to an administrator.
    fn binding(&self) -> [Value; 2] {
        let name = "harvester-cloud-provider-upgrades";
        [
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name},
                "rules": [
                    {"apiGroups": ["management.harvesterhci.io"], "resources": ["upgradeplans"],
                        "verbs": ["get", "list", "watch"]},
                    {"apiGroups": ["harvesterhci.io"], "resources": ["upgrades"], "verbs": ["get", "list", "watch"]},
                ],
            }),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group",
                    "name": format!("system:serviceaccounts:{}", self.placement.namespace)}],
            }),
        ]
    }

    /// Makes the host look like this snapshot: the machines that it changes, and the plan.
    pub async fn play(&self, snapshot: &Snapshot) -> Result<(), PlayError> {
        if snapshot.minute <= 0.0 && (snapshot.plan.is_some() || snapshot.upgrade.is_some()) {
            self.install(snapshot.rights).await?;
        }
        for machine in snapshot.machines.iter().filter(|machine| snapshot.changed.contains(&machine.name)) {
            match self.machines.load(&machine.namespace, &machine.name).await {
                // What the bed says about its networks and names is worth more than the replay's.
                Ok(known) => {
                    let mut next = known.clone();
                    next.host.clone_from(&machine.host);
                    next.zone.clone_from(&machine.zone);
                    next.region.clone_from(&machine.region);
                    (next.powered, next.agent, next.upgrade) = (machine.powered, machine.agent, machine.upgrade);
                    next.migration.clone_from(&machine.migration);
                    self.machines.save(&next).await?;
                }
                Err(MachineError::NotFound { .. }) => self.machines.save(machine).await?,
                Err(error) => return Err(error.into()),
            }
        }
        for document in [&snapshot.plan, &snapshot.upgrade].into_iter().flatten() {
            apply(&self.client, document).await?;
        }
        Ok(())
    }

    /// Takes plan and upgrade away again, as an administrator does who tidies up.
    pub async fn tidy(&self) {
        let params = kube::api::DeleteParams::default();
        let all = kube::api::ListParams::default();
        let _ = Api::<UpgradePlan>::all(self.client.clone()).delete_collection(&params, &all).await;
        let _ =
            Api::<Upgrade>::namespaced(self.client.clone(), UPGRADE_NAMESPACE).delete_collection(&params, &all).await;
    }
}
