//! Limit of the bytes of a session whose client is on another machine (METER-05).
//!
//! The bytes of the session's connection are counted, without TLS and the layers below. The limit is the one that the
//! link has at that moment.

use super::backend::StreamingBackend;
use super::connection::StreamConnection;
use crate::api::quantity::human_bytes;

/// See the module.
#[derive(Clone, Copy)]
pub(super) struct Allowance<'a> {
    streaming: &'a dyn StreamingBackend,
    /// Bytes that the connection had carried before the session.
    before: u64,
}

impl<'a> Allowance<'a> {
    /// Begins the allowance of a session on `connection`; `None` if its bytes do not go over the link.
    pub(super) fn new(
        streaming: &'a dyn StreamingBackend,
        connection: &StreamConnection,
    ) -> Option<Self> {
        let before = connection.carried_bytes();
        connection
            .leaves_machine()
            .then_some(Self { streaming, before })
    }

    /// Returns the reason for the end of the session, one line, if its connection has `carried` all that it may.
    pub(super) fn spent_reason(&self, carried: u64) -> Option<String> {
        let limit = self.streaming.session_limit_bytes()?;
        let is_spent = carried.saturating_sub(self.before) >= limit;
        is_spent.then(|| {
            let bytes = human_bytes(limit);
            log::debug!("a session ends after {bytes}");
            format!("the session ends here: a node may send and receive {bytes} in one (picolet.link.streamBytes)")
        })
    }
}
