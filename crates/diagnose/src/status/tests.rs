//! What is shown.

use serde_json::json;

use super::*;
use crate::healthy::{self, read};
use crate::snapshot::{Snapshot, Unread, list};

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
    assert!(report.to_text(true).contains("ADDRESSES"));
    let json = serde_json::to_value(&report).unwrap();
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
fn a_service_that_nothing_is_done_for_on_purpose_is_called_paused() {
    let shown = |of_service: bool, of_controller: bool| {
        let mut snapshot = healthy::snapshot();
        let mut silent = healthy::service("silent");
        let key = "cloudprovider.harvesterhci.io/paused";
        silent["metadata"]["annotations"] = if of_service { json!({key: "true"}) } else { json!({}) };
        silent["status"] = json!({});
        snapshot.services.push(read(silent));
        if of_controller {
            let record = snapshot.config_maps.get_mut("harvester-cloud-provider").unwrap();
            record.data.get_or_insert_default().insert("paused".into(), "true\n".into());
        }
        let row = report(&snapshot, &Scope::default()).services.into_iter().find(|row| row.name == "silent").unwrap();
        format!("{}: {}", row.reason, row.message)
    };
    let (annotation, key) = (
        "annotation cloudprovider.harvesterhci.io/paused is true",
        "key paused of ConfigMap kube-system/harvester-cloud-provider is true",
    );
    assert_eq!(shown(false, false), "NotBooked: ");
    assert_eq!(shown(true, false), format!("Paused: {annotation}"));
    assert_eq!(shown(false, true), format!("Paused: {key}"));
    assert_eq!(shown(true, true), format!("Paused: {annotation}"));
}

#[test]
fn a_service_that_waits_for_the_identity_of_the_cluster_says_so() {
    let shown = |annotation: &str, recorded: Option<&str>| {
        let mut snapshot = healthy::snapshot();
        let mut silent = healthy::service("silent");
        (silent["metadata"]["annotations"], silent["status"]) = (json!({}), json!({}));
        snapshot.services.push(read(silent));
        let said = ("cloudprovider.harvesterhci.io/safe-mode".to_owned(), annotation.to_owned());
        snapshot.leases[0].metadata.annotations = Some([said].into());
        let record = snapshot.config_maps.get_mut("harvester-cloud-provider").unwrap();
        let entry = recorded.map(|text| ("safe-mode".to_owned(), text.to_owned()));
        record.data.get_or_insert_default().extend(entry);
        let rows = report(&snapshot, &Scope::default()).services;
        let reason = |name: &str| rows.iter().find(|row| row.name == name).map(|row| row.reason.clone());
        assert_eq!(reason("web").as_deref(), Some(""), "what is served goes on");
        let message = rows.iter().find(|row| row.name == "silent").unwrap().message.clone();
        format!("{}: {message}", reason("silent").unwrap())
    };
    let unknown = shown("IdentityNotKnown", None);
    assert!(unknown.starts_with("IdentityNotKnown: the cloud controller does not know yet"), "{unknown}");
    let text = "MachinesReplaced: the whole story";
    let recorded = format!("SafeMode: the cloud controller is in safe mode: {text}");
    assert_eq!(shown("MachinesReplaced", Some(text)), recorded);
    assert_eq!(shown("IdentityNotKnown", Some(text)), recorded);
    assert_eq!(shown("WrongHarvester", None), "SafeMode: the cloud controller is in safe mode: WrongHarvester");
}

#[test]
fn names_and_a_namespace_choose_services() {
    let mut snapshot = healthy::snapshot();
    snapshot.services.push(read(healthy::service("api")));
    let named = |scope: &Scope| report(&snapshot, scope).services.into_iter().map(|row| row.name).collect::<Vec<_>>();
    assert_eq!(named(&Scope { names: ["api".to_owned()].into(), ..Scope::default() }), ["api"]);
    assert!(named(&Scope { namespace: Some("other".into()), ..Scope::default() }).is_empty());
    let mistyped = report(&snapshot, &Scope { names: ["ap".to_owned()].into(), ..Scope::default() });
    assert_eq!(mistyped.trouble, ["there is no Service ap of type LoadBalancer"]);
    let elsewhere = Scope { namespace: Some("other".into()), names: ["api".to_owned()].into() };
    let elsewhere = report(&snapshot, &elsewhere).trouble;
    assert_eq!(elsewhere, ["there is no Service api of type LoadBalancer in namespace other"]);
    assert!(!mistyped.is_well());
    assert!(!mistyped.to_text(false).contains("No Service of type LoadBalancer"), "there are others");
}

#[test]
fn a_service_that_is_being_deleted_says_so_and_why_it_stays_after_a_minute() {
    let shown = |deleted: &str| {
        let mut snapshot = healthy::snapshot();
        let mut object = healthy::service("web");
        object["metadata"]["deletionTimestamp"] = json!(deleted);
        snapshot.services[1] = read(object);
        let report = report(&snapshot, &Scope::default());
        let row = report.services.iter().find(|row| row.name == "web").unwrap();
        (row.state.clone(), row.reason.clone(), report.is_well())
    };
    assert_eq!(shown("2026-01-01T11:59:30Z"), ("being deleted".into(), String::new(), true));
    assert_eq!(shown("2026-01-01T11:50:00Z"), ("being deleted".into(), "Terminating".into(), false));
}

#[test]
fn a_deleted_service_names_at_once_those_that_share_its_address() {
    let mut snapshot = healthy::snapshot();
    let mut object = healthy::service("web");
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T12:00:00Z");
    snapshot.services[1] = read(object);
    let mut sharer = healthy::service("shared1");
    sharer["metadata"]["labels"] = json!({"cloudprovider.harvesterhci.io/primary-service": "default.web"});
    snapshot.services.push(read(sharer));
    healthy::announce(&mut snapshot);
    let report = report(&snapshot, &Scope::default());
    let row = |name: &str| report.services.iter().find(|row| row.name == name).unwrap();
    assert_eq!((row("web").state.as_str(), row("web").reason.as_str()), ("being deleted", "AddressShared"));
    assert!(row("web").message.contains("because default/shared1 shares the address"), "{}", row("web").message);
    assert_eq!((row("web").mode.as_str(), row("shared1").mode.as_str()), ("pool", "shared"));
    assert_eq!(report.exit_status(), 3);
}

/// Its Lease and its Node look well for a while.
#[test]
fn a_node_that_others_do_not_hear_is_called_silent() {
    let mut snapshot = healthy::snapshot();
    healthy::fall_silent(&mut snapshot, "node2", "node1");
    let report = report(&snapshot, &Scope::default());
    let shown: Vec<_> = report.nodes.iter().map(|row| (row.state.as_str(), row.announcer.as_str())).collect();
    assert_eq!(shown, [("Ready", "announcing"), ("Ready", "silent, by node1")]);
    assert!(report.is_well(), "what it announced is announced by others");
}

#[test]
fn machines_that_are_elsewhere_are_the_reason_of_empty_columns() {
    let mut snapshot = healthy::snapshot();
    assert_eq!(report(&snapshot, &Scope::default()).notes, [""; 0]);
    snapshot.namespace = "default".into();
    snapshot.machines.clear();
    let found = report(&snapshot, &Scope::default());
    let expected = "columns VM and HOST lack the machines: none of this cluster's machines is in namespace default of \
         Harvester; doctor has the command";
    assert_eq!((found.notes.as_slice(), found.exit_status()), (&[expected.to_owned()][..], 0));
    snapshot.unread.push(Unread { what: "VirtualMachines on Harvester".into(), why: "no right".into() });
    assert_eq!(report(&snapshot, &Scope::default()).notes, [""; 0], "they were not read");
}

/// What is asked for in vain changes nothing of the address that there is.
#[test]
fn the_mode_is_that_of_the_address_and_not_of_the_annotations() {
    let shown = |key: &str, value: &str| {
        let mut snapshot = healthy::snapshot();
        let mut object = healthy::service("web");
        object["metadata"]["annotations"][format!("cloudprovider.harvesterhci.io/{key}")] = json!(value);
        snapshot.services[1] = read(object);
        report(&snapshot, &Scope::default()).services[0].mode.clone()
    };
    for (key, value) in
        [("primary-service", "nobody"), ("share-group", "g"), ("ipam", "dhcp"), ("ipam", "dchp"), ("ipam", "static")]
    {
        assert_eq!(shown(key, value), "pool", "{key}: {value}");
    }
}

#[test]
fn of_a_guest_that_cannot_be_read_nothing_is_claimed() {
    let mut snapshot = healthy::snapshot();
    (snapshot.services, snapshot.nodes, snapshot.announcer) = (Vec::new(), Vec::new(), None);
    snapshot.guest.trouble =
        Some(crate::snapshot::Trouble { kind: crate::snapshot::TroubleKind::Unreachable, text: "no route".into() });
    let text = report(&snapshot, &Scope::default()).to_text(false);
    assert_eq!(text, format!("guest API {}: no route\n", snapshot.guest.server));
    snapshot.guest.server.clear();
    assert_eq!(report(&snapshot, &Scope::default()).to_text(false), "guest API: no route\n");
}

/// Without these objects, because they could not be read.
fn unread(what: &str) -> Snapshot {
    let mut snapshot = healthy::snapshot();
    match what {
        list::SERVICES => snapshot.services.clear(),
        list::LEASES => snapshot.leases.clear(),
        list::NODES => snapshot.nodes.clear(),
        _ => unreachable!(),
    }
    snapshot.unread.push(Unread { what: what.into(), why: "these credentials may not read them".into() });
    healthy::announce(&mut snapshot);
    snapshot
}

#[test]
fn of_services_that_could_not_be_read_none_is_said_to_be_absent() {
    let expected = "Services could not be read: these credentials may not read them";
    for names in [&[][..], &["web"]] {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let found = report(&unread(list::SERVICES), &Scope { names, ..Scope::default() });
        assert_eq!((found.trouble.as_slice(), found.is_well()), (&[expected.to_owned()][..], false));
        assert_eq!(found.exit_status(), 1, "as where the cluster cannot be read");
        let text = found.to_text(false);
        assert!(text.starts_with(&format!("{expected}\n\n")) && text.contains("node1   Ready"), "{text}");
        assert!(!text.contains("of type LoadBalancer"), "{text}");
    }
    let mut empty = healthy::snapshot();
    empty.services.clear();
    let found = report(&empty, &Scope::default());
    assert!(found.to_text(false).starts_with("No Service of type LoadBalancer.\n"), "they were read");
    assert_eq!((found.is_well(), found.exit_status()), (true, 0));
}

#[test]
fn of_announcers_whose_leases_could_not_be_read_none_is_said_to_be_away() {
    let snapshot = unread(list::LEASES);
    assert!(snapshot.announcer.as_ref().unwrap().trouble.is_some(), "of an empty list it says so");
    let found = report(&snapshot, &Scope::default());
    let expected = "Leases in kube-system could not be read: these credentials may not read them. Whether announcers \
         run is not known";
    assert_eq!((found.trouble.as_slice(), found.exit_status()), (&[expected.to_owned()][..], 3));
    assert_eq!(found.nodes.iter().map(|node| node.announcer.as_str()).collect::<Vec<_>>(), ["not known"; 2]);
    assert!(!found.to_text(true).contains("no announcer"), "{}", found.to_text(true));
}

#[test]
fn nodes_that_could_not_be_read_are_left_out_and_named() {
    let found = report(&unread(list::NODES), &Scope::default());
    assert_eq!((found.is_well(), found.exit_status()), (true, 0));
    assert!(!found.to_text(false).contains("NODE "), "{}", found.to_text(false));
    assert!(found.to_text(true).contains("NOT READ\n  Nodes: these credentials"), "{}", found.to_text(true));
}

#[test]
fn a_node_that_a_label_excludes_is_not_called_announcing() {
    let mut snapshot = healthy::snapshot();
    let mut object = healthy::node("node2");
    object["metadata"]["labels"] = json!({"node.kubernetes.io/exclude-from-external-load-balancers": "true"});
    snapshot.nodes[1] = read(object);
    let nodes = report(&snapshot, &Scope::default()).nodes;
    assert_eq!([&nodes[0].announcer, &nodes[1].announcer], ["announcing", "excluded"]);
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

#[test]
fn a_mere_outage_of_harvester_is_called_one_and_keeps_no_change_of_a_service_waiting() {
    let last_line = |window: serde_json::Value, summary: &str| {
        let mut snapshot = healthy::snapshot();
        let data = json!({"summary": summary, "status.json": json!({"window": window}).to_string()});
        let map = json!({"metadata": {"name": "harvester-host-upgrade"}, "data": data});
        snapshot.config_maps.insert("harvester-host-upgrade".into(), read(map));
        let report = report(&snapshot, &Scope::default());
        (report.to_text(false).lines().last().unwrap().to_owned(), report.host_upgrade.unwrap().outage)
    };
    let silence = "The Harvester API gives no usable answer";
    let outage = last_line(json!({"suspended": true, "upgrade": false}), silence);
    let expected = format!("OUTAGE OF HARVESTER   {silence} (deletions and zones wait until it is over)");
    assert_eq!(outage, (expected, true));
    // A controller of before wrote no such key.
    let plan = "UpgradePlan p: NodeUpgrading";
    let expected = format!("HOST UPGRADE   {plan} (deletions, zones and changes wait until it is over)");
    for window in [json!({"suspended": true, "upgrade": true}), json!({"suspended": true})] {
        assert_eq!(last_line(window, plan), (expected.clone(), false));
    }
    let ended = "no upgrade of Harvester's hosts is under way";
    assert_eq!(last_line(json!(null), ended), (format!("HOST UPGRADE   {ended}"), false));
}
