//! The record against a scripted API server.

use runtime::scenario::Scenario;
use serde_json::{Value, json};

use super::*;

fn server(there: Option<Value>) -> Scenario {
    Scenario::answering(move |request| match (request.method.as_str(), &there) {
        ("GET", None) => (404, Scenario::status(404, "NotFound", "configmaps not found")),
        ("GET", Some(object)) => (200, object.clone()),
        _ => (200, request.body.clone()),
    })
}

fn named(name: &str) -> RecordNote {
    RecordNote { name: Some(ClusterName::from_record(name)), ..RecordNote::default() }
}

#[tokio::test]
async fn a_card_comes_and_a_safe_mode_and_a_word_that_was_followed_go() {
    let card = IdentityCard { cluster_uid: "u".into(), ..IdentityCard::default() };
    let mut there = config_map(&json!({"cluster-name": "prod", "safe-mode": "x"}));
    there["metadata"]["annotations"] = json!({CONFIRMATION: "confirm", "other": "y"});
    let found = Record::from(&serde_json::from_value::<ConfigMap>(there.clone()).unwrap());
    assert_eq!(
        (found.confirmation, found.safe_mode.as_deref(), found.paused),
        (Some(OperatorConfirmation::Confirm), Some("x"), false)
    );
    let server = server(Some(there));
    let note = RecordNote { card: Some(card.clone()), followed: true, ..RecordNote::default() };
    let written = Records::new(server.client()).write(&note).await.unwrap();
    assert_eq!((written.card, written.safe_mode, written.confirmation), (Some(card), None, None));
    assert_eq!(server.writes()[0].body["metadata"]["annotations"], json!({"other": "y"}));
    assert!(note.is_news_to(&Record::default()) && !RecordNote::default().is_news_to(&Record::default()));
}

#[test]
fn a_word_is_one_of_three_and_names_are_names() {
    let rename = |name: &str| Some(OperatorConfirmation::Rename(ClusterName::from_record(name)));
    for (text, expected) in [
        ("confirm", Some(OperatorConfirmation::Confirm)),
        (" rename  prod2 ", rename("prod2")),
        ("copy prod2", Some(OperatorConfirmation::Copy(ClusterName::from_record("prod2")))),
        ("confirm it", None),
        ("rename", None),
        ("rename My_Cluster", None),
        ("rename kubernetes", None),
        ("rename a b", None),
        ("", None),
    ] {
        assert_eq!(parse_confirmation(text), expected, "{text:?}");
    }
}

/// It has the UIDs of the original, so only the name tells their load balancers apart.
#[test]
fn a_copy_can_have_no_name_of_the_cluster_in_the_record() {
    let card = |uid: &str, names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Some(IdentityCard { cluster_uid: uid.into(), names, ..IdentityCard::default() })
    };
    for (what, card, name, refused) in [
        ("its present name", card("u", &["prod", "prod2"]), "prod2", true),
        ("a former name", card("u", &["prod", "prod2"]), "prod", true),
        ("another name", card("u", &["prod", "prod2"]), "copied", false),
        ("no card", None, "prod2", true),
        ("a card of an earlier version", card("u", &[]), "prod2", true),
        ("a UID that could not be read", card("", &["prod"]), "prod", true),
        ("the record of another cluster", card("theirs", &["prod"]), "prod", false),
    ] {
        let record = Record { cluster_name: Some(ClusterName::from_record("prod2")), card, ..Record::default() };
        let told = record.refuses_copy(&ClusterName::from_record(name), Some("u"));
        assert_eq!(told.is_some(), refused, "{what}: {told:?}");
    }
}

fn config_map(data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data,
        "metadata": {"name": NAME, "namespace": NAMESPACE, "resourceVersion": "7", "uid": "u",
            "labels": {"a": "b"}}})
}

#[tokio::test]
async fn the_name_is_written_beside_what_others_keep_there() {
    let server = server(Some(config_map(&json!({"other": "x"}))));
    Records::new(server.client()).write(&named("prod")).await.unwrap();
    let writes = server.writes();
    assert_eq!(writes.len(), 1);
    assert_eq!((writes[0].method.as_str(), &writes[0].body["metadata"]["resourceVersion"]), ("PUT", &json!("7")));
    assert_eq!(writes[0].body["data"], json!({"other": "x", "cluster-name": "prod"}));
    assert_eq!(writes[0].body["metadata"]["labels"], json!({"a": "b"}));
}

#[tokio::test]
async fn a_missing_record_is_made_and_an_equal_one_is_not_written() {
    let missing = server(None);
    Records::new(missing.client()).write(&named("prod")).await.unwrap();
    assert_eq!(missing.writes()[0].method, "POST");
    let equal = server(Some(config_map(&json!({"cluster-name": "prod"}))));
    Records::new(equal.client()).write(&named("prod")).await.unwrap();
    assert_eq!(equal.writes(), []);
}

#[tokio::test]
async fn an_orphan_is_a_line_of_its_own_and_stands_there_once() {
    let one = server(Some(config_map(&json!({"possible-orphans": "guests/a, abandoned yesterday"}))));
    let records = Records::new(one.client());
    records.add_orphan("guests/a, abandoned ", "today").await.unwrap();
    assert_eq!(one.writes(), []);
    records.add_orphan("guests/b, abandoned ", "today").await.unwrap();
    assert_eq!(
        one.writes()[0].body["data"]["possible-orphans"],
        "guests/a, abandoned yesterday\nguests/b, abandoned today\n"
    );
}

#[test]
fn the_oldest_orphans_make_room() {
    let mut lines = String::new();
    for n in 0..=MOST_ORPHANS {
        lines = with_line(&lines, &format!("guests/{n}"));
    }
    assert_eq!((lines.lines().count(), lines.lines().next()), (MOST_ORPHANS, Some("guests/1")));
}

#[tokio::test]
async fn a_missing_right_is_told_from_a_server_that_is_away() {
    for (code, forbidden) in [(403, true), (500, false)] {
        let server = Scenario::answering(move |_| (code, Scenario::status(code, "x", "no")));
        let error = Records::new(server.client()).read().await.unwrap_err();
        assert_eq!(error.is_forbidden(), forbidden);
        assert!(
            runtime::error::chain(&error).starts_with("failed to read ConfigMap kube-system/harvester-cloud-provider")
        );
    }
}

/// A caller repeats a write only where that can help: what is too large or not valid stays so.
#[tokio::test]
async fn a_write_that_no_retry_helps_is_told_from_trouble_that_passes() {
    for (what, code, reason, is_final) in [
        ("what was sent cannot be read", 400, "BadRequest", true),
        ("the right is missing", 403, "Forbidden", true),
        ("the ConfigMap is too large", 413, "RequestEntityTooLarge", true),
        ("the ConfigMap is immutable, or not valid", 422, "Invalid", true),
        ("the token is refused", 401, "Unauthorized", false),
        ("the ConfigMap was deleted meanwhile", 404, "NotFound", false),
        ("others write all the time", 409, "Conflict", false),
        ("the API server is busy", 429, "TooManyRequests", false),
        ("the API server has an error", 500, "InternalError", false),
        ("the API server is away", 503, "ServiceUnavailable", false),
    ] {
        let there = config_map(&json!({}));
        let server = Scenario::answering(move |request| match request.method.as_str() {
            "GET" => (200, there.clone()),
            _ => (code, Scenario::status(code, reason, "no")),
        });
        let error = Records::new(server.client()).write(&named("prod")).await.unwrap_err();
        assert_eq!(error.is_final(), is_final, "{what}: {error:?}");
        let sent = if reason == "Conflict" { ATTEMPTS } else { 1 };
        assert_eq!(server.writes().len(), sent, "{what}: only what others changed meanwhile is read and sent again");
    }
}

/// Versions before it keep a key that they do not know, as they keep what others write there.
#[tokio::test]
async fn what_is_confirmed_to_be_lost_stands_there_by_its_uids_and_nothing_else_changes() {
    let old = json!({"cluster-name": "prod", "identity": "{}"});
    let lost = |uids: &[&str]| uids.iter().map(|uid| (*uid).to_owned()).collect::<BTreeSet<String>>();
    for (what, before, after, expected) in [
        ("nothing is said, and nothing written", None, &[][..], None),
        ("the first ones", None, &["b", "a"], Some(Some("a\nb\n"))),
        ("the same", Some("a\nb\n"), &["a", "b"], None),
        ("as somebody has spelled it", Some("a b"), &["a", "b"], None),
        ("one is left", Some("a\nb\n"), &["b"], Some(Some("b\n"))),
        ("none is left", Some("a\n"), &[], Some(None)),
    ] {
        let mut data = old.clone();
        if let Some(before) = before {
            data[CONFIRMED_LOST] = json!(before);
        }
        let server = server(Some(config_map(&data)));
        let written = Records::new(server.client()).change_lost(|_| lost(after)).await.unwrap();
        assert_eq!(written.confirmed_lost, lost(after), "{what}");
        let mut wanted = old.clone();
        if let Some(Some(lines)) = expected {
            wanted[CONFIRMED_LOST] = json!(lines);
        }
        let writes: Vec<Value> = server.writes().iter().map(|write| write.body["data"].clone()).collect();
        assert_eq!(writes, expected.map(|_| wanted).into_iter().collect::<Vec<_>>(), "{what}");
    }
    let many: BTreeSet<String> = (0..=MOST_LOST).map(|n| n.to_string()).collect();
    let server = server(Some(config_map(&old)));
    let written = Records::new(server.client()).change_lost(|_| many.clone()).await.unwrap();
    assert_eq!(written.confirmed_lost.len(), MOST_LOST);
}
