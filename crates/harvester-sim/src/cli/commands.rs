//! What the commands do: turn flags into calls of the library, and say what was done.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use harvester_api::ip_pool::{IpPool, IpPoolSpec, PoolSelector, ScopeTuple};
use harvester_sim::credentials::{CredentialsRequest, TokenSource, credentials};
use harvester_sim::guest::machine::{Machine, Nic, Upgraded};
use harvester_sim::guest::machines::{Machines, MigrationOutcome};
use harvester_sim::host::world::Profile;
use harvester_sim::install::{Install, install};
use harvester_sim::replay::Replay;
use harvester_sim::replay::play::Player;
use harvester_sim::sim::{ApiListen, Listen, Sim, SimConfig};
use kube::api::PostParams;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use tokio::signal::unix::{SignalKind, signal};

use super::args::{
    Cli, Command, CredentialsArgs, InstallArgs, OnOff, PaceArg, PoolCommand, ReplayArgs, RunArgs, VmArgs, VmCommand,
    VmCreateArgs,
};

/// Does what the command line says.
pub async fn run(cli: Cli) -> anyhow::Result<()> {
    let client = connect(cli.kubeconfig.as_deref(), true).await?;
    match cli.command {
        Command::Install(args) => install_host(&client, args).await,
        Command::Run(args) => {
            // An API server that has just started asks for seconds of patience, and can be watched long before.
            let watches = connect(cli.kubeconfig.as_deref(), false).await?;
            let api = api(cli.kubeconfig.as_deref(), &args).await?;
            serve(client, watches, args, api).await
        }
        Command::Vm(args) => machine(&Machines::new(client), args).await,
        Command::Replay(args) => replay(client, args).await,
        Command::Pool(PoolCommand::Create { name, ranges, network, priority, scopes }) => {
            let scope = if scopes.is_empty() { vec![everybody()] } else { scopes };
            let spec =
                IpPoolSpec { ranges, selector: PoolSelector { priority, network, scope }, ..IpPoolSpec::default() };
            let pool = IpPool::new(&name, spec);
            let created = Api::all(client).create(&PostParams::default(), &pool).await;
            created.map(drop).with_context(|| format!("failed to create IPPool {name}"))
        }
        Command::Credentials(args) => print_credentials(&client, args).await,
    }
}

async fn connect(kubeconfig: Option<&Path>, retry: bool) -> anyhow::Result<Client> {
    let mut config = settings(kubeconfig).await?;
    config.default_retry = retry;
    Ok(Client::try_from(config)?)
}

async fn settings(kubeconfig: Option<&Path>) -> anyhow::Result<Config> {
    let Some(path) = kubeconfig else {
        return Config::infer().await.context("no --kubeconfig given, and no other found");
    };
    let file = Kubeconfig::read_from(path).with_context(|| format!("failed to read kubeconfig {}", path.display()))?;
    Ok(Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?)
}

fn everybody() -> ScopeTuple {
    ScopeTuple { project: "*".to_owned(), namespace: "*".to_owned(), guest_cluster: "*".to_owned() }
}

async fn install_host(client: &Client, args: InstallArgs) -> anyhow::Result<()> {
    let InstallArgs { namespaces, project, networks } = args;
    Ok(install(client, &Install { namespaces, project, networks }).await?)
}

/// The host's API with its faults, if it is asked for.
async fn api(kubeconfig: Option<&Path>, args: &RunArgs) -> anyhow::Result<Option<ApiListen>> {
    let (Some(bind), Some(certificate), Some(key)) = (args.api_bind, &args.api_cert_file, &args.api_key_file) else {
        return Ok(None);
    };
    let read =
        |file: &Path| std::fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()));
    let mut config = settings(kubeconfig).await?;
    // Who asks says who he is.
    (config.auth_info, config.read_timeout, config.default_retry) = (AuthInfo::default(), None, false);
    let upstream = Client::try_from(config)?;
    Ok(Some(ApiListen { bind, certificate_pem: read(certificate)?, key_pem: read(key)?, upstream }))
}

async fn serve(client: Client, watches: Client, args: RunArgs, api: Option<ApiListen>) -> anyhow::Result<()> {
    let config = SimConfig {
        version: args.host_version,
        profile: match args.profile {
            PaceArg::Fast => Profile::Fast,
            PaceArg::Slow => Profile::Slow,
            PaceArg::Real => Profile::Real,
        },
        webhooks: args.webhook_bind.map(|bind| Listen { bind, host: args.webhook_url_host }),
        subresources: args.subresources_bind.map(|bind| Listen { bind, host: args.subresources_host }),
        control: args.control_bind,
        api,
        faults: args.faults,
    };
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    let mut sim = Sim::start(client, watches, config).await?;
    println!("ready");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
        ended = sim.failed() => anyhow::bail!("a part of the stand-in ended by itself: {ended:?}"),
    }
    sim.stop().await;
    Ok(())
}

async fn machine(machines: &Machines, args: VmArgs) -> anyhow::Result<()> {
    let namespace = args.namespace.as_str();
    match args.command {
        VmCommand::Create(args) => machines.save(&described(namespace, args)).await?,
        VmCommand::Delete { name, tear_down } => machines.delete(namespace, &name, tear_down).await?,
        VmCommand::Power { name, state } => machines.power(namespace, &name, state == OnOff::On).await?,
        VmCommand::Agent { name, state } => machines.agent(namespace, &name, state == OnOff::On).await?,
        VmCommand::Address { name, nic, addresses } => machines.addresses(namespace, &name, &nic, &addresses).await?,
        VmCommand::Migrate { name, to, region, zone, duration_ms, fail } => {
            machines.start_migration(namespace, &name, &to).await?;
            // The migration itself is pretended, and so is the time that it takes.
            tokio::time::sleep(Duration::from_millis(duration_ms)).await;
            let moved = MigrationOutcome::Moved { region: region.as_deref(), zone: zone.as_deref() };
            let outcome = if fail { MigrationOutcome::Failed } else { moved };
            machines.finish_migration(namespace, &name, outcome).await?;
        }
    }
    Ok(())
}

async fn replay(client: Client, args: ReplayArgs) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(&args.file)
        .with_context(|| format!("failed to read the replay {}", args.file.display()))?;
    let replay = Replay::parse(&text).with_context(|| format!("{} is no replay", args.file.display()))?;
    let player = Player::new(client, &args.namespace, &args.cluster, &args.network);
    let minute = Duration::from_mins(1).div_f64(args.speed.max(0.1));
    let mut before = 0.0;
    for snapshot in replay.snapshots(player.placement())? {
        tokio::time::sleep(minute.mul_f64((snapshot.minute - before).max(0.0))).await;
        before = snapshot.minute;
        println!("minute {}: {}", snapshot.minute, snapshot.note);
        player.play(&snapshot).await?;
    }
    Ok(())
}

fn described(namespace: &str, args: VmCreateArgs) -> Machine {
    let nics = args.nics.iter().enumerate().map(|(index, nic)| {
        let addresses: Vec<_> = nic.addresses.iter().map(String::as_str).collect();
        Nic::new(&args.name, index, &nic.network, &nic.interface, &addresses)
    });
    Machine {
        namespace: namespace.to_owned(),
        nics: nics.collect(),
        name: args.name,
        cluster: args.cluster,
        node_driver: !args.hand_made,
        hostname: args.hostname,
        host: args.host,
        zone: args.zone,
        region: args.region,
        powered: true,
        agent: true,
        migration: None,
        upgrade: Upgraded::default(),
    }
}

async fn print_credentials(client: &Client, args: CredentialsArgs) -> anyhow::Result<()> {
    let ca_pem =
        std::fs::read_to_string(&args.ca_file).with_context(|| format!("failed to read {}", args.ca_file.display()))?;
    let request = CredentialsRequest {
        namespace: args.namespace,
        name: args.name,
        server: args.server,
        ca_pem,
        token: if args.request_token { TokenSource::Request } else { TokenSource::Secret },
    };
    print!("{}", credentials(client, &request).await?);
    Ok(())
}

/// The chain of causes on one line. What the API server says is shown as it says it, without the client library's
/// wrapping.
pub fn in_words(error: &anyhow::Error) -> String {
    let mut words: Vec<String> = Vec::new();
    for cause in error.chain() {
        if let Some(kube::Error::Api(status)) = cause.downcast_ref::<kube::Error>() {
            words.push(status.message.clone());
            break;
        }
        words.push(cause.to_string());
    }
    words.join(": ")
}
