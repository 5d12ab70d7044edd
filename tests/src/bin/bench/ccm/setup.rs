//! What every case needs: the bed without a data plane, Services made at once, and a watch that tells when each was
//! published.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use e2e::{Bed, CLUSTER, NETWORK, VM_NAMESPACE};
use futures::{StreamExt, TryStreamExt, stream};
use harvester_api::keys::{cloudprovider, kube_vip};
use k8s_openapi::api::core::v1::Service;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::mpsc;

use crate::bench_bed::{BenchBed, PARALLEL, service};
use crate::crowd;
use crate::figures::tenths;
use crate::progress::{EVERY, say};

/// Without any news for this long a measurement is given up.
const STALLED: Duration = Duration::from_secs(90);

/// Addresses of one pool, where there are several.
const PER_POOL: usize = 400;

/// The bench without announcers and kube-proxies.
pub struct Setup {
    pub bench: BenchBed,
    /// Among so many pools the Services are spread; none: they take the host's choice.
    pools: usize,
}

/// When Services were made and when their address was published.
#[derive(Debug, Default)]
pub struct Times {
    pub begin: Option<Instant>,
    pub made: BTreeMap<String, Instant>,
    pub published: BTreeMap<String, Instant>,
}

impl Times {
    /// From the first request until the last of them was published.
    pub fn all(&self) -> Duration {
        let last = self.published.values().max().copied();
        last.zip(self.begin).map_or(Duration::ZERO, |(last, begin)| last - begin)
    }

    /// From the first request until half of them were published.
    pub fn median_from_start(&self) -> Duration {
        let Some(begin) = self.begin else { return Duration::ZERO };
        middle(self.published.values().map(|at| *at - begin).collect())
    }

    /// From its own request until it was published, for each, sorted.
    pub fn each(&self) -> Vec<Duration> {
        let mut each: Vec<Duration> =
            self.made.iter().filter_map(|(name, made)| Some(*self.published.get(name)? - *made)).collect();
        each.sort_unstable();
        each
    }
}

/// The lower one of the two in the middle.
pub fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

/// Tells of Services that were published.
pub struct Watching {
    seen: mpsc::UnboundedReceiver<(String, Instant)>,
}

impl Setup {
    /// With Harvester at this pace, before the product is started.
    pub async fn set(profile: &str, ccm_args: &[String]) -> Result<Self> {
        let bed = ccm_args.iter().fold(Bed::builder(), |bed, arg| bed.ccm_arg(arg));
        Self::with(bed.harvester_flag(&format!("--profile={profile}")), true).await
    }

    /// The same with one more choice: whether there is a pool. Two nodes, because two replicas cannot share one.
    pub async fn with(bed: e2e::BedBuilder, pool: bool) -> Result<Self> {
        let bench = Box::pin(BenchBed::set_without_pool(bed.nodes(2))).await?;
        bench.bed.nodes.iter().for_each(testbed::SimNode::kill_proxy);
        if pool {
            bench.make_pool()?;
        }
        Ok(Self { bench, pools: 0 })
    }

    /// Gives `count` Services to pools of [`PER_POOL`] addresses each. The host rewrites a whole pool for each booking,
    /// so a pool with thousands of them would be all that is measured.
    pub fn spread(mut self, count: usize) -> Result<Self> {
        self.pools = count.div_ceil(PER_POOL);
        for n in 0..self.pools {
            let (first, last) = (2 * n, 2 * n + 1);
            let range = format!("10.201.0.0/16,start=10.201.{first}.10,end=10.201.{last}.250");
            // Only one pool may be everybody's, and no two of one scope may have the same priority.
            let (name, priority) = (format!("bench-{n}"), (n + 1).to_string());
            let words = ["pool", "create", &name, "--network", NETWORK, "--range", &range, "--priority", &priority];
            let scope = format!("--scope=namespace={VM_NAMESPACE},cluster={CLUSTER}");
            self.bench.bed.harvester.sim(words.into_iter().chain([scope.as_str()]))?;
        }
        Ok(self)
    }

    /// How many pools there are for the Services.
    pub fn pools(&self) -> usize {
        self.pools.max(1)
    }

    /// Starts the cloud controller and waits until it works and nothing happens any more.
    pub async fn start(&self) -> Result<()> {
        self.bench.bed.ccm().start()?;
        self.bench.bed.wait_until_initialized().await?;
        self.bench.wait_until_quiet().await
    }

    /// Watches from now on.
    pub async fn watch(&self) -> Result<Watching> {
        Self::watch_these(self.bench.services()).await
    }

    /// The same for Services of any namespace.
    pub async fn watch_these(services: Api<Service>) -> Result<Watching> {
        let published = |service: &Service| {
            let published = service.annotations().contains_key(kube_vip::LOADBALANCER_IPS);
            published.then(|| (service.name_any(), Instant::now()))
        };
        let seen = BenchBed::watch(services, published).await?;
        Ok(Watching { seen })
    }

    /// How many objects a second the API server takes while nothing else happens: what any figure on this machine has
    /// to be seen against.
    pub async fn raw_rate(&self, count: usize) -> Result<f64> {
        let names = crowd::names("raw", count);
        let begin = Instant::now();
        crowd::make(&self.bench, &names, "pool").await?;
        let took = begin.elapsed();
        crowd::delete(&self.bench, &names).await?;
        Ok(tenths(f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / took.as_secs_f64()))
    }

    /// Makes Services as fast as the API server takes them.
    pub async fn make(&self, names: &[String]) -> Result<BTreeMap<String, Instant>> {
        self.make_in(&self.bench.services(), names).await
    }

    /// The same in any namespace.
    pub async fn make_in(&self, services: &Api<Service>, names: &[String]) -> Result<BTreeMap<String, Instant>> {
        crowd::make_as(services, names, |name| self.pooled(name)).await
    }

    fn pooled(&self, name: &str) -> Service {
        let mut service = service(name, "pool");
        if self.pools > 0 {
            let number: usize = name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or_default();
            let pool = format!("bench-{}", number % self.pools);
            service.annotations_mut().insert(cloudprovider::IP_POOL.to_owned(), pool);
        }
        service
    }

    /// Makes them and waits until so many of them are published.
    pub async fn publish(&self, names: &[String], wanted: usize) -> Result<Times> {
        let mut watching = self.watch().await?;
        let begin = Instant::now();
        let (made, published) = tokio::try_join!(self.make(names), watching.wait_for(names, wanted))?;
        Ok(Times { begin: Some(begin), made, published })
    }

    /// Plays the announcer: serves every Service with the address that was published for it.
    pub async fn serve(&self) -> Result<()> {
        let api = self.bench.services();
        let list = api.list(&ListParams::default()).await.context("failed to list Services")?.items;
        let published = list.into_iter().filter_map(|service: Service| {
            let ip = service.annotations().get(kube_vip::LOADBALANCER_IPS)?.clone();
            Some((service.name_any(), json!({"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}})))
        });
        stream::iter(published)
            .map(|(name, status)| {
                let api = api.clone();
                async move { api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await }
            })
            .buffer_unordered(PARALLEL)
            .try_collect::<Vec<_>>()
            .await
            .context("failed to serve the Services")?;
        Ok(())
    }
}

impl Watching {
    /// When each of these was published, once so many were.
    pub async fn wait_for(&mut self, names: &[String], wanted: usize) -> Result<BTreeMap<String, Instant>> {
        let names: std::collections::BTreeSet<&String> = names.iter().collect();
        let (mut found, mut told) = (BTreeMap::new(), Instant::now());
        while found.len() < wanted {
            let Ok(sight) = tokio::time::timeout(STALLED, self.seen.recv()).await else {
                bail!("{} of {wanted} Services were published, then none for {} s", found.len(), STALLED.as_secs());
            };
            let (name, at) = sight.context("the watch of the bench has ended")?;
            if names.contains(&name) {
                found.entry(name).or_insert(at);
            }
            if told.elapsed() > EVERY {
                say(format!("  {} of {wanted} Services are published", found.len()));
                told = Instant::now();
            }
        }
        Ok(found)
    }
}
