//! Watches through the proxy, with two faults: a cache that is behind, and a watch that sends only bookmarks.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::channel::mpsc;
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior};

use crate::faults::FaultSwitch;

/// How often a cache without news says that it is alive.
const BOOKMARK: Duration = Duration::from_secs(1);

/// A watch that somebody has begun.
#[derive(Debug, Clone)]
pub struct Watch {
    /// Namespace.
    pub namespace: String,
    /// Plural of the kind.
    pub resource: String,
    /// Whether bookmarks are welcome.
    pub bookmarks: bool,
    /// Where it begins.
    pub version: String,
    /// Of the cache that is behind, if one is.
    pub behind: bool,
}

/// Whole lines of a body that comes in pieces.
#[derive(Debug, Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn add(&mut self, piece: &[u8]) -> Vec<Bytes> {
        self.0.extend_from_slice(piece);
        let Some(end) = self.0.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
        let rest = self.0.split_off(end + 1);
        let whole = std::mem::replace(&mut self.0, rest);
        whole.split_inclusive(|byte| *byte == b'\n').map(Bytes::copy_from_slice).collect()
    }
}

/// The bookmark of a watch without events. `None` for kinds that guests do not read.
fn bookmark(watch: &Watch) -> Option<Bytes> {
    let (api_version, kind) = match watch.resource.as_str() {
        "loadbalancers" => ("loadbalancer.harvesterhci.io/v1beta1", "LoadBalancer"),
        "virtualmachines" => ("kubevirt.io/v1", "VirtualMachine"),
        "virtualmachineinstances" => ("kubevirt.io/v1", "VirtualMachineInstance"),
        _ => return None,
    };
    let metadata = json!({"resourceVersion": watch.version, "creationTimestamp": null});
    let object = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": {}});
    Some(format!("{}\n", json!({"type": "BOOKMARK", "object": object})).into())
}

/// The version of the object on a line of a watch.
fn version(line: &[u8]) -> Option<String> {
    let event: Value = serde_json::from_slice(line).ok()?;
    event["object"]["metadata"]["resourceVersion"].as_str().map(ToOwned::to_owned)
}

/// Passes a watch on, late or not at all while a fault says so. Order stays, and nothing is lost.
pub fn relay(upstream: Body, faults: Arc<FaultSwitch>, mut watch: Watch) -> Body {
    let (mut out, passed) = mpsc::channel::<Result<Bytes, Infallible>>(1);
    tokio::spawn(async move {
        let mut pieces = upstream.into_data_stream();
        let (mut lines, mut held) = (Lines::default(), VecDeque::<(Instant, Bytes)>::new());
        let mut changed = faults.subscribe();
        let mut alive = tokio::time::interval(BOOKMARK);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ended = false;
        loop {
            let fault = faults.get(&watch.namespace);
            let lag = Duration::from_secs(if watch.behind { fault.stale_seconds.into() } else { 0 });
            let due = held.front().map(|(arrived, _)| *arrived + lag).filter(|_| !fault.bookmarks_only);
            let next = tokio::select! {
                biased;
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)),
                if due.is_some() => held.pop_front().map(|(_, line)| line),
                piece = pieces.next(), if !ended => {
                    match piece {
                        Some(Ok(piece)) => {
                            held.extend(lines.add(&piece).into_iter().map(|line| (Instant::now(), line)));
                        }
                        _ => ended = true,
                    }
                    None
                }
                outcome = changed.changed() => {
                    if outcome.is_err() {
                        return;
                    }
                    None
                }
                _ = alive.tick(), if fault.bookmarks_only && watch.bookmarks => bookmark(&watch),
            };
            if let Some(line) = next {
                watch.version = version(&line).unwrap_or(watch.version);
                if out.send(Ok(line)).await.is_err() {
                    return;
                }
            }
            // A watch that has ended has sent all events, so the remaining delay has no effect.
            if ended && held.is_empty() {
                return;
            }
        }
    });
    Body::from_stream(passed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Faults;

    fn watch(behind: bool) -> Watch {
        let (namespace, resource) = ("guests".to_owned(), "loadbalancers".to_owned());
        Watch { namespace, resource, bookmarks: true, version: "3".to_owned(), behind }
    }

    fn line(version: u32) -> String {
        format!("{}\n", json!({"type": "MODIFIED", "object": {"metadata": {"resourceVersion": version.to_string()}}}))
    }

    /// A watch under these faults; its end for writing and its lines.
    fn begin(
        faults: Faults,
        behind: bool,
    ) -> (mpsc::Sender<Result<Bytes, Infallible>>, axum::body::BodyDataStream, Arc<FaultSwitch>) {
        let faults = Arc::new(FaultSwitch::new(faults));
        let (events, body) = mpsc::channel(10);
        (events, relay(Body::from_stream(body), faults.clone(), watch(behind)).into_data_stream(), faults)
    }

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        let mut lines = Lines::default();
        assert!(lines.add(b"one").is_empty());
        assert_eq!(lines.add(b"\ntwo\nthr"), [Bytes::from("one\n"), Bytes::from("two\n")]);
        assert_eq!(lines.add(b"ee\n"), [Bytes::from("three\n")]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cache_that_is_behind_tells_everything_late_and_in_order() {
        for (behind, late) in [(false, 0), (true, 10)] {
            let (mut events, mut told, _) = begin(Faults { stale_seconds: 10, ..Faults::default() }, behind);
            let begin = Instant::now();
            events.send(Ok([line(4), line(5)].concat().into())).await.unwrap();
            assert_eq!(told.next().await.unwrap().unwrap(), line(4));
            assert_eq!(told.next().await.unwrap().unwrap(), line(5));
            assert_eq!(begin.elapsed().as_secs(), late);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cache_with_bookmarks_only_says_where_it_was_and_tells_the_rest_after_the_fault() {
        let (mut events, mut told, faults) = begin(Faults { bookmarks_only: true, ..Faults::default() }, false);
        events.send(Ok(line(4).into())).await.unwrap();
        for _ in 0..3 {
            let said: Value = serde_json::from_slice(&told.next().await.unwrap().unwrap()).unwrap();
            assert_eq!(
                (&said["type"], &said["object"]["metadata"]["resourceVersion"]),
                (&json!("BOOKMARK"), &json!("3"))
            );
        }
        faults.set("guests", Faults::default());
        loop {
            let said = told.next().await.unwrap().unwrap();
            if said == line(4) {
                break;
            }
            assert!(said.starts_with(b"{\"object\"") && version(&said).as_deref() == Some("3"), "{said:?}");
        }
    }
}
