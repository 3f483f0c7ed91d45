//! The shim's end of the control socket: a few clients in fixed places, none of which can hold anything up.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, bind, listen, recv, sendmsg,
    setsockopt, socket, sockopt,
};
use nix::sys::stat::{Mode, umask};

use super::control::{AttachStreams, MAX_CLIENTS, MAX_CONNECTIONS, MAX_DATA_BYTES, kind};
use super::file;
use crate::sys::{pages::PageBuffer, socket, start};

/// Output that may wait for a client in the kernel, in bytes (the kernel doubles it for its own headers). Taken only
/// while a client lags behind.
const CLIENT_LAG_BYTES: usize = 512 * 1024;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 8;

/// Request of a client to the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShimRequest {
    Reopen,
    Resize { width: u16, height: u16 },
    CloseStdin,
}

#[derive(Debug)]
struct ShimClient {
    socket: OwnedFd,
    streams: AttachStreams,
}

impl ShimClient {
    fn is_attached(&self) -> bool {
        self.streams != AttachStreams::default()
    }

    /// Returns true if the client has closed its end. Its earlier packets may still wait.
    fn has_left(&self) -> bool {
        let mut fds = [libc::pollfd {
            fd: self.socket.as_raw_fd(),
            events: 0,
            revents: 0,
        }];
        let polled = start::poll_fds(&mut fds, 0);
        polled.is_ok() && fds[0].revents & (libc::POLLHUP | libc::POLLERR) != 0
    }
}

/// The socket and its clients.
#[derive(Debug)]
pub(crate) struct ShimClients {
    listener: OwnedFd,
    slots: [Option<ShimClient>; MAX_CONNECTIONS],
    /// Set if a client was attached to standard input at some time since the last [`ShimClients::take_last_stdin_gone`].
    had_stdin: bool,
    /// A packet of input and how much of it the container has taken.
    packet: PageBuffer,
    taken: usize,
    len: usize,
}

impl ShimClients {
    /// Makes the socket in the current directory, for root only.
    pub(crate) fn bind_control_socket() -> io::Result<Self> {
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
            had_stdin: false,
            packet: PageBuffer::map(1 + MAX_DATA_BYTES)?,
            taken: 0,
            len: 0,
        })
    }

    /// The descriptor that is ready when a client connects.
    pub(crate) fn listener(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    /// Descriptors to watch for reading: one per place, -1 for places that are empty or must wait until earlier input
    /// is taken.
    pub(crate) fn watched_fds(&self) -> [RawFd; MAX_CONNECTIONS] {
        let wait = self.has_input();
        self.slots.each_ref().map(|slot| match slot {
            Some(client) if !(wait && client.streams.stdin) => client.socket.as_raw_fd(),
            _ => -1,
        })
    }

    /// Takes a waiting connection. If all places are taken, a client that is not attached makes room: it has its answer
    /// already, or is not going to ask. Otherwise a client that has left makes room, and its input that the container
    /// did not take is lost: there is one, for at most [`MAX_CLIENTS`] attached clients have not left. Returns false if
    /// the system has no descriptor for the connection now.
    pub(crate) fn accept_client(&mut self) -> bool {
        let socket = match socket::accept_connection(self.listener.as_fd()) {
            Ok(socket) => socket,
            Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
        };
        let free = self.slots.iter().position(Option::is_none);
        let of = |makes_room: fn(&ShimClient) -> bool| {
            let mut slots = self.slots.iter();
            slots.position(|slot| slot.as_ref().is_some_and(makes_room))
        };
        let idle = || of(|client| !client.is_attached());
        if let Some(place) = free.or_else(idle).or_else(|| of(ShimClient::has_left)) {
            // Without the right to do so, the lag allowed is the system's default.
            let _ = setsockopt(&socket, sockopt::SndBufForce, &CLIENT_LAG_BYTES);
            let streams = AttachStreams::default();
            self.slots[place] = Some(ShimClient { socket, streams });
        }
        true
    }

    /// Reads one packet of client `index`, or its end. `None`: nothing for the shim to do.
    pub(crate) fn receive_request(&mut self, index: usize) -> Option<ShimRequest> {
        let client = self.slots[index].as_ref()?;
        let had_stdin = client.streams.stdin;
        if had_stdin && self.len > self.taken {
            // The packet may be input: it stays in its socket until the earlier input is taken.
            return None;
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
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => return None,
            Err(_) => 0,
        };
        match &packet[..received] {
            [] => {
                self.slots[index] = None;
                None
            }
            [kind::REOPEN] => Some(ShimRequest::Reopen),
            [kind::RESIZE, a, b, c, d] => Some(ShimRequest::Resize {
                width: u16::from_le_bytes([*a, *b]),
                height: u16::from_le_bytes([*c, *d]),
            }),
            [kind::CLOSE_STDIN] => Some(ShimRequest::CloseStdin),
            [kind::ATTACH, bits] => {
                let streams = AttachStreams::from_bits(*bits);
                let result = self.attach_client(index, streams);
                self.reply_to_client(index, result);
                None
            }
            [kind::INPUT, data @ ..] if had_stdin => {
                self.taken = 1;
                self.len = 1 + data.len();
                None
            }
            _ => {
                self.reply_to_client(index, Err("unknown packet"));
                None
            }
        }
    }

    fn attach_client(&mut self, index: usize, streams: AttachStreams) -> Result<(), &'static str> {
        // A client that has left may keep its place for long: its input waits until the container reads.
        let counts = |client: &ShimClient| client.is_attached() && !client.has_left();
        let others = self.slots.iter().enumerate().filter(|(i, _)| *i != index);
        let attached = others.filter(|(_, s)| s.as_ref().is_some_and(counts));
        if attached.count() >= MAX_CLIENTS {
            return Err("too many clients are attached");
        }
        if let Some(client) = &mut self.slots[index] {
            client.streams = streams;
            self.had_stdin |= streams.stdin;
        }
        Ok(())
    }

    /// Answers a command.
    pub(crate) fn reply_to_client(&mut self, index: usize, result: Result<(), &str>) {
        match result {
            Ok(()) => self.send_packet(index, kind::OK, &[]),
            Err(text) => self.send_packet(index, kind::FAILED, text.as_bytes()),
        }
    }

    /// Passes output on to the clients that attached to that stream.
    pub(crate) fn send_output(&mut self, stream: u8, bytes: &[u8]) {
        for index in 0..MAX_CONNECTIONS {
            let wants = self.slots[index].as_ref().is_some_and(|c| match stream {
                kind::STDERR => c.streams.stderr,
                _ => c.streams.stdout,
            });
            if wants {
                for part in bytes.chunks(MAX_DATA_BYTES) {
                    self.send_packet(index, stream, part);
                }
            }
        }
    }

    /// Tells all attached clients that there is no more output.
    pub(crate) fn send_output_end(&mut self) {
        for index in 0..MAX_CONNECTIONS {
            self.send_packet(index, kind::END, &[]);
        }
    }

    /// Returns true if input waits for the container.
    pub(crate) const fn has_input(&self) -> bool {
        self.len > self.taken
    }

    /// Offers the waiting input to `write`, which says how much it took. Without a taker (`None`) it is thrown away.
    pub(crate) fn offer_input(&mut self, write: impl FnOnce(&[u8]) -> Option<usize>) {
        if self.has_input() {
            match write(&self.packet[self.taken..self.len]) {
                Some(n) => self.taken += n,
                None => self.taken = self.len,
            }
        }
    }

    /// Returns true if the last client with standard input has gone since the last call.
    pub(crate) fn take_last_stdin_gone(&mut self) -> bool {
        let any = self.slots.iter().flatten().any(|c| c.streams.stdin);
        core::mem::replace(&mut self.had_stdin, any) && !any
    }

    /// Gives unused memory back.
    pub(crate) fn release_memory(&mut self) {
        if !self.has_input() {
            self.packet.release(0);
        }
    }

    /// Sends one packet; a client that cannot take it now is disconnected.
    fn send_packet(&mut self, index: usize, kind: u8, data: &[u8]) {
        let Some(client) = &self.slots[index] else {
            return;
        };
        let kind = [kind];
        let parts = [IoSlice::new(&kind), IoSlice::new(data)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let sent = sendmsg::<()>(client.socket.as_raw_fd(), &parts, &[], flags, None);
        if sent.is_err() {
            // Shut down, but kept: the next poll shows its end, and with it the end of its standard input.
            let _ = nix::sys::socket::shutdown(
                client.socket.as_raw_fd(),
                nix::sys::socket::Shutdown::Both,
            );
            if let Some(client) = &mut self.slots[index] {
                client.streams = AttachStreams {
                    stdin: client.streams.stdin,
                    ..AttachStreams::default()
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::{connect, send, socketpair};

    use super::*;

    const INPUT: AttachStreams = AttachStreams {
        stdin: true,
        stdout: false,
        stderr: false,
    };
    const FLAGS: SockFlag = SockFlag::SOCK_CLOEXEC.union(SockFlag::SOCK_NONBLOCK);

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, FLAGS).expect("pair")
    }

    /// A shim's end with `N` clients that are attached to standard input, and their own ends.
    fn some<const N: usize>() -> (ShimClients, [OwnedFd; N]) {
        let mut clients = ShimClients {
            listener: socket(AddressFamily::Unix, SockType::SeqPacket, FLAGS, None)
                .expect("socket"),
            slots: [const { None }; MAX_CONNECTIONS],
            had_stdin: true,
            packet: PageBuffer::map(1 + MAX_DATA_BYTES).expect("pages"),
            taken: 0,
            len: 0,
        };
        let theirs = core::array::from_fn(|place| {
            let (socket, theirs) = pair();
            clients.slots[place] = Some(ShimClient {
                socket,
                streams: INPUT,
            });
            theirs
        });
        (clients, theirs)
    }

    #[test]
    fn input_of_two_clients_at_once_is_kept() {
        let (mut clients, theirs) = some::<2>();
        let texts = ["Ione, a long line of input\n", "Itwo, another long line\n"];
        for (socket, text) in theirs.iter().zip(texts) {
            send(socket.as_raw_fd(), text.as_bytes(), MsgFlags::empty()).expect("send");
        }
        // As if one poll had shown both ready.
        let mut got = String::new();
        for _ in 0..texts.len() {
            for place in 0..texts.len() {
                assert_eq!(clients.receive_request(place), None);
            }
            clients.offer_input(|bytes| {
                got.push_str(core::str::from_utf8(bytes).expect("text"));
                Some(bytes.len())
            });
        }
        assert_eq!(got, "one, a long line of input\ntwo, another long line\n");
    }

    #[test]
    fn who_has_left_makes_room_for_others() {
        let (mut clients, theirs) = some::<MAX_CLIENTS>();
        let name = format!("picolet-clients-{}", std::process::id());
        let name = UnixAddr::new_abstract(name.as_bytes()).expect("name");
        bind(clients.listener.as_raw_fd(), &name).expect("bind");
        listen(&clients.listener, Backlog::new(BACKLOG).expect("few")).expect("listen");
        let join = |clients: &mut ShimClients| {
            let theirs =
                socket(AddressFamily::Unix, SockType::SeqPacket, FLAGS, None).expect("socket");
            connect(theirs.as_raw_fd(), &name).expect("connect");
            assert!(clients.accept_client());
            theirs
        };
        // The container reads nothing: the input of the first client waits, and with it all clients.
        send(theirs[0].as_raw_fd(), b"Iwords", MsgFlags::empty()).expect("send");
        assert_eq!(clients.receive_request(0), None);
        assert!(clients.has_input());
        let _fifth = join(&mut clients);
        assert!(
            clients.attach_client(MAX_CLIENTS, INPUT).is_err(),
            "all are there"
        );
        drop(theirs);
        for place in 0..MAX_CLIENTS {
            assert_eq!(clients.receive_request(place), None, "it waits");
        }
        clients.attach_client(MAX_CLIENTS, INPUT).expect("room");
        // Every place is taken by one that is attached: a connection takes that of one that has left.
        let _sixth = join(&mut clients);
        clients.attach_client(MAX_CLIENTS + 1, INPUT).expect("room");
        let _seventh = join(&mut clients);
        let has_left = |slot: &Option<ShimClient>| slot.as_ref().is_none_or(ShimClient::has_left);
        let left = clients.slots.iter().filter(|slot| has_left(slot)).count();
        assert_eq!(left, MAX_CLIENTS - 1);
    }

    #[test]
    fn the_last_one_attached_to_input_goes_once() {
        let (mut clients, theirs) = some::<2>();
        assert!(!clients.take_last_stdin_gone());
        let [first, second] = theirs;
        for (theirs, place, is_last) in [(first, 0, false), (second, 1, true)] {
            drop(theirs);
            assert_eq!(clients.receive_request(place), None);
            assert_eq!(clients.take_last_stdin_gone(), is_last);
        }
        assert!(!clients.take_last_stdin_gone());
    }
}
