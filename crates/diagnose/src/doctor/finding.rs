//! What a check has found.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use crate::snapshot::{Host, Side, Snapshot, Unread};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It works now, and will not in some case.
    Warning,
    /// Something does not work.
    Error,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check; stays the same between versions.
    pub check: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// Which object.
    pub object: String,
    /// What is wrong with it.
    pub what: String,
    /// Why it matters.
    pub why: String,
    /// The command, or the change, that mends it.
    pub remedy: String,
}

impl PartialOrd for Finding {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Finding {
    /// The worst first, then by name.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let key =
            |finding: &Self| (Reverse(finding.severity), finding.check, finding.object.clone(), finding.what.clone());
        key(self).cmp(&key(other))
    }
}

impl Finding {
    /// Something does not work.
    pub fn error(check: &'static str, object: impl Into<String>) -> Self {
        Self::new(check, Severity::Error, object.into())
    }

    /// It works now.
    pub fn warning(check: &'static str, object: impl Into<String>) -> Self {
        Self::new(check, Severity::Warning, object.into())
    }

    fn new(check: &'static str, severity: Severity, object: String) -> Self {
        Self { check, severity, object, what: String::new(), why: String::new(), remedy: String::new() }
    }

    /// What is wrong.
    #[must_use]
    pub fn what(mut self, what: impl Into<String>) -> Self {
        self.what = what.into();
        self
    }

    /// Why it matters.
    #[must_use]
    pub fn why(mut self, why: impl Into<String>) -> Self {
        self.why = why.into();
        self
    }

    /// What mends it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }
}

/// What was looked at, for whoever asks which versions these are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Clusters {
    /// The guest cluster.
    pub guest: Cluster,
    /// Harvester.
    pub harvester: Cluster,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cluster {
    /// URL of its API; empty where there is none to ask.
    pub server: String,
    /// Version of Kubernetes there; empty where it does not tell.
    pub kubernetes: String,
    /// Harvester's own, where it may be read.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// What Harvester can do, as far as it can be seen from the guest.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub features: BTreeMap<&'static str, bool>,
}

impl Clusters {
    /// Both.
    pub fn of(snapshot: &Snapshot) -> Self {
        let cluster = |side: &Side, host: Host| Cluster {
            server: side.server.clone(),
            kubernetes: side.version.clone(),
            version: host.version,
            features: host.features,
        };
        Self {
            guest: cluster(&snapshot.guest, Host::default()),
            harvester: cluster(&snapshot.harvester, snapshot.host.clone()),
        }
    }
}

impl Cluster {
    /// A line for people; `None` where nothing answers.
    fn line(&self, name: &str) -> Option<String> {
        let mut line = format!("{name} {}: Kubernetes {}", self.server, self.kubernetes);
        if !self.version.is_empty() {
            let _ = write!(line, ", Harvester {}", self.version);
        }
        for (feature, offered) in &self.features {
            let _ = write!(line, ", {feature} {}", if *offered { "yes" } else { "no" });
        }
        (!self.kubernetes.is_empty()).then_some(line)
    }
}

/// All findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Examination {
    /// The worst first.
    pub findings: Vec<Finding>,
    /// Where they were looked for.
    pub clusters: Clusters,
    /// What could not be read, and is not judged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

impl Examination {
    /// 0: nothing is wrong; 3: warnings; 4: errors.
    pub fn exit_status(&self) -> u8 {
        match self.findings.iter().map(|finding| finding.severity).max() {
            None => 0,
            Some(Severity::Warning) => 3,
            Some(Severity::Error) => 4,
        }
    }

    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain fields are always valid JSON")
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let Clusters { guest, harvester } = &self.clusters;
        for line in [guest.line("guest API"), harvester.line("Harvester API")].into_iter().flatten() {
            let _ = writeln!(text, "{line}");
        }
        if !text.is_empty() {
            text.push('\n');
        }
        for finding in &self.findings {
            let Finding { check, severity, object, what, why, remedy } = finding;
            let word = match severity {
                Severity::Warning => "WARNING",
                Severity::Error => "ERROR",
            };
            let _ = writeln!(text, "{word}  {object}: {what}\n  why:   {why}\n  do:    {remedy}\n  check: {check}\n");
        }
        for Unread { what, why } in &self.unread {
            let _ = writeln!(text, "not looked at: {what}: {why}");
        }
        let count = |severity| self.findings.iter().filter(|finding| finding.severity == severity).count();
        let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
        let verdict = if self.findings.is_empty() {
            "nothing is wrong".to_owned()
        } else {
            format!("errors: {errors}, warnings: {warnings}")
        };
        let _ = writeln!(text, "{verdict}");
        text
    }
}
