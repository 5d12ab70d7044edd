//! The command `plan`: shows what the first passes over this cluster would write. It uses the same decisions, in a
//! process that writes nothing.

use std::time::Duration;

use cloud_provider::preview::{Outlook, Place, Target, Verb, Write, outlook};
use cloud_provider::provider::{Instances, LoadBalancers};
use cloud_provider::start::{Caches, Settings};
use futures::{FutureExt, StreamExt};
use runtime::events::Recorder;
use runtime::reflect::Status;
use runtime::shutdown::Token;
use runtime::tasks::Tasks;
use serde_json::{Map, Value};
use tokio::sync::watch;

use super::HarvesterProvider;
use crate::config::remedy;
use crate::identity::decide::Source;
use crate::identity::identity_card::IdentityCard;
use crate::identity::record::{self, RecordNote};
use crate::instances::provider::HarvesterInstances;

/// How long both APIs may take for their first lists.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long guest agents may take to report the host names of machines whose Nodes are new.
const AGENTS: Duration = Duration::from_secs(12);

/// What could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot list {what} within {} s: {why}", PATIENCE.as_secs())]
pub struct Unreadable {
    what: &'static str,
    why: String,
}

/// The result of `plan`.
#[derive(Debug)]
pub struct Foresight {
    /// The cluster's name on Harvester.
    pub cluster_name: String,
    /// Where the name comes from.
    pub name_source: Source,
    /// Why nothing would be written, as reason and message.
    pub held: Option<(&'static str, String)>,
    /// What would be written, and what not.
    pub outlook: Outlook,
}

impl HarvesterProvider {
    /// Reads both clusters and returns what would be written. The caller fills `caches`, and provides clients that
    /// cannot write.
    pub async fn foresee(self, caches: &Caches, settings: &Settings) -> Result<Foresight, Unreadable> {
        let stop = Token::new();
        let mut tasks = Tasks::new(stop.clone());
        let Self { identity, load_balancers, instances, asked, watches, writer, keeper, collector, .. } = self;
        let needed = [
            ("LoadBalancers of Harvester", watches.lbs.status()),
            ("virtual machines of Harvester", watches.vms.status()),
            ("virtual machine instances of Harvester", watches.vmis.status()),
        ];
        // The watch of the mapping is not required: without the right to read it, everything else works.
        let mut mapping = watches.mapping.status();
        tasks.spawn_endless("watch of loadbalancers", watches.lbs.run());
        tasks.spawn_endless("watch of virtualmachines", watches.vms.run());
        tasks.spawn_endless("watch of virtualmachineinstances", watches.vmis.run());
        tasks.spawn_endless("watch of the NAD mapping", watches.mapping.run());
        tasks.spawn_endless("guest agents", instances.clone().run(asked));
        for (what, mut status) in needed {
            listed(what, &mut status).await?;
        }
        guest_listed(caches).await?;
        let known = mapping.wait_for(|status| status.synced || status.forbidden);
        let _ = tokio::time::timeout(PATIENCE, known).await;

        let (events, _told) = Recorder::to_channel(super::COMPONENT);
        let (decision, note) = keeper.foresee(&events).await;
        let held = identity.hold().map(|hold| (hold.reason, hold.message.clone()));
        let mut found = Outlook::default();
        found.writes.extend(note.as_ref().map(write_of));
        found.extend(settled(caches, load_balancers.as_ref(), instances.as_ref(), settings).await);
        if held.is_none() {
            found.writes.extend(writer.and_then(|writer| writer.foresee()));
            found.extend(collector.foresee());
        }
        stop.cancel();
        Ok(Foresight { cluster_name: decision.name.to_string(), name_source: decision.source, held, outlook: found })
    }
}

async fn guest_listed(caches: &Caches) -> Result<(), Unreadable> {
    let (what, why) = ("Services and Nodes of the guest cluster", "no answer, or no right to".to_owned());
    tokio::time::timeout(PATIENCE, caches.wait_synced()).await.map_err(|_| Unreadable { what, why })
}

async fn listed(what: &'static str, status: &mut watch::Receiver<Status>) -> Result<(), Unreadable> {
    let synced = tokio::time::timeout(PATIENCE, status.wait_for(|status| status.synced)).await.map(drop);
    if synced.is_ok() {
        return Ok(());
    }
    let error = status.borrow().error.as_ref().map(|(_, error)| format!("{error}; {}", remedy(error)));
    Err(Unreadable { what, why: error.unwrap_or_else(|| "no answer".to_owned()) })
}

/// Repeats the preview while guest agents report host names.
async fn settled(
    caches: &Caches,
    load_balancers: &dyn LoadBalancers,
    instances: &HarvesterInstances,
    settings: &Settings,
) -> Outlook {
    let deadline = tokio::time::Instant::now() + AGENTS;
    let mut wakes = instances.wakes();
    while wakes.next().now_or_never().flatten().is_some() {}
    loop {
        let found = outlook(caches, load_balancers, instances, settings).await;
        // A new Node whose machine is not known waits for that machine; a Node without a machine for agents that are
        // being asked whether one of theirs is it.
        let waits = found.notes.iter().any(|note| note.target.kind == "Node" && note.needs_user);
        let goes_on = async { if waits { wakes.next().await.is_some() } else { instances.next_answer().await } };
        if !tokio::time::timeout_at(deadline, goes_on).await.unwrap_or_default() {
            return found;
        }
    }
}

/// The write for what the record does not contain yet.
fn write_of(note: &RecordNote) -> Write {
    let mut data = Map::new();
    let mut set = |key: &str, value: Option<String>| drop(value.map(|value| data.insert(key.to_owned(), value.into())));
    set(record::CLUSTER_NAME, note.name.as_ref().map(ToString::to_string));
    set(record::IDENTITY, note.card.as_ref().map(IdentityCard::to_text));
    set(record::SAFE_MODE, note.safe_mode.clone());
    let body = Value::Object([("data".to_owned(), Value::Object(data))].into_iter().collect());
    let (namespace, name) = (record::NAMESPACE.to_owned(), record::NAME.to_owned());
    let target = Target { kind: "ConfigMap", namespace, name };
    Write { place: Place::Guest, verb: Verb::Update, target, why: "remembers which cluster this is".to_owned(), body }
}
