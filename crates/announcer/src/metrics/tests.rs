use std::time::Duration;

use announcer_core::VipId;
use announcer_core::ownership::service::LeaseKey;
use announcer_core::view::{Ingress, ServiceKey, Uid};
use dhcp_client::State;
use prometheus_client::encoding::text::encode;

use super::*;

/// Every metric has something to show.
fn full() -> String {
    let product = runtime::Product { name: "announcer", metrics_prefix: "hcp", version: "1" };
    let whole = runtime::metrics::Metrics::new(&product);
    let metrics = whole.register(|registry| Metrics::register(registry, "node-1", "lock", "1"));
    let (now, key) = (Instant::now(), ServiceKey::new("default", "web"));
    let held = LeaseState::Held { confirmed: true };
    metrics.lease(&LeaseState::default(), &held);
    metrics.service_event("ADDED");
    metrics.vips(&[leased(VipId::Dhcp, State::Bound, now)], now);
    let changes = BTreeMap::from([("placed", 1)]);
    metrics.observed(&Observations { changes, last_gap: Some(Duration::from_millis(230)), ..Observations::default() });
    metrics.services.refused(&key);
    metrics.probed.ended(announcer_core::prober::Outcome::Served, Some(Duration::from_millis(1)));
    metrics.probed.unserved(1);
    let mut view = announcer_core::fixtures::view("web", &["10.0.0.5"]);
    metrics.services.seen(&key, Some(&view), now);
    view.published.vip_host = Some("node-1".into());
    view.published.ingress = vec![Ingress { ip: None, ports: Vec::new() }];
    metrics.services.seen(&key, Some(&view), now);
    let lease = LeaseKey { namespace: "default".into(), name: "kubevip-web".into() };
    metrics.services.campaigns(&BTreeSet::from([lease]));
    whole.encode()
}

/// Names and types, those of the process apart: what every Prometheus client tells is not ours to promise.
fn shown_types() -> BTreeMap<String, String> {
    let mut types = runtime::metrics::shown_types(&full());
    types.retain(|name, _| !name.starts_with("process_"));
    types
}

#[test]
fn dashboards_and_alerts_find_these_names_and_types() {
    let expected = [
        ("hcp_announcer_address_conflicts_total", "counter"),
        ("hcp_announcer_announcements_total", "counter"),
        ("hcp_announcer_claiming", "gauge"),
        ("hcp_announcer_dhcp_lease_remaining_seconds", "gauge"),
        ("hcp_announcer_dhcp_state", "gauge"),
        ("hcp_announcer_failed_owner_changes_total", "counter"),
        ("hcp_announcer_fallen_addresses_total", "counter"),
        ("hcp_announcer_forged_claims_total", "counter"),
        ("hcp_announcer_last_gap_seconds", "gauge"),
        ("hcp_announcer_lease_confirmed", "gauge"),
        ("hcp_announcer_owner_changes_total", "counter"),
        ("hcp_announcer_probes_total", "counter"),
        ("hcp_announcer_service_probe_seconds", "histogram"),
        ("hcp_announcer_service_probes_total", "counter"),
        ("hcp_announcer_unprotected", "gauge"),
        ("hcp_announcer_unserved", "gauge"),
        ("hcp_announcer_vips", "gauge"),
        ("hcp_announcer_worst_lateness_seconds", "gauge"),
        ("hcp_build_info", "gauge"),
        ("kube_vip_active_services", "gauge"),
        ("kube_vip_build_info", "gauge"),
        ("kube_vip_is_leader", "gauge"),
        ("kube_vip_leader_election_transitions_total", "counter"),
        ("kube_vip_manager_all_services_events", "gauge"),
        ("kube_vip_service_election_attempts_total", "counter"),
        ("kube_vip_service_election_loops", "gauge"),
        ("kube_vip_service_reconcile_duration_seconds", "histogram"),
        ("kube_vip_service_reconcile_errors_total", "counter"),
    ];
    let expected: BTreeMap<String, String> = expected.map(|(name, kind)| (name.to_owned(), kind.to_owned())).into();
    assert_eq!(shown_types(), expected);
}

/// First cells of the rows of the table under this heading; names stand there in back quotes, without the labels.
fn documented(heading: &str) -> BTreeSet<String> {
    let manual = include_str!("../../../../docs/announcer.md");
    let (_, table) = manual.split_once(heading).expect("the table is there");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names.map(|name| name.split('{').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn the_manual_names_every_metric_and_none_that_there_is_not() {
    let shown = |prefix: &str| -> BTreeSet<String> {
        shown_types().keys().filter_map(|name| name.strip_prefix(prefix)).map(str::to_owned).collect()
    };
    assert_eq!(documented("\n| metric (`hcp_announcer_…`)"), shown("hcp_announcer_"));
    assert_eq!(documented("\n| kept of kube-vip (`kube_vip_…`)"), shown("kube_vip_"));
    let left_out = documented("\n| left out of kube-vip (`kube_vip_…`)");
    assert!(!left_out.is_empty() && left_out.is_disjoint(&shown("kube_vip_")), "{left_out:?}");
}

fn leased(id: fn(Uid) -> VipId, state: State, expires: Instant) -> VipStatus {
    VipStatus {
        id: id(Uid("web".into())),
        address: None,
        service: Some(ServiceKey::new("default", "web")),
        up: true,
        dhcp_state: Some(state),
        expires: Some(expires),
    }
}

fn shown(registry: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    text.lines().filter(|line| line.contains("_dhcp_") && !line.starts_with('#')).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_service_with_leases_of_both_families_shows_both() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry, "node-1", "lock", "0");
    let now = Instant::now();
    let at = |seconds| now + Duration::from_secs(seconds);
    metrics.vips(&[leased(VipId::Dhcp, State::Rebinding, at(30)), leased(VipId::Dhcp6, State::Bound, at(600))], now);
    let text = shown(&registry);
    for (metric, rest) in [
        ("state", r#"family="IPv4",state="rebinding"} 1"#),
        ("state", r#"family="IPv6",state="bound"} 1"#),
        ("lease_remaining_seconds", r#"family="IPv4"} 30.0"#),
        ("lease_remaining_seconds", r#"family="IPv6"} 600.0"#),
    ] {
        let line = format!(r#"hcp_announcer_dhcp_{metric}{{node="node-1",namespace="default",name="web",{rest}"#);
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[test]
fn what_stays_is_never_missing_and_what_is_gone_goes() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry, "node-1", "lock", "0");
    let now = Instant::now();
    let at = |seconds| now + Duration::from_secs(seconds);
    let both = [leased(VipId::Dhcp, State::Bound, at(30)), leased(VipId::Dhcp6, State::Bound, at(600))];
    metrics.vips(&both, now);
    let labels = LeaseLabels { namespace: "default".into(), name: "web".into(), family: "IPv4" };
    // Taken away and made again, they would be others: a scrape in between would have seen none.
    let lease = metrics.dhcp_expiry.family.get_or_create_owned(&labels);
    let active = metrics.active.family.get_or_create_owned(&[("namespace", "default".to_owned())]);
    metrics.vips(&[leased(VipId::Dhcp, State::Renewing, at(20))], now);
    assert_eq!((lease.get(), active.get()), (20.0, 1));
    active.set(7);
    metrics.vips(&both[..1], now);
    assert_eq!((lease.get(), active.get()), (30.0, 1));
    let text = shown(&registry);
    assert!(!text.contains("IPv6") && !text.contains("renewing") && text.contains("bound"), "{text}");
    metrics.vips(&[], now);
    assert_eq!(shown(&registry), "");
}
