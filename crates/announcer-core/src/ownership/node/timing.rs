//! Durations in `node` mode.

use std::time::Duration;

/// Pause between two broadcast questions (decisions.md 22).
pub(super) const QUESTION_GAP: Duration = Duration::from_millis(10);
/// Time for an answer to the last broadcast question.
pub(super) const ANSWER_WAIT: Duration = Duration::from_millis(50);
/// How long an answer to the broadcast question counts; below, how long its absence counts.
pub(super) const ANSWERED_FOR: Duration = Duration::from_secs(5);
pub(super) const SILENT_FOR: Duration = Duration::from_secs(1);
/// After this time without a renewal the foreign holder of the Lease for all Services counts as stalled. A live holder
/// renews it far more often.
pub(super) const STALLED: Duration = Duration::from_mins(1);
/// How long this node goes on serving VIPs that a kube-vip has taken and does not answer for yet.
pub(super) const FOREIGN_GRACE: Duration = Duration::from_secs(2);
/// A member whose Lease has been expired for this long is taken for a host without an announcer.
pub(super) const FORMER_AFTER: Duration = Duration::from_mins(1);
/// How long a Node has to be not ready before it counts, by this node's clock.
pub(super) const UNREADY_FOR: Duration = Duration::from_secs(10);
/// After many Nodes were not ready together, none counts for this long, because they recover one by one.
pub(super) const READY_REST: Duration = Duration::from_mins(1);
/// How long the former owner goes on serving after a hand-over, if it does not hear the new owner before.
pub const HAND_OVER_LINGER: Duration = Duration::from_secs(2);
/// How long a start waits for other members, so that the first announcer does not take all groups.
pub(super) const MEMBERS_SETTLE: Duration = Duration::from_secs(3);
/// A group has to belong elsewhere for this long before it is handed back there.
pub(super) const FAIL_BACK_AFTER: Duration = Duration::from_mins(1);
/// Pause between two groups that are given back.
pub(super) const GIVE_BACK_PAUSE: Duration = Duration::from_secs(2);
/// How long after a hand-over the defect that caused it may become known here. The record comes by another watch than
/// the Node and the Lease, and each node counts by its own clock how long a Node has not been ready.
pub(super) const DEFECT_IS_LATE: Duration = Duration::from_secs(5);
/// How long each candidate waits for the one before it to take a group without an owner. That candidate may be dead
/// while its Lease is still valid.
pub(super) const PASS_OVER: Duration = Duration::from_secs(2);
/// How long a stranger's answers block a take-over after the owner's Lease has expired.
pub(super) const STRANGERS_TIME: Duration = Duration::from_secs(5);
/// What an owner writes this long after it fell silent shows which hosts it has lost.
pub(super) const TOLD_AFTER: Duration = Duration::from_secs(13);
/// What a member writes this long after a gateway last answered this node, and after the member first said that it
/// hears the gateway, shows that this node alone has lost it: the next question follows after 5 s, an answer counts for
/// 12 s, and a card is late by [`CARD_IS_LATE`].
pub(super) const GATEWAY_LOST: Duration = Duration::from_secs(18);
/// A card arrives this long after its time at the latest, while the API answers.
pub(super) const CARD_IS_LATE: Duration = Duration::from_secs(1);
/// A record arrives this long after it was written at the latest, while the API answers: a watch that broke lists again
/// after up to a second.
pub(super) const RECORD_IS_LATE: Duration = Duration::from_secs(2);
/// A swap without an answer is requested again after this time. With hundreds of swaps and a slow API server, the last
/// ones wait for their turn.
pub(super) const SWAP_LIMIT: Duration = Duration::from_secs(10);
/// A failure of a swap within this time is an answer of the API, or of the network in its place. A later one is the end
/// of somebody's patience.
pub(super) const SWAP_ANSWER: Duration = Duration::from_secs(1);
/// Pause between two attempts while the API server does not answer. It is short because clients wait for the address.
pub(super) const SWAP_RETRY: Duration = Duration::from_millis(50);
/// Pause after a refusal by the API server. It doubles with each refusal up to the longest, because the API server
/// refuses again until something is changed. Up to a quarter is added, so that not all Services retry at once.
pub(super) const REFUSED_RETRY: Duration = Duration::from_millis(50);
pub(super) const LONGEST_REFUSED_RETRY: Duration = Duration::from_secs(30);
/// A group that was taken and lost again is retaken after 1, 2, 4 ... times this. One that was given and came back
/// twice is given after 2 times this, then after 4 times. So two nodes which cannot serve it do not pass it back and
/// forth.
pub(super) const RETAKE: Duration = Duration::from_secs(2);
/// A take-over that lasted this long counts as successful, and so does a hand-over.
pub(super) const SETTLED: Duration = Duration::from_mins(2);
/// How long a node does not try a group again that its kernel has repeatedly refused. It doubles each time that the
/// group is refused again.
pub(super) const UNABLE_FOR: Duration = Duration::from_mins(10);
/// Grace before a missing interface is reported. Each node sees only its own interfaces, and a node that has the
/// interface may be taking the group.
pub(super) const INTERFACE_GRACE: Duration = Duration::from_secs(3);
/// Grace before obstacles are reported that usually pass: pods, kube-proxy and nodes may just be starting.
pub(super) const START_GRACE: Duration = Duration::from_secs(20);
