//! Routes that become streams, and the one that runs a command without streams: for both servers.
//!
//! | route | stream |
//! |---|---|
//! | `GET`, `POST /exec/{namespace}/{pod}[/{uid}]/{container}` | a command, by [`remote`] |
//! | `GET`, `POST /attach/{namespace}/{pod}[/{uid}]/{container}` | a container's own streams, by [`remote`] |
//! | `GET`, `POST /portForward/{namespace}/{pod}[/{uid}]` | connections to ports, by [`ports`] |
//! | `POST /portForward/{namespace}/{pod}?port=` with `Upgrade: picolet-port` | one port, by [`join_connections()`]; only of the local socket |
//! | `POST /run/{namespace}/{pod}[/{uid}]/{container}?cmd=` | a command's output as text |
//!
//! Streams at a server of the runtime: [`upstream`].
//!
//! An error before the streams begin is told by the status of the answer, a later one by the protocol.
//!
//! Source: kubelet `server/server.go`, `InstallDebuggingHandlers`; k8s.io/cri-streaming `server.go`.

mod carrier;
mod join;
mod ports;
mod remote;
#[cfg(test)]
mod tests;
mod upstream;

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;

use async_io::Async;
use smol::io::AsyncWriteExt as _;

pub(crate) use self::join::PROTOCOL;

use self::carrier::SessionCarrier;
use self::join::{HalfClose, join_connections};
use super::ServeOutcome;
use super::backend::{PodName, StreamingBackend};
use super::http::{self, HttpRequest, Refusal, RequestOrigin, StreamConnection};
use crate::api::SandboxId;
use crate::runtime::{AttachOptions, ExecOptions, RuntimeError, SessionStart, StreamRoute};
use crate::stream::port_forward::{self, SpdyPortForward, WebSocketPortForward};
use crate::stream::remote_command::{
    self, RemoteCommandSession, RemoteCommandVersion, RequestedStreams, websocket_protocol,
};
use crate::stream::upgrade::{UpgradeError, UpgradeRequest};
use crate::stream::websocket::{ChannelProtocol, TUNNEL_PROTOCOL};

/// Most bytes that are kept of each output of a command that is run without streams.
const RUN_OUTPUT_BYTES: usize = 256 * 1024;

/// Text for a pod that has another UID than the one asked for.
pub(crate) const OTHER_UID: &str = "pod not found";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamingRoute<'a> {
    Exec(PodName<'a>, &'a str),
    Attach(PodName<'a>, &'a str),
    Run(PodName<'a>, &'a str),
    PortForward(PodName<'a>),
}

/// Finds the route of a path.
fn parse_streaming_route<'a>(path: &[&'a str]) -> Option<StreamingRoute<'a>> {
    let (kind, rest) = path.split_first()?;
    let (rest, container) = match (*kind, rest) {
        ("portForward", rest) => (rest, None),
        (_, [rest @ .., container]) => (rest, Some(*container)),
        _ => return None,
    };
    let pod = match *rest {
        [namespace, name] => PodName {
            namespace,
            name,
            uid: None,
        },
        [namespace, name, uid] => PodName {
            namespace,
            name,
            uid: Some(uid),
        },
        _ => return None,
    };
    match (*kind, container) {
        ("exec", Some(container)) => Some(StreamingRoute::Exec(pod, container)),
        ("attach", Some(container)) => Some(StreamingRoute::Attach(pod, container)),
        ("run", Some(container)) => Some(StreamingRoute::Run(pod, container)),
        ("portForward", None) => Some(StreamingRoute::PortForward(pod)),
        _ => None,
    }
}

/// Serves a request for one of these routes; `None`: it is for none of them.
pub(super) async fn serve_streaming_request(
    streaming: &dyn StreamingBackend,
    connection: &mut StreamConnection,
    request: &HttpRequest,
) -> Option<ServeOutcome> {
    let path: Vec<&str> = request.path.iter().map(String::as_str).collect();
    let route = parse_streaming_route(&path)?;
    let allowed: &[&str] = match route {
        StreamingRoute::Run(..) => &["POST"],
        StreamingRoute::Exec(..) | StreamingRoute::Attach(..) | StreamingRoute::PortForward(..) => {
            &["GET", "POST"]
        }
    };
    if !allowed.contains(&&*request.method) {
        let text = format!("method {} is not allowed here", request.method);
        return Some(Ok(Err(Refusal::new(405, text))));
    }
    // Only here may the default container be meant.
    let local = |container| match (&request.origin, container) {
        (RequestOrigin::Local, "-") => "",
        _ => container,
    };
    let outcome = match route {
        StreamingRoute::Exec(pod, name) => {
            serve_exec(streaming, connection, request, pod, local(name)).await
        }
        StreamingRoute::Attach(pod, name) => {
            serve_attach(streaming, connection, request, pod, local(name)).await
        }
        StreamingRoute::Run(pod, name) => {
            serve_run(streaming, connection, request, pod, local(name)).await
        }
        StreamingRoute::PortForward(pod) => {
            serve_port_forward(streaming, connection, request, pod).await
        }
    };
    streaming.release_stream_memory();
    Some(outcome.map(|refused| refused.map_err(|refusal| reword_refusal(refusal, &request.origin))))
}

/// Puts the refusal for an absent pod in a kubelet's words.
fn reword_refusal(refusal: Refusal, to: &RequestOrigin) -> Refusal {
    match to {
        RequestOrigin::Network(_) if refusal.status == 404 && refusal.message != OTHER_UID => {
            Refusal::not_found("pod does not exist")
        }
        RequestOrigin::Network(_) | RequestOrigin::Local => refusal,
    }
}

/// Takes the value out of a `Result`, or ends with the refusal.
macro_rules! or_refuse {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(e) => return Ok(Err(e.into())),
        }
    };
}

impl From<remote_command::NoStreams> for Refusal {
    fn from(e: remote_command::NoStreams) -> Self {
        Self::bad_request(e.to_string())
    }
}

impl From<port_forward::PortQueryError> for Refusal {
    fn from(e: port_forward::PortQueryError) -> Self {
        Self::bad_request(e.to_string())
    }
}

/// The value of every query parameter of this name.
fn query_params<'a>(request: &'a HttpRequest, name: &'a str) -> impl Iterator<Item = &'a str> {
    let named = request.query.iter().filter(move |(k, _)| k == name);
    named.map(|(_, value)| value.as_str())
}

fn parse_upgrade(request: &HttpRequest) -> Result<UpgradeRequest<'_>, UpgradeError> {
    let headers = request.headers.iter();
    UpgradeRequest::parse(
        &request.method,
        headers.map(|(name, value)| (name.as_str(), value.as_str())),
    )
}

/// Agrees on a protocol and says so. `None`: it was refused, and that said.
async fn agree_on_protocol(
    connection: &mut StreamConnection,
    request: &HttpRequest,
    accepted: fn(&UpgradeRequest<'_>) -> &'static [&'static str],
) -> io::Result<Option<(bool, &'static str)>> {
    let agreed = parse_upgrade(request).and_then(|upgrade| {
        let protocol = upgrade.choose_protocol(accepted(&upgrade))?;
        Ok((upgrade, protocol))
    });
    match agreed {
        Ok((upgrade, protocol)) => {
            connection.answer.keep = false;
            // A client may take nothing for as long as it likes: a pager holds its command back.
            connection.set_write_timeout(None);
            connection
                .write_all(upgrade.answer_head(protocol).as_bytes())
                .await?;
            connection.flush().await?;
            Ok(Some((
                matches!(upgrade, UpgradeRequest::Spdy { .. }),
                protocol,
            )))
        }
        Err(refused) => {
            let refusal = Refusal::new(refused.http_status(), refused.to_string());
            http::send_refusal_with_headers(connection, &refusal, &refused.header_lines()).await?;
            Ok(None)
        }
    }
}

// The newest protocols are offered to everybody: the node declares `ExtendWebSocketsToKubelet` (STREAM-11). An apiserver
// that does not ask about it turns them into SPDY before they come here.

const fn remote_protocols(upgrade: &UpgradeRequest<'_>) -> &'static [&'static str] {
    match upgrade {
        UpgradeRequest::Spdy { .. } => remote_command::SPDY_PROTOCOLS,
        UpgradeRequest::WebSocket { .. } => remote_command::WEBSOCKET_PROTOCOLS,
    }
}

const fn port_protocols(upgrade: &UpgradeRequest<'_>) -> &'static [&'static str] {
    match upgrade {
        UpgradeRequest::Spdy { .. } => port_forward::SPDY_PROTOCOLS,
        UpgradeRequest::WebSocket { .. } => port_forward::WEBSOCKET_PROTOCOLS,
    }
}

fn new_remote_session(
    protocol: &str,
    is_spdy: bool,
    wanted: RequestedStreams,
    out: &mut Vec<u8>,
) -> Option<RemoteCommandSession> {
    if is_spdy {
        RemoteCommandVersion::from_name(protocol)
            .map(|version| RemoteCommandSession::over_spdy(version, wanted))
    } else {
        websocket_protocol(protocol)
            .map(|protocol| RemoteCommandSession::over_web_socket(protocol, wanted, out))
    }
}

async fn serve_exec(
    streaming: &dyn StreamingBackend,
    connection: &mut StreamConnection,
    request: &HttpRequest,
    pod: PodName<'_>,
    container: &str,
) -> ServeOutcome {
    let running = or_refuse!(streaming.running_container(pod, container).await);
    let wanted = or_refuse!(RequestedStreams::from_query(
        |name| request.query_param(name),
        None
    ));
    let options = ExecOptions {
        command: query_params(request, "command")
            .map(str::to_owned)
            .collect(),
        stdin: wanted.stdin,
        stdout: wanted.stdout,
        stderr: wanted.stderr,
        tty: wanted.tty,
    };
    if options.command.is_empty() {
        return Ok(Err(Refusal::bad_request("command: required")));
    }
    let opened = streaming.open_exec(&running.id, &options).await;
    serve_route(streaming, connection, request, wanted, opened).await
}

async fn serve_attach(
    streaming: &dyn StreamingBackend,
    connection: &mut StreamConnection,
    request: &HttpRequest,
    pod: PodName<'_>,
    container: &str,
) -> ServeOutcome {
    let running = or_refuse!(streaming.running_container(pod, container).await);
    let wanted = or_refuse!(RequestedStreams::from_query(
        |name| request.query_param(name),
        Some(running.tty)
    ));
    let options = AttachOptions {
        stdin: wanted.stdin,
        stdout: wanted.stdout,
        stderr: wanted.stderr,
        tty: wanted.tty,
        stdin_once: running.stdin_once,
    };
    let opened = streaming.open_attach(&running.id, options).await;
    serve_route(streaming, connection, request, wanted, opened).await
}

async fn serve_route(
    streaming: &dyn StreamingBackend,
    connection: &mut StreamConnection,
    request: &HttpRequest,
    wanted: RequestedStreams,
    opened: Result<StreamRoute<SessionStart<'_>>, RuntimeError>,
) -> ServeOutcome {
    match or_refuse!(opened.map_err(streams_refusal)) {
        StreamRoute::Local(start) => {
            serve_session(streaming, connection, request, wanted, start).await
        }
        StreamRoute::Url(url) => serve_from_url(streaming, connection, request, wanted, url).await,
    }
}

/// Makes the refusal for streams that the runtime does not give (CRI-78).
fn streams_refusal(e: RuntimeError) -> Refusal {
    let status = match e {
        RuntimeError::NotFound(_) => 404,
        RuntimeError::Exhausted(_) => 429,
        _ => 500,
    };
    Refusal::new(status, e.to_string())
}

/// Serves exec or attach whose streams are at `url`. A client of the newest protocol is spoken with here: servers of runtimes
/// do not know it. So is one whose bytes are limited, to be told of its end.
async fn serve_from_url(
    streaming: &dyn StreamingBackend,
    connection: &mut StreamConnection,
    request: &HttpRequest,
    wanted: RequestedStreams,
    url: String,
) -> ServeOutcome {
    let is_limited = connection.leaves_machine() && streaming.session_limit_bytes().is_some();
    let is_spoken_with = |upgrade: UpgradeRequest<'_>| {
        is_limited || upgrade.offers_protocol(ChannelProtocol::V5.protocol_name())
    };
    if parse_upgrade(request).is_ok_and(is_spoken_with) {
        let start: SessionStart<'_> = Box::pin(upstream::open_command_session(
            url,
            wanted,
            streaming.creation_timeout(),
        ));
        return serve_session(streaming, connection, request, wanted, start).await;
    }
    upstream::pass_client_on(streaming, connection, request, &url).await
}

/// Agrees on a protocol, and carries the session that `start` begins to its end.
async fn serve_session<'a>(
    streaming: &'a dyn StreamingBackend,
    connection: &'a mut StreamConnection,
    request: &HttpRequest,
    wanted: RequestedStreams,
    start: SessionStart<'a>,
) -> ServeOutcome {
    let Some((is_spdy, protocol)) =
        agree_on_protocol(connection, request, remote_protocols).await?
    else {
        return Ok(Ok(()));
    };
    let mut carrier = SessionCarrier::new(connection, streaming);
    if let Some(remote) = new_remote_session(protocol, is_spdy, wanted, &mut carrier.out) {
        remote::drive_remote_session(carrier, remote, streaming.creation_timeout(), start).await?;
    }
    Ok(Ok(()))
}

async fn serve_port_forward(
    streaming: &dyn StreamingBackend,
    connection: &mut StreamConnection,
    request: &HttpRequest,
    pod: PodName<'_>,
) -> ServeOutcome {
    let sandbox = or_refuse!(streaming.ready_sandbox(pod).await);
    if request.origin == RequestOrigin::Local && request.header_value("upgrade") == Some(PROTOCOL) {
        return forward_single_port(streaming, connection, request, &sandbox).await;
    }
    let protocol = parse_upgrade(request).and_then(|u| u.choose_protocol(port_protocols(&u)));
    let tunnelled = protocol == Ok(TUNNEL_PROTOCOL);
    let numbers = match parse_upgrade(request) {
        // A tunnelled client names its ports later.
        Ok(UpgradeRequest::WebSocket { .. }) if !tunnelled => {
            WebSocketPortForward::parse_ports(query_params(request, "port"))
        }
        _ => Ok(Vec::new()),
    };
    let numbers = or_refuse!(numbers);
    let opened = streaming.open_port_forward(&sandbox, &numbers).await;
    let connect = match or_refuse!(opened.map_err(streams_refusal)) {
        StreamRoute::Local(connect) => connect,
        StreamRoute::Url(url) if tunnelled => {
            return upstream::serve_tunnel(streaming, connection, request, &url).await;
        }
        StreamRoute::Url(url) => {
            return upstream::pass_client_on(streaming, connection, request, &url).await;
        }
    };
    let Some((is_spdy, protocol)) = agree_on_protocol(connection, request, port_protocols).await?
    else {
        return Ok(Ok(()));
    };
    let mut carrier = SessionCarrier::new(connection, streaming);
    let wire = if is_spdy {
        ports::PortForwardWire::Streams(SpdyPortForward::new())
    } else if tunnelled {
        ports::PortForwardWire::Streams(SpdyPortForward::over_web_socket())
    } else if let Some(protocol) = websocket_protocol(protocol) {
        ports::PortForwardWire::Ports(WebSocketPortForward::new(
            protocol,
            numbers.clone(),
            &mut carrier.out,
        ))
    } else {
        return Ok(Ok(()));
    };
    ports::drive_port_forward(carrier, wire, connect).await?;
    Ok(Ok(()))
}

/// Joins a connection with a port, byte for byte.
async fn forward_single_port(
    streaming: &dyn StreamingBackend,
    connection: &mut StreamConnection,
    request: &HttpRequest,
    sandbox: &SandboxId,
) -> ServeOutcome {
    let port: Option<u16> = or_refuse!(request.query_number("port"));
    let Some(port) = port.filter(|port| *port > 0) else {
        return Ok(Err(Refusal::bad_request("port: required")));
    };
    let failed = |why: String| Refusal::new(500, format!("error forwarding port {port}: {why}"));
    let ports = [port];
    let opened = streaming.open_port_forward(sandbox, &ports).await;
    let mut connected = match or_refuse!(opened.map_err(streams_refusal)) {
        StreamRoute::Local(connect) => {
            let fd = or_refuse!(connect(port).await.map_err(|e| failed(e.to_string())));
            let stream = Async::new(TcpStream::from(fd));
            let stream = or_refuse!(stream.map_err(|e| failed(e.to_string())));
            let socket = stream.as_raw_fd();
            StreamConnection::new(stream).with_socket(socket)
        }
        StreamRoute::Url(url) => {
            match upstream::connect_port(&url, port, streaming.creation_timeout()).await {
                Ok(connected) => connected,
                Err(lost) => return lost.send_to_client(connection).await.map(Ok),
            }
        }
    };
    http::switch_protocols(connection, PROTOCOL, "").await?;
    join_connections(connection, &mut connected, streaming, HalfClose::Stays)
        .await
        .map(Ok)
}

async fn serve_run(
    streaming: &dyn StreamingBackend,
    connection: &mut StreamConnection,
    request: &HttpRequest,
    pod: PodName<'_>,
    container: &str,
) -> ServeOutcome {
    let running = or_refuse!(streaming.running_container(pod, container).await);
    let line = request.query_param("cmd").unwrap_or("");
    let command: Vec<String> = line.split(' ').map(str::to_owned).collect();
    if line.is_empty() {
        return Ok(Err(Refusal::bad_request("cmd: required")));
    }
    let ended = {
        let end = async {
            Some(
                streaming
                    .run_command(&running.id, &command, RUN_OUTPUT_BYTES)
                    .await,
            )
        };
        let left = async {
            connection.wait_for_close().await;
            None
        };
        smol::future::or(end, left).await
    };
    let output = match ended {
        None => return Ok(Ok(())),
        Some(Err(e)) => return Ok(Err(Refusal::new(500, e.to_string()))),
        Some(Ok(output)) => output,
    };
    if output.exit_code != 0 {
        let words = String::from_utf8_lossy(&output.stderr);
        let code = output.exit_code;
        let text = format!("command '{line}' exited with {code}: {words}");
        return Ok(Err(Refusal::new(500, text)));
    }
    let text = [output.stdout, output.stderr].concat();
    http::send_response(connection, 200, "text/plain", &text)
        .await
        .map(Ok)
}
