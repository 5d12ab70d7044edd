//! Instances: the VMs of Harvester behind the Nodes of the guest cluster.

pub mod addresses;
pub mod hostnames;
pub mod lookup;
pub mod machine_uuid;
pub mod power;
pub mod provider;
pub mod requests;
pub mod survivor;
pub mod view;
