//! Where the programs are that a bed runs: Kubernetes and etcd from `dev/tools.sh`, ours from cargo, the rest from the
//! PATH.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

/// Overrides the directory of etcd and the Kubernetes programs.
const TOOLS_VARIABLE: &str = "HCP_TOOLS";
/// Overrides the directory of our own binaries.
const BINARIES_VARIABLE: &str = "HCP_BIN_DIR";

/// For programs in Go: they collect garbage less often. Processor time is what the beds are short of, not memory, and a
/// sixth of the API servers' went into that.
pub(crate) const LESS_COLLECTING: (&str, &str) = ("GOGC", "400");

/// The root of the workspace that this crate was built from.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .and_then(Path::parent)
        .expect("the crate lies in <workspace>/crates/testbed")
}

/// The directory with etcd, kubectl, kubelet and the other Kubernetes programs; `dev/tools.sh` knows it.
pub fn tools() -> Result<&'static Path> {
    static TOOLS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let tools = TOOLS.get_or_init(|| {
        if let Some(dir) = std::env::var_os(TOOLS_VARIABLE) {
            return Ok(dir.into());
        }
        let script = workspace().join("dev/tools.sh");
        let output = Command::new(&script)
            .arg("--print")
            .output()
            .map_err(|error| format!("failed to run {}: {error}", script.display()))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim().into())
        } else {
            Err("programs or packages are missing; run dev/tools.sh once to get them".to_owned())
        }
    });
    tools.as_deref().map_err(|error| anyhow::anyhow!("{error}"))
}

/// A program of [`tools`].
pub fn tool(name: &str) -> Result<PathBuf> {
    let path = tools()?.join(name);
    if !path.exists() {
        bail!("{} does not exist; run dev/tools.sh once to get it", path.display());
    }
    Ok(path)
}

/// One of our own binaries, from the same build as this program; built by cargo if it is not there, since cargo builds
/// for a test only the binaries of the tested package.
pub fn own(package: &str, binary: &str) -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os(BINARIES_VARIABLE) {
        let path = Path::new(&dir).join(binary);
        if !path.exists() {
            bail!("{} does not exist, but {BINARIES_VARIABLE} says that it should", path.display());
        }
        return Ok(path);
    }
    let exe = std::env::current_exe().context("failed to find the path of this program")?;
    // target/debug/demo, or target/debug/deps/failover-0123456789abcdef for a test
    let dir = exe.parent().context("this program has no directory")?;
    let dir = if dir.ends_with("deps") || dir.ends_with("examples") { dir.parent().unwrap_or(dir) } else { dir };
    let path = dir.join(binary);
    if path.exists() {
        return Ok(path);
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace()).args(["build", "--quiet", "--package", package, "--bin", binary]);
    if dir.ends_with("release") {
        cargo.arg("--release");
    }
    let output = cargo.output().context("failed to run cargo")?;
    if !output.status.success() || !path.exists() {
        bail!("failed to build {binary} of package {package}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(path)
}
