//! The table of figures, each beside what bare programs take and beside its aim.

use std::time::Duration;

/// Figures as they are measured; printed at the end.
#[derive(Default)]
pub(super) struct Table {
    rows: Vec<Row>,
}

struct Row {
    what: String,
    ours: String,
    theirs: String,
    aim: String,
    held: Option<bool>,
}

impl Table {
    /// A figure without an aim or a counterpart.
    pub(super) fn show(&mut self, what: impl Into<String>, ours: impl Into<String>) {
        self.row(what.into(), ours.into(), String::new(), String::new(), None);
    }

    /// A figure that may be at most `aim`.
    pub(super) fn at_most(&mut self, what: impl Into<String>, ours: f64, aim: f64, unit: &str) {
        self.row(
            what.into(),
            format!("{} {unit}", short(ours)),
            String::new(),
            format!("≤ {} {unit}", short(aim)),
            Some(ours <= aim),
        );
    }

    /// A time that may be at most `factor` times the bare one.
    pub(super) fn beside(
        &mut self,
        what: impl Into<String>,
        ours: Duration,
        theirs: Duration,
        factor: f64,
    ) {
        let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
        self.row(
            what.into(),
            format!("{} ms, {ratio:.2} ×", short(ms(ours))),
            format!("{} ms", short(ms(theirs))),
            format!("≤ {factor} × bare"),
            Some(ratio <= factor),
        );
    }

    /// A count that must be just `expected`.
    pub(super) fn row_of_count(&mut self, what: &str, found: usize, expected: usize) {
        self.row(
            what.into(),
            found.to_string(),
            String::new(),
            format!("= {expected}"),
            Some(found == expected),
        );
    }

    fn row(&mut self, what: String, ours: String, theirs: String, aim: String, held: Option<bool>) {
        self.rows.push(Row {
            what,
            ours,
            theirs,
            aim,
            held,
        });
    }

    pub(super) fn print(&self) {
        println!(
            "\n{:<50} {:>18} {:>12} {:>14}",
            "", "picolet", "bare", "aim"
        );
        for row in &self.rows {
            let verdict = match row.held {
                Some(true) => "held",
                Some(false) => "MISSED",
                None => "",
            };
            println!(
                "{:<50} {:>18} {:>12} {:>14}  {verdict}",
                row.what, row.ours, row.theirs, row.aim
            );
        }
    }

    /// What misses its aim.
    pub(super) fn missed(&self) -> Vec<&str> {
        self.rows
            .iter()
            .filter(|row| row.held == Some(false))
            .map(|row| row.what.as_str())
            .collect()
    }
}

pub(super) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Three digits that count, no more after the point than are needed.
fn short(value: f64) -> String {
    if value >= 100.0 {
        format!("{value:.0}")
    } else if value >= 10.0 || value.fract() == 0.0 {
        let text = format!("{value:.1}");
        text.strip_suffix(".0").unwrap_or(&text).to_owned()
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_judged() {
        let mut table = Table::default();
        table.at_most("memory", 8.0, 8.0, "MiB");
        table.beside(
            "time",
            Duration::from_millis(201),
            Duration::from_millis(100),
            2.0,
        );
        table.show("beside it", "1");
        assert_eq!(table.missed(), ["time"]);
    }

    #[test]
    fn three_digits() {
        for (value, want) in [
            (0.123, "0.12"),
            (3.0, "3"),
            (17.26, "17.3"),
            (6543.2, "6543"),
        ] {
            assert_eq!(short(value), want);
        }
    }
}
