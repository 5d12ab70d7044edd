//! Which interface a Service asks for.

/// Which interface a Service asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum InterfaceWish {
    /// Whatever the configuration says.
    #[default]
    Default,
    /// The one whose subnet contains the address.
    Auto,
    /// This one.
    Named(String),
}
