//! The DHCP clients of this node: those that run, and those that are ending.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use l2::Mac;
use tokio::task::{JoinError, JoinSet};

use crate::dhcp_driver::{Order, Orders};
use announcer_core::VipId;

/// Limit at the end of the process for RELEASE messages that are being sent. None needs an answer.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Owns the tasks of all clients until they have ended.
#[derive(Debug, Default)]
pub struct Clients {
    running: BTreeMap<VipId, Orders>,
    tasks: JoinSet<()>,
}

impl Clients {
    /// Starts a client. An earlier client of the same VIP ends and keeps its lease.
    pub fn start(&mut self, id: VipId, orders: Orders, task: impl Future<Output = ()> + Send + 'static) {
        while let Some(ended) = self.tasks.try_join_next() {
            report(ended);
        }
        self.tasks.spawn(task);
        self.running.insert(id, orders);
    }

    /// Ends a client, and releases its lease or keeps it. The task is awaited at the end of the process.
    pub fn stop(&mut self, id: &VipId, release: bool) {
        if let Some(orders) = self.running.remove(id) {
            // A client that has ended with an error does not receive it.
            let _ = orders.send(Order::Stop { release });
        }
    }

    /// Tells a client that its interface is down or up again.
    pub fn link(&self, id: &VipId, up: bool) {
        if let Some(orders) = self.running.get(id) {
            let _ = orders.send(Order::Link { up });
        }
    }

    /// Tells a client that another host uses the address that it was granted.
    pub fn taken(&self, id: &VipId, address: IpAddr, by: Option<Mac>) {
        if let Some(orders) = self.running.get(id) {
            let _ = orders.send(Order::Taken { address, by });
        }
    }

    /// Ends all running clients, keeps their leases, and waits until their messages are sent.
    pub async fn end(mut self) {
        self.running.clear();
        let all = async {
            while let Some(ended) = self.tasks.join_next().await {
                report(ended);
            }
        };
        if tokio::time::timeout(LAST_WORDS, all).await.is_err() {
            tracing::warn!("a DHCP client did not end in time; its server may not have received a DHCPRELEASE");
        }
    }
}

fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a DHCP client ended unexpectedly");
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use announcer_core::view::Uid;

    fn vip(name: &str) -> VipId {
        VipId::Dhcp(Uid(name.into()))
    }

    /// A client that needs a while to say goodbye.
    fn slow(name: &'static str, said: &mpsc::UnboundedSender<String>) -> (Orders, impl Future<Output = ()> + use<>) {
        let (stop, mut stopped) = mpsc::unbounded_channel();
        let said = said.clone();
        let task = async move {
            let release = stopped.recv().await == Some(Order::Stop { release: true });
            tokio::time::sleep(Duration::from_millis(50)).await;
            let _ = said.send(format!("{name} {release}"));
        };
        (stop, task)
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_waits_for_a_release_that_is_on_its_way() {
        let (said, mut heard) = mpsc::unbounded_channel();
        let mut clients = Clients::default();
        for name in ["gone", "kept"] {
            let (stop, task) = slow(name, &said);
            clients.start(vip(name), stop, task);
        }
        clients.stop(&vip("gone"), true);
        clients.end().await;
        let mut all = vec![heard.try_recv().unwrap(), heard.try_recv().unwrap()];
        all.sort();
        assert_eq!(all, ["gone true", "kept false"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_hangs_does_not_hold_up_the_end() {
        let mut clients = Clients::default();
        let (stop, _stopped) = mpsc::unbounded_channel();
        clients.start(vip("stuck"), stop, std::future::pending());
        let begun = tokio::time::Instant::now();
        clients.end().await;
        // The clock stands but for timers, and those count whole milliseconds.
        assert_eq!(begun.elapsed().as_secs(), LAST_WORDS.as_secs());
    }
}
