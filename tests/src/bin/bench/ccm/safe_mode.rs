//! Safe mode while everything changes, on both sides: it writes nothing.

use std::time::Duration;

use anyhow::Result;
use e2e::Bed;
use e2e::bed::{NETWORK, POOL, POOL_RANGE};

use super::setup::Setup;
use super::{Figure, Results};
use crate::crowd::names;
use crate::progress;

/// Services that are served before.
const SERVED: usize = 20;

/// Safe mode for `time`.
pub async fn endure(time: Duration, ccm_args: &[String], told: &mut Results<'_>) -> Result<()> {
    let bed = ccm_args.iter().fold(Bed::builder(), |bed, arg| bed.ccm_arg(arg));
    let setup = Setup::with(bed.harvester_flag("--profile=fast"), false).await?;
    let bed = &setup.bench.bed;
    bed.set_pool(POOL, NETWORK, POOL_RANGE).await?;
    setup.start().await?;
    setup.publish(&names("served", SERVED), SERVED).await?;
    setup.bench.wait_until_quiet().await?;
    let before = bed.ccm().usage()?;
    let endured = bed.endure_safe_mode(&setup.bench.namespace, time).await?;
    let after = bed.ccm().usage()?;
    let minutes = time.as_secs() / 60;
    let of = |what: &str| format!("safe mode for {minutes} minutes while everything changes: {what}");
    told.tell(Figure::count(of("changes by others"), endured.changes));
    if endured.costs.ccm_guest.len() + endured.costs.ccm_events.len() + endured.costs.ccm_harvester.len() > 0 {
        progress::show(&endured.costs);
    }
    let (guest, host) = (&endured.costs.ccm_guest, &endured.costs.ccm_harvester);
    told.tell(Figure::count(of("writes, guest"), guest.len()).at_most(0.0));
    told.tell(Figure::count(of("Events"), endured.costs.ccm_events.len()).at_most(0.0));
    told.tell(Figure::count(of("writes, Harvester"), host.len()).at_most(0.0));
    told.tell(Figure::seconds(of("processor time"), Duration::from_millis(after.cpu_ms - before.cpu_ms)));
    Ok(())
}
