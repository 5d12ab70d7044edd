//! What is written on a Service: its owner, its leases, and the addresses in its status. Each function changes an
//! object that was read, and keeps unknown fields (decisions.md 4).

use std::net::IpAddr;

use contract::joined;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::annotations as keys;
use crate::engine::Record;
use crate::ownership::node::OwnerRecord;
use crate::view::{Port, Published};

/// The record of the owner on a Service (decisions.md 20).
pub fn owner_record(meta: &ObjectMeta) -> Option<OwnerRecord> {
    OwnerRecord::read(meta.annotations.as_ref()?)
}

/// Whether the Service names another owner that `record` must not overwrite.
pub fn is_superseded(meta: &ObjectMeta, record: &Record) -> bool {
    owner_record(meta).is_some_and(|standing| record.is_superseded_by(&standing))
}

/// Writes the owner on the object.
pub fn sit(meta: &mut ObjectMeta, owner_record: &OwnerRecord) {
    owner_record.write(meta.annotations.get_or_insert_default());
}

/// Writes the annotations of a record. Returns true if one changed.
pub fn annotate(meta: &mut ObjectMeta, record: &Record) -> bool {
    let lease = record.lease.as_ref().map(keys::LeaseFacts::to_annotation);
    let lease6 = record.lease6.as_ref().map(keys::LeaseFacts6::to_annotation);
    let term = record.term.map(|term| term.to_string());
    let wanted = [
        (keys::VIP_HOST, record.vip_host.as_ref()),
        (keys::TERM, term.as_ref()),
        (keys::HWADDR, record.hwaddr.as_ref()),
        (keys::REQUESTED_IP, record.requested_ip.as_ref()),
        (keys::DHCP_LEASE, lease.as_ref()),
        (keys::DHCP6_LEASE, lease6.as_ref()),
    ];
    let annotations = meta.annotations.get_or_insert_default();
    let mut changed = false;
    for (name, value) in wanted {
        let Some(value) = value else { continue };
        if annotations.get(name) != Some(value) {
            annotations.insert(name.to_owned(), value.clone());
            changed = true;
        }
    }
    let text = |name: &str| annotations.get(name).map(String::as_str);
    let published = Published {
        lease: text(keys::DHCP_LEASE).and_then(keys::LeaseFacts::parse),
        lease6: text(keys::DHCP6_LEASE).and_then(keys::LeaseFacts6::parse),
        ..Published::default()
    };
    let lost = record.lost.standing(&published);
    for (name, lost) in [(keys::DHCP_LEASE, lost.v4.is_some()), (keys::DHCP6_LEASE, lost.v6.is_some())] {
        if lost {
            annotations.remove(name);
            changed = true;
        }
    }
    changed
}

/// Writes `status.loadBalancer.ingress` and the turn in which the Service has joined others. Returns true if something
/// changed. `object` is the Service, with or without its metadata.
pub fn publish(object: &mut Value, record: &Record, now: Timestamp) -> bool {
    let Some(ingress) = &record.ingress else { return false };
    if !object["status"].is_object() {
        object["status"] = json!({});
    }
    let addressed = address(object, ingress);
    join(object, record.turn, now) || addressed
}

/// Writes the condition with the turn. It is replaced as a whole, because a Service that joins another address gets a
/// new turn.
fn join(object: &mut Value, turn: u32, now: Timestamp) -> bool {
    let old = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let is_ours = |condition: &&Value| condition["type"] == joined::JOINED;
    let place = |ours: &Value| joined::parse_turn(ours["message"].as_str().unwrap_or_default());
    let stands = old.iter().find(is_ours).map(place);
    if stands == (turn > 0).then_some(Some(turn)) {
        return false;
    }
    let mut new: Vec<Value> = old.iter().filter(|condition| !is_ours(condition)).cloned().collect();
    if turn > 0 {
        new.push(json!({
            "type": joined::JOINED,
            "status": "True",
            "reason": joined::JOINED_OTHERS,
            "message": joined::turn_message(turn),
            "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        }));
    }
    object["status"]["conditions"] = Value::Array(new);
    true
}

/// Writes the addresses. An existing entry keeps fields that the announcer does not write (`ipMode`).
fn address(object: &mut Value, ingress: &[(IpAddr, Vec<Port>)]) -> bool {
    let old = object["status"]["loadBalancer"]["ingress"].as_array().cloned().unwrap_or_default();
    let new: Vec<Value> = ingress
        .iter()
        .map(|(ip, ports)| {
            let same = |entry: &&Value| entry["ip"].as_str().and_then(|text| text.parse::<IpAddr>().ok()) == Some(*ip);
            let mut entry = old.iter().find(same).cloned().unwrap_or_else(|| json!({"ip": ip.to_string()}));
            let ports: Vec<Value> =
                ports.iter().map(|port| json!({"port": port.port, "protocol": port.protocol})).collect();
            let none = ports.is_empty() && entry["ports"].is_null();
            if !none && !same_ports(&entry["ports"], &ports) {
                entry["ports"] = Value::Array(ports);
            }
            entry
        })
        .collect();
    if new == old {
        return false;
    }
    if !object["status"]["loadBalancer"].is_object() {
        object["status"]["loadBalancer"] = json!({});
    }
    object["status"]["loadBalancer"]["ingress"] = Value::Array(new);
    true
}

fn same_ports(old: &Value, new: &[Value]) -> bool {
    old.as_array().is_some_and(|old| {
        old.len() == new.len()
            && old.iter().zip(new).all(|(old, new)| old["port"] == new["port"] && old["protocol"] == new["protocol"])
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ServiceStatus;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

    use super::*;
    use crate::engine::LostLeases;
    use crate::record_writer::Object;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn object(status: &Value) -> Object {
        let annotations = Some([("mine".to_owned(), "1".to_owned())].into());
        let spec = json!({"type": "LoadBalancer", "future": {"field": true}});
        Object {
            metadata: ObjectMeta { annotations, ..ObjectMeta::default() },
            data: json!({"spec": spec, "status": status}),
        }
    }

    fn ports() -> Vec<Port> {
        vec![Port { port: 80, protocol: "TCP".into() }]
    }

    fn at(address: &str, ports: Vec<Port>) -> Record {
        Record { ingress: Some(vec![(address.parse().unwrap(), ports)]), ..Record::default() }
    }

    #[test]
    fn the_turn_in_which_a_service_has_joined_others_stands_beside_their_conditions_until_it_joins_nobody() {
        let theirs = json!({"type": "x", "status": "True", "reason": "Y", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let mut object = object(&json!({"conditions": [theirs]}));
        for turn in [2, 3, 0] {
            let record = Record { turn, ..at("10.0.0.5", ports()) };
            assert!(publish(&mut object.data, &record, NOW), "{turn}");
            assert!(!publish(&mut object.data, &record, NOW), "{turn}");
            let status: ServiceStatus = serde_json::from_value(object.data["status"].clone()).unwrap();
            let conditions = status.conditions.unwrap();
            let place = |it: &Condition| joined::parse_turn(&it.message);
            assert_eq!(conditions.get(1).and_then(place), (turn > 0).then_some(turn));
        }
    }

    #[test]
    fn what_others_wrote_survives() {
        let mut object = object(&json!({"conditions": [{"type": "x"}]}));
        let record = Record { vip_host: Some("node-1".into()), ..Record::default() };
        assert!(annotate(&mut object.metadata, &record));
        assert!(publish(&mut object.data, &at("10.0.0.5", ports()), NOW));
        assert_eq!(object.metadata.annotations.as_ref().unwrap()["mine"], "1");
        assert_eq!(object.data["spec"]["future"]["field"], true);
        assert_eq!(object.data["status"]["conditions"][0]["type"], "x");
        assert_eq!(
            object.data["status"]["loadBalancer"]["ingress"],
            json!([{"ip": "10.0.0.5", "ports": [{"port": 80, "protocol": "TCP"}]}])
        );
        assert!(!annotate(&mut object.metadata, &record) && !publish(&mut object.data, &at("10.0.0.5", ports()), NOW));
    }

    #[test]
    fn the_mode_that_the_api_server_adds_is_no_difference() {
        let ingress = json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.5", "ipMode": "VIP",
            "ports": [{"port": 80, "protocol": "TCP"}]}]}});
        let mut object = object(&ingress);
        assert!(!publish(&mut object.data, &at("10.0.0.5", ports()), NOW));
        assert!(publish(&mut object.data, &at("10.0.0.5", Vec::new()), NOW));
        assert_eq!(object.data["status"]["loadBalancer"]["ingress"][0]["ipMode"], "VIP");
    }

    #[test]
    fn an_address_that_is_not_ours_any_more_leaves_the_status() {
        let mut object = object(&json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.4"}]}}));
        assert!(publish(&mut object.data, &at("10.0.0.5", Vec::new()), NOW));
        assert_eq!(object.data["status"]["loadBalancer"]["ingress"], json!([{"ip": "10.0.0.5"}]));
    }

    #[test]
    fn absent_facts_leave_the_annotations_alone() {
        let mut object = object(&json!({}));
        let dhcp = Record { vip_host: Some("n".into()), hwaddr: Some("00:00:6c:00:00:01".into()), ..Record::default() };
        assert!(annotate(&mut object.metadata, &dhcp));
        assert!(!annotate(&mut object.metadata, &Record { vip_host: Some("n".into()), ..Record::default() }));
        assert_eq!(object.metadata.annotations.unwrap()[keys::HWADDR], "00:00:6c:00:00:01");
    }

    #[test]
    fn only_the_facts_of_the_lease_that_was_lost_are_removed() {
        let facts = |address: &str| keys::LeaseFacts {
            address: address.parse().unwrap(),
            server: "10.0.0.254".parse().unwrap(),
            expires: None,
        };
        let mut object = object(&json!({}));
        let facts6 = |address: &str| keys::LeaseFacts6 {
            address: address.parse().unwrap(),
            server: "00010203".into(),
            expires: None,
        };
        let (lease, lease6) = (Some(facts("10.0.0.50")), Some(facts6("fd00::50")));
        let standing = Record { vip_host: Some("n".into()), lease, lease6, ..Record::default() };
        assert!(annotate(&mut object.metadata, &standing));
        let lost = |lost: LostLeases| Record { vip_host: Some("n".into()), lost, ..Record::default() };
        let lost4 = |address: &str| lost(LostLeases { v4: Some(facts(address)), v6: None });
        let lost6 = |address: &str| lost(LostLeases { v4: None, v6: Some(facts6(address)) });
        assert!(
            !annotate(&mut object.metadata, &lost4("10.0.0.51")) && !annotate(&mut object.metadata, &lost6("fd00::51"))
        );
        assert!(annotate(&mut object.metadata, &lost4("10.0.0.50")));
        let has = |object: &Object, name: &str| object.metadata.annotations.as_ref().unwrap().contains_key(name);
        assert!(!has(&object, keys::DHCP_LEASE) && has(&object, keys::DHCP6_LEASE));
        assert!(annotate(&mut object.metadata, &lost6("fd00::50")));
        assert!(!has(&object, keys::DHCP6_LEASE));
    }
}
