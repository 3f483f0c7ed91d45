//! TLS on a socket that does not block. The certificate is not looked at, neither its owner nor its form: a probe asks
//! only if the peer answers (PROBE-31).

use alloc::sync::Arc;
use std::io::{self, Read as _};

use rustls::{ClientConfig, ClientConnection, client::Resumption, pki_types::ServerName};

use super::{Prober, plain::PlainConnection};
use crate::net::{
    any_peer::PeerProof,
    tls::{self, ServerRoots},
};

/// Bytes taken from the socket at a time.
const PIECE_BYTES: usize = 4096;

/// An encrypted connection.
pub(super) struct TlsConnection {
    session: ClientConnection,
    socket: PlainConnection,
    heard: bool,
    /// The peer spoke HTTP where TLS was expected.
    pub(super) is_plain: bool,
}

impl TlsConnection {
    /// Makes a session before its handshake.
    pub(super) fn new(prober: &Prober, host: &str, socket: PlainConnection) -> io::Result<Self> {
        let config = match prober.tls.get() {
            Some(config) => config,
            None => {
                let made = tls_config()?;
                prober.tls.get_or_init(|| made)
            }
        };
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let session = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        Ok(Self {
            session,
            socket,
            heard: false,
            is_plain: false,
        })
    }

    /// Makes the handshake.
    pub(super) async fn handshake(&mut self) -> io::Result<()> {
        // Bounded: each round reads from the socket, which gives others their turn; the probe's time ends it.
        while self.session.is_handshaking() {
            self.flush().await?;
            if self.session.is_handshaking() && self.fill_session().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        self.flush().await
    }

    /// Sends everything.
    pub(super) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        io::Write::write_all(&mut self.session.writer(), bytes)?;
        self.flush().await
    }

    /// Reads some bytes; none at the end, also at one that was not announced.
    pub(super) async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // Bounded: as the handshake is, also while records come in which there is nothing.
        loop {
            match self.session.reader().read(into) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if self.fill_session().await? == 0 {
                        return Ok(0);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        let mut out = Vec::new();
        // Bounded: by what the session wants to send.
        while self.session.wants_write() {
            self.session.write_tls(&mut out)?;
        }
        if !out.is_empty() {
            self.socket.write_all(&out).await?;
        }
        Ok(())
    }

    async fn fill_session(&mut self) -> io::Result<usize> {
        let mut piece = vec![0; PIECE_BYTES];
        let len = self.socket.read(&mut piece).await?;
        let mut bytes = &piece[..len];
        if !core::mem::replace(&mut self.heard, true) {
            self.is_plain = bytes.starts_with(b"HTTP/");
        }
        // Bounded: by the piece; a session takes some of it or fails.
        while !bytes.is_empty() {
            self.session.read_tls(&mut bytes)?;
            let processed = self.session.process_new_packets();
            processed.map_err(io::Error::other)?;
        }
        Ok(len)
    }
}

fn tls_config() -> io::Result<Arc<ClientConfig>> {
    let config =
        tls::client_config(ServerRoots::Any(PeerProof::Nothing), None).map_err(io::Error::other)?;
    let mut config = Arc::unwrap_or_clone(config);
    // A probe is a connection of its own, and memory of peers would grow with them.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}
