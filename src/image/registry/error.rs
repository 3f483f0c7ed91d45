//! What can go wrong between this machine and a registry.

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
        /// Without its query.
        url: String,
        /// What the transport says.
        why: String,
    },
    /// TLS: the certificate, or the CAs to check it by.
    #[error("cannot trust {host}: {why}")]
    Tls {
        /// Host and port.
        host: String,
        /// What is wrong.
        why: String,
    },
    /// An answer that is no success.
    #[error("{url} answers {status}{}{}", dash(message), again(*retry_after))]
    Status {
        /// Without its query.
        url: String,
        /// HTTP status.
        status: u16,
        /// The registry's own words, cut; may be empty.
        message: String,
        /// When to ask again, if it says so of an outage.
        retry_after: Option<Duration>,
    },
    /// Credentials are wanted, and those that there are were refused.
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
        /// Without its query.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// What no repetition changes: it leads somewhere it must not, or is larger than anything that is taken.
    #[error("{url}: {why}")]
    Unusable {
        /// Without its query.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
    /// This machine's own files.
    #[error("cannot {action} {path}: {why}")]
    Local {
        /// Verb.
        action: &'static str,
        /// File.
        path: String,
        /// Cause.
        why: String,
        /// Its kind.
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

/// Only of a time that nobody waits for.
fn again(retry_after: Option<Duration>) -> String {
    match retry_after {
        Some(time) if time > MAX_RETRY_AFTER => {
            format!(", to be asked again in {} s", time.as_secs())
        }
        _ => String::new(),
    }
}

impl RegistryError {
    pub(super) fn wrong(url: &Url, why: impl Into<String>) -> Self {
        Self::Wrong {
            url: url.shown(),
            why: why.into(),
        }
    }

    pub(super) fn unusable(url: &Url, why: impl Into<String>) -> Self {
        Self::Unusable {
            url: url.shown(),
            why: why.into(),
        }
    }

    /// What keeps TLS from being spoken with the host of `url`.
    pub(super) fn tls(url: &Url, error: TlsError) -> Self {
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

    /// For `map_err`: an error of a local file.
    pub(in crate::image) fn local(
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

    /// Whether the registry, or the way to it, is out of order: nothing is known of the image then.
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

    /// How long the registry wants to be left alone.
    pub(super) const fn retry_after(&self) -> Duration {
        match self {
            Self::Status {
                retry_after: Some(time),
                ..
            } => *time,
            _ => Duration::ZERO,
        }
    }

    /// Whether the same request may work a moment later: outages, and what was spoiled on the way. A registry that wants
    /// to be left alone for long is: the back-off of the pod takes over.
    pub(super) fn may_pass(&self) -> bool {
        (self.is_outage() || matches!(self, Self::Wrong { .. }))
            && self.retry_after() <= MAX_RETRY_AFTER
    }

    /// Whether other credentials may help.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        match self {
            Self::Denied { .. } => true,
            // Registries hide what one may not see, and some count requests by account.
            Self::Status { status, .. } => matches!(*status, 403 | 404 | 429),
            _ => false,
        }
    }

    /// Whether asking elsewhere is useless: the fault is here.
    #[must_use]
    pub const fn is_ours(&self) -> bool {
        matches!(self, Self::Cancelled | Self::Local { .. })
    }
}
