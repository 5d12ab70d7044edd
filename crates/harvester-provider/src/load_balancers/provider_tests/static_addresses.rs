//! A static address inside a pool: who is told, who keeps it, and who is woken when it is free.

use super::super::super::build::node;
use super::*;

fn fixed() -> ServiceView {
    service("default/fixed").short(&[("ipam", "static"), ("want", IP)]).done()
}

#[tokio::test]
async fn an_address_that_a_static_service_uses_is_not_published_until_that_one_gives_it_up() {
    let user = service("default/fixed").short(&[("ipam", "static"), ("want", IP), ("ip", IP)]).ingress(IP).done();
    let lab = Lab::new(vec![service("default/web").done(), user]);
    lab.ensure().await.unwrap();
    lab.host_books();
    lab.watch();
    lab.sent();
    let Ensured::Waiting(told) = lab.ensure().await.unwrap() else { panic!("published") };
    assert!(told.needs_user && told.message.contains("service default/fixed has it"), "{told:?}");
    assert_eq!(methods(&lab.sent()), [""; 0]);
    lab.services.apply(key("default/fixed"), fixed());
    lab.ensure().await.unwrap();
    assert_eq!(methods(&lab.sent()), ["PATCH"], "who only wants it has no claim");
}

/// Both objects are ready, and both passes are under way: neither Service shows the address yet.
#[tokio::test]
async fn of_two_static_services_that_come_together_one_gets_the_address_and_the_other_is_told() {
    let fixed = |name| service(name).short(&[("ipam", "static"), ("want", IP)]).done();
    let lab = Lab::new(vec![fixed("default/web"), fixed("default/late")]);
    let (web, late) = (fixed("default/web"), fixed("default/late"));
    for service in [&web, &late] {
        lab.provider.ensure(service).await.unwrap();
    }
    lab.stored.lock().values_mut().for_each(|object| {
        booked(object, "0.0.0.0");
        bump(object);
    });
    lab.watch();
    lab.sent();
    let (first, second) = tokio::join!(lab.provider.ensure(&web), lab.provider.ensure(&late));
    assert_eq!(methods(&lab.sent()), ["PATCH"]);
    assert_eq!(first.unwrap(), Ensured::ready(true));
    let Ensured::Waiting(waiting) = second.unwrap() else { panic!("published twice") };
    assert!(!waiting.needs_user && waiting.retry_after.is_some(), "the other one may fail yet: {waiting:?}");
    let error = lab.provider.ensure(&late).await.unwrap_err();
    assert!(error.message.contains("already used by service default/web"), "{error:?}");
    assert!(lab.provider.memory().passes.under_way.is_empty());
}

/// The pool was made anew between two bookings, and both passes are under way: neither Service shows the address yet.
#[tokio::test]
async fn of_two_services_that_come_together_with_one_booking_one_gets_the_address_and_the_other_is_told() {
    let (web, late) = (service("default/web").done(), service("default/late").done());
    let lab = Lab::new(vec![web.clone(), late.clone()]);
    for service in [&web, &late] {
        lab.provider.ensure(service).await.unwrap();
        lab.provider.pacer.failed(&object_name(&config(), service));
    }
    lab.stored.lock().values_mut().for_each(|object| {
        booked(object, IP);
        bump(object);
    });
    lab.watch();
    assert_eq!(methods(&lab.sent()), ["POST", "POST"]);
    let (first, second) = tokio::join!(lab.provider.ensure(&web), lab.provider.ensure(&late));
    assert_eq!(methods(&lab.sent()), ["PATCH"]);
    assert_eq!(first.unwrap(), Ensured::ready(true));
    let Ensured::Waiting(waiting) = second.unwrap() else { panic!("published twice") };
    assert!(!waiting.needs_user && waiting.retry_after.is_some(), "the other one may fail yet: {waiting:?}");
    let Ensured::Waiting(told) = lab.provider.ensure(&late).await.unwrap() else { panic!("published twice") };
    assert!(told.needs_user && told.message.contains("service default/web has it"), "{}", told.message);
    // Both show it, as a former version left them: neither waits for the other.
    let both = [web, late].map(|service| {
        let mut served = service;
        served.annotations.insert(kube_vip::LOADBALANCER_IPS, IP);
        served.ingress = vec![IP.parse().unwrap()];
        served
    });
    for service in &both {
        lab.services.apply(service.key.clone(), service.clone());
    }
    for served in both {
        assert!(matches!(lab.provider.ensure(&served).await.unwrap(), Ensured::Ready { .. }));
    }
}

/// The pool was made anew, or the host restored: it books an address that another Service has had for long.
#[tokio::test]
async fn an_address_that_another_living_service_shows_is_not_published_twice_whatever_the_host_books() {
    let before = service("default/before").short(&[("ip", IP)]).ingress(IP).done();
    let lab = Lab::new(vec![service("default/web").done(), before.clone()]);
    lab.ensure().await.unwrap();
    lab.stored.lock().values_mut().for_each(|object| {
        booked(object, IP);
        bump(object);
    });
    lab.watch();
    lab.sent();
    let Ensured::Waiting(waiting) = lab.ensure().await.unwrap() else { panic!("published twice") };
    assert!(waiting.needs_user && waiting.message.contains("service default/before has it"), "{}", waiting.message);
    assert_eq!(methods(&lab.sent()), [""; 0]);
    // It has gone over to another address.
    let moved = service("default/before").short(&[("ip", "10.20.4.99")]).ingress("10.20.4.99").done();
    lab.services.apply(moved.key.clone(), moved);
    lab.ensure().await.unwrap();
    assert_eq!(methods(&lab.sent()), ["PATCH"]);
    // Who shows it already goes on.
    lab.services.apply(before.key.clone(), before);
    assert!(matches!(lab.ensure().await.unwrap(), Ensured::Ready { .. }));
}

#[tokio::test]
async fn a_static_service_is_woken_when_the_address_that_it_was_refused_is_free() {
    let lab = Lab::new(vec![service("default/web").done(), fixed()]);
    lab.served().await;
    let error = lab.provider.ensure(&fixed()).await.unwrap_err();
    assert!(error.message.contains("already used by service default/web"), "{error:?}");
    let mut wakes = lab.provider.wakes();
    // What is there when the stream begins.
    while tokio::time::timeout(Duration::from_millis(50), wakes.next()).await.is_ok() {}
    lab.services.remove(&key("default/web"));
    let woken = tokio::time::timeout(Duration::from_secs(5), async {
        while wakes.next().await.expect("a stream without end") != key("default/fixed") {}
    });
    woken.await.expect("woken");
}

#[tokio::test]
async fn a_static_service_that_was_refused_a_nodes_address_is_woken_when_the_node_is_gone() {
    let lab = Lab::new(vec![fixed()]);
    let error = |result: Result<Ensured, ProviderError>| result.unwrap_err().message;
    lab.services.apply(
        key("default/web"),
        ServiceView { cluster_ips: vec![IP.parse().unwrap()], ..service("default/web").done() },
    );
    assert!(error(lab.provider.ensure(&fixed()).await).contains("the ClusterIP of service default/web"));
    lab.nodes.apply("worker-1".to_owned(), node("worker-1", &[IP]));
    assert!(error(lab.provider.ensure(&fixed()).await).contains("that of node worker-1"));
    let served = service("default/fixed").short(&[("ipam", "static"), ("want", IP), ("ip", IP)]).ingress(IP).done();
    assert!(lab.provider.ensure(&served).await.is_ok(), "clients have been told of it");
    for release in
        [|lab: &Lab| lab.nodes.remove(&"worker-1".to_owned()), |lab: &Lab| lab.services.remove(&key("default/web"))]
    {
        let mut wakes = lab.provider.wakes();
        // What is there when the stream begins.
        while tokio::time::timeout(Duration::from_millis(50), wakes.next()).await.is_ok() {}
        release(&lab);
        let woken = tokio::time::timeout(Duration::from_secs(5), async {
            while wakes.next().await.expect("a stream without end") != key("default/fixed") {}
        });
        woken.await.expect("woken");
    }
}

/// The host shows a tenant the gateway of each range that it has an address of. Which load balancer shows it is no
/// matter: a text that changed with them would be written each time.
#[tokio::test]
async fn a_static_address_is_not_that_of_a_gateway_and_the_text_names_the_network_alone() {
    let greedy = service("default/greedy").short(&[("ipam", "static"), ("want", "10.20.0.1")]).done();
    for (networks, expected) in [
        (&["guests/mgmt"][..], "the gateway of network guests/mgmt on Harvester: name another one"),
        (&["guests/mgmt", "guests/mgmt"], "the gateway of network guests/mgmt on Harvester: name another one"),
        (&[""], "the gateway of a network on Harvester: name another one"),
        (&["guests/mgmt", ""], "the gateway of network guests/mgmt on Harvester: name another one"),
        (&["", "guests/mgmt"], "the gateway of network guests/mgmt on Harvester: name another one"),
    ] {
        let names: Vec<String> = (0..networks.len()).map(|number| format!("default/web-{number}")).collect();
        let lab = Lab::new(names.iter().map(|name| service(name).done()).collect());
        for (name, network) in names.iter().zip(networks) {
            let web = service(name).done();
            lab.provider.ensure(&web).await.unwrap();
            let mut stored = lab.stored.lock();
            let object = stored.get_mut(&object_name(&config(), &web)).expect("an object");
            booked(object, IP);
            object["metadata"]["annotations"]["loadbalancer.harvesterhci.io/network"] = json!(network);
            object["status"]["allocatedAddress"]["gateway"] = json!("10.20.0.1");
            bump(object);
            drop(stored);
            lab.provider.pacer.failed(&object_name(&config(), &web));
        }
        lab.watch();
        let error = lab.provider.ensure(&greedy).await.unwrap_err();
        assert!(error.message.contains(expected), "{networks:?}: {error:?}");
        assert!(!error.message.contains("web-"), "{error:?}");
    }
}

#[tokio::test]
async fn a_secondary_that_asks_for_its_primarys_address_as_a_static_one_is_refused_and_the_primary_keeps_it() {
    let former = service("default/former")
        .short(&[("ipam", "static"), ("want", IP), ("ip", IP)])
        .label("default.web")
        .ingress(IP)
        .done();
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.served().await;
    lab.services.apply(former.key.clone(), former.clone());
    let error = lab.provider.ensure(&former).await.unwrap_err();
    assert!(error.message.contains("already used by service default/web"), "{error:?}");
    assert_eq!(lab.ensure().await.unwrap(), Ensured::ready(false));
    assert_eq!(lab.sent(), []);
}

/// Every account that may write a Service may write its annotations and labels, and a paused Service keeps them.
fn forger(annotations: &[(&str, &str)]) -> ServiceView {
    let mut forger = service("tenant/forger").short(annotations).label("default.web").done();
    forger.annotations.insert(PAUSED, "true");
    forger
}

#[tokio::test]
async fn what_a_service_of_another_namespace_merely_shows_keeps_no_address_from_anybody() {
    let lab = Lab::new(vec![service("default/web").done()]);
    for shown in [&[("ip", "10.20.4.7, 10.20.4.1")][..], &[("ip", IP), ("ipam", "static"), ("want", IP)]] {
        for forger in [forger(shown), ServiceView { labels: cloud_provider::view::Tags::default(), ..forger(shown) }] {
            let lab = Lab::new(vec![service("default/web").done(), forger]);
            lab.ensure().await.unwrap();
            lab.host_books();
            lab.watch();
            lab.sent();
            assert!(matches!(lab.ensure().await.unwrap(), Ensured::Ready { .. }), "{shown:?}");
            assert_eq!(methods(&lab.sent()), ["PATCH"]);
        }
    }
    lab.served().await;
    lab.services.apply(key("tenant/forger"), forger(&[("ip", IP)]));
    lab.guest(|service| service.deleting = true);
    let deleted = lab.delete().await;
    assert_eq!(methods(&lab.written()), ["DELETE"], "{deleted:?}");
}

/// Neither is served yet. The load balancer on Harvester tells which one the controller has given the address to.
#[tokio::test]
async fn of_two_static_services_of_different_namespaces_the_one_with_a_load_balancer_keeps_the_address() {
    let late = || service("tenant/late").short(&[("ipam", "static"), ("want", IP)]).done();
    let mut web = fixed();
    web.key = key("default/web");
    let lab = Lab::new(vec![web, late()]);
    lab.ensure().await.unwrap();
    lab.host(|object| booked(object, "0.0.0.0"));
    lab.watch();
    lab.ensure().await.unwrap();
    lab.guest(|service| service.annotations.insert("kube-vip.io/loadbalancerIPs", IP));
    let error = lab.provider.ensure(&late()).await.unwrap_err();
    assert!(error.message.contains("already used by service default/web"), "{error:?}");
    lab.lbs.replace(BTreeMap::new());
    assert!(lab.provider.ensure(&late()).await.is_ok(), "it shows the address, and nobody has given it that");
}

/// The pool was made anew: Harvester books an address that it has booked for another Service, which is not served yet.
#[tokio::test]
async fn an_address_that_was_given_to_a_service_of_another_namespace_is_not_published_twice() {
    let before = service("tenant/before").short(&[("ip", IP)]).done();
    let lab = Lab::new(vec![service("default/web").done(), before.clone()]);
    lab.ensure().await.unwrap();
    lab.host_books();
    let mut theirs = lab.stored.lock().values().next().expect("an object").clone();
    theirs["metadata"]["name"] = json!(object_name(&config(), &before));
    theirs["metadata"]["labels"] = json!({});
    lab.stored.lock().insert(object_name(&config(), &before), theirs);
    lab.watch();
    let Ensured::Waiting(waiting) = lab.ensure().await.unwrap() else { panic!("published twice") };
    assert!(waiting.message.contains("service tenant/before has it"), "{}", waiting.message);
}
