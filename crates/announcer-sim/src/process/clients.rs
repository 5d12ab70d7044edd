//! Runs the DHCP clients of one process, as `clients.rs` and `dhcp_driver.rs` do in the real process. Each client is
//! the real [`Session`]; only its sockets are replaced.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Instant;

use announcer_core::dhcp_session::{DhcpAct, Happened, Session, session4};
use announcer_core::engine::{ClientEvent, DhcpEvent, DhcpStart, Input};
use announcer_core::view::Uid;
use jiff::Timestamp;
use l2_types::Mac;

/// Frames that a client sends, and on which interface.
type Sent = Vec<(u32, Vec<u8>)>;

/// What waits for a client.
enum Waiting {
    Start,
    Link { up: bool },
    Taken { address: IpAddr, by: Option<Mac> },
    Message(Rc<[u8]>),
    Heard(Rc<[u8]>),
}

struct Running {
    generation: u64,
    link: u32,
    session: Session<dhcp_client::V4>,
    waiting: Vec<Waiting>,
}

/// All clients of one process.
#[derive(Default)]
pub struct Clients {
    running: BTreeMap<Uid, Running>,
}

impl Clients {
    /// Starts a client at the next step of the process. It replaces a former client of the same Service.
    pub fn start(&mut self, now: Instant, wall: Timestamp, uid: Uid, start: &DhcpStart, seed: u64) {
        let session = session4(start, now, wall, seed).expect("MAC and name come from the scenario");
        let running =
            Running { generation: start.generation, link: start.link, session, waiting: vec![Waiting::Start] };
        self.running.insert(uid, running);
    }

    /// Stops a client. It releases its lease or keeps it.
    pub fn stop(&mut self, now: Instant, wall: Timestamp, uid: &Uid, release: bool, sent: &mut Sent) -> Option<Input> {
        let mut running = self.running.remove(uid)?;
        if release {
            running.step(now, wall, uid, Happened::Release, sent, &mut Vec::new());
        }
        Some(Input::Dhcp(uid.clone(), running.generation, ClientEvent::V4(DhcpEvent::Stopped)))
    }

    /// The engine reports that another host uses the address of a client.
    pub fn taken(&mut self, uid: &Uid, address: IpAddr, by: Option<Mac>) {
        if let Some(running) = self.running.get_mut(uid) {
            running.waiting.push(Waiting::Taken { address, by });
        }
    }

    /// The interface of a client is down or back.
    pub fn link(&mut self, uid: &Uid, up: bool) {
        if let Some(running) = self.running.get_mut(uid) {
            running.waiting.push(Waiting::Link { up });
        }
    }

    /// The interfaces on which the clients receive frames.
    pub fn links(&self) -> Vec<u32> {
        self.running.values().map(|running| running.link).collect()
    }

    /// Hands a frame that was received on `link` to the clients. It is about addresses, or it is a DHCP message.
    /// Returns true if a client wants it.
    pub fn on_frame(&mut self, link: u32, about_addresses: bool, frame: &Rc<[u8]>) -> bool {
        let mut wanted = false;
        for running in self.running.values_mut().filter(|running| running.link == link) {
            if !about_addresses {
                running.waiting.push(Waiting::Message(Rc::clone(frame)));
            } else if running.session.probing().is_some() {
                running.waiting.push(Waiting::Heard(Rc::clone(frame)));
            } else {
                continue;
            }
            wanted = true;
        }
        wanted
    }

    /// When something is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.running.values().filter_map(|running| running.session.deadline()).min()
    }

    /// Handles everything that waits and everything that is due.
    pub fn run(&mut self, now: Instant, wall: Timestamp, sent: &mut Sent, inputs: &mut Vec<Input>) {
        for (uid, running) in &mut self.running {
            for waiting in std::mem::take(&mut running.waiting) {
                let happened = match &waiting {
                    Waiting::Start => Happened::Start,
                    Waiting::Link { up: true } => Happened::LinkUp,
                    Waiting::Link { up: false } => Happened::LinkDown,
                    Waiting::Taken { address, by } => Happened::Taken { address: *address, by: *by },
                    Waiting::Message(frame) => Happened::Message(frame),
                    Waiting::Heard(frame) => Happened::Heard(frame),
                };
                running.step(now, wall, uid, happened, sent, inputs);
            }
            if running.session.deadline().is_some_and(|at| at <= now) {
                running.step(now, wall, uid, Happened::Timer, sent, inputs);
            }
        }
    }
}

impl Running {
    fn step(
        &mut self,
        now: Instant,
        wall: Timestamp,
        uid: &Uid,
        happened: Happened<'_>,
        sent: &mut Sent,
        inputs: &mut Vec<Input>,
    ) {
        for act in self.session.step(now, wall, happened) {
            match act {
                DhcpAct::Send(frame) | DhcpAct::Probe(frame) => sent.push((self.link, frame)),
                DhcpAct::Tell(event) => inputs.push(Input::Dhcp(uid.clone(), self.generation, ClientEvent::V4(event))),
            }
        }
    }
}
