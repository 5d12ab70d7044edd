//! Identifies an object.

use std::fmt;

/// Namespace and name of a Service. Displayed, and parsed by users' annotations, as `namespace/name`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// Namespace in the guest cluster.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ServiceKey {
    /// Both parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// `metadata.uid`: tells an object from a later one of the same name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uid(pub String);

impl Uid {
    /// Name of the macvlan of a Service (kube-vip spec 0.3).
    pub fn link_name(&self) -> String {
        format!("vip-{}", self.0.chars().take(8).collect::<String>())
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
