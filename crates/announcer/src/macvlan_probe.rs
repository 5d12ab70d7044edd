//! Whether this node can have macvlans, which DHCPv4 addresses need. It makes one and removes it. Nothing less tells,
//! because the kernel loads the module at the first attempt.

use l2::netlink::Link;
use l2::{Mac, Netlink};

use announcer_core::config::Config;
use runtime::error::chain;

/// Name of the interface; no Service's macvlan has it.
const NAME: &str = "hcp-probe";
/// Locally administered MAC. Nobody sees it, because the interface is never up.
const ADDRESS: Mac = Mac::new([0x02, b'h', b'c', b'p', 0, 1]);

/// Why this node cannot have macvlans; `None`: it can, or this could not be determined.
pub async fn missing(netlink: &Netlink, config: &Config) -> Option<String> {
    let links = netlink.links().await.ok()?;
    // An earlier process was interrupted between the two steps.
    if let Some(left) = links.iter().find(|link| link.name == NAME) {
        let _ = netlink.delete_link(left.index).await;
    }
    let parent = parent(&links, config)?;
    match netlink.try_macvlan(NAME, parent.index, ADDRESS).await {
        Ok(()) => None,
        // Other errors do not concern the kernel's abilities; most often the interface is a port of a bridge or a bond.
        Err(error) => error.is_unsupported().then(|| chain(&error)),
    }
}

/// The interface that is configured for Services; otherwise any that could carry a macvlan, because the kernel is the
/// same.
fn parent<'a>(links: &'a [Link], config: &Config) -> Option<&'a Link> {
    let named = config.services_interface.as_ref().or(config.interface.as_ref());
    let named = named.and_then(|name| links.iter().find(|link| link.name == *name));
    let carries = |link: &&Link| link.is_usable() && link.mac.is_some_and(|mac| mac != Mac::ZERO);
    named.or_else(|| links.iter().find(carries))
}
