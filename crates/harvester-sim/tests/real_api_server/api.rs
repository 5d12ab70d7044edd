//! What an API server under load and a cache behind another do to guests, and hosts that hang or forget.

use super::*;

/// A client of the administrator whose requests go through the proxy.
async fn through_proxy() -> Client {
    host::impatient(&host().api, &host().ca_pem, Some("admin-token")).await
}

/// Status code and `Retry-After` of a GET.
async fn ask(client: &Client, path: &str) -> (u16, Option<String>) {
    let request = http::Request::get(path).body(kube::client::Body::empty()).expect("a request");
    let answer = client.send(request).await.expect("an answer");
    let header = answer.headers().get("Retry-After").map(|value| value.to_str().expect("text").to_owned());
    (answer.status().as_u16(), header)
}

#[tokio::test]
async fn busy_servers_say_when_to_come_again_and_old_pages_are_gone() {
    if !available() {
        return;
    }
    let (client, ns) = (through_proxy().await, "busy");
    let lbs: Api<LoadBalancer> = Api::namespaced(client.clone(), ns);
    for name in ["a", "b"] {
        lbs.create(&PostParams::default(), &cluster_lb(ns, name, Ipam::Dhcp)).await.expect("created");
    }
    let page = lbs.list(&ListParams::default().limit(1)).await.expect("a page");
    let next = ListParams::default().limit(1).continue_token(&page.metadata.continue_.expect("more"));
    set_faults(host(), ns, json!({"tooManyRequests": 1, "retryAfterSeconds": 7, "expiredContinues": 1})).await;
    let path = format!("/apis/loadbalancer.harvesterhci.io/v1beta1/namespaces/{ns}/loadbalancers");
    assert_eq!(ask(&client, &path).await, (429, Some("7".to_owned())));
    assert_eq!(ask(&client, &path).await, (200, None), "one only");
    let Err(kube::Error::Api(gone)) = lbs.list(&next).await else { panic!("the page is still there") };
    assert_eq!((gone.code, gone.reason.as_str()), (410, "Expired"));
    assert_eq!(lbs.list(&next).await.expect("the next page").items.len(), 1, "one only");
}

#[tokio::test]
async fn the_second_cache_is_behind_and_one_object_is_read_live() {
    if !available() {
        return;
    }
    let (client, ns) = (through_proxy().await, "stale");
    let lbs: Api<LoadBalancer> = Api::namespaced(client, ns);
    set_faults(host(), ns, json!({"staleSeconds": 3})).await;
    // Until a version was noted, both caches are as one.
    tokio::time::sleep(Duration::from_secs(1)).await;
    lbs.create(&PostParams::default(), &cluster_lb(ns, "web", Ipam::Dhcp)).await.expect("created");
    let count = async || lbs.list(&ListParams::default()).await.expect("a list").items.len();
    let mut seen = [count().await, count().await];
    seen.sort_unstable();
    assert_eq!(seen, [0, 1]);
    lbs.get("web").await.expect("read live");
    let deadline = Instant::now() + Duration::from_secs(10);
    while [count().await, count().await] != [1, 1] {
        assert!(Instant::now() < deadline, "the second cache never follows");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn a_webhook_that_hangs_holds_up_a_create_until_it_is_well() {
    if !available() {
        return;
    }
    let (client, ns) = (host().client().await, "hangs");
    let lbs: Api<LoadBalancer> = Api::namespaced(client, ns);
    set_faults(host(), ns, json!({"webhooksHang": true})).await;
    let (how, lb) = (PostParams::default(), cluster_lb(ns, "web", Ipam::Dhcp));
    let (created, ()) = tokio::join!(lbs.create(&how, &lb), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(lbs.get_opt("web").await.expect("reads go on").is_none());
        set_faults(host(), ns, json!({})).await;
    });
    created.expect("created once the webhook answers");
}

#[tokio::test]
async fn a_host_that_forgets_gives_a_booked_address_to_somebody_else() {
    if !available() {
        return;
    }
    let (client, ns) = (host().client().await, "forgets");
    create_machine(&client, ns, "forgets-vm").await;
    create_pool(&client, ns, 9, 10).await;
    let lbs: Api<LoadBalancer> = Api::namespaced(client.clone(), ns);
    let address = async |name: &str| {
        lbs.create(&PostParams::default(), &cluster_lb(ns, name, Ipam::Pool)).await.expect("created");
        let ready = |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.usable_address().is_some());
        until(&lbs, name, "ready", ready).await.expect("there").usable_address().map(ToOwned::to_owned)
    };
    let first = address("first").await;
    let pools: Api<IpPool> = Api::all(client);
    let booked =
        |pool: Option<&IpPool>| pool.and_then(|pool| pool.status.as_ref()).map(|status| status.allocated.len());
    assert!(control(host(), "POST", "/restart", "").await.starts_with("HTTP/1.1 200"));
    assert_eq!(booked(Some(&pools.get(ns).await.unwrap())), Some(1), "a restart alone forgets nothing");
    set_faults(host(), ns, json!({"forgetBookings": true})).await;
    assert!(control(host(), "POST", "/restart", "").await.starts_with("HTTP/1.1 200"));
    until(&pools, ns, "empty", |pool| booked(pool) == Some(0)).await;
    assert_eq!(address("second").await, first, "the pool has one address");
}
