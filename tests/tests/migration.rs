//! From kube-vip to ownership by node and back, node by node, as a DaemonSet is replaced, while a client asks every 10
//! ms. kube-vip is played by what others see of it: the Lease that it renews, addresses without a mark, a macvlan,
//! annotations.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use e2e::host::CCM_LEASE;
use e2e::wire::{GLOBAL_LEASE, Renewal};
use e2e::{Bed, Exposed, PATIENCE, service, wait_for, watch};
use harvester_api::keys::kube_vip;
use kube::ResourceExt;
use serde_json::json;
use testbed::{Probe, Process, Traffic};

const MAC: &str = "00:00:6c:11:22:44";
const LEASE: Duration = Duration::from_secs(5);
/// A move of an address without a detector: Lease given up, record written, address announced. 0.1 s on an idle
/// machine. The machine's stalls are subtracted.
const MOVE: Duration = Duration::from_millis(300);

/// Renews the Lease for all Services under the name of a node, as kube-vip does.
struct KubeVip {
    bed: Arc<Bed>,
    renewal: Renewal,
}

impl KubeVip {
    async fn leads(bed: &Arc<Bed>, n: usize) -> Self {
        let name = bed.lan.host(n).name().to_owned();
        let renewal = Renewal::of(bed, GLOBAL_LEASE, &name, LEASE).await.unwrap();
        Self { bed: Arc::clone(bed), renewal }
    }

    /// It adds an address for ever, never chosen as source, without a mark of who did it.
    fn carries(&self, n: usize, interface: &str, address: IpAddr) {
        self.bed.lan.host(n).ip([format!("addr add {address}/32 dev {interface} preferred_lft 0")]).unwrap();
    }

    /// It announces an address again and again.
    fn repeats(&self, n: usize, interface: &str, address: IpAddr) -> Process {
        let mut command = Command::new("arping");
        command.args(["-A", "-I", interface, &address.to_string()]);
        self.bed.lan.host(n).spawn(&format!("arping-{interface}"), command).unwrap()
    }

    async fn ends(self) {
        self.renewal.end().await.unwrap();
        self.bed.hold_announcer_lease("", Duration::from_secs(1)).await.unwrap();
    }
}

async fn published(service: &Exposed<'_>, address: IpAddr) {
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": address.to_string()}]}}});
    service.patch_status(status).await.unwrap();
}

fn ask(bed: &Bed, address: IpAddr) -> Probe {
    watch::ask(bed, Traffic::http((address, 80).into())).unwrap()
}

/// Says how long clients wait after kube-vip's Lease is free. That is part of the gap, which [`MOVE`] limits.
fn answers_again(probes: &[Probe]) {
    let free = Instant::now();
    for probe in probes {
        probe.wait_for_answers(1, PATIENCE).unwrap();
        eprintln!("an answer {} ms after kube-vip's Lease is free", free.elapsed().as_millis());
    }
}

async fn start(bed: &Bed, n: usize) {
    bed.announcer(n).start().unwrap();
    bed.wait_until_announcing(n).await.unwrap();
}

/// Addresses and MACs stay through both moves, the DHCP server hears of no end, and each move is one short gap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_stay_when_kube_vip_is_replaced_node_by_node_and_when_it_comes_back() {
    if e2e::skip() {
        return;
    }
    let builder = Bed::builder()
        .nodes(2)
        .without_ccm()
        .without_pool()
        .not_started()
        .announcer_env("election_mode", "node")
        .announcer_env("vip_handover", "true");
    let builder = builder.announcer_env("vip_leaseduration", "5").announcer_env("vip_renewdeadline", "3");
    let bed = Arc::new(builder.announcer_env("vip_retryperiod", "1").start().await.unwrap());
    let case = bed.case("migration").await.unwrap();
    let (node1, node2) = (bed.lan.host(1), bed.lan.host(2));

    // kube-vip has been on both nodes for long, and leads on node1.
    let theirs = KubeVip::leads(&bed, 1).await;
    let (address, leased) = (IpAddr::from(bed.lan.ipv4(160)), IpAddr::from(bed.lan.ipv4(234)));
    let web = service("web").at(&address.to_string()).annotation(kube_vip::VIP_HOST, "node1").tcp(80);
    let web = case.expose(web).await.unwrap();
    let lease =
        service("lease").at("0.0.0.0").annotation(kube_vip::VIP_HOST, "node1").annotation(kube_vip::HWADDR, MAC);
    let lease = case.expose(lease.annotation(kube_vip::REQUESTED_IP, &leased.to_string()).tcp(80)).await.unwrap();
    let link = format!("vip-{}", &lease.get().await.unwrap().uid().unwrap()[..8]);
    node1
        .ip([
            format!("link add {link} link eth0 address {MAC} type macvlan mode bridge"),
            format!("link set {link} up"),
        ])
        .unwrap();
    theirs.carries(1, "eth0", address);
    theirs.carries(1, &link, leased);
    for (service, address) in [(&web, address), (&lease, leased)] {
        published(service, address).await;
        service.reply(address, 80).await.unwrap();
    }

    // Forward: node2's pod is replaced first, and keeps its hands off while a kube-vip leads.
    let probes = [ask(&bed, address), ask(&bed, leased)];
    start(&bed, 2).await;
    tokio::time::sleep(LEASE).await;
    assert_eq!(bed.owner_of(address).unwrap(), Some(1));
    assert_eq!((node2.has_address(leased).unwrap(), bed.macvlans(2).unwrap()), (false, Vec::new()));
    watch::nothing_was_lost("beside a kube-vip that leads", probes).unwrap();

    // Then node1's: kube-vip takes its addresses off, leaves its macvlans, and gives the Lease back.
    let probes = [ask(&bed, address), ask(&bed, leased)];
    node1.ip([format!("addr del {address}/32 dev eth0")]).unwrap();
    theirs.ends().await;
    answers_again(&probes);
    start(&bed, 1).await;
    for (service, address) in [(&web, address), (&lease, leased)] {
        service.wait_for_addresses(&[address]).await.unwrap();
        service.reply(address, 80).await.unwrap();
    }
    bed.wait_for_mac(leased, MAC).await.unwrap();
    let owner = bed.wait_for_owner(address).await.unwrap();
    bed.wait_for_mac(address, &bed.lan.host(owner).mac()).await.unwrap();
    assert_eq!(lease.annotation(kube_vip::HWADDR).await.unwrap(), MAC);
    watch::at_most(MOVE, "forward, given and leased", probes).unwrap();

    // Back: node1's pod is a kube-vip again, which takes the Lease that nobody holds, and the addresses at once.
    bed.announcer(1).stop().unwrap();
    for address in [address, leased] {
        bed.wait_until_without(1, address).await.unwrap();
    }
    bed.wait_for_mac(address, &node2.mac()).await.unwrap();
    let probes = [ask(&bed, address), ask(&bed, leased)];
    let theirs = KubeVip::leads(&bed, 1).await;
    if bed.macvlans(1).unwrap().is_empty() {
        node1.ip([format!("link add {link} link eth0 address {MAC} type macvlan mode bridge")]).unwrap();
    }
    node1.ip([format!("link set {link} up")]).unwrap();
    theirs.carries(1, &link, leased);
    theirs.carries(1, "eth0", address);
    let announcements = [theirs.repeats(1, &link, leased), theirs.repeats(1, "eth0", address)];
    for address in [address, leased] {
        bed.wait_until_without(2, address).await.unwrap();
    }
    for (service, address) in [(&web, address), (&lease, leased)] {
        service.reply(address, 80).await.unwrap();
    }
    tokio::time::sleep(LEASE).await;
    for (address, mac) in [(address, node1.mac()), (leased, MAC.to_owned())] {
        // Beside a macvlan kube-vip answers for an address by both: it does not set arp_ignore.
        wait_for(&format!("node1 alone to answer for {address}"), PATIENCE, || async {
            let macs = bed.macs(address).map_err(|error| format!("{error:#}"))?;
            if macs.contains(&mac) && !macs.contains(&node2.mac()) { Ok(()) } else { Err(format!("{macs:?}")) }
        })
        .await
        .unwrap();
    }
    assert_eq!(bed.macvlans(2).unwrap(), Vec::<String>::new(), "kube-vip makes it where it leads");
    drop(announcements);
    watch::at_most(MOVE, "back, given and leased", probes).unwrap();

    // What kube-vip goes on from is as it left it.
    for (service, address) in [(&web, address), (&lease, leased)] {
        service.wait_for_addresses(&[address]).await.unwrap();
    }
    assert_eq!(lease.annotation(kube_vip::HWADDR).await.unwrap(), MAC);
    assert_eq!(lease.annotation(kube_vip::REQUESTED_IP).await.unwrap(), leased.to_string());
    assert_eq!(bed.lan.dhcp().count("DHCPRELEASE"), 0, "the lease belongs to the Service");
    theirs.ends().await;
    bed.announcer(2).stop().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_go_provider_that_leads_is_waited_for_and_its_services_are_taken_over_when_it_gives_the_lease_up() {
    if e2e::skip() {
        return;
    }
    let bed = Arc::new(Bed::builder().nodes(1).not_started().start().await.unwrap());
    let case = bed.case("go-provider").await.unwrap();
    let theirs = Renewal::of(&bed, CCM_LEASE, "server-0_5b1f6a3e", Duration::from_secs(15)).await.unwrap();
    bed.ccm().start().unwrap();
    bed.announcer(1).start().unwrap();
    let web = case.expose(service("web").tcp(80)).await.unwrap();
    watch::let_it_happen(5).await;
    bed.ccm().check().unwrap();
    let untouched = web.get().await.unwrap();
    assert!(untouched.finalizers().is_empty() && untouched.annotations().is_empty(), "{untouched:?}");
    assert_eq!(bed.ccm_lease().await.unwrap().0, "server-0_5b1f6a3e");

    theirs.end().await.unwrap();
    bed.hold_lease(CCM_LEASE, "", Duration::from_secs(1)).await.unwrap();
    let address = web.address().await.unwrap();
    web.reply(address, 80).await.unwrap();
    assert_ne!(bed.ccm_lease().await.unwrap().0, "server-0_5b1f6a3e");
}
