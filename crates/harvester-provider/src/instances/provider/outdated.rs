//! Decides which state of a machine may be written to a Node: that of the caches, or a live read while a watch is in
//! error.

use std::sync::Arc;
use std::time::Instant;

use cloud_provider::node::is_uninitialized;
use cloud_provider::provider::{NodeWake, ProviderError};
use cloud_provider::view::NodeView;
use futures::stream::{BoxStream, StreamExt, iter, select_all, unfold};
use runtime::error::chain;
use runtime::reflect::Status;

use super::super::view::{VmView, VmiView};
use super::HarvesterInstances;
use crate::config::remedy;

/// A machine and its instance.
type Machine = (Arc<VmView>, Option<Arc<VmiView>>);

impl HarvesterInstances {
    /// Returns `Err` until both caches have their first lists, because nothing may be concluded before that (W-18).
    pub(super) fn lists(&self) -> Result<(), String> {
        if self.vms.is_synced() && self.vmis.is_synced() {
            return Ok(());
        }
        // Wrong cloud-config, missing rights, or Harvester unreachable: no other part reports this to the user.
        let cause = self.watch_error().map(|error| format!(": {error}")).unwrap_or_default();
        let Self { namespace, server, .. } = self;
        Err(format!("the VMs in namespace {namespace} of Harvester at {server} could not be listed yet{cause}"))
    }

    /// The error of a watch that is in error now, with its remedy.
    fn watch_error(&self) -> Option<String> {
        let error = self.watched.iter().find_map(|watched| Some(watched.borrow().error.as_ref()?.1.clone()))?;
        Some(format!("{error}; {}", remedy(&error)))
    }

    /// The machine of a Node and its instance, or the reason why none may be written to the Node now.
    ///
    /// The provider ID of a new Node is written once and never corrected. While a watch is in error, the caches may
    /// have a machine that was made anew since, so a new Node gets its machine from a live read.
    pub(super) async fn machine(&self, node: &NodeView) -> Result<Machine, ProviderError> {
        self.lists().map_err(ProviderError::new)?;
        let outdated = self.watch_error().filter(|_| is_uninitialized(node));
        let known = self.vm(node);
        let Some(error) = outdated else {
            return known.map(|vm| (Arc::clone(&vm), self.vmis.get(&vm.name)));
        };
        let Self { namespace, server, .. } = self;
        let text = format!("the VMs in namespace {namespace} of Harvester at {server} are not up to date: {error}");
        let refused = match known {
            Ok(vm) => match self.live(node, &vm).await {
                Ok(machine) => return Ok(machine),
                Err(why) => ProviderError::new(format!("{text}. A live read did not help: {why}")),
            },
            Err(asking) if asking.under_way => return Err(asking),
            // That the caches have no machine for the Node says nothing.
            Err(unknown) => ProviderError { longest_pause: unknown.longest_pause, ..ProviderError::new(text) },
        };
        self.memory().unresolved.insert(node.name.clone(), Instant::now());
        Err(refused)
    }

    /// Reads a machine that the caches have from the API server. `Err`: it cannot be read, or the caches do not prove
    /// any more that it is this Node's.
    async fn live(&self, node: &NodeView, known: &VmView) -> Result<Machine, String> {
        let key = format!("VM {}/{}", self.namespace, known.name);
        let cached = self.vmis.get(&known.name);
        match self.requests.read(&known.name).await {
            Ok(Some((vm, vmi))) if vm.uid == known.uid => {
                // A host name counts only for the instance whose guest agent reported it.
                let is_same = vmi.as_ref().map(|vmi| &vmi.uid) == cached.as_ref().map(|vmi| &vmi.uid);
                if vm.name != node.name && !is_same {
                    return Err(format!("{key} was restarted, and its host name is not known"));
                }
                Ok((Arc::new(vm), vmi.map(Arc::new)))
            }
            Ok(Some(_)) => Err(format!("{key} is not the one that was listed")),
            Ok(None) => Err(format!("{key} is gone")),
            Err(error) => Err(format!("{key} cannot be read: {}", chain(&error))),
        }
    }

    /// The Nodes whose machine is not known, each time that a watch is no longer in error. The list that ends the error
    /// may change nothing in the caches, and then nothing else wakes them.
    pub(super) fn recoveries(&self) -> BoxStream<'static, NodeWake> {
        let ends = self.watched.iter().map(|watched| {
            let memory = Arc::clone(&self.memory);
            // A short error may be over before this stream looks; the number of failures tells of it.
            let status = watched.borrow().clone();
            let well = status.error.is_none().then_some(status.troubles);
            let ended = unfold((watched.clone(), well), |(mut watched, before)| async move {
                let is_over = |status: &Status| status.error.is_none() && Some(status.troubles) != before;
                let troubles = watched.wait_for(is_over).await.ok()?.troubles;
                Some(((), (watched, Some(troubles))))
            });
            let waiting = move || memory.lock().unresolved.keys().cloned().map(NodeWake::Node).collect::<Vec<_>>();
            ended.flat_map(move |()| iter(waiting())).boxed()
        });
        select_all(ends).boxed()
    }
}
