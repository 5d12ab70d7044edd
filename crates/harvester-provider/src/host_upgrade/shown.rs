//! What is shown of a Node, and in which words. Pure.

use super::facts::PlanView;

/// Reason of the condition `HarvesterHostMaintenance`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Its host waits for its turn.
    Pending,
    /// Its host is being emptied.
    PreDraining,
    /// It moves to another host.
    LiveMigrating,
    /// It was shut down.
    ShutDown,
    /// Its host is changed or restarts.
    Rebooting,
    /// It is on its way up.
    Restoring,
    /// Its host's upgrade is paused.
    Paused,
    /// Its host's upgrade has failed.
    Failed,
    /// Nothing happens to its host (any more).
    UpToDate,
}

impl Reason {
    /// All of them.
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

    /// The word in the condition.
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

    /// The reason with this word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.word() == word)
    }

    /// Status of the condition: something happens to the host.
    pub fn is_active(self) -> bool {
        !matches!(self, Self::Pending | Self::UpToDate)
    }
}

/// What a Node has to expect of the upgrade of its host.
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
    /// As it is shown.
    pub fn word(self) -> &'static str {
        match self {
            Self::Migrate => "migrate",
            Self::Shutdown => "shutdown",
            Self::Nothing => "none",
        }
    }

    /// The one with this word.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Migrate, Self::Shutdown, Self::Nothing].into_iter().find(|expect| expect.word() == word)
    }
}

/// What is shown of a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStatus {
    /// UID of the Node: another Node of the same name has nothing of it.
    pub uid: String,
    /// Name of the VM.
    pub vm: String,
    /// Its host, or the last one that it had.
    pub host: String,
    /// State of the host, as it is stored.
    pub state: String,
    /// Reason of the condition.
    pub reason: Reason,
    /// Since when that is the reason.
    pub since: i64,
    /// What it has to expect.
    pub expect: Expect,
}

/// Message of condition and Event.
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

/// Minutes, for people.
pub fn span(seconds: i64) -> String {
    match seconds {
        ..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}
