//! The status that is shown for a Node, and its texts. Pure.

use super::facts::PlanView;

/// Reason of the condition `HarvesterHostMaintenance`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The host waits for its turn.
    Pending,
    /// The host is being emptied.
    PreDraining,
    /// The machine moves to another host.
    LiveMigrating,
    /// The machine was shut down.
    ShutDown,
    /// The host is being upgraded or restarts.
    Rebooting,
    /// The machine is starting.
    Restoring,
    /// The upgrade of the host is paused.
    Paused,
    /// The upgrade of the host has failed.
    Failed,
    /// Nothing happens to the host (any more).
    UpToDate,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 9] = [
        Self::Pending,
        Self::PreDraining,
        Self::LiveMigrating,
        Self::ShutDown,
        Self::Rebooting,
        Self::Restoring,
        Self::Paused,
        Self::Failed,
        Self::UpToDate,
    ];

    /// The reason as written in the condition.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "HostUpgradePending",
            Self::PreDraining => "HostPreDraining",
            Self::LiveMigrating => "VMLiveMigrating",
            Self::ShutDown => "VMShutDownForUpgrade",
            Self::Rebooting => "HostRebooting",
            Self::Restoring => "VMRestoring",
            Self::Paused => "HostUpgradePaused",
            Self::Failed => "HostUpgradeFailed",
            Self::UpToDate => "HostUpToDate",
        }
    }

    /// The reason with this spelling.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.word() == word)
    }

    /// Whether the status of the condition is `True`: something happens to the host.
    pub fn is_active(self) -> bool {
        !matches!(self, Self::Pending | Self::UpToDate)
    }
}

/// What the upgrade of the host will do to a Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// It moves to another host while it runs.
    Migrate,
    /// It is shut down.
    Shutdown,
    /// Nothing.
    Nothing,
}

impl Expect {
    /// The value as it is shown.
    pub fn word(self) -> &'static str {
        match self {
            Self::Migrate => "migrate",
            Self::Shutdown => "shutdown",
            Self::Nothing => "none",
        }
    }

    /// The value with this spelling.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Migrate, Self::Shutdown, Self::Nothing].into_iter().find(|expect| expect.word() == word)
    }
}

/// The status that is shown for a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStatus {
    /// UID of the Node: the status does not apply to another Node of the same name.
    pub uid: String,
    /// Name of the VM.
    pub vm: String,
    /// The host of the VM, or its last host.
    pub host: String,
    /// State of the host, as Harvester stores it.
    pub state: String,
    /// Reason of the condition.
    pub reason: Reason,
    /// Since when the condition has this reason.
    pub since: i64,
    /// What the upgrade will do to the Node.
    pub expect: Expect,
}

/// The message of the condition and of the Event.
pub fn message(status: &NodeStatus, plan: Option<&PlanView>) -> String {
    let NodeStatus { vm, host, state, .. } = status;
    let by = plan.map(|plan| format!(" by {}", plan.title())).unwrap_or_default();
    let told = if state.is_empty() { String::new() } else { format!(", which says {state:?} of it") };
    match status.reason {
        Reason::Pending => format!("Harvester host {host} waits for its upgrade{by}"),
        Reason::PreDraining => {
            let fate = match status.expect {
                Expect::Migrate => format!(" VM {vm} moves to another host while it runs"),
                Expect::Shutdown => format!(" VM {vm} is shut down, for about a quarter of an hour"),
                Expect::Nothing => format!(" VM {vm} leaves it"),
            };
            format!("Harvester host {host} is being emptied{by}:{fate}")
        }
        Reason::LiveMigrating => format!("VM {vm} moves from Harvester host {host} to another one while it runs{by}"),
        Reason::ShutDown => format!("VM {vm} was shut down for the upgrade of Harvester host {host}{by}"),
        Reason::Rebooting => format!("Harvester host {host} is being changed or restarts{by}"),
        Reason::Restoring => format!("VM {vm} is on its way up after the upgrade of Harvester host {host}{by}"),
        Reason::Paused => {
            format!("The upgrade of Harvester host {host} is paused{by}: it goes on when its administrator says so")
        }
        Reason::Failed => format!(
            "The upgrade of Harvester host {host} has failed{by}{told}: see that object on Harvester for the reason"
        ),
        Reason::UpToDate => format!("Nothing happens to Harvester host {host} now"),
    }
}

/// A duration as text for users.
pub fn span(seconds: i64) -> String {
    match seconds {
        ..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}
