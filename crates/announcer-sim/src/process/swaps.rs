//! What `swap.rs` does in the real process: reads, compares, writes, and tries again on a fresh connection.

use std::collections::BTreeMap;

use announcer_core::engine::Input;
use announcer_core::ownership::node::{Swap, Swapped};
use announcer_core::record::seat;
use announcer_core::view::ServiceKey;

use super::{Purpose, Requests};
use crate::api::{Answer, Request};

/// Then the engine hears that it failed.
const ATTEMPTS: u32 = 4;

#[derive(Debug)]
struct Swapping {
    key: ServiceKey,
    swap: Swap,
    attempt: u32,
}

/// Changes of owner under way.
#[derive(Debug, Default)]
pub struct Swapper {
    swaps: BTreeMap<u64, Swapping>,
    begun: u64,
}

impl Swapper {
    /// The engine wants another owner on a Service.
    pub fn begin(&mut self, key: ServiceKey, swap: Swap, out: &mut Requests) {
        self.begun += 1;
        out.push((Purpose::Swap(self.begun), Request::ReadService(key.clone())));
        self.swaps.insert(self.begun, Swapping { key, swap, attempt: 0 });
    }

    /// How often a request for it was tried before.
    pub fn attempt(&self, id: u64) -> u32 {
        self.swaps.get(&id).map_or(0, |swapping| swapping.attempt)
    }

    /// A request for it was answered.
    pub fn answered(&mut self, id: u64, answer: Answer, out: &mut Requests, inputs: &mut Vec<Input>) {
        let Some(mut swapping) = self.swaps.remove(&id) else { return };
        let Swapping { key, swap, .. } = &swapping;
        let swapped = match answer {
            Answer::Service(Some((version, object))) if object.metadata.uid.as_deref() == Some(&swap.uid.0) => {
                let standing = seat(&object.metadata);
                match standing {
                    Some(standing) if standing == swap.seat => Some(Swapped::Won),
                    Some(other) if !swap.may_replace(Some(&other)) => Some(Swapped::Other(other)),
                    Some(_) | None => {
                        out.push((Purpose::Swap(id), Request::Sit(key.clone(), version, swap.clone())));
                        None
                    }
                }
            }
            Answer::Service(_) => Some(Swapped::Gone),
            _ => {
                swapping.attempt += 1;
                let tried = swapping.attempt >= ATTEMPTS;
                if !tried {
                    out.push((Purpose::Swap(id), Request::ReadService(swapping.key.clone())));
                }
                tried.then(|| Swapped::Failed("the API does not answer".to_owned()))
            }
        };
        match swapped {
            Some(swapped) => inputs.push(Input::Swapped(swapping.key, swapping.swap, swapped)),
            None => {
                self.swaps.insert(id, swapping);
            }
        }
    }
}
