//! HTTP over the local unix socket.

pub mod http;
pub mod log_reader;
pub mod stream;
