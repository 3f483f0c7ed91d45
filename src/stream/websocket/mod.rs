//! RFC 6455, both sides, and what Kubernetes puts into its messages.
//!
//! [`WebSocket`] reads frames and unmasks their payload where it lies; [`Channels`] are the `channel.k8s.io` protocols,
//! [`SpdyTunnel`] carries a SPDY connection. No extensions; text is not checked for UTF-8, as no reader here cares (upstream's
//! server, golang.org/x/net/websocket, does not either, and clients do send stdin as text).
//!
//! Frames are our own: every crate found either does its own input and output on whole messages, or reads a frame's
//! head and checks no rules.

mod channels;
mod frame;
#[cfg(test)]
mod tests;
mod tunnel;

pub use channels::{ChannelEvent, ChannelProtocol, Channels};
pub use frame::{MessageKind, WebSocket, WebSocketError, WebSocketEvent};
pub use tunnel::{SpdyTunnel, TUNNEL_PROTOCOL};

/// The connection ends as it should.
pub const NORMAL: u16 = 1000;
