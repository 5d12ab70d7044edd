//! A server with a pool and a record of its leases, and the faults that it can have besides silence.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use dhcp_client::Mac;
use dhcproto::v4::MessageType;

use crate::message::{ClientId, SERVER, Sent, ServerMessage, server_mac};

/// A DHCP server.
#[derive(Debug)]
pub struct Server {
    /// Option 54.
    pub id: Ipv4Addr,
    /// From where it answers.
    pub mac: Mac,
    /// What it can give.
    pub pool: Vec<Ipv4Addr>,
    /// For how long.
    pub lease_seconds: u32,
    /// Whether it refuses what it does not know instead of staying silent (dnsmasq's `dhcp-authoritative`).
    pub authoritative: bool,
    /// It refuses whatever is asked of it.
    pub refuses: bool,
    /// Given to others, or declined.
    pub taken: Vec<Ipv4Addr>,
    /// Its book.
    leases: BTreeMap<ClientId, (Ipv4Addr, Instant)>,
    /// Until when each address was ever promised to each client, whatever it forgot since.
    promised: BTreeMap<(ClientId, Ipv4Addr), Instant>,
}

impl Server {
    /// One that has given nothing yet.
    pub fn new(pool: Vec<Ipv4Addr>, lease_seconds: u32, authoritative: bool) -> Self {
        Self {
            id: SERVER,
            mac: server_mac(),
            pool,
            lease_seconds,
            authoritative,
            refuses: false,
            taken: Vec::new(),
            leases: BTreeMap::new(),
            promised: BTreeMap::new(),
        }
    }

    /// What its book says that this client has at `now`.
    pub fn holds(&self, client: &[u8], now: Instant) -> Option<Ipv4Addr> {
        self.leases.get(client).filter(|(_, until)| *until > now).map(|(address, _)| *address)
    }

    /// What this client has and would be granted again at `now`.
    pub fn renews(&self, client: &[u8], now: Instant) -> Option<Ipv4Addr> {
        self.holds(client, now).filter(|address| !self.refuses && self.is_free(*address, client, now))
    }

    /// Until when this client may use this address, by all that it was ever told; refused or not.
    pub fn promised(&self, client: &[u8], address: Ipv4Addr) -> Option<Instant> {
        self.promised.get(&(client.to_vec(), address)).copied()
    }

    /// It starts anew and has lost its book.
    pub fn forget(&mut self) {
        self.leases.clear();
    }

    /// Everything that it has given is somebody else's from now on.
    pub fn give_away(&mut self) {
        self.taken.extend(self.leases.values().map(|(address, _)| *address));
    }

    /// What it makes of a message.
    pub fn handle(&mut self, sent: &Sent, now: Instant) -> Option<ServerMessage> {
        if ![self.id, Ipv4Addr::BROADCAST].contains(&sent.destination) {
            return None;
        }
        let client = sent.client();
        match (sent.kind(), sent.named()) {
            (MessageType::Discover, wish) => {
                let known = self.leases.get(&client).map(|(address, _)| *address);
                let mut choice = [known, wish].into_iter().flatten().chain(self.pool.iter().copied());
                let address = choice.find(|address| self.is_free(*address, &client, now))?;
                Some(self.sign(ServerMessage::offer(sent)).address(address).lease(self.lease_seconds))
            }
            (MessageType::Request, Some(address)) => {
                let free = !self.refuses && self.is_free(address, &client, now);
                let grants = match sent.server_id() {
                    Some(server) if server == self.id => free,
                    None if self.holds(&client, now) == Some(address) => free,
                    None if self.authoritative || self.leases.contains_key(&client) => false,
                    // It has chosen another server, or is another server's.
                    Some(_) | None => return None,
                };
                Some(if grants { self.grant(sent, address, now) } else { self.refuse(sent, address) })
            }
            (MessageType::Decline, Some(address)) => {
                self.leases.remove(&client);
                self.taken.push(address);
                None
            }
            (MessageType::Release, _) => {
                self.leases.remove(&client);
                None
            }
            _ => None,
        }
    }

    fn is_free(&self, address: Ipv4Addr, client: &[u8], now: Instant) -> bool {
        let others = || self.leases.iter().filter(|(other, (_, until))| *other != client && *until > now);
        self.pool.contains(&address)
            && !self.taken.contains(&address)
            && others().all(|(_, (leased, _))| *leased != address)
    }

    fn grant(&mut self, sent: &Sent, address: Ipv4Addr, now: Instant) -> ServerMessage {
        let until = now + Duration::from_secs(self.lease_seconds.into());
        let client = sent.client();
        self.leases.insert(client.clone(), (address, until));
        // A shorter lease does not take back the longer one: the ACK that says so may get lost.
        let promised = self.promised.entry((client, address)).or_insert(until);
        *promised = until.max(*promised);
        self.sign(ServerMessage::ack(sent)).address(address).lease(self.lease_seconds)
    }

    fn refuse(&mut self, sent: &Sent, address: Ipv4Addr) -> ServerMessage {
        let client = sent.client();
        if self.leases.get(&client).is_some_and(|(leased, _)| *leased == address) {
            self.leases.remove(&client);
        }
        // A NAK is sent by broadcast, because the client must not use its address any more (RFC 2131 4.3.2).
        ServerMessage { destination_mac: Mac::BROADCAST, ..self.sign(ServerMessage::nak(sent)) }
    }

    fn sign(&self, answer: ServerMessage) -> ServerMessage {
        ServerMessage { source_mac: self.mac, ..answer.server(self.id) }
    }
}
