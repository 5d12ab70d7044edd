//! A node: its kernel, its process, its clocks, and what is wrong with it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use announcer_core::Config;
use jiff::Timestamp;

use super::{Event, World};
use crate::kernel::{Kernel, LANS, Lan, Moment};
use crate::process::{Message, Process, Purpose};

/// See the module. What can be wrong in several ways at a time is counted.
#[allow(clippy::struct_excessive_bools)] // what may go wrong with a node, each on its own
pub struct Node {
    pub name: String,
    pub kernel: Kernel,
    pub process: Option<Process>,
    /// Counts boots and processes, so that an event for a former one is not delivered.
    pub boot: u64,
    pub life: u64,
    pub powered: bool,
    /// When it last lost its power, and when its process started.
    pub lost_at: Duration,
    pub started_at: Duration,
    pub frozen: u32,
    pub paused: u32,
    /// How far the clock of the process is behind, because the clock stopped during a pause.
    pub behind: Duration,
    /// When the process last lost time without noticing it.
    pub deceived_at: Option<Duration>,
    /// How long the kernel has stood still.
    pub stood_still: Duration,
    pub paused_at: Duration,
    pub wall_jump: i64,
    /// How much longer each request to its kernel takes at most.
    pub kernel_late: Duration,
    pub wake_at: Option<Duration>,
    /// The kernel is at work.
    pub performing: bool,
    /// Requests under way, and when they were sent.
    pub waiting: BTreeMap<u64, (Purpose, Instant)>,
    /// The watches: which connection, and when the last event arrives.
    pub epoch: u64,
    pub connected: bool,
    pub lease_watched: bool,
    pub arrives: Duration,
    pub api_away: u32,
    pub api_slow: u32,
    pub stale: u32,
    pub read_only: u32,
    pub mute: [u32; LANS],
    pub deaf: [u32; LANS],
    pub not_ready: u32,
    /// Since when it is not.
    pub unready_since: Option<Duration>,
    pub shut_out: u32,
    pub cordoned: u32,
    pub proxy_ill: u32,
    /// Frames that wait in front of a machine that stands still.
    pub tap: VecDeque<(Lan, Rc<[u8]>)>,
    /// The process before this one, or before none, ended by itself and left its addresses for the next one.
    pub left_in_order: bool,
    /// Addresses that it has set in this life, for the sabotage.
    pub set: BTreeSet<IpAddr>,
    /// Steps without a pause, and when the last one was.
    pub steps: (Duration, u32),
    /// As judged last.
    pub led: bool,
    /// It was to start a process while the machine stood still.
    pub starts_late: bool,
    /// `node` mode: the renewal of a kube-vip's Lease that its process has read last, and until when it takes that one
    /// for alive, by its own clock.
    pub honours: Option<(String, Instant)>,
}

impl Node {
    /// Node `n` with so many NICs, switched on; its process starts later.
    pub fn new(n: usize, nics: usize) -> Self {
        Self {
            name: name(n),
            kernel: Kernel::new(n, nics),
            process: None,
            boot: 0,
            life: 0,
            powered: true,
            lost_at: Duration::ZERO,
            started_at: Duration::ZERO,
            frozen: 0,
            paused: 0,
            behind: Duration::ZERO,
            deceived_at: None,
            stood_still: Duration::ZERO,
            paused_at: Duration::ZERO,
            wall_jump: 0,
            kernel_late: Duration::ZERO,
            wake_at: None,
            performing: false,
            waiting: BTreeMap::new(),
            epoch: 0,
            connected: false,
            lease_watched: false,
            arrives: Duration::ZERO,
            api_away: 0,
            api_slow: 0,
            stale: 0,
            read_only: 0,
            mute: [0; LANS],
            deaf: [0; LANS],
            not_ready: 0,
            unready_since: None,
            shut_out: 0,
            cordoned: 0,
            proxy_ill: 0,
            tap: VecDeque::new(),
            left_in_order: false,
            set: BTreeSet::new(),
            steps: (Duration::ZERO, 0),
            led: false,
            starts_late: false,
            honours: None,
        }
    }

    /// Its process gets processor time.
    pub fn runs(&self) -> bool {
        self.process.is_some() && self.frozen == 0 && self.paused == 0
    }

    /// It was asked to end.
    pub fn is_stopping(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.stopping)
    }
}

/// Of node `n`.
pub fn name(n: usize) -> String {
    format!("node-{}", n + 1)
}

impl World<'_> {
    pub(super) fn clock(&self, n: usize) -> Instant {
        self.origin + self.now.saturating_sub(self.nodes[n].behind)
    }

    pub(super) fn kernel_time(&self, n: usize) -> Duration {
        let node = &self.nodes[n];
        let now = if node.paused > 0 { node.paused_at } else { self.now };
        now.saturating_sub(node.stood_still)
    }

    pub(super) fn wall(&self, n: usize) -> Timestamp {
        self.api_time() + jiff::SignedDuration::from_secs(self.nodes[n].wall_jump)
    }

    /// By the clock of the API server.
    pub(super) fn api_time(&self) -> Timestamp {
        self.wall + jiff::SignedDuration::try_from(self.now).expect("a run is short")
    }

    pub(super) fn moment(&self, n: usize) -> Moment {
        let (clock, wall) = (self.clock(n), self.wall(n));
        let api = self.nodes[n].process.as_ref().map_or(wall, |process| process.api_clock.latest(clock, wall));
        Moment { kernel: self.kernel_time(n), clock, boot: self.origin, api }
    }

    pub(super) fn start(&mut self, n: usize) {
        let node = &self.nodes[n];
        if node.process.is_some() || !node.powered {
            return;
        }
        // The machine stands still; when it goes on it starts the process.
        if node.paused > 0 {
            self.nodes[n].starts_late = true;
            return;
        }
        // Another fault still holds it down; its end starts it.
        if self.scenario.faults.iter().any(|fault| fault.kind.holds_down(n) && fault.is_on(self.now)) {
            return;
        }
        self.note_of(n, || "process starts".to_owned());
        let [duration, deadline, retry] = self.scenario.lease.map(|seconds| seconds.to_string());
        let env = [
            ("vip_interface", "eth0"),
            ("election_mode", self.scenario.mode.as_str()),
            ("vip_leaseduration", &duration),
            ("vip_renewdeadline", &deadline),
            ("vip_retryperiod", &retry),
            // Half of all runs have no other moves than hand-overs.
            ("vip_handover", if self.scenario.seed.is_multiple_of(2) { "true" } else { "false" }),
            ("vip_failback", if self.scenario.fail_back { "true" } else { "false" }),
        ];
        // Of two NICs an address is announced on the one in whose subnet it is.
        let of_two = (self.scenario.nics > 1).then_some(("vip_servicesinterface", "auto"));
        let env = env.into_iter().chain(of_two).map(|(key, value)| (key.to_owned(), value.to_owned()));
        let config = Config::from_env_and_args(env, [], &self.nodes[n].name).expect("a valid configuration");
        let mut process = Process::new(self.clock(n), config);
        // A third of all runs have no cloud controller. What strangers hold up there for a minute is no promise.
        process.hears_controller = !self.scenario.seed.is_multiple_of(3) || self.scenario.has_strangers();
        let node = &mut self.nodes[n];
        node.started_at = self.now;
        node.life += 1;
        node.process = Some(process);
        // A process that is paused as soon as it starts has changed nothing. So what the former process left keeps its
        // lifetime.
        node.left_in_order &= !node.runs();
        node.set.clear();
        node.honours = None;
        node.performing = false;
        node.waiting.clear();
        node.wake_at = None;
        node.epoch += 1;
        node.connected = false;
        node.arrives = self.now;
        self.judge.changed = true;
        let life = self.nodes[n].life;
        let after = self.between(1_000, 20_000);
        self.schedule(after, Event::List { node: n, life });
        self.rouse(n);
        self.tell_kube_proxy(n);
    }

    pub(super) fn end_process(&mut self, n: usize, how: &str) {
        let node = &mut self.nodes[n];
        if node.process.take().is_some() {
            node.life += 1;
            node.epoch += 1;
            node.waiting.clear();
            node.wake_at = None;
            self.judge.changed = true;
            self.note_of(n, || format!("process ends: {how}"));
        }
    }

    /// The DaemonSet's next pod.
    pub(super) fn expect_restart(&mut self, n: usize) {
        let boot = self.nodes[n].boot;
        let after = self.between(300_000, 2_000_000);
        self.schedule(after, Event::Starts { node: n, boot });
    }

    pub(super) fn resume(&mut self, n: usize) {
        self.nodes[n].wake_at = None;
        self.rouse(n);
        let life = self.nodes[n].life;
        if self.nodes[n].process.as_ref().is_some_and(|process| !process.kernel_queue.is_empty()) {
            self.nodes[n].performing = true;
            self.schedule(Duration::ZERO, Event::Perform { node: n, life });
        }
    }

    pub(super) fn deliver(&mut self, n: usize, message: Message) {
        if let Some(process) = &mut self.nodes[n].process {
            process.inbox.push_back(message);
            self.rouse(n);
        }
    }

    /// Something waits: the scheduler lets the process run soon.
    pub(super) fn rouse(&mut self, n: usize) {
        let after = self.between(10, self.scenario.busy_us);
        self.wake_at(n, self.now + after);
    }

    pub(super) fn wake_at(&mut self, n: usize, at: Duration) {
        let node = &mut self.nodes[n];
        if node.wake_at.is_some_and(|planned| planned <= at) {
            return;
        }
        node.wake_at = Some(at);
        let life = node.life;
        self.order += 1;
        self.queue.push(at, self.order, Event::Wake { node: n, life });
    }
}
