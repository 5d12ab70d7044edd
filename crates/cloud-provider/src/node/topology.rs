//! Decides when the topology labels of an initialised Node follow its machine. A machine that moves may be reported at
//! the old host, at the new one and at the old one again. Each change of a zone label makes schedulers and controllers
//! recompute, so the change waits until it is stable. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::view::NodeView;

/// How long a new place has to be reported before it is believed.
pub(super) const SETTLES: Duration = Duration::from_secs(10);

/// A change that is not believed yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Moving {
    to: BTreeMap<&'static str, String>,
    since: Instant,
}

/// Whether the labels may be written now; `Err` with the time to wait otherwise. A label that is missing is written
/// without delay.
pub(super) fn settled(
    node: &NodeView,
    wanted: &BTreeMap<&'static str, String>,
    moving: &mut Option<Moving>,
    now: Instant,
) -> Result<(), Duration> {
    let changes = wanted.iter().any(|(label, value)| node.labels.get(label).is_some_and(|known| known != value));
    if !changes {
        *moving = None;
        return Ok(());
    }
    let since = match moving {
        Some(known) if known.to == *wanted => known.since,
        _ => {
            *moving = Some(Moving { to: wanted.clone(), since: now });
            now
        }
    };
    match SETTLES.checked_sub(now.duration_since(since)).filter(|left| !left.is_zero()) {
        Some(left) => Err(left),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::node;

    const ZONE: &str = "topology.kubernetes.io/zone";

    fn in_zone(zone: &str) -> BTreeMap<&'static str, String> {
        BTreeMap::from([(ZONE, zone.to_owned())])
    }

    #[test]
    fn h10_a_zone_that_changes_to_and_fro_is_never_written_and_one_that_stays_is() {
        let mut view = node("n");
        view.labels.insert(ZONE, "rack-1");
        let mut moving = None;
        let start = Instant::now();
        let mut look =
            |zone: &str, after: u64| settled(&view, &in_zone(zone), &mut moving, start + Duration::from_secs(after));
        for second in (0..60).step_by(6) {
            assert!(look("rack-2", second).is_err(), "for less than {SETTLES:?}");
            assert_eq!(look("rack-1", second + 3), Ok(()), "nothing to write");
        }
        assert_eq!(look("rack-2", 60), Err(SETTLES));
        assert_eq!(look("rack-2", 64), Err(Duration::from_secs(6)));
        assert_eq!(look("rack-3", 65), Err(SETTLES), "somewhere else again");
        assert_eq!(look("rack-3", 75), Ok(()));
    }

    #[test]
    fn a_label_that_is_missing_is_written_at_once() {
        assert_eq!(settled(&node("n"), &in_zone("rack-1"), &mut None, Instant::now()), Ok(()));
    }
}
