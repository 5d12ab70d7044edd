//! The cloud-provider traits for Harvester.
