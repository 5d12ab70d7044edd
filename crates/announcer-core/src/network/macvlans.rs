//! Tells which Service a macvlan belongs to, and what is noted in its alias: `<UID of the Service>`, and with a lease `
//! until boot+<seconds>` or ` until never`. The note stays in the kernel when the process ends, and needs no API. It
//! counts from the boot of the machine, because that clock cannot be set and the note does not survive a reboot.

use std::fmt;
use std::time::{Duration, Instant};

use l2_types::Mac;
use l2_types::{Address, Link, LinkKind, Macvlan, MacvlanMode, Mismatch};

use super::looks_like_a_vip;
use crate::annotations::{HWADDR, LOADBALANCER_HOSTNAME, MACVLAN_NAME};
use contract::Uid;

const UNTIL: &str = " until ";
const BOOT: &str = "boot+";

/// End of a DHCP lease, as far as it is known without the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseEnd {
    /// It ends at this moment.
    At(Instant),
    /// It does not end.
    Never,
}

/// The alias of a macvlan with a lease. `boot`: when the machine was booted.
pub fn alias(uid: &Uid, end: LeaseEnd, boot: Instant) -> String {
    match end {
        LeaseEnd::At(end) => format!("{uid}{UNTIL}{BOOT}{}", noted(end, boot)),
        LeaseEnd::Never => format!("{uid}{UNTIL}never"),
    }
}

/// The UID of the Service in an alias.
pub fn owner_in(alias: &str) -> &str {
    alias.split_once(UNTIL).map_or(alias, |(owner, _)| owner)
}

/// The end of the lease in an alias. `boot`: when the machine was booted.
pub fn lease_end(alias: &str, boot: Instant) -> Option<LeaseEnd> {
    let (_, end) = alias.split_once(UNTIL)?;
    if end == "never" {
        return Some(LeaseEnd::Never);
    }
    Some(LeaseEnd::At(moment(end.strip_prefix(BOOT)?.parse().ok()?, boot)))
}

/// The noted form of an end: whole seconds since `boot`, rounded down.
pub fn noted(end: Instant, boot: Instant) -> u32 {
    u32::try_from(end.saturating_duration_since(boot).as_secs()).unwrap_or(u32::MAX)
}

/// The moment of a noted end.
pub fn moment(noted: u32, boot: Instant) -> Instant {
    boot + Duration::from_secs(noted.into())
}

/// Whether kube-vip left this macvlan for the Service that wants one like it. Its name may come from an annotation, so
/// only two facts tell it from an administrator's macvlan: the Service knows its MAC, and it carries nothing but a VIP.
pub fn was_left_for(link: &Link, addresses: &[Address], wanted: &Macvlan) -> bool {
    let on_it = addresses.iter().filter(|address| address.interface == link.index);
    matches!(link.kind, LinkKind::Macvlan { parent, .. } if parent == wanted.parent)
        && link.alias.is_none()
        && link.name == wanted.name
        && link.mac == Some(wanted.mac)
        && on_it.filter(|address| address.net.addr().is_ipv4()).all(|address| looks_like_a_vip(address, link))
}

/// Why an existing macvlan of this Service cannot be adopted. kube-vip leaves the kernel's default mode and no alias;
/// both can be corrected or are harmless, so the address stays up.
pub fn misfit(found: &Link, uid: &Uid, wanted: &Macvlan) -> Option<Mismatch> {
    let mut adopted = found.clone();
    if let LinkKind::Macvlan { mode, .. } = &mut adopted.kind
        && *mode == MacvlanMode::Vepa
    {
        *mode = MacvlanMode::Bridge;
    }
    if adopted.alias.as_deref().is_none_or(|alias| owner_in(alias) == uid.0) {
        adopted.alias = Some(wanted.alias.clone());
    }
    wanted.mismatch(&adopted)
}

/// Whether this is a macvlan with the name of a DHCP Service's macvlan, ours or kube-vip's: `vip-` and 8 hexadecimal
/// digits.
pub fn is_own_macvlan(link: &Link) -> bool {
    matches!(link.kind, LinkKind::Macvlan { .. }) && is_link_name_of_a_service(&link.name)
}

/// The MAC of a Service's macvlan, unless the Service has another one already. It is the same on every node and after
/// every restart, even if nothing can be read from the Service.
pub fn mac_of(uid: &Uid) -> Mac {
    let digest = ring::digest::digest(&ring::digest::SHA256, uid.0.as_bytes());
    Mac::of_vip(*digest.as_ref().first_chunk().expect("a digest has 32 bytes"))
}

/// Whether a macvlan of this name belongs to a DHCP Service.
pub fn is_link_name_of_a_service(name: &str) -> bool {
    name.strip_prefix("vip-").is_some_and(|rest| rest.len() == 8 && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Whether this macvlan certainly belongs to the Service with this UID: by our alias, or without an alias by kube-vip's
/// name. Nothing else may be deleted for a Service, because the name comes from an annotation and could be that of a
/// bridge.
pub fn is_macvlan_of(link: &Link, uid: &Uid) -> bool {
    matches!(link.kind, LinkKind::Macvlan { .. })
        && match &link.alias {
            Some(alias) => owner_in(alias) == uid.0,
            None => link.name == uid.link_name(),
        }
}

/// Message for the author of a Service whose macvlan cannot have the name `name`.
pub fn name_is_taken(name: &str, uid: &Uid) -> String {
    if name == uid.link_name() {
        return format!(
            "interface {name} exists and is not ours: remove it, or name another one with annotation {MACVLAN_NAME}"
        );
    }
    format!(
        "annotation {MACVLAN_NAME} is {name:?}: interface {name:?} exists and is not ours; \
         choose another {MACVLAN_NAME}"
    )
}

/// Message for the author of a Service whose macvlan cannot have this MAC. It has no interface numbers, because they
/// change with each attempt.
pub fn mac_is_taken(mac: Mac) -> String {
    format!("MAC {mac} is already used: remove annotation {HWADDR}, or give this Service another one with it")
}

/// Message for the author of a Service that would be the same client to the DHCP server as `user`.
pub fn hostname_is_taken(hostname: &str, user: &impl fmt::Display) -> String {
    format!(
        "host name {hostname} is already used by Service {user}: a DHCP server takes both for one client. Remove \
        annotation {LOADBALANCER_HOSTNAME}, or give this Service another one with it"
    )
}

/// Message for the author of a Service if the kernel of this node has no macvlans.
pub fn has_no_macvlan(error: &str) -> String {
    format!(
        "{error}; the kernel of this node has no macvlan: load module macvlan, or where there is none, as on SLES \
         minimal images, install package kernel-default instead of kernel-default-base and restart the node"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::fixtures::{address, macvlan, own_address};

    #[test]
    fn a_kernel_without_macvlans_is_answered_with_the_module_and_the_package_that_has_it() {
        let text = has_no_macvlan("failed to create macvlan vip-web: Operation not supported (os error 95)");
        for part in ["create macvlan vip-web", "module macvlan", "kernel-default instead of kernel-default-base"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn an_alias_says_whose_the_macvlan_is_and_until_when_its_lease_runs() {
        let (boot, uid) = (Instant::now(), Uid("1234abcd-0000".into()));
        let until = |milliseconds| alias(&uid, LeaseEnd::At(boot + Duration::from_millis(milliseconds)), boot);
        let in_a_minute = until(60_900);
        assert_eq!(in_a_minute, "1234abcd-0000 until boot+60");
        assert_eq!(owner_in(&in_a_minute), uid.0);
        assert_eq!(lease_end(&in_a_minute, boot), Some(LeaseEnd::At(boot + Duration::from_mins(1))), "never later");
        assert_eq!(lease_end(&alias(&uid, LeaseEnd::Never, boot), boot), Some(LeaseEnd::Never));
        // No lease yet, or not our words.
        for text in ["1234abcd-0000", "", "1234abcd-0000 until", "1234abcd-0000 until tomorrow", "x until 1767225600"] {
            assert_eq!(lease_end(text, boot), None, "{text}");
        }
        assert_eq!(owner_in("1234abcd-0000"), uid.0);
        assert!(is_macvlan_of(&macvlan(9, "lan", 2, Some(&in_a_minute)), &uid));
    }

    #[test]
    fn a_macvlan_with_a_chosen_name_is_kube_vips_if_the_service_knows_its_mac_and_it_has_nothing_but_the_vip() {
        let left = macvlan(9, "lan", 2, None);
        let wanted = Macvlan {
            name: "lan".into(),
            parent: 2,
            mac: left.mac.unwrap(),
            alias: "1234abcd-0000".into(),
            inet_conf: l2_types::InetConfChange::default(),
            address: None,
        };
        let vip = Address { protocol: None, ..own_address(9, "10.0.0.50/32") };
        let own = address(9, "10.0.0.7/24");
        let link_local = address(9, "fe80::1/64");
        let elsewhere = address(2, "10.0.0.7/24");
        let other_mac = Link { mac: Some(Mac::new([2, 0, 0, 0, 0, 99])), ..left.clone() };
        for (link, addresses, expected) in [
            (&left, &[vip, link_local, elsewhere][..], true),
            (&left, &[], true),
            (&left, &[own], false),
            (&other_mac, &[vip], false),
            (&macvlan(9, "lan", 3, None), &[vip], false),
            (&macvlan(9, "lan", 2, Some("somebody")), &[vip], false),
            (&Link { kind: LinkKind::Physical, ..left.clone() }, &[vip], false),
        ] {
            assert_eq!(was_left_for(link, addresses, &wanted), expected, "{link:?} {addresses:?}");
        }
    }

    #[test]
    fn the_mac_of_a_service_does_not_change_between_versions() {
        let mac = |uid: &str| mac_of(&Uid(uid.into())).to_string();
        assert_eq!(mac("1234abcd-0000"), mac("1234abcd-0000"));
        assert_ne!(mac("1234abcd-0000"), mac("1234abcd-0001"), "not only of the first characters");
        assert_eq!(mac(""), "02:e3:b0:c4:42:98");
    }
}
