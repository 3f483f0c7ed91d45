//! How far a transfer is: a bar that is drawn over on a terminal, a line for each step elsewhere. On standard error, so that
//! what a command prints can be taken on.

use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;

use serde_json::Value;

use super::table::human_bytes;
use crate::sys::tty;

/// Cells of the bar.
const BAR_CELLS: usize = 20;
/// Columns of a terminal that does not tell.
const DEFAULT_COLUMNS: usize = 80;

/// What a transfer has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// Parts done (layers).
    pub(super) done: u64,
    /// Parts in all.
    pub(super) parts: u64,
    /// Bytes so far.
    pub(super) bytes: u64,
}

impl Step {
    /// Reads `{"layersDone": …, "layers": …, "bytes": …}`; `None` if it is something else.
    pub(super) fn read(line: &Value) -> Option<Self> {
        Some(Self {
            done: line["layersDone"].as_u64()?,
            parts: line["layers"].as_u64()?,
            bytes: line["bytes"].as_u64()?,
        })
    }
}

/// Where progress is shown.
pub(super) struct Progress {
    label: String,
    /// Columns of the terminal; `None` where lines are written.
    columns: Option<usize>,
    quiet: bool,
    shown: Option<Step>,
}

impl Progress {
    pub(super) fn new(label: &str, quiet: bool) -> Self {
        let stderr = io::stderr();
        let columns = stderr.is_terminal().then(|| {
            let size = tty::window_size(stderr.as_fd());
            let columns = size.map_or(0, |(columns, _)| usize::from(columns));
            if columns == 0 {
                DEFAULT_COLUMNS
            } else {
                columns
            }
        });
        Self {
            // Names come from the command line; what would move the cursor is left out.
            label: label.chars().filter(|c| !c.is_control()).collect(),
            columns,
            quiet,
            shown: None,
        }
    }

    pub(super) fn show(&mut self, step: Step) {
        if self.quiet {
            return;
        }
        // Nobody to tell is no reason to stop.
        let _ = match self.columns {
            Some(columns) => write!(io::stderr(), "\r\x1b[K{}", bar(&self.label, step, columns)),
            None if self.shown.is_none_or(|before| before.done != step.done) => {
                writeln!(io::stderr(), "{}", words(&self.label, step))
            }
            None => Ok(()),
        };
        self.shown = Some(step);
    }
}

impl Drop for Progress {
    /// What comes next begins at an empty line.
    fn drop(&mut self) {
        if self.columns.is_some() && self.shown.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn words(label: &str, step: Step) -> String {
    let bytes = human_bytes(step.bytes);
    format!("{label}: {} of {} layers, {bytes}", step.done, step.parts)
}

/// One line, never wider than the terminal.
fn bar(label: &str, step: Step, columns: usize) -> String {
    let cells = u64::try_from(BAR_CELLS).unwrap_or(0);
    let filled = (step.done * cells).checked_div(step.parts).unwrap_or(cells);
    let filled = usize::try_from(filled).unwrap_or(0).min(BAR_CELLS);
    let tail = format!(
        " [{}{}] {}/{} layers {}",
        "#".repeat(filled),
        ".".repeat(BAR_CELLS - filled),
        step.done,
        step.parts,
        human_bytes(step.bytes)
    );
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

    #[test]
    fn lines() {
        let step = Step {
            done: 1,
            parts: 4,
            bytes: 12_345_678,
        };
        assert_eq!(words("a.tar", step), "a.tar: 1 of 4 layers, 12.3MB");
        assert_eq!(
            bar("a.tar", step, 80),
            "a.tar [#####...............] 1/4 layers 12.3MB"
        );
        for columns in 0..90 {
            let line = bar("/a/long/path/a.tar", step, columns);
            assert!(line.chars().count() < columns.max(1), "{columns}: {line}");
        }
        let none = Step::default();
        assert!(
            bar("x", none, 80).contains(&"#".repeat(BAR_CELLS)),
            "nothing to do is all done"
        );
        let line = serde_json::json!({"layersDone": 1, "layers": 4, "bytes": 12_345_678});
        assert_eq!(Step::read(&line), Some(step));
        assert_eq!(Step::read(&serde_json::json!({"imported": []})), None);
    }
}
