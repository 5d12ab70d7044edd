//! A restore of etcd that is suspected: across leaders, until it is over.

use super::*;

/// A cluster whose record says that Services vanished so long ago.
fn suspected(ago: Duration) -> (Arc<parking_lot::Mutex<Value>>, Lab) {
    let (object, lab) = stored("prod", &[node("a", "vm-a", true)], &[vm("a", "vm-a")], &["vm-a"]);
    object.lock()["data"]["restore-suspected"] = stamp(ago).to_string().into();
    (object, lab)
}

fn stamp(ago: Duration) -> Timestamp {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap() - ago
}

fn suspects(lab: &Lab) -> bool {
    lab.identity.restore_suspected(Instant::now()).is_some()
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_goes_on_with_the_suspicion_of_the_former_one_until_a_day_is_over() {
    let (object, mut lab) = suspected(Duration::from_hours(20));
    lab.name().await;
    assert!(suspects(&lab));
    settle().await;
    assert_eq!((lab.told(), lab.server.writes().len()), (vec!["RestoreSuspected".to_owned()], 0));
    tokio::time::sleep(Duration::from_mins(239)).await;
    assert!(suspects(&lab));
    assert_eq!(lab.server.writes(), []);
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert!(!suspects(&lab));
    assert_eq!(object.lock()["data"].get("restore-suspected"), None, "nobody has to look for it to end");
    assert_eq!((lab.told(), lab.server.writes().len()), (vec!["RestoreSuspicionEnded".to_owned()], 1));
}

/// It may be that the clock of the machine is ahead, and a day is not over yet.
#[tokio::test(start_paused = true)]
async fn what_is_a_day_old_stays_in_the_record_for_an_hour_in_which_the_clock_may_be_corrected() {
    let (object, mut lab) = suspected(Duration::from_hours(25));
    lab.name().await;
    settle().await;
    tokio::time::sleep(Duration::from_mins(59)).await;
    assert!(suspects(&lab));
    assert_eq!(lab.server.writes(), []);
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert!(!suspects(&lab));
    assert_eq!(object.lock()["data"].get("restore-suspected"), None);
    assert_eq!(lab.told(), ["RestoreSuspected", "RestoreSuspicionEnded"]);
}

#[tokio::test(start_paused = true)]
async fn a_humans_word_ends_the_suspicion_also_for_the_next_leader() {
    let (object, mut lab) = suspected(Duration::from_hours(1));
    lab.name().await;
    settle().await;
    {
        let mut object = object.lock();
        object["metadata"]["annotations"] = json!({record::CONFIRMATION: "confirm"});
        let shown: ConfigMap = serde_json::from_value(object.clone()).unwrap();
        lab.sources.record.apply(NAME.into(), Record::from(&shown));
    }
    // Changes of machines are looked at together, and the record after them.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!suspects(&lab));
    assert_eq!(object.lock()["data"].get("restore-suspected"), None);
    assert_eq!(lab.told(), ["RestoreSuspected", "IdentityConfirmed", "RestoreSuspicionEnded"]);
}

/// The snapshot of the second restore is older than the note of the first one.
#[tokio::test(start_paused = true)]
async fn a_record_that_another_restore_has_set_back_says_so_again() {
    let (object, lab) = suspected(Duration::from_hours(1));
    lab.name().await;
    settle().await;
    let said = object.lock()["data"]["restore-suspected"].clone();
    {
        let mut object = object.lock();
        object["data"].as_object_mut().unwrap().remove("restore-suspected");
        let shown: ConfigMap = serde_json::from_value(object.clone()).unwrap();
        lab.sources.record.apply(NAME.into(), Record::from(&shown));
    }
    tokio::time::sleep(WRITE_EVERY).await;
    settle().await;
    assert_eq!(object.lock()["data"]["restore-suspected"], said);
}
