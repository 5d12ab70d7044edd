//! New Nodes while a watch of the machines is in error.

use super::*;

/// The API as it answers one read about machine `w1`: its UID and that of its instance, or a refusal.
fn live(uid: Option<(&'static str, &'static str)>) -> Scenario {
    Scenario::answering(move |request| {
        let Some((uid, instance)) = uid else { return (401, Scenario::status(401, "Unauthorized", "Unauthorized")) };
        assert!(request.path.ends_with("/w1"), "{request:?}");
        if request.path.contains("/virtualmachineinstances/") {
            let (spec, status) = (
                json!({"networks": [{"name": "nic-0", "multus": {"networkName": "guests/mgmt"}}], "domain": {}}),
                json!({"phase": "Running", "interfaces": [{"name": "nic-0", "ipAddress": "10.0.0.9"}]}),
            );
            let metadata = json!({"name": "w1", "namespace": "guests", "uid": instance});
            return (200, json!({"metadata": metadata, "spec": spec, "status": status}));
        }
        let metadata = json!({"name": "w1", "namespace": "guests", "uid": uid});
        (200, json!({"metadata": metadata, "spec": {}, "status": {"printableStatus": "Running"}}))
    })
}

const REVOKED: &str = "virtualmachines.kubevirt.io is forbidden: User \"u\" cannot list resource";

/// A lab whose caches have machine `w1`, and whose watches have failed since.
fn outdated(server: &Scenario) -> Lab {
    let mut lab = lab_with(&[running("w1", Some("10.0.0.1"))], "", |config| config.disable_hostname_lookup = true);
    Arc::get_mut(&mut lab.instances).unwrap().requests = Requests::new(server.client(), "guests");
    lab.watched.send_modify(|status| {
        (status.synced, status.error) = (true, Some((tokio::time::Instant::now(), REVOKED.into())));
    });
    lab
}

/// The token was revoked, the VM was made anew under its name, and its Node with it: the Node got the UID of the old VM
/// for good.
#[tokio::test]
async fn while_a_watch_is_in_error_a_new_node_gets_its_provider_id_from_a_live_read_or_not_at_all() {
    let new = node("w1", None, true);
    for (sentence, answer, expected) in [
        ("the same machine", Some(("uid-w1", "vmi-w1")), Ok("10.0.0.9")),
        ("restarted meanwhile", Some(("uid-w1", "another")), Ok("10.0.0.9")),
        ("made anew", Some(("uid-new", "another")), Err("VM guests/w1 is not the one that was listed")),
        ("no answer", None, Err("Unauthorized")),
    ] {
        let lab = outdated(&live(answer));
        match (lab.instances.metadata(&new).await, expected) {
            (Ok(machine), Ok(address)) => {
                assert_eq!(machine.provider_id, "harvester://uid-w1", "{sentence}");
                assert_eq!(machine.addresses[0].address, address, "{sentence}: the live read decides");
            }
            (Err(error), Err(part)) => {
                assert!(error.message.contains(part) && error.message.contains(REVOKED), "{sentence}: {error}");
                assert!(!error.permanent, "{sentence}: it is tried again");
            }
            (got, _) => panic!("{sentence}: {got:?}"),
        }
        let old = lab.instances.metadata(&node("w1", Some("harvester://uid-w1"), false)).await.unwrap();
        assert_eq!(old.addresses[0].address, "10.0.0.1", "{sentence}: an initialised Node goes by the caches");
    }
}

/// What an agent said of a former instance says nothing of this one, where only that led to the machine.
#[tokio::test]
async fn while_a_watch_is_in_error_a_machine_found_by_its_host_name_must_not_have_been_restarted() {
    for (instance, known) in [("vmi-w1", true), ("another", false)] {
        let mut lab = lab(&[running("w1", Some("10.0.0.1"))], "node-1");
        let view = node("node-1", None, true);
        assert!(lab.instances.metadata(&view).await.unwrap_err().under_way);
        let ask = lab.asked.try_recv().unwrap();
        lab.instances.memory().hostnames.answered(&ask, Some("node-1"), Instant::now());
        let server = live(Some(("uid-w1", instance)));
        Arc::get_mut(&mut lab.instances).unwrap().requests = Requests::new(server.client(), "guests");
        lab.watched.send_modify(|status| status.error = Some((tokio::time::Instant::now(), REVOKED.into())));
        let found = lab.instances.metadata(&view).await;
        assert_eq!(found.is_ok(), known, "{instance}: {found:?}");
    }
}

/// The right to list was lost after the first list: "no VM for node" sent its administrator on a wrong track.
#[tokio::test]
async fn while_a_watch_is_in_error_a_new_node_without_a_machine_hears_of_that_error() {
    let lab = outdated(&live(None));
    let error = lab.instances.metadata(&node("w2", None, true)).await.unwrap_err();
    assert!(error.message.contains(REVOKED) && !error.message.contains("no VM for node"), "{error}");
    assert_eq!(lab.server.requests(), []);
    lab.watched.send_modify(|status| status.error = None);
    let error = lab.instances.metadata(&node("w2", None, true)).await.unwrap_err();
    assert!(error.message.starts_with("no VM for node w2"), "{error}");
}

/// Its back-off is up to a minute, and the list that ends the error may change nothing in the caches.
#[tokio::test]
async fn a_node_that_waits_for_a_watch_in_error_is_woken_when_that_is_over() {
    let lab = outdated(&live(None));
    let mut wakes = lab.instances.wakes();
    while tokio::time::timeout(Duration::from_millis(20), wakes.next()).await.is_ok() {}
    lab.instances.metadata(&node("w1", None, true)).await.unwrap_err();
    lab.watched.send_modify(|status| status.troubles += 1);
    let early = tokio::time::timeout(Duration::from_millis(20), wakes.next()).await;
    assert!(early.is_err(), "the error goes on: {early:?}");
    lab.watched.send_modify(|status| status.error = None);
    let woken = tokio::time::timeout(Duration::from_secs(1), wakes.next()).await;
    assert_eq!(woken, Ok(Some(NodeWake::Node("w1".into()))));
}
