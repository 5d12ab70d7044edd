//! What a rule consists of: expressions, performed one after the other until one of them does not match. They speak
//! through registers of four bytes: some load, the others look.

use super::message::Attributes;

/// One step of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression(Attributes);

/// The first register, and how many follow it: a key of several parts takes several.
const FIRST_REGISTER: u32 = 8; // NFT_REG32_00

/// What is known of a packet beside its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meta {
    /// Name of the interface on which it came, of 16 bytes.
    InterfaceName = 6,
    /// IPv4 (2) or IPv6 (10), of one byte.
    Family = 15,
    /// Protocol above IP, of one byte.
    Protocol = 16,
}

/// Which header of a packet is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// IPv4 or IPv6.
    Network = 1,
    /// What is above it.
    Transport = 2,
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is forgotten.
    Drop,
    /// It goes on.
    Accept,
    /// The rules of this chain are asked, then the next one here.
    Jump(&'static str),
}

impl Expression {
    /// Loads what is known of the packet into register `register`, counted from zero.
    pub fn meta(meta: Meta, register: u32) -> Self {
        Self::new("meta", Attributes::new().number(1, FIRST_REGISTER + register).number(2, meta as u32))
    }

    /// Loads `length` bytes at `offset` of a header. A packet that is shorter does not match.
    pub fn payload(header: Header, offset: u32, length: u32, register: u32) -> Self {
        let to = Attributes::new().number(1, FIRST_REGISTER + register);
        Self::new("payload", to.number(2, header as u32).number(3, offset).number(4, length))
    }

    /// Goes on if the first register holds this.
    pub fn equals(value: &[u8]) -> Self {
        const EQUAL: u32 = 0;
        let value = Attributes::new().bytes(1, value);
        Self::new("cmp", Attributes::new().number(1, FIRST_REGISTER).number(2, EQUAL).nested(3, value))
    }

    /// Goes on if the set holds the key that begins in the first register.
    pub fn is_in(set: &str) -> Self {
        Self::new("lookup", Attributes::new().text(1, set).number(2, FIRST_REGISTER))
    }

    /// Counts packets and bytes that get here, for people.
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
