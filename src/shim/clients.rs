//! The shim's end of the control socket: a few clients in fixed places, none of which can hold anything up.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, bind, listen, recv, sendmsg,
    setsockopt, socket, sockopt,
};
use nix::sys::stat::{Mode, umask};

use super::control::{MAX_CLIENTS, MAX_CONNECTIONS, MAX_DATA_BYTES, Streams, kind};
use super::file;
use crate::sys::{pages::Pages, socket};

/// Output that may wait for a client in the kernel, in bytes (the kernel doubles it for its own headers). Taken only
/// while a client lags behind.
const CLIENT_LAG_BYTES: usize = 512 * 1024;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 8;

/// What a client asks the shim for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Reopen,
    Resize { width: u16, height: u16 },
    CloseStdin,
}

#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    streams: Streams,
}

impl Client {
    fn attached(&self) -> bool {
        self.streams != Streams::default()
    }
}

/// The socket and its clients.
#[derive(Debug)]
pub(crate) struct Clients {
    listener: OwnedFd,
    slots: [Option<Client>; MAX_CONNECTIONS],
    /// A packet of input and how much of it the container has taken.
    packet: Pages,
    taken: usize,
    len: usize,
}

impl Clients {
    /// Makes the socket in the current directory, for root only.
    pub(crate) fn listen() -> io::Result<Self> {
        let _ = std::fs::remove_file(file::CTL);
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        let mask = umask(Mode::from_bits_truncate(0o177));
        let bound = bind(listener.as_raw_fd(), &UnixAddr::new(file::CTL)?);
        umask(mask);
        bound?;
        listen(&listener, Backlog::new(BACKLOG)?)?;
        Ok(Self {
            listener,
            slots: [const { None }; MAX_CONNECTIONS],
            packet: Pages::map(1 + MAX_DATA_BYTES)?,
            taken: 0,
            len: 0,
        })
    }

    /// The descriptor that is ready when somebody connects.
    pub(crate) fn listener(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    /// What to watch for reading: one per place, -1 for those that are empty or must wait until earlier input is taken.
    pub(crate) fn watched(&self) -> [RawFd; MAX_CONNECTIONS] {
        let wait = self.has_input();
        self.slots.each_ref().map(|slot| match slot {
            Some(client) if !(wait && client.streams.stdin) => client.socket.as_raw_fd(),
            _ => -1,
        })
    }

    /// Takes a waiting connection. If all places are taken, one that is not attached makes room: such a client has its
    /// answer already, or is not going to ask. False: the system has no descriptor for it now.
    pub(crate) fn accept(&mut self) -> bool {
        let socket = match socket::accept(self.listener.as_fd()) {
            Ok(socket) => socket,
            Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
        };
        let free = self.slots.iter().position(Option::is_none);
        let idle = || {
            self.slots
                .iter()
                .position(|s| s.as_ref().is_some_and(|c| !c.attached()))
        };
        if let Some(place) = free.or_else(idle) {
            // Without the right to do so, the lag allowed is the system's default.
            let _ = setsockopt(&socket, sockopt::SndBufForce, &CLIENT_LAG_BYTES);
            let streams = Streams::default();
            self.slots[place] = Some(Client { socket, streams });
        }
        true
    }

    /// Reads one packet of client `index`. `Ok(None)`: nothing for the shim to do. `Err(had_stdin)`: it has gone.
    pub(crate) fn receive(&mut self, index: usize) -> Result<Option<Request>, bool> {
        let Some(client) = &mut self.slots[index] else {
            return Ok(None);
        };
        let had_stdin = client.streams.stdin;
        if had_stdin && self.len > self.taken {
            // Its packet may be input: it waits where it is, behind that of another client.
            return Ok(None);
        }
        let flags = MsgFlags::MSG_DONTWAIT;
        let packet = &mut self.packet[..=MAX_DATA_BYTES];
        let mut small = [0; 8];
        // The big buffer may hold input of another client that the container has not taken: this one sends commands.
        let packet: &mut [u8] = if self.len > self.taken {
            &mut small
        } else {
            packet
        };
        let received = match recv(client.socket.as_raw_fd(), packet, flags) {
            Ok(n) => n,
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => return Ok(None),
            Err(_) => 0,
        };
        let request = match &packet[..received] {
            [] => {
                self.slots[index] = None;
                return Err(had_stdin);
            }
            [kind::REOPEN] => Some(Request::Reopen),
            [kind::RESIZE, a, b, c, d] => Some(Request::Resize {
                width: u16::from_le_bytes([*a, *b]),
                height: u16::from_le_bytes([*c, *d]),
            }),
            [kind::CLOSE_STDIN] => Some(Request::CloseStdin),
            [kind::ATTACH, bits] => {
                let streams = Streams::from_bits(*bits);
                let result = self.attach(index, streams);
                self.reply(index, result);
                None
            }
            [kind::INPUT, data @ ..] if had_stdin => {
                self.taken = 1;
                self.len = 1 + data.len();
                None
            }
            _ => {
                self.reply(index, Err("unknown packet"));
                None
            }
        };
        Ok(request)
    }

    fn attach(&mut self, index: usize, streams: Streams) -> Result<(), &'static str> {
        let others = self.slots.iter().enumerate().filter(|(i, _)| *i != index);
        let attached = others.filter(|(_, s)| s.as_ref().is_some_and(Client::attached));
        if attached.count() >= MAX_CLIENTS {
            return Err("too many clients are attached");
        }
        if let Some(client) = &mut self.slots[index] {
            client.streams = streams;
        }
        Ok(())
    }

    /// Answers a command.
    pub(crate) fn reply(&mut self, index: usize, result: Result<(), &str>) {
        match result {
            Ok(()) => self.send(index, kind::OK, &[]),
            Err(text) => self.send(index, kind::FAILED, text.as_bytes()),
        }
    }

    /// Passes output on to whoever attached to that stream.
    pub(crate) fn output(&mut self, stream: u8, bytes: &[u8]) {
        for index in 0..MAX_CONNECTIONS {
            let wants = self.slots[index].as_ref().is_some_and(|c| match stream {
                kind::STDERR => c.streams.stderr,
                _ => c.streams.stdout,
            });
            if wants {
                for part in bytes.chunks(MAX_DATA_BYTES) {
                    self.send(index, stream, part);
                }
            }
        }
    }

    /// Tells all attached clients that nothing follows.
    pub(crate) fn end(&mut self) {
        for index in 0..MAX_CONNECTIONS {
            self.send(index, kind::END, &[]);
        }
    }

    /// Whether input waits for the container.
    pub(crate) const fn has_input(&self) -> bool {
        self.len > self.taken
    }

    /// Offers the waiting input to `write`, which says how much it took. Without a taker (`None`) it is thrown away.
    pub(crate) fn input(&mut self, write: impl FnOnce(&[u8]) -> Option<usize>) {
        if self.has_input() {
            match write(&self.packet[self.taken..self.len]) {
                Some(n) => self.taken += n,
                None => self.taken = self.len,
            }
        }
    }

    /// Whether a client attached to standard input is connected.
    pub(crate) fn any_stdin(&self) -> bool {
        self.slots.iter().flatten().any(|c| c.streams.stdin)
    }

    /// Gives memory back that holds nothing.
    pub(crate) fn release(&mut self) {
        if !self.has_input() {
            self.packet.release(0);
        }
    }

    /// Sends one packet; a client that cannot take it now is disconnected.
    fn send(&mut self, index: usize, kind: u8, data: &[u8]) {
        let Some(client) = &self.slots[index] else {
            return;
        };
        let kind = [kind];
        let parts = [IoSlice::new(&kind), IoSlice::new(data)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let sent = sendmsg::<()>(client.socket.as_raw_fd(), &parts, &[], flags, None);
        if sent.is_err() {
            // Shut down, not forgotten: the next poll shows its end, and with it that of its standard input.
            let _ = nix::sys::socket::shutdown(
                client.socket.as_raw_fd(),
                nix::sys::socket::Shutdown::Both,
            );
            if let Some(client) = &mut self.slots[index] {
                client.streams = Streams {
                    stdin: client.streams.stdin,
                    ..Streams::default()
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::{send, socketpair};

    use super::*;

    /// A shim's end with two clients that are attached to standard input, and their own ends.
    fn two() -> (Clients, [OwnedFd; 2]) {
        let pair = || {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).expect("pair")
        };
        let (listener, _) = pair();
        let mut clients = Clients {
            listener,
            slots: [const { None }; MAX_CONNECTIONS],
            packet: Pages::map(1 + MAX_DATA_BYTES).expect("pages"),
            taken: 0,
            len: 0,
        };
        let theirs = [0, 1].map(|place| {
            let (socket, theirs) = pair();
            let streams = Streams {
                stdin: true,
                ..Streams::default()
            };
            clients.slots[place] = Some(Client { socket, streams });
            theirs
        });
        (clients, theirs)
    }

    #[test]
    fn input_of_two_clients_at_once_is_kept() {
        let (mut clients, theirs) = two();
        let texts = ["Ione, a long line of input\n", "Itwo, another long line\n"];
        for (socket, text) in theirs.iter().zip(texts) {
            send(socket.as_raw_fd(), text.as_bytes(), MsgFlags::empty()).expect("send");
        }
        // One poll has shown both ready.
        let mut got = String::new();
        for _ in 0..texts.len() {
            for place in 0..texts.len() {
                assert_eq!(clients.receive(place), Ok(None));
            }
            clients.input(|bytes| {
                got.push_str(core::str::from_utf8(bytes).expect("text"));
                Some(bytes.len())
            });
        }
        assert_eq!(got, "one, a long line of input\ntwo, another long line\n");
    }
}
