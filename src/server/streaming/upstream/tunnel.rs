//! SPDY that a client tunnels through WebSocket, unpacked for a runtime that does not know the tunnel.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io;

use smol::io::{AsyncRead as _, AsyncWrite as _};

use super::super::carrier::{SessionCarrier, TURNS, WaitEndReason};
use super::super::{ServeOutcome, agree_on_protocol, port_protocols};
use super::spdy::{PORTS_PROTOCOL, connect_spdy};
use super::unless_left;
use crate::server::backend::StreamingBackend;
use crate::server::connection::StreamConnection;
use crate::server::http::HttpRequest;
use crate::stream::websocket::{self, SpdyTunnel};
use crate::stream::{OUT_BYTES, PAYLOAD_BYTES};

/// End of the tunnel's session.
enum TunnelSessionEnd {
    /// The runtime has said all.
    Done,
    /// No byte came or went for too long.
    Idle,
    /// The session has sent and received all that it may.
    Spent,
    /// The client talks nonsense.
    Broken(websocket::WebSocketError),
    /// The client is gone, or was given up.
    Left,
}

struct TunnelDriver<'a> {
    carrier: SessionCarrier<'a>,
    tunnel: SpdyTunnel,
    runtime: StreamConnection,
}

/// Serves a client of the tunnel, with its ports at `url`.
pub(in crate::server::streaming) async fn serve_tunnel(
    streaming: &dyn StreamingBackend,
    connection: &mut StreamConnection,
    request: &HttpRequest,
    url: &str,
) -> ServeOutcome {
    let opening = connect_spdy(url, PORTS_PROTOCOL, streaming.creation_timeout());
    let Some(opened) = unless_left(connection, opening).await else {
        return Ok(Ok(()));
    };
    let runtime = match opened {
        Ok(opened) => opened.connection,
        Err(lost) => return lost.send_to_client(connection).await.map(Ok),
    };
    if agree_on_protocol(connection, request, port_protocols)
        .await?
        .is_none()
    {
        return Ok(Ok(()));
    }
    let mut drive = TunnelDriver {
        carrier: SessionCarrier::new(connection, streaming),
        tunnel: SpdyTunnel::default(),
        runtime,
    };
    let over = core::future::poll_fn(|cx| drive.poll(cx)).await?;
    let TunnelDriver {
        mut carrier,
        mut tunnel,
        runtime,
    } = drive;
    if !matches!(over, TunnelSessionEnd::Done) {
        runtime.abort_on_drop();
    }
    drop(runtime);
    match over {
        TunnelSessionEnd::Done | TunnelSessionEnd::Idle | TunnelSessionEnd::Spent => {
            tunnel.send_close(websocket::NORMAL, &mut carrier.out)
        }
        TunnelSessionEnd::Broken(e) => tunnel.send_close(e.close_code(), &mut carrier.out),
        TunnelSessionEnd::Left => return Ok(Ok(())),
    }
    carrier.close_gracefully().await;
    Ok(Ok(()))
}

impl TunnelDriver<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<TunnelSessionEnd>> {
        loop {
            ready!(self.carrier.poll_pause(cx));
            for _ in 0..TURNS {
                let mut moved = self.carrier.poll_write(cx)?;
                // The bytes of the runtime are not understood here: there is no place for a line of ours among them.
                if self.carrier.spent_reason().is_some() {
                    return Poll::Ready(Ok(TunnelSessionEnd::Spent));
                }
                let over = self
                    .poll_client(cx, &mut moved)
                    .or_else(|| self.poll_runtime(cx, &mut moved));
                if let Some(over) = over {
                    return Poll::Ready(Ok(over));
                }
                if !moved {
                    match ready!(self.carrier.poll_wait_end(cx, None)) {
                        WaitEndReason::Idle => return Poll::Ready(Ok(TunnelSessionEnd::Idle)),
                        WaitEndReason::Gone | WaitEndReason::Due => {
                            return Poll::Ready(Ok(TunnelSessionEnd::Left));
                        }
                    }
                }
            }
            self.carrier.begin_pause();
        }
    }

    /// Reads the client's bytes, and passes them on.
    fn poll_client(&mut self, cx: &mut Context<'_>, moved: &mut bool) -> Option<TunnelSessionEnd> {
        match self.carrier.poll_read(cx) {
            Ok(read) => *moved |= read,
            Err(_) => return Some(TunnelSessionEnd::Left),
        }
        let (input, out) = self.carrier.io_buffers();
        match self.tunnel.receive_input(input, out) {
            Ok(step) if step.event == Some(true) => return Some(TunnelSessionEnd::Left),
            Ok(step) => {
                *moved |= !step.is_idle();
                self.carrier.consume_input(step.taken);
            }
            Err(e) => return Some(TunnelSessionEnd::Broken(e)),
        }
        let ready = self.tunnel.ready_bytes();
        let (input, _) = self.carrier.io_buffers();
        let bytes = input.get(..ready).filter(|bytes| !bytes.is_empty())?;
        match Pin::new(&mut self.runtime).poll_write(cx, bytes) {
            Poll::Pending => {}
            Poll::Ready(Ok(n)) if n > 0 => {
                *moved = true;
                self.tunnel.record_taken(n);
                self.carrier.consume_input(n);
            }
            Poll::Ready(_) => return Some(TunnelSessionEnd::Done),
        }
        None
    }

    /// Packs the runtime's bytes.
    fn poll_runtime(&mut self, cx: &mut Context<'_>, moved: &mut bool) -> Option<TunnelSessionEnd> {
        if self.carrier.out.len() >= OUT_BYTES {
            return None;
        }
        let mut piece = [0; PAYLOAD_BYTES];
        match Pin::new(&mut self.runtime).poll_read(cx, &mut piece) {
            Poll::Pending => None,
            Poll::Ready(Ok(n)) if n > 0 => {
                *moved = true;
                let out = &mut self.carrier.out;
                self.tunnel
                    .wrap_message(out, |out| out.extend_from_slice(&piece[..n]));
                None
            }
            Poll::Ready(_) => Some(TunnelSessionEnd::Done),
        }
    }
}
