//! What is shown.

use serde_json::json;

use super::*;
use crate::healthy::{self, read};

#[test]
fn a_healthy_installation_in_a_page() {
    let report = report(&healthy::snapshot(), &Scope::default());
    assert!(report.is_well());
    let expected = "\
NAMESPACE   SERVICE   ADDRESS      MODE   OWNER   STATE       REASON   AGE
default     web       10.0.0.100   pool   node1   announced   -        1h0m

POOL   NETWORK       FREE   TOTAL
edge   guests/mgmt   49     50

NODE    STATE   VM      HOST     ANNOUNCER    HOST UPGRADE
node1   Ready   node1   host-1   announcing   -
node2   Ready   node2   host-1   announcing   -
";
    assert_eq!(report.to_text(false), expected);
    assert!(report.to_text(true).contains("ADDRESSES") && report.to_yaml().contains("services:"));
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["services"][0]["addresses"][0], "10.0.0.100");
}

#[test]
fn every_service_of_type_load_balancer_has_a_row_with_its_reason() {
    let mut snapshot = healthy::snapshot();
    let mut pending = healthy::service("pending");
    pending["metadata"]["annotations"] = json!({"cloudprovider.harvesterhci.io/ipam": "dhcp"});
    pending["status"] = json!({"conditions": [{"type": "LoadBalancerReady", "status": "False",
        "reason": "NoMatchingPool",
        "message": "no IPPool covers it", "lastTransitionTime": "2026-01-01T11:58:00Z"}]});
    let mut silent = healthy::service("silent");
    (silent["metadata"]["annotations"], silent["status"]) = (json!({}), json!({}));
    let mut foreign = healthy::service("foreign");
    foreign["spec"]["loadBalancerClass"] = json!("example.org/other");
    let mut ignored = healthy::service("ignored");
    ignored["metadata"]["annotations"]["kube-vip.io/ignore"] = json!("true");
    snapshot.services.extend([pending, silent, foreign, ignored].map(read));
    healthy::announce(&mut snapshot);
    let report = report(&snapshot, &Scope::default());
    let shown: Vec<_> =
        report.services.iter().map(|row| (row.name.as_str(), row.state.as_str(), row.reason.as_str())).collect();
    assert_eq!(
        shown,
        [
            ("foreign", "another's", "Class example.org/other"),
            ("ignored", "not announced", "Ignored"),
            ("pending", "pending", "NoMatchingPool"),
            ("silent", "pending", "NotBooked"),
            ("web", "announced", ""),
        ]
    );
    let row = report.services.iter().find(|row| row.name == "pending").unwrap();
    assert_eq!((row.mode.as_str(), row.age_seconds), ("dhcp", 120), "age of the last change");
    assert!(!report.is_well());
}

#[test]
fn names_and_a_namespace_choose_services() {
    let mut snapshot = healthy::snapshot();
    snapshot.services.push(read(healthy::service("api")));
    let named = |scope: &Scope| report(&snapshot, scope).services.into_iter().map(|row| row.name).collect::<Vec<_>>();
    assert_eq!(named(&Scope { names: ["api".to_owned()].into(), ..Scope::default() }), ["api"]);
    assert!(named(&Scope { namespace: Some("other".into()), ..Scope::default() }).is_empty());
}

#[test]
fn an_upgrade_of_the_hosts_and_a_dead_api_come_first_to_the_eye() {
    let mut snapshot = healthy::snapshot();
    let status = json!({"window": {"suspended": true}});
    let map = json!({"metadata": {"name": "harvester-host-upgrade"}, "data": {"summary": "UpgradePlan p: \
        NodeUpgrading; node1 HostRebooting", "status.json": status.to_string()}});
    snapshot.config_maps.insert("harvester-host-upgrade".into(), read(map));
    snapshot.harvester.trouble =
        Some(crate::snapshot::Trouble { kind: crate::snapshot::TroubleKind::Unreachable, text: "no route".into() });
    let text = report(&snapshot, &Scope::default()).to_text(false);
    assert!(text.starts_with("Harvester API https://harvester:6443: no route\n"), "{text}");
    assert!(text.contains("HOST UPGRADE   UpgradePlan p: NodeUpgrading; node1 HostRebooting (deletions"), "{text}");
}
