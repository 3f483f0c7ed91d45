//! End of a call, and its form on the wire. Source: the gRPC protocol over HTTP/2, `PROTOCOL-HTTP2.md` and
//! `statuscodes.md`.

use core::{fmt, time::Duration};

use thiserror::Error;

use crate::{hpack::HeaderField, http2::Http2ErrorCode};

/// Longest message that is sent, in bytes, before it is escaped.
const MAX_MESSAGE_BYTES: usize = 2048;

/// Code of a status. The names are gRPC's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrpcCode(pub u32);

impl GrpcCode {
    /// The call went well.
    pub const OK: Self = Self(0);
    /// The caller gave the call up.
    pub const CANCELED: Self = Self(1);
    /// An error of another kind.
    pub const UNKNOWN: Self = Self(2);
    /// The call took too long.
    pub const DEADLINE_EXCEEDED: Self = Self(4);
    /// The object of the call does not exist.
    pub const NOT_FOUND: Self = Self(5);
    /// The caller has no right to this.
    pub const PERMISSION_DENIED: Self = Self(7);
    /// Too much, or too many.
    pub const RESOURCE_EXHAUSTED: Self = Self(8);
    /// The method does not exist.
    pub const UNIMPLEMENTED: Self = Self(12);
    /// A peer does not keep to the protocol.
    pub const INTERNAL: Self = Self(13);
    /// The service cannot be reached now.
    pub const UNAVAILABLE: Self = Self(14);
    /// The caller is not known.
    pub const UNAUTHENTICATED: Self = Self(16);
}

const NAMES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

impl fmt::Display for GrpcCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index = usize::try_from(self.0).unwrap_or(usize::MAX);
        match NAMES.get(index) {
            Some(name) => f.write_str(name),
            None => write!(f, "Code({})", self.0),
        }
    }
}

/// The end of a call that did not go well.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("rpc error: code = {code} desc = {message}")]
pub struct GrpcStatus {
    /// Kind of the end.
    pub code: GrpcCode,
    /// Text for people.
    pub message: String,
}

impl GrpcStatus {
    /// Makes a status of its fields.
    pub fn new(code: GrpcCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// Status of a stream that the peer gave up.
    #[must_use]
    pub fn of_reset(reason: Http2ErrorCode) -> Self {
        let code = match reason {
            Http2ErrorCode::REFUSED_STREAM => GrpcCode::UNAVAILABLE,
            Http2ErrorCode::CANCEL => GrpcCode::CANCELED,
            Http2ErrorCode::ENHANCE_YOUR_CALM => GrpcCode::RESOURCE_EXHAUSTED,
            _ => GrpcCode::INTERNAL,
        };
        let text = "stream terminated by RST_STREAM with error code";
        Self::new(code, format!("{text}: {}", reason.0))
    }

    /// Status of an answer that is complete: from its headers, and from its trailers, which it may lack.
    pub fn check_answer(head: &[HeaderField], trailers: &[HeaderField]) -> Result<(), Self> {
        let value = |wanted: &str| {
            let mut all = trailers.iter().chain(head);
            let found = all.find(|(name, _)| name == wanted.as_bytes());
            found.map(|(_, value)| value.as_slice())
        };
        let number = |wanted| core::str::from_utf8(value(wanted)?).ok()?.parse().ok();
        if let Some(code) = number("grpc-status") {
            let message = || percent_decode(value("grpc-message").unwrap_or_default());
            return match GrpcCode(code) {
                GrpcCode::OK => Ok(()),
                code => Err(Self::new(code, message())),
            };
        }
        let http = number(":status").unwrap_or_default();
        let code = match http {
            401 => GrpcCode::UNAUTHENTICATED,
            403 => GrpcCode::PERMISSION_DENIED,
            404 => GrpcCode::UNIMPLEMENTED,
            429 | 502 | 503 | 504 => GrpcCode::UNAVAILABLE,
            0 | 200 | 400 => {
                let text = "server closed the stream without sending trailers";
                let text = format!("{text} (HTTP status {http})");
                return Err(Self::new(GrpcCode::INTERNAL, text));
            }
            _ => GrpcCode::UNKNOWN,
        };
        let name = match http {
            404 => " (Not Found)",
            503 => " (Service Unavailable)",
            _ => "",
        };
        let text = "unexpected HTTP status code received from server";
        Err(Self::new(code, format!("{text}: {http}{name}")))
    }
}

/// Trailers that end an answer.
pub(crate) fn status_trailers(end: &Result<(), GrpcStatus>) -> Vec<HeaderField> {
    let field = |name: &str, value: String| (name.as_bytes().to_vec(), value.into_bytes());
    match end {
        Ok(()) => vec![field("grpc-status", "0".into())],
        Err(status) => vec![
            field("grpc-status", status.code.0.to_string()),
            field("grpc-message", percent_encode(&status.message)),
        ],
    }
}

/// Percent-encoding of `grpc-message`: all but printable ASCII, and the sign itself.
fn percent_encode(message: &str) -> String {
    let mut out = String::new();
    for byte in message.bytes().take(MAX_MESSAGE_BYTES) {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

/// Undoes the percent-encoding. Sequences that are not encoded right stay as they are.
fn percent_decode(value: &[u8]) -> String {
    let mut out = Vec::new();
    let mut rest = value;
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| first == b'%');
        let code = code.and_then(|d| u8::from_str_radix(core::str::from_utf8(d).ok()?, 16).ok());
        out.push(code.unwrap_or(first));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Most digits of a `grpc-timeout`.
const TIMEOUT_DIGITS: usize = 8;
/// Units of a `grpc-timeout`, the finest first.
const UNITS: [(char, Duration); 6] = [
    ('n', Duration::from_nanos(1)),
    ('u', Duration::from_micros(1)),
    ('m', Duration::from_millis(1)),
    ('S', Duration::from_secs(1)),
    ('M', Duration::from_secs(60)),
    ('H', Duration::from_secs(3600)),
];

/// A `grpc-timeout`, in the finest unit that has room for it, rounded up.
pub(crate) fn format_timeout(timeout: Duration) -> String {
    let nanos = timeout.as_nanos();
    let texts = UNITS
        .iter()
        .map(|(unit, size)| format!("{}{unit}", nanos.div_ceil(size.as_nanos())));
    let mut fitting = texts.filter(|text| text.len() <= TIMEOUT_DIGITS + 1);
    fitting.next().unwrap_or_else(|| "99999999H".into())
}

/// Reads one. `None`: it is none.
pub(crate) fn parse_timeout(text: &[u8]) -> Option<Duration> {
    let text = core::str::from_utf8(text).ok()?;
    let unit = text.chars().next_back()?;
    let digits = text.strip_suffix(unit)?;
    let (_, size) = UNITS.iter().find(|(known, _)| *known == unit)?;
    if digits.len() > TIMEOUT_DIGITS || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    size.checked_mul(digits.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(all: &[(&str, &str)]) -> Vec<HeaderField> {
        let field =
            |(name, value): &(&str, &str)| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        all.iter().map(field).collect()
    }

    #[test]
    fn ends_of_answers() {
        // CRI-98
        let ok = (":status", "200");
        for (head, trailers, want) in [
            (&[ok][..], &[("grpc-status", "0")][..], Ok(())),
            (&[ok, ("grpc-status", "0")], &[], Ok(())),
            (
                &[ok],
                &[("grpc-status", "5"), ("grpc-message", "no%20such %C3%A9%")],
                Err((5, "no such é%")),
            ),
            (&[ok], &[("grpc-status", "99")], Err((99, ""))),
            (
                &[ok],
                &[("grpc-status", "x")],
                Err((
                    13,
                    "server closed the stream without sending trailers (HTTP status 200)",
                )),
            ),
            (
                &[(":status", "404")],
                &[],
                Err((
                    12,
                    "unexpected HTTP status code received from server: 404 (Not Found)",
                )),
            ),
            (
                &[(":status", "502")],
                &[],
                Err((14, "unexpected HTTP status code received from server: 502")),
            ),
            (
                &[(":status", "418")],
                &[],
                Err((2, "unexpected HTTP status code received from server: 418")),
            ),
        ] {
            let want = want.map_err(|(code, text)| GrpcStatus::new(GrpcCode(code), text));
            assert_eq!(
                GrpcStatus::check_answer(&fields(head), &fields(trailers)),
                want
            );
        }
        let status = GrpcStatus::new(GrpcCode::NOT_FOUND, "a 100 % Ä\n");
        let end = status_trailers(&Err(status.clone()));
        assert_eq!(end[1].1, b"a 100 %25 %C3%84%0A");
        assert_eq!(GrpcStatus::check_answer(&[], &end), Err(status));
        assert_eq!(
            GrpcStatus::check_answer(&[], &status_trailers(&Ok(()))),
            Ok(())
        );
        let long = GrpcStatus::new(GrpcCode(2), "ä".repeat(10_000));
        assert!(status_trailers(&Err(long))[1].1.len() <= 3 * MAX_MESSAGE_BYTES);
        assert_eq!(GrpcCode(17).to_string(), "Code(17)");
        let reset = GrpcStatus::of_reset(Http2ErrorCode::CANCEL).to_string();
        assert_eq!(
            reset,
            "rpc error: code = Canceled desc = stream terminated by RST_STREAM with error code: 8"
        );
    }

    #[test]
    fn timeouts() {
        for (time, text) in [
            (Duration::ZERO, "0n"),
            (Duration::from_nanos(99_999_999), "99999999n"),
            (Duration::from_millis(100), "100000u"),
            (Duration::from_secs(120), "120000m"),
            (Duration::from_secs(100_000), "100000S"),
        ] {
            assert_eq!(format_timeout(time), text);
            assert_eq!(parse_timeout(text.as_bytes()), Some(time));
        }
        let odd = Duration::new(1, 1);
        assert_eq!(format_timeout(odd), "1000001u", "never shorter");
        assert_eq!(format_timeout(Duration::MAX), "99999999H");
        assert_eq!(parse_timeout(b"3H"), Some(Duration::from_secs(10_800)));
        for wrong in ["", "1", "H", "-1S", "1s", "123456789n", "1 S", "+1S"] {
            let read = parse_timeout(wrong.as_bytes());
            assert!(read.is_none(), "{wrong}: {read:?}");
        }
    }
}
