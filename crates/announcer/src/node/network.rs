//! Changes of the node's network wake the engine.

use std::sync::Arc;

use futures::{Stream, StreamExt};
use l2::netlink::Changes;
use tokio::sync::Notify;

/// Tells the engine about changes of the node's network. Changes of our own addresses are not reported while the
/// addresses exist.
pub async fn watch_network(changed: Arc<Notify>) -> Result<(), l2::netlink::NetlinkError> {
    wake_for_each(Changes::subscribe()?, &changed).await;
    Err(l2::netlink::NetlinkError::Closed { tried: "hear about changes of the network".to_owned() })
}

/// However many changes come before the engine looks, it is notified once: a starting routing daemon makes ten
/// thousand.
async fn wake_for_each(changes: impl Stream, changed: &Notify) {
    changes.for_each(async |_| changed.notify_one()).await;
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn ten_thousand_changes_of_the_network_wake_the_engine_once() {
        let changed = Notify::new();
        wake_for_each(futures::stream::iter(0..10_000), &changed).await;
        assert_eq!([(); 2].map(|()| changed.notified().now_or_never()), [Some(()), None]);
    }
}
