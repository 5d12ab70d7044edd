//! A question on the wire.

use std::net::IpAddr;

use l2_types::Mac;

/// A question to send: [`crate::frames::question`] makes the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// On which interface.
    pub link: u32,
    /// About what.
    pub address: IpAddr,
    /// Recipient; [`Mac::BROADCAST`]: everybody.
    pub to: Mac,
}
