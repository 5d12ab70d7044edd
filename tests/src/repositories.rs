//! The two kinds of places that charts come from: any web server with an index, and an OCI registry. Each also behind
//! TLS and for those only who know a password.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use testbed::{Process, RunDir, programs, wait_until};

fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("failed to find a free port")?;
    listener.local_addr().context("a bound socket has an address")
}

/// Whether this process listens on the port. Another process that has taken the port would answer as well.
fn listens_at(process: &Process, address: SocketAddr) -> bool {
    let own = format!("/proc/{}", process.pid());
    let listening = std::fs::read_to_string(format!("{own}/net/tcp")).unwrap_or_default();
    // 0A is LISTEN; the tenth column is the socket's inode.
    let port = format!(":{:04X}", address.port());
    let inode = listening.lines().find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        (columns.get(1)?.ends_with(&port) && *columns.get(3)? == "0A").then(|| format!("socket:[{}]", columns[9]))
    });
    let files = std::fs::read_dir(format!("{own}/fd")).into_iter().flatten().flatten();
    let mut links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    inode.is_some_and(|inode| links.any(|link| link.as_os_str() == inode.as_str()))
}

/// Starts a server on a port that was free a moment ago, and on another one if somebody else has got that by now.
fn started(name: &str, dir: &RunDir, command: impl Fn(SocketAddr) -> Result<Command>) -> Result<(Process, SocketAddr)> {
    for _ in 0..5 {
        let address = free_address()?;
        let process = Process::spawn(name, &command(address)?, &dir.log(name))?;
        let listens = wait_until(&format!("{name} to listen"), Duration::from_secs(20), || {
            if process.ended().is_some() {
                return Ok(false);
            }
            if listens_at(&process, address) { Ok(true) } else { Err(process.log_tail(5)) }
        })?;
        if listens {
            return Ok((process, address));
        }
        eprintln!("{name} at {address} ended: {}", process.log_tail(5));
    }
    bail!("{name} ended five times, see {}", dir.log(name).display())
}

/// The only user of a repository that asks for one, and the password.
pub const READER: (&str, &str) = ("reader", "secret");
/// The same for the registry: the bcrypt hash of that password, at the least cost.
const HTPASSWD: &str = "reader:$2b$04$xwQBBqh82D1f2n38Yks2k.45ZvQ4XgUmx6jT6wn5S/WmAXBzAvH.y\n";

/// Serves a directory by TLS to those who know the password.
const GUARDED: &str = "\
import base64, functools, http.server, ssl, sys
port, directory, certificate, key, who = sys.argv[1:]
wanted = 'Basic ' + base64.b64encode(who.encode()).decode()
class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        if self.headers.get('Authorization') == wanted:
            return super().do_GET()
        self.send_response(401)
        self.send_header('WWW-Authenticate', 'Basic realm=\"charts\"')
        self.end_headers()
handler = functools.partial(Handler, directory=directory)
server = http.server.ThreadingHTTPServer(('127.0.0.1', int(port)), handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
";

/// Files with a certificate for 127.0.0.1 and its key.
#[derive(Debug)]
pub struct Identity {
    /// PEM.
    pub certificate: PathBuf,
    /// PEM.
    pub key: PathBuf,
}

/// `python3 -m http.server`, or the like of it with TLS.
#[derive(Debug)]
pub struct WebServer {
    _process: Process,
    scheme: &'static str,
    address: SocketAddr,
    _dir: Arc<RunDir>,
}

impl WebServer {
    /// Serves a directory.
    pub fn start(directory: &Path) -> Result<Self> {
        let dir = RunDir::new("web-server")?;
        let (process, address) = started("http.server", &dir, |address| {
            let mut command = Command::new("python3");
            command
                .args(["-m", "http.server", &address.port().to_string(), "--bind", "127.0.0.1", "--directory"])
                .arg(directory);
            Ok(command)
        })?;
        Ok(Self { _process: process, scheme: "http", address, _dir: dir })
    }

    /// Serves a directory by TLS, to [`READER`] only.
    pub fn guarded(directory: &Path, identity: &Identity) -> Result<Self> {
        let dir = RunDir::new("web-server")?;
        let (process, address) = started("https.server", &dir, |address| {
            let mut command = Command::new("python3");
            command.args(["-c", GUARDED, &address.port().to_string()]).arg(directory);
            command.args([&identity.certificate, &identity.key]).arg(format!("{}:{}", READER.0, READER.1));
            Ok(command)
        })?;
        Ok(Self { _process: process, scheme: "https", address, _dir: dir })
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
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
        Self::serving(None)
    }

    /// An empty one behind TLS, for [`READER`] only.
    pub fn guarded(identity: &Identity) -> Result<Self> {
        Self::serving(Some(identity))
    }

    fn serving(identity: Option<&Identity>) -> Result<Self> {
        let dir = RunDir::new("registry")?;
        let storage = dir.path().join("storage");
        let (process, address) = started("docker-registry", &dir, |address| {
            let mut config = serde_json::json!({
                "version": 0.1,
                "log": { "level": "warn" },
                "storage": { "filesystem": { "rootdirectory": storage } },
                "http": { "addr": address.to_string() },
            });
            if let Some(Identity { certificate, key }) = identity {
                config["http"]["tls"] = serde_json::json!({ "certificate": certificate, "key": key });
                let path = dir.write("htpasswd", HTPASSWD)?;
                config["auth"]["htpasswd"] = serde_json::json!({ "realm": "charts", "path": path });
            }
            let config = dir.write("config.yml", config.to_string())?;
            let mut command = Command::new(programs::tool("docker-registry")?);
            command.arg("serve").arg(config);
            Ok(command)
        })?;
        Ok(Self { _process: process, address, _dir: dir })
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("oci://{}/charts", self.address)
    }

    /// What one logs in to.
    pub fn host(&self) -> String {
        self.address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_port_that_somebody_else_gets_first_is_given_up_for_another() {
        let dir = RunDir::new("taken").unwrap();
        let (taken, tried) = (RefCell::new(None), RefCell::new(Vec::new()));
        let (_process, address) = started("http.server", &dir, |address| {
            if taken.borrow().is_none() {
                *taken.borrow_mut() = Some(TcpListener::bind(address)?);
            }
            tried.borrow_mut().push(address);
            let mut command = Command::new("python3");
            command.args(["-m", "http.server", &address.port().to_string(), "--bind", "127.0.0.1"]);
            Ok(command)
        })
        .unwrap();
        let tried = tried.into_inner();
        assert!(tried.len() > 1 && tried.last() == Some(&address), "{tried:?}");
        assert_ne!(tried[0], address);
    }
}
