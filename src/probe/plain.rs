//! A connection whose other end is mostly on this machine: what is asked fits the socket's buffer, and the answer is there
//! by the time that the probes of this turn have been sent. Only what has to be waited for is made known to the reactor.

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
};

use async_io::Async;
use smol::{
    future,
    io::{AsyncReadExt as _, AsyncWriteExt as _},
};

/// See the module.
pub(super) struct Plain {
    /// Until it is waited for.
    free: Option<TcpStream>,
    known: Option<Async<TcpStream>>,
}

impl Plain {
    /// `socket` does not block.
    pub(super) const fn new(socket: TcpStream) -> Self {
        Self {
            free: Some(socket),
            known: None,
        }
    }

    /// Sends everything.
    pub(super) async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        if let Some(socket) = &mut self.free {
            match socket.write(bytes) {
                Ok(len) if len == bytes.len() => return Ok(()),
                Ok(len) => bytes = &bytes[len..],
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
        self.known()?.write_all(bytes).await
    }

    /// Some bytes; none at the end.
    pub(super) async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Some(socket) = &mut self.free {
            future::yield_now().await;
            match socket.read(into) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
        self.known()?.read(into).await
    }

    fn known(&mut self) -> io::Result<&mut Async<TcpStream>> {
        if let Some(socket) = self.free.take() {
            self.known = Some(Async::new_nonblocking(socket)?);
        }
        self.known
            .as_mut()
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}
