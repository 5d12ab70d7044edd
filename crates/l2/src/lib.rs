//! Linux layer 2: packet sockets, netlink, ARP and NDP frames.
