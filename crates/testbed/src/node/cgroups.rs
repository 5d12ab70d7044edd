//! The cgroups of a machine: below the caller's own, so that the caller's limits go on holding.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::run_dir::{Leftover, remove_at_the_end};
use crate::wait::wait_until;

const ROOT: &str = "/sys/fs/cgroup";
/// Version 1 controllers that a kubelet and runc need, and the hierarchy without controllers that systemd uses.
const V1: [&str; 9] = ["cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd"];
/// Version 2 controllers that a kubelet needs.
const V2: [&str; 4] = ["cpu", "memory", "pids", "cpuset"];

/// Which kind of cgroups this machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupVersion {
    /// One hierarchy per controller.
    One,
    /// The unified hierarchy.
    Two,
}

impl CgroupVersion {
    /// Looks at what is mounted.
    pub fn detect() -> Result<Self> {
        let root = Path::new(ROOT);
        if root.join("cgroup.controllers").exists() {
            return Ok(Self::Two);
        }
        let missing: Vec<&str> = V1.into_iter().filter(|name| !root.join(name).join("cgroup.procs").exists()).collect();
        if missing.is_empty() {
            return Ok(Self::One);
        }
        bail!(
            "{ROOT} has neither the unified hierarchy nor all version 1 controllers that real nodes need (missing: {})",
            missing.join(", ")
        )
    }
}

/// The cgroups of one machine, removed with the guard.
#[derive(Debug)]
pub struct Cgroups {
    version: CgroupVersion,
    dirs: Vec<PathBuf>,
}

impl Cgroups {
    /// Makes them; `name` must be unique on this machine.
    pub fn new(name: &str) -> Result<Self> {
        let version = CgroupVersion::detect()?;
        let own = std::fs::read_to_string("/proc/self/cgroup").context("failed to read /proc/self/cgroup")?;
        let dirs = match version {
            CgroupVersion::One => {
                V1.iter().map(|controller| Ok(v1_parent(&own, controller)?.join(name))).collect::<Result<Vec<_>>>()?
            }
            CgroupVersion::Two => vec![v2_parent(&own)?.join(name)],
        };
        let cgroups = Self { version, dirs };
        for dir in &cgroups.dirs {
            std::fs::create_dir(dir).with_context(|| format!("failed to create cgroup {}", dir.display()))?;
            remove_at_the_end(Leftover::Cgroup(dir))?;
            // A new version 1 cpuset is empty and refuses tasks.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if version == CgroupVersion::One && dir.join(file).exists() {
                    let from = dir.parent().expect("it was joined to its parent").join(file);
                    let value =
                        std::fs::read_to_string(&from).with_context(|| format!("failed to read {}", from.display()))?;
                    std::fs::write(dir.join(file), value.trim())
                        .with_context(|| format!("failed to fill {file} of {}", dir.display()))?;
                }
            }
        }
        Ok(cgroups)
    }

    /// Which kind they are.
    pub fn version(&self) -> CgroupVersion {
        self.version
    }

    /// The files into which a process writes its id to enter.
    pub fn entrances(&self) -> impl Iterator<Item = PathBuf> {
        self.dirs.iter().map(|dir| dir.join("cgroup.procs"))
    }

    fn remove(&self) -> Result<()> {
        wait_until("the cgroups of a machine to be empty", Duration::from_secs(10), || {
            for dir in &self.dirs {
                remove_tree(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
            }
            Ok(())
        })
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        // What is left is for the janitor.
        let _ = self.remove();
    }
}

/// Depth first; the files in a cgroup's directory go with it.
fn remove_tree(dir: &Path) -> std::io::Result<()> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    std::fs::remove_dir(dir)
}

/// `/sys/fs/cgroup/memory/<path>` for a line `4:memory:/<path>` of /proc/self/cgroup.
fn v1_parent(own: &str, controller: &str) -> Result<PathBuf> {
    let key = if controller == "systemd" { "name=systemd" } else { controller };
    let path = own
        .lines()
        .find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            controllers.split(',').any(|name| name == key).then_some(path)
        })
        .with_context(|| format!("/proc/self/cgroup has no line for {key}"))?;
    Ok(Path::new(ROOT).join(controller).join(path.trim_start_matches('/')))
}

/// The nearest ancestor of our own cgroup that hands the controllers on. A cgroup with processes in it cannot, except
/// for the root.
fn v2_parent(own: &str) -> Result<PathBuf> {
    let path = own
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .context("/proc/self/cgroup has no line for the unified hierarchy")?;
    let hands_on = |dir: &Path| {
        let text = std::fs::read_to_string(dir.join("cgroup.subtree_control")).unwrap_or_default();
        V2.iter().all(|wanted| text.split_whitespace().any(|name| name == *wanted))
    };
    let start = Path::new(ROOT).join(path);
    if let Some(dir) = start.ancestors().take_while(|dir| dir.starts_with(ROOT)).find(|dir| hands_on(dir)) {
        return Ok(dir.to_owned());
    }
    let enable = V2.map(|name| format!("+{name}")).join(" ");
    std::fs::write(Path::new(ROOT).join("cgroup.subtree_control"), &enable)
        .with_context(|| format!("no cgroup above our own hands on {}, and {ROOT} refuses to", V2.join(", ")))?;
    Ok(ROOT.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_goes_below_our_own_cgroup_of_each_controller() {
        let own = "8:pids:/\n4:memory:/process_api/abc\n3:cpu,cpuacct:/x\n9:name=systemd:/user.slice\n0::/\n";
        assert_eq!(v1_parent(own, "pids").unwrap(), Path::new("/sys/fs/cgroup/pids"));
        assert_eq!(v1_parent(own, "memory").unwrap(), Path::new("/sys/fs/cgroup/memory/process_api/abc"));
        assert_eq!(v1_parent(own, "cpuacct").unwrap(), Path::new("/sys/fs/cgroup/cpuacct/x"));
        assert_eq!(v1_parent(own, "systemd").unwrap(), Path::new("/sys/fs/cgroup/systemd/user.slice"));
        assert!(v1_parent(own, "freezer").is_err());
    }
}
