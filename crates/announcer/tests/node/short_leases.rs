//! A DHCP server for what dnsmasq does not do: leases of seconds, another address in the middle of one, silence without
//! being away.

use parking_lot::Mutex;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::bench::Bench;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const ACK: u8 = 5;

/// In seconds from the beginning of a lease. Between T2 and the end there has to be room for a machine that stands
/// still.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub t1: u32,
    pub t2: u32,
    pub lease: u32,
}

/// Gives one address to whoever asks.
pub struct ShortLeases {
    address: Arc<AtomicU32>,
    messages: Arc<Mutex<Vec<u8>>>,
    silent: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ShortLeases {
    /// Answers at the other end of the cable with such leases.
    pub fn serve(bench: &Bench, address: Ipv4Addr, times: Times) -> Self {
        let mut server = Self {
            address: Arc::new(AtomicU32::new(address.into())),
            messages: Arc::default(),
            silent: Arc::default(),
            stop: Arc::default(),
            thread: None,
        };
        let given = Arc::clone(&server.address);
        let messages = Arc::clone(&server.messages);
        let silent = Arc::clone(&server.silent);
        let stop = Arc::clone(&server.stop);
        let socket = bench.on_the_other_end(|| {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 67)).expect("port 67");
            socket.set_broadcast(true).expect("broadcast");
            socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
            socket
        });
        server.thread = Some(std::thread::spawn(move || {
            let mut buffer = [0; 1500];
            while !stop.load(Ordering::Relaxed) {
                let Ok((length, _)) = socket.recv_from(&mut buffer) else { continue };
                let request = &buffer[..length];
                let Some(kind) = option(request, 53).map(|value| value[0]) else { continue };
                messages.lock().push(kind);
                let reply = match kind {
                    DISCOVER => OFFER,
                    REQUEST => ACK,
                    _ => continue,
                };
                if silent.load(Ordering::Relaxed) {
                    continue;
                }
                let reply = answer(request, reply, given.load(Ordering::Relaxed).into(), times);
                let client = Ipv4Addr::new(request[12], request[13], request[14], request[15]);
                // To the subnet's broadcast address where the client has none yet: that has a route.
                let to = if client.is_unspecified() { Ipv4Addr::new(10, 77, 0, 255) } else { client };
                let _ = socket.send_to(&reply, (to, 68));
            }
        }));
        server
    }

    /// From now on.
    pub fn give(&self, address: Ipv4Addr) {
        self.address.store(address.into(), Ordering::Relaxed);
    }

    /// Hears and says nothing, or speaks again.
    pub fn be_silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }

    /// How often it was asked for a new lease, and how often to grant or to extend one.
    pub fn asked(&self) -> (usize, usize) {
        let messages = self.messages.lock();
        let count = |kind: u8| messages.iter().copied().filter(|message| *message == kind).count();
        (count(DISCOVER), count(REQUEST))
    }
}

impl Drop for ShortLeases {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn option(message: &[u8], wanted: u8) -> Option<&[u8]> {
    let mut rest = message.get(240..)?;
    while let [code, length, tail @ ..] = rest {
        let value = tail.get(..usize::from(*length))?;
        if *code == wanted {
            return Some(value);
        }
        rest = &tail[usize::from(*length)..];
    }
    None
}

fn answer(request: &[u8], kind: u8, address: Ipv4Addr, times: Times) -> Vec<u8> {
    let mut reply = request[..240].to_vec();
    reply[0] = 2;
    reply[16..20].copy_from_slice(&address.octets());
    let [lease, t1, t2] = [times.lease, times.t1, times.t2].map(u32::to_be_bytes);
    for (code, value) in
        [(53, &[kind][..]), (54, &SERVER.octets()), (51, &lease), (58, &t1), (59, &t2), (1, &[255, 255, 255, 0])]
    {
        reply.extend([code, u8::try_from(value.len()).expect("short")]);
        reply.extend(value);
    }
    reply.push(255);
    reply.resize(300, 0);
    reply
}
