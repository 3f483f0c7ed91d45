//! gRPC, of our own: HTTP/2 for both roles, HPACK, protobuf.
//!
//! Protocols are machines without I/O: bytes and the time go in, bytes and events come out. Peers may be hostile: every
//! length, count and rate has a limit, a constant beside its use.
//!
//! | module | what it is |
//! |---|---|
//! | [`hpack`] | blocks of header fields; RFC 7541 |
//! | [`http2`] | a connection and its streams, for both roles; RFC 9113 |
//! | [`proto`] | messages of protobuf, by a table for each |
//! | [`envelope`], [`status`] | messages in a stream; the end of a call |
//! | [`client`], [`server`] | calls, over any pipe; `session` is what they share |
#![forbid(unsafe_code)]

pub mod client;
pub mod envelope;
pub mod hpack;
pub mod http2;
pub mod proto;
pub mod server;
mod session;
pub mod status;
mod table;

pub use session::{BytePipe, ConnectionClock, SleepFuture};
