//! How long this machine kept processes waiting for a processor: what of a gap is nobody's fault.
//!
//! Two sources, and both count. On each processor a thread sleeps 5 ms again and again and notes when it wakes too
//! late; while all of them are late, nobody had a turn. And of the processes on which the move of an address waits the
//! kernel tells for how long each was ready to run and did not (`run_delay` in `schedstat`). They wait for one another:
//! an announcer for an API server, that one for etcd. So the waiting of the three kinds is added, and of several of a
//! kind the one counts that waited longest. Nothing else counts, however long it waits: a busy machine must not explain
//! everything.
//!
//! The first source is exact, the second an upper bound: the kinds also wait at the same time, and for what no address
//! waits for. Together they wait no longer than time passes, and of a gap they explain no more than [`explainable`].

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How long the threads that measure sleep.
const NAP: Duration = Duration::from_millis(5);
/// A thread that wakes later than this has waited; less is the timer's grain.
const LATE: Duration = Duration::from_millis(3);
/// How often the kernel's counters are read.
const SAMPLE: Duration = Duration::from_millis(100);

/// So much may be waiting and nothing else. A move takes a dozen turns, and a scheduler that is fair lets nobody wait
/// for one much longer than a tenth of this, also with thirty others ready to run.
const ALL: Duration = Duration::from_secs(1);

/// The product's processes, as the kernel cuts their name off.
const PRODUCT: &str = "harvester-cloud";

/// A stretch of time.
pub type Stretch = (Instant, Instant);

/// What was measured up to some moment. Pure: the same record always gives the same answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stalls {
    /// For each processor the stretches in which a thread that should have woken had not, in order.
    late: Vec<Vec<Stretch>>,
    /// When it was read, and for how long the processes that count had waited until then.
    waited: Vec<(Instant, Duration)>,
}

impl Stalls {
    /// A record of one processor with these stretches, for tests of what builds on it.
    pub fn of(late: Vec<Stretch>, waited: Vec<(Instant, Duration)>) -> Self {
        Self { late: vec![late], waited }
    }

    /// How much of this time a machine without other work would not have needed, at most. `own` are further stretches
    /// in which the observer itself stood still; what several sources report of one moment counts once.
    ///
    /// Exact are the moments in which nobody had a turn, and the longest stretch of the observer: it has seen nothing
    /// of it. Of several it has, since it asked between them. These and what processes waited are bounded.
    pub fn within(&self, from: Instant, to: Instant, own: &[Stretch]) -> Duration {
        let clip = |(begin, end): &Stretch| ((*begin).max(from), (*end).min(to));
        let own: Vec<Stretch> = own.iter().map(clip).filter(|(begin, end)| begin < end).collect();
        let mut exact: Vec<Stretch> = common(&self.late, from, to).iter().map(clip).collect();
        exact.extend(own.iter().max_by_key(|(begin, end)| *end - *begin));
        let known = covered(exact.clone());
        exact.extend(own);
        let slow = covered(exact).saturating_sub(known);
        let rest = to.saturating_duration_since(from).saturating_sub(known);
        known + (slow + self.waited_within(from, to)).min(explainable(rest))
    }

    /// From the last reading before until the first one after: waiting is not known more exactly, and a doubt counts as
    /// waiting.
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

/// Of a time of this length waiting explains so much, at most: all of what a move may need on a busy machine, and half
/// of what is longer. A gap that is really long stays long, however busy the machine is.
fn explainable(length: Duration) -> Duration {
    length.min(ALL) + length.saturating_sub(ALL) / 2
}

/// The time that lies in at least one of these.
fn covered(mut stretches: Vec<Stretch>) -> Duration {
    stretches.sort_unstable();
    let (mut sum, mut reached) = (Duration::ZERO, None);
    for (begin, end) in stretches {
        let begin = reached.map_or(begin, |reached| begin.max(reached));
        sum += end.saturating_duration_since(begin);
        reached = Some(end.max(begin));
    }
    sum
}

/// What lies in a stretch of every list, between the two moments.
fn common(lists: &[Vec<Stretch>], from: Instant, to: Instant) -> Vec<Stretch> {
    let within = |list: &Vec<Stretch>| -> Vec<Stretch> {
        let first = list.partition_point(|(_, end)| *end <= from);
        list[first..].iter().take_while(|(begin, _)| *begin < to).copied().collect()
    };
    let mut lists = lists.iter().map(within);
    let first = lists.next().unwrap_or_default();
    lists.fold(first, |found, list| {
        let (mut both, mut left, mut right) = (Vec::new(), found.iter().peekable(), list.iter().peekable());
        while let (Some((begin, end)), Some((other_begin, other_end))) = (left.peek(), right.peek()) {
            let (later, sooner) = (*begin.max(other_begin), *end.min(other_end));
            if later < sooner {
                both.push((later, sooner));
            }
            if end <= other_end {
                left.next();
            } else {
                right.next();
            }
        }
        both
    })
}

#[derive(Debug, Default)]
struct Meter {
    stalls: Mutex<Stalls>,
    watched: Mutex<Vec<Weak<Watched>>>,
}

/// On whose turn the move of an address waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Announcer,
    ApiServer,
    Etcd,
}

impl Kind {
    /// By the name under which a bed has started it.
    fn of(name: &str) -> Option<Self> {
        let kinds = [("announcer", Self::Announcer), ("kube-apiserver", Self::ApiServer), ("etcd", Self::Etcd)];
        kinds.iter().find(|(part, _)| name.contains(part)).map(|(_, kind)| *kind)
    }
}

/// A process that a bed has started, while this lives.
#[derive(Debug)]
pub struct Watched {
    pid: u32,
    /// Absent: its waiting does not count.
    kind: Option<Kind>,
}

/// Measures from the first use on, until this process ends.
fn meter() -> &'static Meter {
    static METER: OnceLock<&'static Meter> = OnceLock::new();
    METER.get_or_init(|| {
        let meter: &'static Meter = Box::leak(Box::default());
        let allowed = sched_getaffinity(None).ok();
        let processors = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.as_ref().is_some_and(|set| set.is_set(*cpu)));
        for (place, cpu) in processors.enumerate() {
            meter.stalls.lock().late.push(Vec::new());
            start(&format!("stalls-{cpu}"), move || {
                let mut only = CpuSet::new();
                only.set(cpu);
                // Where this is forbidden, the thread measures wherever it runs.
                let _ = sched_setaffinity(None, &only);
                nap_for_ever(meter, place);
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

fn nap_for_ever(meter: &Meter, place: usize) {
    loop {
        let due = Instant::now() + NAP;
        std::thread::sleep(NAP);
        let woke = Instant::now();
        if woke - due > LATE {
            meter.stalls.lock().late[place].push((due, woke));
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
        let known: Vec<Arc<Watched>> = {
            let mut watched = meter.watched.lock();
            watched.retain(|process| process.strong_count() > 0);
            watched.iter().filter_map(Weak::upgrade).collect()
        };
        let unknown = containers.iter().filter(|pid| known.iter().all(|process| process.pid != **pid));
        let mut processes: Vec<(Kind, u32)> = unknown.map(|pid| (Kind::Announcer, *pid)).collect();
        processes.extend(known.iter().filter_map(|process| Some((process.kind?, process.pid))));
        let now = Instant::now();
        let more = waits.read(Path::new("/proc"), &processes, now - last);
        last = now;
        let mut stalls = meter.stalls.lock();
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
    /// For how long these processes have waited since the last reading, which is so long ago: of each kind the one that
    /// waited longest, and neither a process nor all kinds together longer than that time, however many threads did.
    fn read(&mut self, proc: &Path, processes: &[(Kind, u32)], since: Duration) -> Duration {
        let mut seen = BTreeMap::new();
        let mut longest: BTreeMap<Kind, Duration> = BTreeMap::new();
        for (kind, pid) in processes {
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
            let of_kind = longest.entry(*kind).or_default();
            *of_kind = of_process.min(since).max(*of_kind);
        }
        self.0 = seen;
        longest.values().sum::<Duration>().min(since)
    }
}

/// The second of `schedstat`'s numbers: nanoseconds spent ready, but not running.
fn run_delay(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

/// From now on time in which this process waits counts, if it is of a kind that does, until the guard is dropped.
pub(crate) fn watch(name: &str, pid: u32) -> Arc<Watched> {
    let watched = Arc::new(Watched { pid, kind: Kind::of(name) });
    meter().watched.lock().push(Arc::downgrade(&watched));
    watched
}

/// Begins to measure, if nobody did before.
pub fn begin() {
    meter();
}

/// What was measured from `since` on.
pub fn since(since: Instant) -> Stalls {
    let stalls = meter().stalls.lock();
    let from = stalls.waited.partition_point(|(at, _)| *at <= since).saturating_sub(1);
    Stalls {
        late: stalls.late.iter().map(|list| list[list.partition_point(|(_, end)| *end <= since)..].to_vec()).collect(),
        waited: stalls.waited[from..].to_vec(),
    }
}

#[cfg(test)]
mod tests;
