//! Durations as Go writes them: `1m30s`, `100ms`, `4h`.

use core::time::Duration;

use serde::{Deserialize, Deserializer, de};

/// A duration of a configuration document. Never negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(pub Duration);

/// Parses Go's notation. `None` if malformed, negative or beyond 2^64 nanoseconds (584 years).
///
/// Source: Go `time.ParseDuration`.
#[must_use]
pub fn parse_go_duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut nanos = 0u128;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let unit: u128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.len() + fraction.len() == 0 || whole.len() > 20 || fraction.contains('.') {
            return None;
        }
        let mut value = 0u128;
        for digit in whole.bytes() {
            value = value * 10 + u128::from(digit - b'0');
        }
        nanos = nanos.checked_add(value.checked_mul(unit)?)?;
        // Digits beyond the nanosecond are cut, as Go does.
        let mut scale = unit;
        for digit in fraction.bytes() {
            scale /= 10;
            nanos = nanos.checked_add(scale * u128::from(digit - b'0'))?;
        }
        rest = tail;
    }
    u64::try_from(nanos).ok().map(Duration::from_nanos)
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_go_duration(&text).map(Self).ok_or_else(|| {
            de::Error::custom(format_args!(
                "{text:?} is not a duration (such as 10s, 1m30s, 100ms)"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notation() {
        for (text, nanos) in [
            ("0", 0),
            ("0s", 0),
            ("1ns", 1),
            ("10us", 10_000),
            ("10µs", 10_000),
            ("100ms", 100_000_000),
            ("1.5s", 1_500_000_000),
            (".5s", 500_000_000),
            ("1m30s", 90_000_000_000),
            ("4h", 14_400_000_000_000),
            ("0.0000000019s", 1),
        ] {
            assert_eq!(
                parse_go_duration(text),
                Some(Duration::from_nanos(nanos)),
                "{text}"
            );
        }
        for bad in [
            "",
            "1",
            "-1s",
            "1d",
            "s",
            "1.2.3s",
            ".s",
            "1s ",
            "99999999999999h",
            "1 s",
        ] {
            assert_eq!(parse_go_duration(bad), None, "{bad}");
        }
    }
}
