use super::*;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn what_several_report_of_one_moment_counts_once_and_only_inside_of_the_gap() {
    let start = Instant::now();
    let at = |milliseconds| start + ms(milliseconds);
    let stretches = |list: &[(u64, u64)]| list.iter().map(|(begin, end)| (at(*begin), at(*end))).collect::<Vec<_>>();
    for (late, own, stalled) in [
        (vec![], vec![], 0),
        (vec![(100, 200)], vec![], 100),
        // The machine and the observer late at once.
        (vec![(100, 200), (200, 250)], vec![(120, 260)], 160),
        // Before, across the beginning, across the end, after: the gap is 100 to 600.
        (vec![(0, 50), (50, 150), (550, 700), (700, 900)], vec![], 100),
        (vec![(0, 900)], vec![(0, 900)], 500),
    ] {
        let stalls = Stalls::of(stretches(&late), Vec::new());
        assert_eq!(stalls.within(at(100), at(600), &stretches(&own)), ms(stalled), "{late:?} {own:?}");
    }
}

#[test]
fn a_processor_that_is_late_while_another_one_is_not_keeps_nobody_waiting() {
    let start = Instant::now();
    let at = |milliseconds| start + ms(milliseconds);
    let list = |list: &[(u64, u64)]| list.iter().map(|(begin, end)| (at(*begin), at(*end))).collect::<Vec<_>>();
    for (one, other, stalled) in [
        (vec![(100, 200)], vec![], 0),
        (vec![(100, 200)], vec![(200, 300)], 0),
        (vec![(100, 200), (300, 400)], vec![(150, 350)], 100),
        (vec![(100, 400)], vec![(110, 120), (130, 140), (390, 500)], 30),
        (vec![(0, 1000)], vec![(0, 1000)], 500),
    ] {
        for late in [vec![list(&one), list(&other)], vec![list(&other), list(&one)]] {
            let stalls = Stalls { late, waited: Vec::new() };
            assert_eq!(stalls.within(at(0), at(500), &[]), ms(stalled), "{one:?} {other:?}");
        }
    }
}

#[test]
fn what_processes_waited_is_counted_from_the_reading_before_to_the_one_after() {
    let start = Instant::now();
    let at = |milliseconds| start + ms(milliseconds);
    let waited = [(0, 0), (100, 10), (200, 60), (300, 60), (400, 90)];
    let stalls = Stalls::of(Vec::new(), waited.map(|(when, sum)| (at(when), ms(sum))).to_vec());
    for (from, to, stalled) in [(100, 200, 50), (110, 190, 50), (210, 290, 0), (50, 350, 90), (150, 900, 80)] {
        assert_eq!(stalls.within(at(from), at(to), &[]), ms(stalled), "{from} to {to}");
    }
    // Never more than the time itself.
    assert_eq!(stalls.within(at(110), at(140), &[]), ms(30));
    assert_eq!(Stalls::default().within(at(0), at(100), &[]), Duration::ZERO);
}

#[test]
fn a_long_gap_is_never_explained_by_what_processes_waited() {
    let start = Instant::now();
    let at = |milliseconds| start + ms(milliseconds);
    let stretch = |(begin, end): &(u64, u64)| (at(*begin), at(*end));
    // An overloaded machine: whatever counts waits all the time, and the observer asks each 25 ms instead of 10 ms.
    let waited: Vec<_> = (0..400).map(|reading| (at(reading * 100), ms(reading * 100))).collect();
    let slow: Vec<_> = (0..1600).map(|round| (at(round * 25), at(round * 25 + 25))).collect();
    for (late, gap, left) in [
        // For as long as the steps of a move may wait one after the other, all of it may be waiting.
        (vec![], 308, 0),
        (vec![], 1000, 0),
        // Of the rest a half: a limit of a second fails whatever takes three.
        (vec![], 1200, 100),
        (vec![], 3000, 1000),
        (vec![], 19_800, 9400),
        // When nobody has a turn, nobody is to blame; of what is left the same holds.
        (vec![(0, 20_000)], 19_800, 0),
        (vec![(0, 10_000)], 19_800, 4400),
        (vec![(500, 2500)], 3000, 0),
    ] {
        let stalls = |waited| Stalls::of(late.iter().map(stretch).collect(), waited);
        for (of, found) in [
            ("processes", stalls(waited.clone()).within(at(0), at(gap), &[])),
            ("the observer", stalls(Vec::new()).within(at(0), at(gap), &slow)),
            ("both", stalls(waited.clone()).within(at(0), at(gap), &slow)),
        ] {
            // The longest stretch of the observer is known exactly, and so nothing of it is halved.
            let exactly = if of == "processes" { 0 } else { 13 };
            let found = ms(gap).saturating_sub(found);
            assert!(found <= ms(left) && found + ms(exactly) >= ms(left), "{of}, {gap} ms, {late:?}: {found:?}");
        }
    }
}

#[test]
fn an_observer_is_blind_for_one_stretch_and_slow_with_many() {
    let start = Instant::now();
    let at = |milliseconds| start + ms(milliseconds);
    // Who asks nothing sees nothing, for however long.
    assert_eq!(Stalls::default().within(at(0), at(9000), &[(at(0), at(9000))]), ms(9000));
    // Who asked between two stretches, and had no answer, has seen a gap.
    let (one, other) = ((at(0), at(3000)), (at(3000), at(9000)));
    assert_eq!(Stalls::default().within(at(0), at(9000), &[one, other]), ms(6000 + 1000 + 1000));
}

#[test]
fn the_worst_stretch_is_found_wherever_it_lies() {
    let start = Instant::now();
    let at = |milliseconds| start + ms(milliseconds);
    let stalls = Stalls::of(vec![(at(2100), at(2400)), (at(5000), at(5040))], Vec::new());
    assert_eq!(stalls.worst(at(0), at(10_000), ms(1000)), ms(300));
    assert_eq!(stalls.worst(at(3000), at(10_000), ms(1000)), ms(40));
    assert_eq!(stalls.worst(at(6000), at(10_000), ms(1000)), Duration::ZERO);
}

#[test]
fn a_process_waits_no_longer_than_the_time_that_has_passed() {
    let proc = tempfile::tempdir().unwrap();
    let say = |pid: u32, thread: u32, delay: Duration| {
        let dir = proc.path().join(format!("{pid}/task/{thread}"));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("schedstat"), format!("77 {} 5\n", delay.as_nanos())).unwrap();
    };
    let mut waits = Waits::default();
    let processes = [(Kind::Announcer, 7), (Kind::Announcer, 8), (Kind::Etcd, 9), (Kind::Etcd, 10)];
    let mut read = || waits.read(proc.path(), &processes, ms(100));
    say(7, 7, ms(10));
    say(8, 8, ms(1));
    // Of each kind the longest; the second etcd is gone.
    say(9, 9, ms(3));
    assert_eq!(read(), ms(13));
    // A second thread of one, nothing new of another.
    say(7, 7, ms(40));
    say(7, 12, ms(5));
    say(9, 9, ms(4));
    assert_eq!(read(), ms(36));
    for thread in [7, 12] {
        say(7, thread, ms(500));
    }
    say(8, 8, ms(31));
    say(9, 9, ms(14));
    // 100 and 10: they overlap, since no more time has passed.
    assert_eq!(read(), ms(100));
    assert_eq!(read(), Duration::ZERO);
}

#[test]
fn processes_that_no_address_waits_for_do_not_count() {
    for (name, kind) in [
        ("node1.announcer", Some(Kind::Announcer)),
        ("etcd2.etcd", Some(Kind::Etcd)),
        ("control.kube-apiserver", Some(Kind::ApiServer)),
        ("node1.ccm", None),
        ("node3.kube-proxy", None),
        ("harvester.harvester-sim", None),
    ] {
        assert_eq!(Kind::of(name), kind, "{name}");
    }
}

#[test]
fn the_products_processes_are_found_wherever_they_were_started() {
    let proc = tempfile::tempdir().unwrap();
    for (pid, comm) in
        [("7", "harvester-cloud\n"), ("8", "etcd\n"), ("9", "harvester-cloud\n"), ("self", "harvester-cloud\n")]
    {
        std::fs::create_dir_all(proc.path().join(pid)).unwrap();
        std::fs::write(proc.path().join(pid).join("comm"), comm).unwrap();
    }
    let mut found = processes_called(proc.path(), PRODUCT);
    found.sort_unstable();
    assert_eq!(found, [7, 9]);
}

#[test]
fn a_processor_that_is_kept_from_everybody_shows() {
    begin();
    let from = Instant::now();
    std::thread::sleep(ms(50));
    // The same as a machine without power for 200 ms, to a thread that notes when it wakes.
    let (due, woke) = (Instant::now(), Instant::now() + ms(200));
    for list in &mut meter().stalls.lock().late {
        list.push((due, woke));
    }
    let stalls = since(from);
    assert!(stalls.within(from, woke, &[]) >= ms(200), "{stalls:?}");
}

#[test]
fn a_process_that_must_share_its_processor_is_seen_to_wait() {
    let dir = crate::run_dir::RunDir::new("stall").unwrap();
    let busy = |name: &str| {
        let mut command = std::process::Command::new("sh");
        // Both on one processor: each runs half of the time.
        command.args(["-c", "taskset -cp 0 $$ >/dev/null; while :; do :; done"]);
        crate::Process::spawn(name, &command, &dir.log(name)).unwrap()
    };
    let _busy = ["announcer-one", "announcer-two", "announcer-three"].map(busy);
    let from = Instant::now();
    let waited = crate::wait_until("processes to wait", Duration::from_secs(20), || {
        let stalls = since(from);
        let waited = stalls.waited_within(from, Instant::now());
        if waited > ms(300) { Ok(waited) } else { Err(format!("{waited:?}")) }
    });
    waited.unwrap();
}
