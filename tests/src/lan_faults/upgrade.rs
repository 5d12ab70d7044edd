//! The DaemonSet is upgraded: each process is replaced on its node, and connections are open meanwhile.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use testbed::{Connection, DhcpOptions, Traffic};

use super::{ObservedOutage, OutageLimits};
use crate::bed::{Bed, BedBuilder};
use crate::case::{Case, Exposed, service};
use crate::watch;

/// How many connections are open at a time.
pub const OPEN: usize = 100;

/// Three nodes, announcers as they are shipped.
pub fn bed() -> BedBuilder {
    let builder = Bed::builder().nodes(3).without_ccm().without_pool().announcer_env("election_mode", "node");
    builder.dhcp(DhcpOptions::default())
}

/// Services that answer: one with a leased address, one with a fixed one.
pub struct Served<'a>(Vec<(Exposed<'a>, IpAddr, usize)>);

/// What it has cost.
#[derive(Debug)]
pub struct Cost {
    /// Connections that were open, [`OPEN`] at a time.
    pub open: usize,
    /// Those of them that broke, and how.
    pub broken: Vec<String>,
    /// What a client of each Service saw.
    pub seen: Vec<ObservedOutage>,
}

impl<'a> Served<'a> {
    /// With endpoints on all nodes.
    pub async fn new(bed: &Bed, case: &'a Case<'_>) -> Result<Self> {
        let fixed = bed.lan.ipv4(151).to_string();
        let mut services = Vec::new();
        for (name, at) in [("leased", "0.0.0.0"), ("fixed", fixed.as_str())] {
            let web = case.expose(service(name).at(at).tcp(80)).await?;
            let address = web.address().await?;
            web.reply(address, 80).await?;
            web.wait_until_every_node_serves(80).await?;
            let owner = bed.wait_for_owner(address).await?;
            services.push((web, address, owner));
        }
        Ok(Self(services))
    }

    /// Every announcer is replaced, one after the other. kube-proxy's translations are in the node's kernel, and so the
    /// addresses stay there.
    pub async fn upgrade(&self, bed: &Bed) -> Result<Cost> {
        let Self(services) = self;
        let open = |at: usize| {
            let target = (services[at % services.len()].1, 80).into();
            bed.lan.client().begin_connection(target, Duration::from_millis(100))
        };
        let ask =
            |(_, address, _): &(Exposed<'_>, IpAddr, usize)| watch::ask(bed, Traffic::http((*address, 80).into()));
        let asked = services.iter().map(ask).collect::<Result<Vec<_>>>()?;
        let mut cost = Cost { open: 0, broken: Vec::new(), seen: Vec::new() };
        for n in 1..=3 {
            let connections: Vec<Connection> = (0..OPEN).map(open).collect::<Result<_>>()?;
            connections.iter().try_for_each(Connection::wait_for_answers)?;
            let status = bed.announcer(n).stop()?;
            ensure!(status.code() == Some(0), "the announcer of node{n} ends with {status}");
            // The time to pull the image. It is longer than a kernel keeps the addresses of a dead process.
            tokio::time::sleep(Duration::from_secs(7)).await;
            bed.announcer(n).start()?;
            bed.wait_until_announcing(n).await?;
            tokio::time::sleep(Duration::from_secs(2)).await;
            let broken = connections.iter().filter(|one| one.broken().is_some());
            let broken: Vec<String> = broken.map(ToString::to_string).collect();
            eprintln!("node{n}: {} of {OPEN} connections broken", broken.len());
            cost.open += OPEN;
            cost.broken.extend(broken);
        }
        for ((web, address, owner), probe) in services.iter().zip(asked) {
            let what = format!("upgrade, {} address", web.name());
            cost.seen.push(ObservedOutage::end(&what, OutageLimits::NOTHING_IS_LOST, probe)?);
            let now = bed.owner_of(*address)?;
            ensure!(now == Some(*owner), "{web}: node {now:?} has it, not node{owner}");
        }
        Ok(cost)
    }
}
