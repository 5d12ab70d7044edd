//! The requests of [`announcer_core::swap`], over the one way to the API that a node has here.

use std::time::Instant;

use announcer_core::engine::Input;
use announcer_core::ownership::node::Swap;
use announcer_core::record::owner_record;
use announcer_core::swap::{FoundService, SwapAct, SwapAnswer, SwapRequest, Swaps};
use announcer_core::view::{ServiceKey, Uid};

use super::{Purpose, Requests};
use crate::api::{self, Request};

/// Changes of owner under way.
#[derive(Debug, Default)]
pub struct Swapper {
    swaps: Swaps<u64>,
}

impl Swapper {
    /// The engine wants another owner on a Service.
    pub fn begin(&mut self, now: Instant, key: ServiceKey, swap: Swap, out: &mut Requests) -> Vec<Input> {
        self.swaps.ask(now, key, swap);
        self.act(out)
    }

    /// When something is due.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        self.swaps.deadline(now)
    }

    /// What is due.
    pub fn tick(&mut self, now: Instant, out: &mut Requests) -> Vec<Input> {
        self.swaps.tick(now);
        self.act(out)
    }

    /// A request was answered.
    pub fn answered(&mut self, now: Instant, id: u64, answer: api::ApiAnswer, out: &mut Requests) -> Vec<Input> {
        let answer = match answer {
            // The API returns the Service also after a write.
            api::ApiAnswer::Service(object) => SwapAnswer::Found(object.map(|(version, object)| FoundService {
                uid: Uid(object.metadata.uid.clone().unwrap_or_default()),
                owner_record: owner_record(&object.metadata),
                object: version,
            })),
            api::ApiAnswer::Conflict => SwapAnswer::Conflict,
            _ => SwapAnswer::Failed("the API does not answer".to_owned()),
        };
        self.swaps.answered(now, id, answer);
        self.act(out)
    }

    fn act(&mut self, out: &mut Requests) -> Vec<Input> {
        let mut told = Vec::new();
        for act in self.swaps.acts() {
            match act {
                SwapAct::Send { id, key, ask: SwapRequest::Read, .. } => {
                    out.push((Purpose::Swap(id), Request::ReadService(key)));
                }
                SwapAct::Send { id, key, ask: SwapRequest::Write(version, swap), .. } => {
                    out.push((Purpose::Swap(id), Request::Sit(key, version, swap)));
                }
                SwapAct::Tell(key, swap, swapped) => told.push(Input::Swapped(key, swap, swapped)),
                // A node has only one connection to the API here, and it never breaks.
                SwapAct::Open { .. } | SwapAct::Close(_) | SwapAct::Drop(_) => {}
            }
        }
        told
    }
}
