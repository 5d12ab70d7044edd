use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::*;
use crate::annotations::LeaseFacts;
use crate::ownership::node::{OwnerRecord, Term};
use crate::record::sit;
use crate::view::{Port, Uid};

fn key() -> ServiceKey {
    ServiceKey::new("default", "web")
}

fn record(term: u64) -> Record {
    let ports = vec![Port { port: 80, protocol: "TCP".into() }];
    Record {
        uid: Uid("u".into()),
        vip_host: Some("node-1".into()),
        term: Some(Term(term)),
        ingress: Some(vec![("10.0.0.5".parse().unwrap(), ports)]),
        ..Record::default()
    }
}

fn object(uid: &str) -> Object {
    let metadata = ObjectMeta { uid: Some(uid.into()), ..ObjectMeta::default() };
    Object { metadata, data: json!({"spec": {"future": true}}) }
}

/// Answers each request as an API server would with this object. What was sent, in a word each, and the end.
fn driven(write: &mut Write, stands: Option<Object>) -> (Vec<&'static str>, End) {
    let mut stands = stands.map(Box::new);
    let mut sent = Vec::new();
    let mut next = write.next(Timestamp::UNIX_EPOCH, None);
    loop {
        let answer = match next {
            RecordStep::End(end) => return (sent, end),
            RecordStep::Send(ask) => {
                let (word, written) = match ask {
                    RecordRequest::Read => ("GET", None),
                    RecordRequest::Annotate(object) => ("PUT", Some(object)),
                    RecordRequest::Publish(object) => ("PUT status", Some(object)),
                };
                sent.push(word);
                stands = written.or(stands);
                RecordAnswer::Service(stands.clone())
            }
        };
        next = write.next(Timestamp::UNIX_EPOCH, Some(answer));
    }
}

#[test]
fn a_record_is_written_with_what_is_read_and_what_stands_there_is_not_written_again() {
    let mut writer = RecordWriter::default();
    writer.want(key(), record(4));
    let mut write = writer.begin(&key()).unwrap();
    let (sent, end) = driven(&mut write, Some(object("u")));
    assert_eq!(sent, ["GET", "PUT", "PUT status"]);
    let End::Written(written) = end.clone() else { panic!("{end:?}") };
    assert_eq!(written.data["spec"]["future"], true);
    assert_eq!(writer.ended(&key(), &write, end), (Some(Recorded::Done), Requeue::No));
    assert!(writer.is_empty(), "what stands there is not remembered");
    writer.want(key(), record(4));
    let (sent, end) = driven(&mut writer.begin(&key()).unwrap(), Some(*written));
    assert_eq!(sent, ["GET"]);
    assert!(matches!(end, End::Written(_)));
}

#[test]
fn the_status_follows_without_reading_again_and_an_object_that_was_old_is_read_at_once() {
    let mut writer = RecordWriter::default();
    writer.want(key(), Record { ingress: None, ..record(4) });
    let mut write = writer.begin(&key()).unwrap();
    let (sent, end) = driven(&mut write, Some(object("u")));
    assert_eq!((sent, writer.ended(&key(), &write, end).0), (vec!["GET", "PUT"], Some(Recorded::Done)));
    writer.want(key(), record(4));
    let mut write = writer.begin(&key()).unwrap();
    assert!(matches!(write.next(Timestamp::UNIX_EPOCH, None), RecordStep::Send(RecordRequest::Publish(_))));
    let RecordStep::End(end) = write.next(Timestamp::UNIX_EPOCH, Some(RecordAnswer::Conflict)) else {
        panic!("it goes on")
    };
    assert_eq!(writer.ended(&key(), &write, end), (None, Requeue::AtOnce));
    let mut write = writer.begin(&key()).unwrap();
    assert_eq!(write.next(Timestamp::UNIX_EPOCH, None), RecordStep::Send(RecordRequest::Read));
    let RecordStep::End(end) = write.next(Timestamp::UNIX_EPOCH, Some(RecordAnswer::Conflict)) else {
        panic!("it goes on")
    };
    assert_eq!(writer.ended(&key(), &write, end), (Some(Recorded::Failed), Requeue::Later));
}

#[test]
fn nothing_is_written_on_a_service_that_is_being_deleted_unless_it_keeps_a_lease() {
    let mut leaving = object("u");
    leaving.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    let (address, server) = ("10.0.0.5".parse().unwrap(), "10.0.0.254".parse().unwrap());
    let leased = Record { lease: Some(LeaseFacts { address, server, expires: None }), ..record(4) };
    for (record, expected) in [(record(4), vec!["GET"]), (leased, vec!["GET", "PUT", "PUT status"])] {
        let mut writer = RecordWriter::default();
        writer.want(key(), record);
        let (sent, end) = driven(&mut writer.begin(&key()).unwrap(), Some(leaving.clone()));
        assert_eq!(end == End::Gone, sent == ["GET"], "{end:?}");
        assert_eq!(sent, expected);
    }
}

#[test]
fn what_is_void_is_told_unless_something_else_is_wanted_by_then() {
    let mut newer = object("u");
    sit(&mut newer.metadata, &OwnerRecord { host: "node-2".into(), term: Term(5) });
    for (stands, recorded) in
        [(None, Recorded::Gone), (Some(object("another")), Recorded::Gone), (Some(newer), Recorded::Superseded)]
    {
        for newly_wanted in [false, true] {
            let mut writer = RecordWriter::default();
            writer.want(key(), record(4));
            let mut write = writer.begin(&key()).unwrap();
            let (sent, end) = driven(&mut write, stands.clone());
            assert_eq!(sent, ["GET"]);
            if newly_wanted {
                writer.want(key(), record(6));
            }
            let (told, again) = writer.ended(&key(), &write, end);
            assert_eq!((told, again), ((!newly_wanted).then(|| recorded.clone()), Requeue::No));
            assert_eq!(writer.len(), usize::from(newly_wanted));
        }
    }
}

#[test]
fn what_does_not_count_is_written_over_and_what_has_replaced_it_meanwhile_is_not() {
    let void = OwnerRecord { host: "node-2".into(), term: Term(9) };
    for (standing, is_written) in [
        (void.clone(), true),
        (OwnerRecord { host: "node-3".into(), ..void.clone() }, false),
        (OwnerRecord { term: Term(10), ..void.clone() }, false),
    ] {
        let mut found = object("u");
        sit(&mut found.metadata, &standing);
        let mut writer = RecordWriter::default();
        writer.want(key(), Record { void: Some(void.clone()), ..record(3) });
        let (_, end) = driven(&mut writer.begin(&key()).unwrap(), Some(found));
        assert_eq!(matches!(end, End::Written(_)), is_written, "{standing:?}");
        assert_eq!(end == End::Superseded, !is_written, "{standing:?}");
    }
}

#[test]
fn what_was_given_up_under_way_is_not_tried_again() {
    let mut writer = RecordWriter::default();
    writer.want(key(), record(4));
    let mut write = writer.begin(&key()).unwrap();
    write.next(Timestamp::UNIX_EPOCH, None);
    writer.forget(&key());
    assert_eq!(write.next(Timestamp::UNIX_EPOCH, Some(RecordAnswer::Failed)), RecordStep::End(End::Failed));
    assert_eq!(writer.ended(&key(), &write, End::Failed), (None, Requeue::No));
    assert!(writer.begin(&key()).is_none());
}
