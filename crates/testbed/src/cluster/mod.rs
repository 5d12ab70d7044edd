//! The *hosts* level's Kubernetes: a real control plane, a Harvester side, and nodes whose pods are tasks of ours.

pub mod api_server;
pub mod audit;
pub mod control_plane;
pub mod controllers;
pub mod credentials;
pub mod etcd;
pub mod harvester;
pub mod kubeconfig;
pub mod pki;
pub mod relay;
pub mod second_cluster;
pub mod sim_node;
