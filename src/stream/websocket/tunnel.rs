//! SPDY in the binary messages of a WebSocket: kubectl forwards ports so since 1.31, through any proxy.
//!
//! Messages and frames of SPDY need not coincide. Source: KEP-4006; client-go `tools/portforward/tunneling_connection.go`.

use alloc::vec::Vec;

use super::frame::{MessageKind, WebSocket, WebSocketError, WebSocketEvent};
use crate::stream::MachineStep;

/// Name of the tunnel's protocol in `Sec-WebSocket-Protocol`.
pub const TUNNEL_PROTOCOL: &str = "SPDY/3.1+portforward.k8s.io";

/// The WebSocket around a SPDY connection.
#[derive(Debug, Default)]
pub struct SpdyTunnel {
    socket: WebSocket,
    /// Bytes at the front of the input that are unmasked, and SPDY's.
    ready: usize,
}

impl SpdyTunnel {
    /// Makes the front of `input` readable: takes the bytes that are only WebSocket's. Afterwards [`SpdyTunnel::ready_bytes`]
    /// bytes behind them are SPDY's; they are not taken. `true` as event: the peer said goodbye.
    ///
    /// - Errors: [`SpdyTunnel::send_close`] with the error's code.
    pub fn receive_input(
        &mut self,
        input: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<MachineStep<bool>, WebSocketError> {
        if self.ready > 0 {
            return Ok(MachineStep::without_event(0));
        }
        let step = self.socket.receive_input(input, out)?;
        match step.event {
            None => Ok(MachineStep::without_event(step.taken)),
            Some(WebSocketEvent::Close { .. }) => Ok(MachineStep::new(step.taken, true)),
            Some(WebSocketEvent::Data {
                kind: MessageKind::Text,
                ..
            }) => Err(WebSocketError::Message("text instead of SPDY")),
            Some(WebSocketEvent::Data { span, .. }) => {
                self.ready = span.len;
                Ok(MachineStep::without_event(span.at))
            }
        }
    }

    /// Bytes of SPDY at the front of the input.
    #[must_use]
    pub const fn ready_bytes(&self) -> usize {
        self.ready
    }

    /// SPDY has taken `bytes` of them.
    pub const fn record_taken(&mut self, bytes: usize) {
        self.ready = self.ready.saturating_sub(bytes);
    }

    /// Calls `write` and sends the bytes that it wrote as one message.
    pub fn wrap_message<R>(
        &mut self,
        out: &mut Vec<u8>,
        write: impl FnOnce(&mut Vec<u8>) -> R,
    ) -> R {
        // The bytes of SPDY come first, for their length makes the head, which is then turned in front of them.
        let start = out.len();
        let result = write(out);
        let length = out.len() - start;
        if self.socket.is_closed() {
            out.truncate(start);
        } else if length > 0 {
            super::frame::write_message_head(MessageKind::Binary, length, out);
            let head = out.len() - start - length;
            if let Some(written) = out.get_mut(start..) {
                written.rotate_right(head);
            }
        }
        result
    }

    /// Says goodbye, once.
    pub fn send_close(&mut self, code: u16, out: &mut Vec<u8>) {
        self.socket.send_close(code, out);
    }
}
