//! Checks whether the kubelet of a node is alive: whether its port accepts a TCP connection from here.
//!
//! A live kubelet corrects a pod's status only when it compares all pods, every 10 s. The connection detects it sooner:
//! a marked node that accepts connections was not lost.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::net::TcpStream;

use crate::view::{NodeAddressKind, NodeView};

/// The port of kubelets.
const PORT: u16 = 10250;
/// Time-out; a live machine answers in far less.
const LIMIT: Duration = Duration::from_millis(200);

/// A function that checks an address.
pub type ReachCheck = fn(SocketAddr) -> BoxFuture<'static, bool>;

/// Whether a connection is accepted. A refused connection does not count: a kernel that has just booted refuses too,
/// although its containers do not run yet.
pub fn accepts(address: SocketAddr) -> BoxFuture<'static, bool> {
    async move { matches!(tokio::time::timeout(LIMIT, TcpStream::connect(address)).await, Ok(Ok(_))) }.boxed()
}

/// The address of the kubelet, from the Node's InternalIP.
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
