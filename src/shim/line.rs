//! Container output cut into records of the CRI log format. Pure: no clock, no file.
//!
//! `2023-11-14T22:13:20.123456789Z stdout F text\n`: a time, a stream, `F` for a line that ended or `P` for a part of
//! one, the text. Readers join a `P` with the next record.

use core::ops::DerefMut;

/// Longest text of a record in bytes; a longer line becomes several.
pub(crate) const MAX_TEXT_BYTES: usize = 16 * 1024;
/// Bytes of a record without its text: time, stream, tag, three spaces, newline.
pub(crate) const RECORD_OVERHEAD: usize = STAMP_BYTES + 1 + 6 + 1 + 1 + 1 + 1;
/// Bytes of a [`format_stamp`].
pub(crate) const STAMP_BYTES: usize = 30;

/// End of a record: with its line, or before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogTag {
    /// The record ends with its line.
    Full,
    /// The record ends before its line does.
    Partial,
}

/// Cuts one stream into lines. `S` holds [`MAX_TEXT_BYTES`] or more; no more are used.
#[derive(Debug)]
pub(crate) struct LineSplitter<S> {
    storage: S,
    /// Bytes of a line that has not ended.
    len: usize,
}

impl<S: DerefMut<Target = [u8]>> LineSplitter<S> {
    pub(crate) const fn new(storage: S) -> Self {
        Self { storage, len: 0 }
    }

    /// Room for the next read: never empty.
    pub(crate) fn spare_space(&mut self) -> &mut [u8] {
        &mut self.storage[self.len..MAX_TEXT_BYTES]
    }

    /// `count` bytes were put into [`Self::spare_space`]: calls `record` for each that is complete now.
    pub(crate) fn split_filled(&mut self, count: usize, mut record: impl FnMut(LogTag, &[u8])) {
        let end = self.len + count;
        let mut start = 0;
        let mut from = self.len;
        while let Some(at) = self.storage[from..end].iter().position(|b| *b == b'\n') {
            record(LogTag::Full, &self.storage[start..from + at]);
            start = from + at + 1;
            from = start;
        }
        if end - start == MAX_TEXT_BYTES {
            record(LogTag::Partial, &self.storage[..MAX_TEXT_BYTES]);
            self.len = 0;
        } else {
            self.storage.copy_within(start..end, 0);
            self.len = end - start;
        }
    }

    /// Ends the stream: the rest, a line without end, becomes a part.
    pub(crate) fn finish_stream(&mut self, mut record: impl FnMut(LogTag, &[u8])) {
        if self.len > 0 {
            record(LogTag::Partial, &self.storage[..self.len]);
            self.len = 0;
        }
    }

    /// Bytes in use, and the storage.
    pub(crate) const fn storage(&mut self) -> (usize, &mut S) {
        (self.len, &mut self.storage)
    }
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz {
    use super::*;

    /// For [`crate::fuzz`]: the records joined are the stream, whatever the pieces in which it came.
    pub(crate) fn run(data: &[u8]) -> String {
        let mut lines = LineSplitter::new(vec![0; MAX_TEXT_BYTES]);
        let mut joined = Vec::new();
        let mut parts = 0_usize;
        let mut record = |tag: LogTag, text: &[u8]| {
            assert!(text.len() <= MAX_TEXT_BYTES);
            joined.extend_from_slice(text);
            match tag {
                LogTag::Full => joined.push(b'\n'),
                LogTag::Partial => parts += 1,
            }
        };
        let piece = usize::from(data.first().copied().unwrap_or(0)) * 97 + 1;
        let mut rest = data;
        while !rest.is_empty() {
            let space = lines.spare_space();
            assert!(!space.is_empty());
            let count = rest.len().min(space.len()).min(piece);
            space[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            lines.split_filled(count, &mut record);
        }
        lines.finish_stream(&mut record);
        assert_eq!(joined, data);
        format!("{}", parts.min(3))
    }
}

/// RFC 3339 in UTC with nine fractional digits. Years beyond 9999 show their last four digits.
pub(crate) fn format_stamp(wall_ns: i64) -> [u8; STAMP_BYTES] {
    let mut out = *b"0000-00-00T00:00:00.000000000Z";
    let seconds = wall_ns.div_euclid(1_000_000_000);
    let (year, month, day) = civil_date(seconds.div_euclid(86_400));
    let second = seconds.rem_euclid(86_400);
    for (range, value) in [
        (0..4, year),
        (5..7, month),
        (8..10, day),
        (11..13, second / 3600),
        (14..16, second / 60 % 60),
        (17..19, second % 60),
        (20..29, wall_ns.rem_euclid(1_000_000_000)),
    ] {
        let mut rest = value;
        for digit in out[range].iter_mut().rev() {
            *digit = b'0' + u8::try_from(rest.rem_euclid(10)).unwrap_or(0);
            rest = rest.div_euclid(10);
        }
    }
    out
}

/// Year, month and day of a day counted from 1970, in the proleptic Gregorian calendar.
///
/// Counted from 1 March of year 0, leap days come last: months then have lengths that one line of arithmetic gives.
const fn civil_date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::WallTime;

    /// Feeds `input` in pieces of at most `piece` bytes and returns the records, parts marked with a `+`.
    fn records(input: &[u8], piece: usize) -> Vec<String> {
        let mut lines = LineSplitter::new(vec![0; MAX_TEXT_BYTES]);
        let mut out = Vec::new();
        let mut note = |tag, text: &[u8]| {
            let mark = if tag == LogTag::Partial { "+" } else { "" };
            out.push(String::from_utf8_lossy(text).into_owned() + mark);
        };
        let mut rest = input;
        while !rest.is_empty() {
            let space = lines.spare_space();
            let n = rest.len().min(piece).min(space.len());
            space[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            lines.split_filled(n, &mut note);
        }
        lines.finish_stream(&mut note);
        out
    }

    #[test]
    fn lines_and_parts() {
        // LOG-01 RTM-07
        let long = "x".repeat(MAX_TEXT_BYTES);
        for (name, input, expected) in [
            ("nothing", String::new(), vec![]),
            ("one line", "a\n".into(), vec!["a".into()]),
            (
                "empty lines",
                "\n\n".into(),
                vec![String::new(), String::new()],
            ),
            (
                "no newline at the end",
                "a\nb".into(),
                vec!["a".into(), "b+".into()],
            ),
            ("carriage return stays", "a\r\n".into(), vec!["a\r".into()]),
            ("longest part", long.clone(), vec![format!("{long}+")]),
            (
                "a line of exactly the limit ends with an empty record",
                format!("{long}\n"),
                vec![format!("{long}+"), String::new()],
            ),
            (
                "longer than two",
                format!("{long}{long}yz\nb\n"),
                vec![
                    format!("{long}+"),
                    format!("{long}+"),
                    "yz".into(),
                    "b".into(),
                ],
            ),
        ] {
            for piece in [1, 2, 3, 4096, MAX_TEXT_BYTES - 1, usize::MAX] {
                assert_eq!(
                    records(input.as_bytes(), piece),
                    expected,
                    "{name}, pieces of {piece}"
                );
            }
        }
    }

    #[test]
    fn nothing_is_lost() {
        let input: Vec<u8> = (0..200_000_u32)
            .map(|n| {
                if n.wrapping_mul(2_654_435_761).is_multiple_of(977) {
                    b'\n'
                } else {
                    b'a'
                }
            })
            .collect();
        for piece in [1, 100, 5000, 16_384] {
            let joined: String = records(&input, piece)
                .iter()
                .map(|r| {
                    r.strip_suffix('+')
                        .map_or_else(|| format!("{r}\n"), Into::into)
                })
                .collect();
            assert!(joined.as_bytes() == input, "pieces of {piece}");
        }
    }

    #[test]
    fn stamps() {
        // The whole range, and every day of a leap cycle.
        let days = (0..1500).map(|d| d * 86_400_000_000_000 + 951_782_400_000_000_001);
        let wide = (-40..40).map(|n| n * 100_000_000_000_000_007);
        for ns in days.chain(wide) {
            let text = format_stamp(ns);
            assert_eq!(
                core::str::from_utf8(&text),
                Ok(WallTime(ns).rfc3339_nanos().as_str())
            );
        }
    }
}
