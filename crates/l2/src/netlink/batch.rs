//! Many changes in one datagram: extending two hundred lifetimes each second costs two system calls instead of four
//! hundred and as many wake-ups.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Maximum of changes in one datagram: if the kernel refuses all of them, its answers must fit into the receive buffer.
const AT_ONCE: usize = 128;

/// A socket for batches. The kernel performs a batch within the system call.
#[derive(Debug, Clone)]
pub(super) struct Batches(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    socket: OwnedFd,
    sequence: u32,
}

impl Batches {
    pub fn open() -> io::Result<Self> {
        // Protocol 0 is rtnetlink.
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        Ok(Self(Arc::new(Mutex::new(State { socket, sequence: 1 }))))
    }

    /// Performs the changes in order. A refused change does not stop the others. The results are in the same order.
    ///
    /// It runs on a thread of its own, because the kernel may wait for other programs that change the network.
    pub async fn perform(&self, changes: Vec<RouteNetlinkMessage>, flags: u16) -> Vec<io::Result<()>> {
        let (state, count) = (Arc::clone(&self.0), changes.len());
        let work =
            tokio::task::spawn_blocking(move || {
                let mut state = state.lock();
                let mut results = Vec::with_capacity(changes.len());
                let mut changes = changes.into_iter().peekable();
                while changes.peek().is_some() {
                    let part: Vec<_> = changes.by_ref().take(AT_ONCE).collect();
                    let count = part.len();
                    match state.exchange(part, flags) {
                        Ok(refused) => results.extend((0..count).map(|at| {
                            refused.get(&at).map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(*errno)))
                        })),
                        Err(error) => results.extend((0..count).map(|_| Err(again(&error)))),
                    }
                }
                results
            });
        work.await.unwrap_or_else(|panic| (0..count).map(|_| Err(io::Error::other(panic.to_string()))).collect())
    }
}

impl State {
    /// Performs one datagram. Returns the refused changes by position, with the errno.
    fn exchange(&mut self, part: Vec<RouteNetlinkMessage>, flags: u16) -> io::Result<BTreeMap<usize, i32>> {
        let first = self.sequence;
        let count = u32::try_from(part.len()).map_err(io::Error::other)?;
        self.sequence = first.wrapping_add(count);
        let last = self.sequence.wrapping_sub(1);
        let mut bytes = Vec::new();
        for (sequence, change) in (0..count).map(|at| first.wrapping_add(at)).zip(part) {
            let mut message = NetlinkMessage::from(change);
            // Refusals are always reported. The acknowledgement of the last change shows that the kernel has processed
            // all.
            message.header.flags = NLM_F_REQUEST | flags | if sequence == last { NLM_F_ACK } else { 0 };
            message.header.sequence_number = sequence;
            message.finalize();
            let begin = bytes.len();
            bytes.resize(begin + message.buffer_len().next_multiple_of(4), 0);
            message.serialize(&mut bytes[begin..]);
        }
        let mut buffer = vec![0; 1 << 15];
        // Answers that an earlier exchange has not read are dropped.
        while rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT).is_ok() {}
        rustix::net::send(&self.socket, &bytes, SendFlags::empty())?;
        let mut refused = BTreeMap::new();
        loop {
            // All answers are available when the system call has returned, so this does not wait.
            let (length, _) = rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT)?;
            let mut rest = &buffer[..length];
            while let Ok(answer) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) {
                let sequence = answer.header.sequence_number;
                if let NetlinkPayload::Error(error) = answer.payload {
                    if let Some(code) = error.code {
                        refused.insert(sequence.wrapping_sub(first) as usize, code.get().abs());
                    }
                    if sequence == last {
                        return Ok(refused);
                    }
                }
                let size = (answer.header.length as usize).next_multiple_of(4);
                rest = rest.get(size..).filter(|_| size > 0).unwrap_or_default();
            }
        }
    }
}

/// A copy of the error.
fn again(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error)
}
