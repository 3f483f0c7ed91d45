//! Providers: programs of this machine that run pods which are no containers. What is exchanged with one, and how it is reached.
//!
//! It decides nothing: what is said is made sense of in `logic::provider`, and acted on in `agent::provider`. The protocol is in
//! `docs/provider.md`.

mod frames;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod socket;

pub use frames::Framed;
pub use socket::{Body, Socket};

use core::{future::Future, pin::Pin, time::Duration};
use std::io;

/// A whole call, but for those that wait on purpose (PRVD-02).
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The provider answers a question for changes within this, changed or not.
pub const CHANGES_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a pod that is told to a provider, as JSON.
pub const MAX_POD_BYTES: usize = 256 * 1024;
/// Bytes of a list of pods.
pub const MAX_LIST_BYTES: usize = 3 * 1024 * 1024;
/// Bytes of what a provider says of one pod: all containers with the longest message.
pub const MAX_WORDS_BYTES: usize = 512 * 1024;
/// Bytes of any other answer.
pub const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// Nobody listens, or the connection broke.
    #[error("cannot reach the provider")]
    Unreachable(#[source] io::Error),
    /// Whoever listens may not be root.
    #[error("the provider is not trusted: {0}")]
    Untrusted(String),
    /// It takes too long.
    #[error("the provider does not answer within {0:?}")]
    Slow(Duration),
    /// What it says is no answer.
    #[error("the provider's answer is not understood: {0}")]
    Nonsense(String),
    /// There is more of it than is read.
    #[error("the provider's answer is over {0} bytes")]
    TooLarge(usize),
    /// It refuses, in its own words.
    #[error("the provider answers {status}: {text}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// What it says, cut.
        text: String,
    },
}

/// A question.
#[derive(Clone, Debug)]
pub struct Request {
    /// HTTP method.
    pub method: &'static str,
    /// Path and query, as they are sent.
    pub target: String,
    /// JSON; none if empty.
    pub body: Vec<u8>,
    /// How long the whole call may take.
    pub time: Duration,
    /// Bytes of the answer.
    pub limit: usize,
}

impl Request {
    /// A short call with a small answer.
    pub fn new(method: &'static str, target: impl Into<String>) -> Self {
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
pub struct Answer {
    /// HTTP status: below 300, or 404.
    pub status: u16,
    /// At most what was asked for.
    pub body: Vec<u8>,
}

/// Something that is being asked.
pub type Asking<'a, T> = Pin<Box<dyn Future<Output = Result<T, ProviderError>> + 'a>>;

/// The way to one provider.
pub trait Wire {
    /// Asks, and reads the answer. 404 is one; every other status from 300 on is [`ProviderError::Refused`].
    fn ask(&self, request: Request) -> Asking<'_, Answer>;
    /// Asks for what has no end: a body that is read as it comes (`GET`, 200), or a connection (`POST`, 101). Every other
    /// answer is [`ProviderError::Refused`].
    fn open(&self, method: &'static str, target: String) -> Asking<'_, Body>;
}
