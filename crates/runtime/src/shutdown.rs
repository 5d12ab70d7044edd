//! One way to stop: a token that SIGTERM and SIGINT cancel. A second signal ends the process at once.

use tokio::signal::unix::{SignalKind, signal};

pub use tokio_util::sync::CancellationToken as Token;

/// A token that is cancelled by the first SIGTERM or SIGINT. The second one exits with status 1: whoever sends it does
/// not want to wait for us. Call once, inside the tokio runtime.
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
