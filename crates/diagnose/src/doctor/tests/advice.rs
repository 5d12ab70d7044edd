//! Remedies name what the installation has; what cannot be known comes with the place where it is read.

use harvester_api::cloud_config::Account;

use super::*;

fn demo(snapshot: &mut Snapshot) {
    snapshot.account = Some(Account { namespace: "guests".into(), name: "demo-account".into() });
}

/// The remedy of the only finding of this check.
fn remedy(check: &str, plant: impl Fn(&mut Snapshot) + 'static) -> String {
    let found: Vec<Finding> = findings_of(plant).into_iter().filter(|finding| finding.check.name() == check).collect();
    assert_eq!(found.len(), 1, "{check}: {found:?}");
    found[0].remedy.clone()
}

/// Puts a fault into a cluster.
type Plant = fn(&mut Snapshot);

#[test]
fn credentials_are_made_for_the_account_that_the_token_names() {
    let plants: [(&str, Plant); 4] = [
        ("harvester-right-missing", |snapshot| denied(false)(snapshot)),
        ("harvester-token-refused", |snapshot| trouble(false, TroubleKind::Unauthorized)(snapshot)),
        ("harvester-certificate-refused", |snapshot| trouble(false, TroubleKind::Certificate)(snapshot)),
        ("harvester-forbids", |snapshot| condition("HarvesterForbidden")(snapshot)),
    ];
    for (check, plant) in plants {
        let known = remedy(check, move |snapshot| {
            plant(snapshot);
            demo(snapshot);
        });
        assert!(
            known.starts_with("harvester-cloud-provider generate-addon demo-account guests --kubeconfig"),
            "{known}"
        );
        assert!(!known.contains('<'), "{known}");
        let unknown = remedy(check, plant);
        assert!(
            unknown.contains("generate-addon <account> guests ") && unknown.contains("by custom demo; "),
            "{unknown}"
        );
        let read = "kubectl --kubeconfig harvester.yaml -n guests get serviceaccounts lists them";
        assert!(unknown.contains(read), "{unknown}");
        let nowhere = remedy(check, move |snapshot| {
            plant(snapshot);
            snapshot.namespace.clear();
            snapshot.harvester.denied.iter_mut().for_each(|right| right.namespace.clear());
        });
        assert!(nowhere.contains("<namespace>: that of the machines; "), "{nowhere}");
    }
    let elsewhere = remedy("harvester-token-refused", |snapshot| {
        trouble(false, TroubleKind::Unauthorized)(snapshot);
        demo(snapshot);
        snapshot.namespace = "default".into();
        snapshot.cloud_config = "Secret kube-system/mine".into();
    });
    assert!(elsewhere.contains("generate-addon <account> default "), "an account of another namespace: {elsewhere}");
    assert!(elsewhere.contains(" --rotate -o secret --secret-name mine | kubectl apply -f -"), "{elsewhere}");
}

/// A Secret is mounted from the namespace of its pod, and `generate-addon` prints one for `kube-system`.
#[test]
fn the_secret_of_a_controller_in_another_namespace_is_written_there() {
    let moved = "| sed 's/namespace: kube-system/namespace: cattle/' | kubectl apply -f -";
    let refused = |plant: Plant| {
        remedy("harvester-token-refused", move |snapshot| {
            trouble(false, TroubleKind::Unauthorized)(snapshot);
            plant(snapshot);
        })
    };
    let mounted = refused(|snapshot| snapshot.cloud_config = "Secret cattle/mine".into());
    assert!(mounted.contains(&format!(" -o secret --secret-name mine {moved}")), "{mounted}");
    let by_a_file = refused(|snapshot| {
        elsewhere(snapshot);
        snapshot.cloud_config = "cloud-config".into();
    });
    assert!(by_a_file.contains(&format!(" -o secret {moved}")), "{by_a_file}");
    let usual = refused(|snapshot| snapshot.cloud_config = "cloud-config".into());
    assert!(usual.contains(" -o secret | kubectl apply -f -"), "{usual}");
}

/// Controller and announcers are in another namespace than in the documents, and the controller has another name.
fn elsewhere(snapshot: &mut Snapshot) {
    let mut object = healthy::deployment("hcp", &["--cloud-config=/x", "--cluster-name=demo"]);
    object["metadata"]["namespace"] = json!("cattle");
    snapshot.deployments = vec![read(object)];
    snapshot.daemon_sets[0].metadata.namespace = Some("cattle".into());
}

#[test]
fn programs_in_another_namespace_are_spoken_to_there() {
    for (check, expected) in [
        ("safe-mode", "kubectl -n cattle exec deployment/hcp -- harvester-cloud-provider identity show     # "),
        ("cluster-copy", "kubectl -n cattle exec deployment/hcp -- harvester-cloud-provider identity rename <name> "),
        ("controller-missing", "kubectl -n cattle rollout restart deployment/hcp     # "),
        ("announcer-silent", "kubectl -n cattle delete pod --field-selector spec.nodeName=node2 -l "),
    ] {
        let (_, plant) = faults().into_iter().find(|(planted, _)| *planted == check).unwrap();
        let said = remedy(check, move |snapshot| {
            elsewhere(snapshot);
            plant(snapshot);
        });
        assert!(said.starts_with(expected), "{check}: {said}");
        assert!(!said.contains("kube-system"), "{check}: {said}");
    }
}

/// Nobody knows what Helm was given.
#[test]
fn each_chart_that_is_to_be_put_in_is_explained_behind_the_command() {
    let mut explained = 0;
    for (check, plant) in all_faults() {
        for finding in planted(&plant).findings {
            let Some((_, note)) = finding.remedy.split_once("<chart>") else { continue };
            assert!(note.split_once('#').is_some_and(|(_, note)| note.contains("<chart>: ")), "{check}: {finding:?}");
            explained += 1;
        }
    }
    assert!(explained >= 6, "{explained}");
}

#[test]
fn helm_is_told_the_release_that_is_installed() {
    let released = remedy("guest-right-missing", |snapshot| {
        denied(true)(snapshot);
        let mut object = healthy::deployment("harvester-cloud-provider", &["--cloud-config=/x", "--cluster-name=demo"]);
        object["metadata"]["labels"] = json!({"helm.sh/chart": "harvester-cloud-provider-0.3.0"});
        object["metadata"]["annotations"] =
            json!({"meta.helm.sh/release-name": "hcp", "meta.helm.sh/release-namespace": "cattle"});
        snapshot.deployments = vec![read(object)];
    });
    assert!(released.starts_with("helm -n cattle upgrade hcp <chart> --reset-then-reuse-values "), "{released}");
    assert!(released.ends_with("that was installed from (harvester-cloud-provider-0.3.0 is installed)"), "{released}");
    let unknown = remedy("guest-right-missing", denied(true));
    assert!(unknown.starts_with("helm -n kube-system upgrade harvester-cloud-provider <chart> "), "{unknown}");
}

#[test]
fn a_pool_is_named_where_only_one_is_meant() {
    let pools = |names: &'static [(&'static str, &'static str, i64)]| {
        move |snapshot: &mut Snapshot| {
            let pool = |(name, subnet, free): &(&str, &str, i64)| {
                read(json!({"metadata": {"name": name}, "spec": {"ranges": [{"subnet": subnet}]},
                    "status": {"total": 9, "available": free}}))
            };
            snapshot.pools = names.iter().map(pool).collect();
        }
    };
    let both: &'static [(&str, &str, i64)] = &[("four", "10.0.0.0/24", 0), ("six", "fd00::/64", 9)];
    let with = move |reason: &'static str, names| {
        findings_of(move |snapshot: &mut Snapshot| {
            condition(reason)(snapshot);
            snapshot.services[1].spec.as_mut().unwrap().ip_families = Some(vec!["IPv6".into()]);
            pools(names)(snapshot);
        })
        .into_iter()
        .find(|finding| finding.check != Check::PoolFull)
        .unwrap()
        .remedy
    };
    let edit = "kubectl --kubeconfig harvester.yaml edit ippools.loadbalancer.harvesterhci.io";
    assert!(with("NoMatchingPool", &both[1..]).starts_with(&format!("{edit} six     # its selector")));
    assert!(with("NoMatchingPool", both).ends_with("<pool>: one of four, six"));
    assert!(with("NoMatchingPool", &[]).ends_with("get ippools.loadbalancer.harvesterhci.io lists them"));
    assert!(with("PoolExhausted", both).starts_with(&format!("{edit} four     # widen a range")));
    assert!(with("WrongFamily", both).ends_with("cloudprovider.harvesterhci.io/ippool=six"));
}

#[test]
fn names_of_clusters_and_keys_are_taken_from_where_they_stand() {
    let unnamed = |snapshot: &mut Snapshot| {
        snapshot.config_maps.clear();
        snapshot.deployments = vec![read(healthy::deployment("harvester-cloud-provider", &["--cloud-config=/x"]))];
    };
    let labelled = remedy("cluster-name-default", unnamed);
    assert!(labelled.contains("--set global.cattle.clusterName=demo "), "{labelled}");
    let disagree = remedy("cluster-name-default", move |snapshot| {
        unnamed(snapshot);
        snapshot.instances[0] = read(healthy::instance("node1", "other"));
    });
    assert!(disagree.contains("clusterName=<name> ") && disagree.contains("(taken: demo, other)"), "{disagree}");
    let flag = remedy("machine-label-missing", |snapshot| {
        snapshot.config_maps.clear();
        snapshot.instances[0] = read(healthy::instance("node1", ""));
    });
    assert!(flag.contains("guestcluster.harvesterhci.io/name=demo "), "{flag}");
    let left = remedy("load-balancer-abandoned", |snapshot| {
        record("possible-orphans", "guests/demo-default-web left\n")(snapshot);
        // A name that stands in the name of the one that was left, and lives.
        let mut living = snapshot.load_balancers[0].clone();
        living.metadata.name = Some("web".into());
        snapshot.load_balancers.push(living);
    });
    assert!(left.contains("delete loadbalancers.loadbalancer.harvesterhci.io demo-default-web "), "{left}");
    assert!(!left.contains(" web "), "{left}");
    let key = |text: &'static str| {
        remedy("cloud-config-key-missing", move |snapshot| {
            snapshot.harvester.trouble = Some(Trouble { kind: TroubleKind::NoKey, text: text.into() });
        })
    };
    assert!(key("Secret a/b has no key c (it has: kubeconfig)").contains("cloudConfig.secretKey=kubeconfig "));
    assert!(key("Secret a/b has no key c (it has: d, e)").contains("cloudConfig.secretKey=<one of these keys> "));
    let limit = remedy("quota-reached", |snapshot| {
        condition("QuotaReached")(snapshot);
        let arguments = ["--cloud-config=/x", "--cluster-name=demo", "--max-load-balancers=10"];
        snapshot.deployments = vec![read(healthy::deployment("harvester-cloud-provider", &arguments))];
    });
    assert!(limit.starts_with("raise --max-load-balancers above 10 in extraArgs "), "{limit}");
    let devices = remedy("cni-autodetection", |snapshot| {
        let map = json!({"metadata": {"name": "cilium-config"}, "data": {"devices": "eth0 vip+"}});
        snapshot.config_maps.insert("cilium-config".into(), read(map));
    });
    assert!(devices.contains("'{\"data\":{\"devices\":\"eth0\"}}'"), "{devices}");
}
