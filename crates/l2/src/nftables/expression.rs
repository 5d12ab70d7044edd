//! The steps of a rule: expressions, performed in order until one does not match. They exchange values through
//! registers of four bytes: some load a register, others compare it.

use super::message::Attributes;

/// One step of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression(Attributes);

/// The first register. A key of several parts uses several registers from there on.
const FIRST_REGISTER: u32 = 8; // NFT_REG32_00

/// Metadata of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meta {
    /// Name of the receiving interface, 16 bytes.
    InterfaceName = 6,
    /// Family: IPv4 (2) or IPv6 (10), one byte.
    Family = 15,
    /// Protocol above IP, one byte.
    Protocol = 16,
}

/// The header to read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// IPv4 or IPv6.
    Network = 1,
    /// The header above it.
    Transport = 2,
}

/// Verdict about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Drop the packet.
    Drop,
    /// Accept the packet.
    Accept,
    /// Apply the rules of this chain, then continue here.
    Jump(&'static str),
}

impl Expression {
    /// Loads metadata of the packet into register `register`, counted from zero.
    pub fn meta(meta: Meta, register: u32) -> Self {
        Self::new("meta", Attributes::new().number(1, FIRST_REGISTER + register).number(2, meta as u32))
    }

    /// Loads `length` bytes at `offset` of a header. A shorter packet does not match.
    pub fn payload(header: Header, offset: u32, length: u32, register: u32) -> Self {
        let to = Attributes::new().number(1, FIRST_REGISTER + register);
        Self::new("payload", to.number(2, header as u32).number(3, offset).number(4, length))
    }

    /// Matches if the first register holds this value.
    pub fn equals(value: &[u8]) -> Self {
        const EQUAL: u32 = 0;
        let value = Attributes::new().bytes(1, value);
        Self::new("cmp", Attributes::new().number(1, FIRST_REGISTER).number(2, EQUAL).nested(3, value))
    }

    /// Matches if the set contains the key that begins in the first register.
    pub fn is_in(set: &str) -> Self {
        Self::new("lookup", Attributes::new().text(1, set).number(2, FIRST_REGISTER))
    }

    /// Counts the packets and bytes that get here, for users.
    pub fn counter() -> Self {
        Self::new("counter", Attributes::new())
    }

    /// Ends the rule.
    pub fn verdict(verdict: Verdict) -> Self {
        const JUMP: i32 = -3;
        let code = |code: i32| Attributes::new().bytes(1, &code.to_be_bytes());
        let verdict = match verdict {
            Verdict::Drop => code(0),
            Verdict::Accept => code(1),
            Verdict::Jump(chain) => code(JUMP).text(2, chain),
        };
        let data = Attributes::new().nested(2, verdict);
        Self::new("immediate", Attributes::new().number(1, 0).nested(2, data))
    }

    fn new(name: &str, data: Attributes) -> Self {
        Self(Attributes::new().text(1, name).nested(2, data))
    }

    pub(super) fn attributes(self) -> Attributes {
        self.0
    }
}
