//! A controller that runs on no Node of its cluster.

use parking_lot::Mutex;

use super::*;

/// The record of a cluster with one machine, whose kubelet reported at this time, and a controller elsewhere.
/// `leases`: whether the Lease of the kubelet may be read.
fn outside(leases: bool) -> (Arc<Mutex<&'static str>>, Lab) {
    let mut object = remembered("prod").1;
    object["data"]["identity"] = card("prod", &["vm-a"]).to_text().into();
    let reported = Arc::new(Mutex::new("2026-01-01T00:00:00Z"));
    let time = Arc::clone(&reported);
    let server = Scenario::answering(move |request| {
        let time = *time.lock();
        if request.path.contains("/leases/") {
            let lease = json!({"metadata": {"name": "a"}, "spec": {"renewTime": time}});
            return if leases { (200, lease) } else { (403, Scenario::status(403, "Forbidden", "no")) };
        }
        if request.path.ends_with("/nodes/a") {
            let ready = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": time});
            return (200, json!({"metadata": {"name": "a"}, "status": {"conditions": [ready]}}));
        }
        (200, object.clone())
    });
    let machines = (&[node("a", "vm-a", true)][..], &[vm("a", "vm-a")][..]);
    (reported, Lab::from(None, server, "prod", None, machines))
}

#[tokio::test(start_paused = true)]
async fn a_controller_outside_waits_until_a_kubelet_is_seen_to_report_however_late_the_controller_manager_is() {
    for leases in [true, false] {
        let (reported, lab) = outside(leases);
        holds(&lab, Some(NOT_KNOWN)).await;
        tokio::time::sleep(Duration::from_mins(30)).await;
        assert_eq!((lab.identity.name(), lab.server.writes()), (None, vec![]), "a restored snapshot looks like this");
        *reported.lock() = "2025-12-31T00:00:00Z";
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert!(lab.identity.hold().is_some(), "an older report is that of a snapshot, leases: {leases}");
        *reported.lock() = "2025-12-31T00:00:10Z";
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert!(lab.identity.hold().is_none(), "a kubelet with another clock, leases: {leases}");
        assert_eq!(lab.name().await, "prod");
        let asked = lab.server.requests().len();
        tokio::time::sleep(Duration::from_mins(10)).await;
        assert_eq!(lab.server.requests().len(), asked, "nothing is asked any more");
    }
}
