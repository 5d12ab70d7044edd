//! What this crate promises, asked of a real kernel in fresh network namespaces. Needs root, see `lan.rs`.

mod addresses;
mod frames;
mod fresh_namespace;
mod handshakes;
mod lan;
mod links;
mod nftables;
mod rights;
mod sockets;
