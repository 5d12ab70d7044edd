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

/// The same where each kubelet renews its Lease all the time, and the record can be written.
fn renewing() -> (Arc<Mutex<Value>>, Lab) {
    let mut object = remembered("prod").1;
    object["data"]["identity"] = card("prod", &["vm-a"]).to_text().into();
    let object = Arc::new(Mutex::new(object));
    let (there, begin) = (Arc::clone(&object), Instant::now());
    let server = Scenario::answering(move |request| {
        if request.path.contains("/leases/") {
            let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
            let renewed = start + Duration::from_secs(begin.elapsed().as_secs());
            return (200, json!({"metadata": {"name": "node"}, "spec": {"renewTime": renewed.to_string()}}));
        }
        let mut there = there.lock();
        if request.method == "PUT" {
            *there = request.body.clone();
        }
        (200, there.clone())
    });
    let machines = (&[node("a", "vm-a", true)][..], &[vm("a", "vm-a")][..]);
    (object, Lab::from(None, server, "prod", None, machines))
}

impl Lab {
    fn joins(&self, name: &str) {
        let machine = format!("vm-{name}");
        self.sources.vms.apply(name.to_owned(), vm(name, &machine));
        self.sources.nodes.apply(name.to_owned(), node(name, &machine, true));
    }

    fn leaves(&self, name: &str) {
        self.sources.nodes.remove(&name.to_owned());
        self.sources.vms.remove(&name.to_owned());
    }

    /// The machines on the card, after a while.
    async fn machines(&self) -> Vec<String> {
        tokio::time::sleep(Duration::from_secs(30)).await;
        self.identity.card().expect("it was judged").machines.iter().cloned().collect()
    }
}

#[tokio::test(start_paused = true)]
async fn machines_that_are_replaced_one_at_a_time_come_into_the_card_seen_from_outside_too() {
    let (object, mut lab) = renewing();
    lab.name().await;
    lab.joins("b");
    assert_eq!(lab.machines().await, ["vm-a", "vm-b"]);
    // The kubelet of the one that is left was never asked for.
    lab.leaves("a");
    assert_eq!(lab.machines().await, ["vm-b"]);
    lab.joins("c");
    assert_eq!(lab.machines().await, ["vm-b", "vm-c"]);
    assert!(lab.identity.hold().is_none());
    assert_eq!(lab.told(), Vec::<String>::new());
    let asked = lab.server.requests().len();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(lab.server.requests().len(), asked, "nothing is asked any more");

    // All of them at once: that looks like a restore on new machines, and a human has to say so.
    lab.sources.vms.replace([("d".to_owned(), vm("d", "vm-d"))].into());
    lab.sources.nodes.replace([("d".to_owned(), node("d", "vm-d", true))].into());
    holds(&lab, Some("MachinesReplaced")).await;
    tokio::time::sleep(WRITE_EVERY).await;
    {
        let mut object = object.lock();
        object["metadata"]["annotations"] = json!({record::CONFIRMATION: "confirm"});
        let shown: ConfigMap = serde_json::from_value(object.clone()).unwrap();
        lab.sources.record.apply(NAME.into(), Record::from(&shown));
    }
    holds(&lab, Some(NOT_KNOWN)).await;
    assert_eq!(lab.machines().await, ["vm-d"]);
    assert_eq!((lab.identity.hold(), lab.metrics.safe_mode.get()), (None, 0));
    assert_eq!(object.lock()["data"].get("safe-mode"), None);
    assert_eq!(lab.told(), ["SafeMode", "IdentityConfirmed", "SafeModeEnded"]);
}
