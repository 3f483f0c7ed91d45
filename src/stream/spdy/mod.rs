//! SPDY/3.1, both sides, as far as Kubernetes streams need it: the client opens streams, the server answers them.
//!
//! Taken from the draft: all frame types, header compression with the draft's dictionary and one context per direction,
//! half-close, reset, ping, go-away, windows. Left out: streams of the server's own, credentials, priorities. Different
//! on purpose:
//!
//! * **Windows.** The peers that exist use spdystream. It never sends a WINDOW_UPDATE and drops those it gets; it sends
//!   without regard to windows. A server that kept to the draft's 64 KiB would stall after 64 KiB for ever. So windows bind
//!   what is sent only once the peer has shown that it keeps them (by an initial window size or a WINDOW_UPDATE), and a
//!   peer that overruns ours is not at fault. Ours are opened again as payload is reported as passed on, but not by
//!   a client: all servers that it meets are spdystream's.
//! * **Header compression** of what is sent: stored blocks. All that is sent is empty replies and a few short headers; a
//!   compressor would cost more than it saves.
//! * Data for a stream that is not open is dropped: this side has reset the stream meanwhile.
//!
//! Sources: SPDY draft 3.1 (chromium.org), RFC 1950 (preset dictionary); peers: moby/spdystream `connection.go`,
//! `spdy/read.go`, `spdy/write.go`.

mod dictionary;
mod header_block;
mod inflate;
mod session;
#[cfg(test)]
mod tests;
mod wire;

pub use header_block::SpdyHeaders;
pub use session::{MAX_STREAMS, SpdyEvent, SpdySession, StreamClosedError};
#[cfg(test)]
pub(crate) use wire::data_head as wire_head;
pub use wire::{GoAwayReason, ResetReason, SpdyError, SpdyStreamId};
#[cfg(test)]
pub(crate) use {
    header_block::{HeaderCompressor, encode_headers},
    inflate::HeaderDecompressor,
};
