//! Services that share an address, as far as their annotations and labels tell.

use harvester_api::keys::{cloudprovider, kube_vip};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use crate::facts;
use crate::snapshot::Snapshot;

/// The annotation by which the Service shares an address; `None` if it asks for none to share.
pub fn shares_by(service: &Service) -> Option<&'static str> {
    let keys = [cloudprovider::SHARE_GROUP, cloudprovider::PRIMARY_SERVICE];
    keys.into_iter().find(|key| !facts::annotation(&service.metadata, key).is_empty())
}

/// The addresses that the cloud controller has published on the Service.
pub fn published(service: &Service) -> impl Iterator<Item = &str> {
    let text = facts::annotation(&service.metadata, kube_vip::LOADBALANCER_IPS);
    text.split(',').map(str::trim).filter(|address| !address.is_empty())
}

/// `namespace/name` of the Service that the annotation names as the owner of the address; empty if it names none.
fn named(service: &Service) -> String {
    let value = facts::annotation(&service.metadata, cloudprovider::PRIMARY_SERVICE);
    if value.is_empty() || value.contains('/') {
        return value.to_owned();
    }
    format!("{}/{value}", service.namespace().unwrap_or_default())
}

/// Whether the Service has the address of `owner`. The label is the cloud controller's. Where the name of the owner is
/// too long for one, the annotation and the address tell it.
fn has_joined(service: &Service, owner: &Service) -> bool {
    let label = facts::label(&service.metadata, cloudprovider::PRIMARY_SERVICE);
    let wears = || label == format!("{}.{}", owner.namespace().unwrap_or_default(), owner.name_any());
    let shown = || {
        let told = facts::told(owner);
        published(service).any(|address| told.iter().any(|one| one == address))
    };
    wears() || named(service) == facts::key(&owner.metadata) && shown()
}

/// Whether the address of the Service is another one's.
pub fn is_joined(snapshot: &Snapshot, service: &Service) -> bool {
    let (label, named) = (facts::label(&service.metadata, cloudprovider::PRIMARY_SERVICE), named(service));
    let is_owner = |owner: &&Service| facts::key(&owner.metadata) == named && owner.uid() != service.uid();
    !label.is_empty() || snapshot.services.iter().find(is_owner).is_some_and(|owner| has_joined(service, owner))
}

/// The Services that keep the load balancer of a deleted one, because they share its address. A member of the same
/// group keeps nothing: it takes the load balancer over.
pub fn keepers<'a>(snapshot: &'a Snapshot, deleted: &Service) -> Vec<&'a Service> {
    if is_joined(snapshot, deleted) {
        return Vec::new();
    }
    let key = facts::key(&deleted.metadata);
    let group = facts::annotation(&deleted.metadata, cloudprovider::SHARE_GROUP);
    let inherits = |service: &Service| {
        !group.is_empty()
            && service.namespace() == deleted.namespace()
            && facts::annotation(&service.metadata, cloudprovider::SHARE_GROUP) == group
    };
    let keeps = |service: &&Service| {
        facts::is_load_balancer(service)
            && facts::class(service).is_empty()
            && service.metadata.deletion_timestamp.is_none()
            && facts::key(&service.metadata) != key
            && has_joined(service, deleted)
            && !inherits(service)
    };
    let mut found: Vec<&Service> = snapshot.services.iter().filter(keeps).collect();
    found.sort_by_key(|service| facts::key(&service.metadata));
    found
}

/// Why the load balancer of a deleted Service stays, and what ends that.
pub fn why_kept(keepers: &[&Service]) -> String {
    let names: Vec<String> = keepers.iter().map(|service| facts::key(&service.metadata)).collect();
    let (share, them) = if names.len() == 1 { ("shares", "it") } else { ("share", "them") };
    format!(
        "its load balancer and address stay, because {} {share} the address: delete {them}, or let {them} name another \
         Service",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::healthy::{self, read};

    const KEY: &str = "cloudprovider.harvesterhci.io/primary-service";
    const GROUP: &str = "cloudprovider.harvesterhci.io/share-group";

    #[test]
    fn a_deleted_service_is_kept_by_those_that_have_its_address_and_do_not_inherit_it() {
        let other = |name: &str, label: &str, key: &str, value: &str| {
            let mut object = healthy::service(name);
            object["metadata"]["labels"] = json!({KEY: label});
            object["metadata"]["annotations"][key] = json!(value);
            object
        };
        let elsewhere = {
            let mut object = other("elsewhere", "", KEY, "web");
            object["metadata"]["annotations"]["kube-vip.io/loadbalancerIPs"] = json!("10.0.0.101");
            object
        };
        let leaves = {
            let mut object = other("leaves", "default.web", KEY, "web");
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T11:59:59Z");
            object
        };
        for (what, group, others, expected) in [
            ("nobody else", "", vec![], vec![]),
            ("by its label", "", vec![other("a", "default.web", KEY, "web")], vec!["default/a"]),
            ("by annotation and address", "", vec![other("a", "", KEY, "web")], vec!["default/a"]),
            ("by the full name", "", vec![other("a", "", KEY, "default/web")], vec!["default/a"]),
            ("it never got the address", "", vec![elsewhere], vec![]),
            ("it is being deleted, too", "", vec![leaves], vec![]),
            ("it shares another one's", "", vec![other("a", "default.api", KEY, "api")], vec![]),
            ("the group inherits", "g", vec![other("a", "default.web", GROUP, "g")], vec![]),
            (
                "a stranger to the group",
                "g",
                vec![other("b", "default.web", KEY, "web"), other("a", "default.web", GROUP, "g")],
                vec!["default/b"],
            ),
            (
                "two, in order",
                "",
                vec![other("b", "default.web", KEY, "web"), other("a", "default.web", KEY, "web")],
                vec!["default/a", "default/b"],
            ),
        ] {
            let mut snapshot = healthy::snapshot();
            snapshot.services[1].annotations_mut().insert(GROUP.into(), group.into());
            snapshot.services.extend(others.into_iter().map(read::<Service>));
            let found = keepers(&snapshot, &snapshot.services[1]);
            let found: Vec<String> = found.iter().map(|service| facts::key(&service.metadata)).collect();
            assert_eq!(found, expected, "{what}");
        }
    }

    #[test]
    fn one_shares_and_two_share() {
        let (a, b): (Service, Service) = (read(healthy::service("a")), read(healthy::service("b")));
        assert!(why_kept(&[&a]).contains("default/a shares the address: delete it, or let it name another"));
        assert!(why_kept(&[&a, &b]).contains("default/a, default/b share the address: delete them, or let them name"));
    }
}
