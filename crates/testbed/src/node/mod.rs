//! The *nodes* level: real kubelet, containerd, CNI and kube-proxy in namespaces. For the demo and for installation
//! tests.

pub mod cgroups;
pub mod config;
mod disturb;
pub mod images;
pub mod machine;

pub use images::ImageStore;
pub use machine::{Machine, MachineSpec};
