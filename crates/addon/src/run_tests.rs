//! The whole command against a scripted API server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::request::Task;
use crate::request::tests::request;
use crate::view::{ACCOUNT_ANNOTATION, TOKEN_TYPE};
use harvester_api::keys::harvester::CLOUD_PROVIDER_ROLE;
use runtime::scenario::Scenario;
use serde_json::{Value, json};

#[tokio::test]
async fn a_failure_in_the_middle_says_what_was_made_and_one_at_the_start_only_what_failed() {
    for (refused, made) in [("serviceaccounts", None), ("rolebindings", Some("create ServiceAccount guests/demo"))] {
        let scenario = Scenario::answering(move |seen| {
            let refuse = seen.path.ends_with(refused);
            if refuse { (403, Scenario::status(403, "Forbidden", "no")) } else { (201, seen.body.clone()) }
        });
        let plan = Plan { steps: vec![Step::CreateAccount, Step::CreateBinding], ..Plan::default() };
        let guest = Guest { server: "https://h:6443", admin_ca: None, product: &Product::TEST, checked: false };
        let mut done = Vec::new();
        let mut outcome = Outcome::default();
        let client = scenario.client();
        let written = write(&client, &request(), (&plan, &mut done), (&guest, None), &mut outcome, &mut |_| {}).await;
        let error = unfinished(written.unwrap_err(), &request(), &done);
        match (made, &error) {
            (Some(made), Error::Unfinished { done, undo, .. }) => {
                assert_eq!((done.as_str(), undo), (made, &Undo::Revoke { fresh: true }));
                assert!(
                    chain(&error).ends_with("RoleBinding guests/guests-demo on Harvester: no"),
                    "{}",
                    chain(&error)
                );
            }
            (None, Error::Apply(_)) => {}
            _ => panic!("{error:?}"),
        }
    }
}

/// An administrator who adds a subject between our look and our step is not undone by it.
#[tokio::test]
async fn what_changed_meanwhile_is_looked_at_and_planned_anew() {
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = tries.clone();
    let scenario = Scenario::answering(move |seen| {
        let others = json!([{"kind": "User", "name": "somebody", "apiGroup": "rbac.authorization.k8s.io"}]);
        let tried = counted.load(Ordering::SeqCst);
        match (seen.method.as_str(), seen.path.rsplit('/').next().unwrap_or_default()) {
            ("GET", "guests-demo") => {
                let subjects = if tried == 0 { json!([]) } else { others };
                let version = (7 + tried).to_string();
                let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                    "name": CLOUD_PROVIDER_ROLE});
                (
                    200,
                    json!({"metadata": {"name": "guests-demo", "uid": "u", "resourceVersion": version}, "roleRef": role,
                        "subjects": subjects}),
                )
            }
            ("GET", "secrets") => (200, json!({"metadata": {}, "items": []})),
            ("GET", "guests" | "demo" | "harvesterhci.io:cloudprovider")
                if !seen.path.contains("clusterrolebindings") =>
            {
                (200, json!({"metadata": {"name": "demo", "uid": "a"}}))
            }
            ("PATCH", _) if counted.fetch_add(1, Ordering::SeqCst) == 0 => {
                (409, Scenario::status(409, "Conflict", "the object has been modified"))
            }
            ("PATCH", _) => (403, Scenario::status(403, "Forbidden", "far enough")),
            _ => (404, Scenario::status(404, "NotFound", "no")),
        }
    });
    let request = Request { skip_checks: true, ..request() };
    let mut said = Vec::new();
    let server = ("https://h:6443", None);
    let mut say = |line: &str| said.push(line.to_owned());
    let ran = own(&scenario.client(), &request, "s", server, &Product::TEST, &mut say).await;
    assert!(chain(&ran.unwrap_err()).ends_with("far enough"));
    let patches: Vec<_> = scenario.writes().into_iter().map(|seen| seen.body).collect();
    assert_eq!((&patches[0][0]["value"], &patches[0][1]["path"]), (&json!("7"), &json!("/subjects")));
    assert_eq!((&patches[1][0]["value"], &patches[1][1]["path"]), (&json!("8"), &json!("/subjects/-")));
    assert!(said.iter().any(|line| line.contains("planning anew")), "{said:?}");
}

/// A Harvester with two tokens of the account, the newer one as given.
fn two_tokens(newer: &Value, authenticated: bool) -> Scenario {
    let secret = |name: &str, month: u8, data: &Value| {
        json!({"metadata": {"name": name, "uid": name, "resourceVersion": "7",
            "creationTimestamp": format!("2026-0{month}-01T00:00:00Z"), "annotations": {ACCOUNT_ANNOTATION: "demo"}},
            "type": TOKEN_TYPE, "data": data})
    };
    let newer = secret("demo-token-2", 2, newer);
    let list = json!({"metadata": {"resourceVersion": "7"},
        "items": [secret("demo-token", 1, &json!({})), newer.clone()]});
    Scenario::answering(move |seen| match (seen.method.as_str(), seen.path.rsplit('/').next().unwrap_or_default()) {
        ("GET", "secrets") if seen.query.contains("watch=") => (0, Value::Null),
        ("GET", "secrets") if seen.query.contains("metadata.name") => {
            (200, json!({"metadata": {"resourceVersion": "7"}, "items": [newer.clone()]}))
        }
        ("GET", "secrets") => (200, list.clone()),
        ("GET", "guests") => (200, json!({"metadata": {"name": "guests"}})),
        ("POST", "tokenreviews") => (
            201,
            json!({"spec": {}, "status": {"authenticated": authenticated, "error": "token has been invalidated"}}),
        ),
        ("DELETE", _) => (200, json!({"kind": "Status", "status": "Success"})),
        _ => (404, Scenario::status(404, "NotFound", "no")),
    })
}

#[tokio::test(start_paused = true)]
async fn old_tokens_stay_until_the_new_one_has_been_tried() {
    let filled = json!({"token": "dDI=", "ca.crt": "Y2E="});
    for (newer, authenticated, why) in [
        (json!({}), true, Some("got no token within 30 s")),
        (json!({"token": "", "ca.crt": "Y2E="}), true, Some("got no token within 30 s")),
        (filled.clone(), false, Some("token has been invalidated")),
        (filled, true, None),
    ] {
        let scenario = two_tokens(&newer, authenticated);
        let request = Request { task: Task::RevokeOld, skip_checks: true, ..request() };
        let server = ("https://h:6443", None);
        let ran = own(&scenario.client(), &request, "s", server, &Product::TEST, &mut |_| {}).await;
        let deleted = scenario.writes().iter().filter(|seen| seen.method == "DELETE").count();
        match (ran, why) {
            (Err(error), Some(why)) => {
                let text = chain(&error);
                assert!(text.starts_with("nothing was revoked: ") && text.contains(why), "{text}");
                assert_eq!(deleted, 0);
            }
            (Ok(outcome), None) => assert_eq!((deleted, outcome.checks.len()), (1, 1)),
            (ran, why) => panic!("{ran:?}, expected {why:?}"),
        }
    }
}

/// Without --skip-checks it is a request to the guest's URL that counts.
#[tokio::test]
async fn the_new_token_is_tried_where_the_guest_uses_it() {
    // A name that nobody has, and an address that is another machine for each guest.
    for (server, stumbles_over_url) in [("https://harvester.invalid:6443", false), ("https://127.0.0.1:6443", true)] {
        let scenario = two_tokens(&json!({"token": "dDI=", "ca.crt": "Y2E="}), true);
        let request = Request { task: Task::RevokeOld, ..request() };
        let ran = own(&scenario.client(), &request, "s", (server, None), &Product::TEST, &mut |_| {}).await;
        let Err(Error::Unproven { source, .. }) = &ran else { panic!("{ran:?}") };
        assert_eq!(matches!(**source, Error::Endpoint { name: "url", .. }), stumbles_over_url, "{source:?}");
        assert!(scenario.writes().is_empty(), "{:?}", scenario.writes());
    }
}

#[tokio::test]
async fn a_dry_run_stops_at_the_first_thing_that_a_guest_would_stumble_over() {
    let scenario = Scenario::answering(|_| (201, json!({"spec": {}, "status": {"allowed": true}})));
    let dry = Request { dry_run: true, ..request() };
    let plan = Plan { steps: vec![Step::CreateAccount], token: Some("demo-token".into()), ..Plan::default() };
    let server = "https://127.0.0.1:6443";
    let guest = Guest { server, admin_ca: None, product: &Product::TEST, checked: true };
    let mut outcome = Outcome::default();
    let looked = guest.look(&scenario.client(), &dry, &plan, &mut outcome, &mut |_| {}).await;
    assert!(matches!(looked, Err(Error::Endpoint { name: "url", .. })), "{looked:?}");
    assert_eq!(outcome.checks.iter().map(|check| check.name).collect::<Vec<_>>(), ["administrator"]);
}

#[tokio::test]
async fn nothing_is_sent_to_a_server_that_would_get_the_token_in_clear_text() {
    let admin = Config::new("http://192.0.2.1:1".parse().unwrap());
    let ran = run(admin, &request(), "s", &Product::TEST, &mut |line| panic!("{line}")).await;
    assert!(matches!(ran, Err(Error::Request(RequestError::ClearText(_)))), "{ran:?}");
}
