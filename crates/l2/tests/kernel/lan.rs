//! A cable between two fresh network namespaces, for one test each. Needs root.
//!
//! Both namespaces have no name and live as long as the test's thread and its sockets: nothing to clean up.

use std::{
    env,
    fs::{File, OpenOptions},
    io::Write,
    net::IpAddr,
    os::fd::AsFd,
    panic, thread,
    time::Duration,
};

use futures::StreamExt;
use ipnet::IpNet;
use l2::{
    Mac, Netlink, capabilities,
    capabilities::Capability,
    netlink::{Changes, InetConfChange, Macvlan},
};
use rtnetlink::{LinkUnspec, LinkVeth, packet_route::link::LinkAttribute};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::fresh_namespace::leave_for_a_fresh_namespace;

/// MAC of the interface `near`.
pub const NEAR: Mac = Mac::new([0x02, 0, 0, 0, 0, 0x01]);
/// MAC of the interface `far`.
pub const FAR: Mac = Mac::new([0x02, 0, 0, 0, 0, 0x02]);

/// MAC of [`macvlan`].
pub const VIP_MAC: Mac = Mac::new([0x00, 0x00, 0x6c, 0x01, 0x02, 0x03]);

/// Long enough for a loaded machine; a passing test waits for events, not for this.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long nothing must come to be believed that nothing comes.
pub const SILENCE: Duration = Duration::from_millis(200);

/// A network namespace with one interface in it, and a connection to its kernel.
pub struct Side {
    namespace: File,
    pub netlink: Netlink,
    pub index: u32,
    handle: rtnetlink::Handle,
}

/// A macvlan of a Service, with the kernel's own settings.
pub fn macvlan(parent: &Side) -> Macvlan {
    Macvlan {
        name: "vip-0a1b2c3d".to_owned(),
        parent: parent.index,
        mac: VIP_MAC,
        alias: "0a1b2c3d-0000-4000-8000-000000000000".to_owned(),
        inet_conf: InetConfChange::default(),
        address: None,
    }
}

/// Two namespaces and the cable. The test starts in the near one.
pub struct Lan {
    pub near: Side,
    pub far: Side,
}

/// Whether a test may be left out for what this machine lacks. `HCP_REQUIRE_ROOT=1` says that it has everything.
pub fn may_skip() -> bool {
    env::var_os("HCP_REQUIRE_ROOT").is_none_or(|value| value != "1")
}

/// The test that began on this thread passes without having proved anything. `make test` shows that: a line of JSON is
/// appended to the file that `HCP_JOURNAL` names, as tests/src/journal.rs does.
pub fn skipped(test: &thread::Thread, why: &str) {
    eprintln!("SKIPPED: {why}");
    let Some(file) = env::var_os("HCP_JOURNAL") else { return };
    let program = env::current_exe().unwrap_or_default();
    let program = program.file_stem().unwrap_or_default().to_string_lossy();
    let test = test.name().unwrap_or_default();
    // Debug puts these plain texts between quotation marks as JSON does.
    let line = format!("{{\"kind\":\"skipped\",\"program\":{program:?},\"test\":{test:?},\"why\":{why:?}}}\n");
    // One call writes the whole line, because several programs write to the file at the same time.
    let written = OpenOptions::new().create(true).append(true).open(file);
    written.and_then(|mut file| file.write_all(line.as_bytes())).expect("the journal can be written");
}

/// Runs a test on a thread of its own, in fresh namespaces. Without root it says so and passes, unless
/// `HCP_REQUIRE_ROOT=1` demands that it runs.
pub fn on_a_lan<T: AsyncFnOnce(Lan) + Send + 'static>(test: T) {
    let missing = capabilities::missing(&[Capability::NetAdmin, Capability::NetRaw]).expect("capabilities");
    if !missing.is_empty() || !rustix::process::geteuid().is_root() {
        assert!(
            may_skip(),
            "HCP_REQUIRE_ROOT=1, but this is no root with NET_ADMIN and NET_RAW (missing: {missing:?})"
        );
        eprintln!("SKIPPED: needs root with NET_ADMIN, NET_RAW and SYS_ADMIN to make network namespaces");
        return;
    }
    let outcome = thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async { test(Lan::new().await).await });
    })
    .join();
    if let Err(panic) = outcome {
        panic::resume_unwind(panic);
    }
}

impl Lan {
    async fn new() -> Self {
        let far_namespace = fresh_namespace();
        let near_namespace = fresh_namespace();
        let (near, near_handle) = connect();
        enter(&far_namespace);
        let (far, far_handle) = connect();
        enter(&near_namespace);

        let links = near_handle.link();
        links.add(LinkVeth::new("near", "far").build()).execute().await.expect("a veth pair");
        let index = |link: Option<l2::netlink::Link>| link.expect("just made").index;
        let near_index = index(near.link_by_name("near").await.expect("near"));
        let far_index = index(near.link_by_name("far").await.expect("far"));
        let away = LinkUnspec::new_with_index(far_index).setns_by_fd(std::os::fd::AsRawFd::as_raw_fd(&far_namespace));
        links.change(away.build()).execute().await.expect("far moves");
        let far_index = index(far.link_by_name("far").await.expect("far"));

        for (handle, index, mac) in [(&near_handle, near_index, NEAR), (&far_handle, far_index, FAR)] {
            let address = LinkAttribute::Address(mac.octets().to_vec());
            let message = LinkUnspec::new_with_index(index).append_extra_attribute(address).up().build();
            handle.link().change(message).execute().await.expect("up");
        }
        let lan = Self {
            near: Side { namespace: near_namespace, netlink: near, index: near_index, handle: near_handle },
            far: Side { namespace: far_namespace, netlink: far, index: far_index, handle: far_handle },
        };
        for side in [&lan.near, &lan.far] {
            eventually("the cable is in", async || {
                side.netlink.link(side.index).await.expect("link").is_some_and(|link| link.is_usable())
            })
            .await;
        }
        lan
    }
}

impl Side {
    /// Runs `open` in this namespace: sockets stay in the one they are opened in. The thread then goes back to `home`.
    pub fn open<R>(&self, home: &Self, open: impl FnOnce() -> R) -> R {
        enter(&self.namespace);
        let result = open();
        enter(&home.namespace);
        result
    }

    /// Requests that the product has no need for.
    pub fn handle(&self) -> rtnetlink::Handle {
        self.handle.clone()
    }

    /// An ordinary address, for ever.
    pub async fn plain_address(&self, net: &str) {
        let net: IpNet = net.parse().expect("a network");
        let mut request = self.handle.address().add(self.index, net.addr(), net.prefix_len());
        request.message_mut().header.flags = rtnetlink::packet_route::address::AddressHeaderFlags::Nodad;
        request.execute().await.expect("an address");
    }

    /// Where this side's kernel sends frames for `ip`, if it knows.
    pub async fn neighbour(&self, ip: IpAddr) -> Option<Mac> {
        use rtnetlink::packet_route::neighbour::{NeighbourAddress, NeighbourAttribute};
        let wanted = NeighbourAttribute::Destination(match ip {
            IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
            IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
        });
        let all: Vec<_> = self.handle.neighbours().get().execute().collect().await;
        all.into_iter()
            .map(|entry| entry.expect("a neighbour"))
            .find(|entry| entry.attributes.contains(&wanted))
            .and_then(|entry| {
                entry.attributes.iter().find_map(|attribute| match attribute {
                    NeighbourAttribute::LinkLayerAddress(mac) => Some(Mac::new(mac.as_slice().try_into().ok()?)),
                    _ => None,
                })
            })
    }
}

fn connect() -> (Netlink, rtnetlink::Handle) {
    let (netlink, connection) = Netlink::open().expect("netlink");
    tokio::spawn(connection);
    let (connection, handle, _) = rtnetlink::new_connection().expect("netlink");
    tokio::spawn(connection);
    (netlink, handle)
}

fn fresh_namespace() -> File {
    leave_for_a_fresh_namespace();
    File::open("/proc/thread-self/ns/net").expect("the namespace of this thread")
}

fn enter(namespace: &File) {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("enter a namespace");
}

/// Waits until `condition` holds.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !condition().await {
        assert!(std::time::Instant::now() < deadline, "not so within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until it is so, looking once and then after each report: a change that is not reported is not seen.
pub async fn reported(changes: &mut Changes, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let found = async {
        while !condition().await {
            changes.next().await.expect("the stream goes on");
        }
    };
    tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("not reported: {what}"));
}
