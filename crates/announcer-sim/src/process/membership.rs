//! The requests of [`announcer_core::membership`].

use std::time::{Duration, Instant};

use announcer_core::Config;
use announcer_core::membership::{self, MembershipAct};
use announcer_core::ownership::node::{Card, Member};
use jiff::Timestamp;

use super::{Purpose, Requests};
use crate::api::{ApiAnswer, Request};

/// The membership Lease.
#[derive(Debug)]
pub struct Membership {
    node: String,
    duration: Duration,
    lease: membership::Membership<u64>,
}

impl Membership {
    /// Nothing is written yet.
    pub fn new(config: &Config) -> Self {
        let duration = config.lease.duration;
        Self { node: config.node_name.clone(), duration, lease: membership::Membership::new(duration) }
    }

    /// The engine wants it renewed.
    pub fn renew(&mut self, now: Instant, wall: Timestamp, card: Card, out: &mut Requests) {
        let act = self.lease.renew(now, card);
        self.perform(wall, act, out);
    }

    /// When something is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.lease.deadline()
    }

    /// What is due.
    pub fn tick(&mut self, now: Instant, wall: Timestamp, out: &mut Requests) {
        let act = self.lease.tick(now);
        self.perform(wall, act, out);
    }

    /// A request was answered.
    pub fn answered(&mut self, now: Instant, wall: Timestamp, id: u64, answer: &ApiAnswer, out: &mut Requests) {
        let answer = match answer {
            ApiAnswer::MemberFound(version) => membership::MembershipAnswer::Found(*version),
            ApiAnswer::MemberWritten(version) => membership::MembershipAnswer::Written(*version),
            ApiAnswer::Conflict => membership::MembershipAnswer::Conflict("it was changed".to_owned()),
            _ => membership::MembershipAnswer::Failed("the API does not answer".to_owned()),
        };
        let act = self.lease.answered(now, id, answer);
        self.perform(wall, act, out);
    }

    fn perform(&self, wall: Timestamp, act: Option<MembershipAct<u64>>, out: &mut Requests) {
        match act {
            Some(MembershipAct::Read(id)) => {
                out.push((Purpose::Membership(id), Request::ReadMember(self.node.clone())));
            }
            Some(MembershipAct::Write(id, version, card)) => {
                let member = Member { renewal: wall.to_string(), duration: self.duration, card: *card };
                out.push((Purpose::Membership(id), Request::WriteMember(self.node.clone(), version, member)));
            }
            None => {}
        }
    }
}
