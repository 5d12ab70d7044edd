//! Harvester and KubeVirt objects, keys, names and the cloud-config file.
