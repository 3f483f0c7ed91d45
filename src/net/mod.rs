//! The way to servers: names, proxies, trust. Registries and the apiserver share it below HTTP.
//!
//! | module | content |
//! |---|---|
//! | `any_peer` | TLS with any peer, as a client or as a server |
//! | `client` | HTTP for documents |
//! | [`url`] | absolute `http` and `https` URLs |
//! | [`dns`], [`names`] | name servers asked by ourselves |
//! | `http_response` | responses of HTTP/1.1 taken apart, without I/O |
//! | `known_time` | the time, for certificates |
//! | [`meter`] | bytes that go over the link |
//! | [`pace`] | delays between attempts, stopping |
//! | [`proxies`] | which requests go through a proxy |
//! | [`serving`] | TLS as a server: its certificate, those of its clients |
//! | [`tcp`] | connections that may be silent for long |
//! | [`traffic`] | traffic through the interfaces of a network namespace |
//! | [`tls`] | TLS below HTTP: CAs, client certificates, our clock |
//! | `watch` | reads that end when a pull does |
//! | [`way`] | the interface by which packets to a server leave |
//!
//! Everything blocks: it runs on lanes and on threads of a pull, never on the deciding one. Nothing here is built or read
//! before a server is first asked: a board without peers pays for none of it.

pub(crate) mod any_peer;
pub(crate) mod client;
mod dns;
pub(crate) mod http_response;
pub(crate) mod known_time;
pub mod meter;
pub mod names;
pub mod pace;
pub mod proxies;
pub mod serving;
pub mod tcp;
pub mod tls;
pub mod traffic;
pub mod url;
mod watch;
pub mod way;

pub(crate) use names::NameResolver;
pub use proxies::ProxyVariables;
pub use url::{Url, UrlError};
