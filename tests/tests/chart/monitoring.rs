//! Where probes, metrics, alerts and `helm test` ask.

use testbed::helm::{OLDEST_KUBERNETES, RELEASE, chart};
use testbed::{Helm, programs};

use serde_json::Value;

use super::{announcer, ccm, find, helms, refusal, render, titles};

#[test]
fn metrics_are_reachable_where_somebody_is_asked_to_read_them() {
    let monitored = "podMonitor: {enabled: true}";
    for (server, port) in [(":2112", 2112), ("0.0.0.0:2113", 2113), ("192.0.2.7:2114", 2114)] {
        let objects = render(&format!("kube-vip: {{{monitored}, env: {{prometheus_server: '{server}'}}}}"));
        let container = &announcer(&objects)["containers"][0];
        assert_eq!(container["ports"][0]["name"], "monitoring");
        assert_eq!(container["ports"][0]["containerPort"], port, "{server}");
        find(&objects, "PodMonitor kube-vip");
    }
    // The environment counts before the flag, as in the program.
    for (variable, port) in [("null", 2115), ("''", 2115), ("':2116'", 2116)] {
        let by_flag = format!(
            "kube-vip: {{{monitored}, env: {{prometheus_server: {variable}}}, extraArgs: {{prometheusHTTPServer: \
            ':2115'}}}}"
        );
        assert_eq!(announcer(&render(&by_flag))["containers"][0]["ports"][0]["containerPort"], port, "{variable}");
    }
    let null = render(&format!("kube-vip: {{{monitored}, env: {{prometheus_server: null}}}}"));
    assert_eq!(announcer(&null)["containers"][0]["ports"][0]["containerPort"], 2112, "the program's own default");
    let local = render("kube-vip: {env: {prometheus_server: 'localhost:2112'}}");
    assert_eq!(announcer(&local)["containers"][0]["readinessProbe"]["httpGet"]["host"], "127.0.0.1");
    let unreachable = refusal(&format!("kube-vip: {{{monitored}, env: {{prometheus_server: '127.0.0.1:2112'}}}}"));
    assert!(unreachable.contains("kube-vip.env.prometheus_server"), "{unreachable}");
}

#[test]
fn helm_test_asks_the_announcers_where_its_pod_can_find_them() {
    const LEASE: &str = "--lease=kube-system/cloud-controller-manager";
    const ANNOUNCERS: &str = "--announcers=kube-system/kube-vip";
    for (values, asked, looked_at) in [
        ("", true, &[LEASE, ANNOUNCERS][..]),
        ("kube-vip: {namespaceOverride: kube-system}", true, &[LEASE, ANNOUNCERS]),
        ("kube-vip: {namespaceOverride: elsewhere}", false, &[LEASE, "--announcers=elsewhere/kube-vip"]),
        ("kube-vip: {enabled: false}", false, &[LEASE]),
        ("kube-vip: {env: {prometheus_server: '127.0.0.1:2112'}}", false, &[LEASE, ANNOUNCERS]),
        // In other modes an announcer has no Lease by which its node could be known.
        ("kube-vip: {env: {svc_election: 'true'}}", true, &[LEASE, "--daemonset=kube-system/kube-vip"]),
        ("kube-vip: {env: {election_mode: global}}", true, &[LEASE, "--daemonset=kube-system/kube-vip"]),
        ("kube-vip: {env: {election_mode: node, svc_election: true}}", true, &[LEASE, ANNOUNCERS]),
        ("extraArgs: ['--leader-elect-resource-name=mine']", true, &["--lease=kube-system/mine", ANNOUNCERS]),
        ("extraArgs: ['--leader-elect=false']", true, &[ANNOUNCERS]),
        ("extraArgs: ['--leader-elect-resource-namespace', 'other']", true, &[ANNOUNCERS]),
    ] {
        for helm in helms() {
            let file = helm.write("values.yaml", values).unwrap();
            let objects = helm.tests(&chart(), &["--values", &file]).unwrap();
            let pod = find(&objects, "Pod harvester-cloud-provider-test");
            assert_eq!(
                pod["metadata"]["annotations"]["helm.sh/hook-output-log-policy"], "hook-failed",
                "Helm is silent"
            );
            assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], 1, "the next test waits for this pod to go");
            let container = pod["spec"]["containers"][0].clone();
            assert_eq!(container["terminationMessagePolicy"], "FallbackToLogsOnError", "describe has no reason");
            let mut expected = vec![
                "probe",
                "https://$(HARVESTER_CLOUD_PROVIDER_TEST_SERVICE_HOST)/readyz#deployment/harvester-cloud-provider,\
                 service/harvester-cloud-provider-test",
            ];
            let announcer = "http://$(KUBE_VIP_TEST_SERVICE_HOST)/readyz#daemonset/kube-vip,service/kube-vip-test";
            expected.extend(asked.then_some(announcer));
            expected.extend(looked_at);
            assert_eq!(container["args"], serde_json::json!(expected), "{values}");
            assert_eq!(titles(&objects).iter().any(|title| title == "Service kube-vip-test"), asked, "{values}");
        }
    }
}

/// It looks at what it is asked to look at, only while it runs, and writes nothing.
#[test]
fn helm_test_brings_its_rights_and_takes_them_away_again() {
    let objects = Helm::new("helm3").unwrap().tests(&chart(), &[]).unwrap();
    let mut granted = Vec::new();
    for object in &objects {
        let annotations = &object["metadata"]["annotations"];
        assert_eq!(annotations["helm.sh/hook"], "test", "{object}");
        assert_eq!(annotations["helm.sh/hook-delete-policy"], "before-hook-creation,hook-succeeded", "{object}");
        for rule in object["rules"].as_array().into_iter().flatten() {
            let names = rule["resourceNames"].as_array().map_or(String::new(), |names| format!(" {}", names[0]));
            granted.push(format!("{} {}{names}", rule["verbs"][0], rule["resources"][0]).replace('"', ""));
            let one = |field: &str| rule[field].as_array().map_or(0, Vec::len) == 1;
            assert!(one("verbs") && one("resources"), "{rule}");
        }
    }
    granted.sort();
    let expected = ["get daemonsets kube-vip", "get leases", "get leases cloud-controller-manager", "list pods"];
    assert_eq!(granted, expected);
    let pod = find(&objects, "Pod harvester-cloud-provider-test");
    assert_eq!(pod["spec"]["serviceAccountName"], "harvester-cloud-provider-test");
}

#[test]
fn every_alert_fires_on_what_it_is_for_and_not_before() {
    let helm = Helm::new("helm3").unwrap();
    let alerts = std::fs::read_to_string(chart().join("files/alerts.yaml")).unwrap();
    assert_eq!(alerts.matches("- alert:").count(), 20, "a new alert needs a test in alerts-test.yaml");
    helm.write("alerts.yaml", alerts).unwrap();
    let test = helm.write("alerts-test.yaml", include_str!("../chart-golden/alerts-test.yaml")).unwrap();
    let mut promtool = std::process::Command::new(programs::tool("promtool").unwrap());
    let said = promtool.args(["test", "rules", &test]).output().unwrap();
    assert!(
        said.status.success(),
        "{}{}",
        String::from_utf8_lossy(&said.stdout),
        String::from_utf8_lossy(&said.stderr)
    );
}

/// Who is woken at night needs the page, not a search for it.
#[test]
fn every_alert_leads_to_its_heading_in_the_documents_and_few_wake_somebody() {
    let alerts: Value =
        serde_saphyr::from_str(&std::fs::read_to_string(chart().join("files/alerts.yaml")).unwrap()).unwrap();
    let page = std::fs::read_to_string(programs::workspace().join("docs/metrics.md")).unwrap();
    let mut critical = Vec::new();
    for alert in alerts["groups"][0]["rules"].as_array().unwrap() {
        let name = alert["alert"].as_str().unwrap();
        let link = alert["annotations"]["runbook_url"].as_str().unwrap_or_default();
        assert_eq!(link, format!("docs/metrics.md#{}", name.to_lowercase()));
        let severity = alert["labels"]["severity"].as_str().unwrap();
        let heading = format!("### {name}\n\n{}{}. ", severity[..1].to_uppercase(), &severity[1..]);
        assert!(page.contains(&heading), "docs/metrics.md has no {heading:?}");
        if severity == "critical" {
            critical.push(name);
        }
    }
    // What takes service from more than the author of one Service.
    let of_all = [
        "HarvesterCloudProviderWithoutLeader",
        "HarvesterNoAnnouncer",
        "HarvesterApiCredentialsRefused",
        "HarvesterSafeMode",
    ];
    assert_eq!(critical, of_all);
    let helm = Helm::new("helm3").unwrap();
    let values = ["--set", "prometheusRule.enabled=true,prometheusRule.documents=https://docs.example.org/hcp/"];
    let chart = chart().display().to_string();
    let rendered = helm.run(&[&["template", RELEASE, &chart, OLDEST_KUBERNETES], &values[..]].concat()).unwrap();
    let link = "runbook_url: https://docs.example.org/hcp/metrics.html#harvesternoannouncer";
    assert!(rendered.contains(link), "{rendered}");
}

#[test]
fn probes_go_where_the_flags_let_the_provider_listen() {
    let probe = |values: &str| ccm(&render(values))["containers"][0]["readinessProbe"]["httpGet"].clone();
    let moved = "extraArgs: [--secure-port=10300, --bind-address=127.0.0.1]";
    assert_eq!(probe(moved)["host"], "127.0.0.1");
    assert_eq!(ccm(&render(moved))["containers"][0]["ports"][0]["containerPort"], 10300);
    assert!(probe("extraArgs: ['--bind-address=::']")["host"].is_null());
    let apart = "extraArgs: [--secure-port, 10300, --v, '4', --bind-address, 127.0.0.1]";
    assert_eq!(probe(apart)["host"], "127.0.0.1");
    assert_eq!(ccm(&render(apart))["containers"][0]["ports"][0]["containerPort"], 10300);
}
