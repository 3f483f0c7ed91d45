//! SPDY that a client tunnels through WebSocket, unpacked for a runtime that does not know the tunnel.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io;

use smol::io::{AsyncRead as _, AsyncWrite as _};

use super::super::carrier::{Carrier, Late, TURNS};
use super::super::{Outcome, agree, port_protocols};
use super::spdy::{PORTS_PROTOCOL, upgraded};
use super::unless_left;
use crate::server::backend::Streaming;
use crate::server::connection::Connection;
use crate::server::http::Request;
use crate::stream::websocket::{self, Tunnel};
use crate::stream::{OUT_BYTES, PAYLOAD_BYTES};

/// End of the tunnel's session.
enum Over {
    /// The runtime has said all.
    Done,
    /// No byte came or went for too long.
    Idle,
    /// The session has sent and received all that it may.
    Spent,
    /// The client talks nonsense.
    Broken(websocket::Error),
    /// The client is gone, or was given up.
    Left,
}

struct Drive<'a> {
    carrier: Carrier<'a>,
    tunnel: Tunnel,
    runtime: Connection,
}

/// Serves a client of the tunnel, with its ports at `url`.
pub(in crate::server::streaming) async fn tunnel(
    streaming: &dyn Streaming,
    connection: &mut Connection,
    request: &Request,
    url: &str,
) -> Outcome {
    let opening = upgraded(url, PORTS_PROTOCOL, streaming.creation_timeout());
    let Some(opened) = unless_left(connection, opening).await else {
        return Ok(Ok(()));
    };
    let runtime = match opened {
        Ok(opened) => opened.connection,
        Err(lost) => return lost.tell(connection).await.map(Ok),
    };
    if agree(connection, request, port_protocols).await?.is_none() {
        return Ok(Ok(()));
    }
    let mut drive = Drive {
        carrier: Carrier::new(connection, streaming),
        tunnel: Tunnel::default(),
        runtime,
    };
    let over = core::future::poll_fn(|cx| drive.poll(cx)).await?;
    let Drive {
        mut carrier,
        mut tunnel,
        runtime,
    } = drive;
    if !matches!(over, Over::Done) {
        runtime.cut();
    }
    drop(runtime);
    match over {
        Over::Done | Over::Idle | Over::Spent => tunnel.close(websocket::NORMAL, &mut carrier.out),
        Over::Broken(e) => tunnel.close(e.code(), &mut carrier.out),
        Over::Left => return Ok(Ok(())),
    }
    carrier.leave().await;
    Ok(Ok(()))
}

impl Drive<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Over>> {
        loop {
            ready!(self.carrier.poll_pause(cx));
            for _ in 0..TURNS {
                let mut moved = self.carrier.poll_write(cx)?;
                // The bytes of the runtime are not understood here: there is no place for a line of ours among them.
                if self.carrier.spent().is_some() {
                    return Poll::Ready(Ok(Over::Spent));
                }
                let over = self
                    .poll_client(cx, &mut moved)
                    .or_else(|| self.poll_runtime(cx, &mut moved));
                if let Some(over) = over {
                    return Poll::Ready(Ok(over));
                }
                if !moved {
                    match ready!(self.carrier.poll_late(cx, None)) {
                        Late::Idle => return Poll::Ready(Ok(Over::Idle)),
                        Late::Gone | Late::Due => return Poll::Ready(Ok(Over::Left)),
                    }
                }
            }
            self.carrier.pause();
        }
    }

    /// Reads the client's bytes, and passes them on.
    fn poll_client(&mut self, cx: &mut Context<'_>, moved: &mut bool) -> Option<Over> {
        match self.carrier.poll_read(cx) {
            Ok(read) => *moved |= read,
            Err(_) => return Some(Over::Left),
        }
        let (input, out) = self.carrier.buffers();
        match self.tunnel.receive(input, out) {
            Ok(step) if step.event == Some(true) => return Some(Over::Left),
            Ok(step) => {
                *moved |= !step.is_idle();
                self.carrier.take(step.taken);
            }
            Err(e) => return Some(Over::Broken(e)),
        }
        let ready = self.tunnel.ready();
        let (input, _) = self.carrier.buffers();
        let bytes = input.get(..ready).filter(|bytes| !bytes.is_empty())?;
        match Pin::new(&mut self.runtime).poll_write(cx, bytes) {
            Poll::Pending => {}
            Poll::Ready(Ok(n)) if n > 0 => {
                *moved = true;
                self.tunnel.took(n);
                self.carrier.take(n);
            }
            Poll::Ready(_) => return Some(Over::Done),
        }
        None
    }

    /// Packs the runtime's bytes.
    fn poll_runtime(&mut self, cx: &mut Context<'_>, moved: &mut bool) -> Option<Over> {
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
                    .wrap(out, |out| out.extend_from_slice(&piece[..n]));
                None
            }
            Poll::Ready(_) => Some(Over::Done),
        }
    }
}
