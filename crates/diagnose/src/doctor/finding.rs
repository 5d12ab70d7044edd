//! The results of the checks.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::checks::Check;
use crate::snapshot::{Host, Side, Snapshot, Unread, feature};

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Everything works now, but would fail in a certain case.
    Warning,
    /// Something does not work.
    Error,
}

/// One problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check that has found it.
    pub check: Check,
    /// The severity.
    pub severity: Severity,
    /// The object.
    pub object: String,
    /// The problem of the object.
    pub what: String,
    /// The consequence.
    pub why: String,
    /// The command, or the change, that corrects it.
    pub remedy: String,
}

impl PartialOrd for Finding {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Finding {
    /// Orders findings: the most severe first, then by name.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let key =
            |finding: &Self| (Reverse(finding.severity), finding.check, finding.object.clone(), finding.what.clone());
        key(self).cmp(&key(other))
    }
}

impl Finding {
    /// A finding of severity `Error`.
    pub fn error(check: Check, object: impl Into<String>) -> Self {
        Self::new(check, Severity::Error, object.into())
    }

    /// A finding of severity `Warning`.
    pub fn warning(check: Check, object: impl Into<String>) -> Self {
        Self::new(check, Severity::Warning, object.into())
    }

    fn new(check: Check, severity: Severity, object: String) -> Self {
        Self { check, severity, object, what: String::new(), why: String::new(), remedy: String::new() }
    }

    /// Sets the problem.
    #[must_use]
    pub fn what(mut self, what: impl Into<String>) -> Self {
        self.what = what.into();
        self
    }

    /// Sets the consequence.
    #[must_use]
    pub fn why(mut self, why: impl Into<String>) -> Self {
        self.why = why.into();
        self
    }

    /// Sets the remedy.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }
}

/// The examined clusters with their versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Clusters {
    /// The guest cluster.
    pub guest: Cluster,
    /// Harvester.
    pub harvester: Cluster,
}

/// One of the clusters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cluster {
    /// URL of its API; empty if there is none.
    pub server: String,
    /// Version of Kubernetes; empty if unknown.
    pub kubernetes: String,
    /// Version of Harvester, if it may be read.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Features of Harvester, as far as a guest can detect them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub features: BTreeMap<&'static str, bool>,
}

impl Clusters {
    /// Both clusters of the snapshot.
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
    /// One line for users; `None` if the cluster does not answer.
    fn line(&self, name: &str) -> Option<String> {
        let mut line = format!("{name} {}: Kubernetes {}", self.server, self.kubernetes);
        if !self.version.is_empty() {
            let _ = write!(line, ", Harvester {}", self.version);
        }
        for (has, introduction) in [(true, "it has"), (false, "it has not")] {
            let these = self.features.iter().filter(|(_, offered)| **offered == has);
            let words: Vec<&str> = these.map(|(name, _)| feature::words(name)).collect();
            if !words.is_empty() {
                let _ = write!(line, "; {introduction}: {}", words.join(", "));
            }
        }
        (!self.kubernetes.is_empty()).then_some(line)
    }
}

/// Files that remedies name, and what they have: an installation may call them otherwise.
const FILES: [(&str, &str); 2] = [
    ("harvester.yaml", "the kubeconfig of an administrator of Harvester"),
    ("values.yaml", "the values that the chart was installed with; helm get values prints them"),
];

/// All findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Examination {
    /// The findings, the most severe first.
    pub findings: Vec<Finding>,
    /// The examined clusters.
    pub clusters: Clusters,
    /// Objects that could not be read and were not checked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

impl Examination {
    /// The exit status. 0: no problem; 3: warnings; 4: errors.
    pub fn exit_status(&self) -> u8 {
        match self.findings.iter().map(|finding| finding.severity).max() {
            None => 0,
            Some(Severity::Warning) => 3,
            Some(Severity::Error) => 4,
        }
    }

    /// The result as text for users.
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
        for (file, content) in FILES {
            if self.findings.iter().any(|finding| finding.remedy.contains(file)) {
                let _ = writeln!(text, "{file}: {content}");
            }
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
