//! The connection to a provider: requests, answers, faults. The protocol is in `docs/provider.md`.
//!
//! Nothing is decided here: messages are read in `logic::provider`.

use core::{future::Future, pin::Pin, time::Duration};
use std::io;

use super::socket::StreamedBody;

/// Time limit of a whole call, but for calls that wait on purpose (PRVD-02).
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time in which the provider answers a question for changes, changed or not.
pub(crate) const CHANGES_TIMEOUT: Duration = Duration::from_secs(60);
/// Most bytes of a pod that is sent to a provider, as JSON.
pub(crate) const MAX_POD_BYTES: usize = 256 * 1024;
/// Most bytes of a list of pods.
pub(crate) const MAX_LIST_BYTES: usize = 3 * 1024 * 1024;
/// Most bytes of a provider's report of one pod: all containers with the longest message.
pub(crate) const MAX_WORDS_BYTES: usize = 512 * 1024;
/// Most bytes of any other answer.
pub(crate) const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// Reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProviderError {
    /// No program listens, or the connection broke.
    #[error("cannot reach the provider")]
    Unreachable(#[source] io::Error),
    /// The listener may be another user than root.
    #[error("the provider is not trusted: {0}")]
    Untrusted(String),
    /// The provider takes too long.
    #[error("the provider does not answer within {0:?}")]
    Slow(Duration),
    /// The bytes are not an answer.
    #[error("the provider's answer is not understood: {0}")]
    Nonsense(String),
    /// The answer is longer than is read.
    #[error("the provider's answer is over {0} bytes")]
    TooLarge(usize),
    /// The provider refuses, in its own words.
    #[error("the provider answers {status}: {text}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Body of the answer, cut.
        text: String,
    },
}

/// A call to a provider.
#[derive(Clone, Debug)]
pub(crate) struct ProviderRequest {
    /// HTTP method.
    pub(crate) method: &'static str,
    /// Path and query, as they are sent.
    pub(crate) target: String,
    /// JSON; empty: no body.
    pub(crate) body: Vec<u8>,
    /// Time limit of the whole call.
    pub(crate) time: Duration,
    /// Most bytes of the answer.
    pub(crate) limit: usize,
}

impl ProviderRequest {
    /// Makes a short call with a small answer.
    pub(crate) fn new(method: &'static str, target: impl Into<String>) -> Self {
        Self {
            method,
            target: target.into(),
            body: Vec::new(),
            time: CALL_TIMEOUT,
            limit: MAX_ANSWER_BYTES,
        }
    }
}

/// An answer, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProviderResponse {
    /// HTTP status: below 300, or 404.
    pub(crate) status: u16,
    /// Body, at most [`ProviderRequest::limit`] bytes.
    pub(crate) body: Vec<u8>,
}

/// A call that has not ended yet.
pub(crate) type ProviderCall<'a, T> = Pin<Box<dyn Future<Output = Result<T, ProviderError>> + 'a>>;

/// Connection to one provider.
pub(crate) trait ProviderWire {
    /// Asks, and reads the answer. A 404 counts as an answer; every other status from 300 on is
    /// [`ProviderError::Refused`].
    fn send_request(&self, request: ProviderRequest) -> ProviderCall<'_, ProviderResponse>;
    /// Opens a stream without an end: a body that is read as it comes (`GET`, 200), or a connection (`POST`, 101).
    /// Every other answer is [`ProviderError::Refused`].
    fn open_stream(&self, method: &'static str, target: String) -> ProviderCall<'_, StreamedBody>;
}
