//! Whether this node can have macvlans, which addresses by DHCP need: found by making one and removing it again. The
//! kernel loads the module at the first attempt, so nothing less than an attempt tells.

use l2::netlink::{InetConfChange, Link, Macvlan};
use l2::{Mac, Netlink};

use runtime::error::chain;

use crate::config::Config;

/// No Service's macvlan is called so.
const NAME: &str = "hcp-probe";
/// Locally administered. It sends nothing: the interface has no address, and makes itself none.
const ADDRESS: Mac = Mac::new([0x02, b'h', b'c', b'p', 0, 1]);

/// Why it cannot; `None`: it can, or that could not be found out.
pub async fn missing(netlink: &Netlink, config: &Config) -> Option<String> {
    let links = netlink.links().await.ok()?;
    // A former life was interrupted between the two steps.
    if let Some(left) = links.iter().find(|link| link.name == NAME) {
        let _ = netlink.delete_link(left.index).await;
    }
    let parent = parent(&links, config)?;
    let wanted = Macvlan {
        name: NAME.to_owned(),
        parent: parent.index,
        mac: ADDRESS,
        alias: "probe of the announcer".to_owned(),
        inet_conf: InetConfChange::default(),
        address: None,
    };
    match netlink.add_macvlan(&wanted).await {
        Ok(index) => {
            if let Err(error) = netlink.delete_link(index).await {
                tracing::warn!(
                    interface = NAME,
                    error = %chain(&error),
                    "the announcer cannot delete the macvlan with which it tested the kernel; its next start deletes \
                    it"
                );
            }
            None
        }
        // Anything else, above all an interface that is a port of a bridge or a bond, says nothing about the kernel.
        Err(error) => error.is_unsupported().then(|| chain(&error)),
    }
}

/// The interface that Services use, where one is named; else any that could carry a macvlan: the kernel is the same.
fn parent<'a>(links: &'a [Link], config: &Config) -> Option<&'a Link> {
    let named = config.services_interface.as_ref().or(config.interface.as_ref());
    let named = named.and_then(|name| links.iter().find(|link| link.name == *name));
    let carries = |link: &&Link| link.is_usable() && link.mac.is_some_and(|mac| mac != Mac::ZERO);
    named.or_else(|| links.iter().find(carries))
}
