//! A record that loses its card, or is lost altogether.

use parking_lot::Mutex;

use harvester_api::keys::harvester::GUEST_CLUSTER_NAME;

use super::*;
use crate::instances::view::build::vmi;
use crate::load_balancers::view::LbView;

const IP: &str = "10.0.0.1";

/// An API server that keeps what is written to the record; null: there is no record.
fn keeping(record: Value) -> (Arc<Mutex<Value>>, Scenario) {
    let object = Arc::new(Mutex::new(record));
    let there = Arc::clone(&object);
    let server = Scenario::answering(move |request| {
        let mut there = there.lock();
        if request.path.ends_with("/namespaces/kube-system") {
            return (200, json!({"metadata": {"name": NAMESPACE, "uid": "u"}}));
        }
        if request.method != "GET" {
            *there = request.body.clone();
        }
        if there.is_null() { none() } else { (200, there.clone()) }
    });
    (object, server)
}

impl Lab {
    /// The watch shows this record.
    fn shows_record(&self, object: &Value) {
        let shown: ConfigMap = serde_json::from_value(object.clone()).unwrap();
        self.sources.record.apply(NAME.into(), Record::from(&shown));
    }

    fn names(&self) -> Vec<String> {
        self.identity.card().expect("it is judged").names.iter().cloned().collect()
    }
}

/// The copy has a name of its own. Its Services have the UIDs of the original's, and so are the original's load
/// balancers proven to be theirs.
#[tokio::test]
async fn a_record_that_loses_its_card_gets_it_back_as_it_was_and_no_name_of_the_original() {
    for broken in [None, Some("{")] {
        let (object, server) = keeping(remembered("copied").1);
        let lab = Lab::over(server, "copied", Some("prod"));
        assert_eq!(lab.name().await, "copied");
        settle().await;
        let before = object.lock()["data"]["identity"].clone();
        lab.shows_record(&object.lock());
        settle().await;
        {
            let mut object = object.lock();
            let data = object["data"].as_object_mut().unwrap();
            data.remove("identity");
            data.extend(broken.map(|broken| ("identity".to_owned(), json!(broken))));
            lab.shows_record(&object);
        }
        settle().await;
        assert_eq!(lab.names(), ["copied"], "{broken:?}");
        assert_eq!(object.lock()["data"]["identity"], before, "{broken:?}");
    }
}

#[tokio::test]
async fn a_record_that_is_deleted_is_written_again_with_the_card_that_it_had() {
    let (object, server) = keeping(remembered("copied").1);
    let lab = Lab::over(server, "copied", Some("prod"));
    lab.name().await;
    settle().await;
    let before = object.lock()["data"].clone();
    lab.shows_record(&object.lock());
    settle().await;
    *object.lock() = Value::Null;
    lab.sources.record.remove(&NAME.to_owned());
    settle().await;
    assert_eq!((lab.names(), &object.lock()["data"]), (vec!["copied".to_owned()], &before));
}

/// It has the name and the flag of the original, so nothing but the card says that its machines are others.
#[tokio::test(start_paused = true)]
async fn a_copy_in_safe_mode_does_not_become_the_original_because_its_record_is_lost() {
    let nodes = [node("a", "vm-a", false), node("x", "vm-x", true)];
    let (object, lab) = stored("prod", &nodes, &[vm("a", "vm-a"), vm("x", "vm-x")], &["vm-a"]);
    tokio::time::sleep(SETTLED).await;
    holds(&lab, Some("MachinesReplaced")).await;
    tokio::time::sleep(WRITE_EVERY).await;
    {
        let mut object = object.lock();
        object["data"] = json!({});
        lab.shows_record(&object);
    }
    tokio::time::sleep(Duration::from_mins(1)).await;
    holds(&lab, Some("MachinesReplaced")).await;
    assert_eq!((lab.identity.name(), lab.metrics.safe_mode.get()), (None, 1));
    let data = object.lock()["data"].clone();
    assert_eq!(data["identity"], card("prod", &["vm-a"]).to_text(), "the next process knows it, too");
    assert!(data["safe-mode"].as_str().is_some_and(|text| text.starts_with("MachinesReplaced: ")), "{data}");
}

/// The flag was lost or changed, too. A name that follows from it would end a contradiction about the name. After an
/// operator's confirmation load balancers would be made under it.
#[tokio::test(start_paused = true)]
async fn a_record_that_is_lost_in_safe_mode_comes_back_with_its_name_whatever_the_flag_says() {
    for (flag, label, reason) in [
        ("prod", None, "MachinesReplaced"),
        ("", None, "MachinesReplaced"),
        ("prod2", Some("prod2"), "AnotherClusterName"),
    ] {
        let nodes = [node("a", "vm-a", false), node("x", "vm-x", true)];
        let (object, mut lab) = stored(flag, &nodes, &[vm("a", "vm-a"), vm("x", "vm-x")], &["vm-a"]);
        if let Some(label) = label {
            let mut labelled = vmi("x");
            labelled.labels.insert(GUEST_CLUSTER_NAME, label);
            lab.sources.vmis.apply("x".into(), labelled);
        }
        tokio::time::sleep(SETTLED).await;
        holds(&lab, Some(reason)).await;
        tokio::time::sleep(WRITE_EVERY).await;
        {
            let mut object = object.lock();
            lab.shows_record(&object);
            object["data"] = json!({});
            lab.shows_record(&object);
        }
        tokio::time::sleep(Duration::from_mins(1)).await;
        holds(&lab, Some(reason)).await;
        assert_eq!(lab.told(), ["SafeMode"], "{flag:?}");
        let data = object.lock()["data"].clone();
        assert_eq!((&data["cluster-name"], lab.identity.name()), (&json!("prod"), None), "{flag:?}");
        {
            let mut object = object.lock();
            object["metadata"]["annotations"] = json!({record::CONFIRMATION: "confirm"});
            lab.shows_record(&object);
        }
        holds(&lab, None).await;
        assert_eq!(lab.name().await, "prod", "{flag:?}");
    }
}

/// The name in it is that of the other cluster. When the tool that copies it is stopped, it may take the record away.
#[tokio::test(start_paused = true)]
async fn of_a_record_that_was_copied_from_another_cluster_no_name_comes_back() {
    for own in [true, false] {
        let ours = remembered("ours").1;
        let mut copied = remembered("theirs").1;
        copied["data"]["identity"] =
            IdentityCard { cluster_uid: "other".into(), ..card("theirs", &[]) }.to_text().into();
        let (object, server) = keeping(if own { ours.clone() } else { copied.clone() });
        let lab = Lab::over(server, "ours", None);
        if own {
            lab.name().await;
            lab.shows_record(&ours);
            tokio::time::sleep(WRITE_EVERY).await;
            *object.lock() = copied.clone();
            lab.shows_record(&copied);
        }
        holds(&lab, Some("RecordOfAnotherCluster")).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        *object.lock() = Value::Null;
        lab.sources.record.apply(NAME.into(), Record::default());
        lab.sources.record.remove(&NAME.to_owned());
        tokio::time::sleep(Duration::from_mins(1)).await;
        holds(&lab, Some("RecordOfAnotherCluster")).await;
        let name = object.lock()["data"].get("cluster-name").cloned();
        assert_eq!(name, own.then(|| json!("ours")), "the process has known its name before: {own}");
    }
}

/// What was copied says nothing about this cluster, not even its name.
#[tokio::test(start_paused = true)]
async fn a_confirmation_of_the_record_that_another_cluster_has_keeps_the_name_of_this_one() {
    for (flag, label, name) in [("ours", None, "ours"), ("", Some("ours"), "ours"), ("kubernetes", None, "kubernetes")]
    {
        let mut copied = remembered("theirs").1;
        copied["data"]["identity"] =
            IdentityCard { cluster_uid: "other".into(), ..card("theirs", &[]) }.to_text().into();
        let (object, server) = keeping(copied);
        let lab = Lab::over(server, flag, label);
        holds(&lab, Some("RecordOfAnotherCluster")).await;
        tokio::time::sleep(WRITE_EVERY).await;
        {
            let mut object = object.lock();
            object["metadata"]["annotations"] = json!({record::CONFIRMATION: "confirm"});
            lab.shows_record(&object);
        }
        holds(&lab, None).await;
        assert_eq!(lab.name().await, name, "{flag:?}");
        assert!(!lab.names().contains(&"theirs".to_owned()), "{flag:?}");
        assert_eq!(object.lock()["data"]["cluster-name"], json!(name), "{flag:?}");
    }
}

/// A name that no object can have is told and written over in safe mode as well.
#[tokio::test(start_paused = true)]
async fn a_mistyped_name_in_safe_mode_is_told_once_and_the_former_one_comes_back() {
    let nodes = [node("a", "vm-a", false), node("x", "vm-x", true)];
    let (object, mut lab) = stored("", &nodes, &[vm("a", "vm-a"), vm("x", "vm-x")], &["vm-a"]);
    tokio::time::sleep(SETTLED).await;
    holds(&lab, Some("MachinesReplaced")).await;
    tokio::time::sleep(WRITE_EVERY).await;
    {
        let mut object = object.lock();
        object["data"]["cluster-name"] = json!("Prod 2");
        lab.shows_record(&object);
    }
    tokio::time::sleep(Duration::from_mins(1)).await;
    holds(&lab, Some("MachinesReplaced")).await;
    assert_eq!(
        (lab.told(), &object.lock()["data"]["cluster-name"]),
        (vec!["SafeMode".to_owned(), "ClusterNameRefused".to_owned()], &json!("prod"),)
    );
}

/// The process has ended, and nothing but the load balancers is left.
#[tokio::test]
async fn a_first_card_has_the_names_of_addresses_that_services_show_and_no_other() {
    for (what, shown, expected) in [
        ("the original's, proven by the UID", "10.0.0.9", &["copied"][..]),
        ("its own, made under a former name", IP, &["copied", "former"][..]),
    ] {
        let mut record = remembered("copied").1;
        record["data"].as_object_mut().unwrap().remove("identity");
        let (_, server) = keeping(record);
        let lab = Lab::over(server, "copied", Some("former"));
        let web = build::service("default/web").short(&[("ip", shown)]).ingress(shown).done();
        lab.sources.services.apply(web.key.clone(), web);
        let lb = lab.sources.lbs.all().remove(0);
        let booked = build::lb(&lb.name).ready(IP).done();
        lab.sources.lbs.apply(lb.name.clone(), LbView { labels: lb.labels.clone(), ..booked });
        lab.name().await;
        assert_eq!(lab.names(), expected, "{what}");
    }
}
