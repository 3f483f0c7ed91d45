//! Probes the health of containers: HTTP, TCP, gRPC. Names and texts follow kubelet `pkg/probe`.
//!
//! | module | what it is |
//! |---|---|
//! | [`http`] | a GET, its redirects, its answer as far as it matters |
//! | [`grpc`] | `grpc.health.v1.Health/Check` over HTTP/2 in plain text |
//! | `dial` | connections to a host |
//! | `plain` | such a connection, which the reactor is told of only if it keeps waiting |
//! | `tls` | TLS on a socket that does not block; no certificate is checked |
//!
//! Everything runs on the executor of the deciding thread: sockets do not block, and no probe has a thread. A peer is
//! not trusted: reading from it is bounded in bytes and in pieces, so that a peer that drips costs no more than a
//! silent one.
//!
//! Sockets do not linger (PROBE-22 says 1 s): on Linux a lingering close blocks the thread that closes, socket
//! non-blocking or not, until the peer has acknowledged. Nothing is lost without lingering: all that was sent has been
//! answered by then.

mod dial;
mod error;
pub mod grpc;
pub mod http;
mod plain;
mod tls;

#[cfg(test)]
mod tests;

use alloc::sync::Arc;
use core::{cell::OnceCell, future::Future, net::IpAddr, pin::Pin, time::Duration};

use rustls::ClientConfig;
use smol::future;

use crate::sys::lane::Lane;

pub use error::{ProbeRequestError, UnansweredRequest};

/// The Kubernetes version that probes and hooks claim in `User-Agent`.
pub(crate) const VERSION: &str = "1.36";
/// Bytes that are kept of a text from a peer or a command: events cut it shorter still.
pub const MAX_TEXT_BYTES: usize = 1024;

/// Target of a probe. Ports are resolved, hosts are not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeAction {
    /// `httpGet`.
    Http(HttpGet),
    /// `tcpSocket`.
    Tcp {
        /// Name or address; empty for the pod's.
        host: Box<str>,
        /// Port.
        port: u16,
    },
    /// `grpc`.
    Grpc {
        /// Port.
        port: u16,
        /// Service; empty for the server as a whole.
        service: Box<str>,
    },
}

/// A GET request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpGet {
    /// Set if the request goes over TLS.
    pub https: bool,
    /// Name or address; empty for the pod's.
    pub host: Box<str>,
    /// Port.
    pub port: u16,
    /// Path and query, as [`http::request_target`] makes them.
    pub target: Box<str>,
    /// Headers in their order.
    pub headers: Box<[(Box<str>, Box<str>)]>,
}

/// Result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeAnswer {
    /// The container is well.
    Success,
    /// The container is well, and its owner should look at this.
    Warning(String),
    /// The container is not well.
    Failure(String),
    /// Unknown result: this does not count.
    Error(String),
}

/// A time limit.
pub type TimeLimit = Pin<Box<dyn Future<Output = ()>>>;

/// Resources that all probes share; made when they are first needed.
#[derive(Default)]
pub struct Prober {
    names: OnceCell<Option<Lane>>,
    tls: OnceCell<Arc<ClientConfig>>,
}

impl Prober {
    /// Asks once. `ip` is the pod's, if it has one; `limit` is what `late` waits, for texts.
    ///
    /// Dropped, it ends at once and closes its socket.
    pub async fn run_probe(
        &self,
        action: &ProbeAction,
        ip: Option<IpAddr>,
        limit: Duration,
        late: TimeLimit,
    ) -> ProbeAnswer {
        match action {
            ProbeAction::Http(get) => http::probe_http(self, get, ip, late).await,
            ProbeAction::Tcp { host, port } => {
                let connect = async {
                    match dial::connect_to_host(self, host, ip, *port).await {
                        Ok(_) => ProbeAnswer::Success,
                        Err(e) => ProbeAnswer::Failure(e.to_string()),
                    }
                };
                let late = async {
                    late.await;
                    let host = dial::host_and_port(host, ip, *port);
                    ProbeAnswer::Failure(format!("dial tcp {host}: i/o timeout"))
                };
                future::or(connect, late).await
            }
            ProbeAction::Grpc { port, service } => {
                grpc::probe_grpc(self, ip, *port, service, limit, late).await
            }
        }
    }
}

impl core::fmt::Debug for Prober {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Prober")
    }
}

/// A whole number of seconds as Go writes a duration: `1m30s`.
fn go_duration(limit: Duration) -> String {
    let s = limit.as_secs();
    let (hours, minutes, seconds) = (s / 3600, s / 60 % 60, s % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}
