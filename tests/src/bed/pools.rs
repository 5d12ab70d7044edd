//! IPPools of the bed's Harvester.

use std::ops::RangeInclusive;

use anyhow::{Context, Result};
use harvester_api::ip_pool::{IpPool, IpPoolSpec, IpRange, PoolSelector, ScopeTuple};
use kube::Api;
use kube::api::PostParams;

use super::{Bed, VM_NAMESPACE};

impl Bed {
    /// Makes a pool of LAN addresses for this cluster on `network`, or gives an existing one this range.
    pub async fn set_pool(&self, name: &str, network: &str, range: RangeInclusive<u8>) -> Result<()> {
        let pools: Api<IpPool> = Api::all(self.harvester_client().await?);
        let text = |last: u8| Some(self.lan.ipv4(last).to_string());
        let range = IpRange {
            subnet: format!("{}/24", self.lan.ipv4(0)),
            range_start: text(*range.start()),
            range_end: text(*range.end()),
            gateway: text(1),
        };
        let failed = || format!("failed to set pool {name}");
        // The pool's controller writes its status all the time.
        for _ in 0..20 {
            let outcome = if let Some(mut pool) = pools.get_opt(name).await.with_context(failed)? {
                pool.spec.ranges = vec![range.clone()];
                pools.replace(name, &PostParams::default(), &pool).await
            } else {
                // Not `*` three times: that would be the one global pool, which serves every network.
                let ours =
                    ScopeTuple { project: "*".into(), namespace: VM_NAMESPACE.into(), guest_cluster: "*".into() };
                let selector = PoolSelector { network: network.into(), scope: vec![ours], ..PoolSelector::default() };
                let spec = IpPoolSpec { ranges: vec![range.clone()], selector, ..IpPoolSpec::default() };
                pools.create(&PostParams::default(), &IpPool::new(name, spec)).await
            };
            match outcome {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                outcome => return outcome.map(drop).with_context(failed),
            }
        }
        anyhow::bail!("{}: conflicts for ever", failed())
    }

    /// Addresses of a pool that are booked, by whom.
    pub async fn bookings(&self, pool: &str) -> Result<Vec<(String, String)>> {
        let pools: Api<IpPool> = Api::all(self.harvester_client().await?);
        let pool = pools.get(pool).await.with_context(|| format!("failed to read pool {pool}"))?;
        Ok(pool.status.unwrap_or_default().allocated.into_iter().collect())
    }
}
