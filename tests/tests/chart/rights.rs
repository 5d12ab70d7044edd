//! What each account may do: what its program writes, and nothing else.

use serde_json::Value;

use super::{args, ccm, find, render, title};

/// What a program sends, by the requests in its code, as `group/resource verb`; what it reads is left out.
const CCM_WRITES: &[&str] = &[
    "/configmaps create",
    "/configmaps update",
    "/events create",
    "/events patch",
    "/nodes delete",
    "/nodes patch",
    "/nodes/status patch",
    "/pods/status patch",
    "/services patch",
    "/services/status patch",
    "authentication.k8s.io/tokenreviews create",
    "authorization.k8s.io/subjectaccessreviews create",
    "coordination.k8s.io/leases create",
    "coordination.k8s.io/leases update",
    "discovery.k8s.io/endpointslices patch",
];

const ANNOUNCER_WRITES: &[&str] = &[
    "/events create",
    "/events patch",
    "/services update",
    "/services/status update",
    "coordination.k8s.io/leases create",
    "coordination.k8s.io/leases update",
];

/// Of every role that is called after the account: the same name may be in several namespaces.
fn rules<'a>(objects: &'a [Value], account: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    let titles = ["ClusterRole", "Role"].map(|kind| format!("{kind} {account}"));
    assert!(titles.iter().all(|wanted| objects.iter().any(|object| title(object) == *wanted)), "{titles:?}");
    let roles = objects.iter().filter(move |object| titles.contains(&title(object)));
    roles.flat_map(|role| role["rules"].as_array().expect("a role has rules"))
}

/// The end-to-end tests run with these rights and show that none is missing; this shows that none is too much.
#[test]
fn an_account_may_write_what_its_program_writes_and_nothing_else() {
    let objects = render("");
    for (account, writes) in [("harvester-cloud-provider", CCM_WRITES), ("kube-vip", ANNOUNCER_WRITES)] {
        let texts = |value: &Value| -> Vec<String> {
            value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let mut granted = std::collections::BTreeSet::new();
        for rule in rules(&objects, account) {
            let verbs = texts(&rule["verbs"]).into_iter().filter(|verb| !["get", "list", "watch"].contains(&&**verb));
            for verb in verbs {
                let groups = texts(&rule["apiGroups"]);
                let resources = texts(&rule["resources"]);
                let pairs = groups.iter().flat_map(|group| resources.iter().map(move |one| format!("{group}/{one}")));
                granted.extend(pairs.map(|pair| format!("{pair} {verb}")));
            }
        }
        assert_eq!(granted.into_iter().collect::<Vec<_>>(), writes, "{account}");
    }
}

#[test]
fn of_the_leases_the_provider_writes_its_own_whatever_it_is_called() {
    for (values, name) in [
        ("", "cloud-controller-manager"),
        ("extraArgs: ['--leader-elect-resource-name=mine']", "mine"),
        ("extraArgs: ['--leader-elect-resource-name', 'mine', '--v=3']", "mine"),
    ] {
        let objects = render(values);
        let update = |rule: &&Value| {
            rule["resources"] == serde_json::json!(["leases"])
                && rule["verbs"].as_array().is_some_and(|verbs| verbs.iter().any(|verb| verb == "update"))
        };
        let named: Vec<&Value> = rules(&objects, "harvester-cloud-provider").filter(update).collect();
        assert_eq!(named.len(), 1);
        assert_eq!(named[0]["resourceNames"], serde_json::json!([name]), "{values}");
    }
}

#[test]
fn leases_outside_its_namespace_are_granted_only_where_they_are_used() {
    let everywhere = |values: &str| {
        let objects = render(values);
        let rules = find(&objects, "ClusterRole kube-vip")["rules"].as_array().unwrap().clone();
        rules.iter().any(|rule| rule["resources"][0] == "leases")
    };
    assert!(!everywhere(""));
    assert!(everywhere("kube-vip: {env: {svc_election: 'true'}}"));
    assert!(everywhere("kube-vip: {env: {svc_election: true}}"));
    assert!(everywhere("kube-vip: {env: {election_mode: service}}"));
    assert!(!everywhere("kube-vip: {env: {svc_election: 'true', election_mode: node}}"));
    assert!(everywhere("kube-vip: {env: {svc_leasename: other/lock}}"));
    assert!(everywhere("kube-vip: {extraArgs: {servicesLeaseName: other/lock}}"));
    assert!(everywhere("kube-vip: {env: {svc_election: null}, extraArgs: {servicesElection: 'true'}}"));
    assert!(!everywhere("kube-vip: {extraArgs: {servicesElection: 'true'}}"), "the environment counts before flags");
    assert!(!everywhere("kube-vip: {env: {svc_leasename: 7}}"));
}

#[test]
fn a_lost_node_is_met_with_rights_on_its_pods_unless_that_is_switched_off() {
    let rules = |objects: &[Value]| find(objects, "ClusterRole harvester-cloud-provider")["rules"].to_string();
    for (values, on, flag) in [
        ("", true, None),
        ("nodeLoss: {enabled: false}", false, Some("--controllers=*,-node-loss")),
        (
            "nodeLoss: {enabled: 'false'}\nextraArgs: ['--controllers=*,-service,-node-loss']",
            false,
            Some("--controllers=*,-service,-node-loss"),
        ),
    ] {
        let objects = render(values);
        // `helm template` sees no node, so it cannot know that a second replica would find a place.
        assert_eq!(find(&objects, "Deployment harvester-cloud-provider")["spec"]["replicas"], 1, "{values}");
        assert_eq!(
            (rules(&objects).contains("pods/status"), rules(&objects).contains("endpointslices")),
            (on, on),
            "{values}"
        );
        let pod = ccm(&objects);
        let found: Vec<&str> = args(&pod).into_iter().filter(|arg| arg.contains("--controllers")).collect();
        assert_eq!(found, flag.into_iter().collect::<Vec<_>>(), "{values}");
    }
    let tolerated = ccm(&render(""))["tolerations"].to_string();
    assert!(
        tolerated.contains(r#""key":"node.kubernetes.io/unreachable","operator":"Exists","tolerationSeconds":10"#),
        "{tolerated}"
    );
}
