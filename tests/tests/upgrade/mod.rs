//! A bed on which replays of host upgrades are played: machines that are off are really off, a host's API that is away
//! is cut off, and a client asks a Service's address all the time. Each test program uses a part of it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use e2e::watch::{self, FAILOVER, OVERLAP};
use e2e::{Bed, CLUSTER, Exposed, NETWORK, PATIENCE, VM_NAMESPACE, wait_for};
use harvester_sim::guest::machine::Machine;
use harvester_sim::replay::play::Player;
use harvester_sim::replay::{Replay, Snapshot};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use testbed::Traffic;

const CONDITION: &str = "HarvesterHostMaintenance";
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// A step that is this much later than the one before is not waited for: what the controller has written down is made
/// older.
const LONG: f64 = 12.0;
/// The Service's port.
pub const PORT: u16 = 8080;

/// A replay of `crates/harvester-sim/replays`.
pub fn read(file: &str) -> Replay {
    let path = format!("{}/../crates/harvester-sim/replays/{file}.yaml", env!("CARGO_MANIFEST_DIR"));
    Replay::parse(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub async fn player(bed: &Bed) -> Player {
    Player::new(bed.harvester_client().await.unwrap(), VM_NAMESPACE, CLUSTER, NETWORK)
}

/// Why a Node's condition is as it is.
pub fn reason(node: &Node) -> String {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let found = conditions.filter(|condition| condition.type_ == CONDITION).find_map(|found| found.reason.clone());
    found.unwrap_or_else(|| "none".to_owned())
}

/// A look for [`Bed::wait_for_node`].
pub fn shows(wanted: &str) -> impl Fn(&Node) -> Result<(), String> + use<'_> {
    move |node| {
        let found = reason(node);
        if found == wanted { Ok(()) } else { Err(found) }
    }
}

fn zones(nodes: &BTreeMap<String, Node>) -> BTreeMap<String, String> {
    nodes.iter().map(|(name, node)| (name.clone(), node.labels().get(ZONE).cloned().unwrap_or_default())).collect()
}

/// A test bed with one exposed Service, on which a player replays recorded upgrades.
pub struct ReplayBed<'a> {
    pub bed: &'a Bed,
    pub web: &'a Exposed<'a>,
    pub address: IpAddr,
    pub player: Player,
    /// Minutes between steps pass, instead of being played at once: for what only time brings about.
    pub lets_time_pass: bool,
}

impl<'a> ReplayBed<'a> {
    pub async fn new(bed: &'a Bed, web: &'a Exposed<'a>) -> Self {
        let address = web.settled().await.unwrap();
        web.reply(address, PORT).await.unwrap();
        Self { bed, web, address, player: player(bed).await, lets_time_pass: false }
    }

    async fn nodes(&self) -> BTreeMap<String, Node> {
        let nodes: Api<Node> = Api::all(self.bed.client().await.unwrap());
        nodes.list(&ListParams::default()).await.unwrap().into_iter().map(|node| (node.name_any(), node)).collect()
    }

    /// Whether deletions and the like are suspended, as the ConfigMap says.
    async fn suspended(&self) -> bool {
        let maps: Api<ConfigMap> = Api::namespaced(self.bed.client().await.unwrap(), "kube-system");
        let Some(map) = maps.get_opt("harvester-host-upgrade").await.unwrap() else { return false };
        let status: Value = serde_json::from_str(&map.data.unwrap_or_default()["status.json"]).unwrap();
        status["window"]["suspended"] == true
    }

    /// Waits until everything is as the snapshot says.
    pub async fn expect(&self, file: &str, snapshot: &Snapshot) {
        let Some(expected) = &snapshot.expect else { return };
        let at = format!("{file} at minute {}", snapshot.minute);
        for (name, wanted) in &expected.nodes {
            self.bed.wait_for_node(name, &format!("{wanted}, {at}"), shows(wanted)).await.unwrap();
        }
        let Some(wanted) = expected.suspended else { return };
        // Settling takes half a minute, whatever the pace of the replay; a new process takes two minutes to find that
        // something has lasted too long.
        wait_for(&format!("suspended {wanted}, {at}"), PATIENCE * 4, || async {
            let found = self.suspended().await;
            if found == wanted { Ok(()) } else { Err(format!("{found}")) }
        })
        .await
        .unwrap();
    }

    /// Waits until the zones of all machines are their Nodes'.
    pub async fn zones_follow(&self, snapshot: &Snapshot) {
        for machine in &snapshot.machines {
            let wanted = machine.zone.clone().unwrap_or_default();
            self.bed
                .wait_for_node(&machine.name, "its zone", |node| {
                    let found = node.labels().get(ZONE).cloned().unwrap_or_default();
                    if found == wanted { Ok(()) } else { Err(found) }
                })
                .await
                .unwrap();
        }
    }

    /// The kinds of the host, and the provider knows them: it has found them missing at its start, and looks again
    /// every ten minutes, or when Harvester is back.
    pub async fn install(&self, rights: bool) {
        self.player.install(rights).await.unwrap();
        self.bed.ccm().restart().unwrap();
        self.bed.wait_until_ccm_is_ready().await.unwrap();
    }

    /// Plays a file from its first step to its last, or to the one before where the next file goes on with it. Returns
    /// writes of the cloud controller manager in the guest cluster.
    pub async fn play(&self, file: &str, to_the_end: bool) -> usize {
        let snapshots = read(file).snapshots(self.player.placement()).unwrap();
        let vanish = snapshots.iter().any(|snapshot| snapshot.machines.iter().all(|machine| !machine.powered));
        let off = snapshots.iter().any(|snapshot| snapshot.machines.iter().any(|machine| !machine.powered));
        self.player.tidy().await;
        self.serve_where_it_stays_on(&snapshots).await;
        let mark = self.bed.mark();
        let probe = watch::ask(self.bed, Traffic::Http((self.address, PORT).into())).unwrap();
        let mut before: Vec<Machine> = snapshots[0].machines.clone();
        let (mut minute, mut api, mut frozen) = (snapshots[0].minute, true, None);
        let mut missed = Vec::new();
        for (index, snapshot) in snapshots.iter().enumerate() {
            if self.lets_time_pass && snapshot.minute - minute >= LONG {
                self.pass(snapshot.minute - minute).await;
            }
            if api != snapshot.api {
                let nic = self.bed.harvester.nic();
                if snapshot.api { nic.plug() } else { nic.cut() }.unwrap();
            }
            (minute, api) = (snapshot.minute, snapshot.api);
            missed.extend(snapshot.changed.clone());
            // What a host does that is cut off is seen when it is back.
            if api {
                self.player.play(&Snapshot { changed: std::mem::take(&mut missed), ..snapshot.clone() }).await.unwrap();
            }
            self.machines_follow(&before, snapshot, &snapshots[0]).await;
            before.clone_from(&snapshot.machines);
            let alive = snapshot.machines.iter().any(|machine| machine.powered);
            if alive && (to_the_end || index + 1 < snapshots.len()) {
                self.expect(file, snapshot).await;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
            self.nothing_is_lost(file, snapshot, &mut frozen).await;
        }
        if vanish {
            drop(probe);
        } else if off {
            watch::at_most(FAILOVER, &format!("{file}, machines were off"), [probe]).unwrap();
        } else {
            watch::at_most(OVERLAP, &format!("{file}, no machine was off"), [probe]).unwrap();
        }
        self.web.reply(self.address, PORT).await.unwrap();
        self.counted(file, mark, snapshots.len())
    }

    /// Endpoints only where the machine stays on: who announces is what is watched.
    async fn serve_where_it_stays_on(&self, snapshots: &[Snapshot]) {
        let stays = |name: &str| {
            let is_off = |machine: &&Machine| machine.name == name && !machine.powered;
            snapshots.iter().all(|snapshot| snapshot.machines.iter().find(is_off).is_none())
        };
        let all = self.bed.pods();
        let some: Vec<_> = all.iter().copied().filter(|pod| stays(&pod.node)).collect();
        self.web.publish(if some.is_empty() { &all } else { &some }).await.unwrap();
        self.web.wait_until_every_node_serves(PORT).await.unwrap();
    }

    /// Power and addresses of the machines become those of the hosts on the LAN.
    async fn machines_follow(&self, before: &[Machine], snapshot: &Snapshot, first: &Snapshot) {
        for machine in &snapshot.machines {
            let n: usize = machine.name.strip_prefix("node").unwrap().parse().unwrap();
            let runs = |machine: &Machine| machine.powered;
            let was = before.iter().find(|known| known.name == machine.name).is_none_or(runs);
            if was && !machine.powered {
                self.bed.power_off(n).unwrap();
                self.bed.set_ready(&machine.name, false).await.unwrap();
            }
            if !was && machine.powered {
                self.bed.power_on(n).unwrap();
                self.bed.wait_until_announcing(n).await.unwrap();
                self.bed.set_ready(&machine.name, true).await.unwrap();
            }
            let start = first.machines.iter().find(|known| known.name == machine.name).unwrap();
            if machine.nics[0].addresses != start.nics[0].addresses {
                // On the LAN it has the last number of the replay's address.
                let last = machine.nics[0].addresses[0].rsplit('.').next().unwrap().parse().unwrap();
                let new = self.bed.lan.ipv4(last).to_string();
                if !self.bed.lan.host(n).has_address(self.bed.lan.ipv4(last)).unwrap() {
                    let words = ["ip", "address", "add", &format!("{new}/24"), "dev", "eth0"];
                    self.bed.lan.host(n).exec(words).unwrap();
                }
                let known = self.bed.machines().await.unwrap();
                known.change(VM_NAMESPACE, &machine.name, |found| found.nics[0].addresses = vec![new]).await.unwrap();
            }
        }
    }

    /// At each step: every Node is there, the address is the same, and zones stand still while they should.
    async fn nothing_is_lost(&self, file: &str, snapshot: &Snapshot, frozen: &mut Option<BTreeMap<String, String>>) {
        let at = format!("{file} at minute {}", snapshot.minute);
        let nodes = self.nodes().await;
        assert_eq!(nodes.len(), self.bed.nodes.len(), "{at}: no Node is deleted");
        assert_eq!(self.web.address().await.unwrap(), self.address, "{at}");
        if self.suspended().await {
            let known = frozen.get_or_insert_with(|| zones(&nodes));
            assert_eq!(zones(&nodes), *known, "{at}: zones are frozen");
        } else {
            *frozen = None;
        }
    }

    /// What it has cost.
    fn counted(&self, file: &str, mark: e2e::Mark, snapshots: usize) -> usize {
        let deleted = |requests: Vec<testbed::Request>, resource: &str| {
            let deletes =
                |request: &&testbed::Request| request.verb.starts_with("delete") && request.resource == resource;
            requests.iter().filter(deletes).count()
        };
        assert_eq!(deleted(self.bed.control_plane.audit().since(mark.guest).unwrap(), "nodes"), 0, "{file}");
        assert_eq!(deleted(self.bed.harvester.audit().since(mark.harvester).unwrap(), "loadbalancers"), 0, "{file}");
        let costs = self.bed.costs(mark).unwrap();
        assert!(costs.ccm_harvester.is_empty(), "{file}: nothing is written on the host: {costs}");
        // At each step at most condition, annotations and something else of each Node, and the ConfigMap.
        let bound = snapshots * (3 * self.bed.nodes.len() + 1);
        assert!(costs.ccm_guest.len() <= bound, "{file}: {costs}");
        eprintln!("{file}: {} writes in the guest cluster, {} Events", costs.ccm_guest.len(), costs.ccm_events.len());
        costs.ccm_guest.len()
    }

    /// The controller is away while its record becomes older by so many minutes, and takes it up again.
    async fn pass(&self, minutes: f64) {
        self.bed.ccm().stop().unwrap();
        let maps: Api<ConfigMap> = Api::namespaced(self.bed.client().await.unwrap(), "kube-system");
        let map = maps.get("harvester-host-upgrade").await.unwrap();
        let mut status: Value = serde_json::from_str(&map.data.unwrap()["status.json"]).unwrap();
        #[allow(clippy::cast_possible_truncation)] // minutes of a replay
        let seconds = (minutes * 60.0) as i64;
        for field in ["opened", "changed"] {
            let time: Timestamp = status["window"][field].as_str().unwrap().parse().unwrap();
            let older = Timestamp::from_second(time.as_second() - seconds).unwrap();
            status["window"][field] = json!(older.to_string());
        }
        let patch = json!({"data": {"status.json": status.to_string()}});
        maps.patch("harvester-host-upgrade", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
        self.bed.ccm().start().unwrap();
        self.bed.wait_until_ccm_is_ready().await.unwrap();
    }

    /// Waits for the report of the upgrade that is over; what it says.
    pub async fn report(&self) -> String {
        let map = ("kube-system", "ConfigMap", "harvester-host-upgrade");
        let report = self.bed.wait_for_event(map.0, map.1, map.2, "HostUpgradeReport", "").await.unwrap();
        report.message
    }

    /// Events of Nodes come once per reason, and the one on the Service once in all.
    pub async fn told_once(&self) {
        for name in self.nodes().await.keys() {
            let told = self.bed.events("default", "Node", name).await.unwrap();
            let mut by_reason: BTreeMap<String, i32> = BTreeMap::new();
            for event in told.iter().filter(|event| event.reason.starts_with("Host") || event.reason.starts_with("VM"))
            {
                *by_reason.entry(event.reason.clone()).or_default() += event.count;
            }
            assert!(!by_reason.is_empty() && by_reason.values().all(|count| *count == 1), "{name}: {told:?}");
        }
        let told = self.web.events().await.unwrap();
        let started = told.iter().filter(|event| event.reason == "HostUpgradeStarted");
        assert_eq!(started.map(|event| event.count).sum::<i32>(), 1, "{told:?}");
    }
}
