//! Pods that wait until their Node was read once more (ADM-08, ADM-10).
//!
//! ```text
//!  hold ──▶ Waiting ──poll_read──▶ Asked ──answered──▶ Answered ──poll_ready──▶ Told ──take──▶ judged for the last time
//!              ▲                     │ no answer                                  ▲
//!              └─────────────────────┘       Waiting, Asked: waited long enough ──┘
//! ```
//!
//! All pods that wait when a read begins share it. A pod that comes while a read is under way waits for the next one:
//! the answer of this one may be older than the Node that the scheduler saw.

use alloc::vec::Vec;
use core::time::Duration;

use crate::api::{MonoTime, PodUid};

/// Time from a read to the next one.
const GAP: Duration = Duration::from_secs(1);
/// Time to the next read after one without an answer.
const RETRY: Duration = Duration::from_secs(10);
/// Longest wait of a pod for an answer, as for a device (DEV-07): a refusal cannot be taken back. The wait ends even
/// without an answer, so that the pod's owner can make another one elsewhere.
const WAIT: Duration = Duration::from_secs(120);
/// Most pods that wait at a time. Further ones are judged by the Node as it is known.
const MAX_WAITING: usize = 128;

/// Pods that wait for a read of the Node, and the read. One in an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRereads {
    /// In the order in which they came, at most [`MAX_WAITING`].
    pods: Vec<RereadWait>,
    /// A read is under way.
    reading: bool,
    /// Earliest begin of the next read.
    not_before: MonoTime,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct RereadWait {
    uid: PodUid,
    until: MonoTime,
    turn: RereadStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RereadStage {
    /// The pod waits for the next read.
    Waiting,
    /// The pod waits for the read under way.
    Asked,
    /// The read brought an answer.
    Answered,
    /// [`NodeRereads::poll_ready_pod`] has returned the pod: it is about to be judged.
    Told,
}

impl NodeRereads {
    /// Makes the pod wait. Returns true if there is room for it.
    #[must_use]
    pub fn hold_back(&mut self, uid: &PodUid, now: MonoTime) -> bool {
        let has_room = self.pods.len() < MAX_WAITING;
        if has_room {
            self.pods.push(RereadWait {
                uid: uid.clone(),
                until: now + WAIT,
                turn: RereadStage::Waiting,
            });
        }
        has_room
    }

    /// Returns true if the pod is not to be judged yet.
    #[must_use]
    pub fn is_waiting(&self, uid: &PodUid) -> bool {
        let mut all = self.pods.iter();
        all.any(|wait| wait.uid == *uid && wait.turn != RereadStage::Told)
    }

    /// Returns true if the pod waits, or is about to be judged.
    #[must_use]
    pub fn is_held_back(&self, uid: &PodUid) -> bool {
        self.pods.iter().any(|wait| wait.uid == *uid)
    }

    /// Returns true if the Node is to be read now, for all waiting pods; ends with [`NodeRereads::record_node_read`].
    #[must_use]
    pub fn poll_node_read(&mut self, now: MonoTime) -> bool {
        let is_due = self.next_read().is_some_and(|due| due <= now);
        if is_due {
            self.reading = true;
            self.change_stages(RereadStage::Waiting, RereadStage::Asked);
        }
        is_due
    }

    /// Ends the read. `came`: it brought the Node.
    pub fn record_node_read(&mut self, came: bool, now: MonoTime) {
        let (then, pause) = match came {
            true => (RereadStage::Answered, GAP),
            false => (RereadStage::Waiting, RETRY),
        };
        self.reading = false;
        self.not_before = now + pause;
        self.change_stages(RereadStage::Asked, then);
    }

    /// Returns a pod that is to be judged now, by the Node as it is known: the answer came, or the wait is over. Each
    /// pod is returned once.
    pub fn poll_ready_pod(&mut self, now: MonoTime) -> Option<PodUid> {
        let is_ready = |wait: &RereadWait| wait.turn == RereadStage::Answered || wait.until <= now;
        let mut all = self.pods.iter_mut();
        let wait = all.find(|wait| wait.turn != RereadStage::Told && is_ready(wait))?;
        wait.turn = RereadStage::Told;
        Some(wait.uid.clone())
    }

    /// Releases the pod, which is judged now, or goes. Returns true if it was held back.
    pub fn release_pod(&mut self, uid: &PodUid) -> bool {
        let before = self.pods.len();
        self.pods.retain(|wait| wait.uid != *uid);
        self.pods.len() < before
    }

    /// Earliest time at which a read begins or a wait ends.
    #[must_use]
    pub fn next_timeout(&self) -> Option<MonoTime> {
        let waits = self
            .pods
            .iter()
            .filter(|wait| wait.turn != RereadStage::Told);
        let patience = waits.map(|wait| wait.until).min();
        [patience, self.next_read()].into_iter().flatten().min()
    }

    fn next_read(&self) -> Option<MonoTime> {
        let waits = self
            .pods
            .iter()
            .any(|wait| wait.turn == RereadStage::Waiting);
        (waits && !self.reading).then_some(self.not_before)
    }

    fn change_stages(&mut self, from: RereadStage, to: RereadStage) {
        let all = self.pods.iter_mut().filter(|wait| wait.turn == from);
        all.for_each(|wait| wait.turn = to);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    const NOW: MonoTime = MonoTime(5_000);

    fn uid(text: &str) -> PodUid {
        text.into()
    }

    fn holding(uids: &[&str]) -> NodeRereads {
        let mut rereads = NodeRereads::default();
        for text in uids {
            assert!(rereads.hold_back(&uid(text), NOW));
        }
        rereads
    }

    fn ready(rereads: &mut NodeRereads, now: MonoTime) -> Vec<PodUid> {
        core::iter::from_fn(|| rereads.poll_ready_pod(now)).collect()
    }

    #[test]
    fn all_that_wait_share_a_read_and_who_comes_later_gets_another() {
        // ADM-08
        let mut rereads = holding(&["a", "b"]);
        assert_eq!(rereads.next_timeout(), Some(MonoTime(0)));
        assert!(rereads.poll_node_read(NOW));
        assert!(rereads.hold_back(&uid("late"), NOW));
        assert!(!rereads.poll_node_read(NOW), "one at a time");
        assert!(ready(&mut rereads, NOW).is_empty());
        rereads.record_node_read(true, NOW);
        assert_eq!(ready(&mut rereads, NOW), [uid("a"), uid("b")]);
        assert!(ready(&mut rereads, NOW).is_empty(), "each once");
        assert!(rereads.is_held_back(&uid("a")) && !rereads.is_waiting(&uid("a")));
        assert!(rereads.is_waiting(&uid("late")));
        assert!(rereads.release_pod(&uid("a")) && !rereads.release_pod(&uid("a")));
        assert!(!rereads.poll_node_read(NOW), "not at once");
        assert_eq!(rereads.next_timeout(), Some(NOW + GAP));
        assert!(rereads.poll_node_read(NOW + GAP));
        rereads.record_node_read(true, NOW + GAP);
        assert_eq!(ready(&mut rereads, NOW + GAP), [uid("late")]);
        assert_eq!(rereads.next_timeout(), None);
    }

    #[test]
    fn no_answer_is_asked_for_again_for_a_while() {
        // ADM-08
        let mut rereads = holding(&["a"]);
        assert!(rereads.poll_node_read(NOW));
        rereads.record_node_read(false, NOW);
        assert!(ready(&mut rereads, NOW).is_empty());
        assert_eq!(rereads.next_timeout(), Some(NOW + RETRY));
        assert!(!rereads.poll_node_read(NOW) && rereads.poll_node_read(NOW + RETRY));
        // The answer to this read does not come.
        let end = NOW + WAIT;
        assert_eq!(rereads.next_timeout(), Some(end));
        assert!(ready(&mut rereads, MonoTime(end.0 - 1)).is_empty());
        assert_eq!(ready(&mut rereads, end), [uid("a")]);
        assert_eq!(rereads.next_timeout(), None);
    }

    #[test]
    fn so_many_wait_and_no_more() {
        // ADM-08
        let mut rereads = NodeRereads::default();
        let all = vec![uid("x"); MAX_WAITING];
        assert!(all.iter().all(|uid| rereads.hold_back(uid, NOW)));
        assert!(!rereads.hold_back(&uid("y"), NOW) && !rereads.is_held_back(&uid("y")));
    }
}
