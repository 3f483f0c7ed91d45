//! Opening a session with a server: TCP, TLS with the node's certificate, and the upgrade to a WebSocket (K3ST-01).

use alloc::{boxed::Box, rc::Rc};
use std::io;

use smol::{
    future::FutureExt as _,
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
};

use super::DialerShared;
use crate::{
    logic::tunnel::{line::StreamLossReason, remotedialer::servers::SupervisorAddress},
    net::http_response::ResponseHead,
    parts::tunnel::{
        base::fill_random,
        connect::{StreamFailure, dial_tls, io_error_text, time_out_at},
    },
    stream::upgrade::{self, KEY_BYTES},
};

/// Path of the tunnel.
const PATH: &str = "/v1-k3s/connect";
/// Protocol within TLS: a WebSocket needs it.
const PROTOCOL: &[u8] = b"http/1.1";
/// Time for the upgrade.
const UPGRADE_TIME: core::time::Duration = core::time::Duration::from_secs(10);
/// Longest head of the answer, bytes.
const MAX_HEAD_BYTES: usize = 8 * 1024;
/// Most headers of the answer.
const MAX_HEADERS: usize = 64;
/// Bytes of a connection that the kernel holds in each direction. A server learns of a pause only behind the bytes
/// that are on their way, and a ping stands behind those that wait to be sent.
const SOCKET_BYTES: usize = 64 * 1024;

/// Connection of a session.
pub(super) trait SessionStream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> SessionStream for S {}

/// A session that has just begun.
pub(super) struct OpenedSession {
    pub(super) stream: Box<dyn SessionStream>,
    /// Bytes that came behind the answer.
    pub(super) rest: Vec<u8>,
}

/// Opens a session with a server. A renewed certificate is shown from the next one on.
pub(super) async fn open_session(
    shared: Rc<DialerShared>,
    (host, port): SupervisorAddress,
) -> Result<OpenedSession, StreamFailure> {
    let base = &shared.base;
    let (tls, _) = base.read_credentials(None, None, PROTOCOL).await?;
    let stream = dial_tls(&host, port, &tls, &*base.clock, Some(SOCKET_BYTES)).await?;
    let mut stream: Box<dyn SessionStream> = Box::new(stream);
    let host = match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    };
    let late = async {
        let late = time_out_at(base.alarm_after(UPGRADE_TIME)).await;
        late.map_err(|e| to_failure(&e))
    };
    let rest = Box::pin(upgrade_stream(&mut *stream, &host).or(late)).await?;
    Ok(OpenedSession { stream, rest })
}

/// Makes a WebSocket of a connection. Returns the bytes that came behind the answer.
pub(super) async fn upgrade_stream(
    stream: &mut dyn SessionStream,
    host: &str,
) -> Result<Vec<u8>, StreamFailure> {
    let mut random = [0; KEY_BYTES];
    fill_random(&mut random);
    let key = upgrade::encode_client_key(random);
    let request = upgrade::client_request_head(host, PATH, &key);
    let failed = |e: io::Error| to_failure(&e);
    stream.write_all(request.as_bytes()).await.map_err(failed)?;
    stream.flush().await.map_err(failed)?;
    let mut answer = vec![0; MAX_HEAD_BYTES];
    let mut filled = 0;
    loop {
        let count = stream.read(&mut answer[filled..]).await.map_err(failed)?;
        if count == 0 {
            let why = match filled == MAX_HEAD_BYTES {
                true => "the head of its answer is too long",
                false => "it ends the connection without an answer",
            };
            return Err(StreamFailure::broken(why));
        }
        filled += count;
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let head = ResponseHead::parse(&answer[..filled], &mut headers);
        let head = head.map_err(|e| StreamFailure::broken(format!("it speaks no HTTP: {e}")))?;
        let Some(head) = head else { continue };
        check_answer(&head, &key)?;
        return Ok(answer[head.length..filled].to_vec());
    }
}

/// Judges the answer to the request.
fn check_answer(head: &ResponseHead<'_, '_>, key: &str) -> Result<(), StreamFailure> {
    let refused = |why: String| StreamFailure {
        ending: StreamLossReason::Refused,
        why,
    };
    match head.status {
        101 => {
            let headers = head.headers.iter().map(|h| (h.name, h.value));
            let wrong = |name| refused(format!("it answers with a wrong {name}: it is no tunnel"));
            upgrade::check_client_answer(key, headers).map_err(wrong)
        }
        401 | 403 => Err(refused(format!(
            "it does not accept the certificate of this node ({})",
            head.status
        ))),
        404 => Err(refused("it has no tunnel for nodes (404)".into())),
        status => Err(StreamFailure::broken(format!("it answers {status}"))),
    }
}

/// Reads an error of a connection. TLS 1.3 tells a client that its certificate is not wanted once it has begun to
/// speak.
pub(super) fn to_failure(e: &io::Error) -> StreamFailure {
    match e.kind() {
        io::ErrorKind::InvalidData => StreamFailure {
            ending: StreamLossReason::Refused,
            why: io_error_text(e),
        },
        io::ErrorKind::TimedOut => StreamFailure::broken("it does not answer"),
        _ => StreamFailure::broken(io_error_text(e)),
    }
}
