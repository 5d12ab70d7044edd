//! Many Services at once: made, and deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Service;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};

use crate::bench_bed::{BenchBed, PARALLEL, service};
use crate::progress::{EVERY, say};

/// How long all of them may take to go: so long, or so long for each.
const LEAVING: Duration = Duration::from_mins(5);
const LEAVING_EACH: Duration = Duration::from_millis(300);

/// `prefix-0`, `prefix-1`, …
pub fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}-{n}")).collect()
}

/// Makes Services as fast as the API server takes them; when each was asked for.
pub async fn make(bench: &BenchBed, names: &[String], ipam: &str) -> Result<BTreeMap<String, Instant>> {
    make_as(&bench.services(), names, |name| service(name, ipam)).await
}

/// The same with Services of any form.
pub async fn make_as(
    api: &Api<Service>,
    names: &[String],
    form: impl Fn(&str) -> Service,
) -> Result<BTreeMap<String, Instant>> {
    stream::iter(names.iter().cloned())
        .map(|name| {
            let (api, service) = (api.clone(), form(&name));
            async move {
                let at = Instant::now();
                api.create(&PostParams::default(), &service)
                    .await
                    .with_context(|| format!("failed to create Service {name}"))?;
                Ok((name, at))
            }
        })
        .buffer_unordered(PARALLEL)
        .try_collect()
        .await
}

/// Deletes Services and waits until they are gone; how long that took.
pub async fn delete(bench: &BenchBed, names: &[String]) -> Result<Duration> {
    let begin = Instant::now();
    let api = bench.services();
    stream::iter(names.iter().cloned())
        .map(|name| {
            let api = api.clone();
            async move { api.delete(&name, &DeleteParams::default()).await }
        })
        .buffer_unordered(PARALLEL)
        .try_collect::<Vec<_>>()
        .await
        .context("failed to delete the Services")?;
    wait_until_gone(bench, names).await?;
    Ok(begin.elapsed())
}

/// Waits until these Services are gone.
pub async fn wait_until_gone(bench: &BenchBed, names: &[String]) -> Result<()> {
    let names: BTreeSet<&String> = names.iter().collect();
    let (begin, mut told, api) = (Instant::now(), Instant::now(), bench.services());
    loop {
        let asked = Instant::now();
        let there = api.list_metadata(&ListParams::default()).await.context("failed to list Services")?;
        let left = there.items.iter().filter(|service| names.contains(&service.name_any())).count();
        if left == 0 {
            return Ok(());
        }
        if told.elapsed() > EVERY {
            say(format!("  {left} Services are left"));
            told = Instant::now();
        }
        if begin.elapsed() > LEAVING.max(LEAVING_EACH * u32::try_from(names.len()).unwrap_or(u32::MAX)) {
            bail!("{left} Services are left after {} s", begin.elapsed().as_secs());
        }
        // The list of ten thousand costs more than what is measured: a tenth of the time goes into it at most.
        tokio::time::sleep((asked.elapsed() * 9).max(Duration::from_millis(50))).await;
    }
}
