//! Exec and attach: standard streams, terminal sizes and the end of a command, over SPDY or WebSocket.
//!
//! ```text
//! SPDY       streams by header streamType:  error  stdin  stdout  stderr  resize     (v1 to v4 differ in the end's form)
//! WebSocket  channels by number:            3      0      1       2       4          (255: a channel is closed, v5)
//! ```
//!
//! The caller makes a [`RemoteCommandSession`] for the protocol that was negotiated, drives it as [`crate::stream`]
//! says, starts the command at [`RemoteCommandEvent::Ready`], and calls [`RemoteCommandSession::send_outcome`] when
//! all output was given. Then it closes its own direction first: the kernel would throw the output away if bytes of
//! the client were left unread.
//!
//! Sources: k8s.io/cri-streaming `remotecommand/{httpstream,websocket,exec,status}.go`.

mod outcome;
mod remote;
mod size;
#[cfg(test)]
mod tests;

use core::time::Duration;

pub use outcome::CommandOutcome;
pub use remote::{OutputStream, RemoteCommandError, RemoteCommandEvent, RemoteCommandSession};
pub use size::TerminalSize;

use super::websocket::ChannelProtocol;

/// Time in which a client has to open its streams.
pub const CREATION_TIMEOUT: Duration = Duration::from_secs(30);

/// SPDY protocols that are served, by name.
pub const SPDY_PROTOCOLS: &[&str] = &[
    "v4.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
];

/// WebSocket protocols that are served, by name. The first is for apiservers that know this node's features.
pub const WEBSOCKET_PROTOCOLS: &[&str] = &[
    ChannelProtocol::V5.protocol_name(),
    ChannelProtocol::V4.protocol_name(),
    ChannelProtocol::V4Base64.protocol_name(),
    ChannelProtocol::Channel.protocol_name(),
    ChannelProtocol::Base64.protocol_name(),
];

/// A SPDY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RemoteCommandVersion {
    /// `channel.k8s.io`. Served as v2; upstream keeps its old bugs (the error stream is useless, stdin is half closed).
    V1,
    /// `v2.channel.k8s.io`.
    V2,
    /// `v3.channel.k8s.io`: terminal sizes.
    V3,
    /// `v4.channel.k8s.io`: the end is a Status.
    V4,
}

impl RemoteCommandVersion {
    /// The version called `name`, one of [`SPDY_PROTOCOLS`].
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let at = SPDY_PROTOCOLS.iter().position(|n| *n == name)?;
        [Self::V4, Self::V3, Self::V2, Self::V1].get(at).copied()
    }
}

/// The WebSocket protocol called `name`; `""` is one.
#[must_use]
pub fn websocket_protocol(name: &str) -> Option<ChannelProtocol> {
    [
        ChannelProtocol::Unnamed,
        ChannelProtocol::Channel,
        ChannelProtocol::Base64,
        ChannelProtocol::V4,
        ChannelProtocol::V4Base64,
        ChannelProtocol::V5,
    ]
    .into_iter()
    .find(|p| p.protocol_name() == name)
}

/// The streams that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedStreams {
    /// Input.
    pub stdin: bool,
    /// Output.
    pub stdout: bool,
    /// Errors; never with a terminal, which has one output.
    pub stderr: bool,
    /// A terminal, whose size can change.
    pub tty: bool,
}

/// A request without any stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("you must specify at least 1 of stdin, stdout, stderr")]
pub struct NoStreams;

impl RequestedStreams {
    /// Reads the wanted streams from a query, `param` giving a parameter's first value. An attach takes `tty` from the
    /// container; for exec it is in the query too.
    pub fn from_query<'a>(
        param: impl Fn(&str) -> Option<&'a str>,
        tty: Option<bool>,
    ) -> Result<Self, NoStreams> {
        let is_on = |name| param(name) == Some("1");
        let tty = tty.unwrap_or_else(|| is_on("tty"));
        let wanted = Self {
            stdin: is_on("input"),
            stdout: is_on("output"),
            stderr: is_on("error") && !tty,
            tty,
        };
        if wanted.stdin || wanted.stdout || wanted.stderr {
            Ok(wanted)
        } else {
            Err(NoStreams)
        }
    }
}
