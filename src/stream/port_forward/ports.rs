//! A fixed list of ports over WebSocket: channel 2n carries the nth port's data, channel 2n + 1 its error.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use super::parse_port;
use crate::stream::websocket::{self, ChannelEvent, ChannelProtocol, Channels};
use crate::stream::{MachineStep, Span};

/// Ports of one connection: two channels each, numbered in a byte.
const MAX_PORTS: usize = 127;

/// A query whose ports cannot be forwarded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortQueryError {
    /// The query names no port.
    #[error("query parameter \"port\" is required")]
    Missing,
    /// The text is not a number from 1 to 65535.
    #[error("unable to parse {0:?} as a port")]
    Number(String),
    /// The query names more ports than channels have numbers for.
    #[error("more than {MAX_PORTS} ports")]
    TooMany,
}

/// An event from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebSocketPortEvent {
    /// Data for a port.
    Data {
        /// Index in [`WebSocketPortForward::ports`].
        index: usize,
        /// Place of the data.
        span: Span,
    },
    /// The client is gone. So it is when its connection ends.
    Left,
}

/// A connection. All ports are connected at once; when none is left, [`WebSocketPortForward::send_close`].
#[derive(Debug)]
pub struct WebSocketPortForward {
    channels: Box<Channels>,
    ports: Box<[u16]>,
}

impl WebSocketPortForward {
    /// Reads the values of the query's `port` parameters: numbers, several behind commas.
    pub fn parse_ports<'a>(
        values: impl Iterator<Item = &'a str>,
    ) -> Result<Vec<u16>, PortQueryError> {
        let mut ports = Vec::new();
        for text in values.flat_map(|value| value.split(',')) {
            if ports.len() == MAX_PORTS {
                return Err(PortQueryError::TooMany);
            }
            let bad = || PortQueryError::Number(text.chars().take(32).collect::<String>());
            ports.push(parse_port(text).ok_or_else(bad)?);
        }
        if ports.is_empty() {
            Err(PortQueryError::Missing)
        } else {
            Ok(ports)
        }
    }

    /// A connection behind its handshake. Each channel is told its port.
    #[must_use]
    pub fn new(protocol: ChannelProtocol, ports: Vec<u16>, out: &mut Vec<u8>) -> Self {
        let mut new = Self {
            channels: Box::new(Channels::new(protocol)),
            ports: ports.into_boxed_slice(),
        };
        for index in 0..new.ports.len() {
            let number = new.ports[index].to_le_bytes();
            new.send_data(index, &number, out);
            new.channels
                .send_message(data_channel(index) + 1, &number, out);
        }
        new
    }

    /// The ports, in the client's order.
    #[must_use]
    pub const fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// Takes bytes of `input`, up to the first event.
    ///
    /// - Errors: [`WebSocketPortForward::send_close`] with the error's code.
    pub fn receive_input(
        &mut self,
        input: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<MachineStep<WebSocketPortEvent>, websocket::WebSocketError> {
        let mut at = 0;
        loop {
            let rest = input.get_mut(at..).unwrap_or_default();
            let step = self.channels.receive_input(rest, out)?;
            let base = at;
            at += step.taken;
            match step.event {
                None => return Ok(MachineStep::without_event(at)),
                Some(ChannelEvent::Left) => {
                    return Ok(MachineStep::new(at, WebSocketPortEvent::Left));
                }
                Some(ChannelEvent::Data { channel, span }) => {
                    let index = usize::from(channel / 2);
                    if channel % 2 == 0 && index < self.ports.len() {
                        let span = span.shifted_by(base);
                        return Ok(MachineStep::new(
                            at,
                            WebSocketPortEvent::Data { index, span },
                        ));
                    }
                }
                Some(ChannelEvent::End { .. }) => {}
            }
        }
    }

    /// Sends bytes of a port, at most [`crate::stream::PAYLOAD_BYTES`].
    pub fn send_data(&mut self, index: usize, payload: &[u8], out: &mut Vec<u8>) {
        self.channels
            .send_message(data_channel(index), payload, out);
    }

    /// Says why a port cannot be forwarded, or no longer.
    pub fn fail_port(&mut self, index: usize, why: &str, out: &mut Vec<u8>) {
        self.channels
            .send_message(data_channel(index) + 1, why.as_bytes(), out);
    }

    /// Says goodbye, once.
    pub fn send_close(&mut self, code: u16, out: &mut Vec<u8>) {
        self.channels.send_close(code, out);
    }
}

/// The data channel of a port; its error channel is the next.
fn data_channel(index: usize) -> u8 {
    u8::try_from(index.min(MAX_PORTS - 1) * 2).unwrap_or_default()
}
