//! Leader election on a `coordination.k8s.io/v1` Lease, compatible with client-go: replicas in Go and of this project
//! can share a Lease.
//!
//! The rules are in [`elector`], which has no clock and no client, so that a simulation can run them too. [`Election`]
//! sends the requests and feeds the answers back.

pub mod elector;
pub mod hand_back;
mod lease;
mod outage;
mod task;

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;

use crate::host;
use crate::shutdown::Token;

pub use hand_back::HandBack;
pub use lease::{Annotation, Record};
pub use task::{AnnotationValue, Election, LeaderError};

/// The Lease, the identity, and the durations of an election.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderConfig {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// `holderIdentity` while this replica leads.
    pub identity: String,
    /// Source component of the Events on the Lease.
    pub component: String,
    /// Durations.
    pub timing: Timing,
    /// What happens if the Lease cannot be renewed in time.
    pub on_loss: OnLoss,
    /// Also watch the Lease, so that a release is seen at once. Without the right to watch, it is only polled.
    pub watch: bool,
}

/// The three durations of client-go's election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Non-holders wait this long after they last saw the record change. Written into the Lease.
    pub lease_duration: Duration,
    /// A round of renewal that has not succeeded for this long has failed. Half of it is the time-out of each request.
    pub renew_deadline: Duration,
    /// Pause between rounds and between attempts.
    pub retry_period: Duration,
}

impl Default for Timing {
    /// The defaults of client-go and the Go provider: 15 s, 10 s, 2 s.
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

impl Timing {
    /// Checks the relations between the durations like client-go (CCM spec 1.3).
    pub fn validate(&self) -> Result<(), TimingError> {
        if self.retry_period.is_zero() {
            return Err(TimingError::RetryPeriod);
        }
        if self.lease_duration <= self.renew_deadline {
            return Err(TimingError::LeaseDuration { lease: self.lease_duration, renew: self.renew_deadline });
        }
        if self.renew_deadline <= self.retry_period.mul_f64(1.2) {
            return Err(TimingError::RenewDeadline { renew: self.renew_deadline, retry: self.retry_period });
        }
        Ok(())
    }
}

/// Durations that contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// The retry period is zero.
    #[error("the retry period of the leader election must be greater than zero")]
    RetryPeriod,
    /// Another replica could take the Lease before this one has given up.
    #[error(
        "the lease duration of the leader election ({lease:?}) must be greater than its renew deadline ({renew:?})"
    )]
    LeaseDuration {
        /// Configured lease duration.
        lease: Duration,
        /// Configured renew deadline.
        renew: Duration,
    },
    /// Not even one retry fits into the renew deadline.
    #[error(
        "the renew deadline of the leader election ({renew:?}) must be greater than 1.2 times its retry period \
        ({retry:?})"
    )]
    RenewDeadline {
        /// Configured renew deadline.
        renew: Duration,
        /// Configured retry period.
        retry: Duration,
    },
}

/// What a leader does that cannot renew its Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLoss {
    /// Stop leading and end the election with an error: a replica must not act in a role that it has lost.
    End,
    /// Keep the role, unconfirmed, until another replica is seen to hold the Lease; then follow. For roles whose loss
    /// does more harm than a doubtful owner (decisions.md 18).
    KeepTrying,
}

/// The leader, as far as this replica knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leadership {
    /// The Lease was not read yet, or it names this replica but was not renewed yet.
    Unknown,
    /// Another replica leads, or none (empty holder).
    Following {
        /// `holderIdentity` of the Lease.
        holder: String,
    },
    /// This replica leads.
    Leading {
        /// Since when, without interruption.
        since: tokio::time::Instant,
        /// Whether the last renewal is recent enough for other replicas to respect it. Always true with
        /// [`OnLoss::End`].
        confirmed: bool,
    },
}

impl Leadership {
    /// Whether this replica leads, confirmed or not.
    pub fn is_leading(&self) -> bool {
        matches!(self, Self::Leading { .. })
    }
}

/// Runs `work` once, while this replica leads; for elections with [`OnLoss::End`]. An orderly end has three steps:
/// `stop` is cancelled, `work` (which gets `stop`) finishes what is under way, and only then is the Lease released. So
/// no successor works at the same time. If the Lease is lost, `work` is dropped at once, because another replica may
/// already be doing the rest.
///
/// Returns the result of `work`, or `None` if `stop` came before this replica led.
pub async fn run_while_leading<W: Future>(
    election: Election,
    stop: Token,
    work: impl FnOnce(Token) -> W,
) -> Result<Option<W::Output>, LeaderError> {
    let release = Token::new();
    let mut leadership = election.leadership();
    let mut election = std::pin::pin!(election.run(release.clone()));
    let work = async {
        let leads = tokio::select! {
            biased;
            () = stop.cancelled() => false,
            // The sender is in the election, which runs concurrently.
            changed = leadership.wait_for(Leadership::is_leading) => changed.is_ok(),
        };
        if leads { Some(work(stop.clone()).await) } else { None }
    };
    let outcome = tokio::select! {
        biased;
        ended = &mut election => return ended.map(|_| None),
        outcome = work => outcome,
    };
    release.cancel();
    election.await?;
    Ok(outcome)
}

/// The Lease as the object of Events.
pub fn lease_reference(namespace: &str, name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("coordination.k8s.io/v1".into()),
        kind: Some("Lease".into()),
        namespace: Some(namespace.into()),
        name: Some(name.into()),
        ..ObjectReference::default()
    }
}

/// An identity as client-go's programs use it: `<hostname>_<uuid>`, new with each start.
pub fn unique_identity() -> String {
    format!("{}_{}", host::name(), uuid::Uuid::new_v4())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_that_cannot_work_are_refused_and_named() {
        let timing = |lease, renew, retry| Timing {
            lease_duration: Duration::from_secs(lease),
            renew_deadline: Duration::from_secs(renew),
            retry_period: Duration::from_secs(retry),
        };
        assert_eq!(timing(15, 10, 2).validate(), Ok(()));
        assert!(timing(10, 10, 2).validate().unwrap_err().to_string().contains("lease duration"));
        assert!(timing(15, 2, 2).validate().unwrap_err().to_string().contains("1.2 times"));
        assert!(timing(15, 10, 0).validate().unwrap_err().to_string().contains("retry period"));
    }
}
