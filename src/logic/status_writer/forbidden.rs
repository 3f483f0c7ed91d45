//! Detection that this node may not write statuses at all (SM-05).

use super::WriteAnswer;

/// Number of refusals in a row that are reported: a single one may concern a pod that is another node's by now.
const IN_A_ROW: u32 = 3;

/// Refusals with 403 in a row, over all pods.
#[derive(Clone, Debug, Default)]
pub struct ForbiddenWrites(u32);

/// Change of the right to write statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteRightChange {
    /// Statuses are no longer accepted.
    Refused,
    /// Statuses are accepted again.
    TakenAgain,
}

impl ForbiddenWrites {
    /// Takes in the answer to the write of a status. Each change is returned once.
    pub fn take_write_answer(&mut self, word: WriteAnswer) -> Option<WriteRightChange> {
        match word {
            WriteAnswer::Forbidden => {
                self.0 = self.0.saturating_add(1);
                (self.0 == IN_A_ROW).then_some(WriteRightChange::Refused)
            }
            WriteAnswer::Done => {
                let was_told = core::mem::take(&mut self.0) >= IN_A_ROW;
                was_told.then_some(WriteRightChange::TakenAgain)
            }
            // These answers say nothing about rights.
            WriteAnswer::Gone
            | WriteAnswer::Conflict
            | WriteAnswer::Refused
            | WriteAnswer::Busy
            | WriteAnswer::Failed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_turn_is_told_once() {
        // SM-05
        use WriteAnswer::{Busy, Done, Forbidden as No};
        let mut forbidden = ForbiddenWrites::default();
        for (at, (word, told)) in [
            (No, None),
            (No, None),
            (Done, None),
            (No, None),
            (No, None),
            (Busy, None),
            (No, Some(WriteRightChange::Refused)),
            (No, None),
            (No, None),
            (Done, Some(WriteRightChange::TakenAgain)),
            (Done, None),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(forbidden.take_write_answer(word), told, "{at}");
        }
    }
}
