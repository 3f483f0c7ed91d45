//! Resource quantities: `100m`, `1.5Gi`, `2e3`.

use core::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};

/// A quantity as it was written, checked to be well formed.
///
/// - Shape: the original text is kept, so that what is read is what is shown.
/// - Source: apimachinery `pkg/api/resource/quantity.go`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Quantity(Box<str>);

/// The text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a quantity (number with an optional suffix such as m, k, Mi, Gi)")]
pub struct QuantityError(Box<str>);

impl Quantity {
    /// Checks `text`. Fails on anything that upstream's parser refuses, and on values over 2^63 units.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        match parse_nanos(text) {
            Some(_) => Ok(Self(text.into())),
            None => Err(QuantityError(text.into())),
        }
    }

    /// `value` in whole units, with the largest of `Ki`, `Mi`, … that loses nothing: as upstream writes memory.
    #[must_use]
    pub fn from_binary_units(value: i64) -> Self {
        Self::scaled_text(value, 1024, &["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])
    }

    /// `value` in whole units, with the largest of `k`, `M`, … that loses nothing: as upstream writes counts.
    #[must_use]
    pub fn from_decimal_units(value: i64) -> Self {
        Self::scaled_text(value, 1000, &["", "k", "M", "G", "T", "P", "E"])
    }

    /// `value` in thousandths, likewise: as upstream writes processors.
    #[must_use]
    pub fn from_decimal_milli(value: i64) -> Self {
        Self::scaled_text(value, 1000, &["m", "", "k", "M", "G", "T", "P"])
    }

    fn scaled_text(mut value: i64, step: i64, suffixes: &[&str]) -> Self {
        if value == 0 {
            return Self("0".into());
        }
        let mut suffixes = suffixes.iter();
        let mut suffix = suffixes.next();
        while value % step == 0
            && let Some(next) = suffixes.next()
        {
            value /= step;
            suffix = Some(next);
        }
        Self(format!("{value}{}", suffix.copied().unwrap_or("")).into())
    }

    /// Returns true if both are equal amounts, however they are written.
    #[must_use]
    pub fn same_amount(&self, other: &Self) -> bool {
        parse_nanos(&self.0) == parse_nanos(&other.0)
    }

    /// Whole units, rounded away from zero as upstream's `Value()` does.
    #[must_use]
    pub fn value(&self) -> i64 {
        self.value_in_units(1_000_000_000)
    }

    /// Thousandths, rounded away from zero as upstream's `MilliValue()` does.
    #[must_use]
    pub fn milli_value(&self) -> i64 {
        self.value_in_units(1_000_000)
    }

    /// As written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn value_in_units(&self, unit_nanos: i128) -> i64 {
        let n = parse_nanos(&self.0).unwrap_or(0);
        let up = if n >= 0 {
            (n + unit_nanos - 1) / unit_nanos
        } else {
            (n - unit_nanos + 1) / unit_nanos
        };
        i64::try_from(up).unwrap_or(if up > 0 { i64::MAX } else { i64::MIN })
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Value in billionths; digits beyond that are rounded up. `None` if malformed or out of range.
fn parse_nanos(text: &str) -> Option<i128> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || number.len() > 40 {
        return None;
    }
    let mut mantissa: i128 = 0;
    for digit in whole.bytes().chain(fraction.bytes()) {
        mantissa = mantissa
            .checked_mul(10)?
            .checked_add(i128::from(digit - b'0'))?;
    }
    let (binary, power10): (u32, i32) = match suffix {
        "" => (0, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        _ => (
            0,
            suffix
                .strip_prefix(['e', 'E'])?
                .parse()
                .ok()
                .filter(|e| (-40..=40).contains(e))?,
        ),
    };
    let scaled = mantissa.checked_mul(1i128 << binary)?;
    let power = power10 + 9 - i32::try_from(fraction.len()).ok()?;
    let value = if power >= 0 {
        scaled.checked_mul(10i128.checked_pow(power.unsigned_abs())?)?
    } else {
        match 10i128.checked_pow(power.unsigned_abs()) {
            Some(divisor) => (scaled + divisor - 1) / divisor,
            None => i128::from(scaled != 0),
        }
    };
    let value = if negative { -value } else { value };
    (value.unsigned_abs() <= (1u128 << 63) * 1_000_000_000).then_some(value)
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct QuantityVisitor;
        impl de::Visitor<'_> for QuantityVisitor {
            type Value = Quantity;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                Quantity::parse(text).map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, n: i64) -> Result<Quantity, E> {
                self.visit_str(&n.to_string())
            }
            fn visit_u64<E: de::Error>(self, n: u64) -> Result<Quantity, E> {
                self.visit_str(&n.to_string())
            }
            fn visit_f64<E: de::Error>(self, n: f64) -> Result<Quantity, E> {
                self.visit_str(&n.to_string())
            }
        }
        deserializer.deserialize_any(QuantityVisitor)
    }
}

/// `4.5MB`: decimal units with three significant digits, as crictl prints sizes.
#[must_use]
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let (mut tenths, mut unit) = (u128::from(bytes) * 10, 0);
    while tenths >= 10_000 && unit + 1 < UNITS.len() {
        tenths /= 1000;
        unit += 1;
    }
    if unit == 0 || tenths >= 1000 {
        format!("{}{}", tenths / 10, UNITS[unit])
    } else {
        format!("{}.{}{}", tenths / 10, tenths % 10, UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_upstream_writes_them() {
        // NODE-09
        for (quantity, text) in [
            (Quantity::from_binary_units(948_092 << 10), "948092Ki"),
            (Quantity::from_binary_units(1 << 30), "1Gi"),
            (Quantity::from_binary_units(1_000_001), "1000001"),
            (Quantity::from_binary_units(0), "0"),
            (Quantity::from_decimal_units(110), "110"),
            (Quantity::from_decimal_units(2000), "2k"),
            (Quantity::from_decimal_milli(4000), "4"),
            (Quantity::from_decimal_milli(3900), "3900m"),
            (Quantity::from_decimal_milli(0), "0"),
        ] {
            assert_eq!(quantity.as_str(), text);
            assert_eq!(Quantity::parse(text), Ok(quantity));
        }
        let quantity = |text: &str| Quantity::parse(text).expect(text);
        assert!(quantity("1024Mi").same_amount(&quantity("1Gi")));
        assert!(quantity("500m").same_amount(&quantity("0.5")));
        assert!(!quantity("500m").same_amount(&quantity("501m")));
    }

    #[test]
    fn values() {
        for (text, value, milli) in [
            ("0", 0, 0),
            ("100m", 1, 100),
            ("0.1", 1, 100),
            ("1.5", 2, 1500),
            ("2", 2, 2000),
            ("64Mi", 64 << 20, (64 << 20) * 1000),
            ("1.5Gi", 3 << 29, (3 << 29) * 1000),
            ("1k", 1000, 1_000_000),
            ("2e3", 2000, 2_000_000),
            ("1n", 1, 1),
            ("-1500m", -2, -1500),
            (".5", 1, 500),
            ("1E", 1_000_000_000_000_000_000, i64::MAX),
        ] {
            let q = Quantity::parse(text).expect(text);
            assert_eq!((q.value(), q.milli_value()), (value, milli), "{text}");
        }
        for bad in [
            "",
            "m",
            "1.2.3",
            "1Q",
            "1 Gi",
            "--1",
            "1e999",
            "9999999999999999999999E",
            ".",
        ] {
            assert!(Quantity::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes() {
        for (bytes, text) in [
            (0, "0B"),
            (999, "999B"),
            (1234, "1.2kB"),
            (4_500_000, "4.5MB"),
            (145_000_000, "145MB"),
        ] {
            assert_eq!(human_bytes(bytes), text);
        }
    }
}
