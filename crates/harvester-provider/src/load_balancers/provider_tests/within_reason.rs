//! Load balancers that go missing, or get another address, without anybody having asked for it.

use cloud_provider::view::{Condition, ConditionStatus};

use super::*;

/// So many Services that have been served for long, by a host that has lost all their objects.
fn lost(count: usize) -> (Lab, Vec<ServiceView>) {
    let served = |number: usize| {
        let name = format!("default/web-{number}");
        let ip = format!("10.20.4.{number}");
        let mut web = service(&name).short(&[("ip", &ip), ("ipam", "dhcp")]).ingress(&ip).done();
        // They were served anew a moment ago, after an outage of all announcers.
        let since = k8s_openapi::jiff::Timestamp::now().to_string();
        let (status, reason, message) = (ConditionStatus::True, "Served".to_owned(), String::new());
        web.created = Some(0);
        web.conditions.ready = Some(Condition { status, reason, message, since });
        web
    };
    let services: Vec<ServiceView> = (1..=count).map(served).collect();
    (Lab::new(services.clone()), services)
}

async fn ensure_all(lab: &Lab, services: &[ServiceView]) -> (usize, Vec<Waiting>) {
    let mut told = Vec::new();
    for service in services {
        if let Ensured::Waiting(waiting) = lab.provider.ensure(service).await.unwrap() {
            told.extend((waiting.reason == "TooManyAtOnce").then_some(waiting));
        }
    }
    (lab.written().iter().filter(|seen| seen.method == "POST").count(), told)
}

/// The first look after a start is over.
async fn running_for_long(lab: &Lab) {
    let first = key("default/first");
    lab.provider.breaker.lock().ask(&first, 1, None, tokio::time::Instant::now());
    lab.provider.breaker.lock().over(&first);
    tokio::time::advance(Duration::from_secs(2)).await;
}

#[tokio::test(start_paused = true)]
async fn a_harvester_that_lost_its_load_balancers_gets_few_of_them_again_and_all_after_a_humans_word() {
    let (lab, services) = lost(12);
    running_for_long(&lab).await;
    let (made, told) = ensure_all(&lab, &services).await;
    assert_eq!((made, told.len()), (3, 9));
    tokio::time::advance(Duration::from_secs(5)).await;
    let (made, told) = ensure_all(&lab, &services[3..]).await;
    assert_eq!((made, told.len()), (0, 9), "more than a third, however often it is looked at");
    assert!(told.iter().all(|waiting| waiting.needs_user && waiting.message.contains("identity confirm")), "{told:?}");
    lab.provider.identity.confirm();
    let (made, told) = ensure_all(&lab, &services[3..]).await;
    assert_eq!(told, []);
    assert_eq!(made, 9);
}

/// The Services ask one after the other, and who was refused before is forgotten with the process.
#[tokio::test(start_paused = true)]
async fn a_controller_that_starts_makes_none_before_all_have_asked_and_then_only_after_a_humans_word() {
    let (lab, services) = lost(12);
    let (made, told) = ensure_all(&lab, &services).await;
    assert_eq!((made, told.len()), (0, 12));
    assert!(told.iter().all(|waiting| !waiting.needs_user && waiting.retry_after.is_some()), "{told:?}");
    tokio::time::advance(Duration::from_secs(2)).await;
    let (made, told) = ensure_all(&lab, &services).await;
    assert_eq!((made, told.len()), (0, 12));
    assert!(told.iter().all(|waiting| waiting.needs_user), "{told:?}");
    lab.provider.identity.confirm();
    assert_eq!(ensure_all(&lab, &services).await, (12, vec![]));
}

#[tokio::test(start_paused = true)]
async fn one_that_is_lost_is_made_two_seconds_after_a_start_and_a_new_one_at_once() {
    let (lab, services) = lost(1);
    let new = service("default/new").short(&[("ipam", "dhcp")]).done();
    lab.services.apply(new.key.clone(), new.clone());
    let (made, told) = ensure_all(&lab, &[services[0].clone(), new]).await;
    assert_eq!((made, told.len()), (1, 1), "{told:?}");
    assert_eq!(told[0].retry_after, Some(Duration::from_secs(2)));
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(ensure_all(&lab, &services).await, (1, vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_few_more_are_made_after_a_second_look() {
    let (lab, services) = lost(30);
    running_for_long(&lab).await;
    let (some, _) = services.split_at(5);
    let (made, told) = ensure_all(&lab, some).await;
    assert_eq!((made, told.len()), (3, 2));
    assert!(told.iter().all(|waiting| !waiting.needs_user && waiting.retry_after.is_some()), "{told:?}");
    tokio::time::advance(Duration::from_secs(2)).await;
    let (_, told) = ensure_all(&lab, &some[3..]).await;
    assert_eq!(told, []);
}

/// What a user asks for is no surprise, however much it is: Rancher removes all Services of a cluster.
#[tokio::test]
async fn the_removal_of_a_cluster_deletes_all_its_load_balancers() {
    let services: Vec<ServiceView> =
        (1..=8).map(|number| service(&format!("default/web-{number}")).short(&[("ipam", "dhcp")]).done()).collect();
    let lab = Lab::new(services.clone());
    for web in &services {
        lab.provider.ensure(web).await.unwrap();
    }
    for object in lab.stored.lock().values_mut() {
        booked(object, "0.0.0.0");
    }
    lab.watch();
    lab.later();
    lab.sent();
    for web in &services {
        lab.going.lock().insert(web.key.name.clone());
        lab.provider.delete(&ServiceView { deleting: true, ..web.clone() }).await.unwrap();
    }
    assert_eq!(lab.written().iter().filter(|seen| seen.method == "DELETE").count(), 8);
}
