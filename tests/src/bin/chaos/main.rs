//! `chaos`: Services come and go on real API servers while both APIs, the stand-in for Harvester, the replicas of the
//! cloud controller manager, the pool and the machines behave as on a bad day, the cloud-config is another Harvester's,
//! a copy of the cluster is up beside it, somebody undoes what is written, or a node that lives is called silent. In
//! the end every Service is at its address, nothing has leaked, and nothing was deleted that should be there; nothing
//! was written to the other Harvester, nor by the copy. Exit status 1 if a rule was broken; the seed that is printed
//! repeats the decisions.

mod false_reports;
mod rng;
mod strangers;
mod trouble;
mod truth;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use e2e::bed::{NETWORK, POOL, POOL_RANGE};
use e2e::product::{Handle, Program};
use e2e::{Bed, NodeSketch, VM_NAMESPACE};
use harvester_api::keys::cloudprovider;
use harvester_sim::guest::machines::{MachineError, Machines};
use k8s_openapi::api::core::v1::Service;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use testbed::echo;

use crate::false_reports::FalseReports;
use crate::rng::{Deck, Rng};
use crate::strangers::{Other, SecondController};
use crate::trouble::{Broken, Trouble};
use crate::truth::Truth;

/// Services that exist at a time, at most; fewer than the pool has addresses.
const CROWD: usize = 25;
/// How long it may take until all is well after the last fault.
const RECOVERY: Duration = Duration::from_mins(2);
/// Nodes without a host behind them.
const GHOSTS: [&str; 2] = ["ghost1", "ghost2"];

#[derive(Debug, Parser)]
#[command(
    name = "chaos",
    about = "Breaks what can break around the cloud controller, in namespaces of this machine. Needs root."
)]
struct Cli {
    /// How long to break things
    #[arg(long, env = "CHAOS_SECONDS", default_value_t = 600)]
    seconds: u64,
    /// Repeats the decisions of an earlier run
    #[arg(long, env = "CHAOS_SEED")]
    seed: Option<u64>,
    /// Only these troubles, for the search of a cause
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<Broken>,
    /// All has to be well after each trouble, not only in the end
    #[arg(long)]
    settle: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = cli.seed.unwrap_or(clock.as_secs());
    println!("chaos: {} s, seed {seed}", cli.seconds);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let outcome = runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(run(seed, &cli)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chaos: seed {seed}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn ghost_address(index: usize) -> String {
    format!("192.168.100.{}", 60 + index)
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Create,
    Delete,
    Touch,
    Retype,
    Pool,
    Address,
    Agent,
    Ready,
    Restart,
    Break,
}

const ACTIONS: &[(usize, Action)] = &[
    (30, Action::Create),
    (18, Action::Delete),
    (10, Action::Touch),
    (4, Action::Retype),
    (4, Action::Pool),
    (5, Action::Address),
    (3, Action::Agent),
    (3, Action::Ready),
    (4, Action::Restart),
    (35, Action::Break),
];

struct Chaos {
    bed: Bed,
    second: Program,
    services: Api<Service>,
    machines: Machines,
    truth: Truth,
    rng: Rng,
    trouble: Option<Trouble>,
    /// The cloud-config as it should be.
    right_file: String,
    /// Another Harvester, and a copy of the cluster, once they were needed.
    other: Option<Other>,
    copy: Option<SecondController>,
    false_reports: FalseReports,
    troubles: Deck<Broken>,
    made: usize,
    /// How often each trouble was.
    drawn: BTreeMap<Broken, usize>,
}

async fn run(seed: u64, cli: &Cli) -> Result<()> {
    let builder = Bed::builder().without_announcers().proxied().ccm_arg("--node-monitor-period=1s");
    let bed = builder.start().await?;
    let namespace = bed.control_plane.test_namespace("chaos").await?;
    let second = bed.ccm().program().twin();
    for (index, ghost) in GHOSTS.into_iter().enumerate() {
        bed.machines()
            .await?
            .save(&bed.machine(&format!("vm-{ghost}"), &[&ghost_address(index)]).called(ghost))
            .await?;
        bed.register_node(&NodeSketch::new(ghost)).await?;
    }
    let watchers = [GHOSTS[1], bed.lan.host(1).name()];
    let false_reports = FalseReports::prepare(bed.client().await?, &namespace, GHOSTS[0], watchers).await?;
    let mut chaos = Chaos {
        second,
        services: Api::namespaced(bed.client().await?, &namespace),
        machines: bed.machines().await?,
        truth: Truth::new(&bed, &namespace).await?,
        rng: Rng::new(seed),
        trouble: None,
        right_file: bed.fresh_cloud_config()?,
        other: None,
        copy: None,
        false_reports,
        troubles: Deck::new(if cli.only.is_empty() { Broken::value_variants().to_vec() } else { cli.only.clone() }),
        made: 0,
        drawn: BTreeMap::new(),
        bed,
    };
    for (index, ghost) in GHOSTS.into_iter().enumerate() {
        chaos.truth.machines.insert(ghost.to_owned(), ghost_address(index));
    }
    chaos.second().start()?;
    chaos.recover("before anything breaks").await?;
    let outcome = chaos.break_things(cli).await;
    // Also of a run that failed.
    chaos.tell_troubles(cli);
    outcome
}

impl Chaos {
    fn second(&self) -> Handle<'_> {
        self.second.on(self.bed.lan.host(1))
    }

    fn replicas(&self) -> [Handle<'_>; 2] {
        [self.bed.ccm(), self.second()]
    }

    async fn break_things(&mut self, cli: &Cli) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(cli.seconds);
        while Instant::now() < end {
            self.step(cli.settle).await?;
        }
        self.mend().await?;
        self.recover("after the last fault").await
    }

    fn tell_troubles(&self, cli: &Cli) {
        let drawn: Vec<String> = self.drawn.iter().map(|(what, times)| format!("{what:?} {times}")).collect();
        println!("chaos: troubles: {}", drawn.join(", "));
        let wanted = Broken::value_variants().iter().filter(|what| cli.only.is_empty() || cli.only.contains(what));
        let never: Vec<String> =
            wanted.filter(|what| !self.drawn.contains_key(what)).map(|what| format!("{what:?}")).collect();
        if !never.is_empty() {
            println!("chaos: there was no time for {}", never.join(", "));
        }
    }

    async fn step(&mut self, settle: bool) -> Result<()> {
        // A replica that lost its lease has ended; the kubelet would start it again.
        for replica in self.replicas() {
            if replica.check().is_err() {
                replica.start()?;
            }
        }
        if self.trouble.as_ref().is_some_and(|trouble| Instant::now() >= trouble.until) {
            self.mend().await?;
            if settle {
                self.recover("after a trouble").await?;
            }
        }
        let action = self.rng.pick(ACTIONS);
        match action {
            Action::Break if self.trouble.is_some() => {}
            Action::Break => {
                let what = self.troubles.draw(&mut self.rng);
                self.trouble(what).await?;
            }
            Action::Restart => {
                let which = self.rng.below(2);
                let gently = self.rng.below(2) == 0;
                let replica = self.replicas()[which];
                if gently && self.trouble.as_ref().is_none_or(|trouble| trouble.what != Broken::Replica) {
                    replica.stop()?;
                } else {
                    replica.kill();
                }
                replica.start()?;
            }
            action => {
                // What a server that is away does not take, nobody has asked for.
                if let Err(error) = self.churn(action).await {
                    say(&format!("{action:?} was not taken: {error:#}"));
                }
            }
        }
        self.truth.look().await;
        tokio::time::sleep(self.rng.time(50, 600)).await;
        Ok(())
    }

    async fn churn(&mut self, action: Action) -> Result<()> {
        let list = self.services.list(&ListParams::default()).await?.items;
        let chosen = (!list.is_empty()).then(|| self.rng.below(list.len())).map(|index| list[index].clone());
        let patch = async |name: &str, patch: serde_json::Value| {
            self.services.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
        };
        match (action, chosen) {
            (Action::Create, _) if list.len() < CROWD => {
                self.made += 1;
                let ipam = self.rng.pick(&[(4, "pool"), (1, "dhcp")]);
                let service: Service = serde_json::from_value(json!({
                    "metadata": {"name": format!("web{}", self.made), "annotations": {cloudprovider::IPAM: ipam}},
                    "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
                }))?;
                self.services.create(&PostParams::default(), &service).await?;
            }
            (Action::Delete, Some(service)) => {
                self.truth.released(&service);
                self.services.delete(&service.name_any(), &DeleteParams::default()).await?;
            }
            (Action::Touch, Some(service)) => {
                let value = self.rng.below(1000).to_string();
                patch(&service.name_any(), json!({"metadata": {"annotations": {"touched": value}}})).await?;
            }
            (Action::Retype, Some(service)) => {
                let is_lb = service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer");
                let wanted = if is_lb { "ClusterIP" } else { "LoadBalancer" };
                self.truth.released(&service);
                patch(&service.name_any(), json!({"spec": {"type": wanted}})).await?;
                self.truth.forget(&service);
            }
            (Action::Pool, _) => {
                let last = POOL_RANGE.end() - u8::try_from(self.rng.below(15)).expect("small");
                // Refused where it would take a booked address away.
                self.bed.set_pool(POOL, NETWORK, *POOL_RANGE.start()..=last).await?;
            }
            (Action::Address, _) => {
                let ghost = GHOSTS[self.rng.below(GHOSTS.len())];
                let address = format!("192.168.100.{}", 60 + self.rng.below(35));
                self.machines
                    .addresses(VM_NAMESPACE, &format!("vm-{ghost}"), "nic-0", std::slice::from_ref(&address))
                    .await?;
                self.truth.machines.insert(ghost.to_owned(), address);
            }
            (Action::Ready, _) => {
                // A machine that exists: its Node may be tainted, and never deleted.
                let (ghost, ready) = (GHOSTS[self.rng.below(GHOSTS.len())], self.rng.below(2) == 0);
                self.bed.set_ready(ghost, ready).await?;
            }
            (Action::Agent, _) => {
                let name = format!("vm-{}", GHOSTS[self.rng.below(GHOSTS.len())]);
                self.machines.agent(VM_NAMESPACE, &name, self.rng.below(2) == 0).await?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Waits until all is well.
    async fn recover(&mut self, when: &str) -> Result<()> {
        for ghost in GHOSTS {
            self.agent_on(ghost).await.context("failed to wake a guest agent")?;
            self.bed.set_ready(ghost, true).await?;
        }
        self.bed.set_pool(POOL, NETWORK, POOL_RANGE).await?;
        let begin = Instant::now();
        loop {
            for replica in self.replicas() {
                if replica.check().is_err() {
                    replica.start()?;
                }
            }
            self.truth.look().await;
            let mut missing = self.truth.missing().await?;
            missing.extend(self.false_reports.missing().await?);
            if missing.is_empty() {
                break;
            }
            if begin.elapsed() > RECOVERY {
                self.look_at_strangers()?;
                let (missing, lines) = (missing.join("\n"), self.bed.log_lines_about("WARN"));
                let broken = &self.truth.violations;
                let host =
                    echo::get_path(self.bed.harvester.control_address(), "/backlog", Duration::from_secs(5)).await;
                bail!(
                    "not well {RECOVERY:?} {when}:\n{missing}\nrules broken: {broken:#?}\nthe stand-in: \
                     {host:?}\n{lines}"
                );
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        self.truth.look_back(&self.bed)?;
        self.look_at_strangers()?;
        if !self.truth.violations.is_empty() {
            let broken: Vec<&str> = self.truth.violations.iter().map(String::as_str).collect();
            bail!("rules broken:\n{}\n{}", broken.join("\n"), self.bed.log_lines_about("WARN"));
        }
        println!(
            "chaos: all well {:.1} s {when}; {} Services made, {} troubles",
            begin.elapsed().as_secs_f64(),
            self.made,
            self.drawn.values().sum::<usize>()
        );
        Ok(())
    }

    async fn agent_on(&self, ghost: &str) -> Result<(), MachineError> {
        self.machines.agent(VM_NAMESPACE, &format!("vm-{ghost}"), true).await
    }
}

fn say(text: &str) {
    println!("  {text}");
}
