//! Two connections joined byte for byte: what the server does for exec, attach and port forwarding, as `UpgradeAwareHandler`
//! does it. Neither direction waits for the other, and the end of either is the end of both.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustls::{ConnectionCommon, SideData};

/// On its way in one direction.
const BUFFER: usize = 16 * 1024;
/// How often a quiet connection looks whether the server goes on, in milliseconds.
const LOOK_MS: u16 = 200;

/// One of the two.
pub(crate) struct End<'a, D, S> {
    pub(crate) session: &'a mut ConnectionCommon<D>,
    pub(crate) socket: &'a mut S,
}

/// What was read of one and not yet written to the other.
#[derive(Default)]
struct Held {
    bytes: Vec<u8>,
    over: bool,
}

impl<D: SideData, S: Read + Write> End<'_, D, S> {
    /// Reads some plain bytes into what is held, if that is empty. Whether anything moved.
    fn read(&mut self, held: &mut Held) -> io::Result<bool> {
        if held.over || !held.bytes.is_empty() {
            return Ok(false);
        }
        let mut part = [0; BUFFER];
        loop {
            match self.session.reader().read(&mut part) {
                Ok(0) => held.over = true,
                Ok(n) => held.bytes.extend_from_slice(&part[..n]),
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => held.over = true,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    match self.session.read_tls(self.socket) {
                        // The reader says how it ended.
                        Ok(_) => {
                            self.session
                                .process_new_packets()
                                .map_err(io::Error::other)?;
                            continue;
                        }
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                        Err(e) => return Err(e),
                    }
                }
                Err(e) => return Err(e),
            }
            return Ok(true);
        }
    }

    /// Writes what is held, as far as that goes. Whether anything moved.
    fn write(&mut self, held: &mut Held) -> io::Result<bool> {
        let mut moved = false;
        if !self.session.wants_write() && !held.bytes.is_empty() {
            let n = self.session.writer().write(&held.bytes)?;
            held.bytes.drain(..n);
            moved = n > 0;
        }
        while self.session.wants_write() {
            match self.session.write_tls(self.socket) {
                Ok(n) => moved |= n > 0,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        Ok(moved)
    }

    fn is_done(&self, held: &Held) -> bool {
        held.over && held.bytes.is_empty() && !self.session.wants_write()
    }
}

/// Joins the two until one of them ends, or `stopped` says so. `sockets` are those of both.
pub(crate) fn join<D: SideData, E: SideData, S: Read + Write, T: Read + Write>(
    mut client: End<'_, D, S>,
    mut node: End<'_, E, T>,
    sockets: (&TcpStream, &TcpStream),
    stopped: impl Fn() -> bool,
) -> io::Result<()> {
    sockets.0.set_nonblocking(true)?;
    sockets.1.set_nonblocking(true)?;
    let (mut there, mut back) = (Held::default(), Held::default());
    loop {
        let mut moved = client.read(&mut there)?;
        moved |= node.write(&mut there)?;
        moved |= node.read(&mut back)?;
        moved |= client.write(&mut back)?;
        if node.is_done(&there) || client.is_done(&back) || stopped() {
            break;
        }
        if moved {
            continue;
        }
        let wants = |held: &Held, writes: bool| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::POLLIN, held.bytes.is_empty());
            flags.set(PollFlags::POLLOUT, writes);
            flags
        };
        let mut fds = [
            PollFd::new(
                sockets.0.as_fd(),
                wants(&there, client.session.wants_write()),
            ),
            PollFd::new(sockets.1.as_fd(), wants(&back, node.session.wants_write())),
        ];
        poll(&mut fds, PollTimeout::from(LOOK_MS))?;
    }
    client.session.send_close_notify();
    let _ = client.write(&mut back);
    Ok(())
}
