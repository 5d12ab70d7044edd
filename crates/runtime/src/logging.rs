//! Logging: one structured logger on stderr, text or JSON, whose level is set by klog's flags.

use std::ffi::OsStr;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::SystemTime;

use crate::client::REQUESTS;

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For users.
    Text,
    /// One JSON object per line.
    Json,
}

/// How much is logged, on the scale of the program that this one replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verbosity {
    /// klog's `--v`: a higher number logs more. 3 is debug, 5 is trace, 6 shows libraries, 8 shows everything.
    Klog(u8),
    /// The levels of Go's `log/slog`: a higher number logs less. -8 is trace, -4 debug, 0 info, 4 warnings, 8 errors.
    Slog(i32),
}

impl Verbosity {
    /// The level of this program, and the level of libraries and of the log line per request.
    fn levels(self) -> (&'static str, &'static str) {
        match self {
            Self::Klog(0..=2) | Self::Slog(0..=3) => ("info", "warn"),
            Self::Klog(3..=4) | Self::Slog(-7..=-1) => ("debug", "warn"),
            Self::Klog(5) | Self::Slog(..=-8) => ("trace", "info"),
            Self::Klog(6..=7) => ("trace", "debug"),
            Self::Klog(8..) => ("trace", "trace"),
            Self::Slog(4..=7) => ("warn", "warn"),
            Self::Slog(8..) => ("error", "error"),
        }
    }
}

/// The filter of a verbosity.
fn directives(verbosity: Verbosity) -> String {
    let (ours, theirs) = verbosity.levels();
    let libraries =
        ["hyper", "hyper_util", "kube_client", "kube_runtime", "rustls", "tower", "h2", "netlink_proto", "rtnetlink"];
    let filter = libraries
        .iter()
        .chain([&REQUESTS])
        .fold(ours.to_owned(), |filter, library| format!("{filter},{library}={theirs}"));
    // The library logs every failed request through a proxy at error level, which is two lines per second while
    // Harvester is away. The sender of the request reports the failure anyway.
    if theirs == "debug" || theirs == "trace" { filter } else { format!("{filter},kube_client::client::builder=off") }
}

/// The filter, and the problem with `asked`, the value of `RUST_LOG`. An empty value counts as unset, because its
/// literal meaning (errors only) is hardly ever wanted. An invalid value does not prevent the start.
fn filter(asked: Option<&str>, verbosity: Verbosity) -> (EnvFilter, Option<String>) {
    let usual = || EnvFilter::new(directives(verbosity));
    let Some(asked) = asked.filter(|asked| !asked.trim().is_empty()) else { return (usual(), None) };
    match EnvFilter::try_new(asked) {
        Ok(filter) => (filter, None),
        Err(error) => {
            let problem = format!(
                "environment variable RUST_LOG is {asked:?}: {error}; accepted: a level (error, warn, info, debug, \
                 trace) and levels of modules, such as info,announcer=debug; it is ignored"
            );
            (usual(), Some(problem))
        }
    }
}

/// Starts logging. `RUST_LOG` overrides the verbosity. Call once.
pub fn init(format: Format, verbosity: Verbosity) {
    let asked = std::env::var_os(EnvFilter::DEFAULT_ENV);
    let (filter, problem) = filter(asked.as_deref().map(OsStr::to_string_lossy).as_deref(), verbosity);
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_timer(SystemTime);
    // A second call, as in tests, has no effect.
    let _ = match format {
        Format::Text => subscriber.with_ansi(false).try_init(),
        Format::Json => subscriber.json().flatten_event(true).try_init(),
    };
    if let Some(problem) = problem {
        tracing::warn!("{problem}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Verbosity = Verbosity::Klog(3);

    #[test]
    fn every_level_is_a_valid_filter() {
        let slog = (-10..=10).map(Verbosity::Slog);
        for verbosity in (0..=10).map(Verbosity::Klog).chain(slog) {
            assert!(EnvFilter::try_new(directives(verbosity)).is_ok());
        }
        assert!(directives(Verbosity::Klog(0)).starts_with("info,hyper=warn"));
    }

    #[test]
    fn each_level_of_the_announcer_is_the_one_that_the_reference_names() {
        for (number, level) in [(-8, "trace"), (-4, "debug"), (-1, "debug"), (0, "info"), (4, "warn"), (8, "error")] {
            assert_eq!(Verbosity::Slog(number).levels().0, level, "{number}");
        }
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_told_and_the_usual_one_is_used() {
        let (usual, problem) = filter(Some("[[["), USUAL);
        let problem = problem.unwrap();
        assert!(problem.contains(r#"RUST_LOG is "[[[""#) && problem.contains("accepted: "), "{problem}");
        assert_eq!(usual.to_string(), filter(None, USUAL).0.to_string());
        assert_eq!(filter(Some(" "), USUAL).0.to_string(), usual.to_string());
        let (asked, problem) = filter(Some("announcer=debug"), USUAL);
        assert_eq!((asked.to_string().as_str(), problem), ("announcer=debug", None));
    }
}
