//! A way from 127.0.0.1 of the outer namespace to a server inside another one.
//!
//! A socket belongs for ever to the namespace it was opened in: the listener is opened outside, then handed to a thread
//! inside, whose connections start there.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Context, Result};
use tokio::net::TcpStream;

use crate::net::namespace::{Namespace, Task};

/// Forwards connections until dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    _task: Task,
}

impl Relay {
    /// Listens on a free port of 127.0.0.1 in the namespace of the caller and connects to `target` from inside
    /// `namespace`.
    pub fn start(namespace: &Namespace, target: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("failed to listen on 127.0.0.1")?;
        listener.set_nonblocking(true).context("failed to make a socket non-blocking")?;
        let address = listener.local_addr().context("failed to read the address of a socket")?;
        let task = namespace.task("relay", move || async move {
            let listener = tokio::net::TcpListener::from_std(listener)
                .expect("the socket is non-blocking and the runtime has its driver");
            loop {
                let Ok((mut outer, _)) = listener.accept().await else { continue };
                tokio::spawn(async move {
                    // A server that is down shows as a connection closed at once.
                    if let Ok(mut inner) = TcpStream::connect(target).await {
                        let _ = (outer.set_nodelay(true), inner.set_nodelay(true));
                        let _ = tokio::io::copy_bidirectional(&mut outer, &mut inner).await;
                    }
                });
            }
        })?;
        Ok(Self { address, _task: task })
    }

    /// Where to connect to, outside.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
