//! The servers: how each is configured and started, and what it writes down of a lease.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::lan::HERE;

/// A server of the field. `dev/tools.sh` gets what Debian does not install beside the other programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Dnsmasq,
    Kea,
    Isc,
    /// The applet of busybox; Debian's package udhcpd is a configuration for it.
    Udhcpd,
}

/// What it gives away. Leases last for two minutes, the shortest of dnsmasq.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// The third octet of its subnet.
    pub subnet: u8,
    /// The last octets of its addresses.
    pub range: (u8, u8),
    /// Whether it refuses what it does not know.
    pub authoritative: bool,
}

/// From 10.77.0.100 to 10.77.0.110.
pub const SETUP: Setup = Setup { subnet: HERE, range: (100, 110), authoritative: false };

impl Kind {
    fn program(self) -> Option<PathBuf> {
        let unpacked = env::var_os("HCP_TOOLS").map(|tools| Path::new(&tools).join("dhcp-servers/usr/sbin"));
        let places = env::split_paths(&env::var_os("PATH").unwrap_or_default()).chain(unpacked).collect::<Vec<_>>();
        places.into_iter().map(|place| place.join(self.name())).find(|path| path.is_file())
    }

    fn name(self) -> &'static str {
        match self {
            Self::Dnsmasq => "dnsmasq",
            Self::Kea => "kea-dhcp4",
            Self::Isc => "dhcpd",
            Self::Udhcpd => "busybox",
        }
    }

    /// Why it cannot be run here.
    pub fn missing(self) -> Option<String> {
        let name = self.name();
        self.program().is_none().then(|| format!("{name} is neither on the PATH nor in $HCP_TOOLS/dhcp-servers"))
    }

    /// What starts it in the foreground. Its files go to `files`.
    pub fn command(self, files: &Path, setup: Setup) -> Vec<OsString> {
        let Setup { subnet, range: (first, last), authoritative } = setup;
        let net = format!("10.77.{subnet}");
        let (conf, book) = (files.join("conf"), Self::book(files));
        let at = |path: &Path| path.display().to_string();
        // They refuse to start without one.
        fs::OpenOptions::new().create(true).append(true).open(&book).expect("a file for leases");
        let (text, arguments) = match self {
            Self::Dnsmasq => (
                String::new(),
                format!(
                    "--keep-in-foreground --log-facility=- --log-dhcp --conf-file={} --port=0 --interface=s0 --no-ping \
                     --bind-interfaces --user=root --pid-file --dhcp-leasefile={} --dhcp-sequential-ip \
                     --dhcp-range={net}.{first},{net}.{last},255.255.255.0,2m{}",
                    at(&conf),
                    at(&book),
                    if authoritative { " --dhcp-authoritative" } else { "" }
                ),
            ),
            Self::Kea => (
                format!(
                    r#"{{"Dhcp4": {{"interfaces-config": {{"interfaces": ["s0"]}}, "authoritative": {authoritative},
                    "lease-database": {{"type": "memfile", "name": "{}", "lfc-interval": 0}}, "valid-lifetime": 120,
                    "subnet4": [{{"subnet": "{net}.0/24", "pools": [{{"pool": "{net}.{first} - {net}.{last}"}}]}}],
                    "loggers": [{{"name": "kea-dhcp4", "severity": "DEBUG", "debuglevel": 50,
                                 "output_options": [{{"output": "stderr"}}]}}]}}}}"#,
                    at(&book)
                ),
                format!("-c {}", at(&conf)),
            ),
            Self::Isc => (
                format!(
                    "{} ping-check false; default-lease-time 120; max-lease-time 120;
                     subnet {net}.0 netmask 255.255.255.0 {{ range {net}.{first} {net}.{last}; }}",
                    if authoritative { "authoritative;" } else { "" }
                ),
                format!("-4 -f -d --no-pid -cf {} -lf {} s0", at(&conf), at(&book)),
            ),
            // It has no word for being authoritative.
            Self::Udhcpd => (
                format!(
                    "start {net}.{first}\nend {net}.{last}\nmax_leases {}\ninterface s0\nlease_file {}\npidfile {}\n\
                     option subnet 255.255.255.0\noption lease 120\ndecline_time 3600\n",
                    last - first + 1,
                    at(&book),
                    at(&files.join("pid")),
                ),
                format!("udhcpd -f -a 20 {}", at(&conf)),
            ),
        };
        fs::write(&conf, text).expect("a configuration");
        let program = self.program().expect("a test that needs it was skipped").into_os_string();
        [program].into_iter().chain(arguments.split_whitespace().map(OsString::from)).collect()
    }

    /// Kea writes only to places that it was built for, unless it is told otherwise. One that was unpacked has its
    /// libraries beside it.
    pub fn environment(self, files: &Path, command: &mut Command) {
        command.env("KEA_PIDFILE_DIR", files).env("KEA_LOCKFILE_DIR", files).env("KEA_DHCP_DATA_DIR", files);
        let usr = self.program().and_then(|program| Some(program.parent()?.parent()?.to_owned()));
        let libraries = usr.into_iter().flat_map(|usr| fs::read_dir(usr.join("lib"))).flatten().flatten();
        if let Some(libraries) = libraries.map(|entry| entry.path()).find(|path| path.join("kea").is_dir()) {
            command.env("LD_LIBRARY_PATH", libraries);
        }
    }

    /// What it says when it serves.
    pub fn ready(self) -> &'static str {
        match self {
            Self::Dnsmasq => "DHCP, IP range",
            Self::Kea => "DHCP4_STARTED",
            Self::Isc => "Server starting service",
            Self::Udhcpd => "started",
        }
    }

    /// Where it writes down its leases.
    pub fn book(files: &Path) -> PathBuf {
        files.join("leases")
    }

    /// How it writes the client id `web`, in the form of kube-vip. None: it does not.
    pub fn client_id(self) -> Option<&'static str> {
        match self {
            Self::Dnsmasq | Self::Kea => Some("77:65:62"),
            Self::Isc => Some("uid \"web\""),
            Self::Udhcpd => None,
        }
    }
}
