//! The interface that a Service asks for.

/// The interface that a Service asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum InterfaceWish {
    /// The configured interface.
    #[default]
    Default,
    /// The interface whose subnet contains the address.
    Auto,
    /// The interface with this name.
    Named(String),
}
