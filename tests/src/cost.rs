//! What the product costs in API writes, counted by the API servers' audit logs.

use std::fmt;

use anyhow::Result;
use testbed::{AuditMark, Request, service_account_user};

use crate::bed::{Bed, CLUSTER, VM_NAMESPACE};
use crate::product::{ANNOUNCER_ACCOUNT, CCM_ACCOUNT};

/// A place in the audit logs of both API servers.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    /// In the guest's audit log.
    pub guest: AuditMark,
    /// In Harvester's.
    pub harvester: AuditMark,
}

/// Writes of the product since a mark. Leases are left out: both programs renew theirs all the time.
#[derive(Debug, Clone, Default)]
pub struct Costs {
    /// By the cloud controller manager on the guest API, without Events.
    pub ccm_guest: Vec<Request>,
    /// Events of the cloud controller manager.
    pub ccm_events: Vec<Request>,
    /// By the cloud controller manager on Harvester.
    pub ccm_harvester: Vec<Request>,
    /// By all announcers, without Events.
    pub announcer: Vec<Request>,
    /// Events of all announcers.
    pub announcer_events: Vec<Request>,
}

impl Bed {
    /// Now, in both audit logs.
    pub fn mark(&self) -> Mark {
        let harvester = self.harvester.0.as_ref().map_or_else(AuditMark::default, |side| side.audit().mark());
        Mark { guest: self.control_plane.audit().mark(), harvester }
    }

    /// What the product has written since `mark`.
    pub fn costs(&self, mark: Mark) -> Result<Costs> {
        let mut costs = Costs::default();
        let in_cluster = |account: &str| service_account_user("kube-system", account);
        let (ccm, announcer) = (in_cluster(CCM_ACCOUNT), in_cluster(ANNOUNCER_ACCOUNT));
        for request in self.control_plane.audit().since(mark.guest)? {
            if !request.is_write() || request.resource == "leases" {
                continue;
            }
            let is_event = request.resource == "events";
            let list = match (&request.user, is_event) {
                (user, false) if *user == ccm => &mut costs.ccm_guest,
                (user, true) if *user == ccm => &mut costs.ccm_events,
                (user, false) if *user == announcer => &mut costs.announcer,
                (user, true) if *user == announcer => &mut costs.announcer_events,
                _ => continue,
            };
            list.push(request);
        }
        let ccm_there = service_account_user(VM_NAMESPACE, CLUSTER);
        if let Some(side) = &self.harvester.0 {
            costs.ccm_harvester = side.audit().since(mark.harvester)?;
        }
        costs.ccm_harvester.retain(|request| request.user == ccm_there && request.is_write());
        Ok(costs)
    }
}

impl Costs {
    /// Only what concerns one namespace of the guest, and on Harvester the LoadBalancer called `lb`.
    #[must_use]
    pub fn of(mut self, namespace: &str, lb: &str) -> Self {
        for list in [&mut self.ccm_guest, &mut self.ccm_events, &mut self.announcer, &mut self.announcer_events] {
            list.retain(|request| request.namespace.as_deref() == Some(namespace));
        }
        // A POST's audit entry has the name only where the server knew it before decoding the body.
        self.ccm_harvester.retain(|request| request.name.as_deref().is_none_or(|name| name == lb));
        self
    }

    /// All of them.
    pub fn total(&self) -> usize {
        self.ccm_guest.len()
            + self.ccm_events.len()
            + self.ccm_harvester.len()
            + self.announcer.len()
            + self.announcer_events.len()
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (who, list) in [
            ("cloud controller manager, guest", &self.ccm_guest),
            ("cloud controller manager, Events", &self.ccm_events),
            ("cloud controller manager, Harvester", &self.ccm_harvester),
            ("announcers", &self.announcer),
            ("announcers, Events", &self.announcer_events),
        ] {
            writeln!(f, "{who}: {}", list.len())?;
            for request in list {
                let namespace = request.namespace.as_deref().unwrap_or("-");
                let name = request.name.as_deref().unwrap_or("-");
                writeln!(
                    f,
                    "  {} {} {namespace}/{name}: {} ({})",
                    request.verb, request.resource, request.code, request.uri
                )?;
            }
        }
        Ok(())
    }
}
