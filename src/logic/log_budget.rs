//! Budget of all logs together (`picolet.maxLogBytes`): the choice of the files to remove. No kubelet has such a
//! budget.

use alloc::vec::Vec;

/// The files of one container's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerLogFiles {
    /// Sizes of the files, bytes, oldest first.
    pub files: Vec<u64>,
    /// Set if the last file is being written.
    pub is_written: bool,
}

/// Changes to one log, in the order of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogTrim {
    /// Index of the log.
    pub log: usize,
    /// Number of files to remove, oldest first.
    pub files: usize,
    /// Set if the last of them is being written: it is rotated first.
    pub rotate: bool,
}

/// Decides which files go, so that all logs together have at most `budget` bytes. The largest log gives its oldest
/// file, again and again until that is enough.
///
/// - Shape: sorted by index; a log that loses nothing is not named.
#[must_use]
pub fn plan_log_trims(logs: &[ContainerLogFiles], budget: u64) -> Vec<LogTrim> {
    let mut left: Vec<u64> = logs.iter().map(|log| sum_sizes(&log.files)).collect();
    let mut gone: Vec<usize> = logs.iter().map(|_| 0).collect();
    // Bounded: each round removes one file.
    while sum_sizes(&left) > budget {
        let largest = left
            .iter()
            .enumerate()
            .max_by_key(|(at, size)| (**size, usize::MAX - at));
        let Some((at, _)) = largest else { break };
        let Some(size) = logs[at].files.get(gone[at]) else {
            break;
        };
        left[at] -= size;
        gone[at] += 1;
    }
    let all = gone.into_iter().enumerate().filter(|(_, files)| *files > 0);
    all.map(|(log, files)| LogTrim {
        log,
        files,
        rotate: logs[log].is_written && files == logs[log].files.len(),
    })
    .collect()
}

fn sum_sizes(sizes: &[u64]) -> u64 {
    sizes.iter().fold(0, |sum, size| sum.saturating_add(*size))
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn the_largest_gives_its_oldest_first() {
        let log = |files: &[u64]| ContainerLogFiles {
            files: files.into(),
            is_written: true,
        };
        let trim = |log, files, rotate| LogTrim { log, files, rotate };
        let large = [log(&[10, 10, 10]), log(&[5, 4]), log(&[])];
        for (name, budget, want) in [
            ("all fit", 39, vec![]),
            ("one file too much", 38, vec![trim(0, 1, false)]),
            ("it still is the largest", 19, vec![trim(0, 2, false)]),
            ("what is written goes last", 9, vec![trim(0, 3, true)]),
            (
                "nothing may be left",
                0,
                vec![trim(0, 3, true), trim(1, 2, true)],
            ),
        ] {
            assert_eq!(plan_log_trims(&large, budget), want, "{name}");
        }
        let others = [log(&[10, 1]), log(&[9])];
        assert_eq!(
            plan_log_trims(&others, 5),
            [trim(0, 1, false), trim(1, 1, true)]
        );
        assert_eq!(
            plan_log_trims(&[log(&[5]), log(&[5])], 5),
            [trim(0, 1, true)],
            "the first of equals"
        );
        let ended = ContainerLogFiles {
            is_written: false,
            ..large[0].clone()
        };
        assert_eq!(plan_log_trims(&[ended], 0), [trim(0, 3, false)]);
        let huge = [log(&[u64::MAX, 1]), log(&[u64::MAX])];
        assert_eq!(plan_log_trims(&huge, 1).len(), 2);
    }
}
