//! What goes wrong around the announcers in `global` mode: a node, a process, the API, a cable. Three nodes, one fault
//! at a time; asked by kube-vip's annotations alone. The Lease has the durations of kube-vip's own end-to-end tests: 5,
//! 3 and 1 s. A crash of the owner's process that is restarted is in `writes.rs`, in `node` mode.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use e2e::watch::{
    ORDERLY, at_most, let_it_happen, nothing_was_lost, nothing_was_written, only_what_was_under_way_was_lost,
};
use e2e::{Bed, Beds, Case, Exposed, PATIENCE, service, wait_for};
use harvester_api::keys::kube_vip;
use testbed::{Probe, Traffic};
use tokio::sync::MutexGuard;

// These tests wait for Leases to expire.
static BEDS: Beds<4> = Beds::new();

/// Who waits for the Lease sees at the latest after this that its holder is dead, and has taken it.
const EXPIRY: Duration = Duration::from_secs(5 + 1);
/// A fail-over: the expiry is the rule, and then the record is written and the address announced. The machine's stalls
/// are subtracted.
const FAILOVER: Duration = EXPIRY.saturating_add(Duration::from_secs(1));

/// The bed with all nodes alive and well, also after a test that failed.
async fn alone() -> (MutexGuard<'static, ()>, Arc<Bed>) {
    let builder = Bed::builder()
        .nodes(3)
        .without_ccm()
        .without_pool()
        .announcer_env("vip_leaseduration", "5")
        .announcer_env("election_mode", "global");
    let builder = builder.announcer_env("vip_renewdeadline", "3").announcer_env("vip_retryperiod", "1");
    let (guard, bed) = BEDS.alone(|| builder.start()).await.unwrap();
    for n in 1..=3 {
        bed.lan.host(n).plug_in().unwrap();
        if bed.announcer(n).check().is_err() {
            bed.power_on(n).unwrap();
        }
        bed.wait_until_announcing(n).await.unwrap();
    }
    (guard, bed)
}

/// A Service with a given address and one with a lease, both served by the same node.
struct Pair<'a> {
    bed: &'a Bed,
    web: Exposed<'a>,
    lease: Exposed<'a>,
    address: IpAddr,
    leased: IpAddr,
    leased_mac: String,
    owner: usize,
}

impl<'a> Pair<'a> {
    async fn new(bed: &'a Bed, case: &'a Case<'_>, last: u8) -> Self {
        let address = IpAddr::from(bed.lan.ipv4(last));
        let web = case.expose(service("web").at(&address.to_string()).tcp(80)).await.unwrap();
        let lease = case.expose(service("lease").at("0.0.0.0").tcp(80)).await.unwrap();
        let leased = lease.address().await.unwrap();
        web.reply(address, 80).await.unwrap();
        lease.reply(leased, 80).await.unwrap();
        let leased_mac = lease.annotation(kube_vip::HWADDR).await.unwrap();
        let owner = bed.wait_for_owner(address).await.unwrap();
        assert_eq!(bed.wait_for_owner(leased).await.unwrap(), owner);
        let pair = Self { bed, web, lease, address, leased, leased_mac, owner };
        for service in [&pair.web, &pair.lease] {
            service.wait_until_every_node_serves(80).await.unwrap();
        }
        pair.is_announced_by(owner).await;
        pair
    }

    /// Asks both all the time.
    fn probes(&self) -> [Probe; 2] {
        [self.address, self.leased]
            .map(|address| e2e::watch::ask(self.bed, Traffic::http((address, 80).into())).unwrap())
    }

    /// Waits until exactly this node has and answers for both addresses, and both Services name it. The leased address
    /// keeps its MAC.
    async fn is_announced_by(&self, n: usize) {
        let host = self.bed.lan.host(n);
        for (service, address, mac) in
            [(&self.web, self.address, host.mac()), (&self.lease, self.leased, self.leased_mac.clone())]
        {
            service.wait_for_vip_host(host.name()).await.unwrap();
            service.wait_for_addresses(&[address]).await.unwrap();
            self.bed.wait_for_mac(address, &mac).await.unwrap();
            assert_eq!(self.bed.wait_for_owner(address).await.unwrap(), n, "{address}");
            service.reply(address, 80).await.unwrap();
            self.bed.wait_until_the_client_knows(address, &mac).await.unwrap();
        }
    }

    /// Waits until another node than `former` announces; which.
    async fn moved_from(&self, former: usize) -> usize {
        let n = self.web.wait_for_other_vip_host(former).await.unwrap();
        self.is_announced_by(n).await;
        n
    }

    /// Waits until neither address nor a macvlan is left on node `n`.
    async fn nothing_is_left_on(&self, n: usize) {
        wait_for(&format!("node{n} to be clean"), PATIENCE, || async {
            let host = self.bed.lan.host(n);
            let addresses = [self.address, self.leased].map(|address| host.has_address(address).unwrap());
            let links = self.bed.macvlans(n).unwrap();
            if addresses == [false, false] && links.is_empty() {
                Ok(())
            } else {
                Err(format!("{addresses:?} {links:?}"))
            }
        })
        .await
        .unwrap();
    }

    async fn is_deleted(&self) {
        for (service, address) in [(&self.web, self.address), (&self.lease, self.leased)] {
            service.delete_with(address).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_node_without_power_is_replaced_and_comes_back_clean() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("power").await.unwrap();
    let pair = Pair::new(&bed, &case, 151).await;
    // Endpoints of the dead node would answer nobody, whoever announces.
    let alive: Vec<_> = bed.pods().into_iter().filter(|pod| pod.node != bed.lan.host(pair.owner).name()).collect();
    for service in [&pair.web, &pair.lease] {
        service.publish(&alive).await.unwrap();
    }
    let_it_happen(3).await;
    let probes = pair.probes();
    bed.power_off(pair.owner).unwrap();
    let successor = {
        // What a cut-off kernel still has does not answer: look at the wire and the record, not at the node.
        let holder = wait_for("another holder of the Lease", PATIENCE, || async {
            let holder = bed.announcer_lease_holder().await.map_err(|error| format!("{error:#}"))?;
            if holder == bed.lan.host(pair.owner).name() { Err(holder) } else { Ok(holder) }
        })
        .await
        .unwrap();
        bed.lan.hosts().iter().position(|host| host.name() == holder).unwrap() + 1
    };
    for (probe, name) in probes.iter().zip(["static", "DHCP"]) {
        let since = Instant::now();
        probe.wait_for_answers(20, PATIENCE).unwrap();
        eprintln!("{name} answers {} ms after the Lease was taken", since.elapsed().as_millis());
    }
    // The kernel of the dead node lets go of the addresses by itself: nobody is left there to do it.
    let_it_happen(3).await;
    pair.is_announced_by(successor).await;
    at_most(FAILOVER, "power loss", probes).unwrap();

    bed.power_on(pair.owner).unwrap();
    bed.wait_until_announcing(pair.owner).await.unwrap();
    pair.nothing_is_left_on(pair.owner).await;
    let_it_happen(3).await;
    pair.is_announced_by(successor).await;
    pair.is_deleted().await;
}

#[tokio::test]
async fn an_owner_that_hangs_is_replaced_and_lets_go_when_it_wakes() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("hang").await.unwrap();
    let pair = Pair::new(&bed, &case, 153).await;
    let probes = pair.probes();
    bed.announcer(pair.owner).pause().unwrap();
    // Its kernel removes the addresses at their deadline, with nobody's help.
    let successor = pair.moved_from(pair.owner).await;
    at_most(FAILOVER, "owner hangs", probes).unwrap();
    let probes = pair.probes();
    bed.announcer(pair.owner).resume().unwrap();
    let_it_happen(3).await;
    nothing_was_lost("owner wakes", probes).unwrap();
    pair.is_announced_by(successor).await;
    pair.nothing_is_left_on(pair.owner).await;
    pair.is_deleted().await;
}

#[tokio::test]
async fn an_owner_that_is_stopped_hands_over_and_leaves_nothing() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("handover").await.unwrap();
    let pair = Pair::new(&bed, &case, 154).await;
    let before = ["arp_ignore", "arp_announce"].map(|name| bed.inet_conf(pair.owner, "eth0", name).unwrap());
    assert_eq!(before, [1, 2]);
    let probes = pair.probes();
    let status = bed.announcer(pair.owner).stop().unwrap();
    assert_eq!(status.code(), Some(0), "SIGTERM is a clean end");
    pair.nothing_is_left_on(pair.owner).await;
    let after = ["arp_ignore", "arp_announce"].map(|name| bed.inet_conf(pair.owner, "eth0", name).unwrap());
    assert_eq!(after, [0, 0], "settings of the interface are put back");
    let successor = pair.moved_from(pair.owner).await;
    let [given, leased] = probes;
    only_what_was_under_way_was_lost("hand-over, static", 1, given).unwrap();
    // Its MAC goes with it: what a switch sends to the old port until it has learned the new one is lost, not refused.
    at_most(ORDERLY, "hand-over, DHCP", [leased]).unwrap();

    // Whoever comes back does not take anything away.
    let probes = pair.probes();
    bed.announcer(pair.owner).start().unwrap();
    bed.wait_until_announcing(pair.owner).await.unwrap();
    let_it_happen(3).await;
    nothing_was_lost("return", probes).unwrap();
    pair.is_announced_by(successor).await;
    pair.is_deleted().await;
}

#[tokio::test]
async fn the_api_away_for_everybody_moves_nothing_and_loses_no_reply() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("outage").await.unwrap();
    let pair = Pair::new(&bed, &case, 155).await;
    let_it_happen(3).await;
    let probes = pair.probes();
    let mark = bed.mark();
    bed.control_plane.api_server().kill();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(bed.owner_of(pair.address).unwrap(), Some(pair.owner));
    assert_eq!(bed.owner_of(pair.leased).unwrap(), Some(pair.owner));
    let [given, leased] = probes;
    nothing_was_lost("API outage, DHCP", [leased]).unwrap();
    // A crash on top of it: the given address is kept, though nobody can say whose it is.
    bed.announcer(pair.owner).kill();
    bed.announcer(pair.owner).start().unwrap();
    let_it_happen(3).await;
    bed.control_plane.api_server().start().await.unwrap();
    for n in 1..=3 {
        bed.wait_until_announcing(n).await.unwrap();
    }
    let_it_happen(3).await;
    assert_eq!(bed.announcer_lease_holder().await.unwrap(), bed.lan.host(pair.owner).name(), "the holder stays");
    nothing_was_written(&bed, mark).unwrap();
    nothing_was_lost("API outage, static", [given]).unwrap();
    pair.is_announced_by(pair.owner).await;

    bed.restart_proxies().unwrap();
    let late = IpAddr::from(bed.lan.ipv4(156));
    let web = case.expose(service("late").at(&late.to_string()).tcp(80)).await.unwrap();
    let since = Instant::now();
    wait_for("a new Service to be announced", Duration::from_secs(90), || async {
        bed.owner_of(late).map_err(|error| format!("{error:#}"))?.ok_or_else(|| "not yet".to_owned())
    })
    .await
    .unwrap();
    eprintln!("a new Service is announced {} ms after the outage", since.elapsed().as_millis());
    web.wait_for_addresses(&[late]).await.unwrap();
    web.reply(late, 80).await.unwrap();
    web.delete_with(late).await.unwrap();
    pair.is_deleted().await;
}

#[tokio::test]
async fn an_owner_that_alone_loses_the_api_is_replaced_and_never_answers_beside_its_successor() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("management").await.unwrap();
    let pair = Pair::new(&bed, &case, 157).await;
    let probes = pair.probes();
    let management = bed.lan.host(pair.owner).nic("mgmt0");
    management.cut().unwrap();
    let successor = pair.moved_from(pair.owner).await;
    pair.nothing_is_left_on(pair.owner).await;
    at_most(FAILOVER, "owner without API", probes).unwrap();
    let probes = pair.probes();
    management.plug().unwrap();
    bed.wait_until_announcing(pair.owner).await.unwrap();
    let_it_happen(3).await;
    pair.is_announced_by(successor).await;
    nothing_was_lost("API is back", probes).unwrap();
    pair.is_deleted().await;
}

/// kube-vip spec 9.2 S8.
#[tokio::test]
async fn a_follower_without_network_changes_nothing() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("follower").await.unwrap();
    let pair = Pair::new(&bed, &case, 158).await;
    let follower = if pair.owner == 1 { 2 } else { 1 };
    // Its pod is out of reach as well.
    let alive: Vec<_> = bed.pods().into_iter().filter(|pod| pod.node != bed.lan.host(follower).name()).collect();
    for service in [&pair.web, &pair.lease] {
        service.publish(&alive).await.unwrap();
    }
    let_it_happen(3).await;
    let mark = bed.mark();
    let probes = pair.probes();
    bed.lan.host(follower).cut_off().unwrap();
    tokio::time::sleep(EXPIRY * 2).await;
    bed.lan.host(follower).plug_in().unwrap();
    bed.wait_until_announcing(follower).await.unwrap();
    let_it_happen(3).await;
    nothing_was_lost("follower cut off", probes).unwrap();
    nothing_was_written(&bed, mark).unwrap();
    pair.is_announced_by(pair.owner).await;
    pair.is_deleted().await;
}
