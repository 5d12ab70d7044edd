//! The API servers behind the Service `kubernetes`. When one of them is lost, kube-proxy leads a part of all new
//! connections to it until its lease has expired. For a minute after a loss the client therefore connects to the other
//! servers itself. At all other times it uses the Service's address, which knows best who serves and spreads clients.
//!
//! With one API server, or without the right to list EndpointSlices, the client uses only the Service's address.

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
/// A list counts from this time after the start. In a cluster that was restored elsewhere, the list names the servers
/// of the original until the leases of these have expired (15 s) and the next comparison (10 s).
const SETTLED: Duration = Duration::from_secs(30);
/// For this time after a loss connections are opened directly. By then kube-proxy knows of the loss.
const DIRECT: Duration = Duration::from_mins(1);
/// Limit of the servers that are tried for one connection.
const MOST_TRIED: usize = 2;

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
    /// The list is not from the time right after the start.
    settled: bool,
    /// A server was lost; until then connections are opened directly.
    direct_until: Option<Instant>,
    /// The server that could not be reached last, and until when it counts as lost.
    unreachable: Option<(SocketAddr, Instant)>,
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
    fn candidates(&self) -> Vec<SocketAddr> {
        if self.known.len() < 2 || !self.settled {
            return Vec::new();
        }
        let (before, after) = self.known.split_at(self.current);
        [after, before].concat()
    }

    /// `dice` chooses the next one, so that clients do not all move to the same server.
    fn failed(&mut self, server: SocketAddr, dice: usize) {
        if self.known.get(self.current) == Some(&server) {
            let others = self.known.len().saturating_sub(1).max(1);
            self.current = (self.current + 1 + dice % others) % self.known.len();
        }
    }

    fn serves(&mut self, server: SocketAddr) {
        if let Some(index) = self.known.iter().position(|known| *known == server) {
            self.current = index;
        }
        self.unreachable = self.unreachable.filter(|(lost, _)| *lost != server);
    }

    /// The servers in turn, the preferred one last, and after it one that is lost.
    fn others(&self, now: Instant) -> Vec<SocketAddr> {
        let lost = self.unreachable.filter(|(_, until)| now < *until).map(|(server, _)| server);
        let in_turn = self.known.iter().cycle().skip(self.current + 1).take(self.known.len());
        let (mut others, lost): (Vec<_>, Vec<_>) = in_turn.copied().partition(|server| Some(*server) != lost);
        others.extend(lost);
        others
    }
}

impl Servers {
    /// The servers to try, the preferred one first; empty if there is no choice.
    pub(super) fn candidates(&self) -> Vec<SocketAddr> {
        let mut candidates = self.inner.order.lock().candidates();
        candidates.truncate(MOST_TRIED);
        candidates
    }

    /// Whether a server was lost a moment ago.
    pub(super) fn is_direct(&self) -> bool {
        self.inner.order.lock().direct_until.is_some_and(|until| Instant::now() < until)
    }

    /// A server fell silent, or the usual address leads to one that does not answer.
    pub(super) fn lost(&self) {
        self.inner.order.lock().direct_until = Some(Instant::now() + DIRECT);
        self.inner.wanted.notify_one();
    }

    /// This server could not be reached. Another one is preferred.
    pub(super) fn failed(&self, server: SocketAddr) {
        let mut order = self.inner.order.lock();
        order.failed(server, dice());
        order.unreachable = Some((server, Instant::now() + DIRECT));
        drop(order);
        self.inner.wanted.notify_one();
    }

    /// A connection to this server was opened.
    pub(super) fn serves(&self, server: SocketAddr) {
        self.inner.order.lock().serves(server);
    }

    /// A connection to the usual address was opened.
    pub(super) fn opened(&self) {
        if self.inner.listed.lock().is_some_and(|listed| listed.elapsed() > OLD) {
            self.inner.wanted.notify_one();
        }
    }

    /// Another server than the preferred one; `number` goes through them in turn. One that was lost a moment ago is the
    /// last of them: of two, the preferred one comes first then.
    pub fn other(&self, number: usize) -> Option<SocketAddr> {
        let others = self.inner.order.lock().others(Instant::now());
        others.get(number % others.len().max(1)).copied()
    }

    /// The servers; the receiver sees every change.
    pub fn list(&self) -> watch::Receiver<Vec<SocketAddr>> {
        self.inner.told.subscribe()
    }

    pub(super) fn learn(&self, found: Vec<SocketAddr>, settled: bool) {
        *self.inner.listed.lock() = Some(Instant::now());
        let mut order = self.inner.order.lock();
        order.learn(found.clone(), dice());
        order.settled = settled;
        drop(order);
        self.inner.told.send_if_modified(|told| {
            let changes = *told != found;
            *told = found;
            changes
        });
    }

    /// Keeps the list current: reads it after the start, after a server was lost, and at this interval, if one is
    /// given.
    pub async fn follow(self, client: Client, every: Option<Duration>) {
        let begun = Instant::now();
        if every.is_none() {
            sleep(SETTLED).await;
        }
        let slices: Api<EndpointSlice> = Api::namespaced(client, "default");
        let of_kubernetes = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
        let (mut pause, mut refusals) = (SOON, 0);
        loop {
            let next = match slices.list(&of_kubernetes).await {
                Ok(list) => {
                    (pause, refusals) = (SOON, 0);
                    self.learn(list.items.iter().flat_map(addresses).collect(), begun.elapsed() >= SETTLED);
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
                    // The failure itself makes the list wanted; the pause holds all the same.
                    sleep(pause).await;
                    pause = (pause * 2).min(AGAIN);
                    continue;
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

fn dice() -> usize {
    rand::random_range(0..usize::from(u16::MAX))
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
    fn the_one_that_serves_stays_and_one_that_fails_is_left_for_another() {
        let mut order = Order { settled: true, ..Order::default() };
        order.learn(vec![server(1)], 7);
        assert!(order.candidates().is_empty(), "one alone is no choice");
        order.learn(vec![server(1), server(2), server(3)], 7);
        assert_eq!(order.candidates(), [server(1), server(2), server(3)], "the one that was known stays");
        order.failed(server(1), 0);
        order.failed(server(1), 0);
        assert_eq!(order.candidates(), [server(2), server(3), server(1)], "requests that fail together move it once");
        order.failed(server(2), 1);
        assert_eq!(order.candidates()[0], server(1), "as the dice say");
        order.serves(server(3));
        assert_eq!(order.candidates(), [server(3), server(1), server(2)]);
        order.learn(vec![server(2), server(3)], 7);
        assert_eq!(order.candidates(), [server(3), server(2)]);
        order.learn(vec![server(4), server(5)], 7);
        assert_eq!(order.candidates(), [server(5), server(4)], "as the dice say");
        order.settled = false;
        assert!(order.candidates().is_empty(), "the list may be that of the cluster from which this one was restored");
        order.learn(Vec::new(), 7);
        order.failed(server(5), 7);
        assert!(order.candidates().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_loss_servers_are_used_directly_for_a_minute() {
        let servers = Servers::default();
        servers.learn(vec![server(1), server(2), server(3)], true);
        assert!(!servers.is_direct());
        servers.lost();
        assert!(servers.is_direct());
        assert_eq!(servers.candidates().len(), MOST_TRIED);
        sleep(DIRECT).await;
        assert!(!servers.is_direct(), "the usual address knows of the loss");
    }

    #[test]
    fn another_connection_goes_to_another_server() {
        let servers = Servers::default();
        assert_eq!(servers.other(0), None);
        servers.learn(vec![server(1), server(2), server(3)], true);
        let preferred = servers.candidates()[0];
        assert!(servers.other(0) != Some(preferred) && servers.other(1) != Some(preferred));
        assert_eq!(servers.other(2), Some(preferred));
    }

    #[tokio::test(start_paused = true)]
    async fn another_connection_goes_to_a_server_that_was_lost_a_moment_ago_only_after_all_others() {
        for all in [2, 3] {
            let servers = Servers::default();
            servers.learn((1..=all).map(server).collect(), true);
            let lost = servers.candidates()[0];
            servers.failed(lost);
            let place = || (0..usize::from(all)).position(|number| servers.other(number) == Some(lost)).unwrap();
            assert_eq!(place(), usize::from(all) - 1, "{all} servers");
            // It may be back, at the latest when the usual address would lead to it again.
            sleep(DIRECT).await;
            assert!(place() < usize::from(all) - 1, "{all} servers, later: {}", place());
        }
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
        let before = servers.candidates();
        assert_eq!(before.len(), 2);
        servers.failed(before[0]);
        sleep(Duration::from_secs(2)).await;
        assert_eq!((*asked.lock(), servers.candidates()[0]), (2, before[1]));
        servers.opened();
        sleep(Duration::from_secs(2)).await;
        assert_eq!(*asked.lock(), 2, "the list is new");
        sleep(OLD).await;
        servers.opened();
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
        assert_eq!((*asked.lock(), servers.candidates()), (2, Vec::new()));
        following.abort();
    }
}
