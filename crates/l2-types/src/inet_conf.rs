//! IPv4 settings of an interface (`net.ipv4.conf.<interface>.*`).

/// The settings for ARP answers, ARP requests and the reverse path check of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InetConf {
    /// For which targets it answers ARP: 0 any local address, 1 only its own, 2 only if also asked from its subnet, 8
    /// none.
    pub arp_ignore: i32,
    /// Source address of its own ARP requests: 0 any, 1 preferably one of the target's subnet, 2 the best one.
    pub arp_announce: i32,
    /// Reverse path check: 0 none, 1 strict, 2 loose.
    pub rp_filter: i32,
}

/// Settings to change; `None` leaves one unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InetConfChange {
    /// See [`InetConf::arp_ignore`].
    pub arp_ignore: Option<u32>,
    /// See [`InetConf::arp_announce`].
    pub arp_announce: Option<u32>,
    /// See [`InetConf::rp_filter`].
    pub rp_filter: Option<u32>,
}

impl InetConfChange {
    /// Whether there is nothing to change.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The changes that turn `current` into the wanted settings; empty if there are none.
    pub fn difference(self, current: InetConf) -> Self {
        let unless =
            |wanted: Option<u32>, current: i32| wanted.filter(|wanted| i64::from(*wanted) != i64::from(current));
        Self {
            arp_ignore: unless(self.arp_ignore, current.arp_ignore),
            arp_announce: unless(self.arp_announce, current.arp_announce),
            rp_filter: unless(self.rp_filter, current.rp_filter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_already_so_needs_no_change() {
        let wanted = InetConfChange { arp_ignore: Some(1), arp_announce: Some(2), rp_filter: None };
        let current = InetConf { arp_ignore: 1, arp_announce: 0, rp_filter: 1 };
        let change = wanted.difference(current);
        assert_eq!(change, InetConfChange { arp_announce: Some(2), ..Default::default() });
        assert!(wanted.difference(InetConf { arp_announce: 2, ..current }).is_empty());
    }
}
