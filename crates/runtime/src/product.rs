//! The names of the running program.

/// The identity of the program in requests and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Product {
    /// Name before the version in `User-Agent`.
    pub name: &'static str,
    /// Prefix of its own metrics, without the underscore.
    pub metrics_prefix: &'static str,
    /// Its version.
    pub version: &'static str,
}

impl Product {
    /// `User-Agent` of its requests.
    pub fn user_agent(&self) -> String {
        format!("{}/{}", self.name, self.version)
    }

    /// The full name of a metric.
    pub fn metric(&self, name: &str) -> String {
        format!("{}_{name}", self.metrics_prefix)
    }
}

#[cfg(any(test, feature = "scenario"))]
impl Product {
    /// For tests.
    pub const TEST: Self = Self { name: "tested", metrics_prefix: "tested", version: "1.2.3" };
}
