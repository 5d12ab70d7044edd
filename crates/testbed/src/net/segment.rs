//! A layer 2 segment: a bridge in its own namespace, and the cables into it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use anyhow::{Context, Result};
use rtnetlink::LinkUnspec;

use crate::net::namespace::Namespace;
use crate::run_dir::RunDir;

/// A bridge in a namespace. Every host's NIC is one port of it.
#[derive(Debug)]
pub struct Segment {
    namespace: Namespace,
    ports: AtomicU32,
    faults: AtomicU32,
}

impl Segment {
    /// A new bridge that floods multicast (as a dumb switch does; snooping would lose neighbour solicitations without a
    /// querier).
    pub fn new(name: &str, dir: &Arc<RunDir>) -> Result<Arc<Self>> {
        let namespace = Namespace::new(name, dir)?;
        namespace.ip(["link add br0 type bridge forward_delay 0 stp_state 0 mcast_snooping 0", "link set br0 up"])?;
        Ok(Arc::new(Self { namespace, ports: AtomicU32::new(1), faults: AtomicU32::new(1) }))
    }

    /// Plugs a new NIC called `interface` of `host` into this segment; with addresses like `192.168.100.11/24`, without
    /// IPv6's duplicate address detection, so that it can be used at once.
    pub fn attach(self: &Arc<Self>, host: &Namespace, interface: &str, addresses: &[String]) -> Result<Arc<Nic>> {
        let n = self.ports.fetch_add(1, Ordering::Relaxed);
        let [_, _, high, low] = n.to_be_bytes();
        self.plug_in(n, host, interface, addresses, &format!("02:c0:de:00:{high:02x}:{low:02x}"))
    }

    /// [`Segment::attach`] with a MAC address of the caller's choice: a machine that boots again has the one it had
    /// before.
    pub fn attach_as(
        self: &Arc<Self>,
        host: &Namespace,
        interface: &str,
        addresses: &[String],
        mac: &str,
    ) -> Result<Arc<Nic>> {
        let n = self.ports.fetch_add(1, Ordering::Relaxed);
        self.plug_in(n, host, interface, addresses, mac)
    }

    fn plug_in(
        self: &Arc<Self>,
        n: u32,
        host: &Namespace,
        interface: &str,
        addresses: &[String],
        mac: &str,
    ) -> Result<Arc<Nic>> {
        let port = format!("port{n}");
        self.namespace.ip([
            format!("link add {port} type veth peer name {interface} address {mac} netns {}", host.path().display()),
            format!("link set {port} master br0 up"),
        ])?;
        let mut lines = vec![format!("link set {interface} up")];
        for address in addresses {
            let option = if address.contains(':') { " nodad" } else { "" };
            lines.push(format!("addr add {address} dev {interface}{option}"));
        }
        host.ip(lines)?;
        Ok(Arc::new(Nic { segment: self.clone(), interface: interface.into(), port, mac: mac.into() }))
    }

    /// The namespace with the bridge `br0`; capture there to see every frame that is flooded.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Drops frames between two ports, in one direction, until the guard is dropped: `from` no longer reaches `to`.
    pub fn block(self: &Arc<Self>, from: &Nic, to: &Nic) -> Result<Fault> {
        self.fault(&format!("iifname \"{}\" oifname \"{}\" drop", from.port, to.port))
    }

    /// Nothing that `nic` sends arrives anywhere until the guard is dropped; it goes on hearing.
    pub fn mute(self: &Arc<Self>, nic: &Nic) -> Result<Fault> {
        self.fault(&format!("iifname \"{}\" drop", nic.port))
    }

    /// Nothing arrives at `nic` until the guard is dropped; it goes on being heard.
    pub fn deafen(self: &Arc<Self>, nic: &Nic) -> Result<Fault> {
        self.fault(&format!("oifname \"{}\" drop", nic.port))
    }

    /// These and all others no longer hear one another until the guard is dropped: a switch between them has failed.
    pub fn split(self: &Arc<Self>, apart: &[Arc<Nic>]) -> Result<Fault> {
        let ports: Vec<String> = apart.iter().map(|nic| format!("\"{}\"", nic.port)).collect();
        let ports = ports.join(", ");
        self.fault(&format!(
            "iifname {{ {ports} }} oifname != {{ {ports} }} drop\n  iifname != {{ {ports} }} oifname {{ {ports} }} drop"
        ))
    }

    /// Adds an nftables rule of the `bridge` family to what this switch forwards, until the guard is dropped; for
    /// example `arp operation reply drop`, or `ip protocol udp udp dport 68 numgen random mod 10 < 5 drop`.
    pub fn fault(self: &Arc<Self>, rule: &str) -> Result<Fault> {
        let table = format!("fault{}", self.faults.fetch_add(1, Ordering::Relaxed));
        let script = [
            "table bridge ",
            &table,
            " {\n chain forward {\n  type filter hook forward priority 0\n  ",
            rule,
            "\n }\n}\n",
        ]
        .concat();
        self.namespace.nft(script)?;
        Ok(Fault { segment: self.clone(), table })
    }
}

/// A disturbance on a segment; gone when dropped.
#[derive(Debug)]
pub struct Fault {
    segment: Arc<Segment>,
    table: String,
}

impl Drop for Fault {
    fn drop(&mut self) {
        let _ = self.segment.namespace.nft(format!("delete table bridge {}", self.table));
    }
}

/// A host's NIC together with its port on the segment.
#[derive(Debug)]
pub struct Nic {
    segment: Arc<Segment>,
    interface: String,
    port: String,
    mac: String,
}

impl Nic {
    /// Its name on the host.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Its MAC address, lower case with colons.
    pub fn mac(&self) -> &str {
        &self.mac
    }

    /// Name of its port in the segment's namespace.
    pub fn port(&self) -> &str {
        &self.port
    }

    /// Where it is plugged in.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Pulls the cable: the host sees its carrier go.
    pub fn cut(&self) -> Result<()> {
        self.segment.namespace.ip([format!("link set {} down", self.port)])
    }

    /// Puts the cable back, also after [`Nic::isolate`].
    pub fn plug(&self) -> Result<()> {
        self.segment.namespace.ip([format!("link set {} master br0 up", self.port)])
    }

    /// Takes the port out of the bridge: nothing gets through any more, but the host keeps its carrier, as with a fault
    /// further away.
    pub fn isolate(&self) -> Result<()> {
        self.segment.namespace.ip([format!("link set {} nomaster", self.port)])
    }
}

/// Pulls these cables right after `before`, all in the same moment: what it needs is ready by then, and no program has
/// to be started.
pub(crate) fn cut_right_after(nics: &[Arc<Nic>], before: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut ports: Vec<(&Arc<Segment>, Vec<String>)> = Vec::new();
    for nic in nics {
        match ports.iter_mut().find(|(segment, _)| Arc::ptr_eq(segment, &nic.segment)) {
            Some((_, ports)) => ports.push(nic.port.clone()),
            None => ports.push((&nic.segment, vec![nic.port.clone()])),
        }
    }
    let mut hands = Vec::new();
    for (segment, ports) in ports {
        let (ready, is_ready) = mpsc::channel::<()>();
        let (go, gone) = mpsc::channel::<()>();
        let cutting = segment.namespace.thread("cut", move || -> Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let (connection, handle, _) = rtnetlink::new_connection()?;
                tokio::spawn(connection);
                let _ = ready.send(());
                // Who lets go of the other end without a word has given up.
                if gone.recv().is_err() {
                    return Ok(());
                }
                for port in ports {
                    let down = LinkUnspec::new_with_name(&port).down().build();
                    handle.link().set(down).execute().await.with_context(|| format!("failed to cut {port}"))?;
                }
                Ok(())
            })
        })?;
        hands.push((cutting, go, is_ready));
    }
    for (.., is_ready) in &hands {
        // If it has ended instead, it says why below.
        let _ = is_ready.recv();
    }
    before()?;
    for (_, go, _) in &hands {
        let _ = go.send(());
    }
    for (cutting, ..) in hands {
        cutting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    }
    Ok(())
}

/// `address/prefix` with the usual length of a LAN.
pub(crate) fn with_prefix(address: impl Into<IpAddr>) -> String {
    match address.into() {
        IpAddr::V4(v4) => format!("{v4}/24"),
        IpAddr::V6(v6) => format!("{v6}/64"),
    }
}
