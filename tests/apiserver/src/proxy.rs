//! What the server asks of a node on behalf of a client: the log of a pod, streams to its containers and ports.
//!
//! What is newest in clients is not turned into SPDY, as upstream does it: a node that refuses it is asked again by the
//! client itself.
//!
//! Source: `pkg/registry/core/pod/strategy.go` `LogLocation`, `ExecLocation`, `PortForwardLocation`, `pkg/kubelet/client`.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use serde_json::Value;

use crate::core::Core;
use crate::error::ApiError;
use crate::http::Head;
use crate::json::{list, text};
use crate::kinds::Kind;
use crate::path::Query;
use crate::server::Wire;
use crate::supervisor::Supervisor;

/// Who the server is, for nodes; upstream's name, in the group that upstream's setup puts it into.
const USER: &str = "kube-apiserver-kubelet-client";
const GROUP: &str = "system:masters";
/// Seconds that its certificate lives.
const LIFE_S: i64 = 3600;
/// Time for a connection to a node.
const CONNECT: Duration = Duration::from_secs(10);
/// How often a quiet answer looks whether the client is still there.
const POLL: Duration = Duration::from_millis(200);
/// Where a kubelet listens when its node does not say.
const PORT: u16 = 10250;

/// How an answer begins that is handed on as it is.
const STATUS_LINE: &[u8] = b"HTTP/1.1 200";

/// Something to ask of a node.
pub(crate) struct Call {
    address: (String, u16),
    /// Node that is reached by its session with this server.
    by_session: Option<String>,
    /// Path and query.
    target: String,
    /// It becomes a connection of the client's own.
    upgrade: bool,
}

/// Where the log of a pod is.
///
/// - Errors: 400 when it has no node yet, or several containers and none is named; 404 when its node is not there.
pub(crate) fn log(
    core: &Core,
    kind: &Kind,
    ns: &str,
    name: &str,
    query: &Query,
) -> Result<Call, ApiError> {
    let options: Vec<String> = [
        "follow",
        "previous",
        "timestamps",
        "sinceSeconds",
        "sinceTime",
        "tailLines",
        "limitBytes",
    ]
    .iter()
    .filter(|option| !query.get(option).is_empty())
    // Colons and a plus of a time mean nothing else in a query, but for the plus.
    .map(|option| format!("{option}={}", query.get(option).replace('+', "%2B")))
    .collect();
    let PodPlace {
        address,
        by_session,
        container,
    } = find(core, kind, ns, name, query, true)?;
    Ok(Call {
        address,
        by_session,
        target: format!(
            "/containerLogs/{ns}/{name}/{container}?{}",
            options.join("&")
        ),
        upgrade: false,
    })
}

/// Where the streams of a pod are: `sub` is `exec`, `attach` or `portforward`.
///
/// - Errors: as of [`log`].
pub(crate) fn streams(
    core: &Core,
    kind: &Kind,
    ns: &str,
    name: &str,
    sub: &str,
    query: &Query,
) -> Result<Call, ApiError> {
    let ports = sub == "portforward";
    let PodPlace {
        address,
        by_session,
        container,
    } = find(core, kind, ns, name, query, !ports)?;
    let bits = [
        ("stdin", "input"),
        ("stdout", "output"),
        ("stderr", "error"),
        ("tty", "tty"),
    ];
    let bits = bits.iter().filter(|(api, _)| query.flag(api));
    let mut options: Vec<String> = bits.map(|(_, kubelet)| format!("{kubelet}=1")).collect();
    for (api, kubelet) in [("command", "command"), ("ports", "port")] {
        let values = query.all(api);
        options.extend(values.map(|value| format!("{kubelet}={}", escaped(value))));
    }
    let path = if ports {
        format!("/portForward/{ns}/{name}")
    } else {
        format!("/{sub}/{ns}/{name}/{container}")
    };
    Ok(Call {
        address,
        by_session,
        target: format!("{path}?{}", options.join("&")),
        upgrade: true,
    })
}

fn escaped(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes()
        .map(|b| match b {
            b if plain(b) => char::from(b).to_string(),
            b => format!("%{b:02X}"),
        })
        .collect()
}

/// Place of a pod.
struct PodPlace {
    /// Of its node: host and port.
    address: (String, u16),
    /// Node whose session leads there.
    by_session: Option<String>,
    /// The container that is meant.
    container: String,
}

/// Finds the place of a pod.
fn find(
    core: &Core,
    kind: &Kind,
    ns: &str,
    name: &str,
    query: &Query,
    of_container: bool,
) -> Result<PodPlace, ApiError> {
    let store = core.store();
    let pod = store
        .find(kind.storage(), ns, name)
        .ok_or_else(|| ApiError::not_found(kind, name))?;
    let containers: Vec<&str> = ["containers", "initContainers", "ephemeralContainers"]
        .iter()
        .flat_map(|field| list(pod, &format!("/spec/{field}")))
        .map(|container| text(container, "/name"))
        .collect();
    let container = match query.get("container") {
        _ if !of_container => "",
        "" if containers.len() > 1 => {
            return Err(ApiError::bad_request(format!(
                "a container name must be specified for pod {name}, choose one of: [{}]",
                containers.join(" ")
            )));
        }
        "" => containers.first().copied().unwrap_or(""),
        named if containers.contains(&named) => named,
        named => {
            return Err(ApiError::bad_request(format!(
                "container {named} is not valid for pod {name}"
            )));
        }
    };
    let node = text(pod, "/spec/nodeName");
    if node.is_empty() {
        return Err(ApiError::bad_request(format!(
            "pod {name} does not have a host assigned"
        )));
    }
    let node = store
        .find("nodes", "", node)
        .ok_or_else(|| ApiError::internal(format!("nodes {node:?} not found")))?;
    let address = address(node, core.config.egress.is_some()).ok_or_else(|| {
        ApiError::internal(format!(
            "no preferred addresses found; known addresses: {}",
            node["status"]["addresses"]
        ))
    })?;
    // A k3s server learns from the Node which port leads through the tunnel: without it, it dials the address itself.
    let has_port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].is_u64();
    let has_tunnel = core.supervisor.as_ref().is_some_and(Supervisor::has_tunnel);
    let by_session = (has_port && has_tunnel).then(|| text(node, "/metadata/name").to_owned());
    Ok(PodPlace {
        address,
        by_session,
        container: container.to_owned(),
    })
}

fn address(node: &Value, by_name: bool) -> Option<(String, u16)> {
    let all = list(node, "/status/addresses");
    let of = |kind: &str| {
        let found = all.iter().find(|a| text(a, "/type") == kind)?;
        Some(text(found, "/address").to_owned())
    };
    let port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
    let port = port.and_then(|port| u16::try_from(port).ok());
    let types = if by_name {
        ["Hostname", "InternalIP"]
    } else {
        ["InternalIP", "ExternalIP"]
    };
    Some((
        types.iter().find_map(|kind| of(kind))?,
        port.filter(|port| *port > 0).unwrap_or(PORT),
    ))
}

/// Asks the node, and hands its answer on as it comes. False: the connection must end.
pub(crate) fn relay(core: &Core, wire: &mut Wire, call: &Call, head: &Head) -> io::Result<bool> {
    let mut node = match connect(core, call, head) {
        Ok(node) => node,
        Err(e) => {
            let (host, port) = &call.address;
            let why = format!("dial tcp {host}:{port}: {e}");
            return refuse(wire, &ApiError::internal(why));
        }
    };
    if call.upgrade {
        wire.join(&mut node, || core.stopped())?;
        return Ok(false);
    }
    let mut part = vec![0; 16 * 1024];
    let mut begin = Vec::new();
    while begin.len() < STATUS_LINE.len() {
        match node.read(&mut part) {
            Ok(0) => return refuse(wire, &ApiError::internal("EOF")),
            Ok(n) => begin.extend_from_slice(&part[..n]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && !core.stopped() => {}
            Err(e) => return refuse(wire, &ApiError::internal(e)),
        }
    }
    if !begin.starts_with(STATUS_LINE) {
        node.sock.set_read_timeout(Some(CONNECT))?;
        // A node that closes without a word has said all the same.
        let _ = node.read_to_end(&mut begin);
        return refuse(wire, &refusal(&String::from_utf8_lossy(&begin)));
    }
    wire.send(&begin)?;
    loop {
        match node.read(&mut part) {
            // What it sends ends with the connection, as does ours.
            Ok(0) => return Ok(false),
            Ok(n) => wire.send(&part[..n])?,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if core.stopped() || wire.disturbed() {
                    return Ok(false);
                }
            }
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(e) => return Err(e),
        }
    }
}

/// What a node's refusal becomes: its text, as the message of an error of the same code.
///
/// Source: `pkg/registry/generic/rest/response_checker.go`.
fn refusal(answer: &str) -> ApiError {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    match code {
        Some(400) => ApiError::bad_request(body),
        Some(500) | None => ApiError::internal(body),
        Some(code) => ApiError::new(code, "Unknown", format!("the server said: {body}")),
    }
}

fn refuse(wire: &mut Wire, error: &ApiError) -> io::Result<bool> {
    let body = error.status().to_string();
    let head = format!(
        "HTTP/1.1 {} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        error.code,
        body.len()
    );
    wire.send(head.as_bytes())?;
    wire.send(body.as_bytes())?;
    Ok(false)
}

fn connect(
    core: &Core,
    call: &Call,
    asked: &Head,
) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let now = core.clock.now_s();
    let own = core
        .authority
        .client(USER, &[GROUP], now - LIFE_S, now + LIFE_S)
        .map_err(io::Error::other)?;
    let chain = vec![CertificateDer::from_pem_slice(own.certificate.as_bytes()).map_err(wrong)?];
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).map_err(wrong)?;
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyNode(provider)))
        .with_client_auth_cert(chain, key)
        .map_err(io::Error::other)?;
    let (host, port) = &call.address;
    let tcp = match (&call.by_session, &core.supervisor) {
        (Some(node), Some(supervisor)) => {
            let target = format!("tcp/127.0.0.1:{port}");
            supervisor.sessions.dial(node, &target)?
        }
        _ => dial(core, host, *port)?,
    };
    tcp.set_read_timeout(Some(CONNECT))?;
    let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
    let session = ClientConnection::new(Arc::new(config), name);
    let mut node = StreamOwned::new(session.map_err(io::Error::other)?, tcp);
    let (method, lines) = if call.upgrade {
        (&*asked.method, asked.upgrade_lines())
    } else {
        ("GET", "Connection: close\r\n".to_owned())
    };
    let head = format!(
        "{method} {} HTTP/1.1\r\nHost: {host}:{port}\r\n{lines}\r\n",
        call.target
    );
    node.write_all(head.as_bytes())?;
    node.flush()?;
    node.sock.set_read_timeout(Some(POLL))?;
    Ok(node)
}

/// Connects to a node, by the proxy if there is one.
fn dial(core: &Core, host: &str, port: u16) -> io::Result<TcpStream> {
    let Some(proxy) = core.config.egress else {
        let ip: IpAddr = host.parse().map_err(io::Error::other)?;
        return TcpStream::connect_timeout(&(ip, port).into(), CONNECT);
    };
    let mut tcp = TcpStream::connect_timeout(&proxy, CONNECT)?;
    tcp.set_read_timeout(Some(CONNECT))?;
    let head = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n");
    tcp.write_all(head.as_bytes())?;
    let (mut answer, mut byte) = (Vec::new(), [0]);
    while !answer.ends_with(b"\r\n\r\n") {
        tcp.read_exact(&mut byte)?;
        answer.push(byte[0]);
    }
    if answer.starts_with(b"HTTP/1.1 200") {
        return Ok(tcp);
    }
    Err(io::Error::other(
        String::from_utf8_lossy(&answer).into_owned(),
    ))
}

fn wrong(e: rustls::pki_types::pem::Error) -> io::Error {
    io::Error::other(e.to_string())
}

/// As upstream without `--kubelet-certificate-authority`.
#[derive(Debug)]
struct AnyNode(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyNode {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
