//! The DHCP server of the LAN, a host that is no node, and what is wrong with it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use dhcp_sim::{Sent, Server};
use dhcproto::v4::MessageType;

use super::lan::dhcp_server;
use super::{Event, World};
use crate::api::{client_id, key, uid};
use crate::promises::LEASE_KEPT;
use crate::scenario::{DhcpServer, Scenario, ServerFault};

/// Last bytes of the addresses in the pool.
const POOL: std::ops::Range<u8> = 150..200;
/// The time until the server answers, in microseconds.
const ANSWERS_US: (u64, u64) = (200, 5_000);
/// The same while the server is slow.
const SLOW_US: (u64, u64) = (100_000, 2_000_000);
/// Duration of a lease while [`ServerFault::Short`] lasts.
const SHORT_SECONDS: u32 = 10;

/// The server refuses a client the address that it uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusal {
    pub node: usize,
    pub life: u64,
    pub service: usize,
    pub address: Ipv4Addr,
    /// When the server said so. The client may have heard something newer before.
    since: Duration,
}

/// See the module.
pub(super) struct Dhcp {
    server: Server,
    silent: u32,
    slow: u32,
    refuses: u32,
    short: u32,
    pub refusals: Vec<Refusal>,
    /// When a Service was given an address last.
    given: HashMap<(usize, Ipv4Addr), Duration>,
}

impl Dhcp {
    pub fn new(scenario: &Scenario) -> Self {
        let DhcpServer { lease_seconds, authoritative } = scenario.dhcp;
        let mut server =
            Server::new(POOL.map(|last| Ipv4Addr::new(10, 0, 0, last)).collect(), lease_seconds, authoritative);
        server.id = Ipv4Addr::new(10, 0, 0, 2);
        server.mac = dhcp_server().octets().into();
        Self { server, silent: 0, slow: 0, refuses: 0, short: 0, refusals: Vec::new(), given: HashMap::new() }
    }
}

impl World<'_> {
    pub(super) fn server_fault(&mut self, fault: ServerFault, begins: bool) {
        let count = |counter: &mut u32| if begins { *counter += 1 } else { *counter -= 1 };
        let dhcp = &mut self.dhcp;
        match fault {
            ServerFault::Silent => count(&mut dhcp.silent),
            ServerFault::Slow => count(&mut dhcp.slow),
            ServerFault::Refuses => count(&mut dhcp.refuses),
            ServerFault::Short => count(&mut dhcp.short),
            ServerFault::Forgets if begins => dhcp.server.forget(),
            ServerFault::GivesAway if begins => dhcp.server.give_away(),
            ServerFault::Forgets | ServerFault::GivesAway => {}
        }
        dhcp.server.refuses = dhcp.refuses > 0;
        dhcp.server.lease_seconds = if dhcp.short > 0 { SHORT_SECONDS } else { self.scenario.dhcp.lease_seconds };
    }

    /// A client has sent this.
    pub(super) fn ask_server(&mut self, from: usize, frame: &[u8]) {
        let Some(sent) = Sent::read(frame) else { return };
        let (kind, named) = (sent.kind(), sent.named());
        self.note_of(from, || format!("DHCP: {kind:?} of {} about {named:?}", sent.source_mac));
        let client = sent.client();
        let Some(service) = self.scenario.leasing().find(|n| client_id(*n, self.generation[*n]) == client) else {
            // Of a Service that was made anew meanwhile: nobody promised anything.
            self.dhcp.server.handle(&sent, self.instant());
            return;
        };
        if kind == MessageType::Release && self.wanted.contains(&service) {
            let seen = format!("{} gives back that of Service {service}", self.nodes[from].name);
            self.broken(LEASE_KEPT, seen);
        }
        if !self.is_heard_outside(0, from) || self.chance(self.scenario.loss) || self.dhcp.silent > 0 {
            return;
        }
        self.judge.changed = true;
        let Some(answer) = self.dhcp.server.handle(&sent, self.instant()) else { return };
        let (said, given) = (answer.kind(), answer.message.yiaddr());
        self.note(|| format!("DHCP server: {said:?} {given}"));
        let slow = self.dhcp.slow > 0;
        let mut refused = None;
        match (said, named) {
            (MessageType::Ack, _) => {
                self.dhcp.refusals.retain(|refusal| (refusal.service, refusal.address) != (service, given));
                self.dhcp.given.insert((service, given), self.now);
                // Some promises depend on the end of the lease, so they are checked again at that time.
                let lease = Duration::from_secs(self.dhcp.server.lease_seconds.into());
                self.schedule(lease, Event::Look);
            }
            // A refusal counts only if it certainly arrives, and before the client has sent another request.
            (MessageType::Nak, Some(address)) if !(slow || self.stormy() && self.scenario.loss > 0.0) => {
                refused = Some(Refusal { node: from, life: self.nodes[from].life, service, address, since: self.now });
            }
            _ => {}
        }
        let (low, high) = if slow { SLOW_US } else { ANSWERS_US };
        let after = self.between(low, high);
        self.schedule(after, Event::FromServer { frame: answer.frame(), refused });
    }

    pub(super) fn server_answers(&mut self, frame: Vec<u8>, refused: Option<Refusal>) {
        let stands = |refusal: &Refusal| {
            let given = self.dhcp.given.get(&(refusal.service, refusal.address));
            self.reaches(0, None, refusal.node) && given.is_none_or(|given| *given < refusal.since)
        };
        if let Some(refusal) = refused.filter(stands) {
            self.dhcp.refusals.push(refusal);
            self.judge.changed = true;
        }
        self.transmit(0, None, frame);
    }

    pub(super) fn instant(&self) -> Instant {
        self.origin + self.now
    }

    /// The server holds a lease of this Service, and what a successor needs of it stands there.
    pub(super) fn lease_stands(&self, service: usize) -> bool {
        let held = self.dhcp.server.holds(&client_id(service, self.generation[service]), self.instant());
        let noted = self
            .api
            .noted_lease(&key(service))
            .filter(|facts| facts.expires.is_none_or(|expires| expires > self.api_time()));
        held.is_some() && held == noted.map(|facts| facts.address)
    }

    /// Clients were told a lease of this Service that the server will not renew. The holder learns this at its next
    /// renewal. If the server ignores requests for unknown leases, the holder learns it only when its lease ends.
    pub(super) fn lease_is_due_to_change(&self, service: usize) -> bool {
        let renews = self.dhcp.server.renews(&client_id(service, self.generation[service]), self.instant());
        renews.is_none() || renews != self.api.noted_lease(&key(service)).map(|facts| facts.address)
    }

    /// Node `n` has an address for this Service that the server has never leased to it, or not for so long.
    pub(super) fn is_unleased(&self, n: usize, service: usize) -> bool {
        let node = &self.nodes[n];
        // A lease may last too long if the kernel was paused, or if the process has not noticed a pause.
        let counts = node.deceived_at.is_none() && (node.runs() || node.stood_still.is_zero());
        let client = client_id(service, self.generation[service]);
        let is_over = |address| match address {
            IpAddr::V4(v4) => self.dhcp.server.promised(&client, v4).is_none_or(|until| until <= self.instant()),
            IpAddr::V6(_) => true,
        };
        let standing = node.powered && node.paused == 0 && counts;
        standing && node.kernel.leased(&uid(service, self.generation[service])).any(is_over)
    }

    /// The server has refused it, and it is still there.
    pub(super) fn is_refused(&self, refusal: &Refusal) -> bool {
        let node = &self.nodes[refusal.node];
        let uid = uid(refusal.service, self.generation[refusal.service]);
        node.runs() && node.life == refusal.life && node.kernel.leased(&uid).any(|own| own == refusal.address)
    }
}
