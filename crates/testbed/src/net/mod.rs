//! The *hosts* level's wires: namespaces, bridges, hosts, DHCP, and what watches them (prober, capture).

pub mod capture;
pub mod clients;
pub mod connection;
pub mod dhcp;
pub mod host;
pub mod lan;
pub mod namespace;
pub mod probe;
pub mod segment;
pub mod who_has;
