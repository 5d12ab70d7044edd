//! Load balancers: booked, refused, released, repaired, at the pace of the profile.

use super::*;

#[tokio::test]
async fn a_load_balancer_is_booked_and_released_and_comes_back_with_its_address() {
    if !available() {
        return;
    }
    let client = host().client().await;
    let ns = "booking";
    create_machine(&client, ns, "booking-vm").await;
    create_pool(&client, ns, 1, 19).await;
    let lbs: Api<LoadBalancer> = Api::namespaced(client.clone(), ns);
    let pools: Api<IpPool> = Api::all(client.clone());
    let create = async |name: &str| {
        lbs.create(&PostParams::default(), &cluster_lb(ns, name, Ipam::Pool)).await.expect("created")
    };
    let ready = async |name: &str| {
        let is_ready =
            |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.usable_address().is_some() && lb.has_host_finalizer());
        until(&lbs, name, "ready with finalizer", is_ready).await.expect("there")
    };

    let created = create("web").await;
    assert_eq!(created.annotation(loadbalancer::NAMESPACE), Some(ns));
    assert_eq!(created.annotation(loadbalancer::PROJECT), Some("local/p-demo1"));
    assert_eq!(created.annotation(loadbalancer::NETWORK), Some("booking/mgmt"), "found by the VMI's label");
    let web = ready("web").await;
    let address = serde_json::to_value(&web.status.as_ref().unwrap().allocated_address).unwrap();
    assert_eq!(address, json!({"ipPool": ns, "ip": "10.77.1.10", "mask": "255.255.255.0", "gateway": "10.77.1.1"}));
    create("second").await;
    assert_eq!(ready("second").await.usable_address(), Some("10.77.1.11"));

    let mut with_address = ready("web").await;
    with_address.status.as_mut().unwrap().address = Some("10.77.1.10".to_owned());
    lbs.replace("web", &PostParams::default(), &with_address).await.expect("the mailbox is ours");
    lbs.delete("web", &DeleteParams::default()).await.expect("deleted");
    until(&lbs, "web", "gone", |lb| lb.is_none()).await;
    let books = pools.get(ns).await.unwrap().status.unwrap();
    assert_eq!(books.allocated.values().collect::<Vec<_>>(), ["booking/second"]);
    assert_eq!(books.allocated_history.get("10.77.1.10").map(String::as_str), Some("booking/web"));
    assert_eq!((books.total, books.available), (10, 9));

    create("third").await;
    assert_eq!(ready("third").await.usable_address(), Some("10.77.1.12"), "round robin does not turn back");
    create("web").await;
    assert_eq!(ready("web").await.usable_address(), Some("10.77.1.10"), "history brings the address back");

    lbs.create(&PostParams::default(), &cluster_lb(ns, "lease", Ipam::Dhcp)).await.expect("created");
    assert_eq!(ready("lease").await.usable_address(), Some("0.0.0.0"));
}

#[tokio::test]
async fn what_harvester_refuses_is_refused_in_its_words() {
    if !available() {
        return;
    }
    let client = host().client().await;
    let ns = "refusals";
    let lbs: Api<LoadBalancer> = Api::namespaced(client.clone(), ns);
    lbs.create(&PostParams::default(), &cluster_lb(ns, "web", Ipam::Dhcp)).await.expect("created");
    let settled = |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.ready() && lb.has_host_finalizer());
    let mut web = until(&lbs, "web", "ready", settled).await.expect("there");

    web.spec.ipam = Some("pool".to_owned());
    let (code, text) = refusal(lbs.replace("web", &PostParams::default(), &web).await);
    assert_eq!(code, 500);
    assert_eq!(
        text,
        "admission webhook \"validator.harvester-system.harvester-load-balancer-webhook\" denied the request: Internal \
         error occurred: update loadbalancer refusals/web failed: can't change the IPAM from dhcp to pool"
    );

    let mut odd = cluster_lb(ns, "odd", Ipam::Pool);
    odd.spec.ipam = Some("static".to_owned());
    assert_eq!(refusal(lbs.create(&PostParams::default(), &odd).await).0, 422, "the schema has an enum");
    odd.spec.ipam = Some(String::new());
    assert_eq!(refusal(lbs.create(&PostParams::default(), &odd).await).0, 422);

    let mut vm_type = cluster_lb(ns, "vm-type", Ipam::Pool);
    vm_type.spec.workload_type = Some("vm".to_owned());
    assert!(
        refusal(lbs.create(&PostParams::default(), &vm_type).await).1.contains("needs to have at least one listener")
    );

    let mut stale = web.clone();
    stale.spec.ipam = Some("dhcp".to_owned());
    stale.metadata.resource_version = Some("1".to_owned());
    assert_eq!(refusal(lbs.replace("web", &PostParams::default(), &stale).await).0, 409);
    let status = json!({"status": {"address": "10.0.0.1"}});
    let written = lbs.patch_status("web", &PatchParams::default(), &Patch::Merge(&status)).await;
    assert_eq!(refusal(written).0, 404, "there is no status subresource");

    lbs.create(&PostParams::default(), &cluster_lb(ns, "lost", Ipam::Pool)).await.expect("created");
    let unmatched = |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.not_ready_message().is_some());
    let lost = until(&lbs, "lost", "reported", unmatched).await.expect("there");
    assert_eq!(
        lost.not_ready_message(),
        Some("no matched IPPool with requirement &{Network: Project:local/p-demo1 Namespace:refusals Cluster:demo}")
    );

    create_pool(&client, ns, 2, 19).await;
    let pools: Api<IpPool> = Api::all(client.clone());
    let spec = pools.get(ns).await.unwrap().spec;
    let (code, text) = refusal(pools.create(&PostParams::default(), &IpPool::new("overlapping", spec)).await);
    assert!(code == 500 && text.contains("overlap with other pools"), "{code} {text}");
}

#[tokio::test]
async fn an_exhausted_pool_says_so_and_heals_when_an_address_is_freed() {
    if !available() {
        return;
    }
    let client = host().client().await;
    let ns = "pace";
    create_machine(&client, ns, "pace-vm").await;
    create_pool(&client, ns, 3, 10).await;
    let lbs: Api<LoadBalancer> = Api::namespaced(client.clone(), ns);
    let ready =
        |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.usable_address().is_some() && lb.has_host_finalizer());
    lbs.create(&PostParams::default(), &cluster_lb(ns, "first", Ipam::Pool)).await.expect("created");
    until(&lbs, "first", "ready", ready).await;
    lbs.create(&PostParams::default(), &cluster_lb(ns, "second", Ipam::Pool)).await.expect("created");
    let reported = |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.not_ready_message().is_some());
    let second = until(&lbs, "second", "reported", reported).await.expect("there");
    assert_eq!(
        second.not_ready_message(),
        Some("fail to get ip from pool pace, error: no IP addresses available in range set: 10.77.3.10-10.77.3.10")
    );
    lbs.delete("first", &DeleteParams::default()).await.expect("deleted");
    assert_eq!(until(&lbs, "second", "ready", ready).await.unwrap().usable_address(), Some("10.77.3.10"));
}

#[tokio::test]
async fn a_lost_booking_is_repaired_with_the_same_address() {
    if !available() {
        return;
    }
    let client = host().client().await;
    let ns = "repair";
    create_machine(&client, ns, "repair-vm").await;
    create_pool(&client, ns, 4, 19).await;
    let lbs: Api<LoadBalancer> = Api::namespaced(client.clone(), ns);
    let ready =
        |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.usable_address().is_some() && lb.has_host_finalizer());
    for name in ["a", "b"] {
        lbs.create(&PostParams::default(), &cluster_lb(ns, name, Ipam::Pool)).await.expect("created");
        until(&lbs, name, "ready", ready).await;
    }
    let answer = control(host(), "POST", "/lose-booking/repair/a", "").await;
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    assert_eq!(until(&lbs, "a", "ready", ready).await.unwrap().usable_address(), Some("10.77.4.10"));
}

#[tokio::test]
async fn an_address_that_leaked_can_be_released_by_hand() {
    if !available() {
        return;
    }
    let client = host().client().await;
    let ns = "byhand";
    create_machine(&client, ns, "byhand-vm").await;
    create_pool(&client, ns, 5, 19).await;
    let lbs: Api<LoadBalancer> = Api::namespaced(client.clone(), ns);
    let pools: Api<IpPool> = Api::all(client.clone());
    let ready =
        |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.usable_address().is_some() && lb.has_host_finalizer());
    let mut without_ipam = cluster_lb(ns, "leaky", Ipam::Pool);
    without_ipam.spec.ipam = None;
    lbs.create(&PostParams::default(), &without_ipam).await.expect("created");
    until(&lbs, "leaky", "ready", ready).await;

    let by_hand = async || {
        let release =
            json!({"metadata": {"annotations": {loadbalancer::MANUALLY_RELEASE_IP: "10.77.5.10: byhand/leaky"}}});
        pools.patch(ns, &PatchParams::default(), &Patch::Merge(&release)).await.expect("annotated");
        let tidy = |pool: Option<&IpPool>| {
            pool.is_some_and(|pool| !pool.annotations().contains_key(loadbalancer::MANUALLY_RELEASE_IP))
        };
        until(&pools, ns, "tidied", tidy).await.unwrap().status.unwrap()
    };
    assert!(by_hand().await.allocated.contains_key("10.77.5.10"), "the load balancer still exists");
    lbs.delete("leaky", &DeleteParams::default()).await.expect("deleted");
    until(&lbs, "leaky", "gone", |lb| lb.is_none()).await;
    let books = pools.get(ns).await.unwrap().status.unwrap();
    assert!(books.allocated.contains_key("10.77.5.10"), "without an explicit ipam the address leaks");
    let books = by_hand().await;
    assert!(books.allocated.is_empty() && books.available == 10);
    pools.delete(ns, &DeleteParams::default()).await.expect("an empty pool may go");
    until(&pools, ns, "gone", |pool| pool.is_none()).await;
}

/// Host pace spec 5.7, the deterministic check values for thirty load balancers.
#[tokio::test]
async fn the_profile_of_a_real_host_has_its_pace() {
    const COUNT: usize = 30;
    if !available() {
        return;
    }
    let client = real_host().client().await;
    let ns = "pace";
    create_machine(&client, ns, "pace-vm").await;
    create_pool(&client, ns, 4, 99).await;
    let lbs: Api<LoadBalancer> = Api::namespaced(client.clone(), ns);
    let list = async || lbs.list(&ListParams::default()).await.expect("a list");
    let wait_until = async |what: &str, holds: &dyn Fn(&[LoadBalancer]) -> bool| {
        let deadline = Instant::now() + Duration::from_mins(2);
        while !holds(&list().await.items) {
            assert!(Instant::now() < deadline, "not so after two minutes: {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let ready = async |count: usize| {
        let are = |lbs: &[LoadBalancer]| lbs.iter().filter(|lb| lb.usable_address().is_some()).count() >= count;
        wait_until("ready", &are).await;
    };
    // Each write makes a revision of its own: what has to be written, and how long that takes at least, is the host's
    // pace. How much longer it takes is this machine's.
    let revision = async || -> u64 {
        let version = list().await.metadata.resource_version.expect("a list has a version");
        version.parse().expect("a revision of etcd")
    };
    let near = async |what: &str, (begin, before): (Instant, u64), expected: f64, writes: u64| {
        let (took, written) = (begin.elapsed().as_secs_f64(), revision().await - before);
        eprintln!("{what}: {took:.1} s, {written} writes");
        assert!(took > expected * 0.9, "{what}: {took:.1} s, the real host takes {expected} s");
        // The API server renews a Lease of its own now and then.
        let others = 2 + begin.elapsed().as_secs() / 2;
        assert!((writes..=writes + writes / 10 + others).contains(&written), "{what}: {written} writes, not {writes}");
    };
    // The bucket is full again after two seconds.
    let rest = || tokio::time::sleep(Duration::from_secs(3));

    rest().await;
    let begin = (Instant::now(), revision().await);
    for n in 0..COUNT {
        let mut lb = cluster_lb(ns, &format!("one-{n}"), Ipam::Pool);
        lb.metadata.finalizers = Some(vec![harvester::LB_FINALIZER.to_owned()]);
        lbs.create(&PostParams::default(), &lb).await.expect("created");
        ready(n + 1).await;
    }
    near("one at a time with the finalizer", begin, 10.0, 90).await;

    rest().await;
    let begin = (Instant::now(), revision().await);
    for n in 0..COUNT {
        lbs.delete(&format!("one-{n}"), &DeleteParams::default()).await.expect("deleted");
    }
    wait_until("all gone", &<[LoadBalancer]>::is_empty).await;
    near("all deleted at once", begin, 15.6, 90).await;

    rest().await;
    let begin = (Instant::now(), revision().await);
    for n in 0..COUNT {
        let lb = cluster_lb(ns, &format!("dhcp-{n}"), Ipam::Dhcp);
        lbs.create(&PostParams::default(), &lb).await.expect("created");
    }
    ready(COUNT).await;
    near("all at once with DHCP", begin, 9.6, 90).await;
}
