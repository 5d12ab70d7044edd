//! What follows from a confirmation burst: a verdict, a pause, or the next burst.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use super::{Doubt, FIRST_REST, Watch};
use crate::detect::confirm::Outcome;
use crate::detect::landmarks::Side;
use crate::detect::verdict::{OwnerVerdict, Watched};
use crate::detect::{Context, Counters, Output, Subject};
use crate::node_watch::NodeFinding;

/// The longest pause after a verdict: so many times doubled.
const LONGEST_REST: u32 = 5;
/// The same limit for a VIP for which another host answers, or about which nobody could be asked.
const LONGEST_TAKEN_REST: u32 = 2;
/// The same limit, 256 s, for a VIP that never came up: its owner has not answered for it under its record, and answers
/// for another one. The first verdicts decide what follows. Later ones only repeat them.
const LONGEST_REST_BESIDE: u32 = 9;

impl Watch {
    /// Counts an answered burst. Its questions are broadcasts that every host receives, so from the second one in a row
    /// on the next burst waits.
    fn note_refuted(&mut self, now: Instant, refuted: &[IpAddr]) {
        let whole = self.silent_as_a_whole && !refuted.is_empty();
        self.calls += u32::from(whole);
        for (_, vip) in self.vips.iter_mut().filter(|(address, _)| refuted.contains(address)) {
            vip.calls += u32::from(!whole);
            let again = self.calls.max(vip.calls).checked_sub(2);
            vip.rest_until = again.map(|again| now + FIRST_REST * 2_u32.pow(again.min(LONGEST_TAKEN_REST)));
        }
    }

    /// VIPs that could not be asked often enough get no verdict. They are put to the test again in the next round, and
    /// from the second time in a row on after a pause: an interface that sends nothing is not worth all our time.
    fn note_unasked(&mut self, now: Instant, unasked: &[IpAddr]) {
        for address in unasked {
            let Some(vip) = self.vips.get_mut(address) else { continue };
            let again = vip.unasked.checked_sub(1);
            vip.rest_until = again.map(|again| now + FIRST_REST * 2_u32.pow(again.min(LONGEST_TAKEN_REST)));
            vip.unasked += 1;
        }
    }

    /// Judges a burst that is over.
    pub(super) fn judge(
        &mut self,
        context: &Context<'_>,
        owner: &str,
        outcome: Outcome,
        counters: &mut Counters,
        out: &mut Vec<Output>,
    ) {
        let now = context.now;
        let last = context.landmarks.last_answer(context.link, &self.macs());
        let Outcome { mut silent, unasked, mut taken, refuted, side, certain, outside, gateway, found, longer } =
            outcome;
        silent.retain(|address| self.vips.contains_key(address));
        taken.retain(|(address, _)| self.vips.contains_key(address));
        if silent.is_empty() {
            counters.refuted += u64::from(unasked.is_empty());
        } else {
            counters.isolated += u64::from(side == Side::Alone);
        }
        self.note_refuted(now, &refuted);
        self.note_unasked(now, &unasked);
        if silent.is_empty() && taken.is_empty() {
            return;
        }
        let witnesses = u8::try_from(found.len()).unwrap_or(u8::MAX);
        if !certain {
            self.doubt = Some(Doubt { side, found, since: BTreeMap::new(), ask_at: now });
        }
        let told = certain && side == Side::Greater;
        // It may have died while the burst was under way.
        let dead = self.silent_as_a_whole || self.silent >= context.timers.patience(0);
        let lives = told && !dead && self.vips.values().any(|vip| vip.heard);
        // If another host answers for a VIP, the record will name the new owner. Until then frequent tests are of no
        // use.
        let rests = silent.iter().map(|address| (*address, LONGEST_REST));
        for (address, longest) in rests.chain(taken.iter().map(|(address, _)| (*address, LONGEST_TAKEN_REST))) {
            let vip = self.vips.get_mut(&address).expect("only those that are watched are left");
            let longest = if lives && !vip.heard { LONGEST_REST_BESIDE } else { longest };
            vip.rest_until = Some(now + FIRST_REST * 2_u32.pow(vip.verdicts.min(longest)));
            vip.verdicts += 1;
            vip.unasked = 0;
        }
        let watched =
            |address: IpAddr| Watched { address, mac: self.vips[&address].named, term: self.vips[&address].term };
        let vips: Vec<Watched> = silent.into_iter().map(watched).collect();
        let taken = taken.into_iter().map(|(address, by)| (watched(address), by)).collect();
        let heard = self.vips.iter().filter(|(_, vip)| vip.heard).map(|(address, _)| watched(*address)).collect();
        let owner = owner.to_owned();
        if self.subject == Subject::Node {
            // On the lesser side of a partitioned LAN, or alone, this node knows nothing about other nodes.
            let said = vips.first().filter(|_| side == Side::Greater).map(|vip: &Watched| NodeFinding::Silent {
                node: owner,
                address: vip.address,
                gateway,
                witnesses,
            });
            out.extend(said.map(Output::Node));
            return;
        }
        let verdict = OwnerVerdict::Silent { owner, vips, taken, side, certain, heard, last, outside, longer };
        out.push(Output::Verdict(verdict));
    }
}
