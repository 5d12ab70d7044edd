//! The time by the API server ([`ApiClock`]), as the answers to this process tell it.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;

use announcer_core::api_clock::ApiClock;
use jiff::Timestamp;
use runtime::client::ServerTime;

use crate::clock;

/// Cheap to clone: all clones know the same.
#[derive(Debug, Clone, Default)]
pub struct ApiTime(Arc<Mutex<ApiClock>>);

impl ApiTime {
    /// It is at least this.
    pub fn earliest(&self) -> Timestamp {
        self.known().earliest(clock::now(), Timestamp::now())
    }

    /// It is at most this.
    pub fn latest(&self) -> Timestamp {
        self.known().latest(clock::now(), Timestamp::now())
    }

    fn known(&self) -> ApiClock {
        *self.0.lock()
    }
}

impl ServerTime for ApiTime {
    fn now(&self) -> Instant {
        clock::now()
    }

    fn answered(&self, asked: Instant, date: &str) {
        self.0.lock().answered(asked, clock::now(), date);
    }
}
