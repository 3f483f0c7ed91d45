//! Errors between this machine and a registry.

use core::time::Duration;

use super::pace::MAX_RETRY_AFTER;
use crate::net::Url;
use crate::net::tls::TlsError;

/// An error of one exchange with a registry, or of what it sent.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// No answer: name not found, refused, timed out, cut.
    #[error("cannot reach {url}: {why}")]
    Unreachable {
        /// URL without its query.
        url: String,
        /// Error of the transport.
        why: String,
    },
    /// TLS: the certificate, or the CAs to check it by.
    #[error("cannot trust {host}: {why}")]
    Tls {
        /// Host and port.
        host: String,
        /// Fault of the certificate or the CAs.
        why: String,
    },
    /// An answer that is no success.
    #[error("{url} answers {status}{}{}", dash(message), again(*retry_after))]
    Status {
        /// URL without its query.
        url: String,
        /// HTTP status.
        status: u16,
        /// The registry's own words, cut; may be empty.
        message: String,
        /// Time after which to ask again, if the answer names one.
        retry_after: Option<Duration>,
    },
    /// Credentials are wanted, and the ones at hand were refused.
    #[error("{host} refuses access to {repository}{}", dash(message))]
    Denied {
        /// Host and port.
        host: String,
        /// Repository there.
        repository: String,
        /// The registry's own words, cut; may be empty.
        message: String,
    },
    /// The answer is not what it has to be: wrong digest, wrong length, not the format.
    #[error("{url}: {why}")]
    Wrong {
        /// URL without its query.
        url: String,
        /// Fault of the answer, for people.
        why: String,
    },
    /// An answer that no repetition changes: it leads somewhere it must not, or is larger than anything that is taken.
    #[error("{url}: {why}")]
    Unusable {
        /// URL without its query.
        url: String,
        /// Fault of the answer, for people.
        why: String,
    },
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
    /// A file of this machine.
    #[error("cannot {action} {path}: {why}")]
    Local {
        /// Verb.
        action: &'static str,
        /// File.
        path: String,
        /// Cause.
        why: String,
        /// Kind of the cause.
        kind: std::io::ErrorKind,
    },
}

fn dash(message: &str) -> String {
    if message.is_empty() {
        String::new()
    } else {
        format!(": {message}")
    }
}

/// Text of a time that is too long to be waited out; empty for a shorter one.
fn again(retry_after: Option<Duration>) -> String {
    match retry_after {
        Some(time) if time > MAX_RETRY_AFTER => {
            format!(", try again in {} s", time.as_secs())
        }
        _ => String::new(),
    }
}

impl RegistryError {
    pub(super) fn wrong_answer(url: &Url, why: impl Into<String>) -> Self {
        Self::Wrong {
            url: url.without_query(),
            why: why.into(),
        }
    }

    pub(super) fn unusable_answer(url: &Url, why: impl Into<String>) -> Self {
        Self::Unusable {
            url: url.without_query(),
            why: why.into(),
        }
    }

    /// Makes the error of a host, that of `url`, with which TLS cannot be spoken.
    pub(super) fn tls_failure(url: &Url, error: TlsError) -> Self {
        match error {
            TlsError::File {
                action,
                path,
                source,
            } => Self::Local {
                action,
                path,
                why: source.to_string(),
                kind: source.kind(),
            },
            TlsError::Unusable(why) => Self::Tls {
                host: url.authority.clone(),
                why,
            },
        }
    }

    /// Makes the error of a local file; for `map_err`.
    pub(in crate::image) fn local_file_error(
        action: &'static str,
        path: &std::path::Path,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.display().to_string();
        move |e| Self::Local {
            action,
            path,
            why: e.to_string(),
            kind: e.kind(),
        }
    }

    /// Returns true if the registry, or the way to it, is out of order: the answer says nothing of the image then.
    #[must_use]
    pub const fn is_outage(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Status { status, .. } => *status == 429 || *status >= 500,
            Self::Tls { .. }
            | Self::Denied { .. }
            | Self::Wrong { .. }
            | Self::Unusable { .. }
            | Self::Cancelled
            | Self::Local { .. } => false,
        }
    }

    /// Time that the registry wants to be left alone.
    pub(super) const fn retry_after(&self) -> Duration {
        match self {
            Self::Status {
                retry_after: Some(time),
                ..
            } => *time,
            _ => Duration::ZERO,
        }
    }

    /// Returns true if the same request may work a moment later: after an outage, or an answer that was spoiled on the
    /// way. A registry that wants to be left alone for long is: the back-off of the pod takes over.
    pub(super) fn may_pass(&self) -> bool {
        (self.is_outage() || matches!(self, Self::Wrong { .. }))
            && self.retry_after() <= MAX_RETRY_AFTER
    }

    /// Returns true if other credentials may help.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        match self {
            Self::Denied { .. } => true,
            // Registries hide what one may not see, and some count requests by account.
            Self::Status { status, .. } => matches!(*status, 403 | 404 | 429),
            _ => false,
        }
    }

    /// Returns true if the fault is on this side: asking elsewhere is useless.
    #[must_use]
    pub const fn is_local_fault(&self) -> bool {
        matches!(self, Self::Cancelled | Self::Local { .. })
    }
}
