//! Serves health and metrics, and keeps trying where the port is taken.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use runtime::error::chain;
use runtime::health::Health;
use runtime::http::{Access, Handshake, Server, Tls};
use runtime::shutdown::Token;

use crate::config::Listen;

/// A port that is taken is often that of our predecessor, which is just ending.
const BIND_RETRY: Duration = Duration::from_secs(5);

/// kube-vip goes on without its metrics where the port is taken, and so do we; but we keep trying.
pub async fn serve(
    listen: Listen,
    health: Health,
    metrics: runtime::metrics::Metrics,
    stop: Token,
) -> Result<(), std::convert::Infallible> {
    let mut address = listen.address;
    let mut told = false;
    loop {
        let server = Server {
            address,
            tls: Tls::Off,
            client_ca: None,
            handshake: Handshake::default(),
            access: Access::Open,
            health: health.clone(),
            metrics: metrics.clone(),
        };
        match server.bind().await {
            Ok(bound) => {
                tracing::info!(%address, "the announcer serves health and metrics");
                bound.run(stop).await;
                return Ok(());
            }
            // A kernel without IPv6.
            Err(_) if address.is_ipv6() && address.ip().is_unspecified() && !ipv6_works() => {
                address = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port());
                continue;
            }
            Err(error) if !told => {
                told = true;
                tracing::error!(
                    error = %chain(&error),
                    "the announcer cannot serve health and metrics; it tries again every {} s",
                    BIND_RETRY.as_secs()
                );
            }
            Err(_) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(BIND_RETRY) => {}
        }
    }
}

fn ipv6_works() -> bool {
    std::net::UdpSocket::bind("[::1]:0").is_ok()
}
