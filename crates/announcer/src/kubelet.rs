//! Whether anybody is at the address of a node that is silent on the wire: asked by another protocol, at the kubelet's
//! port.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

/// A machine in the same LAN that lives answers a SYN in far less.
const LIMIT: Duration = Duration::from_millis(200);
/// Who gets processor time so much later has not listened.
const LATE: Duration = Duration::from_millis(100);

/// `true` also where nothing can be told: only silence counts against a node.
pub async fn answers(address: SocketAddr) -> bool {
    let begin = Instant::now();
    let answer = tokio::time::timeout(LIMIT, TcpStream::connect(address)).await;
    let silent = match answer {
        Err(_) => true,
        // What the kernel says of an address that nobody answers for.
        Ok(Err(error)) => matches!(error.kind(), ErrorKind::HostUnreachable | ErrorKind::TimedOut),
        Ok(Ok(_)) => false,
    };
    !silent || begin.elapsed() > LIMIT + LATE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_accepts_or_refuses_is_there() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        assert!(answers(address).await);
        drop(listener);
        assert!(answers(address).await, "a refusal is an answer");
        // An error of ours says nothing about others.
        assert!(answers("255.255.255.255:1".parse().unwrap()).await);
    }
}
