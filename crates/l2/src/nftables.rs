//! One nftables table of ours, through netlink: it hides the node's own ports on VIPs, and its macvlans from routers.
//! Needs `CAP_NET_ADMIN`, and no program.

mod message;
mod ruleset;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use message::{Answer, Request};
pub use ruleset::{Port, Protection};
use rustix::net::sockopt::{Timeout, set_socket_send_buffer_size_force, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// A transaction is one datagram. A thousand Services with ten ports each take 300 KiB.
const SEND_BUFFER: usize = 8 << 20;
/// Other transactions, kube-proxy's with thousands of rules among them, come first.
const PATIENCE: Duration = Duration::from_secs(30);

/// The table could not be changed.
#[derive(Debug, thiserror::Error)]
#[error("failed to {tried} the nftables table inet {table}", table = ruleset::TABLE)]
pub struct NftablesError {
    tried: &'static str,
    source: io::Error,
}

/// Our table in the network namespace in which this was opened.
#[derive(Debug, Clone)]
pub struct Nftables(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    socket: OwnedFd,
    sequence: u32,
    /// What the table holds, once we have written it.
    current: Option<Protection>,
}

impl Nftables {
    /// Changes nothing yet.
    pub fn open() -> Result<Self, NftablesError> {
        let open = || {
            let protocol = rustix::net::netlink::NETFILTER;
            let socket = rustix::net::socket_with(
                AddressFamily::NETLINK,
                SocketType::RAW,
                SocketFlags::CLOEXEC,
                Some(protocol),
            )?;
            set_socket_send_buffer_size_force(&socket, SEND_BUFFER)?;
            set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
            Ok::<_, rustix::io::Errno>(socket)
        };
        let socket = open().map_err(|errno| NftablesError { tried: "open", source: errno.into() })?;
        Ok(Self(Arc::new(Mutex::new(State { socket, sequence: 1, current: None }))))
    }

    /// Makes the table hold this, in one transaction: there is no moment in which what was protected and still is, is
    /// not. The first call replaces what a former process left; later ones send differences, nothing if there are none
    /// and the table is still there. Nothing to protect: no table.
    ///
    /// The kernel works inside the call, and waits for others that change its tables: it runs on a thread of its own.
    pub async fn protect(&self, wanted: Protection) -> Result<(), NftablesError> {
        let state = Arc::clone(&self.0);
        let work =
            tokio::task::spawn_blocking(move || state.lock().unwrap_or_else(PoisonError::into_inner).protect(wanted));
        work.await.unwrap_or_else(|panic| Err(NftablesError { tried: "change", source: io::Error::other(panic) }))
    }
}

impl State {
    fn protect(&mut self, wanted: Protection) -> Result<(), NftablesError> {
        if let Some(current) = self.current.take() {
            let requests = ruleset::change(&current, &wanted);
            // Somebody may have flushed all tables. What is gone is made anew, whole.
            let result = if wanted.is_empty() && current.is_empty() {
                Ok(())
            } else if wanted.is_empty() || current.is_empty() {
                self.perform(&ruleset::replace(&wanted))
            } else if requests.is_empty() {
                self.look_up()
            } else {
                self.perform(&requests)
            };
            if result.is_ok() {
                self.current = Some(wanted);
                return Ok(());
            }
        }
        self.perform(&ruleset::replace(&wanted)).map_err(|source| NftablesError { tried: "write", source })?;
        self.current = Some(wanted);
        Ok(())
    }

    fn perform(&mut self, requests: &[Request]) -> io::Result<()> {
        let (bytes, last) = message::batch(requests, self.sequence);
        self.sequence = last.wrapping_add(2);
        self.exchange(&bytes, last)
    }

    fn look_up(&mut self) -> io::Result<()> {
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1);
        self.exchange(&ruleset::look_up().alone(sequence), sequence)
    }

    /// Sends, and reads until the request with the number `last` is answered or one before it has failed.
    fn exchange(&mut self, bytes: &[u8], last: u32) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 16];
        // What an earlier exchange did not wait for.
        while rustix::net::recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT).is_ok() {}
        let first = last.saturating_sub(1 << 16);
        rustix::net::send(&self.socket, bytes, SendFlags::empty())?;
        loop {
            let (length, _) = rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::empty())?;
            for answer in message::answers(&buffer[..length]) {
                match answer {
                    Answer::Acknowledged(sequence, Err(errno)) if (first..=last).contains(&sequence) => {
                        return Err(io::Error::from_raw_os_error(errno));
                    }
                    Answer::Acknowledged(sequence, Ok(())) | Answer::Object(sequence) if sequence == last => {
                        return Ok(());
                    }
                    _ => {}
                }
            }
        }
    }
}
