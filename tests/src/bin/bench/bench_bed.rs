//! The bed with what a measurement needs besides: more addresses than the LAN has, a second replica of the cloud
//! controller manager, and questions that tests do not ask.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use e2e::bed::{Bed, BedBuilder, NETWORK};
use e2e::cost::Mark;
use e2e::product::{Handle, Program};
use e2e::{PATIENCE, wait_for};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use serde_json::json;
use testbed::{Host, ProxyMode, SimPod};
use tokio::sync::{mpsc, oneshot};

use crate::progress::say;
use crate::requests::Tally;

/// Range of the pool: room for some thousands, outside the LAN's own subnet. The client has a route to it.
const POOL: &str = "10.200.0.0/18,start=10.200.0.10,end=10.200.63.250";
const POOL_SUBNET: &str = "10.200.0.0/18";
/// The Lease of the cloud controller managers.
pub const CCM_LEASE: &str = "cloud-controller-manager";
/// The Lease of the announcers.
pub const ANNOUNCER_LEASE: &str = "plndr-svcs-lock";
/// Requests of the bench itself under way at one time.
pub const PARALLEL: usize = 16;

/// See the module's description.
pub struct BenchBed {
    standby: Program,
    /// The bed.
    pub bed: Bed,
    /// The guest API, all rights.
    pub client: Client,
    /// Namespace of the measured Services.
    pub namespace: String,
}

impl BenchBed {
    /// Starts it all.
    pub async fn set(builder: BedBuilder) -> Result<Self> {
        let bench = Self::set_without_pool(builder).await?;
        bench.make_pool()?;
        Ok(bench)
    }

    /// Makes the pool.
    pub fn make_pool(&self) -> Result<()> {
        self.bed.harvester.create_pool("bench", NETWORK, POOL)
    }

    /// Starts it all but the pool.
    pub async fn set_without_pool(builder: BedBuilder) -> Result<Self> {
        let begin = Instant::now();
        let bed = builder.without_pool().not_started().start().await.context("failed to start the bed")?;
        bed.lan.client().ip([format!("route add {POOL_SUBNET} dev eth0")])?;
        // A client keeps at most 1,024 neighbours otherwise, and what is measured is not the client.
        for key in ["gc_thresh2", "gc_thresh3"] {
            let _ = bed.lan.client().namespace().sysctl(&format!("net/ipv4/neigh/default/{key}"), "8192");
        }
        let client = bed.client().await?;
        let namespace = bed.control_plane.test_namespace("bench").await?;
        let standby = bed.ccm().program().twin();
        say(format!("  bed up after {:.1} s", begin.elapsed().as_secs_f64()));
        Ok(Self { standby, bed, client, namespace })
    }

    /// Starts the product and waits until it works.
    pub async fn start_product(&self) -> Result<()> {
        self.bed.ccm().start()?;
        self.bed.announcers().try_for_each(|announcer| announcer.start())?;
        self.bed.wait_until_initialized().await?;
        for n in 1..=self.bed.nodes.len() {
            self.bed.wait_until_announcing(n).await?;
        }
        Ok(())
    }

    /// Lets kube-proxy change its rules after this time already instead of once a second at most.
    pub fn pace_proxies(&self, min_sync: Duration) -> Result<()> {
        let nodes = self.bed.nodes.iter().zip(self.bed.lan.hosts());
        nodes.into_iter().try_for_each(|(node, host)| node.start_proxy_paced(host, ProxyMode::default(), min_sync))
    }

    /// The second replica of the cloud controller manager, on the first node.
    pub fn standby(&self) -> Handle<'_> {
        self.standby.on(self.bed.lan.host(1))
    }

    /// The Services that are measured.
    pub fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Tells what `pick` finds in these Services, as soon as a watch shows them. Returns when the watch stands.
    pub async fn watch<T: Send + 'static>(
        services: Api<Service>,
        pick: impl Fn(&Service) -> Option<T> + Send + 'static,
    ) -> Result<mpsc::UnboundedReceiver<T>> {
        let (sender, seen) = mpsc::unbounded_channel();
        let (stands, standing) = oneshot::channel();
        tokio::spawn(async move {
            let mut stands = Some(stands);
            let mut events = std::pin::pin!(watcher(services, watcher::Config::default()));
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::InitDone) => drop(stands.take().map(|stands| stands.send(()))),
                    Ok(Event::InitApply(_)) if stands.is_some() => {}
                    // A watch that was too slow for its server begins anew, and tells in its list what it has missed.
                    Ok(Event::Apply(service) | Event::InitApply(service)) => {
                        if pick(&service).is_some_and(|sight| sender.send(sight).is_err()) {
                            return; // nobody wants to know any more
                        }
                    }
                    Ok(_) => {}
                    Err(error) => say(format!("  the watch of the bench: {error}")),
                }
                if sender.is_closed() {
                    return;
                }
            }
        });
        tokio::time::timeout(PATIENCE, standing).await.context("the watch of the bench does not stand")??;
        Ok(seen)
    }

    /// Endpoints of Services that may not exist yet: they are there before, so that nothing else is waited for.
    pub async fn publish(&self, names: &[String], pods: &[&SimPod]) -> Result<()> {
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &self.namespace);
        let slices = names.iter().map(|name| {
            let endpoints = pods.iter().map(
                |pod| json!({"addresses": [pod.ipv4.to_string()], "nodeName": pod.node, "conditions": {"ready": true}}),
            );
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": name, "labels": {
                    "kubernetes.io/service-name": name, "endpointslice.kubernetes.io/managed-by": "bench",
                }},
                "addressType": "IPv4",
                "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
                "endpoints": endpoints.collect::<Vec<_>>(),
            });
            serde_json::from_value::<EndpointSlice>(slice).context("failed to make an EndpointSlice")
        });
        let slices = slices.collect::<Result<Vec<_>>>()?;
        stream::iter(slices)
            .map(|slice| {
                let api = api.clone();
                async move { api.create(&PostParams::default(), &slice).await }
            })
            .buffer_unordered(PARALLEL)
            .try_collect::<Vec<_>>()
            .await
            .context("failed to publish endpoints")?;
        Ok(())
    }

    /// The address by which the API servers know processes of this host.
    pub fn management_address(host: &Host) -> Result<IpAddr> {
        let addresses = host.addresses()?;
        let found = addresses.iter().find(|(interface, address, _)| interface == "mgmt0" && address.is_ipv4());
        found.map(|(_, address, _)| *address).with_context(|| format!("{} has no management address", host.name()))
    }

    /// Who holds a Lease of kube-system.
    pub async fn holder(&self, lease: &str) -> Result<Option<String>> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
        let lease = leases.get_opt(lease).await.with_context(|| format!("failed to read Lease {lease}"))?;
        Ok(lease.and_then(|lease| lease.spec?.holder_identity).filter(|holder| !holder.is_empty()))
    }

    /// Waits, looking every 10 ms, until somebody else than `former` holds the Lease.
    pub async fn wait_for_other_holder(&self, lease: &str, former: Option<&str>, deadline: Duration) -> Result<String> {
        let begin = Instant::now();
        loop {
            let holder = self.holder(lease).await?;
            if let Some(holder) = holder.filter(|holder| Some(holder.as_str()) != former) {
                return Ok(holder);
            }
            if begin.elapsed() > deadline {
                bail!("Lease {lease} did not get another holder than {former:?} within {deadline:?}");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until a cloud controller manager says that it is ready; asks every few milliseconds.
    pub async fn wait_until_ccm_is_ready(&self, handle: &Handle<'_>) -> Result<()> {
        ready(handle, "https://127.0.0.1:10258/readyz").await
    }

    /// Waits until an announcer says that it is ready; asks every few milliseconds.
    pub async fn wait_until_announcer_is_ready(&self, handle: &Handle<'_>) -> Result<()> {
        ready(handle, "http://127.0.0.1:2112/readyz").await
    }

    /// What the product asked for since a mark.
    pub fn tally(&self, mark: Mark) -> Result<Tally> {
        let guest = self.bed.control_plane.audit().since(mark.guest)?;
        Ok(Tally::of(&guest, &self.bed.harvester.audit().since(mark.harvester)?))
    }

    /// Waits until the product has asked for nothing but Leases for three seconds. Events of what goes well are written
    /// at 20 a second, and 4,096 of them may wait.
    pub async fn wait_until_quiet(&self) -> Result<()> {
        self.wait_until_none(Tally::work).await
    }

    /// The same but for Events: those of thousands of Services are written for many minutes, at a pace.
    pub async fn wait_until_only_events_are_left(&self) -> Result<()> {
        self.wait_until_none(Tally::work_without_events).await
    }

    async fn wait_until_none(&self, work: impl Fn(&Tally) -> usize) -> Result<()> {
        let begin = Instant::now();
        let (mut quiet, mut told) = (0, Instant::now());
        while quiet < 3 {
            let mark = self.bed.mark();
            tokio::time::sleep(Duration::from_secs(1)).await;
            let tally = self.tally(mark)?;
            quiet = if work(&tally) == 0 { quiet + 1 } else { 0 };
            if told.elapsed() > crate::progress::EVERY {
                say(format!("  waiting until the product is quiet: {} requests in the last second", work(&tally)));
                told = Instant::now();
            }
            if begin.elapsed() > Duration::from_mins(8) {
                bail!("the product does not become quiet: {tally:?}");
            }
        }
        Ok(())
    }

    /// Which of `addresses` a node has.
    pub fn owned(&self, node: usize, addresses: &[IpAddr]) -> Result<usize> {
        let here: BTreeSet<IpAddr> =
            self.bed.lan.host(node).addresses()?.into_iter().map(|(_, address, _)| address).collect();
        Ok(addresses.iter().filter(|address| here.contains(address)).count())
    }

    /// The node that owns an address, counted from 1.
    pub fn owner(&self, address: IpAddr) -> Result<usize> {
        self.bed.owner_of(address)?.with_context(|| format!("no node has {address}"))
    }

    /// Waits until a host answers over HTTP at this address.
    pub async fn wait_for_reply(&self, address: IpAddr) -> Result<()> {
        let client = self.bed.lan.client();
        wait_for(&format!("a reply at {address}"), PATIENCE, || async {
            client
                .http_get(SocketAddr::from((address, 80)), Duration::from_secs(1))
                .map_err(|error| format!("{error:#}"))
        })
        .await
        .map(drop)
    }
}

/// One shell asks again and again: curl speaks TLS to a certificate that nobody has signed.
async fn ready(handle: &Handle<'_>, url: &str) -> Result<()> {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("until curl -ksf -o /dev/null -m 1 {url}; do sleep 0.002; done")]);
    let asking = handle.host().spawn("ready", shell)?;
    let begin = Instant::now();
    while asking.ended().is_none() {
        handle.check()?;
        if begin.elapsed() > PATIENCE {
            bail!("{url} is not well after {} s; the log ends with:\n{}", PATIENCE.as_secs(), handle.log_tail(10));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// SIGTERM, and waits for the end without keeping others from what they do meanwhile; how long it took.
pub async fn stop(handle: &Handle<'_>) -> Result<Duration> {
    let begin = Instant::now();
    handle.terminate()?;
    while handle.wait(Duration::ZERO)?.is_none() {
        if begin.elapsed() > PATIENCE {
            bail!("it does not end; its log ends with:\n{}", handle.log_tail(10));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(begin.elapsed())
}

/// A Service to be measured.
pub fn service(name: &str, ipam: &str) -> Service {
    let object = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"annotations": {harvester_api::keys::cloudprovider::IPAM: ipam}},
        // There are 2,768 node ports, and the bed has more Services than that.
        "spec": {"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false,
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
    });
    let mut service: Service = serde_json::from_value(object).expect("this is a Service");
    service.metadata = ObjectMeta { name: Some(name.into()), ..service.metadata };
    service
}

/// The address in the status of a Service.
pub fn address(service: &Service) -> Option<IpAddr> {
    e2e::case::ingress(service).first()?.ip.as_ref()?.parse().ok()
}

/// Where the pods of the bed are, for Services that shall answer from certain nodes only.
pub fn pods_not_on(bed: &Bed, node: usize) -> Vec<&SimPod> {
    bed.pods().into_iter().zip(1..).filter(|(_, n)| *n != node).map(|(pod, _)| pod).collect()
}

/// An IPv4 address as a capture has it.
pub fn ipv4(bytes: &[u8]) -> Option<Ipv4Addr> {
    Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?))
}

/// Shared between the measuring task and threads in namespaces.
pub type Shared<T> = Arc<parking_lot::Mutex<T>>;
