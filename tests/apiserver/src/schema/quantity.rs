//! Quantities, in the one form in which a server gives them back.
//!
//! Source: apimachinery `pkg/api/resource/quantity.go`.

/// Most digits that are computed with; upstream takes about as many.
const MAX_DIGITS: usize = 18;

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Decimal suffixes by their exponent.
const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

/// The canonical form: no fraction, the largest suffix that loses nothing. None for what is no quantity.
pub(crate) fn canonical(text: &str) -> Option<String> {
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || fraction.contains('.') || digits.len() > MAX_DIGITS {
        return None;
    }
    let value: i128 = digits.parse().ok()?;
    let places = i32::try_from(fraction.len()).ok()?;
    let sign = if negative && value != 0 { "-" } else { "" };
    let formatted = if let Some(power) = BINARY.iter().skip(1).position(|s| *s == suffix) {
        binary(value, places, power + 1)?
    } else if let Some((_, exponent)) = DECIMAL.iter().find(|(s, _)| *s == suffix) {
        decimal(value, exponent - places, None)?
    } else {
        let mark = suffix.chars().next().filter(|c| matches!(c, 'e' | 'E'))?;
        let exponent: i32 = suffix[1..].parse().ok()?;
        decimal(value, exponent.checked_sub(places)?, Some(mark))?
    };
    Some(format!("{sign}{formatted}"))
}

/// In billionths, to be compared. None for what is no quantity, is negative, or is written with an exponent.
pub(crate) fn billionths(text: &str) -> Option<i128> {
    let text = canonical(text)?;
    let end = text.find(|c: char| !c.is_ascii_digit());
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let number: i128 = number.parse().ok()?;
    if let Some(power) = BINARY.iter().skip(1).position(|s| *s == suffix) {
        let unit = 1024_i128.checked_pow(u32::try_from(power).ok()? + 1)?;
        return number.checked_mul(unit)?.checked_mul(1_000_000_000);
    }
    let (_, exponent) = DECIMAL.iter().find(|(s, _)| *s == suffix)?;
    number.checked_mul(10_i128.checked_pow(u32::try_from(exponent + 9).ok()?)?)
}

fn binary(value: i128, places: i32, power: usize) -> Option<String> {
    let scaled = value.checked_mul(1024_i128.checked_pow(u32::try_from(power).ok()?)?)?;
    let divisor = 10_i128.checked_pow(u32::try_from(places).ok()?)?;
    // Fractions of a byte are rounded up.
    let mut bytes = scaled.checked_add(divisor - 1)? / divisor;
    if bytes < 1024 {
        return decimal(bytes, 0, None);
    }
    let mut power = 0;
    while power + 1 < BINARY.len() && bytes % 1024 == 0 {
        bytes /= 1024;
        power += 1;
    }
    Some(format!("{bytes}{}", BINARY[power]))
}

fn decimal(mut value: i128, mut exponent: i32, mark: Option<char>) -> Option<String> {
    if value == 0 {
        return Some("0".to_owned());
    }
    // Below a billionth is rounded up.
    while exponent < -9 {
        value = value.checked_add(9)? / 10;
        exponent += 1;
    }
    while value % 10 == 0 {
        value /= 10;
        exponent += 1;
    }
    // Down to a multiple of three that has a suffix.
    while exponent % 3 != 0 || mark.is_none() && exponent > 18 {
        value = value.checked_mul(10)?;
        exponent -= 1;
    }
    match mark {
        Some(_) if exponent == 0 => Some(value.to_string()),
        Some(_) => Some(format!("{value}e{exponent}")),
        None => DECIMAL
            .iter()
            .find(|(_, e)| *e == exponent)
            .map(|(suffix, _)| format!("{value}{suffix}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_forms() {
        for (text, want) in [
            ("0.5", "500m"),
            ("1024Mi", "1Gi"),
            ("1000Mi", "1000Mi"),
            ("1.5Gi", "1536Mi"),
            ("100m", "100m"),
            ("1000m", "1"),
            ("4", "4"),
            ("4000000000", "4G"),
            ("3981172Ki", "3981172Ki"),
            ("4076720128", "4076720128"),
            ("0", "0"),
            ("0Ki", "0"),
            ("512", "512"),
            ("0.5Ki", "512"),
            ("1e3", "1e3"),
            ("12E6", "12e6"),
            ("5e0", "5"),
            ("-1", "-1"),
            ("1.50", "1500m"),
            ("110", "110"),
            ("2500k", "2500k"),
        ] {
            assert_eq!(canonical(text).as_deref(), Some(want), "{text}");
        }
        for bad in ["", "x", "1GB", "1 Gi", "1.2.3", "Mi", "1e", "four"] {
            assert_eq!(canonical(bad), None, "{bad}");
        }
    }
}
