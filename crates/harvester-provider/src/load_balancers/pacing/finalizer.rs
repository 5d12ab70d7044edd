//! Decides whether the controller presets the host controller's finalizer at creation (decision 8). Pure.
//!
//! A preset finalizer saves the host one of three writes per object (host pace spec 1.2). The finalizer's name
//! belongs to the host: if a newer host does not know it, the object can never be deleted. Therefore it is preset only
//! after the host has added it to an object that was created without it.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use harvester_api::keys::cloudprovider::PRESET_FINALIZER;
use tokio::time::Instant;

use super::super::view::LbView;

/// If an object with a preset finalizer is terminating for this long, the host does not remove the finalizer.
const STUCK: Duration = Duration::from_mins(1);

/// What this process knows about the host's finalizer.
#[derive(Debug, Default)]
pub struct Finalizer {
    known: bool,
    /// Objects that were created without the finalizer, and have not been seen with it.
    watched: HashSet<String>,
    /// Terminating objects with a preset finalizer, with the time since when they are terminating.
    going: HashMap<String, Instant>,
}

impl Finalizer {
    /// Whether to preset it.
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// Records that an object was created without the finalizer.
    pub fn created_without(&mut self, name: &str) {
        if !self.known {
            self.watched.insert(name.to_owned());
        }
    }

    /// Processes what the watch shows: this object, or none.
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

    /// How long the deletion of an object with a preset finalizer may still take. Zero proves that the host does not
    /// know the finalizer. From then on it is not preset, until the host adds it to an object again.
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
