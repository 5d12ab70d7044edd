//! A real DHCP server (dnsmasq) that can be away, frozen, or change its mind.

use parking_lot::Mutex;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::addresses::lan4;
use crate::net::host::Host;
use crate::process::Process;
use crate::wait::wait_until;

/// What the server offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DhcpOptions {
    /// Last bytes of the first and the last address of the range.
    pub range: (u8, u8),
    /// Lease time; dnsmasq refuses less than two minutes.
    pub lease: Duration,
    /// Option 58, renewal time; may be far shorter than half the lease.
    pub t1: Option<Duration>,
    /// Option 59, rebinding time.
    pub t2: Option<Duration>,
    /// Further lines of configuration, such as `dhcp-host=02:00:00:00:00:01,192.168.100.222`.
    pub extra: Vec<String>,
    /// Answers a REQUEST for an address that it does not know with NAK, instead of silence.
    pub authoritative: bool,
}

impl Default for DhcpOptions {
    fn default() -> Self {
        Self {
            range: (200, 250),
            lease: Duration::from_mins(2),
            t1: None,
            t2: None,
            extra: Vec::new(),
            authoritative: true,
        }
    }
}

/// One line of the server's lease file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DhcpLease {
    /// When it expires, Unix time in seconds.
    pub expires: u64,
    /// The client's MAC.
    pub mac: String,
    /// The address.
    pub address: Ipv4Addr,
    /// The host name that the client sent.
    pub host_name: Option<String>,
    /// The client identifier that the client sent.
    pub client_id: Option<String>,
}

/// dnsmasq on the router of a LAN.
#[derive(Debug)]
pub struct DhcpServer {
    process: Mutex<Option<Process>>,
    router: Arc<Host>,
    subnet: u8,
}

impl DhcpServer {
    pub(crate) fn start(router: Arc<Host>, subnet: u8, options: DhcpOptions) -> Result<Self> {
        let server = Self { process: Mutex::new(None), router, subnet };
        server.restart(options)?;
        Ok(server)
    }

    /// Starts it, again if need be, with these options. Leases given before are remembered; one outside the new range
    /// is answered with NAK.
    pub fn restart(&self, options: DhcpOptions) -> Result<()> {
        self.kill();
        let address = |last| lan4(self.subnet, last);
        let leases = self.router.namespace().dir().path().join("dhcp-leases");
        let mut command = Command::new("dnsmasq");
        command
            .args(["--conf-file=/dev/null", "--keep-in-foreground", "--log-facility=-", "--port=0", "--interface=eth0"])
            .args(["--bind-interfaces", "--log-dhcp", "--no-ping", "--user=root", "--group=root", "--pid-file="])
            .arg(format!(
                "--dhcp-range={},{},255.255.255.0,{}",
                address(options.range.0),
                address(options.range.1),
                options.lease.as_secs()
            ))
            .arg(format!("--dhcp-option=option:router,{}", address(1)))
            .arg(format!("--dhcp-leasefile={}", leases.display()));
        if options.authoritative {
            command.arg("--dhcp-authoritative");
        }
        for (name, value) in [("T1", options.t1), ("T2", options.t2)] {
            if let Some(value) = value {
                command.arg(format!("--dhcp-option=option:{name},{}", value.as_secs()));
            }
        }
        command.args(options.extra.into_iter().map(|line| format!("--{line}")));
        let process = self.router.spawn("dnsmasq", command)?;
        wait_until("dnsmasq to listen for DHCP requests", Duration::from_secs(10), || {
            process.check().map_err(|error| error.to_string())?;
            let listeners = self.router.exec(["ss", "-Hlun", "sport = :67"]).map_err(|error| error.to_string())?;
            if listeners.trim().is_empty() { Err("nobody listens on UDP port 67".into()) } else { Ok(()) }
        })?;
        *self.slot() = Some(process);
        Ok(())
    }

    /// Ends it without a word, as a power loss does.
    pub fn kill(&self) {
        drop(self.slot().take());
    }

    /// Freezes it: requests queue up in its socket.
    pub fn pause(&self) -> Result<()> {
        self.with(Process::pause)
    }

    /// Lets it go on, with all that queued up.
    pub fn resume(&self) -> Result<()> {
        self.with(Process::resume)
    }

    /// Forgets all leases: dnsmasq must be down for that, so it is killed; start it again by [`DhcpServer::restart`].
    pub fn forget_leases(&self) -> Result<()> {
        self.kill();
        let path = self.router.namespace().dir().path().join("dhcp-leases");
        std::fs::write(&path, "").with_context(|| format!("failed to write {}", path.display()))
    }

    /// What it has given out. It truncates its file and writes it anew with each change: what two looks in a row show
    /// is whole.
    pub fn leases(&self) -> Result<Vec<DhcpLease>> {
        let mut seen = self.lease_file()?;
        loop {
            std::thread::sleep(Duration::from_millis(10));
            let again = self.lease_file()?;
            if again == seen {
                return Ok(seen.lines().filter_map(parse_lease).collect());
            }
            seen = again;
        }
    }

    fn lease_file(&self) -> Result<String> {
        let path = self.router.namespace().dir().path().join("dhcp-leases");
        match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            read => read.with_context(|| format!("failed to read {}", path.display())),
        }
    }

    /// Its log so far: every message in and out (`DHCPDISCOVER(eth0) 02:...`).
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.router.namespace().dir().log("router.dnsmasq")).unwrap_or_default()
    }

    /// How often a message such as `DHCPREQUEST` stands in its log.
    pub fn count(&self, message: &str) -> usize {
        let needle = format!(" {message}(");
        self.log().lines().filter(|line| line.contains(&needle)).count()
    }

    fn with(&self, act: impl FnOnce(&Process) -> Result<()>) -> Result<()> {
        act(self.slot().as_ref().context("the DHCP server is not running")?)
    }

    fn slot(&self) -> parking_lot::MutexGuard<'_, Option<Process>> {
        self.process.lock()
    }
}

/// `1763740000 02:c0:de:00:00:01 192.168.100.200 name 01:02:c0:de:00:00:01`, `*` where nothing is known.
fn parse_lease(line: &str) -> Option<DhcpLease> {
    let mut words = line.split_whitespace();
    let known = |word: &str| (word != "*").then(|| word.to_owned());
    Some(DhcpLease {
        expires: words.next()?.parse().ok()?,
        mac: words.next()?.to_ascii_lowercase(),
        address: words.next()?.parse().ok()?,
        host_name: known(words.next()?),
        client_id: known(words.next()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_lease_file_is_understood() {
        let lease = parse_lease("1763740000 02:C0:de:00:00:01 192.168.100.200 * 01:02:c0:de:00:00:01").unwrap();
        assert_eq!(lease.expires, 1_763_740_000);
        assert_eq!(lease.mac, "02:c0:de:00:00:01");
        assert_eq!(lease.address, Ipv4Addr::new(192, 168, 100, 200));
        assert_eq!(lease.host_name, None);
        assert_eq!(lease.client_id.as_deref(), Some("01:02:c0:de:00:00:01"));
        assert_eq!(parse_lease("duid 00:01"), None);
    }
}
