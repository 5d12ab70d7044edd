//! Checks the rights of the accounts by access reviews of the API servers.

use contract::config_maps;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};

use crate::facts;
use crate::snapshot::{Right, Snapshot, Unread};

/// Verb, group, resource, and whether the right is needed in `kube-system` only.
type Need = (&'static str, &'static str, &'static str, bool);

/// The Lease of the cloud controller's leader, unless `--leader-elect-resource-name` sets another name. The chart
/// grants the right to write only this one.
const LEADER_LEASE: &str = "cloud-controller-manager";

const CONTROLLER: [Need; 9] = [
    ("list", "", "nodes", false),
    ("patch", "", "nodes", false),
    ("patch", "", "nodes/status", false),
    ("list", "", "services", false),
    ("patch", "", "services", false),
    ("patch", "", "services/status", false),
    ("create", "", "events", false),
    ("update", "coordination.k8s.io", "leases", true),
    ("create", "", "configmaps", true),
];

const ANNOUNCER: [Need; 7] = [
    ("list", "", "services", false),
    ("update", "", "services", false),
    ("update", "", "services/status", false),
    ("list", "", "nodes", false),
    ("list", "discovery.k8s.io", "endpointslices", false),
    ("create", "", "events", false),
    ("update", "coordination.k8s.io", "leases", true),
];

const HARVESTER: [Need; 8] = [
    ("get", "loadbalancer.harvesterhci.io", "loadbalancers", false),
    ("list", "loadbalancer.harvesterhci.io", "loadbalancers", false),
    ("create", "loadbalancer.harvesterhci.io", "loadbalancers", false),
    ("update", "loadbalancer.harvesterhci.io", "loadbalancers", false),
    ("delete", "loadbalancer.harvesterhci.io", "loadbalancers", false),
    ("list", "kubevirt.io", "virtualmachines", false),
    ("list", "kubevirt.io", "virtualmachineinstances", false),
    ("get", "subresources.kubevirt.io", "virtualmachineinstances/guestosinfo", false),
];

fn attributes(need: Need, namespace: &str) -> ResourceAttributes {
    let (verb, group, resource, _) = need;
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, sub)) => (resource, Some(sub.to_owned())),
        None => (resource, None),
    };
    ResourceAttributes {
        verb: Some(verb.to_owned()),
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        subresource,
        namespace: Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty()),
        ..ResourceAttributes::default()
    }
}

fn right(account: &str, need: Need, namespace: &str) -> Right {
    let (verb, group, resource, _) = need;
    let resource = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
    Right { account: account.to_owned(), verb: verb.to_owned(), resource, namespace: namespace.to_owned() }
}

/// Checks the rights of the account in the cloud-config.
pub async fn harvester(client: &Client, snapshot: &mut Snapshot) {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    for need in HARVESTER {
        let attributes = attributes(need, &snapshot.namespace);
        let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        match reviews.create(&PostParams::default(), &review).await {
            Ok(answer) if answer.status.as_ref().is_none_or(|status| status.allowed) => {}
            Ok(_) => {
                let account = format!("account of {}", snapshot.cloud_config);
                snapshot.harvester.denied.push(right(&account, need, &snapshot.namespace));
            }
            Err(error) => {
                let why = super::why(&error);
                snapshot.unread.push(Unread { what: "rights on Harvester".to_owned(), why });
                return;
            }
        }
    }
}

/// Checks the rights of the two accounts in the guest cluster.
pub async fn guest(client: &Client, snapshot: &mut Snapshot) {
    let mut accounts: Vec<(String, &[Need], Option<String>)> = Vec::new();
    for deployment in facts::controllers(snapshot) {
        let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
        let account = pod.and_then(|pod| pod.service_account_name.clone()).unwrap_or_else(|| "default".to_owned());
        let arguments = facts::arguments(&facts::containers(deployment));
        let named = arguments.iter().rev().find_map(|one| one.strip_prefix("--leader-elect-resource-name="));
        let lease = named.unwrap_or(LEADER_LEASE).to_owned();
        accounts.push((user(&deployment.namespace().unwrap_or_default(), &account), &CONTROLLER, Some(lease)));
    }
    for set in snapshot.daemon_sets.iter().filter(|set| facts::is_announcer(&facts::containers_of_set(set))) {
        let pod = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
        let account = pod.and_then(|pod| pod.service_account_name.clone()).unwrap_or_else(|| "default".to_owned());
        accounts.push((user(&set.namespace().unwrap_or_default(), &account), &ANNOUNCER, None));
    }
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    for (account, needs, lease) in accounts {
        for need in needs {
            let namespace = if need.3 { config_maps::NAMESPACE } else { "" };
            let spec = SubjectAccessReviewSpec {
                user: Some(account.clone()),
                resource_attributes: Some(ResourceAttributes {
                    name: lease.clone().filter(|_| need.2 == "leases"),
                    ..attributes(*need, namespace)
                }),
                ..SubjectAccessReviewSpec::default()
            };
            let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
            match reviews.create(&PostParams::default(), &review).await {
                Ok(answer) if answer.status.as_ref().is_none_or(|status| status.allowed) => {}
                Ok(_) => snapshot.guest.denied.push(right(&account, *need, namespace)),
                Err(error) => {
                    let why = super::why(&error);
                    snapshot.unread.push(Unread { what: "rights in the guest cluster".to_owned(), why });
                    return;
                }
            }
        }
    }
}

fn user(namespace: &str, account: &str) -> String {
    format!("system:serviceaccount:{namespace}:{account}")
}
