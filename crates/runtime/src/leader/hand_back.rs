//! The release of a Lease as a state machine without I/O.

use jiff::Timestamp;

use super::elector::{Action, Elector, Input};

/// Limit of the writes. A second one, after another read, is needed if a renewal was under way.
const TRIES: u32 = 2;

/// The state of the Lease when the election ended on request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandBack {
    /// The Lease does not contain this replica's identity: others may take it at once.
    Done,
    /// This replica believed to hold the Lease, and the API server shows that the named replica holds it.
    Taken(String),
    /// The API server did not confirm the release: others may have to wait until the Lease expires.
    Uncertain,
}

impl HandBack {
    /// Whether the API server has confirmed that the Lease does not contain this replica's identity.
    pub fn is_confirmed(&self) -> bool {
        *self != Self::Uncertain
    }
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Send this request, and feed the answer back.
    Send(Action),
    /// The release has ended.
    End(HandBack),
}

/// A release in progress.
#[derive(Debug)]
pub struct HandingBack {
    identity: String,
    /// The current write.
    write: Action,
    tries: u32,
}

impl Elector {
    /// Begins the release if this replica holds the Lease; otherwise returns the state of the Lease.
    pub fn hand_back(&self, wall: Timestamp) -> Result<(HandingBack, Action), HandBack> {
        let Some(write) = self.release(wall) else {
            return Err(if self.may_name_us() { HandBack::Uncertain } else { HandBack::Done });
        };
        Ok((HandingBack { identity: self.identity().to_owned(), write: write.clone(), tries: 1 }, write))
    }
}

impl HandingBack {
    /// Processes the answer to the request.
    pub fn step(&mut self, answer: Input) -> Step {
        match answer {
            Input::Conflict => Step::Send(Action::Read),
            Input::Read(Some(seen)) if seen.record.holder == self.identity => {
                if let Action::Update { version, .. } = &mut self.write
                    && self.tries < TRIES
                {
                    self.tries += 1;
                    *version = seen.version;
                    return Step::Send(self.write.clone());
                }
                Step::End(HandBack::Uncertain)
            }
            Input::Read(Some(seen)) if !seen.record.holder.is_empty() => Step::End(HandBack::Taken(seen.record.holder)),
            Input::Wrote(_) | Input::Read(_) => Step::End(HandBack::Done),
            Input::Tick | Input::Watched(_) | Input::Failed | Input::Silent(_) => Step::End(HandBack::Uncertain),
        }
    }
}
