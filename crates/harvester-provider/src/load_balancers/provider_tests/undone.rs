//! Two writers of one object on Harvester.

use super::*;

#[tokio::test(start_paused = true)]
async fn what_somebody_undoes_on_harvester_is_repeated_more_seldom_each_time_and_the_other_writer_is_named() {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.served().await;
    let mut told = Vec::new();
    let start = tokio::time::Instant::now();
    while start.elapsed() < Duration::from_mins(10) {
        // An operator on Harvester that knows better.
        lab.host(|object| {
            object["status"]["address"] = json!("10.9.9.9");
            let entry = |manager, time| json!({"manager": manager, "operation": "Update", "time": time});
            object["metadata"]["managedFields"] = json!([
                entry("fixer", "2026-01-01T00:05:00Z"),
                entry("harvester-cloud-provider", "2026-01-01T00:06:00Z")
            ]);
        });
        lab.watch();
        match lab.ensure().await.unwrap() {
            Ensured::Waiting(waiting) if waiting.reason == "UndoneByOthers" => {
                tokio::time::advance(waiting.retry_after.unwrap()).await;
                told.push(waiting.message);
            }
            _ => tokio::time::advance(Duration::from_millis(7)).await,
        }
    }
    let writes = lab.written().len();
    assert!((10..20).contains(&writes), "{writes}");
    told.dedup();
    assert_eq!(told.len(), 1, "one Event: {told:?}");
    assert!(told[0].contains("\"fixer\" (Update at 2026-01-01T00:05:00Z)"), "{}", told[0]);
    // Anything else is answered at once.
    lab.watch();
    lab.guest(|service| service.labels.insert("x", "y"));
    lab.host(|object| {
        object["metadata"]["labels"].as_object_mut().unwrap().remove("cloudprovider.harvesterhci.io/serviceName");
    });
    lab.watch();
    lab.ensure().await.unwrap();
    assert_eq!(lab.written().len(), 1);
}
