//! The way to servers: names, proxies, trust. What the registries and the apiserver have in common below HTTP.
//!
//! | module | what it is |
//! |---|---|
//! | `any_peer` | TLS with whoever answers, or asks |
//! | `client` | HTTP for documents |
//! | [`url`] | absolute `http` and `https` URLs |
//! | [`dns`], [`names`] | name servers asked by ourselves |
//! | `http_response` | responses of HTTP/1.1 taken apart, without I/O |
//! | `known_time` | what day it is, for certificates |
//! | [`meter`] | bytes that go over the link |
//! | [`pace`] | delays between attempts, stopping |
//! | [`proxies`] | which requests go through a proxy |
//! | [`serving`] | TLS as a server: its certificate, those of its clients |
//! | [`tcp`] | connections that may be silent for long |
//! | [`traffic`] | what went through the interfaces of a network namespace |
//! | [`tls`] | TLS below HTTP: CAs, client certificates, our clock |
//! | `watch` | reads that end when a pull does |
//! | [`way`] | by which interface what is sent leaves |
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

pub(crate) use names::Names;
pub use proxies::ProxyVariables;
pub use url::{Url, UrlError};
