//! A finalizer is not for ever (decision 12), and it does not go before the object is verifiably gone (H14).

use super::*;

const ABANDON: &str = "cloudprovider.harvesterhci.io/abandon";

impl Lab {
    fn user_deletes(&self) {
        self.guest(|service| service.deleting = true);
    }

    /// The user takes the finalizer off and makes the Service again.
    fn user_makes_it_again(&self, change: impl FnOnce(&mut ServiceView)) {
        let mut next = service("default/web").done();
        next.uid = cloud_provider::view::Uid("uid-of-the-next".into());
        change(&mut next);
        self.services.apply(next.key.clone(), next);
    }

    /// As if the deletion had begun two minutes ago.
    fn two_minutes_pass(&self) {
        let begun =
            std::time::Instant::now().checked_sub(Duration::from_mins(2)).expect("the machine is up for longer");
        let mut memory = self.provider.memory();
        memory.not_kept(&key("default/web"));
        memory.kept_since(&key("default/web"), begun);
    }
}

/// The record's ConfigMap, beside everything that [`answer`] knows.
pub(super) fn with_record(lab: Lab) -> (Scenario, Lab) {
    let server = Scenario::answering(|request| match request.method.as_str() {
        "GET" => (404, Scenario::status(404, "NotFound", "configmaps not found")),
        "PATCH" => answer(request, &mut BTreeMap::new(), &mut 0),
        _ => (201, request.body.clone()),
    });
    let requests = Requests::new(server.client(), lab.server.client(), "guests");
    let Lab { server: harvester, stored, conflicts, going, services, nodes, lbs, provider } = lab;
    (
        server,
        Lab {
            server: harvester,
            stored,
            conflicts,
            going,
            services,
            nodes,
            lbs,
            provider: HarvesterLoadBalancers { requests, ..provider },
        },
    )
}

/// The controller tells of a pause, and of nothing else that holds it, on a Service that does not go.
#[test]
fn a_pause_has_the_reason_by_which_the_controller_knows_it() {
    let mut web = service("default/web").done();
    assert_eq!(paused(&web), None);
    web.annotations.insert(PAUSED, "true");
    assert_eq!(paused(&web).expect("a hold").reason, cloud_provider::provider::PAUSED);
}

/// Nobody can take the annotation off a Service that is gone.
#[tokio::test]
async fn the_pause_of_a_service_ends_with_it() {
    let mut web = service("default/web").done();
    web.annotations.insert(PAUSED, "true");
    let lab = Lab::new(vec![web.clone()]);
    assert!(lab.provider.hold(&web).is_some());
    lab.services.remove(&web.key);
    assert_eq!(lab.provider.hold(&web), None);
}

#[tokio::test]
async fn a_deletion_that_takes_long_names_its_escape_and_the_text_does_not_change() {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.served().await;
    lab.user_deletes();
    let Deleted::Waiting(soon) = lab.delete().await else { panic!("the host is releasing") };
    assert!(!soon.needs_user);
    lab.two_minutes_pass();
    let Deleted::Waiting(late) = lab.delete().await else { panic!("the host is releasing") };
    let escape = format!("kubectl annotate service -n default web {ABANDON}={}", lab.name());
    assert!(late.needs_user && late.message.ends_with(&escape), "{}", late.message);
    assert_eq!(lab.delete().await, Deleted::Waiting(late), "one trouble, one Event in ten minutes");
}

#[tokio::test]
async fn a_harvester_that_refuses_the_deletion_for_long_is_a_wait_with_an_escape() {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.served().await;
    lab.user_deletes();
    let away = Scenario::answering(|_| (503, Scenario::status(503, "ServiceUnavailable", "upgrading")));
    let requests = Requests::new(away.client(), away.client(), "guests");
    let lab = Lab { provider: HarvesterLoadBalancers { requests, ..lab.provider }, ..lab };
    let web = lab.service();
    lab.provider.delete(&web).await.unwrap_err();
    lab.two_minutes_pass();
    let Deleted::Waiting(late) = lab.provider.delete(&web).await.unwrap() else {
        panic!("nothing is known to be gone")
    };
    assert!(
        late.needs_user && late.failure && late.message.contains("upgrading") && late.message.contains(ABANDON),
        "{}",
        late.message
    );
}

/// A Service that is deleted, and whose user leaves its load balancer behind: the guest cluster, and the object's name.
async fn abandoned() -> (Scenario, Lab, String) {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.served().await;
    let (guest, lab) = with_record(lab);
    lab.user_deletes();
    let name = lab.name();
    lab.guest(|service| service.annotations.insert(ABANDON, &name));
    (guest, lab, name)
}

#[tokio::test]
async fn an_abandoned_object_is_noted_and_the_service_released() {
    let (guest, lab, name) = abandoned().await;
    let Deleted::Left(left) = lab.delete().await else { panic!("it is not deleted, and nobody waits for it") };
    assert_eq!((left.reason, left.warning), ("AbandonedLoadBalancer", true));
    assert!(left.message.starts_with(&format!("load balancer guests/{name} is left behind")), "{}", left.message);
    let writes = guest.writes();
    assert_eq!((writes.len(), writes[0].method.as_str()), (1, "POST"));
    let noted = writes[0].body["data"]["possible-orphans"].as_str().unwrap();
    assert!(
        noted.starts_with(&format!("guests/{name} of service default/web (uid-of-default-web), abandoned ")),
        "{noted}"
    );
    assert_eq!(lab.sent(), [], "nothing is asked of Harvester");
}

/// What is remembered of the one that is gone has no such annotation, and can get none any more.
#[tokio::test]
async fn the_object_of_a_service_that_was_made_again_is_abandoned_by_the_new_one() {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.served().await;
    let (guest, lab) = with_record(lab);
    lab.user_deletes();
    let (old, name) = (lab.service(), lab.name());
    lab.user_makes_it_again(|next| next.annotations.insert(ABANDON, "something-else"));
    assert!(matches!(lab.provider.delete(&old).await.unwrap(), Deleted::Waiting(_)), "the host keeps it");
    lab.user_makes_it_again(|next| next.annotations.insert(ABANDON, &name));
    let Deleted::Left(left) = lab.provider.delete(&old).await.unwrap() else { panic!("the new one waits for it") };
    assert_eq!((left.reason, left.warning), ("AbandonedLoadBalancer", true));
    assert_eq!(methods(&guest.writes()), ["POST"], "it is noted");
}

/// The sharers leave once the new Service has an address, and it gets one after this deletion only.
#[tokio::test]
async fn a_service_that_was_made_again_does_not_wait_for_those_that_wait_for_it() {
    let second = service("default/second").short(&[("primary", "default/web"), ("ip", IP)]).ports(&["TCP/443"]);
    let joined = second.label("default.web").ingress(IP).done();
    let former = service("default/former").short(&[("ip", IP)]).ingress(IP).done();
    for (what, beside, wants_one, left) in [
        ("a sharer", vec![joined.clone()], true, true),
        ("the new one wants no address, and holds nobody up", vec![joined.clone()], false, false),
        ("and one that is served there still, and goes to an address of its own", vec![joined, former], true, false),
    ] {
        let lab = Lab::new(vec![service("default/web").done()]);
        lab.served().await;
        for other in beside {
            lab.services.apply(other.key.clone(), other);
        }
        lab.user_deletes();
        let old = lab.service();
        let answer = lab.provider.delete(&old).await.unwrap();
        assert!(matches!(answer, Deleted::Waiting(_)), "{what}, and nobody has the name: {answer:?}");
        lab.user_makes_it_again(|next| next.is_load_balancer = wants_one);
        let answer = lab.provider.delete(&old).await.unwrap();
        assert_eq!(matches!(answer, Deleted::Left(_)), left, "{what}: {answer:?}");
        assert_eq!(lab.written(), [], "{what}");
    }
}

/// At each start, the first list is still under way. It shows the object of a move, which is noted, too.
#[tokio::test]
async fn an_object_is_abandoned_after_the_first_list_or_where_harvester_does_not_answer() {
    let (guest, lab, _) = abandoned().await;
    let web = lab.service();
    let status = watch::Sender::new(Status::default());
    let provider = HarvesterLoadBalancers { lbs: lb_cache(), watched: status.subscribe(), ..lab.provider };
    assert!(matches!(provider.delete(&web).await.unwrap(), Deleted::Waiting(_)));
    assert_eq!(guest.writes(), []);
    let error = Some((tokio::time::Instant::now(), "connection refused".to_owned()));
    status.send_modify(|status| status.error = error);
    assert!(matches!(provider.delete(&web).await.unwrap(), Deleted::Left(_)));
    assert_eq!(methods(&guest.writes()), ["POST"]);
}

/// W-34, on this way too.
#[tokio::test]
async fn a_service_that_stays_and_abandons_its_object_keeps_no_address() {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.served().await;
    let (guest, lab) = with_record(lab);
    let name = lab.name();
    lab.guest(|service| {
        service.is_load_balancer = false;
        service.annotations.insert(ABANDON, &name);
    });
    assert!(matches!(lab.delete().await, Deleted::Waiting(_)));
    let writes = guest.writes();
    assert_eq!(methods(&writes), ["PATCH"]);
    assert_eq!(writes[0].body["metadata"]["annotations"]["kube-vip.io/loadbalancerIPs"], Value::Null);
    lab.guest(|service| service.annotations.remove("kube-vip.io/loadbalancerIPs"));
    assert!(matches!(lab.delete().await, Deleted::Left(_)));
}

#[tokio::test]
async fn an_object_can_be_abandoned_where_nothing_can_be_noted() {
    // A webhook that names no code refuses with 400.
    for (code, reason) in [(403, "Forbidden"), (422, "Invalid"), (400, "BadRequest")] {
        let lab = Lab::new(vec![service("default/web").done()]);
        lab.served().await;
        let guest = Scenario::answering(move |request| match request.method.as_str() {
            "GET" => (404, Scenario::status(404, "NotFound", "no record")),
            _ => (code, Scenario::status(code, reason, "field is immutable when `immutable` is set")),
        });
        let requests = Requests::new(guest.client(), lab.server.client(), "guests");
        let lab = Lab { provider: HarvesterLoadBalancers { requests, ..lab.provider }, ..lab };
        lab.user_deletes();
        let name = lab.name();
        lab.guest(|service| service.annotations.insert(ABANDON, &name));
        assert!(matches!(lab.delete().await, Deleted::Left(_)), "{code}: the user waits for ever");
    }
}

#[tokio::test]
async fn only_the_exact_name_abandons_and_only_what_nobody_wants() {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.served().await;
    let (guest, lab) = with_record(lab);
    let name = lab.name();
    lab.guest(|service| service.annotations.insert(ABANDON, "something-else"));
    lab.user_deletes();
    assert!(matches!(lab.delete().await, Deleted::Waiting(_)));
    lab.guest(|service| {
        service.deleting = false;
        service.annotations.insert(ABANDON, &name);
    });
    lab.delete().await;
    assert_eq!(guest.writes(), []);
}

/// Its object counts no more against `--max-load-balancers`, nor its age for the metric.
#[tokio::test]
async fn an_object_that_is_given_up_for_a_shared_address_is_forgotten() {
    let first = service("default/first").ingress("10.20.4.9").ports(&["TCP/443"]).done();
    let lab = Lab::new(vec![service("default/web").done(), first]);
    lab.ensure().await.unwrap();
    assert_eq!(methods(&lab.sent()), ["POST"]);
    lab.watch();
    lab.later();
    lab.guest(|service| {
        service.annotations.insert("cloudprovider.harvesterhci.io/primary-service", "default/first");
    });
    assert_eq!(lab.ensure().await.unwrap(), Ensured::ready(true));
    assert_eq!(methods(&lab.written()), ["PATCH", "DELETE"]);
    lab.watch();
    assert_eq!(lab.provider.memory().unpublished().count(), 0);
    let limit = LoadBalancerConfig { max_load_balancers: Some(1), ..config() };
    assert_eq!(lab.quota_reached(&limit), None);
}

#[tokio::test]
async fn an_object_that_somebody_deletes_before_it_has_an_address_does_not_use_up_the_limit() {
    let mut lab = Lab::new(vec![service("default/web").done(), service("default/other").done()]);
    lab.provider.given.max_load_balancers = Some(1);
    let other = lab.services.get(&key("default/other")).unwrap();
    lab.ensure().await.unwrap();
    lab.sent();
    let refused = lab.provider.ensure(&other).await.unwrap();
    let Ensured::Waiting(waiting) = refused else { panic!("{refused:?}") };
    assert!(waiting.message.contains("--max-load-balancers"), "the watch is behind our POST: {}", waiting.message);
    lab.watch();
    lab.stored.lock().clear();
    lab.watch();
    lab.ensure().await.unwrap();
    assert_eq!(methods(&lab.sent()), ["POST"], "it does not stand in its own way");
    lab.watch();
    lab.stored.lock().clear();
    lab.watch();
    assert_eq!(lab.quota_reached(&lab.provider.config()), None, "nor in that of others");
}

/// Sixteen passes may be under way at a time: none of them sees the object of another one yet.
#[tokio::test]
async fn services_that_come_together_do_not_exceed_the_limit_together() {
    let names = ["default/web", "default/b", "default/c", "default/d"];
    let mut lab = Lab::new(names.iter().map(|name| service(name).short(&[("ipam", "dhcp")]).done()).collect());
    lab.provider.given.max_load_balancers = Some(2);
    let of = |name: &str| lab.services.get(&key(name)).unwrap();
    let all = names.map(of);
    let answers = futures::future::join_all(all.iter().map(|service| lab.provider.ensure(service))).await;
    assert_eq!(methods(&lab.sent()), ["POST", "POST"]);
    let refused = |answer: &&Result<Ensured, ProviderError>| {
        let Ok(Ensured::Waiting(waiting)) = answer else { return false };
        waiting.message.contains("--max-load-balancers")
    };
    assert_eq!(answers.iter().filter(refused).count(), 2, "{answers:?}");
    assert!(lab.provider.memory().passes.under_way.is_empty(), "nothing stays reserved");
}

#[tokio::test]
async fn a_place_whose_object_could_not_be_created_is_free_again() {
    let server = Scenario::answering(|_| (500, Scenario::status(500, "InternalError", "no")));
    let mut lab = Lab::new(vec![service("default/web").short(&[("ipam", "dhcp")]).done()]);
    lab.provider.requests = Requests::new(server.client(), server.client(), "guests");
    lab.provider.given.max_load_balancers = Some(1);
    assert!(lab.ensure().await.is_err());
    assert_eq!(lab.quota_reached(&lab.provider.config()), None);
}

#[tokio::test]
async fn a_deletion_is_finished_when_the_api_says_that_the_object_is_gone() {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.served().await;
    assert!(matches!(lab.delete().await, Deleted::Waiting(waiting) if !waiting.needs_user));
    assert_eq!(methods(&lab.written()), ["DELETE"]);
    assert!(matches!(lab.delete().await, Deleted::Waiting(_)));
    assert_eq!(methods(&lab.sent()), Vec::<&str>::new(), "the host is releasing the address");

    lab.stored.lock().clear();
    lab.watch();
    assert_eq!(lab.delete().await, Deleted::Gone { existed: true });
    assert_eq!(methods(&lab.sent()), ["GET"]);
}

/// Decision 7.
#[tokio::test]
async fn a_young_object_is_deleted_once_the_host_has_finished_booking() {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.ensure().await.unwrap();
    lab.watch();
    lab.sent();
    let Deleted::Waiting(waiting) = lab.delete().await else { panic!() };
    assert!(!waiting.needs_user && waiting.retry_after.is_some_and(|after| after <= booking::BOOKING));
    assert_eq!(methods(&lab.sent()), Vec::<&str>::new());
    lab.host_books();
    lab.watch();
    assert!(matches!(lab.delete().await, Deleted::Waiting(_)));
    assert_eq!(methods(&lab.written()), ["DELETE"]);
    assert_eq!(lab.provider.metrics.possible_leaks.get(), 0);
}

#[tokio::test]
async fn a_deletion_that_waited_in_vain_is_counted_as_a_possible_leak() {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.ensure().await.unwrap();
    lab.delete().await;
    assert_eq!(methods(&lab.sent()), ["POST"], "the host's clock is years behind ours, and the object a moment old");
    lab.later();
    lab.delete().await;
    assert_eq!(methods(&lab.written()), ["DELETE"]);
    assert_eq!(lab.provider.metrics.possible_leaks.get(), 1);
}

/// A cluster that makes and deletes Services all year must not fill the memory with them.
#[tokio::test]
async fn nothing_is_remembered_of_a_service_that_is_gone() {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.ensure().await.unwrap();
    lab.host_books();
    lab.watch();
    lab.ensure().await.unwrap();
    // Deleted before the cache shows our patch, so nobody looks at the Service again.
    assert_eq!(lab.provider.patched.len(), 1);
    lab.delete().await;
    lab.stored.lock().clear();
    lab.watch();
    assert_eq!(lab.delete().await, Deleted::Gone { existed: true });
    assert_eq!(lab.provider.patched.len(), 0);
    assert!(lab.provider.memory().is_empty());
}

/// The same when there is no such object any more when it is read for the last time.
#[tokio::test]
async fn nothing_is_remembered_of_a_service_whose_object_somebody_else_deleted() {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.ensure().await.unwrap();
    lab.later();
    lab.stored.lock().clear();
    assert_eq!(lab.delete().await, Deleted::Gone { existed: true });
    assert_eq!(methods(&lab.written()), ["POST"]);
    assert!(lab.provider.memory().is_empty());
}

/// A former leader has handed it over, or somebody has labelled it anew, and the watch is behind.
#[tokio::test]
async fn an_object_that_is_another_services_by_now_is_not_deleted_on_the_word_of_a_cache() {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.served().await;
    lab.user_deletes();
    lab.host(|object| {
        object["metadata"]["labels"]["cloudprovider.harvesterhci.io/serviceName"] = json!("other");
        object["metadata"]["annotations"]["cloudprovider.harvesterhci.io/serviceUID"] = json!("uid-of-default-other");
    });
    let _ = lab.provider.delete(&lab.service()).await;
    assert_eq!(lab.written(), []);
    assert!(!lab.stored.lock().is_empty());
}

/// What the cache shows of a Service may be older than what its user wants by now.
#[tokio::test]
async fn a_service_that_is_a_load_balancer_again_keeps_its_object_whatever_a_cache_shows() {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.served().await;
    let former = ServiceView { is_load_balancer: false, ..lab.service() };
    let Deleted::Waiting(waiting) = lab.provider.delete(&former).await.unwrap() else { panic!("it is wanted") };
    assert!(waiting.message.contains("wants its load balancer"), "{waiting:?}");
    assert_eq!(lab.written(), []);
}

/// The turn is given back at once: until then nobody else's load balancer is made or deleted.
#[tokio::test]
async fn a_deletion_that_cannot_read_its_service_keeps_nobody_else_waiting() {
    let mut lab = Lab::new(vec![service("default/web").done()]);
    lab.served().await;
    lab.user_deletes();
    let away = Scenario::answering(|_| (500, Scenario::status(500, "InternalError", "etcd is away")));
    lab.provider.requests = Requests::new(away.client(), lab.server.client(), "guests");
    lab.provider.delete(&lab.service()).await.unwrap_err();
    assert_eq!(lab.sent(), []);
    lab.provider.ensure(&service("default/api").done()).await.unwrap();
    assert_eq!(methods(&lab.sent()), ["POST"]);
}

/// W-04.
#[tokio::test]
async fn an_object_whose_address_was_never_published_is_deleted_too() {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.ensure().await.unwrap();
    lab.later();
    lab.sent();
    assert!(matches!(lab.delete().await, Deleted::Waiting(_)));
    assert_eq!(methods(&lab.written()), ["DELETE"]);
    assert!(lab.stored.lock().is_empty());
}

#[tokio::test]
async fn an_object_that_no_cache_shows_is_found_and_deleted() {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.ensure().await.unwrap();
    lab.provider.objects.forget(&lab.name());
    lab.sent();
    assert!(matches!(lab.delete().await, Deleted::Waiting(_)));
    assert_eq!(methods(&lab.sent()), ["GET"], "a first sight: the host may be booking");
    lab.later();
    assert!(matches!(lab.delete().await, Deleted::Waiting(_)));
    assert_eq!(methods(&lab.written()), ["DELETE"]);
}

#[tokio::test]
async fn a_service_that_never_had_an_object_costs_one_read() {
    let lab = Lab::new(vec![service("default/web").short(&[("primary", "default/gone")]).done()]);
    assert_eq!(lab.delete().await, Deleted::Gone { existed: false });
    assert_eq!(methods(&lab.sent()), ["GET"]);
}

/// The Service is shown to the controller, which wakes default/web.
async fn wakes_web(lab: &Lab, shown: ServiceView) {
    let mut wakes = lab.provider.wakes();
    // What is there when the stream begins.
    while tokio::time::timeout(Duration::from_millis(50), wakes.next()).await.is_ok() {}
    lab.services.apply(shown.key.clone(), shown);
    let woken = tokio::time::timeout(Duration::from_secs(5), async {
        while wakes.next().await.expect("a stream without end") != key("default/web") {}
    });
    woken.await.expect("woken");
}

#[tokio::test]
async fn a_deletion_waits_for_who_is_still_served_at_the_address_and_is_woken_when_nobody_is() {
    let former = service("default/former").short(&[("ip", IP)]).ingress(IP).done();
    let lab = Lab::new(vec![service("default/web").done(), former]);
    lab.served().await;
    lab.user_deletes();
    let Deleted::Waiting(waiting) = lab.delete().await else { panic!("it is used") };
    assert!(
        waiting.needs_user && waiting.message.contains("because default/former shares its address"),
        "{}",
        waiting.message
    );
    assert_eq!(lab.sent(), []);
    wakes_web(&lab, service("default/former").short(&[("ip", "10.20.4.7")]).done()).await;
    lab.delete().await;
    assert_eq!(methods(&lab.written()), ["DELETE"]);
}

/// The Service was deleted while no controller ran that would have completed the object.
#[tokio::test]
async fn an_object_without_a_mode_is_deleted_and_counted_as_a_possible_leak() {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.served().await;
    lab.host(|object| object["spec"].as_object_mut().unwrap().remove("ipam").map(drop).unwrap());
    lab.watch();
    lab.user_deletes();
    lab.delete().await;
    assert_eq!(methods(&lab.written()), ["DELETE"]);
    assert_eq!(lab.provider.metrics.possible_leaks.get(), 1);
}

/// The lease is the owner's, and ends with it.
#[tokio::test]
async fn a_deletion_waits_for_who_is_still_served_at_the_lease() {
    let lab = Lab::new(vec![service("default/web").short(&[("ipam", "dhcp")]).done()]);
    lab.ensure().await.unwrap();
    lab.host(|object| booked(object, "0.0.0.0"));
    lab.watch();
    lab.ensure().await.unwrap();
    lab.guest(|service| {
        service.annotations.insert("kube-vip.io/loadbalancerIPs", "0.0.0.0");
        service.ingress = vec![IP.parse().unwrap()];
    });
    let former = |label, ip| service("default/former").short(&[("ip", ip)]).label(label).ingress(ip).done();
    lab.services.apply(key("default/former"), former("default.web", IP));
    lab.user_deletes();
    lab.sent();
    let Deleted::Waiting(waiting) = lab.delete().await else { panic!("it is used") };
    assert!(
        waiting.needs_user && waiting.message.contains("because default/former shares its address"),
        "{}",
        waiting.message
    );
    assert_eq!(methods(&lab.written()), [""; 0]);
    wakes_web(&lab, former("", "10.20.4.7")).await;
    lab.delete().await;
    assert_eq!(methods(&lab.written()), ["DELETE"]);
}
