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

/// The log levels of a verbosity: 5 trace, 3 debug, otherwise info. Libraries, and the log line per request, stay at
/// warn until 6; 8 shows everything.
fn directives(verbosity: u8) -> String {
    let (ours, theirs) = match verbosity {
        0..=2 => ("info", "warn"),
        3..=4 => ("debug", "warn"),
        5 => ("trace", "info"),
        6..=7 => ("trace", "debug"),
        _ => ("trace", "trace"),
    };
    let libraries =
        ["hyper", "hyper_util", "kube_client", "kube_runtime", "rustls", "tower", "h2", "netlink_proto", "rtnetlink"];
    let filter = libraries
        .iter()
        .chain([&REQUESTS])
        .fold(ours.to_owned(), |filter, library| format!("{filter},{library}={theirs}"));
    // The library logs every failed request through a proxy at error level, which is two lines per second while
    // Harvester is away. The sender of the request reports the failure anyway.
    if verbosity <= 5 { format!("{filter},kube_client::client::builder=off") } else { filter }
}

/// The filter, and the problem with `asked`, the value of `RUST_LOG`. An empty value counts as unset, because its
/// literal meaning (errors only) is hardly ever wanted. An invalid value does not prevent the start.
fn filter(asked: Option<&str>, verbosity: u8) -> (EnvFilter, Option<String>) {
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
pub fn init(format: Format, verbosity: u8) {
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

    #[test]
    fn every_level_is_a_valid_filter() {
        for verbosity in 0..=10 {
            assert!(EnvFilter::try_new(directives(verbosity)).is_ok());
        }
        assert!(directives(0).starts_with("info,hyper=warn"));
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_told_and_the_usual_one_is_used() {
        let (usual, problem) = filter(Some("[[["), 3);
        let problem = problem.unwrap();
        assert!(problem.contains(r#"RUST_LOG is "[[[""#) && problem.contains("accepted: "), "{problem}");
        assert_eq!(usual.to_string(), filter(None, 3).0.to_string());
        assert_eq!(filter(Some(" "), 3).0.to_string(), usual.to_string());
        let (asked, problem) = filter(Some("announcer=debug"), 3);
        assert_eq!((asked.to_string().as_str(), problem), ("announcer=debug", None));
    }
}
