//! What a check has found.

use std::cmp::Reverse;
use std::fmt::Write;

use serde::Serialize;

use crate::snapshot::Unread;

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

/// All findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Examination {
    /// The worst first.
    pub findings: Vec<Finding>,
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
        for finding in &self.findings {
            let Finding { check, severity, object, what, why, remedy } = finding;
            let word = match severity {
                Severity::Warning => "WARNING",
                Severity::Error => "ERROR",
            };
            let _ = writeln!(text, "{word}  {object}: {what}\n  why:   {why}\n  mend:  {remedy}\n  check: {check}\n");
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
