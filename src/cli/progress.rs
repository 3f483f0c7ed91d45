//! How far a transfer is: a bar that is drawn over on a terminal, a line for each step elsewhere. On standard error, so that
//! what a command prints can be taken on.

use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;

use super::table::human_bytes;
use crate::image::Progress as Step;
use crate::sys::tty;

/// Cells of the bar.
const BAR_CELLS: usize = 20;
/// Columns of a terminal that does not tell.
const DEFAULT_COLUMNS: usize = 80;

/// How much is done, of so many cells: by bytes if it is known how many there will be.
fn filled(step: &Step, cells: usize) -> usize {
    let all = u64::try_from(cells).unwrap_or(0);
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let by_parts = || (count(step.layers_done) * all).checked_div(count(step.layers));
    let by_bytes = (step.bytes * all).checked_div(step.bytes_total);
    let filled = by_bytes.or_else(by_parts).unwrap_or(all);
    usize::try_from(filled).unwrap_or(cells).min(cells)
}

fn amount(step: &Step) -> String {
    let bytes = human_bytes(step.bytes);
    match step.bytes_total {
        0 => bytes,
        total => format!("{bytes} of {}", human_bytes(total)),
    }
}

/// Whether a step is worth a line of its own behind `before`: another stage, a layer more, or a tenth.
fn is_news(step: &Step, before: &Step) -> bool {
    let of = |step: &Step| (step.stage, step.layers_done, filled(step, 10));
    of(step) != of(before)
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
                .is_none_or(|before| is_news(&step, before)) =>
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
    let stage = step.stage.word();
    if step.layers == 0 {
        return format!("{label}: {stage}");
    }
    format!(
        "{label}: {stage}, {} of {} layers, {}",
        step.layers_done,
        step.layers,
        amount(step)
    )
}

/// One line, never wider than the terminal.
fn bar(label: &str, step: &Step, columns: usize) -> String {
    let filled = filled(step, BAR_CELLS);
    let tail = format!(
        " [{}{}] {} {}/{} layers {}",
        "#".repeat(filled),
        ".".repeat(BAR_CELLS - filled),
        step.stage.word(),
        step.layers_done,
        step.layers,
        amount(step)
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
    use crate::image::progress::Stage;

    fn step(stage: Stage, layers_done: usize, bytes: u64, bytes_total: u64) -> Step {
        Step {
            stage,
            layers_done,
            layers: 4,
            bytes,
            bytes_total,
        }
    }

    #[test]
    fn lines() {
        let fetching = step(Stage::Fetching, 1, 15_000_000, 20_000_000);
        let unpacking = step(Stage::Unpacking, 1, 12_345_678, 0);
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
                    stage: Stage::Resolving,
                    ..none
                }
            ),
            "a: resolving"
        );
    }

    #[test]
    fn each_tenth_and_each_layer_is_news() {
        let before = step(Stage::Fetching, 1, 150, 1000);
        for (after, news) in [
            (step(Stage::Fetching, 1, 199, 1000), false),
            (step(Stage::Fetching, 1, 200, 1000), true),
            (step(Stage::Fetching, 2, 150, 1000), true),
            (step(Stage::Unpacking, 1, 150, 1000), true),
        ] {
            assert_eq!(is_news(&after, &before), news, "{after:?}");
        }
    }
}
