//! Several clients of one address at once, each with a host of its own: new connections all the time, and some that
//! stay open.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::net::connection::Connection;
use crate::net::host::Host;
use crate::net::lan::Lan;
use crate::net::probe::{IN_TIME, Missed, Probe, ProbeOptions, Traffic};

/// From here on addresses of clients; DHCP and pools end before.
const FIRST: u8 = 240;
/// Open connections of each client.
const OPEN: usize = 4;
/// How often something is asked over an open connection.
const BEAT: Duration = Duration::from_millis(100);

/// What happened to clients after an event.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Users {
    /// Of each client.
    pub clients: Vec<Missed>,
    /// Connections that were open.
    pub open: usize,
    /// Of them broken, or without an answer for longer than a second.
    pub broken: usize,
}

impl Users {
    /// Requests without an answer within a second, of all clients.
    pub fn missed(&self) -> u64 {
        self.clients.iter().map(|client| client.missed).sum()
    }

    /// Requests of all clients.
    pub fn sent(&self) -> u64 {
        self.clients.iter().map(|client| client.sent).sum()
    }

    /// Answered in time, but only at a second attempt of TCP, of all clients.
    pub fn late(&self) -> u64 {
        self.clients.iter().map(|client| client.late).sum()
    }

    /// The client for whom it lasted longest: without what the machine's stalls explain.
    pub fn lasted(&self) -> Duration {
        self.clients.iter().map(Missed::lasted).max().unwrap_or_default()
    }

    /// The most that one client missed, without what the machine's stalls explain.
    pub fn worst(&self) -> u64 {
        self.clients.iter().map(|client| client.unexplained(ProbeOptions::default().interval)).max().unwrap_or_default()
    }
}

impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let latest = self.clients.iter().max_by_key(|client| client.last);
        let last = latest.and_then(|client| client.last).unwrap_or_default();
        let how = latest.and_then(|client| client.how.as_deref()).unwrap_or("answered too late");
        let stalled = self.clients.iter().map(|client| client.stalled).max().unwrap_or_default();
        write!(
            f,
            "{} of {} requests of {} clients had no answer within a second, the last of them sent {} ms after it \
             ({how}; stalls: {} ms), {} more were late; {} of {} open connections broke",
            self.missed(),
            self.sent(),
            self.clients.len(),
            last.as_millis(),
            stalled.as_millis(),
            self.late(),
            self.broken,
            self.open
        )
    }
}

/// They ask until they are dropped.
#[derive(Debug)]
pub struct Clients {
    probes: Vec<Probe>,
    open: Vec<Connection>,
    target: SocketAddr,
    hosts: Vec<Host>,
}

impl Clients {
    /// So many, each with a new connection every 10 ms and some open ones; all of them have answers. `place` tells
    /// clients that live at the same time apart.
    pub fn start(lan: &Lan, target: SocketAddr, count: u8, place: u8) -> Result<Self> {
        let numbers = (0..count).map(|number| FIRST + place + number);
        let hosts: Vec<Host> = numbers.map(|last| lan.add_host(&format!("user{last}"), last)).collect::<Result<_>>()?;
        let probes = hosts.iter().map(|host| host.probe(Traffic::Http(target))).collect::<Result<Vec<_>>>()?;
        for probe in &probes {
            probe.wait_for_answers(20, Duration::from_secs(40))?;
        }
        let open = hosts.iter().flat_map(|host| std::iter::repeat_n(host, OPEN));
        let open = open.map(|host| host.begin_connection(target, BEAT)).collect::<Result<Vec<_>>>()?;
        open.iter().try_for_each(Connection::wait_for_answers)?;
        Ok(Self { probes, open, target, hosts })
    }

    /// Opens again what has broken.
    pub fn reopen(&mut self) -> Result<()> {
        let hosts = self.hosts.iter().flat_map(|host| std::iter::repeat_n(host, OPEN));
        for (connection, host) in self.open.iter_mut().zip(hosts) {
            if connection.silence() > IN_TIME {
                *connection = host.hold_connection(self.target, BEAT)?;
            }
        }
        Ok(())
    }

    /// What they saw since an event: it ends when each has `more` answers to requests that were sent from now on.
    pub fn since(&self, event: Instant, more: u64) -> Result<Users> {
        // All of them at the same time.
        let wanted: Vec<u64> = self.probes.iter().map(|probe| probe.answered() + more).collect();
        for (probe, wanted) in self.probes.iter().zip(wanted) {
            probe.wait_until_answered(wanted, Duration::from_mins(1))?;
        }
        Ok(Users {
            clients: self.probes.iter().map(|probe| probe.missed_since(event)).collect(),
            open: self.open.len(),
            broken: self.open.iter().filter(|connection| connection.silence() > IN_TIME).count(),
        })
    }

    /// Waits until a pod on this node has answered each of them.
    pub fn wait_for_answers_by(&self, node: &str, deadline: Duration) -> Result<()> {
        self.probes.iter().try_for_each(|probe| probe.wait_for_answer_by(node, deadline))
    }
}
