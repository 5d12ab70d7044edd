//! An owner that lives and that this node cannot hear keeps its address ([`Cluster::is_unreached`]). The LAN may keep
//! the two nodes apart on purpose. The owner may also have lost its uplink, and hear only hosts on its side of it. No
//! node can tell the one from the other, so the author of the Service is told. Pure.

use super::Cluster;
use super::decide::Step;
use super::round::{Round, Standing, Wake};
use super::timing::TOLD_AFTER;
use crate::reason::Reason;
use crate::view::ServiceKey;

impl Cluster {
    /// Messages for the authors of a group that this node leaves to its owner only because the owner renews its Lease.
    /// The first successor tells. Another one may be on the owner's side of a broken uplink too, and hear it.
    pub(super) fn tell_unreached(
        &self,
        round: &Round<'_>,
        standing: &Standing<'_>,
        step: &Step,
        wake: &mut Wake,
    ) -> Vec<(ServiceKey, Reason, String)> {
        let owner = standing.owner_record.as_ref().map(|record| record.host.as_str());
        let (Some(owner), Some(since)) = (owner, self.silent_since(standing)) else { return Vec::new() };
        let first = self.rank(standing, owner) == Some(0);
        if *step != Step::LeaveUnreached || !first || round.context.safe_mode {
            return Vec::new();
        }
        if round.now < since + TOLD_AFTER {
            wake.at(since + TOLD_AFTER);
            return Vec::new();
        }
        // An owner that loses power renews until then: what counts is a renewal a while after it fell silent. A node
        // that does not see the API leaves the owner alone as well, but knows of no renewal.
        let renews = self.facts.renewed_at(owner).is_some_and(|renewed| renewed >= since + TOLD_AFTER);
        if !renews || !self.facts.in_touch(round.now) {
            return Vec::new();
        }
        let addresses: Vec<String> = standing.owed().map(|(address, _)| address.to_string()).collect();
        let text = format!(
            "address {}: its owner {owner} renews its Lease and says that it hears hosts, and node {}, which comes \
             next, gets no answer from it and leaves it the address. Look at the uplink of {owner} (port, cable, \
             VLAN): without it clients get no answer either. Where isolated ports, a private VLAN or a router keep \
             nodes apart on purpose nothing is wrong, and {owner} is succeeded only when it stops renewing its Lease",
            addresses.join(", "),
            self.me
        );
        standing.members.iter().map(|view| (view.key.clone(), Reason::OwnerNotHeard, text.clone())).collect()
    }
}
