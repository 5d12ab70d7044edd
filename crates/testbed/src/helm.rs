//! Helm and the chart: what a user types, with a home of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cluster::control_plane::ControlPlane;
use crate::process::{mortal, run};
use crate::programs;
use crate::run_dir::RunDir;

/// The one that Rancher, RKE2 and K3s run, and the newest.
pub const VERSIONS: [&str; 2] = ["helm3", "helm4"];

/// Name of release, chart and Deployment.
pub const RELEASE: &str = "harvester-cloud-provider";

/// For what is rendered without a cluster: a Helm 3 that was built from its module assumes Kubernetes 1.20 then, which
/// the chart refuses.
pub const OLDEST_KUBERNETES: &str = "--kube-version=1.28.0";

/// The chart's tree.
pub fn chart() -> PathBuf {
    programs::workspace().join("charts").join(RELEASE)
}

/// What `dev/chart.sh` made.
#[derive(Debug, Clone)]
pub struct Archives {
    /// The plain form, in a directory with an index of its own.
    pub plain: PathBuf,
    /// The form of Rancher's catalogue, likewise.
    pub rancher: PathBuf,
}

/// Packages the chart as `make chart` does, with `line` as the version in Rancher's catalogue.
pub fn package(out: &Path, line: &str) -> Result<Archives> {
    let mut script = Command::new(programs::workspace().join("dev/chart.sh"));
    script.env("OUT", out).env("LINE", line).env("HELM", programs::tool(VERSIONS[0])?);
    run(&mut mortal(&script))?;
    let version = env!("CARGO_PKG_VERSION");
    Ok(Archives {
        plain: out.join(format!("plain/{RELEASE}-{version}.tgz")),
        rancher: out.join(format!("rancher/{RELEASE}-{line}+up{version}.tgz")),
    })
}

/// One Helm.
#[derive(Debug)]
pub struct Helm {
    program: PathBuf,
    kubeconfig: Option<PathBuf>,
    home: Arc<RunDir>,
}

impl Helm {
    /// `version` is one of [`VERSIONS`]; without a cluster it can render, package and search.
    pub fn new(version: &str) -> Result<Self> {
        Ok(Self { program: programs::tool(version)?, kubeconfig: None, home: RunDir::new(version)? })
    }

    /// With the administrator's rights on a cluster.
    pub fn of(version: &str, control_plane: &ControlPlane) -> Result<Self> {
        Ok(Self { kubeconfig: Some(control_plane.admin()?.outside), ..Self::new(version)? })
    }

    /// Files beside it, removed with it.
    pub fn dir(&self) -> &Path {
        self.home.path()
    }

    /// A file in its directory, for values.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<String> {
        Ok(self.home.write(name, content)?.display().to_string())
    }

    /// Runs it; what it wrote to standard output.
    pub fn run(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.args(words);
        for (variable, place) in
            [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data")]
        {
            command.env(variable, self.home.path().join(place));
        }
        // Without a cluster it must not find one of this machine's user.
        command.env("KUBECONFIG", self.kubeconfig.as_deref().unwrap_or(Path::new("/dev/null")));
        command.env_remove("HELM_NAMESPACE");
        run(&mut mortal(&command))
    }

    /// The objects that the chart renders in `kube-system`; hooks are left out.
    pub fn template(&self, chart: &Path, options: &[&str]) -> Result<Vec<Value>> {
        self.rendered(chart, &[&["--no-hooks"], options].concat())
    }

    /// The objects of `helm test`.
    pub fn tests(&self, chart: &Path, options: &[&str]) -> Result<Vec<Value>> {
        self.rendered(chart, &[&["--show-only", "templates/tests/ready.yaml"], options].concat())
    }

    fn rendered(&self, chart: &Path, options: &[&str]) -> Result<Vec<Value>> {
        let chart = chart.display().to_string();
        let words = ["template", RELEASE, &chart, "--namespace", "kube-system", OLDEST_KUBERNETES];
        let text = self.run(&[&words[..], options].concat())?;
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(&text).with_context(|| format!("{chart} renders no valid YAML"))?;
        Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
    }
}
