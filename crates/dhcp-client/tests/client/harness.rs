//! A client, a clock that only tests move, what it sent, and what a server answers.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use dhcp_client::{Client, Config, Expiry, Input, Lease, LostReason, Mac, Output, RememberedLease, Report, State};
pub use dhcp_sim::{ADDRESS, LEASE_SECONDS, SERVER, Sent, ServerMessage, server_mac};
use dhcproto::v4::MessageType;

pub const OTHER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 101);
pub const OTHER_SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const RELAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);

pub fn mac() -> Mac {
    Mac::from([0, 0, 0x6c, 0xaa, 0xbb, 0xcc])
}

pub fn neighbour_mac() -> Mac {
    Mac::from([2, 0, 0, 0, 0, 9])
}

pub fn seconds(value: f64) -> Duration {
    Duration::from_secs_f64(value)
}

/// The client under test and the time.
pub struct Bench {
    pub client: Client,
    pub began: Instant,
    pub now: Instant,
}

impl Bench {
    pub fn new(config: Config) -> Self {
        let now = Instant::now();
        Self { client: Client::new(config, now, 7).expect("a good configuration"), began: now, now }
    }

    pub fn plain() -> Self {
        Self::new(Config::new(mac()))
    }

    /// A client whose Service had a lease before: `remaining` seconds of it are left.
    pub fn remembering(remaining: f64) -> Self {
        let now = Instant::now();
        let config =
            Config { remembered: Some(remembered(Some(Expiry::At(now + seconds(remaining))))), ..Config::new(mac()) };
        Self { client: Client::new(config, now, 7).expect("a good configuration"), began: now, now }
    }

    /// Bound to `ADDRESS` since now, by the ordinary way.
    pub fn bound(lease_seconds: u32) -> Self {
        let mut bench = Self::plain();
        bench.acquire(|answer| answer.lease(lease_seconds));
        bench
    }

    /// The four messages and the probe, without delay.
    pub fn acquire(&mut self, change: impl Fn(ServerMessage) -> ServerMessage) -> Lease {
        let discover = self.input(Input::Start).only(MessageType::Discover);
        let request = self.answer(change(ServerMessage::offer(&discover))).only(MessageType::Request);
        let outs = self.answer(change(ServerMessage::ack(&request)));
        let address = outs.probe().expect("a granted address is probed");
        self.input(Input::ProbeFree(address)).bound().expect("a free address is bound").clone()
    }

    pub fn input(&mut self, input: Input<'_>) -> Outs {
        Outs(self.client.step(self.now, input))
    }

    #[expect(clippy::needless_pass_by_value, reason = "a built answer reads better without a borrow")]
    pub fn answer(&mut self, answer: ServerMessage) -> Outs {
        let frame = answer.frame();
        self.input(Input::Frame(&frame))
    }

    pub fn advance(&mut self, by: f64) -> Outs {
        self.now += seconds(by);
        self.input(Input::Timer)
    }

    /// Sleep until the client wants to be woken.
    pub fn sleep(&mut self) -> Outs {
        self.now = self.client.deadline().expect("there is a deadline").max(self.now);
        let outs = self.input(Input::Timer);
        let next = self.client.deadline();
        assert!(next.is_none_or(|next| next > self.now), "a busy loop in {}", self.client.state());
        outs
    }

    /// Sleep, wake and sleep until the client is in this state.
    pub fn sleep_until(&mut self, state: State) -> Outs {
        for _ in 0..1000 {
            let outs = self.sleep();
            if self.client.state() == state {
                return outs;
            }
        }
        panic!("never came to {state}, still {}", self.client.state());
    }

    pub fn elapsed(&self) -> f64 {
        (self.now - self.began).as_secs_f64()
    }

    #[track_caller]
    pub fn assert_elapsed(&self, expected: f64) {
        assert_eq!(self.now - self.began, seconds(expected), "time since the beginning");
    }

    #[track_caller]
    pub fn assert_state(&self, state: State, address_in_use: Option<Ipv4Addr>) {
        assert_eq!(self.client.state(), state);
        assert_eq!(self.client.lease().map(|lease| lease.address), address_in_use, "address in use");
    }
}

pub fn remembered(expiry: Option<Expiry>) -> RememberedLease {
    RememberedLease { address: ADDRESS, server_id: Some(SERVER), server_mac: Some(server_mac()), expiry, network: None }
}

/// A frame that the client sent.
pub fn sent(frame: &[u8]) -> Sent {
    Sent::read(frame).expect("our own frames and messages are right")
}

/// What a step answered.
#[derive(Debug)]
pub struct Outs(pub Vec<Output>);

impl Outs {
    pub fn sent(&self) -> Vec<Sent> {
        self.0.iter().filter_map(|out| if let Output::Send(frame) = out { Some(sent(frame)) } else { None }).collect()
    }

    /// The only message sent, which is of this type.
    #[track_caller]
    pub fn only(&self, kind: MessageType) -> Sent {
        let sent = self.sent();
        assert_eq!(sent.iter().map(Sent::kind).collect::<Vec<_>>(), [kind], "in {self:?}");
        sent.into_iter().next().expect("just counted")
    }

    pub fn probe(&self) -> Option<Ipv4Addr> {
        self.0.iter().find_map(|out| if let Output::Probe(address) = out { Some(*address) } else { None })
    }

    pub fn bound(&self) -> Option<&Lease> {
        self.0.iter().find_map(|out| if let Output::Bound(lease) = out { Some(lease) } else { None })
    }

    pub fn renewed(&self) -> Option<&Lease> {
        self.0.iter().find_map(|out| if let Output::Renewed(lease) = out { Some(lease) } else { None })
    }

    pub fn lost(&self) -> Option<(&Lease, &LostReason)> {
        self.0
            .iter()
            .find_map(|out| if let Output::Lost { lease, reason } = out { Some((lease, reason)) } else { None })
    }

    pub fn reports(&self) -> Vec<&Report> {
        self.0.iter().filter_map(|out| if let Output::Report(report) = out { Some(report) } else { None }).collect()
    }

    #[track_caller]
    pub fn assert_nothing(&self) {
        assert!(self.0.is_empty(), "expected silence: {self:?}");
    }
}

/// What an adapter knows of the client, and what must hold after every step whatever happens.
#[derive(Debug, Default)]
pub struct Watch {
    pub in_use: Option<Lease>,
    started: bool,
}

impl Watch {
    /// Follow one step; the error says which promise is broken.
    pub fn after_step(&mut self, client: &Client, now: Instant, input: &Input<'_>, outs: &Outs) -> Result<(), String> {
        self.started |= matches!(input, Input::Start | Input::Restart);
        if outs.0.len() > 8 {
            return Err(format!("{} outputs in one step", outs.0.len()));
        }
        for out in &outs.0 {
            match (out, &self.in_use) {
                (Output::Bound(lease), None) => self.in_use = Some(lease.clone()),
                (Output::Bound(_), Some(_)) => return Err("bound while another address is in use".into()),
                (Output::Renewed(lease), Some(old)) if old.address == lease.address => {
                    self.in_use = Some(lease.clone());
                }
                (Output::Renewed(_), _) => return Err("renewed what is not in use".into()),
                (Output::Lost { lease, .. }, Some(old)) if old.address == lease.address => self.in_use = None,
                (Output::Lost { .. }, _) => return Err("lost what is not in use".into()),
                (Output::Send(_) | Output::Probe(_) | Output::Report(_), _) => {}
            }
        }
        if matches!(input, Input::Release) {
            self.in_use = None;
        }
        if self.in_use.as_ref() != client.lease() {
            return Err(format!("outputs say {:?} is in use, the client {:?}", self.in_use, client.lease()));
        }
        if let Some(lease) = client.lease()
            && lease.expiry.is_past(now)
        {
            return Err("an address is used past its lease".into());
        }
        match (client.deadline(), client.state()) {
            (Some(at), state) if at <= now => {
                return Err(format!("{state}: the deadline is not in the future: a busy loop"));
            }
            (Some(_), _) | (None, State::Released) => {}
            (None, State::Init | State::InitReboot) if !self.started => {}
            (None, State::Stopped) if client.lease().is_none_or(|lease| lease.expiry == Expiry::Never) => {}
            (None, State::Bound) if client.lease().is_some_and(|lease| lease.expiry == Expiry::Never) => {}
            (None, state) => return Err(format!("{state} without a deadline: stalled")),
        }
        let silent = matches!(client.state(), State::Stopped) || !self.started;
        if silent && outs.sent().iter().any(|sent| sent.kind() != MessageType::Release) {
            return Err(format!("sends in {}", client.state()));
        }
        Ok(())
    }
}
