//! Pods that wait until their Node was read once more (ADM-08, ADM-10).
//!
//! ```text
//!  hold ──▶ Waiting ──poll_read──▶ Asked ──answered──▶ Answered ──poll_ready──▶ Told ──take──▶ judged for the last time
//!              ▲                     │ no answer                                  ▲
//!              └─────────────────────┘       Waiting, Asked: waited long enough ──┘
//! ```
//!
//! All that wait when a read begins share it. A pod that comes while one is under way waits for the next: the answer may be
//! older than what the scheduler went by.

use alloc::vec::Vec;
use core::time::Duration;

use crate::api::{Mono, PodUid};

/// Time from a read to the next one.
const GAP: Duration = Duration::from_secs(1);
/// The same, after one that brought no answer.
const RETRY: Duration = Duration::from_secs(10);
/// So long a pod waits for an answer, as for a device (DEV-07): a refusal cannot be taken back. What nobody can answer ends all
/// the same, so that its owner can make another one elsewhere.
const WAIT: Duration = Duration::from_secs(120);
/// Pods that wait at a time. More are judged by what is known.
const MAX_WAITING: usize = 128;

/// Pods that wait for a read of the Node, and the read. One in an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rereads {
    /// In the order in which they came, at most [`MAX_WAITING`].
    pods: Vec<Wait>,
    /// A read is under way.
    reading: bool,
    /// The next one does not begin before this.
    not_before: Mono,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Wait {
    uid: PodUid,
    until: Mono,
    turn: Turn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// For the next read.
    Waiting,
    /// For the one that is under way.
    Asked,
    /// That brought an answer.
    Answered,
    /// Whoever asks was told: it is about to be judged.
    Told,
}

impl Rereads {
    /// The pod waits. Returns whether there is room for it.
    #[must_use]
    pub fn hold(&mut self, uid: &PodUid, now: Mono) -> bool {
        let has_room = self.pods.len() < MAX_WAITING;
        if has_room {
            self.pods.push(Wait {
                uid: uid.clone(),
                until: now + WAIT,
                turn: Turn::Waiting,
            });
        }
        has_room
    }

    /// Whether the pod is not to be judged yet.
    #[must_use]
    pub fn is_waiting(&self, uid: &PodUid) -> bool {
        let mut all = self.pods.iter();
        all.any(|wait| wait.uid == *uid && wait.turn != Turn::Told)
    }

    /// Whether the pod waits, or is about to be judged.
    #[must_use]
    pub fn holds(&self, uid: &PodUid) -> bool {
        self.pods.iter().any(|wait| wait.uid == *uid)
    }

    /// Whether the Node is to be read now, for all that wait; ends with [`Rereads::answered`].
    #[must_use]
    pub fn poll_read(&mut self, now: Mono) -> bool {
        let is_due = self.next_read().is_some_and(|due| due <= now);
        if is_due {
            self.reading = true;
            self.turn(Turn::Waiting, Turn::Asked);
        }
        is_due
    }

    /// The read is over. `came`: the Node is known as it is.
    pub fn answered(&mut self, came: bool, now: Mono) {
        let (then, pause) = match came {
            true => (Turn::Answered, GAP),
            false => (Turn::Waiting, RETRY),
        };
        self.reading = false;
        self.not_before = now + pause;
        self.turn(Turn::Asked, then);
    }

    /// A pod that is to be judged now, by what is known: its answer came, or was waited for long enough. Each is told once.
    pub fn poll_ready(&mut self, now: Mono) -> Option<PodUid> {
        let is_ready = |wait: &Wait| wait.turn == Turn::Answered || wait.until <= now;
        let mut all = self.pods.iter_mut();
        let wait = all.find(|wait| wait.turn != Turn::Told && is_ready(wait))?;
        wait.turn = Turn::Told;
        Some(wait.uid.clone())
    }

    /// The pod is judged now, or goes. Returns whether it was held back.
    pub fn take(&mut self, uid: &PodUid) -> bool {
        let before = self.pods.len();
        self.pods.retain(|wait| wait.uid != *uid);
        self.pods.len() < before
    }

    /// When there is something to do.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Mono> {
        let waits = self.pods.iter().filter(|wait| wait.turn != Turn::Told);
        let patience = waits.map(|wait| wait.until).min();
        [patience, self.next_read()].into_iter().flatten().min()
    }

    fn next_read(&self) -> Option<Mono> {
        let waits = self.pods.iter().any(|wait| wait.turn == Turn::Waiting);
        (waits && !self.reading).then_some(self.not_before)
    }

    fn turn(&mut self, from: Turn, to: Turn) {
        let all = self.pods.iter_mut().filter(|wait| wait.turn == from);
        all.for_each(|wait| wait.turn = to);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    const NOW: Mono = Mono(5_000);

    fn uid(text: &str) -> PodUid {
        text.into()
    }

    fn holding(uids: &[&str]) -> Rereads {
        let mut rereads = Rereads::default();
        for text in uids {
            assert!(rereads.hold(&uid(text), NOW));
        }
        rereads
    }

    fn ready(rereads: &mut Rereads, now: Mono) -> Vec<PodUid> {
        core::iter::from_fn(|| rereads.poll_ready(now)).collect()
    }

    #[test]
    fn all_that_wait_share_a_read_and_who_comes_later_gets_another() {
        // ADM-08
        let mut rereads = holding(&["a", "b"]);
        assert_eq!(rereads.next_timeout(), Some(Mono(0)));
        assert!(rereads.poll_read(NOW));
        assert!(rereads.hold(&uid("late"), NOW));
        assert!(!rereads.poll_read(NOW), "one at a time");
        assert!(ready(&mut rereads, NOW).is_empty());
        rereads.answered(true, NOW);
        assert_eq!(ready(&mut rereads, NOW), [uid("a"), uid("b")]);
        assert!(ready(&mut rereads, NOW).is_empty(), "each once");
        assert!(rereads.holds(&uid("a")) && !rereads.is_waiting(&uid("a")));
        assert!(rereads.is_waiting(&uid("late")));
        assert!(rereads.take(&uid("a")) && !rereads.take(&uid("a")));
        assert!(!rereads.poll_read(NOW), "not at once");
        assert_eq!(rereads.next_timeout(), Some(NOW + GAP));
        assert!(rereads.poll_read(NOW + GAP));
        rereads.answered(true, NOW + GAP);
        assert_eq!(ready(&mut rereads, NOW + GAP), [uid("late")]);
        assert_eq!(rereads.next_timeout(), None);
    }

    #[test]
    fn no_answer_is_asked_for_again_for_a_while() {
        // ADM-08
        let mut rereads = holding(&["a"]);
        assert!(rereads.poll_read(NOW));
        rereads.answered(false, NOW);
        assert!(ready(&mut rereads, NOW).is_empty());
        assert_eq!(rereads.next_timeout(), Some(NOW + RETRY));
        assert!(!rereads.poll_read(NOW) && rereads.poll_read(NOW + RETRY));
        // Nothing comes of this one.
        let end = NOW + WAIT;
        assert_eq!(rereads.next_timeout(), Some(end));
        assert!(ready(&mut rereads, Mono(end.0 - 1)).is_empty());
        assert_eq!(ready(&mut rereads, end), [uid("a")]);
        assert_eq!(rereads.next_timeout(), None);
    }

    #[test]
    fn so_many_wait_and_no_more() {
        // ADM-08
        let mut rereads = Rereads::default();
        let all = vec![uid("x"); MAX_WAITING];
        assert!(all.iter().all(|uid| rereads.hold(uid, NOW)));
        assert!(!rereads.hold(&uid("y"), NOW) && !rereads.holds(&uid("y")));
    }
}
