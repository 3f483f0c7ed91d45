//! A connection whose other end is mostly on this machine: the request fits the socket's buffer, and the answer is
//! there by the time that the probes of this turn have been sent. The reactor is told of the socket only if it has to
//! be waited for.

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
};

use async_io::Async;
use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::sys::turn;

/// See the module.
pub(super) struct PlainConnection {
    /// The socket, until it is waited for.
    free: Option<TcpStream>,
    known: Option<Async<TcpStream>>,
}

impl PlainConnection {
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
        self.waiting_socket()?.write_all(bytes).await
    }

    /// Reads some bytes; none at the end. Each read gives others their turn: a peer that always has more takes none of
    /// theirs, and its probe's time is looked at meanwhile.
    pub(super) async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        turn::yield_to_others().await;
        if let Some(socket) = &mut self.free {
            match socket.read(into) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
        self.waiting_socket()?.read(into).await
    }

    fn waiting_socket(&mut self) -> io::Result<&mut Async<TcpStream>> {
        if let Some(socket) = self.free.take() {
            self.known = Some(Async::new_nonblocking(socket)?);
        }
        self.known
            .as_mut()
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use std::net::TcpListener;

    use smol::future::{or, yield_now};

    use super::*;

    #[test]
    fn a_peer_that_always_has_more_leaves_turns_to_others() {
        const PIECES: u32 = 64;
        const PIECE_BYTES: usize = 1024;
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("address");
        let socket = TcpStream::connect(address).expect("connect");
        socket.set_nonblocking(true).expect("a socket");
        let (mut peer, _) = listener.accept().expect("accept");
        let mut plain = PlainConnection::new(socket);
        let turns = Cell::new(0);
        smol::block_on(async {
            let mut piece = [0; PIECE_BYTES];
            // Until something has to be waited for, the reactor does not know of the connection.
            let silent = async {
                yield_now().await;
                yield_now().await;
                Ok(0)
            };
            let nothing = or(plain.read(&mut piece), silent).await;
            assert_eq!(nothing.expect("nothing yet"), 0);
            assert!(plain.known.is_some());
            peer.write_all(&[b'x'; PIECE_BYTES * 64]).expect("write");
            let read = async {
                for _ in 0..PIECES {
                    plain.read(&mut piece).await.expect("read");
                }
            };
            let other = async {
                loop {
                    turns.set(turns.get() + 1);
                    yield_now().await;
                }
            };
            or(read, other).await;
        });
        assert!(turns.get() >= PIECES / 2, "{} turns", turns.get());
    }
}
