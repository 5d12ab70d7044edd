//! Values of the wrong kind.

use super::*;

/// D-11.
#[test]
fn a_value_of_the_wrong_kind_is_refused_with_its_key() {
    for (values, expected) in [
        ("extraArgs: --a=b", "/extraArgs"),
        ("kube-vip: {env: {a: {b: 1}}}", "/kube-vip/env/a"),
        ("replicasCount: -1", "/replicasCount"),
        (
            "nodeLoss: {enabled: false}\nextraArgs: ['--controllers=*,-service']",
            "starts controller node-loss all the same",
        ),
        ("replicasCount: 0", "Set 1 or more. To stop it for a while: kubectl -n kube-system scale"),
        (
            "extraArgs: ['--v=3 --cluster-name=x']",
            "extraArgs has several flags in one element, \"--v=3 --cluster-name=x\"",
        ),
        ("kube-vip: {nodes: some}", "/kube-vip/nodes"),
        ("cloudConfigPath: relative", "/cloudConfigPath"),
        ("image: {pullPolicy: Sometimes}", "/image/pullPolicy"),
        ("imagePullSecrets: [{secret: a}]", "/imagePullSecrets/0"),
        ("tolerations: {a: b}", "/tolerations"),
        ("kube-vip: {env: {prometheus_server: nonsense}}", "extraArgs) is \"nonsense\""),
        ("extraArgs: [--secure-port=0]", "--secure-port=0"),
        ("kube-vip: {env: {prometheus_server: ''}, extraArgs: {prometheusHTTPServer: ''}}", "turns health off"),
        (
            "kube-vip: {env: {election_mode: nodes}}",
            "/kube-vip/env/election_mode': value must be one of 'node', 'service', 'global'",
        ),
        (
            "kube-vip: {env: {failover_profile: quick}}",
            "/kube-vip/env/failover_profile': value must be one of 'default', 'fast', 'patient'",
        ),
        // The template understands these two words, in any type, and no other spelling of them.
        ("hostUpgrade: {cooperation: maybe}", "/hostUpgrade/cooperation"),
        ("hostUpgrade: {cooperation: 'True'}", "/hostUpgrade/cooperation"),
        ("kube-vip: {env: {svc_election: 'yes'}}", "/kube-vip/env/svc_election': value must be one of 'true', 'false'"),
        ("cloudConfigPath: /cloud-config", "must not be /"),
        // Unquoted it is a number, and what is pulled would be 1.1.
        ("image: {tag: 1.10}", "/image/tag"),
        ("kube-vip: {image: {tag: true}}", "/kube-vip/image/tag"),
    ] {
        let said = refusal(values);
        assert_eq!(said.matches(expected).count(), 2, "{expected} is not named by both Helms: {said}");
    }
}

#[test]
fn a_switch_is_on_or_off_as_a_word_too() {
    for (value, on) in [("true", true), ("'true'", true), ("false", false), ("'false'", false), ("''", false)] {
        let objects = render(&format!("hostUpgrade: {{cooperation: {value}}}"));
        let container = &pod(&objects, "Deployment harvester-cloud-provider")["containers"][0];
        let given = container["args"].to_string().contains("--host-upgrade-cooperation=true");
        assert_eq!(given, on, "{value}: {container}");
    }
}
