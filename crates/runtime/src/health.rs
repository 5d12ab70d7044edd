//! Named health checks behind `/healthz`, `/livez` and `/readyz`.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A check returns at once: `Ok`, or the problem.
pub type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The consequence of a failing check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// The process should be restarted: `/healthz` and `/livez`.
    Restart,
    /// The process should get no work yet: `/readyz`.
    NotReady,
    /// Nothing that a restart or another replica would solve: `/readyz` shows it, but passes.
    Shown,
}

/// The registry of checks. Cheap to clone; all clones are the same registry.
#[derive(Clone, Default)]
pub struct Health {
    checks: Arc<Mutex<BTreeMap<String, (OnFailure, Check)>>>,
    /// The failed checks of the last request of each probe.
    failed: Arc<Mutex<BTreeMap<&'static str, Vec<String>>>>,
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("checks", &self.names()).finish()
    }
}

/// The endpoint that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// `/healthz`.
    Healthz,
    /// `/livez`.
    Livez,
    /// `/readyz`.
    Readyz,
}

impl Probe {
    /// The name in the path.
    pub fn name(self) -> &'static str {
        match self {
            Self::Healthz => "healthz",
            Self::Livez => "livez",
            Self::Readyz => "readyz",
        }
    }

    fn includes(self, on_failure: OnFailure) -> bool {
        match self {
            Self::Healthz | Self::Livez => on_failure == OnFailure::Restart,
            Self::Readyz => on_failure != OnFailure::Restart,
        }
    }
}

impl Health {
    /// A registry without checks, which always passes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a check, or replaces the one of the same name.
    pub fn register(&self, name: impl Into<String>, on_failure: OnFailure, check: Check) {
        self.checks.lock().insert(name.into(), (on_failure, check));
    }

    /// Removes a check.
    pub fn forget(&self, name: &str) {
        self.checks.lock().remove(name);
    }

    /// Names of all checks.
    pub fn names(&self) -> Vec<String> {
        self.checks.lock().keys().cloned().collect()
    }

    /// Runs the checks of `probe`, except those in `exclude`. The result is ordered by name.
    pub fn ask(&self, probe: Probe, exclude: &[String]) -> Report {
        let checks: Vec<(String, OnFailure, Check)> = {
            let checks = self.checks.lock();
            let asked =
                checks.iter().filter(|(name, (on_failure, _))| probe.includes(*on_failure) && !exclude.contains(name));
            asked.map(|(name, (on_failure, check))| (name.clone(), *on_failure, Arc::clone(check))).collect()
        };
        let (mut results, mut degraded) = (Vec::new(), Vec::new());
        for (name, on_failure, check) in checks {
            match check() {
                Err(reason) if on_failure == OnFailure::Shown => degraded.push((name, reason)),
                result => results.push((name, result)),
            }
        }
        let unknown: Vec<String> = {
            let checks = self.checks.lock();
            exclude.iter().filter(|name| !checks.contains_key(*name)).cloned().collect()
        };
        let excluded = exclude.iter().filter(|name| !unknown.contains(name)).cloned().collect();
        Report { probe, results, degraded, excluded, unknown }
    }

    /// Whether other checks fail than at the last request of this probe. Only such a change is logged.
    pub fn is_news(&self, report: &Report) -> bool {
        let failed: Vec<String> =
            report.results.iter().filter(|(_, result)| result.is_err()).map(|(name, _)| name.clone()).collect();
        let mut before = self.failed.lock();
        before.insert(report.probe.name(), failed.clone()).unwrap_or_default() != failed
    }

    /// Runs one check by name.
    pub fn ask_one(&self, name: &str) -> Option<Result<(), String>> {
        let check = self.checks.lock().get(name).map(|(_, check)| Arc::clone(check));
        check.map(|check| check())
    }
}

/// The results of some checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    probe: Probe,
    results: Vec<(String, Result<(), String>)>,
    degraded: Vec<(String, String)>,
    excluded: Vec<String>,
    unknown: Vec<String>,
}

impl Report {
    /// Whether every check passed.
    pub fn is_well(&self) -> bool {
        self.results.iter().all(|(_, result)| result.is_ok())
    }

    /// The text that Kubernetes' own servers return, but with the reason of a failing check. The reasons contain no
    /// secrets, and the reader of the pod's Events needs them.
    pub fn text(&self, verbose: bool) -> String {
        use fmt::Write;

        let mut text = String::new();
        if self.is_well() && !verbose {
            return "ok".to_owned();
        }
        for (name, result) in &self.results {
            let _ = match result {
                Ok(()) => writeln!(text, "[+]{name} ok"),
                Err(reason) => writeln!(text, "[-]{name} failed: {reason}"),
            };
        }
        for (name, reason) in &self.degraded {
            let _ = writeln!(text, "[!]{name} degraded: {reason}");
        }
        for name in &self.excluded {
            let _ = writeln!(text, "[+]{name} excluded: ok");
        }
        if !self.unknown.is_empty() {
            let unknown: Vec<String> = self.unknown.iter().map(|name| format!("{name:?}")).collect();
            let _ =
                writeln!(text, "warn: some health checks cannot be excluded: no matches for {}", unknown.join(", "));
        }
        let verdict = if self.is_well() { "passed" } else { "failed" };
        let _ = writeln!(text, "{} check {verdict}", self.probe.name());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health() -> Health {
        let health = Health::new();
        health.register("leaderElection", OnFailure::Restart, Arc::new(|| Ok(())));
        health.register("caches", OnFailure::NotReady, Arc::new(|| Err("services not listed yet".into())));
        health
    }

    #[test]
    fn what_is_only_told_fails_no_probe() {
        let health = Health::new();
        health.register("harvester", OnFailure::Shown, Arc::new(|| Err("away for 60 s".into())));
        let report = health.ask(Probe::Readyz, &[]);
        assert!(report.is_well());
        assert_eq!(report.text(true), "[!]harvester degraded: away for 60 s\nreadyz check passed\n");
        assert_eq!(health.ask(Probe::Livez, &[]).text(true), "livez check passed\n");
    }

    /// W-41.
    #[test]
    fn a_process_without_its_caches_is_alive_and_not_ready() {
        assert_eq!(health().ask(Probe::Livez, &[]).text(false), "ok");
        let report = health().ask(Probe::Readyz, &[]);
        assert!(!report.is_well());
        assert_eq!(report.text(false), "[-]caches failed: services not listed yet\nreadyz check failed\n");
    }

    #[test]
    fn a_probe_that_goes_on_failing_is_news_once_and_its_recovery_too() {
        let health = health();
        let news = |probe| health.is_news(&health.ask(probe, &[]));
        assert_eq!((news(Probe::Livez), news(Probe::Readyz), news(Probe::Readyz)), (false, true, false));
        health.register("clock", OnFailure::NotReady, Arc::new(|| Err("stands still".into())));
        assert_eq!((news(Probe::Readyz), news(Probe::Readyz)), (true, false), "something else fails, too");
        for name in ["caches", "clock"] {
            health.register(name, OnFailure::NotReady, Arc::new(|| Ok(())));
        }
        assert_eq!((news(Probe::Readyz), news(Probe::Readyz), news(Probe::Livez)), (true, false, false));
    }

    #[test]
    fn verbose_lists_and_exclude_leaves_out() {
        assert_eq!(health().ask(Probe::Healthz, &[]).text(true), "[+]leaderElection ok\nhealthz check passed\n");
        let report = health().ask(Probe::Readyz, &["caches".into(), "other".into()]);
        assert!(report.is_well());
        assert_eq!(
            report.text(true),
            "[+]caches excluded: ok\nwarn: some health checks cannot be excluded: no matches for \"other\"\n\
             readyz check passed\n"
        );
    }

    #[test]
    fn what_is_forgotten_fails_no_more() {
        let health = health();
        health.forget("caches");
        assert_eq!(health.names(), ["leaderElection"]);
        assert!(health.ask(Probe::Readyz, &[]).is_well());
    }

    #[test]
    fn one_check_can_be_asked_by_name() {
        assert_eq!(health().ask_one("leaderElection"), Some(Ok(())));
        assert!(health().ask_one("caches").unwrap().is_err());
        assert_eq!(health().ask_one("none"), None);
    }
}
