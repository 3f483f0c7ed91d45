//! How much a session may send and receive whose client is not on this machine (METER-05).
//!
//! What its connection carries is counted, without TLS and what is below. It is judged as the link is at that moment.

use super::backend::Streaming;
use super::connection::Connection;
use crate::api::quantity::human_bytes;

/// See the module.
#[derive(Clone, Copy)]
pub(super) struct Allowance<'a> {
    streaming: &'a dyn Streaming,
    /// What the connection had carried before the session.
    before: u64,
}

impl<'a> Allowance<'a> {
    /// Of a session that begins on `connection`; `None`: nothing of it goes over the link.
    pub(super) fn new(streaming: &'a dyn Streaming, connection: &Connection) -> Option<Self> {
        let before = connection.carried();
        connection
            .leaves_machine()
            .then_some(Self { streaming, before })
    }

    /// Why the session ends now whose connection has `carried` so much, if it does: one line.
    pub(super) fn spent(&self, carried: u64) -> Option<String> {
        let limit = self.streaming.stream_bytes()?;
        let is_spent = carried.saturating_sub(self.before) >= limit;
        is_spent.then(|| {
            let bytes = human_bytes(limit);
            log::debug!("a session ends after {bytes}");
            format!("the session ends here: a node may send and receive {bytes} in one (picolet.link.streamBytes)")
        })
    }
}
