//! Hosts that answer for our addresses, one of each kind. They answer while the owner lives, while the API is away, and
//! when the owner has lost its power. Clients do not hear these hosts: no owner can prevent what they do to the tables
//! of clients. The tests look at the effects on owner and successors.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testbed::{Fault, Host, Probe, ProbeOptions, Task, Traffic};

use super::{ObservedOutage, OutageLimits};
use crate::PATIENCE;
use crate::bed::Bed;
use crate::case::{Case, Exposed, service};
use crate::vip::TERM;
use crate::watch::{FAILOVER, let_it_happen};

/// The duration of a membership Lease.
const LEASE: Duration = Duration::from_secs(15);
/// The duration of a burst of questions.
const BURST: Duration = Duration::from_millis(30);
/// A membership Lease, and the time that strangers have then (docs/announcer.md); tests give two seconds more for
/// detection and for the API.
const DESPITE_A_STRANGER: OutageLimits = OutageLimits::within(20_000, Duration::from_secs(15 + 5 + 2));
/// Of a node whose strangers are silent: 0.25 s, for a client that asks every 50 ms.
const POWER_LOSS: OutageLimits = OutageLimits::within(300, FAILOVER);

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

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "nobody",
            Self::Duplicate => "duplicate",
            Self::ProxyArp => "proxy ARP",
            Self::Fabric => "EVPN fabric",
            Self::Ipvs => "IPVS without strict ARP",
        })
    }
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
    fn ask(&self, bed: &Bed) -> Result<Probe> {
        let pace = ProbeOptions { interval: Duration::from_millis(50), ..ProbeOptions::default() };
        let probe = bed.lan.client().probe_with(Traffic::http((self.address, 80).into()), pace)?;
        probe.wait_for_answers(20, PATIENCE)?;
        Ok(probe)
    }

    /// It is where it was, by the same record.
    async fn stands(&self, bed: &Bed, when: &str) -> Result<()> {
        let term = self.web.annotation(TERM).await?;
        let here = bed.lan.host(self.owner).has_address(self.address)?;
        ensure!(term == self.term && here, "{when}, {}: term {term} after {}, here: {here}", self.kind, self.term);
        Ok(())
    }
}

/// One address for each kind of stranger, all of them with one owner.
async fn disputed<'a>(bed: &Bed, case: &'a Case<'_>, first: u8) -> Result<Vec<Disputed<'a>>> {
    let names = |last: u8| format!("web{last}");
    // Of thirteen addresses on three nodes one node has five.
    let all: Vec<u8> = (first..first + 13).collect();
    for last in &all {
        let spec = service(&names(*last)).at(&bed.lan.ipv4(*last).to_string()).tcp(80);
        case.create(spec).await?;
    }
    let mut owners: [Vec<u8>; 3] = Default::default();
    for last in &all {
        owners[bed.wait_for_owner(bed.lan.ipv4(*last).into()).await? - 1].push(*last);
    }
    let (at, ours) = owners.iter().enumerate().max_by_key(|(_, here)| here.len()).context("nodes")?;
    let (owner, ours) = (at + 1, &ours[..KINDS.len()]);
    let pods: Vec<_> = bed.pods().into_iter().filter(|pod| pod.node != bed.lan.host(owner).name()).collect();
    let mut disputed = Vec::new();
    for last in all {
        let Some(at) = ours.iter().position(|one| *one == last) else {
            case.named(&names(last)).delete_with(bed.lan.ipv4(last).into()).await?;
            continue;
        };
        let (web, address) = (case.named(&names(last)), bed.lan.ipv4(last));
        web.publish(&pods).await?;
        web.wait_until_every_node_serves(80).await?;
        web.reply(address.into(), 80).await?;
        let term = web.annotation(TERM).await?;
        disputed.push(Disputed { kind: KINDS[at], web, address, owner, term });
    }
    Ok(disputed)
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
    /// All strangers except the fabric, which looks like the owner while the owner lives.
    fn begin(bed: &'a Bed, disputed: &[Disputed<'_>]) -> Result<Self> {
        let stranger = bed.lan.add_host("stranger", 60)?;
        let (client, segment) = (bed.lan.client().nic("eth0"), bed.lan.segment());
        let silenced = vec![segment.block(&stranger.nic("eth0"), &client)?];
        let mut this = Self { bed, stranger, _silenced: silenced, answers: Vec::new(), ipvs: Vec::new() };
        for one in disputed {
            match one.kind {
                Kind::None | Kind::Fabric => {}
                Kind::Duplicate => {
                    this.stranger.ip([format!("addr add {}/32 dev eth0", one.address)])?;
                    this.announce(one.address)?;
                }
                Kind::ProxyArp => {
                    this.answers.push(this.stranger.answer_for(one.address, &this.stranger.mac())?);
                }
                Kind::Ipvs => {
                    for n in (1..=3).filter(|n| *n != one.owner) {
                        let host = bed.lan.host(n);
                        host.ip([
                            // It is a dummy where the kernel has these; what counts is an address of the node that is
                            // not on the LAN's interface.
                            "link add kube-ipvs0 type bridge".to_owned(),
                            format!("addr add {}/32 dev kube-ipvs0", one.address),
                        ])?;
                        this.ipvs.push((n, one.address));
                    }
                }
            }
        }
        Ok(this)
    }

    /// Untagged gratuitous ARP.
    fn announce(&self, address: Ipv4Addr) -> Result<()> {
        self.stranger.exec(["arping", "-A", "-c", "2", "-I", "eth0", &address.to_string()]).map(drop)
    }

    /// The owner is dead, and the fabric goes on answering for it.
    fn answer_for_the_dead(&mut self, disputed: &[Disputed<'_>]) -> Result<()> {
        for one in disputed.iter().filter(|one| one.kind == Kind::Fabric) {
            let mac = self.bed.lan.host(one.owner).mac();
            self.answers.push(self.stranger.answer_for(one.address, &mac)?);
        }
        Ok(())
    }
}

impl Drop for Strangers<'_> {
    fn drop(&mut self) {
        for (n, _) in &self.ipvs {
            let _ = self.bed.lan.host(*n).ip(["link del kube-ipvs0"]);
        }
    }
}

async fn are_deleted(disputed: Vec<Disputed<'_>>) -> Result<()> {
    for one in disputed {
        one.web.delete_with(IpAddr::from(one.address)).await?;
    }
    Ok(())
}

fn ask_all(bed: &Bed, disputed: &[Disputed<'_>]) -> Result<Vec<Probe>> {
    disputed.iter().map(|one| one.ask(bed)).collect()
}

/// The owner lives, for five seconds with an API and then without one. An hour would test the same as a minute, because
/// Leases last for 15 s.
pub async fn take_nothing_from_an_owner_that_lives(
    bed: &Bed,
    case: &Case<'_>,
    without_api: u64,
) -> Result<Vec<ObservedOutage>> {
    let disputed = disputed(bed, case, 101).await?;
    let_it_happen(3).await;
    let probes = ask_all(bed, &disputed)?;
    let strangers = Strangers::begin(bed, &disputed)?;
    let_it_happen(5).await;
    for one in &disputed {
        one.stands(bed, "with an API").await?;
    }
    bed.control_plane.api_server().kill();
    let_it_happen(2).await;
    let mut duplicates = disputed.iter().filter(|one| one.kind == Kind::Duplicate);
    let announced = duplicates.try_for_each(|one| strangers.announce(one.address));
    let_it_happen(without_api).await;
    let here = |one: &Disputed<'_>| bed.lan.host(one.owner).has_address(one.address);
    let meanwhile: Result<Vec<bool>> = disputed.iter().map(here).collect();
    // The API is started again whatever the result, because other tests need it.
    bed.control_plane.api_server().start().await?;
    for n in 1..=3 {
        bed.wait_until_announcing(n).await?;
    }
    let_it_happen(5).await;
    let what = |kind: Kind| (format!("{kind}, API there and away for {without_api} s"), OutageLimits::NOTHING_IS_LOST);
    let seen = end(&disputed, probes, what)?;
    announced?;
    let meanwhile = meanwhile?;
    ensure!(meanwhile == [true; KINDS.len()], "without an API the owner has these addresses: {meanwhile:?}");
    for one in &disputed {
        one.stands(bed, "after the outage").await?;
    }
    drop(strangers);
    bed.restart_proxies()?;
    are_deleted(disputed).await?;
    Ok(seen)
}

/// The owner loses its power. What strangers answer for is taken over all the same, when its Lease has run out.
pub async fn answer_for_an_owner_that_is_lost(bed: &Bed, case: &Case<'_>) -> Result<Vec<ObservedOutage>> {
    let disputed = disputed(bed, case, 101).await?;
    let owner = disputed[0].owner;
    let_it_happen(3).await;
    let mut strangers = Strangers::begin(bed, &disputed)?;
    let_it_happen(5).await;
    for one in &disputed {
        one.stands(bed, "before").await?;
    }
    let probes = ask_all(bed, &disputed)?;
    bed.power_off(owner)?;
    strangers.answer_for_the_dead(&disputed)?;
    for (one, probe) in disputed.iter().zip(&probes) {
        one.web.wait_for_other_vip_host(owner).await?;
        probe.wait_for_answers(20, PATIENCE)?;
    }
    let what =
        |kind: Kind| (format!("power loss, {kind}"), if kind.answers() { DESPITE_A_STRANGER } else { POWER_LOSS });
    let seen = end(&disputed, probes, what)?;
    for (one, seen) in disputed.iter().zip(&seen).filter(|(one, _)| one.kind.answers()) {
        // A kernel answers for the duplicate, threads of this process for the others: one that was kept waiting misses
        // a burst.
        if seen.report.longest_gap >= LEASE || one.kind == Kind::Duplicate {
            one.web.wait_for_event("AddressConflict", "").await?;
        } else {
            ensure!(
                seen.report.longest_stall > BURST,
                "{}: taken from a stranger that answers: {}",
                seen.what,
                seen.report
            );
        }
    }
    drop(strangers);
    // What the dead node's kernel still has is gone by now.
    bed.power_on(owner)?;
    bed.wait_until_announcing(owner).await?;
    are_deleted(disputed).await?;
    Ok(seen)
}

fn end(
    disputed: &[Disputed<'_>],
    probes: Vec<Probe>,
    what: impl Fn(Kind) -> (String, OutageLimits),
) -> Result<Vec<ObservedOutage>> {
    let each = disputed.iter().zip(probes);
    each.map(|(one, probe)| {
        let (what, limits) = what(one.kind);
        ObservedOutage::end(&what, limits, probe)
    })
    .collect()
}
