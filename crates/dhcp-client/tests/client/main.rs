//! The client against scripted servers, hostile frames and a lossy network. Every test's name is a requirement.

mod acquisition;
mod endings;
mod frames;
mod harness;
mod messages;
mod properties;
mod reboot;
mod renewal;
mod simulation;
