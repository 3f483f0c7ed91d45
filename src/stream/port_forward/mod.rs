//! Port forwarding: connections to a pod's ports, each a pair of streams (SPDY, plain or tunnelled) or of channels
//! (WebSocket).
//!
//! [`SpdyPortForward`] is what kubectl speaks: a client opens an error and a data stream for each connection, as many
//! as it likes. [`WebSocketPortForward`] is the older form for other clients: one connection for each port named in
//! the query, all at once.
//!
//! Sources: k8s.io/cri-streaming `portforward/{httpstream,websocket}.go`.

mod ports;
mod streams;
#[cfg(test)]
mod tests;

use core::time::Duration;

pub use ports::{PortQueryError, WebSocketPortEvent, WebSocketPortForward};
pub use streams::{MAX_PAIRS, PairId, PortForwardError, SpdyPortEvent, SpdyPortForward};

use super::websocket::{ChannelProtocol, TUNNEL_PROTOCOL};

/// Time in which the second stream of a pair has to come.
pub const CREATION_TIMEOUT: Duration = Duration::from_secs(30);

/// The SPDY protocol.
pub const SPDY_PROTOCOLS: &[&str] = &["portforward.k8s.io"];

/// WebSocket protocols that are served; the first, for apiservers that know this node's features, needs
/// [`SpdyPortForward::over_web_socket`].
pub const WEBSOCKET_PROTOCOLS: &[&str] = &[
    TUNNEL_PROTOCOL,
    ChannelProtocol::V4.protocol_name(),
    ChannelProtocol::V4Base64.protocol_name(),
];

/// A port as clients write it: 1 to 65535.
fn parse_port(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port > 0)
}
