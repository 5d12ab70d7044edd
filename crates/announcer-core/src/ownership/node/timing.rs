//! How long everything lasts in `node` mode.

use std::time::Duration;

/// Between two questions to everybody (decisions.md 22).
pub(super) const QUESTION_GAP: Duration = Duration::from_millis(10);
/// For an answer to the last of them.
pub(super) const ANSWER_WAIT: Duration = Duration::from_millis(50);
/// How long it counts that somebody has answered, and that nobody has.
pub(super) const ANSWERED_FOR: Duration = Duration::from_secs(5);
pub(super) const SILENT_FOR: Duration = Duration::from_secs(1);
/// Whoever holds the Lease for all Services and lives renews it far more often.
pub(super) const STALLED: Duration = Duration::from_mins(1);
/// So long is served what a kube-vip has taken and does not answer for yet.
pub(super) const FOREIGN_GRACE: Duration = Duration::from_secs(2);
/// A Node has to be not ready for so long before it counts, by our own clock.
pub(super) const UNREADY_FOR: Duration = Duration::from_secs(10);
/// After many were not ready together none counts for so long: they come back one by one.
pub(super) const READY_REST: Duration = Duration::from_mins(1);
/// Between a hand-over and withdrawing, if the new owner is not heard before.
pub const HAND_OVER_LINGER: Duration = Duration::from_secs(2);
/// When all announcers start together the first one must not get everything.
pub(super) const MEMBERS_SETTLE: Duration = Duration::from_secs(3);
/// A group has to belong elsewhere for this long before it is handed back there.
pub(super) const FAIL_BACK_AFTER: Duration = Duration::from_mins(1);
/// Between two addresses that go back where they belong.
pub(super) const GIVE_BACK_PAUSE: Duration = Duration::from_secs(2);
/// So long everybody waits for the one before him to take what nobody owns: his Lease may outlive him.
pub(super) const PASS_OVER: Duration = Duration::from_secs(2);
/// How long a stranger's answers keep a node from taking an address after the Lease of its owner has run out.
pub(super) const STRANGERS_TIME: Duration = Duration::from_secs(5);
/// What an owner has written after it was silent for so long shows whom it has lost.
pub(super) const TOLD_AFTER: Duration = Duration::from_secs(13);
/// A swap without an answer is asked for again: with hundreds of them and an API that does not answer, the last ones
/// have
/// to wait for their turn.
pub(super) const SWAP_LIMIT: Duration = Duration::from_secs(10);
/// Between two attempts while the API does not answer: someone is waiting for this address.
pub(super) const SWAP_RETRY: Duration = Duration::from_millis(50);
/// What the API server refuses it refuses again, until somebody has changed something: this, doubled with each refusal
/// up
/// to the longest, and up to a quarter more so that not all Services come at once.
pub(super) const REFUSED_RETRY: Duration = Duration::from_millis(50);
pub(super) const LONGEST_REFUSED_RETRY: Duration = Duration::from_secs(30);
/// A group that was taken and went again is taken again after 1, 2, 4 ... of these: two nodes that cannot serve it must
/// not throw it at one another.
pub(super) const RETAKE: Duration = Duration::from_secs(2);
/// A take-over that lasted this long was a good one.
pub(super) const SETTLED: Duration = Duration::from_mins(2);
/// What the kernel has refused again and again is not tried again for so long: this, doubled each time that it comes to
/// nothing again.
pub(super) const UNABLE_FOR: Duration = Duration::from_mins(10);
/// Each node knows an interface only by its own kernel; meanwhile one that has it may be taking the group.
pub(super) const INTERFACE_GRACE: Duration = Duration::from_secs(3);
/// What usually passes by itself: pods, kube-proxy and nodes that are just starting are nobody's mistake.
pub(super) const START_GRACE: Duration = Duration::from_secs(20);
