//! Commands that several remedies have in common, with the names of this installation. Where a name cannot be known, a
//! note behind `#` says where it is read.

use std::collections::BTreeSet;

use harvester_api::ip_pool::IpPool;
use harvester_api::keys::{cloudprovider, harvester};
use kube::ResourceExt;

use crate::facts;
use crate::snapshot::Snapshot;

/// The default name of the Secret that `generate-addon -o secret` prints.
const SECRET: &str = "harvester-cloud-config";
/// The namespace of that Secret, and the one that the documents install into.
pub const NAMESPACE: &str = "kube-system";
/// Shows the pools of Harvester.
pub const LIST_POOLS: &str = "kubectl --kubeconfig harvester.yaml get ippools.loadbalancer.harvesterhci.io";

/// The command with its notes; those that say nothing are left out.
pub fn noted(command: String, notes: &[&str]) -> String {
    let notes: Vec<&str> = notes.iter().copied().filter(|note| !note.is_empty()).collect();
    if notes.is_empty() { command } else { format!("{command}     # {}", notes.join("; ")) }
}

/// `generate-addon` for the account of the cloud-config in this namespace of Harvester; `rest` are further words.
fn generate_addon(snapshot: &Snapshot, namespace: &str, rest: &str, note: &str) -> String {
    let card = facts::identity_card(snapshot);
    let recorded = card["namespace"].as_str().unwrap_or_default();
    let namespace = [namespace, recorded].into_iter().find(|one| !one.is_empty());
    let account = snapshot.account.as_ref().filter(|account| Some(account.namespace.as_str()) == namespace);
    let whose = match snapshot.config(facts::RECORD, facts::CLUSTER_NAME) {
        Some(name) if !name.is_empty() => format!("by custom {name}"),
        _ => "by custom the name of the cluster".to_owned(),
    };
    let accounts = match (account, namespace) {
        (Some(_), _) => String::new(),
        (None, Some(namespace)) => format!(
            "<account>: {whose}; kubectl --kubeconfig harvester.yaml -n {namespace} get serviceaccounts lists them"
        ),
        (None, None) => format!("<account>: {whose}"),
    };
    let namespaces = if namespace.is_none() {
        "<namespace>: that of the machines; kubectl --kubeconfig harvester.yaml get virtualmachines.kubevirt.io \
         -A shows it"
    } else {
        ""
    };
    let command = format!(
        "harvester-cloud-provider generate-addon {} {} --kubeconfig harvester.yaml{rest}",
        account.map_or("<account>", |account| account.name.as_str()),
        namespace.unwrap_or("<namespace>"),
    );
    noted(command, &[note, &accounts, namespaces])
}

/// Gives the account its rights, and makes nothing new.
pub fn grant_rights(snapshot: &Snapshot, namespace: &str, note: &str) -> String {
    generate_addon(snapshot, namespace, "", note)
}

/// Namespace and workload of the cloud controller, as kubectl takes them; those of the documents where none is seen.
pub fn controller(snapshot: &Snapshot) -> (String, String) {
    let deployments = facts::controllers(snapshot).map(|one| ("deployment", &one.metadata));
    let sets = facts::controller_sets(snapshot).map(|one| ("daemonset", &one.metadata));
    match deployments.chain(sets).next() {
        Some((kind, metadata)) => (
            metadata.namespace.clone().unwrap_or_default(),
            format!("{kind}/{}", metadata.name.as_deref().unwrap_or_default()),
        ),
        None => (NAMESPACE.to_owned(), "deployment/harvester-cloud-provider".to_owned()),
    }
}

/// Writes the credentials into the Secret that the cloud controller mounts, which is in its own namespace; `flags`
/// begin with a blank.
pub fn write_credentials(snapshot: &Snapshot, namespace: &str, flags: &str, note: &str) -> String {
    let mounted = snapshot.cloud_config.strip_prefix("Secret ").and_then(|secret| secret.split_once('/'));
    let (secret_namespace, secret) = match mounted {
        Some((namespace, secret)) => (namespace.to_owned(), secret),
        None => (controller(snapshot).0, SECRET),
    };
    let secret = if secret == SECRET { String::new() } else { format!(" --secret-name {secret}") };
    // The manifest names its namespace, so that `kubectl apply -n` would refuse it.
    let moved = if secret_namespace == NAMESPACE {
        String::new()
    } else {
        format!(" | sed 's/namespace: {NAMESPACE}/namespace: {secret_namespace}/'")
    };
    generate_addon(snapshot, namespace, &format!("{flags} -o secret{secret}{moved} | kubectl apply -f -"), note)
}

/// Where Helm upgrades from, which no object of the cluster tells.
fn chart(snapshot: &Snapshot) -> String {
    let installed = facts::release(snapshot).chart;
    let installed = if installed.is_empty() { installed } else { format!(" ({installed} is installed)") };
    format!("<chart>: the archive, or the name in its repository, that was installed from{installed}")
}

/// `helm upgrade` of the installed release that keeps its values; `options` begin with a blank.
pub fn helm_upgrade(snapshot: &Snapshot, options: &str, note: &str) -> String {
    let facts::Release { namespace, name, .. } = facts::release(snapshot);
    let command = format!("helm -n {namespace} upgrade {name} <chart> --reset-then-reuse-values{options}");
    noted(command, &[note, &chart(snapshot)])
}

/// The same with a file of values; `change` says what to change in it.
pub fn helm_upgrade_with_values(snapshot: &Snapshot, change: &str) -> String {
    let facts::Release { namespace, name, .. } = facts::release(snapshot);
    noted(format!("{change}: helm -n {namespace} upgrade {name} <chart> -f values.yaml"), &[&chart(snapshot)])
}

/// The pool to name in a command, and a note: the only one that fits, or where its name is read.
pub fn pool(snapshot: &Snapshot, fits: impl Fn(&IpPool) -> bool) -> (String, String) {
    let names: Vec<String> = snapshot.pools.iter().filter(|pool| fits(pool)).map(ResourceExt::name_any).collect();
    match names.as_slice() {
        [only] => (only.clone(), String::new()),
        [] => ("<pool>".to_owned(), format!("<pool>: {LIST_POOLS} lists them")),
        several => ("<pool>".to_owned(), format!("<pool>: one of {}", several.join(", "))),
    }
}

/// The name of this cluster by the labels of its machines, which Rancher writes; `None` if they do not agree, or have
/// the default name.
pub fn labelled_name(snapshot: &Snapshot) -> Option<String> {
    let machines = snapshot.nodes.iter().filter_map(|node| facts::vm_name(node, snapshot));
    let instances = machines.filter_map(|name| snapshot.instances.iter().find(|one| one.name_any() == name));
    let names: BTreeSet<&str> =
        instances.map(|one| facts::label(&one.metadata, harvester::GUEST_CLUSTER_NAME)).collect();
    let only = names.first().filter(|name| names.len() == 1 && !["", "kubernetes"].contains(*name))?;
    Some((*only).to_owned())
}

/// What a new name of a cluster has to be.
pub fn free_name(snapshot: &Snapshot) -> String {
    let clusters = snapshot.load_balancers.iter().filter_map(|lb| lb.label(cloudprovider::CLUSTER));
    let machines = snapshot.instances.iter().map(|one| facts::label(&one.metadata, harvester::GUEST_CLUSTER_NAME));
    let taken: BTreeSet<&str> = clusters.chain(machines).filter(|name| !name.is_empty()).collect();
    let taken = taken.into_iter().collect::<Vec<_>>().join(", ");
    let taken = if taken.is_empty() { taken } else { format!(" (taken: {taken})") };
    format!("<name>: of your choice; no other cluster in this namespace of Harvester may have it{taken}")
}
