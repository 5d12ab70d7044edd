//! The workstation of somebody who follows the pages: a host that reaches both clusters, with the programs that the
//! pages name.

use std::fs::{create_dir_all, write};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use e2e::documents::Block;
use e2e::installation::{IMAGE, Installation, VERSION};
use testbed::helm::{VERSIONS, package};
use testbed::{Host, RunDir, programs};

pub struct Desk {
    host: Host,
    guest: PathBuf,
    dir: Arc<RunDir>,
}

impl Desk {
    /// With the checked-out project after `make release chart`, and `harvester.yaml`.
    pub fn of(installation: &Installation) -> Result<Self> {
        let host = installation.lan.add_host("desk", 60)?;
        installation.control_plane.join(&host)?;
        let dir = RunDir::new("desk")?;
        let bin = dir.path().join("bin");
        create_dir_all(&bin).context("failed to make a directory for programs")?;
        for (name, program) in [
            ("harvester-cloud-provider", e2e::product::binary()?),
            ("kubectl", programs::tool("kubectl")?),
            ("helm", programs::tool(VERSIONS[1])?),
        ] {
            symlink(program, bin.join(name)).with_context(|| format!("failed to link {name}"))?;
        }
        let harvester = installation.harvester.admin()?.inside;
        std::fs::copy(harvester, dir.path().join("harvester.yaml")).context("failed to copy Harvester's kubeconfig")?;
        package(&dir.path().join("target/charts"), "109.1.0")?;
        Ok(Self { host, guest: installation.control_plane.admin()?.inside, dir })
    }

    /// Puts the block of a page into a terminal, with what the reader has to fill in; what it showed.
    pub fn types(&self, block: &Block) -> Result<String> {
        self.runs(&filled(&block.text)).with_context(|| format!("{}:\n{}", block.place, block.text))
    }

    /// Types something else.
    pub fn runs(&self, text: &str) -> Result<String> {
        let dir = self.dir.path();
        let script = format!("cd {}\n{text}", dir.display());
        let environment = [
            format!("PATH={}:/usr/sbin:/usr/bin:/sbin:/bin", dir.join("bin").display()),
            format!("HOME={}", dir.display()),
            format!("KUBECONFIG={}", self.guest.display()),
        ];
        let words = ["env", "-i"].map(str::to_owned).into_iter().chain(environment);
        let shell = ["timeout", "420", "bash", "-euo", "pipefail", "-c", &script].map(str::to_owned);
        self.host.exec(words.chain(shell))
    }

    /// A file beside what was typed.
    pub fn write(&self, name: &str, content: &str) -> Result<()> {
        write(self.dir.path().join(name), content).with_context(|| format!("failed to write {name}"))
    }
}

/// The reader's own registry and version in the places that the pages leave open.
pub fn filled(text: &str) -> String {
    let registry = IMAGE.rsplit_once('/').map_or(IMAGE, |(registry, _)| registry);
    text.replace("<registry>", registry).replace("<version>", VERSION).replace("<tag>", VERSION)
}
