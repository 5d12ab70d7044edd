//! One nftables table, kept through netlink as its owner wants it. It needs `CAP_NET_ADMIN`, but no other program.
//!
//! The owner defines the table: [`Table`] holds its content, [`Expression`] a step of a rule.

mod expression;
mod message;
mod table;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

pub use expression::{Expression, Header, Meta, Verdict};
use message::{KernelReply, Request};
use rustix::net::sockopt::{Timeout, set_socket_send_buffer_size_force, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
pub use table::{Chain, Part, Set, Table, Value};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// A transaction is one datagram, and a thousand Services with ten ports each take 300 KiB.
const SEND_BUFFER: usize = 8 << 20;
/// Limit of the wait for a transaction. Transactions of other programs, such as kube-proxy's with thousands of rules,
/// may come first.
const PATIENCE: Duration = Duration::from_secs(30);

/// The table could not be changed and keeps its content, because a transaction is done completely or not at all.
#[derive(Debug, thiserror::Error)]
#[error("failed to {tried} the nftables table inet {table}")]
pub struct NftablesError {
    tried: &'static str,
    table: &'static str,
    source: io::Error,
}

/// One table in the network namespace in which it was opened.
#[derive(Debug, Clone)]
pub struct Nftables {
    table: &'static str,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    name: &'static str,
    socket: OwnedFd,
    sequence: u32,
    known: Known,
}

/// The content that was written last.
#[derive(Debug, Default)]
enum Known {
    /// Nothing was written yet, or the last write failed.
    #[default]
    Nothing,
    Absent,
    Holds(Table),
}

impl Nftables {
    /// Opens the table `inet` of this name, which no other program may use. It changes nothing yet. It fails on a
    /// kernel without nftables.
    pub fn open(table: &'static str) -> Result<Self, NftablesError> {
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
        let socket = open().map_err(|errno| NftablesError { tried: "open", table, source: errno.into() })?;
        let state = State { name: table, socket, sequence: 1, known: Known::Nothing };
        Ok(Self { table, state: Arc::new(Mutex::new(state)) })
    }

    /// Makes the table hold `wanted` in one transaction, so that content which stays is never missing. The first call
    /// replaces what an earlier process left. Later calls send the differences; they send nothing if there are none and
    /// the table still has as many rules and elements as it was given. `None`: no table.
    ///
    /// The kernel works within the system call and waits for other programs that change its tables; a time-out of the
    /// socket does not end that. So it runs on a thread of its own, and the caller waits for half a minute at most. A
    /// longer transaction goes on, and the next call waits for it too. After an error the next call writes everything.
    pub async fn keep(&self, wanted: Option<Table>) -> Result<(), NftablesError> {
        let state = Arc::clone(&self.state);
        let work = async {
            let mut state = state.lock_owned().await;
            let work = tokio::task::spawn_blocking(move || state.keep(wanted));
            work.await.unwrap_or_else(|lost| Err(io::Error::other(lost)))
        };
        let late =
            || io::Error::new(io::ErrorKind::TimedOut, "the kernel is still busy with other changes of its tables");
        let result = timeout(PATIENCE, work).await.unwrap_or_else(|_| Err(late()));
        result.map_err(|source| NftablesError { tried: "write", table: self.table, source })
    }
}

impl State {
    fn keep(&mut self, wanted: Option<Table>) -> io::Result<()> {
        let known = match (std::mem::take(&mut self.known), &wanted) {
            (Known::Absent, None) => true,
            (Known::Holds(current), Some(wanted)) => match table::change(self.name, &current, wanted) {
                Some(requests) if requests.is_empty() => self.still_holds(wanted).unwrap_or(false),
                Some(requests) => self.perform(&requests).is_ok(),
                None => false,
            },
            (Known::Nothing, _) | (Known::Absent, Some(_)) | (Known::Holds(_), None) => false,
        };
        if !known {
            // This also follows a failure: another program may have flushed all tables or a part of ours. The table is
            // written again completely.
            self.perform(&table::replace(self.name, wanted.as_ref()))?;
        }
        self.known = wanted.map_or(Known::Absent, Known::Holds);
        Ok(())
    }

    fn perform(&mut self, requests: &[Request]) -> io::Result<()> {
        let (bytes, last) = message::batch(requests, self.sequence);
        self.sequence = last.wrapping_add(2);
        self.exchange(&bytes, last).map(drop)
    }

    fn still_holds(&mut self, held: &Table) -> io::Result<bool> {
        for (request, expected) in table::look_up(self.name, held) {
            let sequence = self.sequence;
            self.sequence = sequence.wrapping_add(1);
            if self.exchange(&request.alone(sequence), sequence)? != expected {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends requests, and reads until the request `last` is answered or an earlier one has failed. Returns the number
    /// of objects in the answers.
    fn exchange(&mut self, bytes: &[u8], last: u32) -> io::Result<usize> {
        let mut buffer = vec![0; 1 << 16];
        // Answers that an earlier exchange has not read are dropped.
        while rustix::net::recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT).is_ok() {}
        let first = last.saturating_sub(1 << 16);
        rustix::net::send(&self.socket, bytes, SendFlags::empty())?;
        let mut objects = 0;
        loop {
            let (length, _) = rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::empty())?;
            for answer in message::answers(&buffer[..length]) {
                match answer {
                    KernelReply::Acknowledged(sequence, Err(errno)) if (first..=last).contains(&sequence) => {
                        return Err(io::Error::from_raw_os_error(errno));
                    }
                    KernelReply::Objects(sequence, count) if sequence == last => objects += count,
                    KernelReply::Acknowledged(sequence, Ok(())) | KernelReply::Done(sequence) if sequence == last => {
                        return Ok(objects);
                    }
                    _ => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_transaction_that_never_ends_is_waited_for_only_so_long() {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None).unwrap();
        let state = State { name: "test", socket, sequence: 1, known: Known::Nothing };
        let nftables = Nftables { table: "test", state: Arc::new(Mutex::new(state)) };
        // As a thread that waits inside the kernel holds it.
        let held = Arc::clone(&nftables.state).lock_owned().await;
        let begun = tokio::time::Instant::now();
        for _ in 0..2 {
            let error = nftables.keep(None).await.unwrap_err();
            assert_eq!(error.source.kind(), io::ErrorKind::TimedOut);
        }
        assert_eq!(begun.elapsed(), PATIENCE * 2);
        drop(held);
        let error = timeout(PATIENCE / 2, nftables.keep(None)).await.expect("it goes on").unwrap_err();
        assert_ne!(error.source.kind(), io::ErrorKind::TimedOut, "this socket leads nowhere, but it was asked");
    }
}
