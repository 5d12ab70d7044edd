//! The API server's time ([`ApiClock`]), as the answers to this process show it.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;

use announcer_core::api_clock::ApiClock;
use jiff::Timestamp;
use runtime::client::ServerTime;

use crate::clock;

/// Shared clock; cheap to clone, and all clones share their knowledge.
#[derive(Debug, Clone, Default)]
pub struct ApiTime(Arc<Mutex<ApiClock>>);

impl ApiTime {
    /// Lower bound of the API server's time now.
    pub fn earliest(&self) -> Timestamp {
        self.known().earliest(clock::now(), Timestamp::now())
    }

    /// Upper bound of the API server's time now.
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
