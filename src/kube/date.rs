//! The `Date` of an answer: a second clock, for boards without a battery.

use time::{Date, Month, PrimitiveDateTime, Time};

use crate::api::WallTime;

const MONTHS: [(&str, Month); 12] = [
    ("Jan", Month::January),
    ("Feb", Month::February),
    ("Mar", Month::March),
    ("Apr", Month::April),
    ("May", Month::May),
    ("Jun", Month::June),
    ("Jul", Month::July),
    ("Aug", Month::August),
    ("Sep", Month::September),
    ("Oct", Month::October),
    ("Nov", Month::November),
    ("Dec", Month::December),
];

/// Reads `Sun, 06 Nov 1994 08:49:37 GMT`, the only form that servers send. Source: RFC 9110 section 5.6.7.
pub(super) fn parse_http_date(text: &str) -> Option<WallTime> {
    let (_, rest) = text.split_once(", ")?;
    let mut words = rest.split(' ');
    let day = words.next()?.parse().ok()?;
    let name = words.next()?;
    let (_, month) = MONTHS.iter().find(|(n, _)| *n == name)?;
    let year = words.next()?.parse().ok()?;
    let mut clock = words.next()?.split(':');
    let mut part = || clock.next()?.parse::<u8>().ok();
    let time = Time::from_hms(part()?, part()?, part()?).ok()?;
    if words.next() != Some("GMT") {
        return None;
    }
    let date = Date::from_calendar_date(year, *month, day).ok()?;
    let at = PrimitiveDateTime::new(date, time).assume_utc();
    Some(WallTime::from_unix_seconds(at.unix_timestamp()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (text, want) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Fri, 01 Jan 2100 00:00:00 GMT", Some(4_102_444_800)),
            ("Sun, 06 Nov 1994 08:49:37 CET", None),
            ("Sun, 31 Feb 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 24:49:37 GMT", None),
            ("Sunday, 06-Nov-94 08:49:37 GMT", None),
            ("", None),
        ] {
            assert_eq!(
                parse_http_date(text),
                want.map(WallTime::from_unix_seconds),
                "{text}"
            );
        }
    }
}
