//! HTTP over the local unix socket.
