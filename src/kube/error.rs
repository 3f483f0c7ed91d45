//! Errors of requests to the apiserver.

use core::fmt;
use core::time::Duration;

use serde::Deserialize;

use crate::api::strict;

/// Bytes read of an error's body. At most [`MAX_MESSAGE_CHARS`] characters of its message are shown.
pub const MAX_STATUS_BYTES: u64 = 64 * 1024;
/// Characters shown of an error's message.
pub const MAX_MESSAGE_CHARS: usize = 400;
/// Longest `Retry-After` that is believed.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(10 * 60);

/// An error of one request.
#[derive(Debug, thiserror::Error)]
pub enum KubeError {
    /// The apiserver answers, and refuses.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// No answer, or a part of one: name not found, refused, timed out, cut.
    #[error("cannot reach {url}: {why}")]
    Unreachable {
        /// URL without its query.
        url: String,
        /// Error of the transport.
        why: String,
        /// Set if the request may have arrived.
        sent: bool,
    },
    /// Error of TLS: the server's certificate, ours, or the CAs to check it by.
    #[error("cannot trust {url}: {why}{}", clock_hint(*clock))]
    Tls {
        /// URL without its query.
        url: String,
        /// Fault, for people.
        why: String,
        /// Set if the certificate is not valid at this machine's time: its clock may be wrong.
        clock: bool,
    },
    /// The answer is not what it has to be: not JSON, too long, another kind.
    #[error("the answer of {url} cannot be used: {why}")]
    Wrong {
        /// URL without its query.
        url: String,
        /// Fault, for people.
        why: String,
    },
    /// Files and programs of this machine: the kubeconfig, a token, a key, an exec plugin.
    #[error("{0}")]
    Local(String),
    /// The caller ended the request.
    #[error("cancelled")]
    Cancelled,
}

const fn clock_hint(clock: bool) -> &'static str {
    if clock {
        " (is the clock of this machine right?)"
    } else {
        ""
    }
}

impl KubeError {
    /// The HTTP status, if there is one.
    #[must_use]
    pub const fn http_status(&self) -> Option<u16> {
        match self {
            Self::Api(e) => Some(e.status),
            _ => None,
        }
    }

    /// Returns true if the object does not exist (404).
    #[must_use]
    pub const fn is_not_found(&self) -> bool {
        matches!(self.http_status(), Some(404))
    }

    /// Returns true on a conflict (409): a precondition failed, another writer was faster, or the object already
    /// exists.
    #[must_use]
    pub const fn is_conflict(&self) -> bool {
        matches!(self.http_status(), Some(409))
    }

    /// Returns true if the apiserver is there at all, whatever it answers (BOOT-09).
    #[must_use]
    pub const fn is_answer(&self) -> bool {
        matches!(self, Self::Api(_) | Self::Wrong { .. })
    }

    /// Returns true if the same request may succeed later without any change.
    ///
    /// A 403 may pass only for objects of a pod: the authorizer's graph trails the binding (AUTHZ-08). The caller knows
    /// which requests are such, so a 403 is not among them here.
    #[must_use]
    pub const fn may_pass(&self) -> bool {
        match self {
            Self::Api(e) => e.status == 429 || e.status >= 500,
            Self::Unreachable { .. } | Self::Tls { .. } | Self::Wrong { .. } => true,
            Self::Local(_) | Self::Cancelled => false,
        }
    }

    /// Time for which the apiserver asks for no further request.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Api(e) => e.retry_after,
            _ => None,
        }
    }
}

/// A `StatusDocument` that is no success, or what stands for one when something else answers (a proxy, a load balancer).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// Reason, such as `AlreadyExists`; empty if the body is no `StatusDocument`.
    pub reason: String,
    /// Message in a single line, at most [`MAX_MESSAGE_CHARS`]; may be empty.
    pub message: String,
    /// Time from the header, or from the `StatusDocument`; at most [`MAX_RETRY_AFTER`].
    pub retry_after: Option<Duration>,
    /// Reasons of its causes, such as `ResourceVersionTooLarge`; at most [`MAX_CAUSES`].
    pub causes: Vec<String>,
}

/// Causes kept of one error.
pub const MAX_CAUSES: usize = 8;

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the apiserver answers {}", self.status)?;
        if !self.reason.is_empty() {
            write!(f, " {}", self.reason)?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

impl core::error::Error for ApiError {}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StatusDocument {
    kind: String,
    message: String,
    reason: String,
    code: u16,
    details: StatusDetails,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StatusDetails {
    retry_after_seconds: u64,
    causes: Vec<StatusCause>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StatusCause {
    reason: String,
}

impl ApiError {
    /// Reads the body of an answer with `status`; `retry_after` is the header.
    #[must_use]
    pub fn from_body(status: u16, retry_after: Option<&str>, body: &[u8]) -> Self {
        let found = strict::from_json::<StatusDocument>(body)
            .ok()
            .filter(|s| s.kind == "Status");
        let from_header = retry_after
            .and_then(|text| text.trim().parse().ok())
            .map(Duration::from_secs);
        let Some(found) = found else {
            return Self {
                status,
                message: one_line(&String::from_utf8_lossy(body)),
                retry_after: from_header.map(|d| d.min(MAX_RETRY_AFTER)),
                ..Self::default()
            };
        };
        let in_body = found.details.retry_after_seconds;
        let in_body = (in_body > 0).then_some(Duration::from_secs(in_body));
        Self {
            // A watch says it in the body only.
            status: if status == 200 { found.code } else { status },
            reason: one_line(&found.reason),
            message: one_line(&found.message),
            retry_after: from_header.or(in_body).map(|d| d.min(MAX_RETRY_AFTER)),
            causes: found
                .details
                .causes
                .into_iter()
                .take(MAX_CAUSES)
                .map(|c| one_line(&c.reason))
                .collect(),
        }
    }
}

/// Makes a text fit for a log line and an event.
fn one_line(text: &str) -> String {
    text.trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_MESSAGE_CHARS)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_refusal_says() {
        let status = br#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"pods \"a\" not\nfound",
            "reason":"NotFound","details":{"name":"a","kind":"pods"},"code":404}"#;
        let busy = br#"{"kind":"Status","reason":"TooManyRequests","details":{"retryAfterSeconds":7},"code":429}"#;
        let large = br#"{"kind":"Status","reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"m"}],"retryAfterSeconds":1},"code":504}"#;
        for (name, status, header, body, want) in [
            (
                "a status",
                404,
                None,
                &status[..],
                ("NotFound", "pods \"a\" not found", None, 0),
            ),
            (
                "in the body",
                429,
                None,
                busy,
                ("TooManyRequests", "", Some(7), 0),
            ),
            (
                "the header wins",
                429,
                Some("3"),
                busy,
                ("TooManyRequests", "", Some(3), 0),
            ),
            (
                "without end",
                503,
                Some("99999999"),
                b"",
                ("", "", Some(600), 0),
            ),
            (
                "a date is not read",
                503,
                Some("Sun, 06 Nov 1994 08:49:37 GMT"),
                b"",
                ("", "", None, 0),
            ),
            (
                "a proxy",
                502,
                None,
                b" <html>\r\nbad ",
                ("", "<html>  bad", None, 0),
            ),
            ("nothing", 500, None, b"", ("", "", None, 0)),
            ("causes", 504, None, large, ("Timeout", "", Some(1), 1)),
            (
                "another kind",
                500,
                None,
                br#"{"kind":"Pod"}"#,
                ("", r#"{"kind":"Pod"}"#, None, 0),
            ),
        ] {
            let error = ApiError::from_body(status, header, body);
            let found = (
                error.reason.as_str(),
                error.message.as_str(),
                error.retry_after.map(|d| d.as_secs()),
                error.causes.len(),
            );
            assert_eq!((error.status, found), (status, want), "{name}");
        }
        let long = ApiError::from_body(500, None, &[b'x'; 10_000]);
        assert_eq!(long.message.len(), MAX_MESSAGE_CHARS);
    }

    #[test]
    fn what_may_be_tried_again() {
        let api = |status| {
            KubeError::Api(ApiError {
                status,
                ..ApiError::default()
            })
        };
        for (error, again, answer) in [
            (api(429), true, true),
            (api(500), true, true),
            (api(504), true, true),
            (api(401), false, true),
            (api(404), false, true),
            (api(409), false, true),
            (KubeError::Local(String::new()), false, false),
            (KubeError::Cancelled, false, false),
            (
                KubeError::Unreachable {
                    url: String::new(),
                    why: String::new(),
                    sent: true,
                },
                true,
                false,
            ),
        ] {
            assert_eq!(
                (error.may_pass(), error.is_answer()),
                (again, answer),
                "{error}"
            );
        }
        assert!(api(404).is_not_found() && api(409).is_conflict());
    }
}
