//! What a real Prometheus makes of metrics, alerts and dashboard of a healthy installation.

use anyhow::{Result, ensure};
use e2e::prometheus::Prometheus;
use testbed::wait_for;

/// Panels that are empty while all is well.
const EMPTY_WHEN_WELL: [&str; 2] = ["What Services wait for", "Addresses that moved"];

/// Every panel has data, every rule is evaluated, and no alert is even pending.
pub async fn check(prometheus: &Prometheus<'_>) -> Result<()> {
    prometheus.wait_until_it_reads_all().await?;
    let all = || async {
        let mut empty = Vec::new();
        for query in &prometheus.queries {
            let found = prometheus.query(&query.expression).map_err(|error| format!("{:?}: {error:#}", query.title))?;
            if found.as_array().is_none_or(Vec::is_empty) && !EMPTY_WHEN_WELL.contains(&query.title.as_str()) {
                empty.push(format!("{}: {}", query.title, query.expression));
            }
        }
        if empty.is_empty() { Ok(()) } else { Err(format!("no data for {empty:?}")) }
    };
    wait_for("data for every panel", e2e::PATIENCE, all).await?;
    let rules = prometheus.rules()?;
    ensure!(rules.len() == prometheus.alerts, "{} of {} rules are loaded", rules.len(), prometheus.alerts);
    for rule in rules {
        ensure!(rule["health"] == "ok" && rule["state"] == "inactive", "{rule}");
    }
    Ok(())
}
