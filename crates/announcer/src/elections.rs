//! `service` mode: one election per Service, begun and ended as the engine says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::Client;
use runtime::leader::{Election, LeaderConfig};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::engine::Input;
use crate::handover::lease_state;
use crate::ownership::service::LeaseKey;

/// Runs the elections that are asked for, until nobody asks any more; then all Leases are handed back.
pub async fn run(
    client: Client,
    pattern: LeaderConfig,
    mut asked: mpsc::UnboundedReceiver<BTreeSet<LeaseKey>>,
    inputs: mpsc::UnboundedSender<Input>,
) {
    let mut running: BTreeMap<LeaseKey, CancellationToken> = BTreeMap::new();
    // Held by each election until its Lease is handed back.
    let mut turns: BTreeMap<LeaseKey, Arc<Mutex<()>>> = BTreeMap::new();
    let mut tasks = JoinSet::new();
    while let Some(wanted) = asked.recv().await {
        running.retain(|key, stop| {
            let keep = wanted.contains(key);
            if !keep {
                stop.cancel();
            }
            keep
        });
        for key in wanted {
            if running.contains_key(&key) {
                continue;
            }
            let stop = CancellationToken::new();
            let election = elect(client.clone(), pattern.clone(), key.clone(), stop.clone(), inputs.clone());
            let turn = Arc::clone(turns.entry(key.clone()).or_default());
            let waiting = stop.clone();
            tasks.spawn(async move {
                // A Service that is made anew at once has the Lease of the old one: both elections speak in the name of
                // this node, and what the old one hands back would be what the new one has just taken.
                tokio::select! {
                    biased;
                    () = waiting.cancelled() => {}
                    _turn = turn.lock() => election.await,
                }
            });
            running.insert(key, stop);
        }
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        while tasks.try_join_next().is_some() {}
        if running.is_empty() {
            // The engine waits for this when it is about to end.
            while tasks.join_next().await.is_some() {}
            let _ = inputs.send(Input::Released(true));
        }
    }
}

/// One election, and what it says.
async fn elect(
    client: Client,
    pattern: LeaderConfig,
    key: LeaseKey,
    stop: CancellationToken,
    inputs: mpsc::UnboundedSender<Input>,
) {
    // Not watched but polled, as kube-vip does it: a watch per Service and node is what makes API servers suffer.
    let config = LeaderConfig { namespace: key.namespace.clone(), name: key.name.clone(), watch: false, ..pattern };
    let election = Election::new(client, config, None);
    let mut leadership = election.leadership();
    let mut election = std::pin::pin!(election.run(stop.clone()));
    loop {
        let state = lease_state(&leadership.borrow_and_update());
        if !stop.is_cancelled() && inputs.send(Input::ServiceLease(key.clone(), state)).is_err() {
            return;
        }
        tokio::select! {
            // With our way of taking a loss it ends only when it is told to.
            _ = &mut election => return,
            Ok(()) = leadership.changed() => {}
        }
    }
}
