//! The tasks of each election mode.

use std::collections::BTreeSet;

use announcer_core::config::ElectionMode;
use announcer_core::ownership::node::{Card, Swap};
use announcer_core::ownership::service::LeaseKey;
use announcer_core::view::ServiceKey;
use kube::Api;
use runtime::cache::Cache;
use runtime::events::Recorder;
use runtime::leader::Election;
use runtime::tasks::Tasks;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Shared, leader_config, plain, until};
use crate::elections;
use crate::global_election::{SuccessorSearch, elect, feed_leadership};
use crate::membership::{self, Membership};
use crate::swap::Swapper;

/// The channels on which the engine sends requests to the tasks of its mode. Those of the other modes have no receiver.
pub(super) struct Requests {
    /// Cancelled when the one Lease has to be released.
    pub release: CancellationToken,
    /// The elections to take part in.
    pub campaigns: mpsc::UnboundedSender<BTreeSet<LeaseKey>>,
    /// The changes of owner to write.
    pub swaps: mpsc::UnboundedSender<(ServiceKey, Swap)>,
    /// The cards to write into our membership Lease.
    pub cards: mpsc::UnboundedSender<Card>,
}

/// Starts the tasks of the configured mode.
pub(super) fn start(
    tasks: &mut Tasks,
    shared: &Shared<'_>,
    recorder: &Recorder,
    membership: Membership,
    swapper: Swapper,
) -> Requests {
    let release = CancellationToken::new();
    let (campaigns, asked_campaigns) = mpsc::unbounded_channel();
    let (cards, written) = mpsc::unbounded_channel();
    let (swaps, asked_swaps) = mpsc::unbounded_channel();
    match shared.config.election_mode {
        ElectionMode::Global => global(tasks, shared, recorder, release.clone()),
        ElectionMode::Service => service(tasks, shared, asked_campaigns),
        ElectionMode::Node => node(tasks, shared, Member { membership, written, swapper, asked_swaps }),
    }
    Requests { release, campaigns, swaps, cards }
}

/// `global` mode: one Lease for all Services, until it is released.
fn global(tasks: &mut Tasks, shared: &Shared<'_>, recorder: &Recorder, release: CancellationToken) {
    let Shared { config, client, namespace, inputs, .. } = shared;
    let election = Election::new(client.clone(), leader_config(config, namespace), Some(recorder));
    let leadership = election.leadership();
    let after = SuccessorSearch {
        lease: Api::namespaced(client.clone(), namespace),
        name: config.lease.name.clone(),
        inputs: inputs.clone(),
    };
    tasks.spawn("election", plain(elect(election, after, release, tasks.stop())));
    tasks.spawn("feed of the Lease", plain(feed_leadership(leadership, inputs.clone(), tasks.stop())));
}

/// `service` mode: one Lease per Service, at the engine's request.
fn service(tasks: &mut Tasks, shared: &Shared<'_>, asked: mpsc::UnboundedReceiver<BTreeSet<LeaseKey>>) {
    let pattern = leader_config(shared.config, &shared.namespace);
    let elections = elections::run(shared.client.clone(), pattern, asked, shared.inputs.clone());
    tasks.spawn("elections", until(tasks.stop(), elections));
}

/// The parts of `node` mode.
struct Member {
    membership: Membership,
    /// The cards for this node's membership Lease.
    written: mpsc::UnboundedReceiver<Card>,
    swapper: Swapper,
    asked_swaps: mpsc::UnboundedReceiver<(ServiceKey, Swap)>,
}

/// `node` mode: one membership Lease per node, and a record on each Service.
fn node(tasks: &mut Tasks, shared: &Shared<'_>, member: Member) {
    let Shared { config, client, namespace, inputs, health } = shared;
    let Member { membership, written, swapper, asked_swaps } = member;
    let lock = config.lease.name.clone();
    let leases = membership::watch_leases(client.clone(), namespace.clone(), lock, inputs.clone(), health.clone());
    tasks.spawn("watch of Leases", until(tasks.stop(), leases));
    let nodes = Cache::new(|old, new| old != new);
    let watch = membership::watch_nodes(client.clone(), nodes.clone(), inputs.clone(), health.clone());
    tasks.spawn("watch of Nodes", until(tasks.stop(), watch));
    let proxy = membership::watch_kube_proxy(config.node_name.clone(), nodes, inputs.clone());
    tasks.spawn("watch of kube-proxy", until(tasks.stop(), proxy));
    tasks.spawn("membership", until(tasks.stop(), membership.run(written)));
    tasks.spawn("swaps of owners", until(tasks.stop(), swapper.run(asked_swaps)));
}
