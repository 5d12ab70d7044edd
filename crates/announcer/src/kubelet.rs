//! Asks at the kubelet's port whether a node that is silent on the wire is alive; TCP is a protocol independent of ARP
//! and NDP.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

/// Limit for the answer. A live machine in the same LAN answers a SYN much sooner.
const LIMIT: Duration = Duration::from_millis(200);
/// If this process gets processor time this late, it may have missed the answer.
const LATE: Duration = Duration::from_millis(100);

/// Whether the node answers. `true` also if this cannot be told, because only silence counts against a node.
pub async fn answers(address: SocketAddr) -> bool {
    let begin = Instant::now();
    let answer = tokio::time::timeout(LIMIT, TcpStream::connect(address)).await;
    let silent = match answer {
        Err(_) => true,
        // The kernel's error for an address that no host answers for.
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
