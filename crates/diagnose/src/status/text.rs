//! The report as tables.

use announcer_core::status::table::{age, table};

use super::rows::{NodeRow, PoolRow, Report, ServiceRow, UpgradeRow};
use crate::snapshot::list;

impl Report {
    /// The report as text for users; `wide` adds columns.
    pub fn to_text(&self, wide: bool) -> String {
        let mut parts = Vec::new();
        if !self.trouble.is_empty() {
            parts.push(format!("{}\n", self.trouble.join("\n")));
        }
        if !self.guest_read {
            return parts.concat();
        }
        if self.services_read && (!self.named || !self.services.is_empty()) {
            parts.push(services(&self.services, wide));
        }
        if !self.pools.is_empty() {
            parts.push(pools(&self.pools));
        }
        if !self.unread.iter().any(|unread| unread.what == list::NODES) {
            parts.push(nodes(&self.nodes, wide));
        }
        parts.extend(self.host_upgrade.as_ref().map(window));
        if wide && !self.unread.is_empty() {
            let lines: Vec<String> =
                self.unread.iter().map(|unread| format!("  {}: {}\n", unread.what, unread.why)).collect();
            parts.push(format!("NOT READ\n{}", lines.concat()));
        }
        parts.join("\n")
    }
}

/// An upgrade of the hosts, or an outage, during which changes of Services are tried as always.
fn window(row: &UpgradeRow) -> String {
    let (heading, waits) = if row.outage {
        ("OUTAGE OF HARVESTER", "deletions and zones")
    } else {
        ("HOST UPGRADE", "deletions, zones and changes")
    };
    let suspended = if row.suspended { format!(" ({waits} wait until it is over)") } else { String::new() };
    format!("{heading}   {}{suspended}\n", row.summary)
}

fn services(rows: &[ServiceRow], wide: bool) -> String {
    if rows.is_empty() {
        return "No Service of type LoadBalancer.\n".to_owned();
    }
    let mut headings = vec!["NAMESPACE", "SERVICE", "ADDRESS", "MODE", "OWNER", "STATE", "REASON", "AGE"];
    if wide {
        headings.extend(["CLASS", "DHCP", "MESSAGE"]);
    }
    let cells = rows.iter().map(|row| {
        let mut cells = vec![
            row.namespace.clone(),
            row.name.clone(),
            row.addresses.join(","),
            row.mode.clone(),
            row.owner.clone().unwrap_or_default(),
            row.state.clone(),
            row.reason.clone(),
            age(row.age_seconds),
        ];
        if wide {
            cells.extend([row.class.clone(), row.dhcp.join("; "), row.message.clone()]);
        }
        cells
    });
    table(&headings, &cells.collect::<Vec<_>>())
}

fn pools(rows: &[PoolRow]) -> String {
    let cells = rows.iter().map(|row| {
        vec![
            row.name.clone(),
            if row.network.is_empty() { "any".to_owned() } else { row.network.clone() },
            row.free.to_string(),
            row.total.to_string(),
        ]
    });
    table(&["POOL", "NETWORK", "FREE", "TOTAL"], &cells.collect::<Vec<_>>())
}

fn nodes(rows: &[NodeRow], wide: bool) -> String {
    let mut headings = vec!["NODE", "STATE", "VM", "HOST", "ANNOUNCER", "HOST UPGRADE"];
    if wide {
        headings.push("ADDRESSES");
    }
    let cells = rows.iter().map(|row| {
        let mut cells = vec![
            row.name.clone(),
            row.state.clone(),
            row.vm.clone(),
            row.host.clone(),
            row.announcer.clone(),
            row.maintenance.clone(),
        ];
        if wide {
            cells.push(row.addresses.join(","));
        }
        cells
    });
    table(&headings, &cells.collect::<Vec<_>>())
}
