//! Why nobody answered.

/// Nobody answered, by who is at fault.
///
/// Texts are Go's, for people and tools know them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The pod's author: this cannot be asked.
    #[error("{0}")]
    Spec(String),
    /// This node: it does not know whom to ask.
    #[error("{0}")]
    Node(String),
    /// Whoever was asked.
    #[error("{0}")]
    Peer(String),
    /// The same: asked over TLS, it answers in plain text.
    #[error("http: server gave HTTP response to HTTPS client")]
    PlainHttp,
}

/// What was asked for, and why nobody answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Get \"{url}\": {source}")]
pub struct Unanswered {
    /// The last URL. May hold secrets.
    pub url: String,
    /// The cause.
    pub source: AskError,
}
