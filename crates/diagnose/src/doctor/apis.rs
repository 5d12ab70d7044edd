//! Checks the two APIs: whether they answer, whether certificates and credentials are accepted, and which rights the
//! accounts have.

use std::collections::BTreeMap;

use super::advice;
use super::certificates;
use super::checks::Check;
use super::finding::Finding;
use crate::collect::keys_named;
use crate::facts;
use crate::snapshot::{Side, Snapshot, TroubleKind};

pub fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let mut all = Vec::new();
    all.extend(trouble("guest", &snapshot.guest, snapshot));
    all.extend(trouble("harvester", &snapshot.harvester, snapshot));
    all.extend(snapshot.guest.denied.iter().map(|right| {
        let (group, resource) = split(&right.resource);
        let note = format!("its roles have it: apiGroup {group:?}, resource {resource}, verb {}", right.verb);
        let clusterwide = right.namespace.is_empty();
        let place =
            if clusterwide { "in all namespaces".to_owned() } else { format!("in namespace {}", right.namespace) };
        Finding::error(Check::GuestRightMissing, right.account.clone())
            .what(format!("may not {} {} {place} of the guest cluster", right.verb, right.resource))
            .why("what needs this right is not done, or is done late")
            .remedy(advice::helm_upgrade(snapshot, "", &note))
    }));
    all.extend(rights_on_harvester(snapshot));
    all
}

/// One finding for each account: a role that is not bound any more takes all its rights away.
fn rights_on_harvester(snapshot: &Snapshot) -> Vec<Finding> {
    let mut accounts: BTreeMap<(&str, &str), BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for right in &snapshot.harvester.denied {
        let resources = accounts.entry((&right.account, &right.namespace)).or_default();
        resources.entry(&right.resource).or_default().push(&right.verb);
    }
    let finding = |((account, namespace), resources): ((&str, &str), BTreeMap<&str, Vec<&str>>)| {
        let lacks: Vec<String> =
            resources.iter().map(|(resource, verbs)| format!("{} {resource}", verbs.join(", "))).collect();
        Finding::error(Check::HarvesterRightMissing, account)
            .what(format!("may not {} in namespace {namespace} of Harvester", lacks.join("; ")))
            .why("load balancers are not made, or nodes are not found")
            .remedy(advice::grant_rights(snapshot, namespace, "binds it to role harvesterhci.io:cloudprovider again"))
    };
    accounts.into_iter().map(finding).collect()
}

fn split(resource: &str) -> (&str, &str) {
    resource.split_once('.').map_or(("", resource), |(resource, group)| (group, resource))
}

fn trouble(which: &'static str, side: &Side, snapshot: &Snapshot) -> Option<Finding> {
    let trouble = side.trouble.as_ref()?;
    if trouble.kind == TroubleKind::Certificate && certificates::served_has_expired(snapshot, side) {
        return None;
    }
    let guest = which == "guest";
    let object = format!("{} API {}", if guest { "guest" } else { "Harvester" }, side.server).trim_end().to_owned();
    let why = if guest {
        "nothing can be read there, so that nothing else was looked at"
    } else {
        "no new load balancer gets an address, nodes are not initialised; what is served goes on"
    };
    let (check, remedy) = check_and_remedy(guest, trouble.kind, side, snapshot);
    Some(Finding::error(check, object).what(trouble.text.clone()).why(why).remedy(remedy))
}

/// The key to name, if the Secret has only one.
fn secret_key(side: &Side) -> String {
    let keys = side.trouble.as_ref().map(|trouble| keys_named(&trouble.text)).unwrap_or_default();
    if let [only] = keys.as_slice() { only.clone() } else { "<one of these keys>".to_owned() }
}

fn check_and_remedy(guest: bool, kind: TroubleKind, side: &Side, snapshot: &Snapshot) -> (Check, String) {
    match (guest, kind) {
        (true, TroubleKind::NoCredentials | TroubleKind::NoKey) => {
            let file = "<file>: of an administrator; on a server /etc/rancher/rke2/rke2.yaml, \
                        /etc/rancher/k3s/k3s.yaml or /etc/kubernetes/admin.conf, or what Rancher offers for download";
            let command = "harvester-cloud-provider doctor --kubeconfig <file>".to_owned();
            (Check::GuestCredentialsMissing, advice::noted(command, &[file]))
        }
        (true, TroubleKind::Unreachable) => (Check::GuestApiUnreachable, "kubectl cluster-info".to_owned()),
        (true, TroubleKind::Certificate) => {
            (Check::GuestCertificateRefused, "correct certificate-authority-data in the kubeconfig".to_owned())
        }
        (true, TroubleKind::Unauthorized) => {
            (Check::GuestTokenRefused, "renew the credentials in the kubeconfig".to_owned())
        }
        (false, TroubleKind::NoCredentials) => (
            Check::CloudConfigMissing,
            format!(
                "harvester-cloud-provider doctor --cloud-config <file>     # it was looked for in {}; <file>: a copy \
                 of {}",
                if snapshot.cloud_config.is_empty() { "the Deployment's volumes" } else { &snapshot.cloud_config },
                match facts::controller_flag(snapshot, "--cloud-config") {
                    Some(path) => format!("{path} in the pod of the cloud controller"),
                    None => "what --cloud-config of the cloud controller names".to_owned(),
                }
            ),
        ),
        (false, TroubleKind::NoKey) => (
            Check::CloudConfigKeyMissing,
            advice::helm_upgrade(
                snapshot,
                &format!(" --set cloudConfig.secretKey={}", secret_key(side)),
                "or rename the key in the Secret",
            ),
        ),
        (false, TroubleKind::Unreachable) => (
            Check::HarvesterApiUnreachable,
            format!(
                "curl -k {}/livez     # from a node; if it answers there, check the route and firewall of \
                this machine",
                side.server
            ),
        ),
        (false, TroubleKind::Certificate) => (
            Check::HarvesterCertificateRefused,
            advice::write_credentials(
                snapshot,
                &snapshot.namespace,
                "",
                "writes the certificate authority that the server uses now",
            ),
        ),
        (false, TroubleKind::Unauthorized) => {
            (Check::HarvesterTokenRefused, advice::write_credentials(snapshot, &snapshot.namespace, " --rotate", ""))
        }
    }
}
