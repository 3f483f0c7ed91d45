//! Opening a stream to an address: names, TCP, TLS, HTTP/2, the call, and the server's answer to it (TUN-01).

use alloc::{rc::Rc, sync::Arc};
use core::{
    cell::Cell,
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use std::{io, net::TcpStream};

use async_io::Async;
use futures_rustls::{TlsConnector, client::TlsStream};
use rustls::{ClientConfig, pki_types::ServerName};
use smol::future::FutureExt as _;

use super::{TunnelShared, packet::MAX_MESSAGE_BYTES};
use crate::{
    agent::clock::{Clock, GrpcClock, TimerFuture},
    api::link::LinkClass,
    grpc::{
        ConnectionClock,
        client::{CallOptions, ClientCall, GrpcClient, connect},
        hpack::HeaderField,
        status::GrpcStatus,
    },
    logic::tunnel::line::{StreamLossReason, is_node_refusal},
    net::{NameResolver, meter::CountedConnection},
    sys::{lane::Lane, socket},
};

/// The call. The service has no package.
const PATH: &str = "/AgentService/Connect";
/// Time for name servers, for TCP with TLS, and for the server's answer to the call.
const NAME_TIME: Duration = Duration::from_secs(10);
const CONNECT_TIME: Duration = Duration::from_secs(10);
const ANSWER_TIME: Duration = Duration::from_secs(20);
/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 4;
/// Stack of the thread that asks name servers, bytes. It is there only while it does.
const NAME_STACK_BYTES: usize = 128 * 1024;
/// Plain text that the session takes before it has to be sent: one record.
const SESSION_BUFFER_BYTES: usize = 16 * 1024;

/// A stream that has just begun.
pub(super) struct OpenedStream {
    pub(super) client: GrpcClient,
    pub(super) call: ClientCall,
    /// Task that carries both. It ends with the connection.
    pub(super) driver: smol::Task<GrpcStatus>,
    /// Name of the server.
    pub(super) server: String,
    /// Number of servers of its kind, as it says.
    pub(super) count: usize,
}

/// Reason why a stream could not be opened, or ended.
pub(super) struct StreamFailure {
    pub(super) ending: StreamLossReason,
    pub(super) why: String,
}

impl StreamFailure {
    pub(super) fn broken(why: impl Into<String>) -> Self {
        Self {
            ending: StreamLossReason::Broken,
            why: why.into(),
        }
    }

    /// Reads the end of a call.
    pub(super) fn from_status(status: &GrpcStatus) -> Self {
        // TLS 1.3 tells a client that its certificate is not wanted once it has begun to speak.
        let is_refused = is_node_refusal(status.code.0) || status.message.contains("fatal alert");
        Self {
            ending: if is_refused {
                StreamLossReason::Refused
            } else {
                StreamLossReason::Broken
            },
            why: status.to_string(),
        }
    }
}

/// Opens a stream to a server, as an agent with these identifiers.
pub(super) async fn open_stream(
    shared: &TunnelShared,
    (host, port): &(String, u16),
    identifiers: &str,
) -> Result<OpenedStream, StreamFailure> {
    let (base, settings) = (&shared.base, &shared.settings);
    let (ca, token_file) = (settings.cfg.ca.clone(), settings.cfg.token_file.clone());
    let (tls, token) = base.read_credentials(ca, token_file, b"h2").await?;
    let stream = dial_tls(host, *port, &tls, &*base.clock, None).await?;
    let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    if !is_h2 {
        return Err(StreamFailure::broken("the server does not offer HTTP/2"));
    }
    let time: Rc<dyn ConnectionClock> = Rc::new(GrpcClock(Rc::clone(&base.clock)));
    let (client, driver) = connect(stream, &format!("{host}:{port}"), time);
    let driver = base.executor.spawn(driver);
    let options = CallOptions {
        is_encrypted: true,
        metadata: metadata(&settings.agent_id, identifiers, token),
        ..CallOptions::default()
    };
    let answered = async {
        let mut call = client.begin_call(PATH, &options).await?;
        call.make_lasting(MAX_MESSAGE_BYTES);
        let head = call.answer_headers().await?;
        // A call that is refused has trailers only: they say why.
        if header(&head, b"grpc-status").is_some() {
            GrpcStatus::check_answer(&head, &[])?;
        }
        Ok((call, head))
    };
    let late = async {
        base.alarm_after(ANSWER_TIME).await;
        Err(StreamFailure::broken("the server does not answer"))
    };
    let answered = async {
        answered
            .await
            .map_err(|status: GrpcStatus| StreamFailure::from_status(&status))
    };
    let (call, head) = Box::pin(answered.or(late)).await?;
    let server = header(&head, b"serverid").map(|id| String::from_utf8_lossy(id).into_owned());
    let count = header(&head, b"servercount").and_then(|n| str::from_utf8(n).ok()?.parse().ok());
    let (Some(server), Some(count)) = (server, count) else {
        let why = "it answers without serverid and servercount: it is not a konnectivity server, or it has another agent port";
        return Err(StreamFailure::broken(why));
    };
    Ok(OpenedStream {
        client,
        call,
        driver,
        server,
        count,
    })
}

/// Stream to a server.
pub(super) type TlsConnection = TlsStream<CountedConnection>;

/// Connects to a server, at the first of its addresses that answers.
///
/// - `buffers`: bytes of the socket's buffers; `None`: the kernel chooses.
pub(super) async fn dial_tls(
    host: &str,
    port: u16,
    tls: &Arc<ClientConfig>,
    clock: &dyn Clock,
    buffers: Option<usize>,
) -> Result<TlsConnection, StreamFailure> {
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|e| StreamFailure::broken(e.to_string()))?;
    let mut last = String::new();
    for ip in resolve_addresses(host).await? {
        let address = SocketAddr::new(ip, port);
        let dial = async {
            let tcp = Async::<TcpStream>::connect(address).await?;
            let _ = tcp.get_ref().set_nodelay(true);
            if let Some(bytes) = buffers {
                socket::limit_buffers(&tcp, bytes)?;
            }
            let tcp = CountedConnection::new(tcp, Rc::new(Cell::new(LinkClass::Tunnel)));
            let connector = TlsConnector::from(Arc::clone(tls));
            let handshake = connector.connect_with(name.clone(), tcp, |session| {
                session.set_buffer_limit(Some(SESSION_BUFFER_BYTES));
            });
            Box::pin(handshake).await
        };
        let late = time_out_at(clock.sleep_until(clock.now() + CONNECT_TIME));
        match Box::pin(dial.or(late)).await {
            Ok(opened) => return Ok(opened),
            Err(e) => {
                last = format!("{address}: {}", io_error_text(&e));
                if e.kind() == io::ErrorKind::InvalidData {
                    // TLS: a server is there, and one side does not accept the other.
                    let ending = StreamLossReason::Refused;
                    return Err(StreamFailure { ending, why: last });
                }
            }
        }
    }
    Err(StreamFailure::broken(last))
}

/// A header that is there exactly once.
fn header<'a>(fields: &'a [HeaderField], name: &[u8]) -> Option<&'a [u8]> {
    let mut found = fields.iter().filter(|(of, _)| of == name);
    let (_, value) = found.next()?;
    found.next().is_none().then_some(value)
}

fn metadata(agent_id: &str, identifiers: &str, token: Option<String>) -> Vec<HeaderField> {
    let field = |name: &str, value: String| (name.as_bytes().to_vec(), value.into_bytes());
    let mut fields = vec![
        field("agentid", agent_id.to_owned()),
        field("agentidentifiers", identifiers.to_owned()),
    ];
    fields.extend(token.map(|token| field("authorization", format!("Bearer {token}"))));
    fields
}

pub(super) async fn time_out_at<T>(alarm: TimerFuture) -> io::Result<T> {
    alarm.await;
    Err(io::ErrorKind::TimedOut.into())
}

pub(super) fn io_error_text(e: &io::Error) -> String {
    match e.raw_os_error() {
        Some(number) => nix::errno::Errno::from_raw(number).desc().to_owned(),
        None => e.to_string(),
    }
}

/// Addresses of a host: itself if it is one, else those that name servers give.
async fn resolve_addresses(host: &str) -> Result<Vec<IpAddr>, StreamFailure> {
    if let Ok(ip) = host.parse() {
        return Ok(vec![ip]);
    }
    let failed = |e: io::Error| StreamFailure::broken(format!("cannot start a thread: {e}"));
    let lane = Lane::start_threads("tunnel-names", 1, NAME_STACK_BYTES).map_err(failed)?;
    let name = host.to_owned();
    let found = lane.run_job(move || NameResolver::system_default().resolve_host(&name, NAME_TIME));
    let mut found = found
        .await
        .map_err(|e| StreamFailure::broken(e.to_string()))?;
    found.truncate(MAX_ADDRESSES);
    Ok(found)
}
