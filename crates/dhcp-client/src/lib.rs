//! An RFC 2131 DHCP client as a state machine without I/O.
