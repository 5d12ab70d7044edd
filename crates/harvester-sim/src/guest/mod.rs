//! The KubeVirt side: virtual machines that are only objects, and the guest agent's answer.

pub mod machine;
pub mod machines;
pub mod render;
pub mod subresources;
