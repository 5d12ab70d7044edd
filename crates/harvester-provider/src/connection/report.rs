//! Decides what the user is told about the connection to Harvester, and when. Pure: no I/O.

use std::time::Duration;

use runtime::client::Link;
use runtime::events::EventKind;
use tokio::time::Instant;

/// An outage is reported only after this time: a host that restarts its API server is no news.
const TOLD_AFTER: Duration = Duration::from_secs(30);

/// One message, which becomes a log line and an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) kind: EventKind,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// Remembers which problems were reported.
#[derive(Debug, Default)]
pub(super) struct Reporter {
    /// The arguments of `generate-addon` that make credentials as those in the cloud-config.
    arguments: String,
    away: Option<Instant>,
    refused: Option<Instant>,
}

impl Reporter {
    /// A reporter that has reported nothing yet.
    pub(super) fn new(arguments: String) -> Self {
        Self { arguments, ..Self::default() }
    }

    /// Returns the messages that are due. `file` is the path of the cloud-config.
    pub(super) fn step(&mut self, now: Instant, link: &Link, file: &str) -> Vec<Report> {
        let mut reports = Vec::new();
        let server = &link.server;
        match (&link.away, self.away) {
            (Some((since, error)), None) if now - *since >= TOLD_AFTER => {
                self.away = Some(*since);
                reports.push(Report {
                    kind: EventKind::Warning,
                    reason: "HarvesterUnreachable",
                    message: format!(
                        "The Harvester API at {server} has not answered for {} s: {error}. Nothing is changed \
                         meanwhile; what was asked for is done when it is back",
                        (now - *since).as_secs()
                    ),
                });
            }
            (None, Some(since)) => {
                self.away = None;
                reports.push(Report {
                    kind: EventKind::Normal,
                    reason: "HarvesterReachable",
                    message: format!("The Harvester API at {server} answers again after {} s", (now - since).as_secs()),
                });
            }
            _ => {}
        }
        match (link.refused, self.refused) {
            (Some(since), None) => {
                self.refused = Some(since);
                reports.push(Report {
                    kind: EventKind::Warning,
                    reason: "HarvesterCredentialsRefused",
                    message: format!(
                        "The Harvester API at {server} refuses the credentials in the cloud-config (401 Unauthorized): \
                         they expired or were revoked. Make a new token with `harvester-cloud-provider generate-addon \
                         {} --rotate` and put it into {file}, or into the Secret behind it; it is \
                         read again when it changes, without a restart",
                        self.arguments
                    ),
                });
            }
            (None, Some(_)) if link.away.is_none() => {
                self.refused = None;
                reports.push(Report {
                    kind: EventKind::Normal,
                    reason: "HarvesterCredentialsAccepted",
                    message: format!("The Harvester API at {server} accepts the credentials in the cloud-config"),
                });
            }
            _ => {}
        }
        reports
    }

    /// When `step` has to be called again although nothing changed.
    pub(super) fn deadline(&self, link: &Link) -> Option<Instant> {
        let (since, _) = link.away.as_ref().filter(|_| self.away.is_none())?;
        Some(*since + TOLD_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(away: Option<Instant>, refused: Option<Instant>) -> Link {
        Link { server: "https://h".into(), away: away.map(|since| (since, "no route".into())), refused }
    }

    fn reasons(reports: &[Report]) -> Vec<&'static str> {
        reports.iter().map(|report| report.reason).collect()
    }

    #[test]
    fn an_outage_is_told_once_it_lasts_and_once_it_is_over() {
        let mut reporter = Reporter::default();
        let start = Instant::now();
        let away = link(Some(start), None);
        assert_eq!(reporter.step(start + Duration::from_secs(5), &away, "f"), []);
        let due = reporter.deadline(&away).unwrap();
        assert_eq!(reasons(&reporter.step(due, &away, "f")), ["HarvesterUnreachable"]);
        assert_eq!((reporter.deadline(&away), reporter.step(due, &away, "f")), (None, Vec::new()));
        let back = reporter.step(start + Duration::from_mins(1), &link(None, None), "f");
        assert_eq!(back[0].message, "The Harvester API at https://h answers again after 60 s");
    }

    #[test]
    fn a_short_outage_is_no_news() {
        let mut reporter = Reporter::default();
        let start = Instant::now();
        assert_eq!(reporter.step(start, &link(Some(start), None), "f"), []);
        assert_eq!(reporter.step(start + Duration::from_secs(3), &link(None, None), "f"), []);
    }

    #[test]
    fn refused_credentials_are_told_at_once_with_the_file_to_mend() {
        let mut reporter = Reporter::new("demo guests".into());
        let start = Instant::now();
        let refused = link(None, Some(start));
        let told = reporter.step(start, &refused, "/etc/cloud-config");
        assert_eq!(reasons(&told), ["HarvesterCredentialsRefused"]);
        assert!(
            ["into /etc/cloud-config, ", "generate-addon demo guests --rotate`", "without a restart"]
                .iter()
                .all(|part| told[0].message.contains(part))
        );
        assert_eq!(reporter.step(start, &refused, "f"), []);
        assert_eq!(reasons(&reporter.step(start, &link(None, None), "f")), ["HarvesterCredentialsAccepted"]);
    }
}
