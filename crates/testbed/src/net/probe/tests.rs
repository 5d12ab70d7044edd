use super::missed::missed_since;
use super::*;
use crate::stall::Stalls;

fn journal(fates: &[(u64, bool)]) -> (Journal, Instant) {
    let start = Instant::now();
    let fates: Vec<_> = fates
        .iter()
        .map(|(at_ms, ok)| {
            let at = start + Duration::from_millis(*at_ms);
            (at, at, if *ok { Ok("pod=p node=n1 client=c".to_owned()) } else { Err("refused".to_owned()) })
        })
        .collect();
    let sends = fates.len() as u64;
    (Journal { sends, fates, ..Journal::new(start) }, start)
}

#[test]
fn a_gap_lies_between_two_answers() {
    let (journal, start) = journal(&[(5, true), (15, true), (25, false), (35, false), (245, true), (255, true)]);
    let end = start + Duration::from_millis(260);
    let report = summarize(&journal, &Stalls::default(), end, ProbeOptions::default());
    assert_eq!((report.sent, report.answered, report.lost), (6, 4, 2));
    assert_eq!(report.longest_gap, Duration::from_millis(230));
    assert_eq!(report.first_answer, Some(Duration::from_millis(5)));
    assert_eq!(report.answered_by["n1"], 4);
}

#[test]
fn a_report_tells_when_requests_were_sent_that_were_lost() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let ms = Duration::from_millis;
    let answer = |sent| (at(sent), at(sent + 2), Ok("pod=p node=n1 client=c".to_owned()));
    let lost = |sent, after| (at(sent), at(sent + after), Err("no connection in time".to_owned()));
    for (losses, between, told) in [
        (vec![], None, " 0 lost, longest"),
        (vec![lost(1200, 900)], Some((1200, 1200)), " 1 lost after 1.20 s, longest"),
        // The second one was refused at once, before the fate of the first was known.
        (vec![lost(1320, 1), lost(1200, 900)], Some((1200, 1320)), " 2 lost between 1.20 s and 1.32 s, longest"),
        (vec![lost(10, 900), lost(61_000, 900)], Some((10, 61_000)), " 2 lost between 0.01 s and 61.00 s, longest"),
    ] {
        let fates: Vec<_> = [vec![answer(0)], losses, vec![answer(70_000)]].concat();
        let journal = Journal { sends: fates.len() as u64, fates, ..Journal::new(start) };
        let report = summarize(&journal, &Stalls::default(), at(71_000), ProbeOptions::default());
        assert_eq!(report.lost_between, between.map(|(first, last)| (ms(first), ms(last))));
        assert!(report.to_string().contains(told), "{report}");
    }
}

/// In order of fate, as a journal has them.
#[test]
fn what_is_lost_at_once_was_under_way_at_one_moment_and_stalls_explain_how_much() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let report = |losses: &[(u64, u64)], stalls: &[(u64, u64)]| {
        let lost = |(sent, back): &(u64, u64)| (at(*sent), at(*back), Err("reset".to_owned()));
        let fates: Vec<_> = losses.iter().map(lost).collect();
        let journal = Journal { sends: fates.len() as u64, fates, ..Journal::new(start) };
        let machine = Stalls::of(stalls.iter().map(|(from, to)| (at(*from), at(*to))).collect(), Vec::new());
        let report = summarize(&journal, &machine, at(100), ProbeOptions::default());
        (report.lost_moments, report.lost_explained)
    };
    for (losses, moments) in [
        (vec![], 0),
        (vec![(10, 15)], 1),
        (vec![(20, 35), (10, 40), (30, 45)], 1),
        (vec![(10, 15), (20, 25)], 2),
        (vec![(10, 25), (20, 45), (40, 50)], 2),
    ] {
        assert_eq!(report(&losses, &[]), (moments, 0), "{losses:?}");
    }
    // One every 10 ms, while nobody had a turn for 30 ms; no more than there were.
    assert_eq!(report(&[(10, 45), (20, 45), (30, 45), (40, 46)], &[(12, 42)]), (1, 3));
    assert_eq!(report(&[(40, 80)], &[(0, 80)]), (1, 1));
}

#[test]
fn a_silence_that_lasts_to_the_end_is_a_gap() {
    let (journal, start) = journal(&[(5, true), (1100, false), (3000, false)]);
    let end = start + Duration::from_secs(3);
    let report = summarize(&journal, &Stalls::default(), end, ProbeOptions::default());
    assert_eq!(report.longest_gap, Duration::from_millis(2995));
}

#[test]
fn without_a_loss_there_is_no_gap_however_slow_the_machine() {
    let (journal, start) = journal(&[(5, true), (900, true)]);
    let end = start + Duration::from_millis(900);
    let report = summarize(&journal, &Stalls::default(), end, ProbeOptions::default());
    assert_eq!(report.longest_gap, Duration::ZERO);
}

#[test]
fn a_stall_of_the_prober_is_no_outage_where_it_lies_in_the_gap() {
    let (mut journal, start) = journal(&[(5, true), (15, false), (2000, true), (4000, true), (5000, true)]);
    let at = |ms| start + Duration::from_millis(ms);
    let ms = Duration::from_millis;
    // Of the last gap nothing is the network's; of the first one, what lies outside of the stalls.
    for (stalls, outage) in [
        (vec![(15, 1815), (2000, 4000), (4000, 5000)], 195),
        (vec![(0, 105), (1900, 4000), (4000, 5000)], 1795),
        (vec![(100, 200), (300, 400), (2000, 4000), (4000, 5000)], 1795),
        (vec![(2000, 4000)], 1995),
    ] {
        journal.stalls = stalls.iter().map(|(begin, end)| (at(*begin), at(*end))).collect();
        let report = summarize(&journal, &Stalls::default(), at(5000), ProbeOptions::default());
        assert_eq!((report.longest_gap, report.outage), (ms(2000), ms(outage)), "{stalls:?}");
    }
    // The machine's stalls are subtracted like the prober's own, and what both report once.
    journal.stalls = vec![(at(2000), at(4000)), (at(4000), at(5000)), (at(100), at(300))];
    let machine = Stalls::of(vec![(at(200), at(500))], vec![(at(0), ms(0)), (at(1000), ms(70)), (at(6000), ms(70))]);
    let report = summarize(&journal, &machine, at(5000), ProbeOptions::default());
    assert_eq!((report.longest_gap, report.outage), (ms(2000), ms(1995 - 400 - 70)));
}

#[test]
fn an_answer_to_a_second_attempt_is_late_and_one_of_a_busy_machine_is_not() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let answer = |sent, back| (at(sent), at(back), Ok("pod=p node=n1 client=c".to_owned()));
    let fates = vec![answer(0, 150), answer(10, 220), answer(300, 750), answer(800, 1100)];
    let journal = Journal { sends: 4, fates, ..Journal::new(start) };
    let report = |machine: &Stalls| summarize(&journal, machine, at(1200), ProbeOptions::default());
    let idle = report(&Stalls::default());
    assert_eq!((idle.late, idle.latest, idle.lost), (3, Duration::from_millis(450), 0));
    let busy = report(&Stalls::of(vec![(at(20), at(60)), (at(900), at(1080))], Vec::new()));
    assert_eq!((busy.late, busy.latest), (1, Duration::from_millis(450)));
}

#[tokio::test]
async fn a_prober_that_does_not_get_its_turn_notes_when() {
    let start = Instant::now();
    let journal = Arc::new(Mutex::new(Journal::new(start)));
    let target = SocketAddr::from(([127, 0, 0, 1], 9));
    let asking = tokio::spawn(ask_for_ever(Traffic::Udp(target), ProbeOptions::default(), journal.clone()));
    while journal.lock().sends < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (begin, sends) = (Instant::now(), journal.lock().sends);
    // Nothing else runs on this runtime meanwhile.
    std::thread::sleep(Duration::from_millis(200));
    let end = Instant::now();
    while journal.lock().sends == sends {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    asking.abort();
    let covers = |(from, to): &(Instant, Instant)| *from <= begin && *to >= end;
    assert!(journal.lock().stalls.iter().any(covers), "{:?}", journal.lock().stalls);
}

#[tokio::test]
async fn an_answer_may_take_longer_than_a_connection() {
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = server.local_addr().unwrap();
    let options = ProbeOptions { connect: Duration::from_millis(100), ..ProbeOptions::default() };
    let asked = tokio::spawn(ask(Traffic::Http(target), 1, None, options));
    // The kernel makes the connection; whoever answers is late.
    tokio::time::sleep(options.connect * 3).await;
    let (stream, _) = server.accept().await.unwrap();
    tokio::spawn(async move { echo::answer_http(stream, "pod=p node=slow client=c").await });
    assert_eq!(answerer(&asked.await.unwrap().unwrap()), "slow");
}

#[test]
fn what_has_no_answer_within_a_second_is_missed_and_what_tcp_repeats_in_time_is_late() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let ms = Duration::from_millis;
    let answer = |sent, back| (at(sent), at(back), Ok("pod=p node=n1 client=c".to_owned()));
    let lost = |sent| (at(sent), at(sent + 900), Err("no connection in time".to_owned()));
    let fates = vec![
        lost(500), // long before
        answer(5000, 5300),
        lost(4200), // under way
        lost(5100),
        answer(5200, 6250),
        answer(5400, 5410),
        lost(5900),
        answer(5950, 5960),
    ];
    let journal = Journal { sends: 8, fates, ..Journal::new(start) };
    let idle = missed_since(&journal, &Stalls::default(), at(5000));
    let how = Some("no connection in time".to_owned());
    let expected = Missed { sent: 7, missed: 4, late: 1, last: Some(ms(900)), how, stalled: ms(0) };
    assert_eq!((idle.lasted(), idle.unexplained(ms(10)), idle), (ms(900), 4, expected));
    // The machine stood still meanwhile: one answer was in time, and the outage was shorter.
    let busy = missed_since(&journal, &Stalls::of(vec![(at(5210), at(5610))], Vec::new()), at(5000));
    assert_eq!((busy.missed, busy.late, busy.lasted()), (3, 1 + 1, ms(500)));
    assert_eq!(busy.unexplained(ms(10)), 0);
    let none = missed_since(&journal, &Stalls::default(), at(7000));
    assert_eq!((none.lasted(), none), (ms(0), Missed::default()));
}
