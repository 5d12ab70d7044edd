//! What is forbidden before anything is judged, while Harvester is away.

use super::*;

/// Nothing of Harvester is listed yet.
fn before_harvester(nodes: &[NodeView]) -> Sources {
    Sources {
        lbs: lb_cache(),
        vms: Cache::new(|old, new| old != new),
        vmis: Cache::new(|old, new| old != new),
        ..Lab::sources(None, nodes, &[])
    }
}

fn own(name: &str) -> OwnNode {
    OwnNode { name: name.to_owned(), told: true }
}

fn reason(lab: &Lab) -> Option<&'static str> {
    lab.identity.hold().map(|hold| hold.reason)
}

#[tokio::test]
async fn a_pause_by_flag_is_in_force_before_the_record_is_read() {
    let silent = Scenario::answering(|_| (0, Value::Null));
    let lab = Lab::run(None, silent, "prod", before_harvester(&[]), true);
    assert_eq!(reason(&lab), Some(PAUSED));
    settle().await;
    assert_eq!(reason(&lab), Some(PAUSED));
}

#[tokio::test(start_paused = true)]
async fn a_pause_in_the_record_is_obeyed_while_no_name_can_be_found() {
    let lab = Lab::run(None, Scenario::answering(|_| none()), "prod", before_harvester(&[]), false);
    settle().await;
    for paused in [true, false, true] {
        lab.sources.record.apply(NAME.into(), Record { paused, ..Record::default() });
        holds(&lab, paused.then_some(PAUSED)).await;
        assert_eq!((lab.identity.name(), lab.metrics.paused.get()), (None, i64::from(paused)));
    }
    lab.sources.record.apply(NAME.into(), Record::default());
    holds(&lab, None).await;
    lab.sources.lbs.replace(std::collections::BTreeMap::new());
    assert_eq!(lab.name().await, "prod", "the first list is news, also an empty one");
    assert_eq!(reason(&lab), None);
}

#[tokio::test(start_paused = true)]
async fn the_safe_mode_of_a_process_before_this_one_holds_until_this_one_has_judged() {
    let mut object = remembered("prod").1;
    object["data"]["identity"] = card("prod", &["vm-a"]).to_text().into();
    object["data"]["safe-mode"] = json!("MachinesNotSeen: 1 Node");
    let object = parking_lot::Mutex::new(object);
    let server = Scenario::answering(move |request| {
        let mut object = object.lock();
        if request.method == "PUT" {
            *object = request.body.clone();
        }
        (200, object.clone())
    });
    let lab = Lab::run(Some(own("a")), server, "prod", before_harvester(&[node("a", "vm-a", true)]), false);
    lab.identity.await_judgement(true);
    let unjudged = lab.identity.hold_of_services().expect("what the record says is not known");
    assert!(unjudged.passing, "a start is told to nobody");
    settle().await;
    let held = lab.identity.hold().expect("a hold");
    assert_eq!((held.reason, held.initialises_nodes, held.passing), (NOT_KNOWN, true, false));
    assert!(held.message.contains("MachinesNotSeen: 1 Node"), "{}", held.message);
    assert_eq!(lab.metrics.safe_mode.get(), 1, "the alert does not end with a restart");
    assert!(matches!(lab.identity.doubt(), IdentityDoubt::NotJudged), "on the Lease it stays as it is");
    // A pause that ends does not end it.
    let there: ConfigMap = serde_json::from_value(remembered("prod").1).unwrap();
    let shown = |paused| Record { paused, safe_mode: Some("MachinesNotSeen: 1 Node".into()), ..Record::from(&there) };
    lab.sources.record.apply(NAME.into(), shown(true));
    holds(&lab, Some(PAUSED)).await;
    lab.sources.record.apply(NAME.into(), shown(false));
    holds(&lab, Some(NOT_KNOWN)).await;
    // Harvester answers, and all is well.
    lab.sources.vms.replace([("a".to_owned(), vm("a", "vm-a"))].into());
    lab.sources.vmis.replace(std::collections::BTreeMap::new());
    holds(&lab, None).await;
    assert_eq!((lab.name().await, lab.identity.hold_of_services()), ("prod".to_owned(), None));
}

#[tokio::test(start_paused = true)]
async fn services_wait_until_the_identity_was_judged_once_and_not_for_ever() {
    let lab = Lab::run(None, Scenario::answering(|_| none()), "prod", Lab::sources(None, &[], &[]), false);
    lab.identity.await_judgement(true);
    settle().await;
    assert_eq!((lab.name().await, lab.identity.hold_of_services()), ("prod".to_owned(), None));

    let silent = Scenario::answering(|_| (0, Value::Null));
    for (name, server) in [("no record can be read", silent), ("Harvester is away", Scenario::answering(|_| none()))] {
        let lab = Lab::run(None, server, "prod", before_harvester(&[]), false);
        lab.identity.await_judgement(true);
        let mut judged = lab.identity.first_judgement();
        tokio::time::sleep(UNJUDGED.saturating_sub(Duration::from_secs(1))).await;
        assert_eq!(lab.identity.hold_of_services().map(|hold| hold.reason), Some(NOT_KNOWN), "{name}");
        judged.changed().await.unwrap();
        assert_eq!((lab.identity.hold_of_services(), lab.identity.name()), (None, None), "{name}");
    }
}
