//! Errors of requests that got no answer.

/// Reason why there was no answer, by who is at fault.
///
/// Texts are Go's, for people and tools know them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeRequestError {
    /// The pod's author is at fault: this cannot be asked.
    #[error("{0}")]
    Spec(String),
    /// The node is at fault: it does not know whom to ask.
    #[error("{0}")]
    Node(String),
    /// The peer is at fault.
    #[error("{0}")]
    Peer(String),
    /// The peer is at fault: asked over TLS, it answers in plain text.
    #[error("http: server gave HTTP response to HTTPS client")]
    PlainHttp,
}

/// A request without an answer, and the reason for that.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Get \"{url}\": {source}")]
pub struct UnansweredRequest {
    /// The last URL. May hold secrets.
    pub url: String,
    /// The cause.
    pub source: ProbeRequestError,
}
