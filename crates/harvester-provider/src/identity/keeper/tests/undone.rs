//! Another writer puts its own record back each time, as a GitOps tool does.

use super::*;

#[tokio::test(start_paused = true)]
async fn who_reverts_the_record_is_answered_more_seldom_each_time_and_named_once() {
    let (object, mut lab) = stored("prod", &[node("a", "vm-a", true)], &[vm("a", "vm-a")], &["vm-a", "vm-b"]);
    let managed = json!([{"manager": "argocd-controller", "operation": "Update", "time": "2026-01-01T00:00:00Z",
        "fieldsV1": {"f:data": {}}}]);
    let mut theirs = object.lock().clone();
    theirs["metadata"]["managedFields"] = managed;
    let shows = |shown: &Value| {
        let shown: ConfigMap = serde_json::from_value(shown.clone()).unwrap();
        lab.sources.record.apply(NAME.into(), Record::from(&shown));
    };
    for _ in 0..3600 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let written = std::mem::replace(&mut *object.lock(), theirs.clone());
        shows(&written);
        shows(&theirs);
    }
    let writes = lab.server.writes().len();
    assert!((6..30).contains(&writes), "{writes}");
    let told: Vec<_> = std::iter::from_fn(|| lab.events.try_recv().ok()).collect();
    assert_eq!(told.iter().map(|event| event.reason.as_str()).collect::<Vec<_>>(), ["UndoneByOthers"]);
    assert!(told[0].message.contains("\"argocd-controller\" (Update at 2026-01-01T00:00:00Z)"), "{}", told[0].message);
    // What is new is written at once.
    lab.sources.vms.apply("c".into(), vm("c", "vm-c"));
    lab.sources.nodes.apply("c".into(), node("c", "vm-c", true));
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(lab.server.writes().len(), writes + 1);
}
