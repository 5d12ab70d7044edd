//! The host's controllers: load balancers, pools, and the clean-up when a guest cluster is torn down. Harvester spec
//! 2.5, 4
//!
//! `plan` decides, `load_balancers`, `pools` and `machines` act; `queue`, `bucket` and `books` give them
//! the host's pace; `lookups` answers the webhooks from memory.

pub mod books;
pub mod bucket;
pub mod load_balancers;
pub mod lookups;
pub mod machines;
pub mod plan;
pub mod pools;
pub mod queue;
pub mod world;
