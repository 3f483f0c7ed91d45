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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// What it does.
    pub(super) stage: String,
    /// Parts done (layers).
    pub(super) done: u64,
    /// Parts in all.
    pub(super) parts: u64,
    /// Bytes so far.
    pub(super) bytes: u64,
    /// Bytes in the end; 0 if nobody knows.
    pub(super) total: u64,
}

impl Step {
    /// Reads `{"stage": …, "layersDone": …, "layers": …, "bytes": …, "bytesTotal": …}`; `None` if it is something else.
    pub(super) fn read(line: &Value) -> Option<Self> {
        Some(Self {
            stage: line["stage"].as_str()?.to_owned(),
            done: line["layersDone"].as_u64()?,
            parts: line["layers"].as_u64()?,
            bytes: line["bytes"].as_u64()?,
            total: line["bytesTotal"].as_u64()?,
        })
    }

    /// How much is done, of so many cells: by bytes if it is known how many there will be.
    fn filled(&self, cells: usize) -> usize {
        let all = u64::try_from(cells).unwrap_or(0);
        let by_parts = || (self.done * all).checked_div(self.parts).unwrap_or(all);
        let filled = (self.bytes * all)
            .checked_div(self.total)
            .unwrap_or_else(by_parts);
        usize::try_from(filled).unwrap_or(cells).min(cells)
    }

    fn amount(&self) -> String {
        let bytes = human_bytes(self.bytes);
        match self.total {
            0 => bytes,
            total => format!("{bytes} of {}", human_bytes(total)),
        }
    }

    /// Whether this is worth a line of its own behind `before`: another stage, a layer more, or a tenth.
    fn is_news(&self, before: &Self) -> bool {
        (&self.stage, self.done, self.filled(10)) != (&before.stage, before.done, before.filled(10))
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
            Some(columns) => write!(io::stderr(), "\r\x1b[K{}", bar(&self.label, &step, columns)),
            None if self
                .shown
                .as_ref()
                .is_none_or(|before| step.is_news(before)) =>
            {
                writeln!(io::stderr(), "{}", words(&self.label, &step))
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

fn words(label: &str, step: &Step) -> String {
    if step.parts == 0 {
        return format!("{label}: {}", step.stage);
    }
    let (stage, amount) = (&step.stage, step.amount());
    format!(
        "{label}: {stage}, {} of {} layers, {amount}",
        step.done, step.parts
    )
}

/// One line, never wider than the terminal.
fn bar(label: &str, step: &Step, columns: usize) -> String {
    let filled = step.filled(BAR_CELLS);
    let tail = format!(
        " [{}{}] {} {}/{} layers {}",
        "#".repeat(filled),
        ".".repeat(BAR_CELLS - filled),
        step.stage,
        step.done,
        step.parts,
        step.amount()
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

    fn step(stage: &str, done: u64, bytes: u64, total: u64) -> Step {
        Step {
            stage: stage.into(),
            done,
            parts: 4,
            bytes,
            total,
        }
    }

    #[test]
    fn lines() {
        let fetching = step("fetching", 1, 15_000_000, 20_000_000);
        let unpacking = step("unpacking", 1, 12_345_678, 0);
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
            assert_eq!(words("a", step), format!("a: {text}"));
            assert_eq!(bar("a", step, 80), format!("a {drawn}"));
            for columns in 0..90 {
                let line = bar("/a/long/path/a.tar", step, columns);
                assert!(line.chars().count() < columns.max(1), "{columns}: {line}");
            }
        }
        let none = Step::default();
        assert!(
            bar("x", &none, 80).contains(&"#".repeat(BAR_CELLS)),
            "nothing to do is all done"
        );
        assert_eq!(
            words(
                "a",
                &Step {
                    stage: "resolving".into(),
                    ..none
                }
            ),
            "a: resolving"
        );
    }

    #[test]
    fn each_tenth_and_each_layer_is_news() {
        let before = step("fetching", 1, 150, 1000);
        for (after, news) in [
            (step("fetching", 1, 199, 1000), false),
            (step("fetching", 1, 200, 1000), true),
            (step("fetching", 2, 150, 1000), true),
            (step("unpacking", 1, 150, 1000), true),
        ] {
            assert_eq!(after.is_news(&before), news, "{after:?}");
        }
    }

    #[test]
    fn read_from_what_the_agent_says() {
        let progress = crate::image::Progress {
            layers_done: 1,
            layers: 4,
            bytes: 150,
            bytes_total: 1000,
            ..Default::default()
        };
        assert_eq!(
            Step::read(&progress.to_json()),
            Some(step("waiting", 1, 150, 1000))
        );
        assert_eq!(Step::read(&serde_json::json!({"imported": []})), None);
    }
}
