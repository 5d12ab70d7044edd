//! The API servers behind the Service `kubernetes`, so that a client connects to one of them and goes on to the next
//! when that one is lost. kube-proxy leads a part of all new connections to a lost server until its lease has expired.
//!
//! With one API server, or without the right to list EndpointSlices, the client uses the Service's address.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::error::{api_code, chain};
use crate::refusal::STARTING;

/// Pause before the list is read after a server was lost: the request goes to another one by then.
const SOON: Duration = Duration::from_secs(1);
/// Longest pause after a failure.
const AGAIN: Duration = Duration::from_mins(1);
/// Pause while the right is missing.
const REFUSED: Duration = Duration::from_mins(10);
/// A list of this age is read again when a connection is opened. Nothing is asked while nothing happens.
const OLD: Duration = Duration::from_mins(5);

/// The API servers of the cluster. Clones share one state.
#[derive(Debug, Clone, Default)]
pub struct Servers {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    order: Mutex<Order>,
    listed: Mutex<Option<Instant>>,
    told: watch::Sender<Vec<SocketAddr>>,
    /// The list is wanted.
    wanted: Notify,
}

/// Which server is asked first.
#[derive(Debug, Default)]
struct Order {
    known: Vec<SocketAddr>,
    current: usize,
}

impl Order {
    /// `dice` chooses the first server, so that clients do not all use the same one.
    fn learn(&mut self, found: Vec<SocketAddr>, dice: usize) {
        let before = self.known.get(self.current).copied();
        let kept = found.iter().position(|server| Some(*server) == before);
        self.current = kept.unwrap_or(dice % found.len().max(1));
        self.known = found;
    }

    /// The servers in the order in which they are tried. One alone is no choice.
    fn ways(&self) -> Vec<SocketAddr> {
        if self.known.len() < 2 {
            return Vec::new();
        }
        let (before, after) = self.known.split_at(self.current);
        [after, before].concat()
    }

    fn failed(&mut self, server: SocketAddr) {
        if self.known.get(self.current) == Some(&server) {
            self.current = (self.current + 1) % self.known.len();
        }
    }

    fn serves(&mut self, server: SocketAddr) {
        if let Some(index) = self.known.iter().position(|known| *known == server) {
            self.current = index;
        }
    }
}

impl Servers {
    /// The servers to try, the preferred one first; empty if there is no choice.
    pub(super) fn ways(&self) -> Vec<SocketAddr> {
        self.inner.order.lock().ways()
    }

    /// This server could not be reached. The next one is preferred.
    pub(super) fn failed(&self, server: SocketAddr) {
        self.inner.order.lock().failed(server);
        self.inner.wanted.notify_one();
    }

    /// A connection to this server was opened.
    pub(super) fn serves(&self, server: SocketAddr) {
        self.inner.order.lock().serves(server);
        if self.inner.listed.lock().is_some_and(|listed| listed.elapsed() > OLD) {
            self.inner.wanted.notify_one();
        }
    }

    /// Another server than the preferred one; `number` goes through them in turn.
    pub fn other(&self, number: usize) -> Option<SocketAddr> {
        let order = self.inner.order.lock();
        let all = order.known.len();
        order.known.get((order.current + 1 + number) % all.max(1)).copied()
    }

    /// The servers; the receiver sees every change.
    pub fn list(&self) -> watch::Receiver<Vec<SocketAddr>> {
        self.inner.told.subscribe()
    }

    pub(super) fn learn(&self, found: Vec<SocketAddr>) {
        *self.inner.listed.lock() = Some(Instant::now());
        self.inner.order.lock().learn(found.clone(), rand::random_range(0..usize::from(u16::MAX)));
        self.inner.told.send_if_modified(|told| {
            let changes = *told != found;
            *told = found;
            changes
        });
    }

    /// Keeps the list current: reads it at the start, after a server was lost, and at this interval, if one is given.
    pub async fn follow(self, client: Client, every: Option<Duration>) {
        let slices: Api<EndpointSlice> = Api::namespaced(client, "default");
        let of_kubernetes = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
        let (mut pause, mut refusals) = (SOON, 0);
        loop {
            let next = match slices.list(&of_kubernetes).await {
                Ok(list) => {
                    (pause, refusals) = (SOON, 0);
                    self.learn(list.items.iter().flat_map(addresses).collect());
                    every
                }
                Err(error) if api_code(&error) == Some(403) => {
                    refusals += 1;
                    if refusals == 2 {
                        tracing::info!(
                            "the process has no right to list EndpointSlices in namespace default; it uses only the \
                            usual address of the API server"
                        );
                    }
                    // A server that has just started refuses what is allowed.
                    Some(if refusals == 1 { STARTING } else { every.unwrap_or(REFUSED) })
                }
                Err(error) => {
                    tracing::debug!(error = %chain(&error), "the process cannot list the API servers");
                    pause = (pause * 2).min(AGAIN);
                    Some(pause)
                }
            };
            let wanted = self.inner.wanted.notified();
            let is_wanted = if let Some(pause) = next {
                timeout(pause, wanted).await.is_ok()
            } else {
                wanted.await;
                true
            };
            if is_wanted {
                sleep(SOON).await;
            }
        }
    }
}

/// Address and port of each API server.
fn addresses(slice: &EndpointSlice) -> Vec<SocketAddr> {
    let port = slice.ports.iter().flatten().find_map(|port| port.port).and_then(|port| u16::try_from(port).ok());
    let hosts = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
    hosts.filter_map(|host| Some(SocketAddr::new(host.parse().ok()?, port.unwrap_or(443)))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::scenario::Scenario;

    fn server(number: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, number], 6443))
    }

    #[test]
    fn the_one_that_serves_stays_and_one_that_fails_is_left_for_the_next() {
        let mut order = Order::default();
        order.learn(vec![server(1)], 7);
        assert!(order.ways().is_empty(), "one alone is no choice");
        order.learn(vec![server(1), server(2), server(3)], 7);
        assert_eq!(order.ways(), [server(1), server(2), server(3)], "the one that was known stays");
        order.failed(server(1));
        order.failed(server(1));
        assert_eq!(order.ways(), [server(2), server(3), server(1)], "requests that fail together move it once");
        order.serves(server(3));
        assert_eq!(order.ways(), [server(3), server(1), server(2)]);
        order.learn(vec![server(2), server(3)], 7);
        assert_eq!(order.ways(), [server(3), server(2)]);
        order.learn(vec![server(4), server(5)], 7);
        assert_eq!(order.ways(), [server(5), server(4)], "as the dice say");
        order.learn(Vec::new(), 7);
        order.failed(server(5));
        assert!(order.ways().is_empty());
    }

    #[test]
    fn another_connection_goes_to_another_server() {
        let servers = Servers::default();
        assert_eq!(servers.other(0), None);
        servers.learn(vec![server(1), server(2), server(3)]);
        let preferred = servers.ways()[0];
        assert!(servers.other(0) != Some(preferred) && servers.other(1) != Some(preferred));
        assert_eq!(servers.other(2), Some(preferred));
    }

    fn slices(hosts: &[&str]) -> serde_json::Value {
        let kind = if hosts.iter().any(|host| host.contains(':')) { "IPv6" } else { "IPv4" };
        let endpoints: Vec<_> = hosts.iter().map(|host| json!({"addresses": [host]})).collect();
        json!({"metadata": {}, "items": [{"metadata": {"name": "kubernetes"}, "addressType": kind,
            "ports": [{"name": "https", "port": 6443}], "endpoints": endpoints}]})
    }

    #[tokio::test(start_paused = true)]
    async fn at_rest_the_list_is_read_once_and_after_a_loss_again() {
        let asked = Arc::new(Mutex::new(0));
        let count = Arc::clone(&asked);
        let scenario = Scenario::answering(move |_| {
            *count.lock() += 1;
            (200, slices(&["fd00::1", "fd00::2"]))
        });
        let servers = Servers::default();
        let following = tokio::spawn(servers.clone().follow(scenario.client(), None));
        sleep(Duration::from_hours(1)).await;
        assert_eq!(*asked.lock(), 1);
        let ways = servers.ways();
        assert_eq!(ways.len(), 2);
        servers.failed(ways[0]);
        sleep(Duration::from_secs(2)).await;
        assert_eq!((*asked.lock(), servers.ways()[0]), (2, ways[1]));
        servers.serves(ways[1]);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(*asked.lock(), 2, "the list is new");
        sleep(OLD).await;
        servers.serves(ways[1]);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(*asked.lock(), 3);
        following.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn without_the_right_the_usual_address_is_used() {
        let asked = Arc::new(Mutex::new(0));
        let count = Arc::clone(&asked);
        let scenario = Scenario::answering(move |_| {
            *count.lock() += 1;
            (403, Scenario::status(403, "Forbidden", "cannot list"))
        });
        let servers = Servers::default();
        let following = tokio::spawn(servers.clone().follow(scenario.client(), None));
        sleep(Duration::from_mins(9)).await;
        assert_eq!((*asked.lock(), servers.ways()), (2, Vec::new()));
        following.abort();
    }
}
