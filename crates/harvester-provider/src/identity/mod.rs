//! Who this guest cluster is on Harvester (decision 11).
//!
//! Names of objects, pools and host names all hang on the cluster's name, and the flag that gives it is easily lost in an upgrade.
//! Therefore the name first used is remembered in the guest cluster ([`record`]), another one is not taken over silently
//! ([`decide`]), and LoadBalancer objects are known by proof, whatever their name is ([`proof`]).

pub mod decide;
pub mod keeper;
pub mod proof;
pub mod record;

use std::sync::Arc;

use harvester_api::names::ClusterName;
use tokio::sync::watch;

/// The name in use, once it is known. Clones are the same identity.
#[derive(Debug, Clone)]
pub struct Identity {
    flag: ClusterName,
    name: Arc<watch::Sender<Option<ClusterName>>>,
}

impl Identity {
    /// Not known yet; `flag` is what the command line says.
    pub fn unknown(flag: ClusterName) -> Self {
        Self { flag, name: Arc::new(watch::Sender::new(None)) }
    }

    /// Known.
    #[cfg(test)]
    pub(crate) fn known(name: &str) -> Self {
        let identity = Self::unknown(ClusterName::from_record(name));
        identity.set(ClusterName::from_record(name));
        identity
    }

    /// The name in use; `None` until it is known.
    pub fn name(&self) -> Option<ClusterName> {
        self.name.borrow().clone()
    }

    /// The name in use, or that of the command line until it is known: for what may be corrected later.
    pub fn name_or_flag(&self) -> ClusterName {
        self.name().unwrap_or_else(|| self.flag.clone())
    }

    /// What the command line says.
    pub fn flag(&self) -> &ClusterName {
        &self.flag
    }

    /// From now on this is the name.
    pub fn set(&self, name: ClusterName) {
        self.name.send_if_modified(|current| {
            let news = current.as_ref() != Some(&name);
            *current = Some(name);
            news
        });
    }

    /// Tells when it becomes known and when it changes.
    pub fn subscribe(&self) -> watch::Receiver<Option<ClusterName>> {
        self.name.subscribe()
    }
}
