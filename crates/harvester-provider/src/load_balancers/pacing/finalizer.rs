//! The host controller's finalizer, set by us at creation where the host is known to use it: pure. Decision 8.
//!
//! It saves the host one of three writes per object (host-throughput.md 1.2). Its name belongs to the host: one that a
//! newer host does not know would keep an object for ever. So it is preset only after the host has put it on an object
//! that we created without.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use harvester_api::keys::cloudprovider::PRESET_FINALIZER;
use tokio::time::Instant;

use super::super::view::LbView;

/// An object with a preset finalizer that is going for so long proves that the host does not take it off.
const STUCK: Duration = Duration::from_mins(1);

/// What is known about the host's finalizer in this life of the process.
#[derive(Debug, Default)]
pub struct Finalizer {
    known: bool,
    /// Created without, not seen with it yet.
    watched: HashSet<String>,
    /// Objects with a preset one, since when they are going.
    going: HashMap<String, Instant>,
}

impl Finalizer {
    /// Whether to preset it.
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// We created an object without it.
    pub fn created_without(&mut self, name: &str) {
        if !self.known {
            self.watched.insert(name.to_owned());
        }
    }

    /// The watch shows this object, or that there is none.
    pub fn seen(&mut self, now: Instant, name: &str, lb: Option<&LbView>) {
        let Some(lb) = lb else {
            self.watched.remove(name);
            self.going.remove(name);
            return;
        };
        let preset = lb.annotations.contains_key(PRESET_FINALIZER);
        if lb.has_host_finalizer && !preset && self.watched.remove(name) {
            self.known = true;
            self.watched.clear();
        }
        if lb.terminating && preset {
            self.going.entry(name.to_owned()).or_insert(now);
        }
    }

    /// How long an object with a preset finalizer may still take to go. Zero proves that the host does not know the
    /// finalizer: it is not preset any more until it is learnt anew.
    pub fn patience(&mut self, now: Instant, name: &str) -> Option<Duration> {
        let left = STUCK.saturating_sub(now.saturating_duration_since(*self.going.get(name)?));
        self.known &= !left.is_zero();
        Some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::build;
    use super::*;

    fn preset(name: &str) -> LbView {
        let mut lb = build::lb(name).ready("10.0.0.1").done();
        lb.annotations.insert(PRESET_FINALIZER, "true");
        lb
    }

    #[test]
    fn it_is_learnt_from_an_object_that_we_created_without_and_from_no_other() {
        let now = Instant::now();
        let mut finalizer = Finalizer::default();
        finalizer.seen(now, "other", Some(&build::lb("other").ready("10.0.0.1").done()));
        finalizer.seen(now, "preset", Some(&preset("preset")));
        assert!(!finalizer.is_known(), "not ours, or of an earlier life");
        finalizer.created_without("web");
        finalizer.seen(now, "web", Some(&build::lb("web").done()));
        assert!(!finalizer.is_known());
        finalizer.seen(now, "web", Some(&build::lb("web").ready("10.0.0.1").done()));
        assert!(finalizer.is_known());
    }

    #[test]
    fn it_is_forgotten_when_an_object_does_not_go_and_learnt_anew() {
        let mut now = Instant::now();
        let mut finalizer = Finalizer { known: true, ..Finalizer::default() };
        let going = LbView { terminating: true, ..preset("web") };
        finalizer.seen(now, "web", Some(&going));
        finalizer.seen(now, "plain", Some(&LbView { terminating: true, ..build::lb("plain").done() }));
        now += Duration::from_secs(59);
        assert_eq!(finalizer.patience(now, "web"), Some(Duration::from_secs(1)));
        now += Duration::from_secs(1);
        assert_eq!(finalizer.patience(now, "plain"), None, "its finalizer is the host's own");
        assert!(finalizer.is_known());
        assert_eq!(finalizer.patience(now, "web"), Some(Duration::ZERO));
        assert!(!finalizer.is_known());
        finalizer.created_without("new");
        finalizer.seen(now, "new", Some(&build::lb("new").ready("10.0.0.2").done()));
        assert!(finalizer.is_known());
        finalizer.seen(now, "web", None);
        assert_eq!(finalizer.patience(now, "web"), None);
    }
}
