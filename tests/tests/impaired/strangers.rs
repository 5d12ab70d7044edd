//! Others on the LAN who answer for addresses of ours, one of each kind: while the owner lives, while there is no API,
//! and when the owner has lost its power. Clients do not hear them: what a stranger does to the tables of clients no
//! owner can prevent, and what it does to owner and successors is what is looked at here.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use e2e::watch::{FAILOVER, let_it_happen, nothing_was_lost};
use e2e::{Bed, Case, Exposed, PATIENCE, service, watch};
use testbed::{Fault, Host, Probe, ProbeOptions, Task, Traffic};

use super::alone;

/// A membership Lease, and the time that strangers have then (docs/announcer.md); two more for detection and for the
/// API.
const DESPITE_A_STRANGER: Duration = Duration::from_secs(15 + 5 + 2);
/// How long the API is away. An hour would be no other case: Leases last for 15 s.
const WITHOUT_API: u64 = 20;
const TERM: &str = super::vip::TERM;

/// Who answers for an address beside its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Nobody.
    None,
    /// A machine that has the address, too, and announces it.
    Duplicate,
    /// A router that answers for whatever it could reach.
    ProxyArp,
    /// A fabric (EVPN) that answers in the owner's name, also when it is dead.
    Fabric,
    /// kube-proxy in IPVS mode without strict ARP: the address is on every other node. A node with an announcer does
    /// not answer for it all the same, because the announcer sets `arp_ignore`.
    Ipvs,
}

impl Kind {
    /// Somebody else answers when the owner is dead.
    fn answers(self) -> bool {
        matches!(self, Self::Duplicate | Self::ProxyArp | Self::Fabric)
    }
}

const KINDS: [Kind; 5] = [Kind::None, Kind::Duplicate, Kind::ProxyArp, Kind::Fabric, Kind::Ipvs];

/// A Service, and its stranger.
struct Disputed<'a> {
    kind: Kind,
    web: Exposed<'a>,
    address: Ipv4Addr,
    owner: usize,
    term: String,
}

impl Disputed<'_> {
    /// From the client host; five of them at the usual pace would be much.
    fn ask(&self, bed: &Bed) -> Probe {
        let pace = ProbeOptions { interval: Duration::from_millis(50), ..ProbeOptions::default() };
        let probe = bed.lan.client().probe_with(Traffic::http((self.address, 80).into()), pace).unwrap();
        probe.wait_for_answers(20, PATIENCE).unwrap();
        probe
    }

    /// It is where it was, by the same record.
    async fn stands(&self, bed: &Bed, when: &str) {
        let found =
            (self.web.annotation(TERM).await.unwrap(), bed.lan.host(self.owner).has_address(self.address).unwrap());
        assert_eq!(found, (self.term.clone(), true), "{when}: {:?}", self.kind);
    }
}

/// One address for each kind of stranger, all of them with one owner.
async fn disputed<'a>(bed: &Bed, case: &'a Case<'_>, first: u8) -> Vec<Disputed<'a>> {
    let names = |last: u8| format!("web{last}");
    // Of thirteen addresses on three nodes one node has five.
    let all: Vec<u8> = (first..first + 13).collect();
    for last in &all {
        let spec = service(&names(*last)).at(&bed.lan.ipv4(*last).to_string()).tcp(80);
        case.create(spec).await.unwrap();
    }
    let mut owners: [Vec<u8>; 3] = Default::default();
    for last in &all {
        owners[bed.wait_for_owner(bed.lan.ipv4(*last).into()).await.unwrap() - 1].push(*last);
    }
    let (at, ours) = owners.iter().enumerate().max_by_key(|(_, here)| here.len()).unwrap();
    let (owner, ours) = (at + 1, &ours[..KINDS.len()]);
    let pods: Vec<_> = bed.pods().into_iter().filter(|pod| pod.node != bed.lan.host(owner).name()).collect();
    let mut disputed = Vec::new();
    for last in all {
        let Some(at) = ours.iter().position(|one| *one == last) else {
            case.named(&names(last)).delete_with(bed.lan.ipv4(last).into()).await.unwrap();
            continue;
        };
        let (web, address) = (case.named(&names(last)), bed.lan.ipv4(last));
        web.publish(&pods).await.unwrap();
        web.wait_until_every_node_serves(80).await.unwrap();
        web.reply(address.into(), 80).await.unwrap();
        let term = web.annotation(TERM).await.unwrap();
        disputed.push(Disputed { kind: KINDS[at], web, address, owner, term });
    }
    disputed
}

/// They answer until this is dropped.
struct Strangers<'a> {
    bed: &'a Bed,
    stranger: Host,
    /// The client does not hear them.
    _silenced: Vec<Fault>,
    answers: Vec<Task>,
    ipvs: Vec<(usize, Ipv4Addr)>,
}

impl<'a> Strangers<'a> {
    /// All but the fabric, which is not to be told from the owner while that lives.
    fn begin(bed: &'a Bed, disputed: &[Disputed<'_>]) -> Self {
        let stranger = bed.lan.add_host("stranger", 60).unwrap();
        let (client, segment) = (bed.lan.client().nic("eth0"), bed.lan.segment());
        let silenced = vec![segment.block(&stranger.nic("eth0"), &client).unwrap()];
        let mut this = Self { bed, stranger, _silenced: silenced, answers: Vec::new(), ipvs: Vec::new() };
        for one in disputed {
            match one.kind {
                Kind::None | Kind::Fabric => {}
                Kind::Duplicate => {
                    this.stranger.ip([format!("addr add {}/32 dev eth0", one.address)]).unwrap();
                    this.announce(one.address);
                }
                Kind::ProxyArp => {
                    this.answers.push(this.stranger.answer_for(one.address, &this.stranger.mac()).unwrap());
                }
                Kind::Ipvs => {
                    for n in (1..=3).filter(|n| *n != one.owner) {
                        let host = bed.lan.host(n);
                        host.ip([
                            // It is a dummy where the kernel has these; what counts is an address of the node that is
                            // not on the LAN's interface.
                            "link add kube-ipvs0 type bridge".to_owned(),
                            format!("addr add {}/32 dev kube-ipvs0", one.address),
                        ])
                        .unwrap();
                        this.ipvs.push((n, one.address));
                    }
                }
            }
        }
        this
    }

    /// Untagged gratuitous ARP.
    fn announce(&self, address: Ipv4Addr) {
        self.stranger.exec(["arping", "-A", "-c", "2", "-I", "eth0", &address.to_string()]).unwrap();
    }

    /// The owner is dead, and the fabric goes on answering for it.
    fn answer_for_the_dead(&mut self, disputed: &[Disputed<'_>]) {
        for one in disputed.iter().filter(|one| one.kind == Kind::Fabric) {
            let mac = self.bed.lan.host(one.owner).mac();
            self.answers.push(self.stranger.answer_for(one.address, &mac).unwrap());
        }
    }
}

impl Drop for Strangers<'_> {
    fn drop(&mut self) {
        for (n, _) in &self.ipvs {
            let _ = self.bed.lan.host(*n).ip(["link del kube-ipvs0"]);
        }
    }
}

async fn are_deleted(disputed: Vec<Disputed<'_>>) {
    for one in disputed {
        one.web.delete_with(IpAddr::from(one.address)).await.unwrap();
    }
}

/// The API is away for 20 s here, not for a minute; a Lease ends meanwhile.
#[tokio::test]
async fn strangers_take_nothing_from_an_owner_that_lives_with_an_api_or_without() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("disputed").await.unwrap();
    let disputed = disputed(&bed, &case, 101).await;
    let_it_happen(3).await;
    let mut probes = Vec::new();
    for one in &disputed {
        probes.push(one.ask(&bed));
    }
    let strangers = Strangers::begin(&bed, &disputed);
    let_it_happen(5).await;
    for one in &disputed {
        one.stands(&bed, "with an API").await;
    }
    bed.control_plane.api_server().kill();
    let_it_happen(2).await;
    for one in disputed.iter().filter(|one| one.kind == Kind::Duplicate) {
        strangers.announce(one.address);
    }
    let_it_happen(WITHOUT_API).await;
    let meanwhile: Vec<bool> =
        disputed.iter().map(|one| bed.lan.host(one.owner).has_address(one.address).unwrap()).collect();
    bed.control_plane.api_server().start().await.unwrap();
    for n in 1..=3 {
        bed.wait_until_announcing(n).await.unwrap();
    }
    let_it_happen(5).await;
    nothing_was_lost("strangers of each kind, API away for 20 s", probes).unwrap();
    assert_eq!(meanwhile, [true; KINDS.len()], "without an API");
    for one in &disputed {
        one.stands(&bed, "after the outage").await;
    }
    drop(strangers);
    bed.restart_proxies().unwrap();
    are_deleted(disputed).await;
}

#[tokio::test]
async fn what_strangers_answer_for_is_taken_when_the_lease_of_its_lost_owner_has_run_out() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("haunted").await.unwrap();
    let disputed = disputed(&bed, &case, 101).await;
    let owner = disputed[0].owner;
    let_it_happen(3).await;
    let mut strangers = Strangers::begin(&bed, &disputed);
    let_it_happen(5).await;
    let mut probes = Vec::new();
    for one in &disputed {
        one.stands(&bed, "before").await;
        probes.push(one.ask(&bed));
    }
    bed.power_off(owner).unwrap();
    strangers.answer_for_the_dead(&disputed);
    let mut found = Vec::new();
    for (one, probe) in disputed.iter().zip(probes) {
        one.web.wait_for_other_vip_host(owner).await.unwrap();
        probe.wait_for_answers(20, PATIENCE).unwrap();
        let report = watch::stop(&format!("power loss, stranger: {:?}", one.kind), probe).unwrap();
        let bound = if one.kind.answers() { DESPITE_A_STRANGER } else { FAILOVER };
        found.push((one.kind, report.outage, bound));
    }
    for one in disputed.iter().filter(|one| one.kind.answers()) {
        one.web.wait_for_event("AddressConflict", "").await.unwrap();
    }
    drop(strangers);
    // What the dead node's kernel still has is gone by now.
    bed.power_on(owner).unwrap();
    bed.wait_until_announcing(owner).await.unwrap();
    are_deleted(disputed).await;
    for (kind, outage, bound) in found {
        assert!(outage < bound, "{kind:?}: {outage:?}, at most {bound:?}");
    }
}
