//! The way to stop: a token that SIGTERM and SIGINT cancel. A second signal ends the process at once.

use tokio::signal::unix::{SignalKind, signal};

pub use tokio_util::sync::CancellationToken as Token;

/// A token that the first SIGTERM or SIGINT cancels. The second signal ends the process with status 1, because its
/// sender does not want to wait. Call once, inside the tokio runtime.
pub fn on_signals() -> std::io::Result<Token> {
    let token = Token::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stop = token.clone();
    tokio::spawn(async move {
        for count in 0.. {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            if count > 0 {
                tracing::warn!(signal = name, "the process received a second signal; it exits at once");
                std::process::exit(1);
            }
            tracing::info!(signal = name, "the process received a signal; it shuts down");
            stop.cancel();
        }
    });
    Ok(token)
}
