//! Kubeconfig files on disk, and the way from such a file to a client.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};

/// Two kubeconfig files of one identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// For programs on hosts that joined the control plane.
    pub inside: PathBuf,
    /// For the test itself and for `kubectl` in the outer namespace.
    pub outside: PathBuf,
}

impl Credentials {
    /// A client for the test.
    pub async fn client(&self) -> Result<Client> {
        client_from(&self.outside).await
    }
}

/// A client for a kubeconfig file.
pub(crate) async fn client_from(path: &Path) -> Result<Client> {
    let failed = || format!("failed to make a client from {}", path.display());
    let file = Kubeconfig::read_from(path).with_context(failed)?;
    let config =
        kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.with_context(failed)?;
    Client::try_from(config).with_context(failed)
}
