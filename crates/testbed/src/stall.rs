//! How long this machine kept processes waiting for a processor: what of a gap is nobody's fault.
//!
//! Two sources, and both count. On each processor a thread sleeps 5 ms again and again and notes when it wakes too late: then nothing
//! ran there, or something else did. And of each process that a bed has started, the kernel tells for how long it was ready to run and
//! did not (`run_delay` in `schedstat`): a process may wait while others are served. kube-proxy is left out: it is busy all the time,
//! and no address waits for it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How long the threads that measure sleep.
const NAP: Duration = Duration::from_millis(5);
/// A thread that wakes later than this has waited; less is the timer's grain.
const LATE: Duration = Duration::from_millis(3);
/// How often the kernel's counters are read.
const SAMPLE: Duration = Duration::from_millis(100);

/// The product's processes, as the kernel cuts their name off.
const PRODUCT: &str = "harvester-cloud";

/// A stretch of time.
pub type Stretch = (Instant, Instant);

/// What was measured up to some moment. Pure: the same record always gives the same answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Stretches in which a thread that should have woken had not. They may overlap.
    late: Vec<Stretch>,
    /// When it was read, and for how long watched processes had waited until then, all together.
    waited: Vec<(Instant, Duration)>,
}

impl Stalls {
    /// A record of these stretches and of nothing else, for tests of what builds on it.
    pub fn of(late: Vec<Stretch>, waited: Vec<(Instant, Duration)>) -> Self {
        Self { late, waited }
    }

    /// How much of this time a machine without other work would not have needed, at most. `own` are further stretches in which the
    /// observer itself stood still; what several sources report of one moment counts once.
    pub fn within(&self, from: Instant, to: Instant, own: &[Stretch]) -> Duration {
        let all = self.late.iter().chain(own);
        let mut clipped: Vec<Stretch> =
            all.map(|(begin, end)| ((*begin).max(from), (*end).min(to))).filter(|(begin, end)| begin < end).collect();
        clipped.sort_unstable();
        let (mut stalled, mut reached) = (Duration::ZERO, from);
        for (begin, end) in clipped {
            stalled += end.saturating_duration_since(begin.max(reached));
            reached = reached.max(end);
        }
        (stalled + self.waited_within(from, to)).min(to.saturating_duration_since(from))
    }

    /// From the last reading before until the first one after: waiting is not known more exactly, and a doubt counts as waiting.
    fn waited_within(&self, from: Instant, to: Instant) -> Duration {
        let before = self.waited.partition_point(|(at, _)| *at <= from);
        let after = self.waited.partition_point(|(at, _)| *at < to);
        let before = before.checked_sub(1).and_then(|index| self.waited.get(index)).or(self.waited.first());
        let after = self.waited.get(after).or(self.waited.last());
        match (before, after) {
            (Some((_, before)), Some((_, after))) => after.saturating_sub(*before),
            _ => Duration::ZERO,
        }
    }

    /// The most of [`Stalls::within`] in any stretch of this length between the two moments.
    pub fn worst(&self, from: Instant, to: Instant, length: Duration) -> Duration {
        let mut begin = from;
        let mut worst = Duration::ZERO;
        while begin < to {
            worst = worst.max(self.within(begin, (begin + length).min(to), &[]));
            begin += length / 4;
        }
        worst
    }
}

#[derive(Debug, Default)]
struct Meter {
    stalls: Mutex<Stalls>,
    watched: Mutex<Vec<Weak<Watched>>>,
}

/// A process whose waiting counts while this lives.
#[derive(Debug)]
pub struct Watched {
    pid: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Measures from the first use on, until this process ends.
fn meter() -> &'static Meter {
    static METER: OnceLock<&'static Meter> = OnceLock::new();
    METER.get_or_init(|| {
        let meter: &'static Meter = Box::leak(Box::default());
        let allowed = sched_getaffinity(None).ok();
        let processors = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.as_ref().is_some_and(|set| set.is_set(*cpu)));
        for cpu in processors {
            start(&format!("stalls-{cpu}"), move || {
                let mut only = CpuSet::new();
                only.set(cpu);
                // Where this is forbidden, the thread measures wherever it runs.
                let _ = sched_setaffinity(None, &only);
                nap_for_ever(meter);
            });
        }
        start("stalls-waited", move || sample_for_ever(meter));
        meter
    })
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) {
    let started = std::thread::Builder::new().name(name.into()).spawn(work);
    drop(started.expect("threads are not exhausted"));
}

fn nap_for_ever(meter: &Meter) {
    loop {
        let due = Instant::now() + NAP;
        std::thread::sleep(NAP);
        let woke = Instant::now();
        if woke - due > LATE {
            lock(&meter.stalls).late.push((due, woke));
        }
    }
}

fn sample_for_ever(meter: &Meter) {
    let mut waits = Waits::default();
    let mut last = Instant::now();
    let mut containers = Vec::new();
    for round in 0_u32.. {
        if round % 10 == 0 {
            containers = processes_called(Path::new("/proc"), PRODUCT);
        }
        let mut pids: Vec<u32> = {
            let mut watched = lock(&meter.watched);
            watched.retain(|process| process.strong_count() > 0);
            watched.iter().filter_map(|process| process.upgrade().map(|process| process.pid)).collect()
        };
        pids.extend(&containers);
        pids.sort_unstable();
        pids.dedup();
        let now = Instant::now();
        let more = waits.read(Path::new("/proc"), &pids, now - last);
        last = now;
        let mut stalls = lock(&meter.stalls);
        let total = stalls.waited.last().map_or(Duration::ZERO, |(_, total)| *total) + more;
        stalls.waited.push((now, total));
        drop(stalls);
        std::thread::sleep(SAMPLE);
    }
}

/// All processes of this name, also those in containers of nodes, which others have started.
fn processes_called(proc: &Path, name: &str) -> Vec<u32> {
    let entries = std::fs::read_dir(proc).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let called =
        |pid: &u32| std::fs::read_to_string(proc.join(format!("{pid}/comm"))).is_ok_and(|comm| comm.trim_end() == name);
    pids.filter(called).collect()
}

/// The counters at the last reading, by process and thread, in nanoseconds.
#[derive(Debug, Default)]
struct Waits(BTreeMap<(u32, u32), u64>);

impl Waits {
    /// For how long these processes have waited since the last reading, which is so long ago: no process waits longer than that,
    /// however many of its threads do.
    fn read(&mut self, proc: &Path, pids: &[u32], since: Duration) -> Duration {
        let mut seen = BTreeMap::new();
        let mut waited = Duration::ZERO;
        for pid in pids {
            let threads = std::fs::read_dir(proc.join(format!("{pid}/task")));
            let mut of_process = Duration::ZERO;
            for thread in threads.into_iter().flatten().flatten() {
                let Some(id) = thread.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
                let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
                let Some(delay) = run_delay(&text) else { continue };
                // A thread that is new has waited since then, too.
                let before = self.0.get(&(*pid, id)).copied().unwrap_or_default();
                of_process += Duration::from_nanos(delay.saturating_sub(before));
                seen.insert((*pid, id), delay);
            }
            waited += of_process.min(since);
        }
        self.0 = seen;
        waited
    }
}

/// The second of `schedstat`'s numbers: nanoseconds spent ready, but not running.
fn run_delay(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

/// From now on time in which this process waits counts, until the guard is dropped. kube-proxy's does not.
pub(crate) fn watch(name: &str, pid: u32) -> Option<Arc<Watched>> {
    if name.contains("kube-proxy") {
        return None;
    }
    let watched = Arc::new(Watched { pid });
    lock(&meter().watched).push(Arc::downgrade(&watched));
    Some(watched)
}

/// Begins to measure, if nobody did before.
pub fn begin() {
    meter();
}

/// What was measured from `since` on.
pub fn since(since: Instant) -> Stalls {
    let stalls = lock(&meter().stalls);
    let from = stalls.waited.partition_point(|(at, _)| *at <= since).saturating_sub(1);
    Stalls {
        late: stalls.late.iter().filter(|(_, end)| *end > since).copied().collect(),
        waited: stalls.waited[from..].to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn what_several_report_of_one_moment_counts_once_and_only_inside_of_the_gap() {
        let start = Instant::now();
        let at = |milliseconds| start + ms(milliseconds);
        let stretches =
            |list: &[(u64, u64)]| list.iter().map(|(begin, end)| (at(*begin), at(*end))).collect::<Vec<_>>();
        for (late, own, stalled) in [
            (vec![], vec![], 0),
            (vec![(100, 200)], vec![], 100),
            // Two processors late at once, the observer too.
            (vec![(100, 200), (150, 250)], vec![(120, 260)], 160),
            // Before, across the beginning, across the end, after: the gap is 100 to 600.
            (vec![(0, 50), (50, 150), (550, 700), (700, 900)], vec![], 100),
            (vec![(0, 900)], vec![(0, 900)], 500),
        ] {
            let stalls = Stalls::of(stretches(&late), Vec::new());
            assert_eq!(stalls.within(at(100), at(600), &stretches(&own)), ms(stalled), "{late:?} {own:?}");
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
        say(7, 7, ms(10));
        say(8, 8, ms(1));
        assert_eq!(waits.read(proc.path(), &[7, 8, 9], ms(100)), ms(11));
        // A second thread of one, nothing new of the other.
        say(7, 7, ms(40));
        say(7, 12, ms(5));
        assert_eq!(waits.read(proc.path(), &[7, 8], ms(100)), ms(35));
        for thread in [7, 12] {
            say(7, thread, ms(500));
        }
        say(8, 8, ms(31));
        assert_eq!(waits.read(proc.path(), &[7, 8], ms(100)), ms(130));
        assert_eq!(waits.read(proc.path(), &[7, 8], ms(100)), Duration::ZERO);
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
        lock(&meter().stalls).late.push((due, woke));
        let stalls = since(from);
        assert!(stalls.within(from, woke, &[]) >= ms(200), "{stalls:?}");
        assert!(since(woke).late.iter().all(|(_, end)| *end > woke));
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
        let _busy = ["one", "two", "three"].map(busy);
        let from = Instant::now();
        let waited = crate::wait_until("processes to wait", Duration::from_secs(20), || {
            let stalls = since(from);
            let waited = stalls.waited_within(from, Instant::now());
            if waited > ms(300) { Ok(waited) } else { Err(format!("{waited:?}")) }
        });
        waited.unwrap();
    }
}
