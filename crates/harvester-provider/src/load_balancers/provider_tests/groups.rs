//! Members of a group share one address, and hand it over when its holder goes.

use super::*;

fn member(name: &str, created: i64, port: &str) -> ServiceView {
    service(name).short(&[("group", "edge")]).created(created).ports(&[port]).done()
}

/// Its UID is the cluster's, which proves whose an object is.
fn cluster() -> ServiceView {
    ServiceView { is_load_balancer: false, ..service("default/kubernetes").done() }
}

/// A group whose older member, `default/web`, holds the address, and whose younger one has it too.
async fn sharing() -> Lab {
    let lab = Lab::new(vec![cluster(), member("default/web", 1, "TCP/80"), member("default/second", 2, "TCP/443")]);
    let Ensured::Waiting(waiting) = lab.ensure_named("default/second").await.unwrap() else {
        panic!("it is not first")
    };
    assert!(waiting.message.starts_with("primary service default/web has no address "), "{}", waiting.message);
    assert_eq!(lab.sent(), [], "the older member makes the object, whoever is looked at first");
    lab.served().await;
    assert_eq!(lab.ensure_named("default/second").await.unwrap(), Ensured::ready(true));
    let sent = lab.sent();
    assert_eq!((methods(&sent), sent[0].path.as_str()), (vec!["PATCH"], format!("{SERVICES}second").as_str()));
    assert_eq!(sent[0].body["metadata"]["annotations"]["kube-vip.io/loadbalancerIPs"], IP);
    lab.change("default/second", |service| {
        service.annotations.insert("kube-vip.io/loadbalancerIPs", IP);
        service.labels.insert("cloudprovider.harvesterhci.io/primary-service", "default.web");
        service.ingress = vec![IP.parse().unwrap()];
    });
    lab
}

impl Lab {
    fn view(&self, name: &str) -> ServiceView {
        self.services.get(&key(name)).unwrap().as_ref().clone()
    }

    async fn ensure_named(&self, name: &str) -> Result<Ensured, ProviderError> {
        self.provider.ensure(&self.view(name)).await
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut ServiceView)) {
        let mut service = self.view(name);
        change(&mut service);
        service.resource_version = "9001".into();
        self.services.apply(service.key.clone(), service);
    }
}

const LATE_IP: &str = "10.20.4.2";

/// The POST of a process that led before and saw nobody else in the group arrives now, and the host books an address
/// for it. Gives the object's name.
async fn arrives_late(lab: &Lab, service: ServiceView) -> String {
    let former = Lab::new(vec![cluster(), service.clone()]);
    former.provider.ensure(&service).await.unwrap();
    let (name, mut object) = former.stored.lock().pop_first().expect("it was sent");
    booked(&mut object, LATE_IP);
    lab.stored.lock().insert(name.clone(), object);
    lab.watch();
    // The host has finished with the object of the group long ago.
    lab.provider.pacer.failed(&lab.name());
    name
}

#[tokio::test]
async fn an_object_that_a_former_leader_made_for_another_member_goes_and_the_address_stays() {
    let lab = sharing().await;
    let late = arrives_late(&lab, member("default/second", 2, "TCP/443")).await;
    assert_eq!(lab.ensure().await.unwrap(), Ensured::ready(false));
    assert_eq!(lab.sent(), []);
    // Another leader or its user has changed the Service, and the watch does not show it yet: what is decided is
    // outdated.
    lab.going.lock().insert("second".into());
    assert!(matches!(lab.ensure_named("default/second").await.unwrap(), Ensured::Waiting(_)));
    assert_eq!(methods(&lab.written()), Vec::<&str>::new());
    lab.going.lock().clear();
    assert_eq!(lab.ensure_named("default/second").await.unwrap(), Ensured::ready(false));
    let sent = lab.written();
    assert_eq!((methods(&sent), sent[0].path.ends_with(&late)), (vec!["DELETE"], true), "{sent:?}");
}

#[tokio::test]
async fn nobody_moves_because_an_older_member_turns_out_to_have_an_object() {
    let lab = sharing().await;
    let oldest = member("default/oldest", 0, "TCP/8443");
    lab.services.apply(oldest.key.clone(), oldest.clone());
    let late = arrives_late(&lab, oldest).await;
    for name in ["default/web", "default/second"] {
        assert_eq!(lab.ensure_named(name).await.unwrap(), Ensured::ready(false), "{name}");
    }
    assert_eq!(lab.sent(), []);
    assert_eq!(lab.ensure_named("default/oldest").await.unwrap(), Ensured::ready(true));
    let sent = lab.written();
    assert_eq!(methods(&sent), ["PATCH", "DELETE"]);
    assert_eq!(sent[0].body["metadata"]["annotations"]["kube-vip.io/loadbalancerIPs"], IP);
    assert!(sent[1].path.ends_with(&late), "{}", sent[1].path);
}

#[tokio::test]
async fn an_address_is_not_released_while_another_member_shows_it() {
    let lab = sharing().await;
    let third = member("default/third", 3, "TCP/8080");
    lab.services.apply(third.key.clone(), third);
    lab.change("default/third", |service| {
        service.annotations.insert("kube-vip.io/loadbalancerIPs", LATE_IP);
        service.labels.insert("cloudprovider.harvesterhci.io/primary-service", "default.second");
        service.ingress = vec![LATE_IP.parse().unwrap()];
    });
    let late = arrives_late(&lab, member("default/second", 2, "TCP/443")).await;
    let Ensured::Waiting(waiting) = lab.ensure_named("default/second").await.unwrap() else { panic!("it is used") };
    assert!(waiting.message.contains("because default/third shares its address"), "{}", waiting.message);
    assert_eq!(lab.sent(), []);

    assert_eq!(lab.ensure_named("default/third").await.unwrap(), Ensured::ready(true));
    let sent = lab.sent();
    assert_eq!(methods(&sent), ["PATCH"]);
    assert_eq!(sent[0].body["metadata"]["annotations"]["kube-vip.io/loadbalancerIPs"], IP);
    lab.change("default/third", |service| {
        service.annotations.insert("kube-vip.io/loadbalancerIPs", IP);
    });
    assert!(
        matches!(lab.ensure_named("default/second").await.unwrap(), Ensured::Waiting(_)),
        "it is still served there"
    );
    assert_eq!(lab.sent(), []);
    lab.change("default/third", |service| service.ingress = vec![IP.parse().unwrap()]);
    assert_eq!(lab.ensure_named("default/second").await.unwrap(), Ensured::ready(false));
    let sent = lab.written();
    assert_eq!((methods(&sent), sent[0].path.ends_with(&late)), (vec!["DELETE"], true), "{sent:?}");
}

/// The two decide at the same time: one joins, and the holder goes.
#[tokio::test]
async fn an_address_that_somebody_is_joining_is_handed_over_and_not_released() {
    let lab = Lab::new(vec![cluster(), member("default/web", 1, "TCP/80")]);
    lab.served().await;
    let second = member("default/second", 2, "TCP/443");
    lab.services.apply(second.key.clone(), second.clone());
    let goes = async {
        lab.change("default/web", |service| service.deleting = true);
        lab.delete().await
    };
    let (joined, left) = tokio::join!(lab.provider.ensure(&second), goes);
    assert_eq!(joined.unwrap(), Ensured::ready(true));
    assert!(matches!(&left, Deleted::Waiting(waiting) if !waiting.needs_user), "{left:?}");
    assert_eq!(methods(&lab.sent()), ["PATCH"]);
    let Deleted::Left(left) = lab.delete().await else { panic!("it is handed over") };
    assert!(left.message.contains("default/second"), "{}", left.message);
}

/// The last write of a process that led before, which the caches of the next one do not show.
#[tokio::test]
async fn a_hand_over_that_was_done_already_is_not_done_again() {
    let lab = sharing().await;
    let name = lab.name();
    lab.change("default/web", |service| service.deleting = true);
    let successor = Lab::new(vec![cluster(), lab.view("default/web"), lab.view("default/second")]);
    *successor.stored.lock() = lab.stored.lock().clone();
    successor.watch();
    let Deleted::Left(_) = lab.delete().await else { panic!("it is handed over") };
    let object = lab.stored.lock()[&name].clone();
    assert_eq!(object["metadata"]["labels"]["cloudprovider.harvesterhci.io/serviceName"], "second");
    successor.stored.lock().insert(name.clone(), object.clone());

    let Deleted::Left(_) = successor.delete().await else { panic!("the address goes on") };
    assert_eq!(methods(&successor.sent()), ["GET"; 2], "the heir and the object; nothing is left to write");
    assert_eq!(successor.stored.lock()[&name], object);
}

#[tokio::test]
async fn a_port_that_a_member_has_is_refused_to_another_one_by_name() {
    let lab = sharing().await;
    let clash = member("default/clash", 3, "TCP/443");
    lab.services.apply(clash.key.clone(), clash.clone());
    let error = lab.provider.ensure(&clash).await.unwrap_err();
    assert!(
        error.permanent
            && error.message.contains("port 443 has been used in service default/second. Both want TCP/443")
            && error.message.contains("remove annotation cloudprovider.harvesterhci.io/share-group from default/clash"),
        "{error}"
    );
    assert_eq!(lab.sent(), []);
    let udp = member("default/udp", 3, "UDP/443");
    lab.services.apply(udp.key.clone(), udp.clone());
    assert_eq!(lab.provider.ensure(&udp).await.unwrap(), Ensured::ready(true));
}

#[tokio::test]
async fn the_address_goes_on_with_the_next_member_when_its_holder_is_deleted() {
    let lab = sharing().await;
    let name = lab.name();
    lab.change("default/web", |service| service.deleting = true);
    let Ensured::Waiting(_) = lab.ensure_named("default/second").await.unwrap() else {
        panic!("not before the hand-over")
    };
    assert_eq!(lab.sent(), [], "nobody begins anew");
    let Deleted::Left(left) = lab.delete().await else { panic!("it is handed over") };
    assert_eq!((left.reason, left.warning), ("HandedOverLoadBalancer", false));
    assert!(left.message.contains(&name) && left.message.contains("default/second"), "{}", left.message);
    assert_eq!(methods(&lab.sent()), ["GET", "GET", "PUT"]);
    let object = lab.stored.lock()[&name].clone();
    assert_eq!(object["metadata"]["labels"]["cloudprovider.harvesterhci.io/serviceName"], "second");
    assert_eq!(object["metadata"]["annotations"]["cloudprovider.harvesterhci.io/serviceUID"], "uid-of-default-second");
    assert_eq!(object["status"]["allocatedAddress"]["ip"], IP);

    // The Service is gone before the watch shows the object's new owner.
    lab.services.remove(&key("default/web"));
    assert_eq!(lab.ensure_named("default/second").await.unwrap(), Ensured::ready(true));
    let sent = lab.sent();
    assert_eq!(methods(&sent), ["PATCH"], "no second object");
    let label = &sent[0].body["metadata"];
    assert_eq!(
        (label["annotations"].is_null(), &label["labels"]["cloudprovider.harvesterhci.io/primary-service"]),
        (true, &json!(""))
    );
    lab.watch();
    lab.change("default/second", |service| {
        service.labels.insert("cloudprovider.harvesterhci.io/primary-service", "");
    });
    assert_eq!(lab.ensure_named("default/second").await.unwrap(), Ensured::ready(false));
    assert_eq!(lab.sent(), []);

    // The last one takes it along.
    lab.change("default/second", |service| service.deleting = true);
    lab.going.lock().insert("second".into());
    assert!(matches!(lab.provider.delete(&lab.view("default/second")).await.unwrap(), Deleted::Waiting(_)));
    let sent = lab.written();
    assert_eq!((methods(&sent), sent[0].path.ends_with(&name)), (vec!["DELETE"], true));
}

/// A namespace goes with all members. Whoever is to inherit may have had its last look already.
#[tokio::test]
async fn what_is_left_of_a_group_that_goes_as_a_whole_goes_too() {
    let lab = sharing().await;
    lab.change("default/web", |service| service.deleting = true);
    lab.going.lock().insert("second".into());
    let Deleted::Waiting(waiting) = lab.delete().await else { panic!("it must not be left to who goes too") };
    assert!(waiting.message.contains("default/second") && !waiting.needs_user, "{waiting:?}");
    assert_eq!(methods(&lab.sent()), ["GET"]);
    assert_eq!(lab.provider.delete(&lab.view("default/second")).await.unwrap(), Deleted::Gone { existed: false });
    lab.services.remove(&key("default/second"));
    lab.sent();
    let Deleted::Waiting(_) = lab.delete().await else { panic!("the host takes its time") };
    assert_eq!(methods(&lab.written()), ["DELETE"]);
}

/// Its own deletion begins while the object is on its way to it.
#[tokio::test]
async fn an_heir_does_not_go_before_the_object_is_its_own() {
    let lab = sharing().await;
    lab.change("default/web", |service| service.deleting = true);
    let (left, early) = tokio::join!(lab.delete(), async {
        lab.change("default/second", |service| service.deleting = true);
        lab.provider.delete(&lab.view("default/second")).await.unwrap()
    });
    assert!(matches!(left, Deleted::Left(_)), "{left:?}");
    assert!(matches!(&early, Deleted::Waiting(waiting) if !waiting.needs_user), "{early:?}");
    lab.going.lock().insert("second".into());
    lab.sent();
    let Deleted::Waiting(_) = lab.provider.delete(&lab.view("default/second")).await.unwrap() else { panic!("gone") };
    assert_eq!(methods(&lab.written()), ["DELETE"]);
}

#[tokio::test]
async fn a_process_that_ends_after_the_hand_over_lets_the_old_holder_go_without_touching_anything() {
    let lab = sharing().await;
    lab.change("default/web", |service| service.deleting = true);
    lab.delete().await;
    let (stored, web, second) = (lab.stored.lock().clone(), lab.view("default/web"), lab.view("default/second"));
    let successor = Lab::new(vec![cluster(), web, second]);
    *successor.stored.lock() = stored;
    successor.watch();
    assert_eq!(successor.delete().await, Deleted::Gone { existed: false });
    assert_eq!(successor.sent(), []);
}

/// The heir's UID proves whose the object is, under whatever name.
#[tokio::test]
async fn a_hand_over_does_not_need_the_uid_of_the_cluster() {
    let lab = sharing().await;
    lab.services.remove(&key("default/kubernetes"));
    lab.change("default/web", |service| service.deleting = true);
    assert!(matches!(lab.delete().await, Deleted::Left(left) if left.reason == "HandedOverLoadBalancer"));
    assert_eq!(methods(&lab.sent()), ["GET", "GET", "PUT"]);
    lab.watch();
    let second = lab.view("default/second");
    let object = lab.lbs.get(&lab.name()).unwrap();
    assert!(crate::identity::proof::is_proven(&object, &second), "{object:?}");
}

#[tokio::test]
async fn who_names_the_holder_itself_keeps_it_from_going() {
    let lab = sharing().await;
    let named = service("default/named").short(&[("primary", "default/web"), ("ip", IP)]).ports(&["TCP/81"]).done();
    lab.services.apply(named.key.clone(), named);
    lab.change("default/web", |service| service.deleting = true);
    let Deleted::Waiting(waiting) = lab.delete().await else { panic!("it is used") };
    assert!(waiting.needs_user && waiting.message.contains("share its address"), "{}", waiting.message);
    assert!(!lab.provider.memory().is_kept(&key("default/web")), "it is not Harvester that keeps it");
    assert_eq!(lab.sent(), []);
}

#[tokio::test]
async fn a_holder_that_hands_over_in_the_middle_of_a_move_takes_the_other_object_along() {
    let lab = sharing().await;
    // The host has finished with the object of the group long ago.
    lab.provider.pacer.failed(&lab.name());
    lab.change("default/web", |service| {
        service.annotations.insert(harvester_api::keys::cloudprovider::IP_POOL, "new");
    });
    lab.ensure().await.unwrap();
    assert_eq!(methods(&lab.sent()), ["POST"]);
    let config = lab.provider.config();
    let next = plan::name_in_pool(&config, &lab.service(), "new");
    booked(lab.stored.lock().get_mut(&next).expect("the object of the move"), LATE_IP);
    lab.watch();
    lab.provider.pacer.failed(&next);

    lab.change("default/web", |service| service.deleting = true);
    assert!(matches!(lab.delete().await, Deleted::Waiting(_)), "its finalizer stays until nothing is left");
    let sent = lab.written();
    assert_eq!(methods(&sent), ["PUT", "DELETE"]);
    assert!(sent[0].path.ends_with(&lab.name()) && sent[1].path.ends_with(&next), "{sent:?}");
    assert!(lab.stored.lock().contains_key(&lab.name()), "it goes on with its heir");
    lab.stored.lock().remove(&next);
    lab.lbs.remove(&next);
    assert!(matches!(lab.delete().await, Deleted::Gone { .. }));
    // The watch does not show the object's new owner yet.
    lab.services.remove(&key("default/web"));
    lab.sent();
    assert_eq!(lab.ensure_named("default/second").await.unwrap(), Ensured::ready(true));
    assert_eq!(methods(&lab.sent()), ["PATCH"], "no second object");
}

#[tokio::test]
async fn who_has_handed_its_object_over_gets_another_one_under_another_name() {
    let lab = sharing().await;
    let given_away = lab.name();
    lab.change("default/web", |service| service.deleting = true);
    let Deleted::Left(_) = lab.delete().await else { panic!("it is handed over") };
    lab.watch();
    lab.sent();
    let anew = service("default/web").done();
    lab.services.apply(anew.key.clone(), anew.clone());
    assert!(matches!(lab.provider.ensure(&anew).await.unwrap(), Ensured::Waiting(_)));
    assert_eq!(methods(&lab.sent()), ["POST"]);
    assert!(matches!(lab.provider.ensure(&anew).await.unwrap(), Ensured::Waiting(_)));
    assert_eq!(lab.sent(), [], "the watch does not show it yet");
    let name = lab.stored.lock().keys().find(|name| **name != given_away).cloned().expect("a second object");
    booked(lab.stored.lock().get_mut(&name).unwrap(), LATE_IP);
    lab.watch();
    lab.ensure().await.unwrap();
    let sent = lab.sent();
    assert_eq!(sent[0].body["metadata"]["annotations"]["kube-vip.io/loadbalancerIPs"], LATE_IP);

    // Its deletion leaves the other one's object alone.
    lab.provider.pacer.failed(&name);
    lab.change("default/web", |service| service.deleting = true);
    assert!(matches!(lab.delete().await, Deleted::Waiting(_)));
    let sent = lab.written();
    assert_eq!((methods(&sent), sent[0].path.ends_with(&name)), (vec!["DELETE"], true), "{sent:?}");
    lab.stored.lock().remove(&name);
    lab.watch();
    assert!(matches!(lab.delete().await, Deleted::Gone { .. }));
    assert!(lab.stored.lock().contains_key(&given_away));
}
