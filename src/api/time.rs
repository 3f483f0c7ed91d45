//! The two clocks of the agent. Reading them is `sys::clock`'s work; this file only names the values.

use core::{
    fmt,
    ops::{Add, Sub},
    time::Duration,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Monotonic time in milliseconds since boot, suspend included (`CLOCK_BOOTTIME`). Every deadline uses it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct MonoTime(pub u64);

impl MonoTime {
    /// Milliseconds from `earlier` to `self`; 0 if `earlier` is later.
    #[must_use]
    pub const fn since_ms(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for MonoTime {
    type Output = Self;
    fn add(self, rhs: Duration) -> Self {
        let ms = u64::try_from(rhs.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(ms))
    }
}

impl Sub for MonoTime {
    type Output = Duration;
    /// Saturates at zero.
    fn sub(self, rhs: Self) -> Duration {
        Duration::from_millis(self.since_ms(rhs))
    }
}

/// Wall-clock time in nanoseconds since 1970, for API timestamps and log lines only.
///
/// Never subtract two of them to get a duration: most boards boot without a battery clock, so this jumps.
/// Serialises as RFC 3339 in UTC with second precision, as API timestamps do; decodes any RFC 3339 text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(pub i64);

impl WallTime {
    /// `seconds` since 1970.
    #[must_use]
    pub const fn from_unix_seconds(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000))
    }

    /// Whole seconds since 1970, rounded down.
    #[must_use]
    pub const fn unix_seconds(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }

    /// Cuts the instant to whole seconds, the precision of API timestamps.
    #[must_use]
    pub const fn truncated_to_second(self) -> Self {
        Self::from_unix_seconds(self.unix_seconds())
    }

    /// Parses RFC 3339 with any offset and fraction. `None` if malformed or outside 1678–2262.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        i64::try_from(at.unix_timestamp_nanos()).ok().map(Self)
    }

    /// RFC 3339 in UTC with exactly nine fractional digits, as CRI log lines and `config.seen` carry it.
    #[must_use]
    pub fn rfc3339_nanos(self) -> String {
        let mut text = self.truncated_to_second().to_string();
        text.pop(); // the `Z`
        let nanos = self.0.rem_euclid(1_000_000_000);
        text + &format!(".{nanos:09}Z")
    }

    /// RFC 3339 in UTC with exactly six fractional digits, as meta/v1 MicroTime is written.
    #[must_use]
    pub fn rfc3339_micros(self) -> String {
        let mut text = self.rfc3339_nanos();
        text.truncate(text.len() - "000Z".len());
        text + "Z"
    }

    /// The civil date and time in UTC.
    #[must_use]
    pub fn date_time(self) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0))
            .unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }
}

impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self
            .truncated_to_second()
            .date_time()
            .format(&Rfc3339)
            .map_err(|_| fmt::Error)?;
        f.write_str(&text)
    }
}

impl Serialize for WallTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WallTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = alloc::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text)
            .ok_or_else(|| de::Error::custom(format_args!("{text:?} is not an RFC 3339 time")))
    }
}

/// A wall-clock time of which microseconds matter (meta/v1 MicroTime). Decodes any RFC 3339 text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MicroTime(pub WallTime);

impl Serialize for MicroTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.rfc3339_micros())
    }
}

impl<'de> Deserialize<'de> for MicroTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        WallTime::deserialize(deserializer).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micro_time() {
        for (nanos, text) in [
            (0, "\"1970-01-01T00:00:00.000000Z\""),
            (1_700_000_000_123_456_789, "\"2023-11-14T22:13:20.123456Z\""),
        ] {
            let time = MicroTime(WallTime(nanos));
            assert_eq!(serde_json::to_string(&time).expect("text"), text);
            let back: MicroTime = serde_json::from_str(text).expect("time");
            assert_eq!(back.0, WallTime(nanos / 1000 * 1000));
        }
    }

    #[test]
    fn wall_text() {
        for (nanos, short, long) in [
            (0, "1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000000000Z"),
            (
                1_700_000_000_123_456_789,
                "2023-11-14T22:13:20Z",
                "2023-11-14T22:13:20.123456789Z",
            ),
            (
                4_102_444_800_000_000_001,
                "2100-01-01T00:00:00Z",
                "2100-01-01T00:00:00.000000001Z",
            ),
            (-1, "1969-12-31T23:59:59Z", "1969-12-31T23:59:59.999999999Z"),
        ] {
            assert_eq!(WallTime(nanos).to_string(), short);
            assert_eq!(WallTime(nanos).rfc3339_nanos(), long);
            assert_eq!(WallTime::parse(long), Some(WallTime(nanos)));
        }
        assert_eq!(
            WallTime::parse("2023-11-14T23:13:20+01:00"),
            Some(WallTime::from_unix_seconds(1_700_000_000))
        );
        assert_eq!(WallTime::parse("yesterday"), None);
    }
}
