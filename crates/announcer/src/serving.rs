//! Serves health and metrics, and retries while the port is in use.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use announcer_core::config::Listen;
use runtime::error::chain;
use runtime::health::Health;
use runtime::http::{Access, Handshake, Server, Tls};
use runtime::shutdown::Token;

/// Pause between two attempts. The port is often still in use by the previous process, which is ending.
const BIND_RETRY: Duration = Duration::from_secs(5);

/// Serves until `stop`. Like kube-vip, the announcer runs without its metrics if the port is in use, but it keeps
/// trying.
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
            // The kernel has no IPv6.
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
