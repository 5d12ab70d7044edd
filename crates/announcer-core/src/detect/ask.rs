//! A question on the wire, as a value. What is asked before an address is taken over: `confirm.rs`; of whom else:
//! `landmarks.rs`.

use std::net::IpAddr;

use l2_types::Mac;

/// A question to send; [`crate::frames::question`] makes the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Index of the interface.
    pub link: u32,
    /// The address in question.
    pub address: IpAddr,
    /// Recipient; [`Mac::BROADCAST`] asks the whole LAN.
    pub to: Mac,
}
