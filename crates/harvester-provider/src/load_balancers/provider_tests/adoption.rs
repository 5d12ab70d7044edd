//! Objects that other versions, other names of the cluster and moves between pools have left: taken over by proof, by
//! requests.

use harvester_api::keys::kube_vip;
use harvester_api::names::ClusterName;

use super::*;
use crate::identity::identity_card::IdentityCard;

fn under(cluster: &str) -> String {
    let web = service("default/web").done();
    ClusterName::from_record(cluster).load_balancer_name("default", "web", &web.uid.0)
}

/// What the Go provider leaves on a host when the Service is served.
fn go_object(cluster: &str, address: &str) -> Value {
    json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {
            "name": under(cluster), "namespace": "guests", "uid": "go-1", "resourceVersion": "50",
            "creationTimestamp": "2020-01-01T00:00:00Z", "finalizers": ["wrangler.cattle.io/harvester-lb-controller"],
            "labels": {
                "cloudprovider.harvesterhci.io/cluster": cluster,
                "cloudprovider.harvesterhci.io/serviceName": "web",
                "cloudprovider.harvesterhci.io/serviceNamespace": "default"
            },
            "annotations": {
                "cloudprovider.harvesterhci.io/lb-network": "", "loadbalancer.harvesterhci.io/cluster": cluster,
                "loadbalancer.harvesterhci.io/namespace": "guests",
                "loadbalancer.harvesterhci.io/network": "guests/mgmt",
                "loadbalancer.harvesterhci.io/project": ""
            }
        },
        "spec": {"ipam": "pool", "workloadType": "cluster"},
        "status": {
            "address": address, "allocatedAddress": {"ip": address, "ipPool": "edge"},
            "conditions": [{"type": "Ready", "status": "True"}]
        }
    })
}

fn store(lab: &Lab, object: Value) {
    let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
    lab.stored.lock().insert(name, object);
    lab.watch();
}

fn served() -> ServiceView {
    service("default/web").short(&[("ip", IP)]).label("").ingress(IP).done()
}

/// CCM spec 9.4: a healthy state of the Go provider is taken over without a write.
#[tokio::test]
async fn a_go_written_service_is_taken_over_with_zero_writes() {
    let lab = Lab::new(vec![served()]);
    store(&lab, go_object("demo", IP));
    assert_eq!(lab.ensure().await.unwrap(), Ensured::ready(false));
    assert_eq!(lab.sent(), []);
}

/// Decision 11: whatever its name, the object is adopted; only its cluster label follows a name that was confirmed.
#[tokio::test]
async fn an_object_under_a_former_cluster_name_is_adopted_and_never_made_anew() {
    let lab = Lab::new(vec![served()]);
    store(&lab, go_object("former", IP));
    lab.ensure().await.unwrap();
    let sent = lab.sent();
    assert_eq!(methods(&sent), ["GET", "PUT"]);
    let metadata = &sent[1].body["metadata"];
    assert_eq!(metadata["name"], under("former").as_str());
    assert_eq!(metadata["labels"]["cloudprovider.harvesterhci.io/cluster"], "demo");
    assert_eq!(
        metadata["annotations"]["cloudprovider.harvesterhci.io/serviceUID"], "uid-of-default-web",
        "the proof that the naming rule gave until now"
    );
    assert_eq!(sent[1].body["status"]["allocatedAddress"]["ip"], IP);
}

/// What a copy of the cluster has made for the Service: it has the UIDs of the original and a name of its own.
fn of_the_copy() -> Value {
    let mut object = go_object("copied", "10.20.4.2");
    object["metadata"]["uid"] = json!("copied-1");
    object["metadata"]["annotations"]["cloudprovider.harvesterhci.io/serviceUID"] = json!("uid-of-default-web");
    object
}

/// A card of an earlier version, of a cluster that once had the default name: any name counts as its own.
#[tokio::test]
async fn a_load_balancer_of_a_copy_stays_although_it_is_proven_and_the_card_has_no_names() {
    let lab = Lab::new(vec![served()]);
    lab.provider.identity.set_card(IdentityCard::default());
    store(&lab, go_object("demo", IP));
    store(&lab, of_the_copy());
    assert_eq!(lab.ensure().await.unwrap(), Ensured::ready(false));
    assert_eq!(lab.sent(), []);
}

#[tokio::test]
async fn a_lost_load_balancer_is_made_anew_and_that_of_a_copy_is_not_taken_for_it() {
    let lab = Lab::new(vec![served()]);
    lab.provider.identity.set_card(IdentityCard { names: ["demo".to_owned()].into(), ..IdentityCard::default() });
    store(&lab, of_the_copy());
    lab.ensure().await.unwrap();
    let sent = lab.sent();
    assert_eq!(methods(&sent), ["POST"]);
    assert_eq!(sent[0].body["metadata"]["name"], under("demo").as_str());
}

/// Somebody deletes Service default/kubernetes, and the API server makes it anew.
#[tokio::test]
async fn an_adopted_object_stays_its_services_when_the_uid_of_the_cluster_changes() {
    let lab = Lab::new(vec![served(), cluster("before")]);
    store(&lab, go_object("former", IP));
    lab.ensure().await.unwrap();
    lab.watch();
    assert_eq!(methods(&lab.sent()), ["GET", "PUT"], "from here on its name proves nothing");
    for uid in ["before", "after"] {
        lab.services.apply(key("default/kubernetes"), cluster(uid));
        assert_eq!(lab.ensure().await.unwrap(), Ensured::ready(false), "{uid}");
        assert_eq!(lab.sent(), [], "{uid}");
    }
    let limit = LoadBalancerConfig { max_load_balancers: Some(1), ..lab.provider.config() };
    assert_eq!(lab.quota_reached(&limit), Some(1), "and counts as one of this cluster");
    assert!(matches!(lab.delete().await, Deleted::Waiting(_)));
    assert_eq!(methods(&lab.written()), ["DELETE"]);
}

fn cluster(uid: &str) -> ServiceView {
    let uid = cloud_provider::view::Uid(uid.to_owned());
    ServiceView { uid, is_load_balancer: false, ..service("default/kubernetes").done() }
}

#[tokio::test]
async fn an_adopted_object_is_deleted_and_its_absence_verified_under_its_own_name() {
    let lab = Lab::new(vec![served()]);
    store(&lab, go_object("former", IP));
    assert!(matches!(lab.delete().await, Deleted::Waiting(_)));
    let sent = lab.written();
    assert_eq!((methods(&sent), sent[0].path.clone()), (vec!["DELETE"], format!("{LBS}/{}", under("former"))));
    lab.stored.lock().clear();
    lab.watch();
    assert_eq!(lab.delete().await, Deleted::Gone { existed: true });
    let sent = lab.sent();
    assert_eq!((methods(&sent), sent[0].path.clone()), (vec!["GET"], format!("{LBS}/{}", under("former"))));
}

#[tokio::test]
async fn nothing_is_done_before_the_clusters_name_is_known() {
    let lab = Lab::new(vec![served()]);
    let identity = Identity::unknown(ClusterName::from_record("demo"));
    let provider = HarvesterLoadBalancers { identity, ..lab.provider };
    let web = lab.services.get(&key("default/web")).unwrap();
    let Ensured::Waiting(waiting) = provider.ensure(&web).await.unwrap() else { panic!("a guess") };
    assert!(!waiting.needs_user && waiting.message.contains("name of this cluster"), "{}", waiting.message);
    assert_eq!(lab.server.requests(), []);
}

/// Make before break, by requests.
#[tokio::test]
async fn a_move_to_another_pool_costs_one_object_more_for_a_while() {
    let lab = Lab::new(vec![served(), cluster_service()]);
    let mut wakes = lab.provider.wakes();
    store(&lab, go_object("demo", IP));
    lab.guest(|service| service.annotations.insert("cloudprovider.harvesterhci.io/ippool", "new"));
    lab.ensure().await.unwrap();
    let sent = lab.sent();
    assert_eq!((methods(&sent), &sent[0].body["spec"]["ipPool"]), (vec!["POST"], &json!("new")));
    let next = sent[0].body["metadata"]["name"].as_str().unwrap().to_owned();
    assert_ne!(next, under("demo"));
    lab.ensure().await.unwrap();
    assert_eq!(lab.sent(), [], "the watch does not show it yet, and the host books");

    lab.host_books_next(&next, "10.30.0.1", "new");
    lab.ensure().await.unwrap();
    let sent = lab.sent();
    assert_eq!(methods(&sent), ["PATCH"]);
    assert_eq!(sent[0].body["metadata"]["annotations"]["kube-vip.io/loadbalancerIPs"], "10.30.0.1");
    assert!(lab.stored.lock().contains_key(&under("demo")), "still served there");

    lab.guest(|service| {
        service.annotations.insert("kube-vip.io/loadbalancerIPs", "10.30.0.1");
        service.ingress = vec!["10.30.0.1".parse().unwrap()];
    });
    // The pacer learns from the same stream that the host has finished with the new object.
    while futures::FutureExt::now_or_never(wakes.next()).is_some() {}
    lab.ensure().await.unwrap();
    let sent = lab.sent();
    assert!(sent.iter().any(|seen| seen.method == "DELETE" && seen.path.ends_with(&under("demo"))), "{sent:?}");
    assert!(!sent.iter().any(|seen| seen.method == "DELETE" && seen.path.ends_with(&next)));
}

/// The user has named another pool before the renamed cluster's controller looked at the Service.
#[tokio::test]
async fn a_move_after_the_cluster_was_renamed_leaves_no_object_under_the_former_name() {
    let lab = Lab::new(vec![served(), cluster_service()]);
    let mut wakes = lab.provider.wakes();
    store(&lab, go_object("former", IP));
    lab.guest(|service| service.annotations.insert("cloudprovider.harvesterhci.io/ippool", "new"));
    lab.ensure().await.unwrap();
    let sent = lab.sent();
    assert_eq!(methods(&sent), ["GET", "PUT", "POST"]);
    assert_eq!(sent[1].body["metadata"]["labels"]["cloudprovider.harvesterhci.io/cluster"], "demo");
    let next = sent[2].body["metadata"]["name"].as_str().unwrap().to_owned();
    lab.host_books_next(&next, "10.30.0.1", "new");
    lab.ensure().await.unwrap();
    lab.guest(|service| {
        service.annotations.insert("kube-vip.io/loadbalancerIPs", "10.30.0.1");
        service.ingress = vec!["10.30.0.1".parse().unwrap()];
    });
    // The pacer learns from the same stream that the host has finished with the new object.
    while futures::FutureExt::now_or_never(wakes.next()).is_some() {}
    lab.sent();
    lab.ensure().await.unwrap();
    let deleted: Vec<String> =
        lab.sent().into_iter().filter(|seen| seen.method == "DELETE").map(|seen| seen.path).collect();
    assert_eq!(deleted, [format!("{LBS}/{}", under("former"))]);
}

impl Lab {
    /// The user names another pool; the name of the object that is created at once, if there is one.
    async fn asks_for_pool(&self, pool: &str) -> Option<String> {
        self.guest(|service| service.annotations.insert("cloudprovider.harvesterhci.io/ippool", pool));
        self.ensure().await.unwrap();
        let sent = self.sent();
        let created = sent.iter().find(|seen| seen.method == "POST")?;
        created.body["metadata"]["name"].as_str().map(str::to_owned)
    }

    /// The host books this address for the object of a move.
    fn host_books_next(&self, next: &str, ip: &str, pool: &str) {
        {
            let mut stored = self.stored.lock();
            let object = stored.get_mut(next).expect("an object");
            object["metadata"]["finalizers"] = json!(["wrangler.cattle.io/harvester-lb-controller"]);
            object["status"] = json!({"allocatedAddress": {"ip": ip, "ipPool": pool},
                "conditions": [{"type": "Ready", "status": "True"}]});
            bump(object);
        }
        self.watch();
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_changes_the_pool_again_and_again_keeps_nobody_else_waiting() {
    let fresh = service("default/fresh").done();
    let lab = Lab::new(vec![served(), cluster_service(), fresh.clone()]);
    store(&lab, go_object("demo", IP));
    let mut wakes = lab.provider.wakes();
    let next = lab.asks_for_pool("p0").await.expect("an object");
    for pool in 1..20 {
        assert_eq!(lab.asks_for_pool(&format!("p{pool}")).await, None, "its turn has not come");
    }
    lab.guest(|service| service.annotations.remove("cloudprovider.harvesterhci.io/ippool"));
    lab.ensure().await.unwrap();
    let begin = tokio::time::Instant::now();
    lab.provider.ensure(&fresh).await.unwrap();
    assert_eq!(lab.sent(), [], "the host books for the first of them");
    lab.host_books_next(&next, "10.30.0.1", "p0");
    while wakes.next().await.expect("a stream without end") != fresh.key {}
    lab.provider.ensure(&fresh).await.unwrap();
    assert_eq!(methods(&lab.sent()), ["POST"]);
    assert_eq!(begin.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn nobody_moves_to_an_address_that_a_static_service_has() {
    let fixed = || service("default/fixed").short(&[("ipam", "static"), ("want", "10.30.0.1"), ("ip", "10.30.0.1")]);
    let lab = Lab::new(vec![served(), cluster_service(), fixed().ingress("10.30.0.1").done()]);
    store(&lab, go_object("demo", IP));
    let next = lab.asks_for_pool("new").await.expect("an object");
    lab.host_books_next(&next, "10.30.0.1", "new");
    let Ensured::Waiting(waiting) = lab.ensure().await.unwrap() else { panic!("two would answer for one address") };
    assert_eq!(lab.sent(), []);
    assert_eq!((waiting.reason, waiting.needs_user), ("AddressTaken", true));
    for part in [&format!("{IP} stays until then"), "default/fixed", "10.30.0.1"] {
        assert!(waiting.message.contains(part), "{}", waiting.message);
    }
    lab.services.apply(key("default/fixed"), service("default/fixed").done());
    lab.ensure().await.unwrap();
    assert_eq!(methods(&lab.sent()), ["PATCH"], "it has another address now");
}

#[tokio::test]
async fn a_move_counts_against_the_limit() {
    let mut lab = Lab::new(vec![served(), cluster_service()]);
    lab.provider.given.max_load_balancers = Some(1);
    store(&lab, go_object("demo", IP));
    assert_eq!(lab.asks_for_pool("new").await, None);
    lab.provider.given.max_load_balancers = Some(2);
    assert!(lab.asks_for_pool("new").await.is_some());
}

#[tokio::test]
async fn who_abandons_in_the_middle_of_a_move_leaves_two_objects_and_both_are_noted() {
    let lab = Lab::new(vec![served(), cluster_service()]);
    store(&lab, go_object("demo", IP));
    let next = lab.asks_for_pool("new").await.expect("an object");
    lab.watch();
    let (guest, lab) = leaving::with_record(lab);
    lab.guest(|service| {
        service.deleting = true;
        service.annotations.insert("cloudprovider.harvesterhci.io/abandon", &under("demo"));
    });
    assert!(matches!(lab.delete().await, Deleted::Left(_)));
    let writes = guest.writes();
    let noted = |name: &str| {
        let line = format!("guests/{name} of service default/web (uid-of-default-web), abandoned ");
        writes.iter().filter(|seen| seen.body["data"]["possible-orphans"].to_string().contains(&line)).count()
    };
    assert_eq!((noted(&under("demo")), noted(&next)), (1, 1));
}

fn cluster_service() -> ServiceView {
    ServiceView { is_load_balancer: false, ..service("default/kubernetes").done() }
}

#[tokio::test]
async fn a_foreign_request_for_an_address_is_written_down_only_while_nobody_has_served_the_service() {
    let lab = Lab::new(vec![service("default/web").short(&[("ip", "10.0.0.7")]).done()]);
    let written = lab.provider.at_first_sight(&lab.service()).unwrap();
    let asked = ("cloudprovider.harvesterhci.io/ip".to_owned(), Some("10.0.0.7".to_owned()));
    assert_eq!(written, [asked, (kube_vip::LOADBALANCER_IPS.to_owned(), None)].into(), "a wish is no grant");
    store(&lab, go_object("demo", IP));
    assert_eq!(lab.provider.at_first_sight(&lab.service()), Ok(BTreeMap::new()), "it is our own output");
}

/// At each start, the first list of load balancers is still under way.
#[tokio::test]
async fn a_foreign_request_for_an_address_outlasts_a_start_before_harvester_has_answered_and_is_followed_then() {
    let wish = "10.0.0.7";
    let shown = service("default/web").short(&[("ipam", "static"), ("ip", wish)]).done();
    let specified = service("default/web").short(&[("ipam", "static")]).done();
    for web in [shown, ServiceView { load_balancer_ip: Some(wish.to_owned()), ..specified }] {
        let mut lab = Lab::new(vec![web.clone()]);
        let listed = lb_cache();
        lab.provider.lbs = listed.clone();
        let waiting = lab.provider.at_first_sight(&web).unwrap_err();
        assert_eq!((waiting.reason, waiting.needs_user), ("NotReadYet", false));
        assert!(waiting.retry_after.is_some());

        listed.replace(BTreeMap::new());
        let written = lab.provider.at_first_sight(&web).unwrap();
        lab.guest(|service| {
            for (key, value) in &written {
                match value {
                    Some(value) => service.annotations.insert(key, value),
                    None => service.annotations.remove(key),
                }
            }
        });
        lab.ensure().await.unwrap();
        assert_eq!(methods(&lab.sent()), ["POST"]);
        lab.host(|object| booked(object, "0.0.0.0"));
        lab.watch();
        lab.ensure().await.unwrap();
        let sent = lab.sent();
        assert_eq!(methods(&sent), ["PATCH"]);
        assert_eq!(sent[0].body["metadata"]["annotations"]["kube-vip.io/loadbalancerIPs"], wish);
    }
}
