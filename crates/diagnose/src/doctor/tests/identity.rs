//! A cloud controller that does not know which cluster this is, as its Lease says.

use super::*;

/// What the leader `p` says on its Lease; `by`: the replica that has written it.
fn doubts(reason: &str, by: &str) -> impl Fn(&mut Snapshot) + use<> {
    let key = |rest: &str| format!("cloudprovider.harvesterhci.io/safe-mode{rest}");
    let annotations = [(key(""), reason.to_owned()), (key("-holder"), by.to_owned())];
    move |snapshot| snapshot.leases[0].metadata.annotations = Some(annotations.clone().into())
}

pub fn not_known(snapshot: &mut Snapshot) {
    doubts("IdentityNotKnown", "p")(snapshot);
}

pub fn faults() -> Vec<(&'static str, Plant)> {
    vec![("identity-not-known", Box::new(not_known)), ("safe-mode", Box::new(doubts("MachinesReplaced", "p")))]
}

/// The only finding.
fn finding(plant: impl Fn(&mut Snapshot) + 'static) -> Finding {
    let found = findings_of(plant);
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

#[test]
fn the_nodes_that_are_waited_for_are_named_with_the_commands_that_end_it() {
    let unknown = |machines: &'static str| {
        finding(move |snapshot| {
            not_known(snapshot);
            record("identity", machines)(snapshot);
            let mut silent = healthy::node("node2");
            silent["status"]["conditions"][0]["status"] = json!("Unknown");
            snapshot.nodes[1] = read(silent);
        })
    };
    for (machines, nodes) in [
        ("{\"machines\":[\"uid-node1\",\"uid-node2\"]}", "(Node node1 is Ready, Node node2 is not Ready)"),
        ("{\"machines\":[\"uid-of-a-lost-one\"]}", "(no Node runs on one of them)"),
        ("{", "(no Node runs on one of them)"),
    ] {
        let found = unknown(machines);
        assert_eq!(
            (found.check, found.object.as_str()),
            (Check::IdentityNotKnown, "Lease kube-system/cloud-controller-manager")
        );
        assert!(found.what.contains("(IdentityNotKnown): no kubelet") && found.what.ends_with(nodes), "{found:?}");
        let command = "kubectl -n kube-system exec deployment/harvester-cloud-provider -- harvester-cloud-provider \
                       identity show     # ";
        assert!(found.remedy.starts_with(command), "{found:?}");
        for words in ["within 5 minutes", "identity confirm", "identity rename NEW-NAME --copy", "docs/backup.md"] {
            assert!(found.remedy.contains(words), "{words}: {found:?}");
        }
    }
}

#[test]
fn a_controller_outside_its_cluster_is_asked_without_a_pod() {
    let found = finding(|snapshot| {
        not_known(snapshot);
        snapshot.deployments.clear();
    });
    assert!(found.what.contains("it runs outside this cluster, or on a Node that is not registered"), "{found:?}");
    assert!(found.remedy.starts_with("harvester-cloud-provider identity show     # "), "{found:?}");
    assert!(found.remedy.contains("NODE_NAME") && found.remedy.contains("identity confirm"), "{found:?}");
}

#[test]
fn a_new_leader_is_given_five_minutes_before_it_is_an_error() {
    for (acquired, severity) in
        [("2026-01-01T11:55:01.000000Z", Severity::Warning), ("2026-01-01T11:55:00.000000Z", Severity::Error)]
    {
        let found = finding(move |snapshot| {
            not_known(snapshot);
            snapshot.leases[0].spec.as_mut().unwrap().acquire_time = Some(read(json!(acquired)));
        });
        assert_eq!(found.severity, severity, "{acquired}");
    }
}

#[test]
fn only_what_the_leader_itself_says_counts_and_the_words_of_the_record_come_first() {
    assert_eq!(findings_of(doubts("IdentityNotKnown", "a-former-leader")), []);
    assert_eq!(findings_of(doubts("", "p")), []);
    assert_eq!(finding(doubts("IdentityNotKnown", "")).check, Check::IdentityNotKnown, "of an earlier version");
    let stopped = findings_of(|snapshot| {
        not_known(snapshot);
        snapshot.leases[0].spec.as_mut().unwrap().renew_time = Some(read(json!("2026-01-01T11:50:00.000000Z")));
    });
    assert_eq!(stopped.iter().map(|one| one.check).collect::<Vec<_>>(), [Check::ControllerMissing]);
    let both = finding(|snapshot| {
        not_known(snapshot);
        record("safe-mode", "WrongHarvester: the whole story")(snapshot);
    });
    assert_eq!((both.check, both.object.as_str()), (Check::SafeMode, "ConfigMap kube-system/harvester-cloud-provider"));
    assert!(both.what.ends_with("WrongHarvester: the whole story"), "{both:?}");
}

#[test]
fn programs_get_the_same_as_humans() {
    let found = planted(&(Box::new(not_known) as Plant));
    let json = serde_json::to_value(&found).unwrap();
    let finding = &json["findings"][0];
    assert_eq!((&finding["check"], &finding["severity"]), (&json!("identity-not-known"), &json!("error")));
    let text = found.to_text();
    for key in ["what", "why", "remedy"] {
        assert!(text.contains(finding[key].as_str().unwrap()), "{key}: {text}");
    }
}
