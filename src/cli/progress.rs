//! Progress of a transfer: a bar that is drawn over on a terminal, a line for each step elsewhere. It goes to standard
//! error, so that programs can read the output of a command.

use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};

use crate::api::quantity::human_bytes;
use crate::image::ImageProgress as Step;
use crate::sys::tty;

/// Cells of the bar.
const BAR_CELLS: usize = 20;
/// Columns of a terminal whose size is unknown.
const DEFAULT_COLUMNS: usize = 80;

/// Rows of a terminal whose size is unknown.
const DEFAULT_ROWS: usize = 24;

/// Progress of a transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TransferProgress {
    /// Present activity, in a few words.
    pub(crate) stage: String,
    /// Parts that are done.
    pub(crate) done: u64,
    /// All parts; 0 while unknown.
    pub(crate) all: u64,
    /// Name of the parts.
    pub(crate) parts: &'static str,
    /// Bytes so far and in the end (0: unknown); `None` where bytes do not count.
    pub(crate) bytes: Option<(u64, u64)>,
}

impl From<Step> for TransferProgress {
    fn from(step: Step) -> Self {
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        Self {
            stage: step.stage_text(),
            done: count(step.layers_done),
            all: count(step.layers),
            parts: "layers",
            bytes: Some((step.bytes, step.bytes_total)),
        }
    }
}

/// Number of the `cells` of a bar that are filled: by bytes if their total is known, else by parts.
fn filled_cells(shown: &TransferProgress, cells: usize) -> usize {
    let all = u64::try_from(cells).unwrap_or(0);
    let by_parts = || shown.done.saturating_mul(all).checked_div(shown.all);
    let of_bytes = |(bytes, total): (u64, u64)| bytes.saturating_mul(all).checked_div(total);
    let filled = shown.bytes.and_then(of_bytes).or_else(by_parts);
    usize::try_from(filled.unwrap_or(all))
        .unwrap_or(cells)
        .min(cells)
}

/// Formats the bytes, behind a gap.
fn bytes_text(shown: &TransferProgress, gap: &str) -> String {
    match shown.bytes {
        None => String::new(),
        Some((bytes, 0)) => format!("{gap}{}", human_bytes(bytes)),
        Some((bytes, total)) => format!("{gap}{} of {}", human_bytes(bytes), human_bytes(total)),
    }
}

/// Returns true if a step is worth a line of its own behind `before`: another stage, a layer more, or a tenth.
fn is_worth_a_line(shown: &TransferProgress, before: &TransferProgress) -> bool {
    // Layers are few, and each is news. Other parts are many.
    let parts = |shown: &TransferProgress| shown.bytes.map(|_| shown.done);
    let counts = |shown: &TransferProgress| (parts(shown), filled_cells(shown, 10));
    shown.stage != before.stage || counts(shown) != counts(before)
}

/// Columns and rows of the terminal behind standard output.
pub(crate) fn terminal_size() -> (usize, usize) {
    terminal_size_of(io::stdout().as_fd())
}

fn terminal_size_of(fd: BorrowedFd<'_>) -> (usize, usize) {
    let (columns, rows) = tty::window_size(fd).unwrap_or_default();
    let or = |n: u16, default: usize| Some(n.into()).filter(|n| *n > 0).unwrap_or(default);
    (or(columns, DEFAULT_COLUMNS), or(rows, DEFAULT_ROWS))
}

/// Display of progress on standard error.
pub(crate) struct ProgressDisplay {
    label: String,
    /// Columns of the terminal; `None` if lines are written.
    columns: Option<usize>,
    quiet: bool,
    shown: Option<TransferProgress>,
}

impl ProgressDisplay {
    pub(crate) fn new(label: &str, quiet: bool) -> Self {
        let stderr = io::stderr();
        let columns = stderr
            .is_terminal()
            .then(|| terminal_size_of(stderr.as_fd()).0);
        Self {
            // Names come from the command line: characters that would move the cursor are left out.
            label: label.chars().filter(|c| !c.is_control()).collect(),
            columns,
            quiet,
            shown: None,
        }
    }

    pub(crate) fn show_step(&mut self, step: impl Into<TransferProgress>) {
        self.draw_step(step.into());
    }

    fn draw_step(&mut self, step: TransferProgress) {
        if self.quiet {
            return;
        }
        // A closed standard error is no reason to stop.
        let _ = match self.columns {
            Some(columns) => write!(
                io::stderr(),
                "\r\x1b[K{}",
                progress_bar(&self.label, &step, columns)
            ),
            None if self
                .shown
                .as_ref()
                .is_none_or(|before| is_worth_a_line(&step, before)) =>
            {
                writeln!(io::stderr(), "{}", progress_line(&self.label, &step))
            }
            None => Ok(()),
        };
        self.shown = Some(step);
    }
}

impl Drop for ProgressDisplay {
    /// Clears the bar, so that the next output begins at an empty line.
    fn drop(&mut self) {
        if self.columns.is_some() && self.shown.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn progress_line(label: &str, shown: &TransferProgress) -> String {
    let TransferProgress {
        stage,
        done,
        all,
        parts,
        ..
    } = shown;
    match all {
        0 => format!("{label}: {stage}"),
        _ => format!(
            "{label}: {stage}, {done} of {all} {parts}{}",
            bytes_text(shown, ", ")
        ),
    }
}

/// Makes a bar of one line, never wider than the terminal.
fn progress_bar(label: &str, shown: &TransferProgress, columns: usize) -> String {
    let filled = filled_cells(shown, BAR_CELLS);
    let TransferProgress {
        stage,
        done,
        all,
        parts,
        ..
    } = shown;
    let tail = match all {
        0 => format!(": {stage}"),
        _ => format!(
            " [{}{}] {stage} {done}/{all} {parts}{}",
            "#".repeat(filled),
            ".".repeat(BAR_CELLS - filled),
            bytes_text(shown, " ")
        ),
    };
    // The last column stays free: some terminals go on to the next line there.
    let room = columns.saturating_sub(1);
    let label: String = label
        .chars()
        .take(room.saturating_sub(tail.len()))
        .collect();
    let line = label + &tail;
    line.chars().take(room).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::progress::ImageStage;

    fn step(
        stage: ImageStage,
        layers_done: usize,
        bytes: u64,
        bytes_total: u64,
    ) -> TransferProgress {
        let step = Step {
            stage,
            layers_done,
            layers: 4,
            bytes,
            bytes_total,
            host: String::new(),
        };
        step.into()
    }

    #[test]
    fn lines() {
        let fetching = step(ImageStage::Fetching, 1, 15_000_000, 20_000_000);
        let unpacking = step(ImageStage::Unpacking, 1, 12_345_678, 0);
        for (step, text, drawn) in [
            (
                &fetching,
                "fetching, 1 of 4 layers, 15.0MB of 20.0MB",
                "[###############.....] fetching 1/4 layers 15.0MB of 20.0MB",
            ),
            (
                &unpacking,
                "unpacking, 1 of 4 layers, 12.3MB",
                "[#####...............] unpacking 1/4 layers 12.3MB",
            ),
        ] {
            assert_eq!(progress_line("a", step), format!("a: {text}"));
            assert_eq!(progress_bar("a", step, 80), format!("a {drawn}"));
            for columns in 0..90 {
                let line = progress_bar("/a/long/path/a.tar", step, columns);
                assert!(line.chars().count() < columns.max(1), "{columns}: {line}");
            }
        }
        // IMG-28
        let waiting = TransferProgress::from(Step::default());
        assert_eq!(progress_line("a", &waiting), "a: waiting");
        let resolving = TransferProgress::from(Step {
            stage: ImageStage::Resolving,
            host: "mirror.example:5000".into(),
            ..Step::default()
        });
        for text in [
            progress_line("a", &resolving),
            progress_bar("a", &resolving, 80),
        ] {
            assert_eq!(text, "a: resolving at mirror.example:5000");
        }
        assert_eq!(progress_bar("a", &resolving, 20), ": resolving at mirr");
        let pods = ending(3);
        assert_eq!(progress_line("stop", &pods), "stop: ending, 3 of 40 pods");
        assert_eq!(
            progress_bar("stop", &pods, 80),
            "stop [#...................] ending 3/40 pods"
        );
    }

    fn ending(done: u64) -> TransferProgress {
        TransferProgress {
            stage: "ending".into(),
            done,
            all: 40,
            parts: "pods",
            bytes: None,
        }
    }

    #[test]
    fn each_tenth_and_each_layer_is_news() {
        let before = step(ImageStage::Fetching, 1, 150, 1000);
        for (after, news) in [
            (step(ImageStage::Fetching, 1, 199, 1000), false),
            (step(ImageStage::Fetching, 1, 200, 1000), true),
            (step(ImageStage::Fetching, 2, 150, 1000), true),
            (step(ImageStage::Unpacking, 1, 150, 1000), true),
        ] {
            assert_eq!(is_worth_a_line(&after, &before), news, "{after:?}");
        }
        let asked = |host: &str| {
            TransferProgress::from(Step {
                stage: ImageStage::Resolving,
                host: host.into(),
                ..Step::default()
            })
        };
        assert!(is_worth_a_line(&asked("b"), &asked("a")), "another server");
        assert!(!is_worth_a_line(&asked("b"), &asked("b")));
        assert!(!is_worth_a_line(&ending(1), &ending(3)), "many parts");
        assert!(is_worth_a_line(&ending(4), &ending(3)), "a tenth of them");
    }
}
