//! What the LAN and the kernels of the nodes say about a VIP: who answers for it, where it is, and for how long.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use testbed::{ProxyMode, wait_for};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::PATIENCE;
use crate::bed::Bed;

/// The Lease of `global` mode, kube-vip's.
pub const GLOBAL_LEASE: &str = "plndr-svcs-lock";

/// A Lease that is renewed every second until this is stopped or dropped. A test that has one needs a runtime with
/// several threads, so that the renewals continue while the test blocks its own thread.
pub struct Renewal {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Renewal {
    /// Writes the Lease by `hold`, and goes on with that.
    pub async fn begin<F>(hold: impl Fn() -> F + Send + 'static) -> Result<Self>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        hold().await?;
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            while tokio::time::timeout(Duration::from_secs(1), &mut stopped).await.is_err() {
                // A failed renewal is tried again, as by any holder. If that does not help, the test fails where it
                // waits for the Lease.
                let _ = hold().await;
            }
        });
        Ok(Self { stop, task })
    }

    /// A holder called `identity` of a Lease in `kube-system`.
    pub async fn of(bed: &Arc<Bed>, name: &str, identity: &str, duration: Duration) -> Result<Self> {
        let (bed, name, identity) = (Arc::clone(bed), name.to_owned(), identity.to_owned());
        Self::begin(move || {
            let (bed, name, identity) = (Arc::clone(&bed), name.clone(), identity.clone());
            async move { bed.hold_lease(&name, &identity, duration).await }
        })
        .await
    }

    /// Ends it: no renewal is under way any more. The Lease expires.
    pub async fn end(self) -> Result<()> {
        drop(self.stop);
        self.task.await.context("the renewals have panicked")
    }
}

impl Bed {
    async fn leases(&self) -> Result<Api<Lease>> {
        Ok(Api::namespaced(self.client().await?, "kube-system"))
    }

    /// The Lease that decides who announces.
    pub async fn announcer_lease(&self) -> Result<Lease> {
        self.leases().await?.get(GLOBAL_LEASE).await.with_context(|| format!("failed to read Lease {GLOBAL_LEASE}"))
    }

    /// Who holds it; empty: nobody.
    pub async fn announcer_lease_holder(&self) -> Result<String> {
        Ok(self.announcer_lease().await?.spec.and_then(|spec| spec.holder_identity).unwrap_or_default())
    }

    /// Writes it as a holder called `identity` does, whoever holds it at the moment; an empty name gives it back.
    pub async fn hold_announcer_lease(&self, identity: &str, duration: Duration) -> Result<()> {
        self.hold_lease(GLOBAL_LEASE, identity, duration).await
    }

    /// The same for any Lease of `kube-system`.
    pub async fn hold_lease(&self, name: &str, identity: &str, duration: Duration) -> Result<()> {
        let now = MicroTime(Timestamp::now());
        let spec = json!({"spec": {"holderIdentity": identity, "leaseDurationSeconds": duration.as_secs(),
            "renewTime": now, "acquireTime": now, "leaseTransitions": 1}});
        let failed = || format!("failed to write Lease {name} in the name of {identity:?}");
        let leases = self.leases().await?;
        if leases.get_opt(name).await.with_context(failed)?.is_none() {
            let mut lease: Lease = serde_json::from_value(spec.clone()).with_context(failed)?;
            lease.metadata.name = Some(name.into());
            leases.create(&kube::api::PostParams::default(), &lease).await.with_context(failed)?;
            return Ok(());
        }
        leases.patch(name, &PatchParams::default(), &Patch::Merge(&spec)).await.map(drop).with_context(failed)
    }

    /// Waits until some node has this address, and no other has it; the node, counted from 1.
    pub async fn wait_for_owner(&self, address: IpAddr) -> Result<usize> {
        wait_for(&format!("a node that has {address}"), PATIENCE, || async {
            self.owner_of(address).map_err(|error| format!("{error:#}"))?.ok_or_else(|| "none".to_owned())
        })
        .await
    }

    /// Waits until node `n` has given this address up.
    pub async fn wait_until_without(&self, n: usize, address: IpAddr) -> Result<()> {
        wait_for(&format!("node{n} to have given {address} up"), PATIENCE, || async {
            let has = self.lan.host(n).has_address(address).map_err(|error| format!("{error:#}"))?;
            if has { Err("it has the address".to_owned()) } else { Ok(()) }
        })
        .await
    }

    /// Waits until this MAC, and no other, answers the client's ARP requests for this address.
    pub async fn wait_for_mac(&self, address: IpAddr, mac: &str) -> Result<()> {
        wait_for(&format!("{mac} alone to answer for {address}"), PATIENCE, || async {
            let macs = self.macs(address).map_err(|error| format!("{error:#}"))?;
            if macs == [mac] { Ok(()) } else { Err(format!("{macs:?}")) }
        })
        .await
    }

    /// Waits until exactly one machine answers the client's ARP requests for this address; its MAC.
    pub async fn wait_for_one_mac(&self, address: IpAddr) -> Result<String> {
        wait_for(&format!("one machine to answer for {address}"), PATIENCE, || async {
            let macs = self.macs(address).map_err(|error| format!("{error:#}"))?;
            if let [mac] = &*macs { Ok(mac.clone()) } else { Err(format!("{macs:?}")) }
        })
        .await
    }

    /// Waits until the client host believes that this MAC has the address.
    pub async fn wait_until_the_client_knows(&self, address: IpAddr, mac: &str) -> Result<()> {
        wait_for(&format!("the client to know that {mac} has {address}"), PATIENCE, || async {
            let known = self.lan.client().neighbour(address).map_err(|error| format!("{error:#}"))?;
            if known.as_deref() == Some(mac) { Ok(()) } else { Err(format!("{known:?}")) }
        })
        .await
    }

    /// Waits until the kernel of node `n` removes this address by itself if nobody puts that off.
    pub async fn wait_for_a_deadline(&self, n: usize, address: IpAddr) -> Result<()> {
        wait_for(&format!("{address} to be under the deadline of a running announcer"), PATIENCE, || async {
            let lifetime = self.lifetime(n, address).map_err(|error| format!("{error:#}"))?;
            if lifetime.is_some_and(|seconds| seconds < 60) { Ok(()) } else { Err(format!("{lifetime:?} s")) }
        })
        .await
    }

    /// For how many seconds more the kernel of node `n` keeps this address; `u32::MAX` is for ever, `None` is not at
    /// all.
    pub fn lifetime(&self, n: usize, address: IpAddr) -> Result<Option<u32>> {
        for link in self.lan.host(n).namespace().ip_json("addr show")? {
            for info in link["addr_info"].as_array().into_iter().flatten() {
                if info["local"].as_str().and_then(|text| text.parse().ok()) == Some(address) {
                    let valid = info["valid_life_time"].as_u64().context("an address without a lifetime")?;
                    return Ok(Some(u32::try_from(valid).unwrap_or(u32::MAX)));
                }
            }
        }
        Ok(None)
    }

    /// Macvlans of DHCP addresses on node `n`.
    pub fn macvlans(&self, n: usize) -> Result<Vec<String>> {
        let mut interfaces = self.lan.host(n).interfaces()?;
        interfaces.retain(|name| name.starts_with("vip-"));
        Ok(interfaces)
    }

    /// `net.ipv4.conf.<interface>.<setting>` of node `n`.
    pub fn inet_conf(&self, n: usize, interface: &str, setting: &str) -> Result<u32> {
        let text = self.lan.host(n).exec(["cat", &format!("/proc/sys/net/ipv4/conf/{interface}/{setting}")])?;
        text.trim().parse().with_context(|| format!("{setting} of {interface} is {text:?}"))
    }

    /// Starts every kube-proxy again. After an outage of the API client-go waits for up to a minute until it looks
    /// again; nothing that comes next in this bed shall wait for that.
    pub fn restart_proxies(&self) -> Result<()> {
        self.nodes
            .iter()
            .zip(self.lan.hosts())
            .try_for_each(|(node, host)| node.start_proxy(host, ProxyMode::default()))
    }

    /// After [`Bed::power_off`]: cables in, kube-proxy and announcer run again. Unlike a real machine that boots, this
    /// one still has what its kernel had before, which is the harder case.
    pub fn power_on(&self, n: usize) -> Result<()> {
        let host = self.lan.host(n);
        host.plug_in()?;
        self.nodes[n - 1].start_proxy(host, ProxyMode::default())?;
        self.nodes[n - 1].start_heartbeat(&self.control_plane)?;
        if self.has_ccm_on(n) && self.ccm().check().is_err() {
            self.ccm().start()?;
        }
        self.announcer(n).start()
    }
}
