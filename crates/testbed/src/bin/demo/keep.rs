//! Leaving a bed up: a process in the background holds it, since namespaces live only as long as somebody does.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use testbed::{Credentials, Host, wait_until};

use crate::bed::{Bed, VMS};
use crate::registry;
use crate::step_log::{self, StepLog};

const HOLDER: &str = "HCP_DEMO_HOLDER";

/// True in the process that does the work and stays.
pub fn is_holder() -> bool {
    std::env::var_os(HOLDER).is_some()
}

/// Starts this program again as the holder, shows what it says until it lets go of the terminal, and returns whether
/// its steps held.
pub fn hold_in_background() -> Result<bool> {
    let exe = std::env::current_exe().context("failed to find this program")?;
    let mut child = Command::new(exe)
        .args(std::env::args_os().skip(1))
        .env(HOLDER, "1")
        .process_group(0) // Ctrl-C comes here and is passed on; later ones must not reach it
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("failed to start the process that holds everything")?;
    let pid = child.id();
    pass_on_ctrl_c(pid)?;
    let mut output = child.stdout.take().expect("standard output was asked for as a pipe");
    let mut chunk = [0; 4096];
    loop {
        let n = output.read(&mut chunk).context("failed to read the output")?;
        if n == 0 {
            break;
        }
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(&chunk[..n]).and_then(|()| out.flush());
    }
    // It closes its output when it stays, and of course when it ends.
    if let Some(entry) = registry::entry_of(pid)
        && entry.kept
    {
        return Ok(entry.held);
    }
    Ok(child.wait().context("failed to wait for the holder")?.success())
}

fn pass_on_ctrl_c(pid: u32) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(pid).context("a process id beyond i32")?).context("a process id of 0")?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("failed to make a runtime")?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            while tokio::signal::ctrl_c().await.is_ok() {
                let _ = rustix::process::kill_process(pid, Signal::TERM);
            }
        });
    });
    Ok(())
}

/// From now on nobody reads what we say; whoever waits for the end of our output sees it now.
pub fn let_go_of_the_terminal() -> Result<()> {
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null").context("failed to open /dev/null")?;
    rustix::stdio::dup2_stdout(&null)
        .and_then(|()| rustix::stdio::dup2_stderr(&null))
        .context("failed to let go of the terminal")
}

/// Options of `nsenter` for every host.
pub fn entrances(bed: &Bed) -> BTreeMap<String, Vec<String>> {
    let network = |host: &Host| vec![format!("--net={}", host.namespace().path().display())];
    let mut hosts = BTreeMap::from([
        ("client".to_owned(), network(bed.lan.client())),
        ("router".to_owned(), network(bed.lan.router())),
    ]);
    for machine in &bed.machines {
        if let Ok((_, init)) = machine.entrance() {
            let options = ["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"].map(str::to_owned);
            hosts.insert(machine.name().to_owned(), [vec![format!("--target={init}")], options.to_vec()].concat());
        }
    }
    hosts
}

/// Files and programs of a bed that is left up.
struct Left {
    /// Programs of Kubernetes.
    tools: PathBuf,
    /// This program.
    demo: PathBuf,
    /// The product.
    product: PathBuf,
    /// Credentials of the guest cluster and of Harvester.
    guest: Credentials,
    harvester: Credentials,
    /// Harvester's administrator, in the namespace of the machines, as nodes reach it.
    administrator: PathBuf,
    /// The cloud controller's way to Harvester.
    cloud_config: PathBuf,
}

impl Left {
    fn of(bed: &Bed, binary: &Path) -> Result<Self> {
        let exe = std::env::current_exe().context("failed to find this program")?.display().to_string();
        let (guest, harvester) = (bed.control_plane.admin()?, bed.harvester.admin()?);
        let text = std::fs::read_to_string(&harvester.inside)
            .with_context(|| format!("failed to read {}", harvester.inside.display()))?;
        let mut administrator: Value =
            serde_json::from_str(&text).with_context(|| format!("{} is no JSON", harvester.inside.display()))?;
        administrator["contexts"][0]["context"]["namespace"] = VMS.into();
        let directory = bed.control_plane.dir();
        Ok(Self {
            tools: testbed::programs::tools()?.to_owned(),
            // It was built again meanwhile.
            demo: exe.trim_end_matches(" (deleted)").into(),
            product: std::path::absolute(binary).context("failed to find the product's binary")?,
            guest,
            harvester,
            administrator: directory.write("harvester-administrator", administrator.to_string())?,
            cloud_config: directory.path().join("cloud-config"),
        })
    }

    /// Lines to paste in one go: every `kubectl` after them is for the guest cluster, so Harvester's files have
    /// variables of their own. A function, not a variable: zsh does not split those.
    fn settings(&self) -> [String; 7] {
        let Self { tools, demo, product, guest, harvester, administrator, cloud_config } = self;
        let cache = cloud_config.with_file_name("helm-cache");
        let inside = guest.inside.display();
        [
            // What Helm caches goes with the bed.
            format!("export PATH={}:$PATH HELM_CACHE_HOME={}", tools.display(), cache.display()),
            format!("export KUBECONFIG={}    # the guest cluster", guest.outside.display()),
            format!("export HARVESTER={}    # kubectl --kubeconfig $HARVESTER ...", harvester.outside.display()),
            format!("export ADMIN={}    # Harvester's administrator, for hcp", administrator.display()),
            format!("export CLOUD_CONFIG={}    # the cluster's own account, for hcp", cloud_config.display()),
            format!("demo() {{ {} \"$@\"; }}", demo.display()),
            format!("hcp() {{ KUBECONFIG={inside} demo exec node1 {} \"$@\"; }}", product.display()),
        ]
    }
}

/// What to try, with the settings before it.
const HINTS: [&str; 14] = [
    "kubectl get nodes,services,pods -A -o wide",
    "kubectl expose deployment web --name=mine --type=LoadBalancer --port=80 --target-port=8080",
    "kubectl get service mine --watch    # until it has an address",
    "demo exec client curl -s http://<address>/",
    "kubectl annotate service mine cloudprovider.harvesterhci.io/primary-service=nobody    # describe says why not",
    "hcp status",
    "hcp status --cloud-config $ADMIN    # with the pools, which only an administrator may list",
    "hcp doctor",
    "hcp plan --cloud-config $CLOUD_CONFIG    # what the cloud controller would write",
    "kubectl -n kube-system exec daemonset/kube-vip -- harvester-cloud-provider announcer status",
    "helm3 -n kube-system get values harvester-cloud-provider --all",
    "for nic in eth0 mgmt0; do demo exec node3 ip link set $nic down; done    # node3 is lost, for good",
    "demo exec client curl -s http://<address>/    # answers all the same",
    "demo down    # removes it, as make demo-down does",
];

/// How to use what was left up.
pub fn explain(step_log: &StepLog, bed: &Bed, binary: &Path) -> Result<()> {
    step_log.tell("the bed stays up; in another terminal, with bash or zsh:");
    for line in Left::of(bed, binary)?.settings() {
        step_log::command(&line);
    }
    let hosts = entrances(bed).into_keys().collect::<Vec<_>>().join(", ");
    step_log.tell(&format!("then for example (hosts of demo exec: {hosts}):"));
    for line in HINTS {
        step_log::command(line);
    }
    Ok(())
}

/// Writes what one wants to see after a failure.
pub async fn diagnose(bed: &Bed, file: &Path) -> Result<()> {
    let mut text = String::new();
    let questions: [&[&str]; 8] = [
        &["get", "nodes", "-o", "wide"],
        &["get", "pods", "-A", "-o", "wide"],
        &["get", "services", "-A", "-o", "yaml"],
        &["get", "leases", "-A"],
        &["get", "events", "-A", "--sort-by=.lastTimestamp"],
        &[
            "logs",
            "-n",
            "kube-system",
            "-l",
            "app.kubernetes.io/name=harvester-cloud-provider",
            "--tail=200",
            "--prefix",
        ],
        &["logs", "-n", "kube-system", "-l", "app.kubernetes.io/name=kube-vip", "--tail=200", "--prefix"],
        &["describe", "pods", "-n", "kube-system"],
    ];
    for words in questions {
        let answer = bed.kubectl(words).await.unwrap_or_else(|error| format!("{error:#}\n"));
        let _ = write!(text, "$ kubectl {}\n{answer}\n", words.join(" "));
    }
    for machine in bed.machines.iter().filter(|machine| machine.is_on()) {
        for words in ["ip -d addr", "ip neigh"] {
            let answer = machine.exec(words.split(' ')).unwrap_or_else(|error| format!("{error:#}\n"));
            let _ = write!(text, "{} $ {words}\n{answer}\n", machine.name());
        }
    }
    let _ =
        write!(text, "harvester-sim:\n{}\n", bed.harvester.with_sim(|sim| Ok(sim.log_tail(100))).unwrap_or_default());
    let _ = write!(text, "DHCP server:\n{}\n", bed.lan.dhcp().log());
    if let Some(parent) = file.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("failed to create {}", parent.display()))?;
    }
    std::fs::write(file, text).with_context(|| format!("failed to write {}", file.display()))
}

/// Fails if anything of the bed still exists. The run directory itself goes with this process.
pub fn nothing_is_left(directory: &Path) -> Result<()> {
    let name = directory.file_name().context("the run directory has no name")?.to_string_lossy().into_owned();
    wait_until("everything to be gone", Duration::from_secs(20), || {
        let cgroups = testbed::process::run(Command::new("find").args([
            "/sys/fs/cgroup",
            "-type",
            "d",
            "-name",
            &format!("{name}*"),
        ]))
        .map_err(|error| format!("{error:#}"))?;
        if !cgroups.is_empty() {
            return Err(format!("cgroups: {cgroups}"));
        }
        let processes = processes_mentioning(&name);
        if processes.is_empty() { Ok(()) } else { Err(format!("processes: {}", processes.join("; "))) }
    })?;
    let left: Vec<String> = std::fs::read_dir(directory)
        .with_context(|| format!("failed to read {}", directory.display()))?
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .collect();
    if !left.is_empty() && std::env::var_os(testbed::run_dir::KEEP_VARIABLE).is_none() {
        bail!("left in {}: {}", directory.display(), left.join(", "));
    }
    Ok(())
}

/// Command lines with our run directory in them: all daemons of a bed have a file or a flag there.
fn processes_mentioning(name: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            path.file_name()?.to_str()?.parse::<u32>().ok()?;
            let line = std::fs::read(path.join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.contains(name).then_some(line)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pasted_in_one_go_leaves_kubectl_with_the_guest_cluster() {
        let file = |name: &str| PathBuf::from(name);
        let credentials = |inside: &str, outside: &str| Credentials { inside: file(inside), outside: file(outside) };
        let left = Left {
            tools: file("/tools"),
            demo: file("/demo"),
            product: file("/product"),
            guest: credentials("/guest-inside", "/guest"),
            harvester: credentials("/harvester-inside", "/harvester"),
            administrator: file("/administrator"),
            cloud_config: file("/cloud-config"),
        };
        let lines = left.settings();
        let exported: Vec<_> = lines.iter().filter(|line| line.starts_with("export KUBECONFIG=")).collect();
        assert_eq!(exported, ["export KUBECONFIG=/guest    # the guest cluster"]);
        assert!(lines[0].ends_with(" HELM_CACHE_HOME=/helm-cache"), "{}", lines[0]);
        assert!(lines[2].contains("=/harvester ") && lines[2].contains("kubectl --kubeconfig $HARVESTER"));
        assert_eq!(lines[6], "hcp() { KUBECONFIG=/guest-inside demo exec node1 /product \"$@\"; }");
    }

    #[test]
    fn hints_fit_a_terminal_and_use_only_what_the_settings_make() {
        for line in HINTS {
            assert!(line.len() < 120, "{line}");
            let known = ["kubectl", "demo", "hcp", "helm3", "for"];
            assert!(known.contains(&line.split(' ').next().unwrap_or_default()), "{line}");
        }
    }
}
