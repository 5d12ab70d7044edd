//! A Service of `node` mode that is watched while something happens to its owner, on three nodes.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context, Result};
pub use harvester_api::keys::cloudprovider::TERM;
use testbed::{Answerers, Probe, Traffic};

use crate::bed::{Bed, BedBuilder};
use crate::case::{Case, Exposed, ServiceSpec, service};
use crate::watch;

/// Three nodes, whose announcers end as those of a node that leaves.
pub fn three_nodes() -> BedBuilder {
    Bed::builder()
        .nodes(3)
        .without_ccm()
        .without_pool()
        .announcer_env("election_mode", "node")
        .announcer_env("vip_handover", "true")
}

/// All of [`three_nodes`] alive and well, whatever was done to them before.
pub async fn all_well(bed: &Bed) -> Result<()> {
    for n in 1..=3 {
        bed.lan.host(n).plug_in()?;
        bed.announcer(n).set_env("election_mode", "node");
        if bed.announcer(n).check().is_err() {
            bed.power_on(n)?;
        }
        bed.wait_until_announcing(n).await?;
    }
    Ok(())
}

/// A Service, served by all nodes, announced by one.
pub struct Vip<'a> {
    /// Its bed.
    pub bed: &'a Bed,
    /// The Service.
    pub web: Exposed<'a>,
    /// Its address.
    pub v4: Ipv4Addr,
    /// The same.
    pub address: IpAddr,
    /// The node that announced it first, counted from 1.
    pub owner: usize,
}

impl<'a> Vip<'a> {
    /// Its address ends with `last`.
    pub async fn new(bed: &'a Bed, case: &'a Case<'_>, last: u8) -> Result<Self> {
        Self::of(bed, case, last, service("web")).await
    }

    /// A Service like this one.
    pub async fn of(bed: &'a Bed, case: &'a Case<'_>, last: u8, spec: ServiceSpec) -> Result<Self> {
        let v4 = bed.lan.ipv4(last);
        let address = IpAddr::from(v4);
        let web = case.expose(spec.at(&address.to_string()).tcp(80)).await?;
        web.reply(address, 80).await?;
        let owner = bed.wait_for_owner(address).await?;
        let vip = Self { bed, web, v4, address, owner };
        vip.is_announced_by(owner).await?;
        // The pods must not be lost with the owner, because the test is about the announcement only.
        let others: Vec<_> = bed.pods().into_iter().filter(|pod| pod.node != bed.lan.host(owner).name()).collect();
        vip.web.publish(&others).await?;
        vip.web.wait_until_every_node_serves(80).await?;
        Ok(vip)
    }

    /// Waits until the record, the status, the LAN and a client agree that this node has it.
    pub async fn is_announced_by(&self, n: usize) -> Result<()> {
        let host = self.bed.lan.host(n);
        self.web.wait_for_vip_host(host.name()).await?;
        self.web.wait_for_addresses(&[self.address]).await?;
        self.bed.wait_for_mac(self.address, &host.mac()).await?;
        self.web.reply(self.address, 80).await.map(drop)
    }

    /// Waits until the record names another node than `former`; which.
    pub async fn moved_from(&self, former: usize) -> Result<usize> {
        let n = self.web.wait_for_other_vip_host(former).await?;
        self.is_announced_by(n).await?;
        Ok(n)
    }

    /// How often it has moved.
    pub async fn term(&self) -> Result<u64> {
        self.web.annotation(TERM).await?.parse().context("the record has no term")
    }

    /// Waits until this node has given it up.
    pub async fn is_gone_from(&self, n: usize) -> Result<()> {
        self.bed.wait_until_without(n, self.address).await
    }

    /// A client that asks all the time, and who answers for the address.
    pub fn watch(&self) -> Result<(Probe, Answerers)> {
        let probe = watch::ask(self.bed, Traffic::http((self.address, 80).into()))?;
        Ok((probe, self.bed.lan.client().ask_who_has(self.v4, Duration::from_millis(20))?))
    }

    /// Deletes the Service, and waits until nobody has its address.
    pub async fn is_deleted(&self) -> Result<()> {
        self.web.delete_with(self.address).await
    }
}
