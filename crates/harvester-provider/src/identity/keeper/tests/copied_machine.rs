//! A server whose whole machine was copied: its Node names the machine of the original.

use super::*;
use crate::instances::machine_uuid::MachineUuid;
use crate::instances::view::VmiView;
use crate::instances::view::build::vmi;

const ORIGINAL: &str = "00112233-4455-6677-8899-aabbccddeef1";
const COPY: &str = "00112233-4455-6677-8899-aabbccddeef2";

fn reports(uuid: &str) -> NodeView {
    NodeView { system_uuid: Some(uuid.to_uppercase()), ..node("a", "vm-a", true) }
}

/// The controller runs on Node `a`, and the firmware of machine `vm-a` is that of the original.
fn on_server(uuid: &str) -> (Arc<parking_lot::Mutex<Value>>, Lab) {
    let (object, lab) = stored("prod", &[reports(uuid)], &[vm("a", "vm-a")], &["vm-a"]);
    lab.sources.vmis.apply("a".into(), VmiView { firmware: MachineUuid::parse(ORIGINAL), ..vmi("a") });
    (object, lab)
}

fn started_on(object: &parking_lot::Mutex<Value>) -> Value {
    let card: Value = serde_json::from_str(object.lock()["data"]["identity"].as_str().unwrap()).unwrap();
    card["startedOn"].clone()
}

fn is_shown(object: &parking_lot::Mutex<Value>, lab: &Lab) {
    let shown: ConfigMap = serde_json::from_value(object.lock().clone()).unwrap();
    lab.sources.record.apply(NAME.into(), Record::from(&shown));
}

#[tokio::test(start_paused = true)]
async fn the_uuid_of_a_machine_is_noted_once_and_a_kubelet_on_another_one_holds_until_a_human_speaks() {
    let (object, lab) = on_server(ORIGINAL);
    assert_eq!(lab.name().await, "prod");
    tokio::time::sleep(SETTLED / 2).await;
    assert_eq!((lab.server.writes().len(), started_on(&object)), (1, json!(["vm-a"])));

    // In a copy that was trusted because its kubelet had not reported yet.
    lab.sources.nodes.apply("a".into(), reports(COPY));
    holds(&lab, Some(NOT_KNOWN)).await;
    let message = lab.identity.hold().unwrap().message.clone();
    assert!(message.contains(COPY) && message.contains(ORIGINAL), "{message}");
    tokio::time::sleep(SETTLED).await;
    holds(&lab, Some("MachinesReplaced")).await;
    settle().await;
    let text = object.lock()["data"]["safe-mode"].as_str().unwrap().to_owned();
    assert!(text.contains(COPY) && text.contains(ORIGINAL), "{text}");

    object.lock()["metadata"]["annotations"] = json!({record::CONFIRMATION: "confirm"});
    is_shown(&object, &lab);
    holds(&lab, None).await;
    settle().await;
    assert_eq!(started_on(&object), Value::Null);
    is_shown(&object, &lab);
    tokio::time::sleep(2 * SETTLED).await;
    assert_eq!(lab.identity.hold(), None, "what was confirmed is not doubted again");
}

/// A VM may get another UUID with a restart. Its Node shows the former one until the kubelet has reported.
#[tokio::test(start_paused = true)]
async fn a_machine_that_has_another_uuid_since_its_restart_is_waited_for() {
    let (object, mut lab) = on_server(ORIGINAL);
    let mut recorded = card("prod", &["vm-a"]);
    recorded.started_on = recorded.machines.clone();
    object.lock()["data"]["identity"] = recorded.to_text().into();
    lab.sources.vmis.apply("a".into(), VmiView { firmware: MachineUuid::parse(COPY), ..vmi("a") });
    holds(&lab, Some(NOT_KNOWN)).await;
    tokio::time::sleep(SETTLED / 2).await;
    lab.sources.nodes.apply("a".into(), reports(COPY));
    holds(&lab, None).await;
    assert_eq!((lab.name().await.as_str(), lab.told().len()), ("prod", 0));
}
