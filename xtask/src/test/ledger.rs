//! `tests/long-runs.md`: when each lane of `--long` ran last. What no run shows rots unseen: every run warns of what is old.

use std::{fs, path::Path, process::Command};

use super::{LANES, Run, When};
use crate::{Failure, process::output};

const FILE: &str = "tests/long-runs.md";
/// Commits after which a run is old.
const OLD: u32 = 200;
/// In place of a commit.
const NEVER: &str = "never";
const HEAD: &str = "\
# Long runs

The last run of each lane of `cargo xtask test --long`, which writes this. Every run warns of what is older than 200 commits.

| lane | commit | date | minutes | result |
|---|---|---|---|---|
";

/// A row of the table.
#[derive(Clone, Debug, PartialEq)]
struct LongRun {
    lane: String,
    commit: String,
    date: String,
    minutes: String,
    result: String,
}

fn parse(text: &str) -> Vec<LongRun> {
    text.lines()
        .filter_map(|line| {
            let cells = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ");
            let cells: Vec<String> = cells.map(|cell| cell.trim().to_owned()).collect();
            let [lane, commit, date, minutes, result] = <[String; 5]>::try_from(cells).ok()?;
            (lane != "lane").then_some(LongRun {
                lane,
                commit,
                date,
                minutes,
                result,
            })
        })
        .collect()
}

fn print(rows: &[LongRun]) -> String {
    let mut text = HEAD.to_owned();
    for row in rows {
        let cells = [&row.lane, &row.commit, &row.date, &row.minutes, &row.result];
        text.push_str(&format!("| {} |\n", cells.map(String::as_str).join(" | ")));
    }
    text
}

/// Lanes that only run if they are asked for.
fn lanes() -> impl Iterator<Item = &'static str> {
    let long = LANES.iter().filter(|lane| lane.1 == When::Long);
    long.map(|lane| lane.0)
}

/// The row of each long lane; `told` is what the file has.
fn complete(told: &[LongRun]) -> Vec<LongRun> {
    lanes()
        .map(|lane| {
            let row = told.iter().find(|row| row.lane == lane).cloned();
            row.unwrap_or_else(|| LongRun {
                lane: lane.to_owned(),
                commit: NEVER.to_owned(),
                date: "-".to_owned(),
                minutes: "-".to_owned(),
                result: "-".to_owned(),
            })
        })
        .collect()
}

/// Writes down what long lanes this run had, if it had any.
pub(super) fn write(run: &Run) -> Result<(), Failure> {
    if lanes().all(|lane| run.outcome(lane).is_none()) {
        return Ok(());
    }
    let mut rows = complete(&parse(&fs::read_to_string(FILE)?));
    let commit = output(Command::new("git").args(["rev-parse", "--short=12", "HEAD"]))?;
    let date = output(Command::new("date").args(["-u", "+%F"]))?;
    for row in &mut rows {
        if let Some((minutes, failed)) = run.outcome(&row.lane) {
            row.commit = commit.trim().to_owned();
            row.date = date.trim().to_owned();
            row.minutes = format!("{minutes:.1}");
            row.result = if failed { "failed" } else { "passed" }.to_owned();
        }
    }
    fs::write(FILE, print(&rows))?;
    println!("{FILE} has what these lanes took: commit it");
    Ok(())
}

/// What is to be said of a row. `age` is the number of commits since it ran, if this clone knows.
fn warning(row: &LongRun, age: Option<u32>) -> Option<String> {
    let lane = &row.lane;
    match age {
        _ if row.commit == NEVER => Some(format!("lane {lane} was never run")),
        None => Some(format!(
            "lane {lane} ran last at {}, which this clone does not have",
            row.commit
        )),
        Some(age) if age > OLD => Some(format!("lane {lane} ran last {age} commits ago")),
        Some(_) if row.result != "passed" => Some(format!("lane {lane} failed when it ran last")),
        Some(_) => None,
    }
}

/// Warns of long lanes that have not run for long.
pub(super) fn warn() {
    let text = fs::read_to_string(Path::new(FILE)).unwrap_or_default();
    for row in complete(&parse(&text)) {
        let since = format!("{}..HEAD", row.commit);
        let count = output(Command::new("git").args(["rev-list", "--count", &since]));
        let age = count.ok().and_then(|text| text.trim().parse().ok());
        if let Some(warning) = warning(&row, age) {
            println!("Warning: {warning}: cargo xtask test --only '{}'", row.lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(commit: &str, result: &str) -> LongRun {
        LongRun {
            lane: "bench".into(),
            commit: commit.into(),
            date: "2026-01-02".into(),
            minutes: "7.5".into(),
            result: result.into(),
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let rows = complete(&[row("0a1b", "passed")]);
        assert_eq!(parse(&print(&rows)), rows);
        let bench = rows.iter().position(|row| row.lane == "bench").unwrap();
        assert_eq!(rows[bench], row("0a1b", "passed"));
        assert_eq!(
            rows.iter().filter(|row| row.commit == NEVER).count(),
            rows.len() - 1
        );
    }

    #[test]
    fn the_file_has_each_long_lane() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(FILE);
        let text = fs::read_to_string(file).unwrap();
        assert_eq!(print(&complete(&parse(&text))), text);
    }

    #[test]
    fn old_runs_are_warned_of() {
        for (commit, result, age, expected) in [
            ("0a", "passed", Some(0), None),
            ("0a", "passed", Some(OLD), None),
            ("0a", "passed", Some(OLD + 1), Some("201 commits ago")),
            ("0a", "passed", None, Some("does not have")),
            ("0a", "failed", Some(3), Some("failed when")),
            (NEVER, "-", None, Some("was never run")),
        ] {
            let said = warning(&row(commit, result), age);
            let holds = match (&said, expected) {
                (Some(said), Some(expected)) => said.contains(expected),
                (None, None) => true,
                _ => false,
            };
            assert!(holds, "{commit} {result} {age:?}: {said:?}");
        }
    }
}
