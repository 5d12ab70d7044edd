//! A client, its successors and a server on a network that loses, delays, repeats and reorders, all from one seed. The
//! server's own book of what it granted is the truth that the client is measured by.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use dhcp_client::{Client, Config, Input, Mac, Output, RememberedLease, State};
use dhcp_sim::Server;
use rand::{Rng, RngExt, SeedableRng, rngs::SmallRng};

use crate::harness::*;

const POOL: [Ipv4Addr; 4] = [ADDRESS, OTHER_ADDRESS, Ipv4Addr::new(10, 0, 0, 102), Ipv4Addr::new(10, 0, 0, 103)];
const HORIZON: Duration = Duration::from_mins(200);
/// From here on nothing goes wrong any more, and the client must come to rest.
const CALM: Duration = Duration::from_mins(100);

enum Event {
    AtServer(Vec<u8>),
    AtClient(Vec<u8>),
    Probed(Ipv4Addr),
}

struct World {
    rng: SmallRng,
    began: Instant,
    now: Instant,
    queue: BTreeMap<(Instant, u64), Event>,
    order: u64,
    loss: f64,
    repeat: f64,
    neighbours: Vec<Ipv4Addr>,
    server: Server,
    down_until: Instant,
    client: Client,
    watch: Watch,
    memory: Option<RememberedLease>,
    binds: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let began = Instant::now();
        let lease_seconds = [5, 10, 30, 120, 600, 3000][rng.random_range(0..6)];
        let server = Server::new(POOL.to_vec(), lease_seconds, rng.random());
        let neighbours = if rng.random_bool(0.3) { vec![POOL[rng.random_range(0..2)]] } else { Vec::new() };
        let client = Client::new(Config::new(mac()), began, rng.next_u64()).expect("a good configuration");
        let (loss, repeat) = (rng.random_range(0.0..0.5), rng.random_range(0.0..0.3));
        Self {
            rng,
            began,
            now: began,
            queue: BTreeMap::new(),
            order: 0,
            loss,
            repeat,
            neighbours,
            server,
            down_until: began,
            client,
            watch: Watch::default(),
            memory: None,
            binds: 0,
        }
    }

    fn calm(&self) -> bool {
        self.now >= self.began + CALM
    }

    fn schedule(&mut self, after: Duration, what: Event) {
        self.order += 1;
        self.queue.insert((self.now + after, self.order), what);
    }

    /// Onto the wire: lost, late, twice, or all of it.
    fn transmit(&mut self, frame: &[u8], wrap: fn(Vec<u8>) -> Event) {
        let copies = if self.rng.random_bool(if self.calm() { 0.0 } else { self.repeat }) { 2 } else { 1 };
        for _ in 0..copies {
            if self.calm() || !self.rng.random_bool(self.loss) {
                let most = if self.calm() { 5 } else { 3000 };
                let delay = Duration::from_millis(self.rng.random_range(1..=most).min(self.rng.random_range(1..=most)));
                self.schedule(delay, wrap(frame.to_vec()));
            }
        }
    }

    fn step(&mut self, input: Input<'_>) -> Result<(), String> {
        let outs = Outs(self.client.step(self.now, input));
        self.watch.after_step(&self.client, self.now, &input, &outs)?;
        for out in &outs.0 {
            match out {
                Output::Send(frame) => self.transmit(frame, Event::AtServer),
                Output::Probe(address) => self.schedule(Duration::from_millis(30), Event::Probed(*address)),
                Output::Bound(lease) | Output::Renewed(lease) => {
                    self.binds += 1;
                    self.memory = Some(lease.remember());
                }
                Output::Lost { .. } => self.memory = None,
                Output::Report(report) => assert!(!report.to_string().is_empty()),
            }
        }
        let Some(lease) = self.client.lease() else { return Ok(()) };
        match self.server.promised(&mac().octets(), lease.address) {
            Some(until) if lease.expiry.instant().is_some_and(|expiry| expiry <= until) => Ok(()),
            promised => Err(format!("uses {lease:?}, the server promised {promised:?}")),
        }
    }

    /// Things that go wrong beside lost packets.
    fn trouble(&mut self) -> Result<(), String> {
        match self.rng.random_range(0..9) {
            0 => self.down_until = self.now + Duration::from_secs(self.rng.random_range(1..1200)),
            1 => self.server.forget(),
            2 => {
                let others = self.rng.random_range(0..3);
                self.server.taken = (0..others).map(|_| POOL[self.rng.random_range(0..POOL.len())]).collect();
            }
            3 => self.neighbours.clear(),
            4 => {
                self.step(Input::LinkLost)?;
                let pause = Duration::from_secs(self.rng.random_range(0..60));
                self.now += pause;
                self.step(Input::Start)?;
            }
            5 => self.step(Input::Restart)?,
            6 | 7 => {
                // Another node takes over with what is remembered on the Service.
                let config = Config { remembered: self.memory.clone(), ..Config::new(mac()) };
                self.client = Client::new(config, self.now, self.rng.next_u64()).expect("a good configuration");
                self.watch = Watch::default();
                self.step(Input::Start)?;
            }
            _ => self.server.lease_seconds = [7, 60, 900][self.rng.random_range(0..3)],
        }
        Ok(())
    }

    fn run(&mut self) -> Result<(), String> {
        self.step(Input::Start)?;
        let mut next_trouble = self.now + Duration::from_secs(self.rng.random_range(0..300));
        let end = self.began + HORIZON;
        while self.now < end {
            let queued = self.queue.first_key_value().map(|(key, _)| key.0);
            let timer = self.client.deadline();
            let trouble = (next_trouble < self.began + CALM).then_some(next_trouble);
            let at = [queued, timer, trouble, Some(end)].into_iter().flatten().min().expect("there is an end");
            self.now = self.now.max(at);
            if trouble == Some(at) {
                self.trouble()?;
                next_trouble = self.now + Duration::from_secs(self.rng.random_range(1..600));
            } else if queued == Some(at) {
                match self.queue.pop_first().expect("it has a first").1 {
                    Event::AtServer(frame) => {
                        let heard = self.now >= self.down_until;
                        if let Some(answer) = heard.then(|| self.server.handle(&sent(&frame), self.now)).flatten() {
                            self.transmit(&answer.frame(), Event::AtClient);
                        }
                    }
                    Event::AtClient(frame) => self.step(Input::Frame(&frame))?,
                    Event::Probed(address) if self.neighbours.contains(&address) => {
                        let mac = Mac::from([2, 0, 0, 0, 0, 9]);
                        self.step(Input::ProbeConflict { address, mac })?;
                    }
                    Event::Probed(address) => self.step(Input::ProbeFree(address))?,
                }
            } else {
                self.step(Input::Timer)?;
            }
            if self.now >= self.began + CALM {
                self.down_until = self.began;
                self.server.taken.retain(|address| self.neighbours.contains(address));
            }
        }
        let at_rest = matches!(self.client.state(), State::Bound | State::Renewing);
        match self.client.lease() {
            Some(lease) if at_rest && self.server.holds(&mac().octets(), self.now) == Some(lease.address) => Ok(()),
            lease => Err(format!(
                "100 quiet minutes were not enough: {} with {lease:?}, server has {:?}",
                self.client.state(),
                self.server.holds(&mac().octets(), self.now)
            )),
        }
    }
}

#[test]
fn no_fault_of_network_or_server_breaks_a_promise_and_calm_brings_an_address() {
    // One seed again: DHCP_SEED=17 cargo test -p dhcp-client no_fault. Many: DHCP_SEEDS=5000.
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    // A few more that nobody has seen yet: `make test` takes `HCP_SEED` from the commit.
    let first = number("HCP_SEED").unwrap_or(1_000_000);
    let seeds: Vec<u64> = match number("DHCP_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("DHCP_SEEDS").unwrap_or(60)).chain(first..first + 10).collect(),
    };
    println!("{} seeds, from HCP_SEED={first} on the last ones", seeds.len());
    let mut binds = 0;
    for seed in seeds {
        let mut world = World::new(seed);
        if let Err(broken) = world.run() {
            panic!("seed {seed}, after {:.3} s: {broken}", (world.now - world.began).as_secs_f64());
        }
        binds += world.binds;
    }
    assert!(binds > 10, "a simulation in which nothing ever works shows nothing");
}
