//! Swaps that wait for their turn. For each Service one swap runs and at most one waits, the latest. While the API
//! server does not answer, the engine requests the same swaps repeatedly.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::ownership::node::Swap;
use crate::view::ServiceKey;

/// A swap that has waited longer than this is returned to the engine, because the former owner may answer again by now.
pub const WAIT_LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// The waiting swap of each Service, with the time of its last request.
    waiting: BTreeMap<ServiceKey, (Swap, Instant)>,
    /// The waiting Services, in the order of their first request.
    order: VecDeque<ServiceKey>,
}

impl Backlog {
    /// Adds a swap. `running`: the swap of the same Service that is under way.
    pub fn ask(&mut self, now: Instant, key: ServiceKey, swap: Swap, running: Option<&Swap>) {
        if running == Some(&swap) {
            self.waiting.remove(&key);
            self.order.retain(|waiting| *waiting != key);
        } else if self.waiting.insert(key.clone(), (swap, now)).is_none() {
            self.order.push_back(key);
        }
    }

    /// Takes the next swap whose Service has none under way. The flag says whether it has waited too long.
    pub fn begin(
        &mut self,
        now: Instant,
        is_running: impl Fn(&ServiceKey) -> bool,
    ) -> Option<(ServiceKey, Swap, bool)> {
        let at = self.order.iter().position(|key| !is_running(key))?;
        let key = self.order.remove(at)?;
        let (swap, asked) = self.waiting.remove(&key)?;
        Some((key, swap, now.saturating_duration_since(asked) > WAIT_LIMIT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ownership::node::{OwnerRecord, Term};
    use crate::view::Uid;

    fn swap(term: u64) -> Swap {
        Swap {
            uid: Uid("u".into()),
            expect: None,
            owner_record: OwnerRecord { host: "node-1".into(), term: Term(term) },
        }
    }

    #[test]
    fn of_each_service_one_swap_is_under_way_and_one_waits_however_often_it_is_asked_for() {
        let (web, api) = (ServiceKey::new("default", "web"), ServiceKey::new("default", "api"));
        let (now, mut backlog) = (Instant::now(), Backlog::default());
        for term in 2..1000 {
            backlog.ask(now, web.clone(), swap(term), Some(&swap(1)));
            backlog.ask(now, api.clone(), swap(7), None);
        }
        assert_eq!((backlog.waiting.len(), backlog.order.len()), (2, 2));
        let web_runs = |key: &ServiceKey| *key == web;
        assert_eq!(backlog.begin(now, web_runs), Some((api.clone(), swap(7), false)), "web is still under way");
        assert_eq!(backlog.begin(now, web_runs), None);
        assert_eq!(backlog.begin(now, |_| false), Some((web.clone(), swap(999), false)), "the last that was asked for");
        backlog.ask(now, web.clone(), swap(1000), Some(&swap(999)));
        backlog.ask(now, web.clone(), swap(999), Some(&swap(999)));
        assert_eq!(backlog.begin(now, |_| false), None, "what was asked for last is being answered");
    }

    #[test]
    fn a_swap_that_had_to_wait_is_late_unless_it_was_asked_for_again() {
        let (web, api) = (ServiceKey::new("default", "web"), ServiceKey::new("default", "api"));
        let (start, mut backlog) = (Instant::now(), Backlog::default());
        for key in [&web, &api] {
            backlog.ask(start, key.clone(), swap(1), None);
        }
        let late = start + WAIT_LIMIT + Duration::from_millis(1);
        backlog.ask(late, api.clone(), swap(1), None);
        assert_eq!(backlog.begin(late, |_| false), Some((web, swap(1), true)));
        assert_eq!(backlog.begin(late, |_| false), Some((api, swap(1), false)));
    }
}
