//! The two kinds of places that charts come from: any web server with an index, and an OCI registry.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use testbed::{Process, RunDir, programs, wait_until};

fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("failed to find a free port")?;
    listener.local_addr().context("a bound socket has an address")
}

fn started(name: &str, command: &Command, dir: &RunDir, address: SocketAddr) -> Result<Process> {
    let process = Process::spawn(name, command, &dir.log(name))?;
    wait_until(&format!("{name} to listen"), Duration::from_secs(20), || {
        process.check().map_err(|error| format!("{error:#}"))?;
        TcpStream::connect(address).map(drop).map_err(|error| error.to_string())
    })?;
    Ok(process)
}

/// `python3 -m http.server`.
#[derive(Debug)]
pub struct WebServer {
    _process: Process,
    address: SocketAddr,
    _dir: Arc<RunDir>,
}

impl WebServer {
    /// Serves a directory.
    pub fn start(directory: &Path) -> Result<Self> {
        let address = free_address()?;
        let dir = RunDir::new("web-server")?;
        let mut command = Command::new("python3");
        command
            .args(["-m", "http.server", &address.port().to_string(), "--bind", "127.0.0.1", "--directory"])
            .arg(directory);
        let process = started("http.server", &command, &dir, address)?;
        Ok(Self { _process: process, address, _dir: dir })
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Debian's docker-registry.
#[derive(Debug)]
pub struct OciRegistry {
    _process: Process,
    address: SocketAddr,
    _dir: Arc<RunDir>,
}

impl OciRegistry {
    /// An empty one.
    pub fn start() -> Result<Self> {
        let address = free_address()?;
        let dir = RunDir::new("registry")?;
        let storage = dir.path().join("storage");
        let config = serde_json::json!({
            "version": 0.1,
            "log": { "level": "warn" },
            "storage": { "filesystem": { "rootdirectory": storage } },
            "http": { "addr": address.to_string() },
        });
        let config = dir.write("config.yml", config.to_string())?;
        let mut command = Command::new(programs::tool("docker-registry")?);
        command.arg("serve").arg(config);
        let process = started("docker-registry", &command, &dir, address)?;
        Ok(Self { _process: process, address, _dir: dir })
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("oci://{}/charts", self.address)
    }
}
