use ConditionStatus::{False, True, Unknown};

use super::*;
use crate::test_support::service;
use crate::view::{LOAD_BALANCER_READY, LOAD_BALANCER_WARNING};

const NOW: &str = "2026-01-02T00:00:00Z";

fn waiting(reason: &'static str, needs_user: bool) -> Ensured {
    Ensured::Waiting(Waiting {
        reason,
        message: "no pool matches".into(),
        needs_user,
        failure: false,
        retry_after: None,
    })
}

fn remarked(warning: bool) -> Ensured {
    let remark = Remark { reason: "AddressNotAsAsked", message: "10 is served".into(), warning };
    Ensured::Ready { changed: false, remark: Some(remark) }
}

fn pending() -> ServiceView {
    service("default/web")
}

fn served_by(node: &str) -> ServiceView {
    let mut view = service("default/web");
    view.ingress = vec!["10.0.0.1".parse().unwrap()];
    view.annotations.insert(VIP_HOST, node);
    view
}

fn told(view: &ServiceView, answer: EnsureResult<'_>, announced: AnnouncerPresence) -> Conditions {
    let text = answer.err().map(|error| error.message.clone()).unwrap_or_default();
    after(view, answer, &text, announced, NOW)
}

fn words(condition: Option<&Condition>) -> (ConditionStatus, &str) {
    condition.map_or((Unknown, ""), |condition| (condition.status, condition.reason.as_str()))
}

/// What is there in the end: written over what the answers before have left.
fn shown(view: &ServiceView, answers: &[EnsureResult<'_>]) -> Conditions {
    let mut view = view.clone();
    for answer in answers {
        view.conditions = told(&view, *answer, AnnouncerPresence::Running);
    }
    view.conditions
}

/// Of a static address Harvester knows nothing, and of a lease the DHCP server decides.
#[test]
fn a_service_that_waits_says_where_its_address_comes_from() {
    for (ipam, expected) in [
        ("", "the cloud controller gets one from Harvester"),
        ("pool", "the cloud controller gets one from Harvester"),
        ("dhcp", "an announcer asks a DHCP server for one"),
        ("static", "annotation cloudprovider.harvesterhci.io/ip names it, and an announcer asks the network"),
    ] {
        let mut view = pending();
        view.annotations.insert(IPAM, ipam);
        for answer in [Ensured::ready(false), waiting("Allocating", false)] {
            let ready = told(&view, Ok(&answer), AnnouncerPresence::Running).ready.unwrap();
            assert_eq!(ready.reason, "Pending");
            assert!(ready.message.contains(&format!("yet: {expected}")), "{ipam}: {}", ready.message);
        }
    }
}

#[test]
fn ready_says_whether_a_node_serves_the_service_and_the_warning_what_is_wrong_with_one_that_is_served() {
    let refused = ProviderError::new("denied").because("RefusedByHarvester");
    let passing = ProviderError::new("connection refused");
    let (ready, note, warned) = (Ensured::ready(false), remarked(false), remarked(true));
    let (no_pool, turn) = (waiting("NoMatchingPool", true), waiting("WaitingForTurn", false));
    let (silent, unread) = (waiting(HARVESTER_SILENT, true), waiting(NOT_READ_YET, true));
    let none = (Unknown, "");
    for (answer, new, served) in [
        (Ok(&ready), (False, "Pending"), none),
        (Ok(&warned), (False, "Pending"), (True, "AddressNotAsAsked")),
        (Ok(&note), (False, "Pending"), (False, "AddressNotAsAsked")),
        (Ok(&turn), (False, "Pending"), none),
        (Ok(&no_pool), (False, "NoMatchingPool"), (True, "NoMatchingPool")),
        (Ok(&silent), (Unknown, HARVESTER_SILENT), (True, HARVESTER_SILENT)),
        (Ok(&unread), (Unknown, NOT_READ_YET), (True, NOT_READ_YET)),
        (Err(&refused), (False, "RefusedByHarvester"), (True, "RefusedByHarvester")),
        (Err(&passing), (Unknown, "CallFailed"), none),
    ] {
        let told = shown(&pending(), &[answer]);
        assert_eq!(words(told.ready.as_ref()), new, "{answer:?}");
        let told = shown(&served_by("node-1"), &[Ok(&ready), answer]);
        assert_eq!(
            (words(told.ready.as_ref()), words(told.warning.as_ref())),
            ((True, "Served"), served),
            "{answer:?}"
        );
    }
}

#[test]
fn a_service_is_served_by_a_node_at_its_address() {
    let message = |view: &ServiceView| shown(view, &[Ok(&Ensured::ready(false))]).ready.unwrap().message;
    assert_eq!(message(&served_by("node-1")), "node node-1 serves 10.0.0.1");
    assert_eq!(message(&served_by("")), "10.0.0.1 is served");
}

#[test]
fn while_no_announcer_is_there_nobody_knows_whether_an_address_is_served() {
    let ready = Ensured::ready(false);
    let mut view = served_by("node-1");
    view.conditions = told(&view, Ok(&ready), AnnouncerPresence::Away);
    assert_eq!(words(view.conditions.ready.as_ref()), (Unknown, NO_ANNOUNCER));
    let after_a_restart = told(&view, Ok(&ready), AnnouncerPresence::NotKnownYet);
    assert_eq!(after_a_restart, view.conditions, "the next process has not looked yet");
    let back = told(&view, Ok(&ready), AnnouncerPresence::Running);
    assert_eq!(words(back.ready.as_ref()), (True, SERVED));
    assert_eq!(
        words(told(&served_by("node-1"), Ok(&ready), AnnouncerPresence::NotKnownYet).ready.as_ref()),
        (True, SERVED)
    );
    let new = told(&pending(), Ok(&ready), AnnouncerPresence::Away);
    assert_eq!(words(new.ready.as_ref()), (False, PENDING), "nobody has served it yet");
}

#[test]
fn what_stays_the_same_is_not_written_again_and_keeps_its_time() {
    let (ready, trouble) = (Ensured::ready(true), waiting("NoMatchingPool", true));
    for view in [pending(), served_by("node-1")] {
        let mut view = view;
        for answer in [&ready, &trouble, &ready, &waiting("Allocating", false)] {
            let said = told(&view, Ok(answer), AnnouncerPresence::Running);
            view.conditions = said.clone();
            assert_eq!(patch(&view, &told(&view, Ok(answer), AnnouncerPresence::Running)), None, "{answer:?}");
        }
    }
    let mut view = pending();
    view.conditions = after(&view, Ok(&trouble), "", AnnouncerPresence::Running, "before");
    let other = told(&view, Ok(&waiting("NoSuchPool", true)), AnnouncerPresence::Running).ready.unwrap();
    assert_eq!((other.reason.as_str(), other.since.as_str()), ("NoSuchPool", "before"), "False since the first one");
}

#[test]
fn a_process_that_knows_nothing_yet_leaves_what_is_said() {
    let trouble = waiting("NotServed", true);
    for passing in [waiting(NOT_READ_YET, false), waiting(HOST_UPGRADE, false)] {
        assert_eq!(shown(&pending(), &[Ok(&trouble), Ok(&passing)]), shown(&pending(), &[Ok(&trouble)]));
    }
    let failed = ProviderError::new("timeout");
    let other = ProviderError::new("connection refused");
    assert_eq!(shown(&pending(), &[Err(&failed), Err(&other)]), shown(&pending(), &[Err(&failed)]));
    assert_eq!(words(shown(&pending(), &[Ok(&trouble), Ok(&Ensured::ready(true))]).ready.as_ref()), (False, PENDING));
}

#[test]
fn a_warning_goes_when_it_is_over() {
    let (wrong, well) = (ProviderError::new("no").because("WrongAnnotation"), Ensured::ready(false));
    let mut view = served_by("node-1");
    view.conditions = shown(&view, &[Ok(&well), Err(&wrong)]);
    let over = told(&view, Ok(&well), AnnouncerPresence::Running);
    let expected = json!([{"type": LOAD_BALANCER_WARNING, "$patch": "delete"}]);
    assert_eq!(patch(&view, &over).unwrap()["status"]["conditions"], expected);
}

#[test]
fn the_first_condition_travels_with_the_finalizer() {
    assert_eq!(words(first(&pending(), AnnouncerPresence::Running, NOW).as_ref()), (False, PENDING));
    assert_eq!(
        words(first(&served_by("node-1"), AnnouncerPresence::Running, NOW).as_ref()),
        (True, NO_LOAD_BALANCER_YET)
    );
    let mut known = pending();
    known.conditions = shown(&known, &[Ok(&waiting("NoSuchPool", true))]);
    assert_eq!(first(&known, AnnouncerPresence::Running, NOW), None, "it is there");
}

#[test]
fn another_node_is_told_when_it_has_stayed_for_a_moment_and_another_address_at_once() {
    let start = Instant::now();
    let said = |view: &ServiceView| shown(view, &[Ok(&Ensured::ready(false))]);
    let (one, two, three) = (said(&served_by("node-1")), said(&served_by("node-2")), said(&served_by("node-3")));
    let mut moved = None;
    assert_eq!(settled(&one, two.clone(), &mut moved, start), (one.clone(), Some(SETTLED)));
    let later = start + Duration::from_secs(4);
    assert_eq!(settled(&one, two.clone(), &mut moved, later), (one.clone(), Some(Duration::from_secs(6))));
    assert_eq!(settled(&one, three.clone(), &mut moved, later), (one.clone(), Some(SETTLED)), "it goes on");
    assert_eq!(settled(&one, three.clone(), &mut moved, later + SETTLED), (three, None));
    let mut elsewhere = served_by("node-2");
    elsewhere.ingress = vec!["10.0.0.2".parse().unwrap()];
    assert_eq!(settled(&one, said(&elsewhere), &mut moved, start).1, None);
    assert_eq!(settled(&one, said(&pending()), &mut moved, start).1, None);
    assert_eq!(settled(&Conditions::default(), two, &mut moved, start).1, None);
}

/// The certificate of Harvester has expired, and each attempt says since how many seconds.
#[test]
fn a_failure_whose_text_differs_from_attempt_to_attempt_is_written_anew_now_and_then() {
    let start = Instant::now();
    let expired = |seconds: u64, reason: &'static str| {
        let message = format!("certificate expired {seconds} seconds ago");
        Ensured::Waiting(Waiting { reason, message, needs_user: true, failure: true, retry_after: None })
    };
    let (first, next) = (expired(0, NOT_READ_YET), expired(1, NOT_READ_YET));
    assert!(is_failure(Ok(&first)) && !is_failure(Ok(&waiting(NOT_READ_YET, true))));
    for view in [pending(), served_by("node-1")] {
        let (one, two) = (shown(&view, &[Ok(&first)]), shown(&view, &[Ok(&next)]));
        assert_ne!(one, two);
        let other = shown(&view, &[Ok(&expired(1, "Terminating"))]);
        for (what, current, wanted, since, expected) in [
            ("no write of a failure is remembered", &one, &two, None, &two),
            ("a moment ago", &one, &two, Some(REWORD.saturating_sub(SETTLED)), &one),
            ("long ago", &one, &two, Some(Duration::ZERO), &two),
            ("another reason", &one, &other, Some(REWORD), &other),
            ("nothing was shown", &Conditions::default(), &two, Some(REWORD), &two),
        ] {
            let since = since.map(|since| start + since);
            let seen = ServiceView { conditions: current.clone(), ..view.clone() };
            assert_eq!(reworded(&seen, wanted.clone(), since, start + REWORD), *expected, "{what}");
        }
    }
    let (before, after) = (shown(&served_by("node-1"), &[Ok(&first)]), shown(&served_by("node-2"), &[Ok(&next)]));
    let seen = ServiceView { conditions: before.clone(), ..served_by("node-2") };
    let written = reworded(&seen, after.clone(), Some(start), start);
    assert_eq!((written.ready, written.warning), (after.ready, before.warning), "its node is told, whatever fails");
}

#[test]
fn a_long_story_is_cut_at_a_character() {
    let error = ProviderError::new("ä".repeat(3000)).because("HostRefused");
    let mut view = pending();
    view.conditions = shown(&view, &[Err(&error)]);
    assert!(view.conditions.ready.as_ref().is_some_and(|ready| ready.message.len() <= LONGEST_MESSAGE));
    assert_eq!(patch(&view, &told(&view, Err(&error), AnnouncerPresence::Running)), None);
}

#[test]
fn others_conditions_are_not_in_the_patch() {
    let view = service("default/web");
    let patch = patch(&view, &shown(&view, &[Ok(&Ensured::ready(true))])).unwrap();
    let conditions = patch["status"]["conditions"].as_array().unwrap();
    assert_eq!((conditions.len(), &conditions[0]["type"]), (1, &json!(LOAD_BALANCER_READY)));
    assert_eq!(patch["metadata"], json!({"uid": "u1"}));
}

/// Whoever is taken over from something else is told from who has lost a load balancer, whatever happens meanwhile.
#[test]
fn a_service_that_something_else_serves_is_known_until_it_has_a_load_balancer_and_never_again() {
    let (ready, unread) = (Ensured::ready(true), waiting(NOT_READ_YET, false));
    let (turn, no_pool) = (waiting("WaitingForTurn", false), waiting("NoMatchingPool", true));
    let failed = ProviderError::new("timeout");
    let yet = (True, NO_LOAD_BALANCER_YET);
    for answers in [&[Ok(&turn)][..], &[Ok(&no_pool)], &[Err(&failed)], &[Ok(&turn), Ok(&unread)]] {
        let told = shown(&served_by("node-1"), answers);
        assert_eq!(words(told.ready.as_ref()), yet, "{answers:?}");
        let made: Vec<EnsureResult<'_>> =
            answers.iter().copied().chain([Ok(&ready), Ok(&no_pool), Err(&failed)]).collect();
        assert_eq!(words(shown(&served_by("node-1"), &made).ready.as_ref()), (True, SERVED), "{answers:?}");
    }
    assert_eq!(shown(&served_by("node-1"), &[Ok(&unread)]).ready, None, "that of the Go provider is written once");

    let mut view = served_by("node-1");
    let mut say = |answer: EnsureResult<'_>, announced| {
        view.conditions = told(&view, answer, announced);
        words(view.conditions.ready.as_ref()).1.to_owned()
    };
    assert_eq!(say(Ok(&turn), AnnouncerPresence::Away), NO_LOAD_BALANCER_YET, "no announcer of ours serves it");
    assert_eq!(say(Ok(&ready), AnnouncerPresence::Away), NO_ANNOUNCER);
    assert_eq!(say(Ok(&turn), AnnouncerPresence::Away), NO_ANNOUNCER);
    assert_eq!(say(Ok(&turn), AnnouncerPresence::Running), SERVED, "the outage is over");
}
