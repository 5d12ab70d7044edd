//! What a guest cluster has on the host: rights, machines, kinds; faults on demand, and the end of the cluster.

use super::*;

#[tokio::test]
async fn a_guests_rights_are_those_of_harvester_and_no_more() {
    if !available() {
        return;
    }
    let admin = host().client().await;
    let ns = "rights";
    let guest = guest_client(host(), &admin, ns).await;
    let lbs: Api<LoadBalancer> = Api::namespaced(guest.clone(), ns);
    lbs.create(&PostParams::default(), &cluster_lb(ns, "web", Ipam::Dhcp)).await.expect("create is granted");
    lbs.list(&ListParams::default()).await.expect("list is granted");
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"a": "b"}}}));
    assert_eq!(refusal(lbs.patch("web", &PatchParams::default(), &patch).await).0, 403, "patch is not");
    let everywhere: Api<LoadBalancer> = Api::all(guest.clone());
    assert_eq!(refusal(everywhere.list(&ListParams::default()).await).0, 403, "the binding is for one namespace");
    let pools: Api<IpPool> = Api::all(guest.clone());
    assert_eq!(refusal(pools.list(&ListParams::default()).await).0, 403);
    let elsewhere: Api<VirtualMachineInstance> = Api::namespaced(guest, "booking");
    assert_eq!(refusal(elsewhere.list(&ListParams::default()).await).0, 403);
}

#[tokio::test]
async fn machines_show_power_addresses_migration_and_agent() {
    if !available() {
        return;
    }
    let admin = host().client().await;
    let ns = "agents";
    let guest = guest_client(host(), &admin, ns).await;
    let machines = Machines::new(admin.clone());
    machines.save(&create_machine(&admin, ns, "vm-1").await.called("node-1.example.org")).await.expect("saved");
    let vms: Api<VirtualMachine> = Api::namespaced(guest.clone(), ns);
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(guest.clone(), ns);

    let ask = async || {
        let path = format!("{}/vm-1/{}", GuestOsInfo::collection_path(ns), GuestOsInfo::SUBRESOURCE);
        let request = http::Request::get(path).body(Vec::new()).expect("a request");
        guest.request::<GuestOsInfo>(request).await
    };
    // The aggregator needs a moment to find a new service reachable.
    let deadline = Instant::now() + Duration::from_secs(30);
    let info = loop {
        match ask().await {
            Ok(info) => break info,
            Err(error) => assert!(Instant::now() < deadline, "no answer after 30 s: {error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(info.hostname, "node-1.example.org");
    machines.agent(ns, "vm-1", false).await.expect("silenced");
    let (code, text) = refusal(ask().await);
    assert!(code == 500 && text.contains("guest agent"), "{code} {text}");
    assert!(vmis.get("vm-1").await.unwrap().interface("nic-0").unwrap().addresses().next().is_none());
    machines.agent(ns, "vm-1", true).await.expect("connected");

    machines.addresses(ns, "vm-1", "nic-0", &["10.20.0.99".to_owned()]).await.expect("changed");
    let vmi = vmis.get("vm-1").await.unwrap();
    assert_eq!(vmi.interface("nic-0").unwrap().addresses().collect::<Vec<_>>(), ["10.20.0.99"]);

    machines.start_migration(ns, "vm-1", "host-2").await.expect("started");
    assert!(vmis.get("vm-1").await.unwrap().migrating());
    let moved = MigrationOutcome::Moved { region: Some("lab"), zone: Some("rack-2") };
    machines.finish_migration(ns, "vm-1", moved).await.expect("finished");
    let vmi = vmis.get("vm-1").await.unwrap();
    assert_eq!(vmi.annotation("topology.kubernetes.io/zone"), Some("rack-2"));
    assert!(!vmi.migrating());

    let (vm_uid, vmi_uid) = (vms.get("vm-1").await.unwrap().uid().map(ToOwned::to_owned), vmi.metadata.uid);
    machines.power(ns, "vm-1", false).await.expect("switched off");
    assert!(vmis.get_opt("vm-1").await.unwrap().is_none());
    assert!(!vms.get("vm-1").await.unwrap().status.created);
    machines.power(ns, "vm-1", true).await.expect("switched on");
    assert_eq!(vms.get("vm-1").await.unwrap().uid(), vm_uid.as_deref(), "the VM is the stable identity");
    assert_ne!(vmis.get("vm-1").await.unwrap().metadata.uid, vmi_uid, "the instance is new");
    machines.delete(ns, "vm-1", false).await.expect("deleted");
    assert!(vms.get_opt("vm-1").await.unwrap().is_none());
}

#[tokio::test]
async fn faults_can_be_switched_while_it_runs() {
    if !available() {
        return;
    }
    let admin = host().client().await;
    let ns = "faults";
    let guest = guest_client(host(), &admin, ns).await;
    let lbs: Api<LoadBalancer> = Api::namespaced(guest, ns);
    let create = async |name: &str| lbs.create(&PostParams::default(), &cluster_lb(ns, name, Ipam::Dhcp)).await;

    set_faults(host(), ns, json!({"refuseCreates": "out of order"})).await;
    let (code, text) = refusal(create("a").await);
    assert!(code == 500 && text.contains("denied the request: Internal error occurred: out of order"), "{code} {text}");

    set_faults(host(), ns, json!({"webhookOutage": true})).await;
    let (code, text) = refusal(create("a").await);
    assert!(code == 500 && text.contains("failed calling webhook"), "{code} {text}");

    set_faults(host(), ns, json!({"neverReady": "the moon is full"})).await;
    create("a").await.expect("created");
    let told = |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.not_ready_message() == Some("the moon is full"));
    until(&lbs, "a", "told", told).await;
    set_faults(host(), ns, json!({"allocationDelayMs": 500})).await;
    let ready =
        |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.usable_address().is_some() && lb.has_host_finalizer());
    until(&lbs, "a", "ready", ready).await;
    let start = Instant::now();
    create("b").await.expect("created");
    until(&lbs, "b", "ready", ready).await;
    assert!(start.elapsed() >= Duration::from_millis(500), "after {:?}", start.elapsed());

    set_faults(host(), ns, json!({"conflicts": 1})).await;
    let mut b = lbs.get("b").await.unwrap();
    b.annotations_mut().insert("x".to_owned(), "y".to_owned());
    assert_eq!(refusal(lbs.replace("b", &PostParams::default(), &b).await).0, 409);
    let mut b = lbs.get("b").await.unwrap();
    b.annotations_mut().insert("x".to_owned(), "y".to_owned());
    lbs.replace("b", &PostParams::default(), &b).await.expect("one conflict only");

    let answer = control(host(), "PUT", "/faults/faults", r#"{"typo": 1}"#).await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("typo"), "{answer}");
}

#[tokio::test]
async fn tearing_down_a_guest_cluster_takes_its_load_balancers_and_refuses_new_ones() {
    if !available() {
        return;
    }
    let client = host().client().await;
    let ns = "teardown";
    create_machine(&client, ns, "vm-1").await;
    create_machine(&client, ns, "vm-2").await;
    let vms: Api<VirtualMachine> = Api::namespaced(client.clone(), ns);
    for name in ["vm-1", "vm-2"] {
        let guarded = |vm: Option<&VirtualMachine>| vm.is_some_and(|vm| vm.finalizers().iter().any(|f| f == FINALIZER));
        until(&vms, name, "guarded by a finalizer", guarded).await;
    }
    let lbs: Api<LoadBalancer> = Api::namespaced(client.clone(), ns);
    let ready = |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.ready() && lb.has_host_finalizer());
    for (name, cluster) in [("ours", "demo"), ("theirs", "other")] {
        let mut lb = cluster_lb(ns, name, Ipam::Dhcp);
        lb.labels_mut().insert(cloudprovider::CLUSTER.to_owned(), cluster.to_owned());
        lbs.create(&PostParams::default(), &lb).await.expect("created");
        until(&lbs, name, "ready", ready).await;
    }
    let mark = json!({"metadata": {"annotations": {harvester::REMOVE_ALL_VOLUMES: "true"}}});
    vms.patch("vm-2", &PatchParams::default(), &Patch::Merge(&mark)).await.expect("marked");
    let (code, text) = refusal(lbs.create(&PostParams::default(), &cluster_lb(ns, "late", Ipam::Dhcp)).await);
    assert!(code == 500 && text.contains("shows guest cluster demo is being removed"), "{code} {text}");

    Machines::new(client.clone()).delete(ns, "vm-1", true).await.expect("deleted");
    until(&lbs, "ours", "gone", |lb| lb.is_none()).await;
    assert!(lbs.get_opt("theirs").await.unwrap().is_some());
}

#[tokio::test]
async fn every_kind_is_served_as_the_host_serves_it() {
    if !available() {
        return;
    }
    let client = host().client().await;
    let nads = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition"),
        "network-attachment-definitions",
    );
    let nads: Api<DynamicObject> = Api::namespaced_with(client.clone(), "booking", &nads);
    assert_eq!(nads.get("mgmt").await.unwrap().labels().get(harvester::VLAN_ID).map(String::as_str), Some("100"));
    let lb = json!({"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": "listeners", "namespace": "pace"},
        "spec": {"workloadType": "vm", "ipam": "dhcp", "listeners": [{"name": "a", "port": 80, "backendPort": 8080}],
                 "healthCheck": {"port": 8080}}});
    let lbs: Api<LoadBalancer> = Api::namespaced(client, "pace");
    let (_, text) =
        refusal(lbs.create(&PostParams::default(), &serde_json::from_value(lb.clone()).unwrap()).await.map(drop).and(
            // The mutator fills the thresholds in, so this one is accepted; the next has a port that nobody listens on.
            {
                let mut bad = lb;
                bad["metadata"]["name"] = json!("bad");
                bad["spec"]["healthCheck"]["port"] = json!(9);
                lbs.create(&PostParams::default(), &serde_json::from_value(bad).unwrap()).await
            },
        ));
    assert!(text.contains("healthcheck port 9 is not in listener backend port list"), "{text}");
    let stored = lbs.get("listeners").await.unwrap();
    assert_eq!(stored.spec.other["listeners"][0]["protocol"], "TCP", "the default of the deployed schema");
    assert_eq!(
        stored.spec.other["healthCheck"],
        json!({"port": 8080, "successThreshold": 2, "failureThreshold": 2, "periodSeconds": 1, "timeoutSeconds": 1})
    );
}
