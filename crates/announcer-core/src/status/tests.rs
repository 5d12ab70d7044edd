use serde_json::json;

use super::*;
use crate::network::fixtures::config;

fn report(config: &Config, services: &[Service], leases: &[Lease]) -> Report {
    super::report(config, Listed { services, leases, namespace: "kube-system" }, now())
}

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn service(name: &str, annotations: &serde_json::Value, ingress: &[&str]) -> Service {
    let ingress: Vec<_> = ingress.iter().map(|ip| json!({"ip": ip})).collect();
    serde_json::from_value(json!({
        "metadata": {"namespace": "default", "name": name, "uid": format!("uid-{name}"), "annotations": annotations},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
        "status": {"loadBalancer": {"ingress": ingress}},
    }))
    .unwrap()
}

fn member(node: &str, renewed: &str, card: &str) -> Lease {
    serde_json::from_value(json!({
        "metadata": {"name": format!("harvester-announcer-{node}"), "annotations": {CARD: card}},
        "spec": {"holderIdentity": node, "leaseDurationSeconds": 15, "renewTime": renewed},
    }))
    .unwrap()
}

const TERM: &str = crate::annotations::TERM;
const LEASE: &str = crate::annotations::DHCP_LEASE;
const LEASE6: &str = crate::annotations::DHCP6_LEASE;

fn world() -> (Vec<Service>, Vec<Lease>) {
    let fixed = |address: &str, owner: &str, term: &str| {
        json!({"kube-vip.io/loadbalancerIPs": address,
            "kube-vip.io/vipHost": owner, TERM: term})
    };
    let four = |expires: &str| json!({"address": "10.0.0.77", "server": "10.0.0.2", "expires": expires}).to_string();
    let six = |expires: &str| json!({"address": "fd00::77", "server": "00010203", "expires": expires}).to_string();
    let (later, before) = ("2026-01-01T13:30:00Z", "2026-01-01T11:59:00Z");
    let dhcp = |asked: &str, leases: &[(&str, String)]| {
        let mut all = json!({"kube-vip.io/loadbalancerIPs": asked, "kube-vip.io/vipHost": "node-1", TERM: "1"});
        for (key, lease) in leases {
            all[*key] = json!(lease);
        }
        all
    };
    let services = vec![
        service("web", &fixed("10.0.0.50", "node-1", "3"), &["10.0.0.50"]),
        service("stale", &fixed("10.0.0.51", "node-2", "8"), &["10.0.0.51"]),
        service("new", &json!({"kube-vip.io/loadbalancerIPs": "10.0.0.52,fd00::52"}), &[]),
        service("lost", &json!({"kube-vip.io/loadbalancerIPs": "10.0.0.53"}), &["10.0.0.53"]),
        service("leased", &dhcp("0.0.0.0", &[(LEASE, four(later))]), &["10.0.0.77"]),
        service("over", &dhcp("0.0.0.0", &[(LEASE, four(before))]), &["10.0.0.77"]),
        service("six", &dhcp("::", &[(LEASE6, six(later))]), &["fd00::77"]),
        service("six-over", &dhcp("::", &[(LEASE6, six(before))]), &["fd00::77"]),
        service(
            "both",
            &dhcp("0.0.0.0,::", &[(LEASE, four(later)), (LEASE6, six(before))]),
            &["10.0.0.77", "fd00::77"],
        ),
        // What is left of an earlier wish counts for nothing.
        service("was-six", &dhcp("0.0.0.0", &[(LEASE, four(later)), (LEASE6, six(before))]), &["10.0.0.77"]),
        service("not-ours", &json!({"kube-vip.io/ignore": "true"}), &["10.0.0.54"]),
    ];
    let leases = vec![
        member("node-1", "2026-01-01T11:59:57.000000Z", r#"{"serving":true}"#),
        member("node-2", "2026-01-01T11:50:00.000000Z", r#"{"serving":false,"leaving":true}"#),
        serde_json::from_value(json!({"metadata": {"name": "somebody-elses"}})).unwrap(),
    ];
    (services, leases)
}

#[test]
fn each_vip_has_its_line_and_its_state() {
    let (services, leases) = world();
    let report = report(&config(&[]), &services, &leases);
    assert!(!report.is_well());
    assert_eq!(
        report.to_text(),
        "\
SERVICE            ADDRESS              OWNER    TERM   STATE                PROBED   DHCP
default/both       10.0.0.77,fd00::77   node-1   1      DHCP lease expired   -        from 10.0.0.2, 1h30m left; \
from 00010203, ended 60s ago
default/leased     10.0.0.77            node-1   1      announced            -        from 10.0.0.2, 1h30m left
default/lost       10.0.0.53            -        -      unowned              -        -
default/new        10.0.0.52,fd00::52   -        -      pending              -        -
default/over       10.0.0.77            node-1   1      DHCP lease expired   -        from 10.0.0.2, ended 60s ago
default/six        fd00::77             node-1   1      announced            -        from 00010203, 1h30m left
default/six-over   fd00::77             node-1   1      DHCP lease expired   -        from 00010203, ended 60s ago
default/stale      10.0.0.51            node-2   8      owner silent         -        -
default/was-six    10.0.0.77            node-1   1      announced            -        from 10.0.0.2, 1h30m left
default/web        10.0.0.50            node-1   3      announced            -        -

LEASE                        HOLDER   RENEWED     STATE
harvester-announcer-node-1   node-1   3s ago      fresh
harvester-announcer-node-2   node-2   10m0s ago   expired, kube-proxy not ready, leaving
"
    );
}

#[test]
fn where_no_announcer_lives_that_is_said_first() {
    let (services, mut leases) = world();
    assert_eq!(report(&config(&[]), &services, &leases).trouble, None);
    leases.remove(0);
    let text = report(&config(&[]), &services, &leases).to_text();
    let expected =
        "no announcer runs, or none reaches this API server: no Lease of one in namespace kube-system is fresh\n\n";
    assert!(text.starts_with(expected), "{text}");
    assert_eq!(report(&config(&[]), &[], &leases).trouble, None, "nothing is to be announced");
    let service = config(&[("election_mode", "service")]);
    assert_eq!(report(&service, &services, &leases).trouble, None, "its Leases are elsewhere");
}

#[test]
fn all_is_well_only_if_each_vip_is_announced() {
    let (mut services, leases) = world();
    services.truncate(1);
    let well = report(&config(&[]), &services, &leases);
    assert!(well.is_well());
    assert!(report(&config(&[]), &[], &[]).is_well(), "nothing to announce");
}

#[test]
fn what_nodes_say_that_ask_has_a_column_and_counts() {
    let web = service("web", &json!({"kube-vip.io/vipHost": "node-1", TERM: "3"}), &["10.0.0.50", "fd00::50"]);
    let card = |probed: &serde_json::Value| json!({"serving": true, "probed": probed}).to_string();
    let (fresh, long_ago) = ("2026-01-01T11:59:57.000000Z", "2026-01-01T11:50:00.000000Z");
    let (four, six, other) = ("10.0.0.50:80", "[fd00::50]:80", "10.0.0.50:443");
    let served = json!({"served": [four, six]});
    for (cards, text, well) in [
        (vec![json!({})], "-", true),
        (vec![json!({"silent": [other]})], "-", true),
        (vec![served.clone(), served.clone()], "served 2/2", true),
        (vec![served.clone(), json!({"silent": [four], "served": [six]})], "served 1/2; no answer (node-3)", false),
        (vec![json!({"refused": [four]}), json!({"silent": [six]})], "no answer (node-3); refused (node-2)", false),
        (vec![json!({"refused": [four]}), json!({"refused": [four]})], "refused (node-2, node-3)", false),
    ] {
        let nodes = ["node-2", "node-3"].iter().zip(&cards);
        let mut leases: Vec<Lease> = nodes.map(|(node, probed)| member(node, fresh, &card(probed))).collect();
        leases.push(member("node-1", fresh, "{}"));
        // What a node said that is not heard of any more counts for nothing.
        leases.push(member("node-4", long_ago, &card(&json!({"silent": [four]}))));
        let report = report(&config(&[]), std::slice::from_ref(&web), &leases);
        assert_eq!(report.vips[0].probes.as_ref().map_or_else(|| "-".to_owned(), Probes::text), text);
        assert!(report.to_text().lines().nth(1).unwrap().contains(text), "{}", report.to_text());
        assert_eq!(report.is_well(), well, "{text}");
    }
}

#[test]
fn programs_read_the_same() {
    let (services, leases) = world();
    let report = report(&config(&[]), &services, &leases);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["vips"][0]["service"], "default/both");
    assert_eq!(json["vips"][0]["dhcp"][0]["remainingSeconds"], 5400);
    assert_eq!(json["vips"][0]["dhcp"][1]["address"], "fd00::77");
    assert_eq!(json["vips"][7]["state"], "owner-silent");
    assert_eq!(json["vips"][7]["probes"], serde_json::Value::Null);
    assert_eq!(json["leases"][1]["renewedSecondsAgo"], 600);
}

#[test]
fn a_lease_that_nobody_renews_and_that_counts_for_years_says_so() {
    let lock = |holder: &str| -> Lease {
        serde_json::from_value(json!({"metadata": {"name": "plndr-svcs-lock"}, "spec": {"holderIdentity": holder,
            "leaseDurationSeconds": i32::MAX, "renewTime": "2026-01-01T11:50:00.000000Z"}}))
        .unwrap()
    };
    let held = report(&config(&[]), &[], &[lock("gone")]).to_text();
    let expected =
        "gone     10m0s ago   fresh, not renewed, counts for another 24855d3h: delete it if its holder is gone";
    assert!(held.contains(expected), "{held}");
    let free = report(&config(&[]), &[], &[lock("")]).to_text();
    assert!(!free.contains("delete"), "{free}");
}

#[test]
fn what_others_wrote_does_not_reach_the_terminal_raw() {
    let owner = json!({"kube-vip.io/loadbalancerIPs": "10.0.0.5", "kube-vip.io/vipHost": "\u{1b}[2Jnode"});
    let text = report(&config(&[]), &[service("web", &owner, &["10.0.0.5"])], &[]).to_text();
    assert!(!text.contains('\u{1b}') && text.contains("node"), "{text}");
}
