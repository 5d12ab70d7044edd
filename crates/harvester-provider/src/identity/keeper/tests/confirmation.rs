//! An operator's confirmation that cannot be followed at once.

use super::*;
use crate::load_balancers::view::LbView;

/// An API server with this record, which may be written once the right is granted.
fn granting(object: Value) -> (Arc<parking_lot::Mutex<(Value, bool)>>, Scenario) {
    let there = Arc::new(parking_lot::Mutex::new((object, false)));
    let answer = Arc::clone(&there);
    let server = Scenario::answering(move |request| {
        let mut there = answer.lock();
        match request.method.as_str() {
            "GET" => (200, there.0.clone()),
            _ if there.1 => {
                there.0 = request.body.clone();
                (200, request.body.clone())
            }
            _ => (403, Scenario::status(403, "Forbidden", "no")),
        }
    });
    (there, server)
}

/// What a copy named "copied" has made for Service `default/web`.
fn copied() -> LbView {
    let name = ClusterName::from_record("copied").load_balancer_name("default", "web", "uid-of-default-web");
    let mut lb = build::lb(&name).done();
    lb.labels.insert(harvester_api::keys::cloudprovider::CLUSTER, "copied");
    lb
}

/// The right is granted while the confirmation waits for it. To say the same once more would not change the record.
#[tokio::test(start_paused = true)]
async fn a_word_that_waits_for_a_right_is_followed_within_seconds_of_the_grant_and_told_once() {
    let mut object = remembered("prod").1;
    object["data"]["identity"] = card("prod", &["vm-a"]).to_text().into();
    object["metadata"]["annotations"] = json!({record::CONFIRMATION: "confirm"});
    let (there, server) = granting(object);
    let mut lab = Lab::on(server, "prod", None, &[node("x", "vm-x", true)], &[vm("x", "vm-x")]);
    tokio::time::sleep(Duration::from_mins(1)).await;
    // What is found after it was given is not covered by it, however often the write is tried.
    let confirmed_at = lab.identity.last_confirmed();
    assert!(confirmed_at.is_some());
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert_eq!(lab.identity.last_confirmed(), confirmed_at);
    there.lock().1 = true;
    tokio::time::sleep(CONFIRMATION_WAITS + Duration::from_secs(1)).await;
    assert_eq!(there.lock().0["metadata"]["annotations"].get(record::CONFIRMATION), None);
    let confirmed = lab.told().into_iter().filter(|reason| reason == "IdentityConfirmed").count();
    assert_eq!((confirmed, lab.name().await), (1, "prod".to_owned()));
}

/// The load balancers of the copy are deleted before the refused annotation can be removed, so nothing forbids the name
/// any more.
#[tokio::test(start_paused = true)]
async fn a_rename_that_was_refused_and_stays_in_the_record_is_told_and_counts_when_it_is_followed() {
    let mut object = remembered("prod").1;
    object["metadata"]["annotations"] = json!({record::CONFIRMATION: "rename copied"});
    let (there, server) = granting(object);
    let sources = Lab::sources(Some("prod"), &[], &[]);
    let lb = copied();
    sources.lbs.apply(lb.name.clone(), lb.clone());
    let mut lab = Lab::run(None, server, "prod", sources, false);
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!((lab.told(), lab.name().await), (vec!["ClusterNameRefused".to_owned()], "prod".to_owned()));
    assert_eq!(lab.identity.last_confirmed(), None);

    lab.sources.lbs.remove(&lb.name);
    tokio::time::sleep(CONFIRMATION_WAITS + Duration::from_secs(1)).await;
    there.lock().1 = true;
    tokio::time::sleep(CONFIRMATION_WAITS + Duration::from_secs(1)).await;
    assert_eq!(there.lock().0["metadata"]["annotations"].get(record::CONFIRMATION), None);
    let told = lab.told();
    let about = |reason: &str| told.iter().filter(|told| *told == reason).count();
    assert_eq!((about("IdentityConfirmed"), about("ClusterNameRefused")), (1, 0), "{told:?}");
    assert!(lab.identity.last_confirmed().is_some(), "what waits for a human's word goes on");
    assert_eq!(lab.name().await, "copied");
}

/// Under a name of the original, or of another copy, the copy would own its load balancers, because it has the same
/// UIDs.
#[tokio::test(start_paused = true)]
async fn a_copy_that_is_to_have_a_name_of_its_original_or_of_another_copy_stays_in_safe_mode_and_says_why() {
    for name in ["prod", "copied"] {
        let nodes = [node("a", "vm-a", false), node("x", "vm-x", true)];
        let (object, mut lab) = stored("prod", &nodes, &[vm("a", "vm-a"), vm("x", "vm-x")], &["vm-a"]);
        let lb = copied();
        lab.sources.lbs.apply(lb.name.clone(), lb);
        tokio::time::sleep(SETTLED).await;
        holds(&lab, Some("MachinesReplaced")).await;
        tokio::time::sleep(WRITE_EVERY).await;
        let before = object.lock()["data"].clone();
        {
            let mut object = object.lock();
            object["metadata"]["annotations"] = json!({record::CONFIRMATION: format!("copy {name}")});
            let shown: ConfigMap = serde_json::from_value(object.clone()).unwrap();
            lab.sources.record.apply(NAME.into(), Record::from(&shown));
        }
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert_eq!(object.lock()["metadata"]["annotations"].get(record::CONFIRMATION), None, "{name}");
        assert_eq!(object.lock()["data"], before, "{name}: name, card and safe mode stay");
        holds(&lab, Some("MachinesReplaced")).await;
        assert_eq!((lab.identity.name(), lab.identity.last_confirmed()), (None, None), "{name}");
        assert_eq!(lab.told(), ["SafeMode", "ClusterNameRefused"], "{name}");
    }
}

/// The command that Event RecordOfAnotherCluster names. The load balancers under that name are its own.
#[tokio::test(start_paused = true)]
async fn a_cluster_with_the_record_of_another_gets_its_own_name_back_although_load_balancers_have_it() {
    let mut object = remembered("prod").1;
    let theirs = IdentityCard { cluster_uid: "other".into(), ..card("prod", &[]) };
    object["data"]["identity"] = theirs.to_text().into();
    object["metadata"]["annotations"] = json!({record::CONFIRMATION: "copy copied"});
    let (there, server) = granting(object);
    there.lock().1 = true;
    let mut lab = Lab::over(server, "copied", Some("copied"));
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(lab.identity.name(), Some(ClusterName::from_record("copied")));
    assert!(!lab.told().contains(&"ClusterNameRefused".to_owned()));
}
