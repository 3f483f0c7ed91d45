//! The Prometheus text form, version 0.0.4.
//!
//! A page is a table of families; the samples of one family stand together, as the form demands, so the rows are gone
//! through once for each family. `# HELP` and `# TYPE` come before the first sample; a family without samples is left
//! out.
//!
//! Source: Prometheus `docs/instrumenting/exposition_formats.md`.

use alloc::{boxed::Box, string::String};
use core::fmt::Write as _;

use crate::api::WallTime;

/// Bytes after which a piece of a page ends; one row's samples may be longer.
pub const PIECE_BYTES: usize = 8 * 1024;

/// Type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts in buckets, with sum and count.
    Histogram,
}

impl MetricType {
    const fn prometheus_name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Value of a sample, in the unit in which it was counted. It is written in Prometheus' units: seconds, bytes, pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleValue {
    /// Plain number.
    Count(u64),
    /// Nanoseconds, written as seconds.
    Nanos(u64),
    /// Time, written as seconds since 1970.
    Time(WallTime),
    /// Seconds that are left, negative once they are over; `None`: there is no end.
    Left(Option<i64>),
    /// Percent, written as a part of one.
    Percent(u8),
}

impl From<u64> for SampleValue {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<usize> for SampleValue {
    fn from(count: usize) -> Self {
        Self::Count(u64::try_from(count).unwrap_or(u64::MAX))
    }
}

impl From<bool> for SampleValue {
    /// Returns 1 for true, 0 for false.
    fn from(holds: bool) -> Self {
        Self::Count(holds.into())
    }
}

impl core::fmt::Display for SampleValue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        const NS_PER_S: u64 = 1_000_000_000;
        match self {
            Self::Count(n) => write!(f, "{n}"),
            Self::Nanos(ns) => match ns % NS_PER_S {
                0 => write!(f, "{}", ns / NS_PER_S),
                // A floating point number of a year's nanoseconds would lose digits.
                rest => {
                    let digits = alloc::format!("{rest:09}");
                    write!(f, "{}.{}", ns / NS_PER_S, digits.trim_end_matches('0'))
                }
            },
            Self::Left(Some(seconds)) => write!(f, "{seconds}"),
            Self::Left(None) => f.write_str("+Inf"),
            Self::Percent(percent) => Self::Nanos(u64::from(*percent) * (NS_PER_S / 100)).fmt(f),
            Self::Time(at) => Self::Nanos(u64::try_from(at.0).unwrap_or(0)).fmt(f),
        }
    }
}

/// Labels of a sample, sorted by name. Names are plain words.
pub type MetricLabels<'a> = &'a [(&'a str, &'a str)];

/// Writer of the samples of one family.
#[derive(Debug)]
pub struct SampleWriter<'a> {
    out: &'a mut String,
    name: &'a str,
    kind: MetricType,
    help: &'a str,
    /// Set if `# HELP` and `# TYPE` were written.
    told: &'a mut bool,
}

impl SampleWriter<'_> {
    /// Writes a sample; `at`: its time, unless that is now.
    pub fn write_sample(
        &mut self,
        labels: MetricLabels<'_>,
        value: SampleValue,
        at: Option<WallTime>,
    ) {
        self.write_sample_line("", labels, value, at);
    }

    /// Writes a line whose name is that of the family followed by `suffix`.
    pub fn write_sample_line(
        &mut self,
        suffix: &str,
        labels: MetricLabels<'_>,
        value: SampleValue,
        at: Option<WallTime>,
    ) {
        let out = &mut *self.out;
        if !*self.told {
            *self.told = true;
            let (name, kind) = (self.name, self.kind.prometheus_name());
            let _ = write!(out, "# HELP {name} ");
            write_escaped(out, self.help, false);
            let _ = write!(out, "\n# TYPE {name} {kind}\n");
        }
        out.push_str(self.name);
        out.push_str(suffix);
        let mut before = '{';
        for (label, text) in labels {
            let _ = write!(out, "{before}{label}=\"");
            write_escaped(out, text, true);
            out.push('"');
            before = ',';
        }
        if !labels.is_empty() {
            out.push('}');
        }
        let _ = write!(out, " {value}");
        if let Some(at) = at {
            const NS_PER_MS: i64 = 1_000_000;
            let _ = write!(out, " {}", at.0.div_euclid(NS_PER_MS));
        }
        out.push('\n');
    }
}

/// Writes a text without bare line feeds, which would end the line, and without bare quotes, which would end the label.
fn write_escaped(out: &mut String, text: &str, quotes: bool) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            c => out.push(c),
        }
    }
}

/// Metric family of a page over rows `R`.
#[derive(Clone, Copy, Debug)]
pub struct MetricFamily<R: ?Sized> {
    /// Name.
    pub name: &'static str,
    /// Kind.
    pub kind: MetricType,
    /// Meaning of the family, in a sentence.
    pub help: &'static str,
    /// Writes the samples of row `n`. Returns false if there is no such row.
    pub samples: fn(&R, usize, &mut SampleWriter<'_>) -> bool,
}

/// Builds a table of families of a type with the fields of [`MetricFamily`]: name, kind, help, samples.
macro_rules! families {
    ($family:ident: $($name:literal $kind:ident $help:literal $samples:expr;)*) => {
        &[$($family { name: $name, kind: MetricType::$kind, help: $help, samples: $samples }),*]
    };
}
pub(super) use families;

/// A page, piece by piece.
pub struct FamilyPage<R: 'static> {
    families: &'static [MetricFamily<R>],
    rows: R,
    family: usize,
    row: usize,
    told: bool,
}

impl<R> FamilyPage<R> {
    /// Creates a page of these families over `rows`.
    pub const fn new(families: &'static [MetricFamily<R>], rows: R) -> Self {
        Self {
            families,
            rows,
            family: 0,
            row: 0,
            told: false,
        }
    }
}

impl<R> Iterator for FamilyPage<R> {
    type Item = String;

    /// Writes the next piece: whole lines, never empty.
    fn next(&mut self) -> Option<String> {
        let mut out = String::new();
        while let Some(family) = self.families.get(self.family) {
            let mut samples = SampleWriter {
                out: &mut out,
                name: family.name,
                kind: family.kind,
                help: family.help,
                told: &mut self.told,
            };
            if (family.samples)(&self.rows, self.row, &mut samples) {
                self.row += 1;
            } else {
                (self.row, self.told) = (0, false);
                self.family += 1;
            }
            if out.len() >= PIECE_BYTES {
                break;
            }
        }
        (!out.is_empty()).then_some(out)
    }
}

/// Pieces of a page, as its reader gets them.
pub type PagePieces = Box<dyn Iterator<Item = String>>;

/// Writer of small pages, one family after the other.
#[derive(Debug, Default)]
pub struct MetricsText(pub String);

impl MetricsText {
    /// Writes all samples of one family.
    pub fn write_family(
        &mut self,
        name: &str,
        kind: MetricType,
        help: &str,
        samples: impl FnOnce(&mut SampleWriter<'_>),
    ) {
        samples(&mut SampleWriter {
            out: &mut self.0,
            name,
            kind,
            help,
            told: &mut false,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{string::ToString as _, vec::Vec};

    #[test]
    fn values() {
        for (value, want) in [
            (SampleValue::Count(0), "0"),
            (SampleValue::Count(u64::MAX), "18446744073709551615"),
            (SampleValue::Nanos(0), "0"),
            (SampleValue::Nanos(1), "0.000000001"),
            (SampleValue::Nanos(1_500_000_000), "1.5"),
            (SampleValue::Nanos(60_000_000_000), "60"),
            (
                SampleValue::Time(WallTime(1_700_000_000_250_000_000)),
                "1700000000.25",
            ),
            (SampleValue::Time(WallTime(-1)), "0"),
        ] {
            assert_eq!(value.to_string(), want);
        }
    }

    #[test]
    fn lines() {
        // MET-01
        let mut text = MetricsText::default();
        text.write_family("a_total", MetricType::Counter, "Says \"a\\b\nc\".", |s| {
            s.write_sample(&[], SampleValue::Count(1), None);
            let at = Some(WallTime(1_700_000_000_999_999_999));
            s.write_sample(&[("x", "q\"b\\n\n"), ("y", "ü")], SampleValue::Count(2), at);
        });
        text.write_family("none", MetricType::Gauge, "Never.", |_| {});
        assert_eq!(
            text.0,
            concat!(
                "# HELP a_total Says \"a\\\\b\\nc\".\n# TYPE a_total counter\n",
                "a_total 1\n",
                "a_total{x=\"q\\\"b\\\\n\\n\",y=\"ü\"} 2 1700000000999\n",
            )
        );
    }

    #[test]
    fn pieces_are_bounded_and_whole() {
        // MET-01: a reader that is slow makes nothing wait but the piece it has.
        const ROWS: usize = 2000;
        const FAMILIES: &[MetricFamily<usize>] = &[
            MetricFamily {
                name: "a",
                kind: MetricType::Gauge,
                help: "A.",
                samples: |rows, n, s| {
                    if n < *rows {
                        s.write_sample(&[("row", "r")], SampleValue::Count(7), None);
                    }
                    n < *rows
                },
            },
            MetricFamily {
                name: "empty",
                kind: MetricType::Gauge,
                help: "Without samples.",
                samples: |rows, n, _| n < *rows,
            },
            MetricFamily {
                name: "b",
                kind: MetricType::Gauge,
                help: "B.",
                samples: |_, n, s| {
                    if n == 0 {
                        s.write_sample(&[], SampleValue::Count(1), None);
                    }
                    n == 0
                },
            },
        ];
        let pieces: Vec<String> = FamilyPage::new(FAMILIES, ROWS).collect();
        assert!(pieces.len() > 2);
        assert!(pieces.iter().all(|p| p.len() < PIECE_BYTES + 200));
        assert!(pieces.iter().all(|p| p.ends_with('\n')));
        let whole = pieces.concat();
        assert_eq!(whole.lines().filter(|l| l.starts_with("a{")).count(), ROWS);
        assert_eq!(whole.matches("# TYPE").count(), 2);
        assert!(whole.ends_with("# HELP b B.\n# TYPE b gauge\nb 1\n"));
        assert_eq!(
            FamilyPage::new(&[] as &[MetricFamily<usize>], 1).next(),
            None
        );
    }
}
