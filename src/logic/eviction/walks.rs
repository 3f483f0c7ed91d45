//! Rounds in which the files of pods are counted, and the rank of a pod that could not be counted (EVICT-09).
//!
//! Only a pod that is certainly large ranks before the largest counted one. A pod that was reached too late is ranked
//! by the figures that are known of it, and the next round begins with it.

use core::time::Duration;

use super::rank::PodFigures;
use crate::api::PodUid;

/// Time for all walks of one round together.
pub const MAX_WALKS: Duration = Duration::from_secs(10);
/// Time of a pod's own walk. A walk that took at least as long and was cut off makes the pod count as too large. The
/// time of the walks before it does not matter.
const TOO_LARGE_AFTER: Duration = Duration::from_secs(5);

/// Result of the walk through a pod's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WalkResult {
    /// All files were counted.
    Counted(PodFigures),
    /// The pod has more files than one walk counts.
    TooLarge,
    /// The time of the round ended before the walk did. The figures lack the pod's files.
    Cut(PodFigures),
}

/// Round of walks through the files of pods.
#[derive(Clone, Debug, Default)]
pub struct WalkRound {
    /// Last pod that had its turn in the round before, if that round did not reach all pods.
    resume_after: Option<PodUid>,
    last_walked: Option<PodUid>,
    was_cut: bool,
}

impl WalkRound {
    /// Returns true if the pod had its turn in the round before. Such a pod comes after the others. Pods are walked in
    /// the order of their UIDs.
    #[must_use]
    pub fn was_walked_last_round(&self, uid: &PodUid) -> bool {
        self.resume_after
            .as_ref()
            .is_some_and(|resume_after| uid <= resume_after)
    }

    /// Takes in that the walk of a pod ended, after the time `took`. Returns the figures by which the pod is ranked;
    /// `None`: the pod counts as the largest.
    pub fn on_walk_ended(
        &mut self,
        uid: &PodUid,
        walked: WalkResult,
        took: Duration,
    ) -> Option<PodFigures> {
        let figures = match walked {
            WalkResult::Counted(figures) => Some(figures),
            WalkResult::Cut(known) if took < TOO_LARGE_AFTER => {
                self.was_cut = true;
                return Some(known);
            }
            WalkResult::TooLarge | WalkResult::Cut(_) => None,
        };
        self.last_walked = Some(uid.clone());
        figures
    }

    /// State with which the next round begins.
    #[must_use]
    pub fn into_next_round(self) -> Self {
        Self {
            resume_after: self.last_walked.filter(|_| self.was_cut),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(processes: u64) -> PodFigures {
        PodFigures {
            processes: Some(processes),
            ..PodFigures::default()
        }
    }

    #[test]
    fn only_who_took_the_time_is_the_largest() {
        // EVICT-09
        let mut walks = WalkRound::default();
        let s = Duration::from_secs;
        for (what, walked, took, want) in [
            (
                "counted",
                WalkResult::Counted(known(1)),
                s(9),
                Some(known(1)),
            ),
            (
                "more files than are counted",
                WalkResult::TooLarge,
                s(0),
                None,
            ),
            (
                "it took half of the round",
                WalkResult::Cut(known(2)),
                s(5),
                None,
            ),
            (
                "others took it",
                WalkResult::Cut(known(3)),
                s(4),
                Some(known(3)),
            ),
            (
                "not reached",
                WalkResult::Cut(known(4)),
                s(0),
                Some(known(4)),
            ),
        ] {
            assert_eq!(
                walks.on_walk_ended(&"p".into(), walked, took),
                want,
                "{what}"
            );
        }
    }

    #[test]
    fn who_was_cut_begins_the_next_round() {
        // EVICT-09
        let s = Duration::from_secs;
        let first = |walks: &WalkRound| {
            let uids = ["a", "b", "c", "d"].map(PodUid::from);
            let first = uids.iter().find(|uid| !walks.was_walked_last_round(uid));
            first.cloned()
        };
        let mut walks = WalkRound::default();
        assert_eq!(first(&walks), Some("a".into()));
        walks.on_walk_ended(&"a".into(), WalkResult::Counted(known(1)), s(6));
        walks.on_walk_ended(&"b".into(), WalkResult::Cut(known(1)), s(4));
        walks.on_walk_ended(&"c".into(), WalkResult::Cut(known(1)), s(0));
        let mut walks = walks.into_next_round();
        assert_eq!(first(&walks), Some("b".into()));
        // A pod that takes a whole round does not hold the others up.
        walks.on_walk_ended(&"b".into(), WalkResult::Cut(known(1)), s(10));
        walks.on_walk_ended(&"c".into(), WalkResult::Cut(known(1)), s(0));
        let mut walks = walks.into_next_round();
        assert_eq!(first(&walks), Some("c".into()));
        for uid in ["c", "d", "a", "b"] {
            walks.on_walk_ended(&uid.into(), WalkResult::Counted(known(1)), s(1));
        }
        assert_eq!(
            first(&walks.into_next_round()),
            Some("a".into()),
            "all had theirs"
        );
    }
}
