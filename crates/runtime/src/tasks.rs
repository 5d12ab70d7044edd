//! Owns the background tasks. If a task ends without a request to stop, the process ends with an error that names the
//! task: a partly working controller is worse than a restart.

use std::convert::Infallible;
use std::time::Duration;

use tokio::task::{Id, JoinSet};

use crate::shutdown::Token;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Tasks that are meant to run until shutdown.
#[derive(Debug)]
pub struct Tasks {
    set: JoinSet<Result<(), BoxError>>,
    names: Vec<(Id, String)>,
    stop: Token,
}

/// Why the process has to end.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// The task reported an error.
    #[error("{name} failed")]
    Failed {
        /// Name of the task.
        name: String,
        /// The error of the task.
        source: BoxError,
    },
    /// The task returned although it should run forever.
    #[error("{name} ended unexpectedly")]
    Ended {
        /// Name of the task.
        name: String,
    },
    /// The task panicked.
    #[error("{name} panicked: {message}")]
    Panicked {
        /// Name of the task.
        name: String,
        /// The message of the panic.
        message: String,
    },
}

impl Tasks {
    /// An empty set of tasks. `stop` ends them in an orderly way; it is also cancelled when a task ends by itself.
    pub fn new(stop: Token) -> Self {
        Self { set: JoinSet::new(), names: Vec::new(), stop }
    }

    /// The token that the tasks should watch.
    pub fn stop(&self) -> Token {
        self.stop.clone()
    }

    /// Starts a task that ends by itself after `stop`, and not before.
    pub fn spawn<E: Into<BoxError>>(
        &mut self,
        name: impl Into<String>,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let handle = self.set.spawn(async move { task.await.map_err(Into::into) });
        self.names.push((handle.id(), name.into()));
    }

    /// Starts a task that does not end by itself; it is dropped at `stop`.
    pub fn spawn_endless(&mut self, name: impl Into<String>, task: impl Future<Output = Infallible> + Send + 'static) {
        let stop = self.stop.clone();
        self.spawn(name, async move {
            tokio::select! {
                () = stop.cancelled() => Ok::<(), Infallible>(()),
                never = task => match never {},
            }
        });
    }

    /// Waits for `stop`, or for a task that ends earlier; then gives the others `patience` to finish.
    pub async fn run(mut self, patience: Duration) -> Result<(), TaskError> {
        let stop = self.stop.clone();
        let mut result = Ok(());
        tokio::select! {
            // A task that ends because of `stop` may be ready at the same moment.
            biased;
            () = stop.cancelled() => {}
            Some(ended) = self.set.join_next_with_id() => {
                result = Err(self.error(ended));
                stop.cancel();
            }
        }
        let drained = tokio::time::timeout(patience, async {
            while let Some(ended) = self.set.join_next_with_id().await {
                if let Err(error) = self.outcome(ended) {
                    tracing::warn!(error = %crate::error::chain(&error), "a task failed during the shutdown");
                    if result.is_ok() {
                        result = Err(error);
                    }
                }
            }
        })
        .await;
        if drained.is_err() {
            let names: Vec<&str> = self.names.iter().map(|(_, name)| name.as_str()).collect();
            tracing::warn!("these tasks did not finish within {patience:?} and were stopped: {}", names.join(", "));
        }
        result
    }

    fn error(&mut self, ended: Result<(Id, Result<(), BoxError>), tokio::task::JoinError>) -> TaskError {
        let name = self.outcome(ended);
        match name {
            Ok(name) => TaskError::Ended { name },
            Err(error) => error,
        }
    }

    /// The name of a task that ended successfully, or its error.
    fn outcome(
        &mut self,
        ended: Result<(Id, Result<(), BoxError>), tokio::task::JoinError>,
    ) -> Result<String, TaskError> {
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let position =
            self.names.iter().position(|(known, _)| *known == id).expect("every task was named when it was started");
        let (_, name) = self.names.swap_remove(position);
        match ended {
            Ok((_, Ok(()))) => Ok(name),
            Ok((_, Err(source))) => Err(TaskError::Failed { name, source }),
            Err(error) => Err(TaskError::Panicked { name, message: panic_message(error) }),
        }
    }
}

fn panic_message(error: tokio::task::JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "cancelled".into() };
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "unknown".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn a_task_that_ends_takes_the_others_down_and_is_named() {
        let mut tasks = Tasks::new(Token::new());
        let stop = tasks.stop();
        let finished = Token::new();
        let told = finished.clone();
        tasks.spawn("patient", async move {
            stop.cancelled().await;
            told.cancel();
            Ok::<(), Infallible>(())
        });
        tasks.spawn("leader election", async { Err(std::io::Error::other("lease lost")) });
        let error = tasks.run(PATIENCE).await.unwrap_err();
        assert_eq!(crate::error::chain(&error), "leader election failed: lease lost");
        assert!(finished.is_cancelled(), "the others finished first");
    }

    #[tokio::test(start_paused = true)]
    async fn returning_early_is_an_error_too() {
        let mut tasks = Tasks::new(Token::new());
        tasks.spawn("watch", async { Ok::<(), Infallible>(()) });
        assert_eq!(tasks.run(PATIENCE).await.unwrap_err().to_string(), "watch ended unexpectedly");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_well_even_if_a_task_hangs() {
        let mut tasks = Tasks::new(Token::new());
        let stop = tasks.stop();
        tasks.spawn_endless("endless", std::future::pending());
        tasks.spawn("stuck", std::future::pending::<Result<(), Infallible>>());
        stop.cancel();
        assert!(tasks.run(PATIENCE).await.is_ok());
    }
}
