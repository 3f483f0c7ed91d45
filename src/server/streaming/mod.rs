//! Routes that become streams, and the one that runs a command without streams: for both servers.
//!
//! | route | stream |
//! |---|---|
//! | `GET`, `POST /exec/{namespace}/{pod}[/{uid}]/{container}` | a command, by [`remote`] |
//! | `GET`, `POST /attach/{namespace}/{pod}[/{uid}]/{container}` | a container's own streams, by [`remote`] |
//! | `GET`, `POST /portForward/{namespace}/{pod}[/{uid}]` | connections to ports, by [`ports`] |
//! | `POST /portForward/{namespace}/{pod}?port=` with `Upgrade: picolet-port` | one port, by [`join()`]; only of the local socket |
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
use self::join::{HalfClose, join};
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
fn route<'a>(path: &[&'a str]) -> Option<StreamingRoute<'a>> {
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
pub(super) async fn serve(
    streaming: &dyn StreamingBackend,
    connection: &mut StreamConnection,
    request: &HttpRequest,
) -> Option<ServeOutcome> {
    let path: Vec<&str> = request.path.iter().map(String::as_str).collect();
    let route = route(&path)?;
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
            exec(streaming, connection, request, pod, local(name)).await
        }
        StreamingRoute::Attach(pod, name) => {
            attach(streaming, connection, request, pod, local(name)).await
        }
        StreamingRoute::Run(pod, name) => {
            run(streaming, connection, request, pod, local(name)).await
        }
        StreamingRoute::PortForward(pod) => forward(streaming, connection, request, pod).await,
    };
    streaming.stream_ended();
    Some(outcome.map(|refused| refused.map_err(|refusal| worded(refusal, &request.origin))))
}

/// Puts the refusal for an absent pod in a kubelet's words.
fn worded(refusal: Refusal, to: &RequestOrigin) -> Refusal {
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
        Self::bad(e.to_string())
    }
}

impl From<port_forward::PortQueryError> for Refusal {
    fn from(e: port_forward::PortQueryError) -> Self {
        Self::bad(e.to_string())
    }
}

/// The value of every query parameter of this name.
fn params<'a>(request: &'a HttpRequest, name: &'a str) -> impl Iterator<Item = &'a str> {
    let named = request.query.iter().filter(move |(k, _)| k == name);
    named.map(|(_, value)| value.as_str())
}

fn upgrade(request: &HttpRequest) -> Result<UpgradeRequest<'_>, UpgradeError> {
    let headers = request.headers.iter();
    UpgradeRequest::of(
        &request.method,
        headers.map(|(name, value)| (name.as_str(), value.as_str())),
    )
}

/// Agrees on a protocol and says so. `None`: it was refused, and that said.
async fn agree(
    connection: &mut StreamConnection,
    request: &HttpRequest,
    accepted: fn(&UpgradeRequest<'_>) -> &'static [&'static str],
) -> io::Result<Option<(bool, &'static str)>> {
    let agreed = upgrade(request).and_then(|upgrade| {
        let protocol = upgrade.choose(accepted(&upgrade))?;
        Ok((upgrade, protocol))
    });
    match agreed {
        Ok((upgrade, protocol)) => {
            connection.answer.keep = false;
            // A client may take nothing for as long as it likes: a pager holds its command back.
            connection.set_patience(None);
            connection
                .write_all(upgrade.answer(protocol).as_bytes())
                .await?;
            connection.flush().await?;
            Ok(Some((
                matches!(upgrade, UpgradeRequest::Spdy { .. }),
                protocol,
            )))
        }
        Err(refused) => {
            let refusal = Refusal::new(refused.status(), refused.to_string());
            http::refuse_with(connection, &refusal, &refused.header_lines()).await?;
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

fn remote_of(
    protocol: &str,
    is_spdy: bool,
    wanted: RequestedStreams,
    out: &mut Vec<u8>,
) -> Option<RemoteCommandSession> {
    if is_spdy {
        RemoteCommandVersion::of(protocol)
            .map(|version| RemoteCommandSession::spdy(version, wanted))
    } else {
        websocket_protocol(protocol)
            .map(|protocol| RemoteCommandSession::web_socket(protocol, wanted, out))
    }
}

async fn exec(
    streaming: &dyn StreamingBackend,
    connection: &mut StreamConnection,
    request: &HttpRequest,
    pod: PodName<'_>,
    container: &str,
) -> ServeOutcome {
    let running = or_refuse!(streaming.running(pod, container).await);
    let wanted = or_refuse!(RequestedStreams::of(|name| request.param(name), None));
    let options = ExecOptions {
        command: params(request, "command").map(str::to_owned).collect(),
        stdin: wanted.stdin,
        stdout: wanted.stdout,
        stderr: wanted.stderr,
        tty: wanted.tty,
    };
    if options.command.is_empty() {
        return Ok(Err(Refusal::bad("command: required")));
    }
    let opened = streaming.open_exec(&running.id, &options).await;
    match or_refuse!(opened.map_err(not_opened)) {
        StreamRoute::Local(start) => converse(streaming, connection, request, wanted, start).await,
        StreamRoute::Url(url) => elsewhere(streaming, connection, request, wanted, url).await,
    }
}

async fn attach(
    streaming: &dyn StreamingBackend,
    connection: &mut StreamConnection,
    request: &HttpRequest,
    pod: PodName<'_>,
    container: &str,
) -> ServeOutcome {
    let running = or_refuse!(streaming.running(pod, container).await);
    let wanted = or_refuse!(RequestedStreams::of(
        |name| request.param(name),
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
    match or_refuse!(opened.map_err(not_opened)) {
        StreamRoute::Local(start) => converse(streaming, connection, request, wanted, start).await,
        StreamRoute::Url(url) => elsewhere(streaming, connection, request, wanted, url).await,
    }
}

/// Makes the refusal for streams that the runtime does not give (CRI-78).
fn not_opened(e: RuntimeError) -> Refusal {
    let status = match e {
        RuntimeError::NotFound(_) => 404,
        RuntimeError::Exhausted(_) => 429,
        _ => 500,
    };
    Refusal::new(status, e.to_string())
}

/// Serves exec or attach whose streams are at `url`. A client of the newest protocol is spoken with here: servers of runtimes
/// do not know it. So is one whose bytes are limited, to be told of its end.
async fn elsewhere(
    streaming: &dyn StreamingBackend,
    connection: &mut StreamConnection,
    request: &HttpRequest,
    wanted: RequestedStreams,
    url: String,
) -> ServeOutcome {
    let is_limited = connection.leaves_machine() && streaming.stream_bytes().is_some();
    let is_spoken_with =
        |upgrade: UpgradeRequest<'_>| is_limited || upgrade.offers(ChannelProtocol::V5.name());
    if upgrade(request).is_ok_and(is_spoken_with) {
        let start: SessionStart<'_> =
            Box::pin(upstream::session(url, wanted, streaming.creation_timeout()));
        return converse(streaming, connection, request, wanted, start).await;
    }
    upstream::pass(streaming, connection, request, &url).await
}

/// Agrees on a protocol, and carries the session that `start` begins to its end.
async fn converse<'a>(
    streaming: &'a dyn StreamingBackend,
    connection: &'a mut StreamConnection,
    request: &HttpRequest,
    wanted: RequestedStreams,
    start: SessionStart<'a>,
) -> ServeOutcome {
    let Some((is_spdy, protocol)) = agree(connection, request, remote_protocols).await? else {
        return Ok(Ok(()));
    };
    let mut carrier = SessionCarrier::new(connection, streaming);
    if let Some(remote) = remote_of(protocol, is_spdy, wanted, &mut carrier.out) {
        remote::drive(carrier, remote, streaming.creation_timeout(), start).await?;
    }
    Ok(Ok(()))
}

async fn forward(
    streaming: &dyn StreamingBackend,
    connection: &mut StreamConnection,
    request: &HttpRequest,
    pod: PodName<'_>,
) -> ServeOutcome {
    let sandbox = or_refuse!(streaming.ready_sandbox(pod).await);
    if request.origin == RequestOrigin::Local && request.header("upgrade") == Some(PROTOCOL) {
        return forward_one(streaming, connection, request, &sandbox).await;
    }
    let protocol = upgrade(request).and_then(|u| u.choose(port_protocols(&u)));
    let tunnelled = protocol == Ok(TUNNEL_PROTOCOL);
    let numbers = match upgrade(request) {
        // A tunnelled client names its ports later.
        Ok(UpgradeRequest::WebSocket { .. }) if !tunnelled => {
            WebSocketPortForward::of(params(request, "port"))
        }
        _ => Ok(Vec::new()),
    };
    let numbers = or_refuse!(numbers);
    let opened = streaming.open_port_forward(&sandbox, &numbers).await;
    let connect = match or_refuse!(opened.map_err(not_opened)) {
        StreamRoute::Local(connect) => connect,
        StreamRoute::Url(url) if tunnelled => {
            return upstream::tunnel(streaming, connection, request, &url).await;
        }
        StreamRoute::Url(url) => return upstream::pass(streaming, connection, request, &url).await,
    };
    let Some((is_spdy, protocol)) = agree(connection, request, port_protocols).await? else {
        return Ok(Ok(()));
    };
    let mut carrier = SessionCarrier::new(connection, streaming);
    let wire = if is_spdy {
        ports::PortForwardWire::Streams(SpdyPortForward::new())
    } else if tunnelled {
        ports::PortForwardWire::Streams(SpdyPortForward::tunnelled())
    } else if let Some(protocol) = websocket_protocol(protocol) {
        ports::PortForwardWire::Ports(WebSocketPortForward::new(
            protocol,
            numbers.clone(),
            &mut carrier.out,
        ))
    } else {
        return Ok(Ok(()));
    };
    ports::drive(carrier, wire, connect).await?;
    Ok(Ok(()))
}

/// Joins a connection with a port, byte for byte.
async fn forward_one(
    streaming: &dyn StreamingBackend,
    connection: &mut StreamConnection,
    request: &HttpRequest,
    sandbox: &SandboxId,
) -> ServeOutcome {
    let port: Option<u16> = or_refuse!(request.number("port"));
    let Some(port) = port.filter(|port| *port > 0) else {
        return Ok(Err(Refusal::bad("port: required")));
    };
    let failed = |why: String| Refusal::new(500, format!("error forwarding port {port}: {why}"));
    let ports = [port];
    let opened = streaming.open_port_forward(sandbox, &ports).await;
    let mut connected = match or_refuse!(opened.map_err(not_opened)) {
        StreamRoute::Local(connect) => {
            let fd = or_refuse!(connect(port).await.map_err(|e| failed(e.to_string())));
            let stream = Async::new(TcpStream::from(fd));
            let stream = or_refuse!(stream.map_err(|e| failed(e.to_string())));
            let socket = stream.as_raw_fd();
            StreamConnection::new(stream).of_socket(socket)
        }
        StreamRoute::Url(url) => {
            match upstream::port(&url, port, streaming.creation_timeout()).await {
                Ok(connected) => connected,
                Err(lost) => return lost.tell(connection).await.map(Ok),
            }
        }
    };
    http::switch_protocols(connection, PROTOCOL, "").await?;
    join(connection, &mut connected, streaming, HalfClose::Stays)
        .await
        .map(Ok)
}

async fn run(
    streaming: &dyn StreamingBackend,
    connection: &mut StreamConnection,
    request: &HttpRequest,
    pod: PodName<'_>,
    container: &str,
) -> ServeOutcome {
    let running = or_refuse!(streaming.running(pod, container).await);
    let line = request.param("cmd").unwrap_or("");
    let command: Vec<String> = line.split(' ').map(str::to_owned).collect();
    if line.is_empty() {
        return Ok(Err(Refusal::bad("cmd: required")));
    }
    let ended = {
        let end = async { Some(streaming.run(&running.id, &command, RUN_OUTPUT_BYTES).await) };
        let left = async {
            connection.left().await;
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
    http::respond(connection, 200, "text/plain", &text)
        .await
        .map(Ok)
}
