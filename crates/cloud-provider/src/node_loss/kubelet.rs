//! Whether the kubelet of a node lives, seen from here: somebody accepts a connection at its port.
//!
//! A kubelet that lives puts a pod's status right only when it compares all of them, each 10 s. So it is asked before:
//! whoever is marked and accepts connections was not lost.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::net::TcpStream;

use crate::view::{NodeAddressKind, NodeView};

/// Where kubelets listen.
const PORT: u16 = 10250;
/// A machine that lives answers in far less.
const LIMIT: Duration = Duration::from_millis(200);

/// Asks at an address.
pub type Ask = fn(SocketAddr) -> BoxFuture<'static, bool>;

/// Not one that refuses: a kernel does that which has just started, and its containers have not.
pub fn accepts(address: SocketAddr) -> BoxFuture<'static, bool> {
    async move { matches!(tokio::time::timeout(LIMIT, TcpStream::connect(address)).await, Ok(Ok(_))) }.boxed()
}

/// Where it listens, as far as the Node says.
pub fn address(node: &NodeView) -> Option<SocketAddr> {
    let internal = node.addresses.iter().find(|address| address.kind == NodeAddressKind::InternalIp)?;
    Some(SocketAddr::new(internal.address.parse::<IpAddr>().ok()?, PORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_that_refuses_is_not_there_yet() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        assert!(accepts(address).await);
        drop(listener);
        assert!(!accepts(address).await);
    }
}
