//! `tests/skipped.md`: what is skipped, and why. Whatever else is skipped fails a run.

use std::{fs, path::Path};

use crate::Failure;

/// A lane in the table that stands for all.
const EVERY: &str = "every";

pub(crate) struct List {
    pub(crate) rows: Vec<Row>,
}

/// A row of the table.
#[derive(Debug, PartialEq)]
pub(crate) struct Row {
    /// What the line begins with that says so, or a test's whole name.
    pub(crate) what: String,
    /// The lane that skips it.
    pub(crate) lane: String,
    pub(crate) why: String,
    /// Where it does run.
    pub(crate) runs: String,
}

impl List {
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Self::parse(&text).map_err(|e| format!("{}: {e}", path.display()).into())
    }

    /// Rows of all tables in `text`.
    fn parse(text: &str) -> Result<Self, Failure> {
        let lines = text.lines().filter_map(|line| line.strip_prefix("| "));
        let mut rows = Vec::new();
        for line in lines {
            let line = line.trim_end();
            let cells = line.strip_suffix('|').unwrap_or(line).split('|');
            let cells: Vec<_> = cells.map(str::trim).collect();
            let [what, lane, why, runs] = cells[..] else {
                return Err(format!("four cells are wanted: {line}").into());
            };
            // The head has no backquotes.
            let Some(what) = what
                .strip_prefix('`')
                .and_then(|what| what.strip_suffix('`'))
            else {
                continue;
            };
            rows.push(Row {
                what: what.to_owned(),
                lane: lane.to_owned(),
                why: why.to_owned(),
                runs: runs.to_owned(),
            });
        }
        Ok(Self { rows })
    }

    /// Whether `lane` may skip `what`.
    pub(super) fn has(&self, lane: &str, what: &str) -> bool {
        let begins = |row: &Row| {
            let rest = what.strip_prefix(&*row.what);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([':', ' ']))
        };
        self.of(lane).any(begins)
    }

    /// Rows of one lane, and of every.
    pub(crate) fn of(&self, lane: &str) -> impl Iterator<Item = &Row> {
        self.rows
            .iter()
            .filter(move |row| row.lane == lane || row.lane == EVERY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows() {
        let text = "Words.\n\n| what | lane | why | runs in |\n|---|---|---|---|\n\
                    | `a::b` | tests | long | long tests |\n| `no disk` | every | none | |\n";
        let list = List::parse(text).unwrap();
        assert_eq!(list.rows.len(), 2);
        assert!(list.has("tests", "a::b"));
        assert!(!list.has("fuzz", "a::b"));
        assert!(list.has("fuzz", "no disk: none"));
        assert!(list.has("fuzz", "no disk"));
        assert!(!list.has("fuzz", "no diskette"));
        List::parse("| `a` | b |\n").err().expect("two cells");
    }
}
