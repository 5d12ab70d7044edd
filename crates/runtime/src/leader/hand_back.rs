//! Handing a Lease back, request by request, without I/O.

use jiff::Timestamp;

use super::elector::{Action, Elector, Input};

/// A renewal that was on its way may have landed: so often the Lease is written, after it was read anew.
const TRIES: u32 = 2;

/// How an election left its Lease when it was asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandBack {
    /// It does not bear our name: others may take it at once.
    Done,
    /// The API did not confirm it: others may have to wait until the Lease expires.
    Uncertain,
}

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Send this, and feed the answer back.
    Send(Action),
    /// It is over.
    End(HandBack),
}

/// A Lease that is being handed back.
#[derive(Debug)]
pub struct HandingBack {
    identity: String,
    /// The write that is tried.
    write: Action,
    tries: u32,
}

impl Elector {
    /// Begins to hand the Lease back, if we hold it; else how it is left as it stands.
    pub fn hand_back(&self, wall: Timestamp) -> Result<(HandingBack, Action), HandBack> {
        let Some(write) = self.release(wall) else {
            return Err(if self.may_name_us() { HandBack::Uncertain } else { HandBack::Done });
        };
        Ok((HandingBack { identity: self.identity().to_owned(), write: write.clone(), tries: 1 }, write))
    }
}

impl HandingBack {
    /// The request was answered.
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
            Input::Wrote(_) | Input::Read(_) => Step::End(HandBack::Done),
            Input::Tick | Input::Watched(_) | Input::Failed | Input::Silent(_) => Step::End(HandBack::Uncertain),
        }
    }
}
