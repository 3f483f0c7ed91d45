//! Streams that a server of the runtime has: containerd, CRI-O (STREAM-01). The runtime gives a URL, once; the client's
//! bytes are passed on to it.
//!
//! | client | way of its bytes |
//! |---|---|
//! | SPDY, the old WebSocket channels | its request goes to the URL as it came, then bytes pass both ways: [`pass_client_on`]; or [`open_command_session`], if its bytes are limited |
//! | `v5.channel.k8s.io`, which such servers do not know | is spoken with here, and is SPDY there: [`open_command_session`] |
//! | SPDY tunnelled through WebSocket, likewise | is unpacked here: [`serve_tunnel()`] |
//! | `picolet-port`, of the local socket | is a pair of SPDY's streams there: [`connect_port`] |
//!
//! Source: kubelet `server/server.go`, `proxyStream`; k8s.io/apimachinery `util/proxy/upgradeaware.go`; KEP-4006.

mod answer;
mod dial;
mod spdy;
mod tunnel;

use core::time::Duration;
use std::io;

use smol::io::AsyncWriteExt as _;

use self::answer::{UpstreamAnswer, UpstreamAnswerError};
pub(super) use self::spdy::{connect_port, open_command_session};
pub(super) use self::tunnel::serve_tunnel;
use super::join::{HalfClose, join_connections};
use super::{ServeOutcome, parse_upgrade};
use crate::net::{Url, UrlError};
use crate::server::backend::StreamingBackend;
use crate::server::connection::StreamConnection;
use crate::server::http::{self, HttpRequest, Refusal, RequestOrigin};
use crate::stream::upgrade::strip_bearer_tokens;

/// Headers of a client that are not the runtime's business, or that are written anew.
const OWN_HEADERS: [&str; 8] = [
    "authorization",
    "connection",
    "content-length",
    "cookie",
    "expect",
    "proxy-authorization",
    "transfer-encoding",
    FORWARDED_FOR,
];
/// Header with the address that a request has come from.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// Reason why the runtime's server of streams cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum UpstreamError {
    /// The runtime gave no usable URL.
    #[error("the runtime's URL for streams cannot be used: {0}")]
    Url(#[from] UrlError),
    /// The URL is not of this node; the streams of a container are on its own node.
    #[error("the runtime's URL for streams is not of this node: {0}")]
    Elsewhere(String),
    /// No server listens there.
    #[error("cannot connect to the runtime's streams at {place}: {source}")]
    Connect {
        /// Host and port.
        place: String,
        /// Cause.
        source: io::Error,
    },
    /// The server did not answer in time.
    #[error("the runtime's streams at {place} did not answer within {after:?}")]
    Silent {
        /// Host and port.
        place: String,
        /// The time it had.
        after: Duration,
    },
    /// The connection broke, or TLS failed.
    #[error("lost the runtime's streams at {place}: {source}")]
    Broken {
        /// Host and port.
        place: String,
        /// Cause.
        source: io::Error,
    },
    /// The answer is no HTTP, or too long.
    #[error("the runtime's streams at {place} gave an invalid answer: {why}")]
    Nonsense {
        /// Host and port.
        place: String,
        /// Fault of the answer.
        why: UpstreamAnswerError,
    },
    /// The server refused.
    #[error("{}", .0.text())]
    Refused(UpstreamAnswer),
}

impl UpstreamError {
    /// HTTP status.
    const fn http_status(&self) -> u16 {
        match self {
            Self::Url(_) | Self::Elsewhere(_) => 500,
            Self::Connect { .. } | Self::Broken { .. } | Self::Nonsense { .. } => 502,
            Self::Silent { .. } => 504,
            // A status below 400 is no refusal, and no answer to an upgrade.
            Self::Refused(answer) if answer.status < 400 => 500,
            Self::Refused(answer) => answer.status,
        }
    }

    /// Tells the client.
    pub(super) async fn send_to_client(self, connection: &mut StreamConnection) -> io::Result<()> {
        log::debug!("streams of the runtime: {self}");
        match &self {
            Self::Refused(answer) if answer.status >= 400 => {
                let (status, kind) = (self.http_status(), answer.content_type());
                http::send_response_with_headers(
                    connection,
                    status,
                    kind,
                    &answer.lines,
                    &answer.body,
                )
                .await
            }
            _ => {
                http::send_refusal(
                    connection,
                    &Refusal::new(self.http_status(), self.to_string()),
                )
                .await
            }
        }
    }
}

/// A server that has switched to another protocol.
pub(super) struct UpstreamConnection {
    /// Connection to the server, from here on in the new protocol.
    connection: StreamConnection,
    /// Head of the server's answer, as it came.
    head: Vec<u8>,
}

/// Passes a client on to `url`, with the request as it came.
pub(super) async fn pass_client_on(
    streaming: &dyn StreamingBackend,
    connection: &mut StreamConnection,
    request: &HttpRequest,
    url: &str,
) -> ServeOutcome {
    if let Err(refused) = parse_upgrade(request) {
        let refusal = Refusal::new(refused.http_status(), refused.to_string());
        http::send_refusal_with_headers(connection, &refusal, &refused.header_lines()).await?;
        return Ok(Ok(()));
    }
    // A server of the network has read the body already. Here it would be taken for the bytes of the stream.
    let has_body = request.content_length > 0 || request.is_chunked;
    if has_body && request.origin == RequestOrigin::Local {
        return Ok(Err(Refusal::bad_request(
            "a request for streams has no body",
        )));
    }
    let peer = connection.peer_address().map(|ip| ip.to_string());
    let time = streaming.creation_timeout();
    let opening = dial::open_upstream(url, time, |url| build_request_head(request, url, peer));
    let Some(opened) = unless_left(connection, opening).await else {
        return Ok(Ok(()));
    };
    let mut opened = match opened {
        Ok(opened) => opened,
        Err(lost) => return lost.send_to_client(connection).await.map(Ok),
    };
    connection.answer.keep = false;
    // A client may take nothing for as long as it likes: a pager holds its command back.
    connection.set_write_timeout(None);
    connection.write_all(&opened.head).await?;
    connection.flush().await?;
    let joined = join_connections(
        connection,
        &mut opened.connection,
        streaming,
        HalfClose::Ends,
    );
    let joined = joined.await;
    if joined.is_err() {
        opened.connection.abort_on_drop();
    }
    joined.map(Ok)
}

/// Waits for `work`; `None`: the client has left before.
async fn unless_left<T>(
    connection: &mut StreamConnection,
    work: impl Future<Output = T>,
) -> Option<T> {
    let left = async {
        connection.wait_for_close().await;
        None
    };
    smol::future::or(async { Some(work.await) }, left).await
}

/// The client's request, for the runtime: another path, and none of its secrets.
pub(super) fn build_request_head(request: &HttpRequest, url: &Url, peer: Option<String>) -> String {
    use core::fmt::Write as _;
    let mut head = format!("{} {} HTTP/1.1\r\n", request.method, url.path);
    if request.header_value("host").is_none() {
        let _ = write!(head, "Host: {}\r\n", url.authority);
    }
    for (name, value) in &request.headers {
        let is = |other: &&str| name.eq_ignore_ascii_case(other);
        let kept = match name.eq_ignore_ascii_case("sec-websocket-protocol") {
            _ if OWN_HEADERS.iter().any(is) => None,
            true => strip_bearer_tokens(value),
            false => Some(value.clone()),
        };
        if let Some(value) = kept {
            let _ = write!(head, "{name}: {value}\r\n");
        }
    }
    let before = request.headers_named(FORWARDED_FOR).map(str::to_owned);
    let way: Vec<String> = before.chain(peer).collect();
    if !way.is_empty() {
        let _ = write!(head, "X-Forwarded-For: {}\r\n", way.join(", "));
    }
    head.push_str("Connection: Upgrade\r\n");
    if request.method == "POST" {
        head.push_str("Content-Length: 0\r\n");
    }
    head.push_str("\r\n");
    head
}
