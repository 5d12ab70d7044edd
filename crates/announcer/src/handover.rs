//! The Lease between the election and the engine: who holds it, giving it back, and who takes it then.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use runtime::error::chain;
use runtime::leader::{Election, Leadership};
use runtime::shutdown::Token;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::engine::Input;
use crate::ownership::LeaseState;

/// While stopping: how often the Lease is read to see who takes it.
const SUCCESSOR_POLL: Duration = Duration::from_millis(200);

/// What an election says, in the engine's words.
pub fn lease_state(leadership: &Leadership) -> LeaseState {
    match leadership {
        Leadership::Unknown => LeaseState::Unknown,
        Leadership::Following { holder } => LeaseState::Other(holder.clone()),
        Leadership::Leading { confirmed, .. } => LeaseState::Held { confirmed: *confirmed },
    }
}

/// Tells the engine what the election says.
pub async fn feed_leadership(
    mut leadership: tokio::sync::watch::Receiver<Leadership>,
    inputs: mpsc::UnboundedSender<Input>,
    stop: Token,
) {
    loop {
        let state = lease_state(&leadership.borrow_and_update());
        let _ = inputs.send(Input::Lease(state));
        tokio::select! {
            () = stop.cancelled() => return,
            changed = leadership.changed() => if changed.is_err() {
                // The election has ended because we are stopping; the engine knows.
                stop.cancelled().await;
                return;
            },
        }
    }
}

/// Sees who takes the Lease after we have handed it back.
pub struct Successor {
    /// Where the Lease is.
    pub lease: Api<Lease>,
    /// Its name.
    pub name: String,
    /// Ours in it.
    pub node: String,
    /// To the engine.
    pub inputs: mpsc::UnboundedSender<Input>,
}

impl Successor {
    async fn watch(&self) {
        let mut told = false;
        loop {
            let holder = match tokio::time::timeout(Duration::from_secs(2), self.lease.get_opt(&self.name)).await {
                Ok(Ok(lease)) => Some(lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default()),
                _ => None,
            };
            if !std::mem::replace(&mut told, true) {
                // Still in our name means that the release did not reach the API.
                let released = holder.as_ref().is_some_and(|holder| *holder != self.node);
                let _ = self.inputs.send(Input::Released(released));
            }
            if let Some(holder) = holder.filter(|holder| !holder.is_empty()) {
                let _ = self.inputs.send(Input::Successor(holder));
                return;
            }
            tokio::time::sleep(SUCCESSOR_POLL).await;
        }
    }
}

/// Takes part in the election until the Lease is to be handed back.
pub async fn elect(election: Election, after: Successor, release: CancellationToken, stop: Token) {
    let work = async {
        if let Err(error) = election.run(release).await {
            tracing::warn!(error = %chain(&error), "the election ended");
        }
        after.watch().await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = work => {}
    }
}
