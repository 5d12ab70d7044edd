//! Load balancers: observe (`view.rs`), decide (`plan/`), act (`apply.rs`).

pub mod apply;
pub mod booking;
pub mod breaker;
pub mod choice;
pub mod desired;
pub mod host_words;
pub mod neighbours;
pub mod network;
pub mod own_writes;
pub mod owned;
pub mod pacing;
pub mod plan;
pub mod provider;
mod quoted;
pub mod service_patch;
pub mod sharing;
pub mod spelling;
pub mod unasked;
mod under_way;
pub mod view;
pub mod wait_reason;
pub mod wakes;

#[cfg(test)]
pub(crate) mod build;
