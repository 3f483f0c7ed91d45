//! Streams of a command at a provider, in frames over one connection: channel (1 byte), length (4 bytes, big end first), bytes.
//!
//! | channel | from | what |
//! |---|---|---|
//! | 0 | agent | standard input; a frame without bytes ends it |
//! | 1, 2 | provider | standard output, standard error |
//! | 3 | provider | the end: `{"exitCode": 0}`, or `{"error": "why"}` for what could not be run |
//! | 4 | agent | the terminal's size: `{"columns": 80, "rows": 24}` |

use core::{
    cell::RefCell,
    pin::Pin,
    task::{Context, Poll, ready},
};
use std::{io, os::unix::net::UnixStream, rc::Rc};

use async_io::Async;
use serde::Deserialize;
use smol::io::{AsyncRead as _, AsyncWrite as _};

use crate::{
    api::strict::from_json,
    runtime::{OutputRead, OutputRoom, ProcessStreams, RuntimeError, StreamSession},
};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const END: u8 = 3;
const SIZE: u8 = 4;
/// Bytes of a frame's head.
const HEAD_BYTES: usize = 5;
/// Most bytes of a frame that ends a command.
const MAX_END_BYTES: usize = 4096;
/// Most bytes of standard input in one frame.
const MAX_INPUT_BYTES: usize = 8192;
/// Most bytes that may wait for the provider: sizes of the terminal beyond them are dropped.
const MAX_WAITING_BYTES: usize = 2 * MAX_INPUT_BYTES;

/// Most steps of reading in one poll, so that a provider that sends empty frames does not block other tasks.
const MAX_FRAMES: usize = 64;

/// Result of a command: its exit code, or the error; `None` while it runs.
type ProviderCommandResult = Rc<RefCell<Option<Result<i32, RuntimeError>>>>;

/// Content of the last frame.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CommandEndFrame {
    exit_code: i32,
    error: String,
}

/// The agent's end of a connection with frames.
pub(crate) struct FramedConnection {
    socket: Async<UnixStream>,
    /// Head of the frame at hand, as far as it came.
    head: [u8; HEAD_BYTES],
    known: usize,
    /// Bytes of the frame at hand that are still to come.
    left: usize,
    last: Vec<u8>,
    /// Bytes that are still to be sent.
    waiting: Vec<u8>,
    input_ended: bool,
    ended: ProviderCommandResult,
}

impl FramedConnection {
    /// Makes a session over `socket`. Dropping it closes the connection; the provider then decides what becomes of the
    /// command.
    #[must_use]
    pub(crate) fn open_session(socket: Async<UnixStream>) -> StreamSession {
        let ended = ProviderCommandResult::default();
        let framed = Self {
            socket,
            head: [0; HEAD_BYTES],
            known: 0,
            left: 0,
            last: Vec::new(),
            waiting: Vec::new(),
            input_ended: false,
            ended: Rc::clone(&ended),
        };
        StreamSession {
            streams: Box::new(framed),
            // Called after the end of the output, so the result is known.
            end: Box::pin(async move {
                let ended = ended.borrow_mut().take();
                ended.unwrap_or_else(|| {
                    let text = "the provider ended the connection without an exit code";
                    Err(RuntimeError::Failed(text.into()))
                })
            }),
        }
    }

    fn queue(&mut self, channel: u8, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.waiting.push(channel);
        self.waiting.extend_from_slice(&length.to_be_bytes());
        self.waiting.extend_from_slice(bytes);
    }

    /// Sends the bytes that wait.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Bounded: a few frames wait.
        while !self.waiting.is_empty() {
            let socket = Pin::new(&mut self.socket);
            let n = ready!(socket.poll_write(cx, &self.waiting))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            self.waiting.drain(..n);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_read(cx, into)
    }

    fn channel(&self) -> Option<u8> {
        (self.known == HEAD_BYTES).then_some(self.head[0])
    }

    fn finish_command(&mut self) {
        let end: Result<CommandEndFrame, _> = from_json(&self.last);
        let result = match end {
            Ok(CommandEndFrame { exit_code, error }) if error.is_empty() => Ok(exit_code),
            Ok(CommandEndFrame { error, .. }) => Err(RuntimeError::Failed(error)),
            Err(e) => Err(RuntimeError::Failed(format!("end of the command: {e}"))),
        };
        *self.ended.borrow_mut() = Some(result);
    }
}

impl ProcessStreams for FramedConnection {
    fn poll_output(
        &mut self,
        cx: &mut Context<'_>,
        room: OutputRoom,
        buffer: &mut [u8],
    ) -> Poll<io::Result<OutputRead>> {
        // Sizes of the terminal that wait are sent here: there may be no input to send them with.
        if let Poll::Ready(Err(e)) = self.poll_sent(cx) {
            self.waiting.clear();
            log::debug!("provider: {e}");
        }
        if self.ended.borrow().is_some() {
            return Poll::Ready(Ok(OutputRead::End));
        }
        // Bounded: by MAX_FRAMES, then others have their turn.
        for _ in 0..MAX_FRAMES {
            let Some(channel) = self.channel() else {
                let mut head = [0; HEAD_BYTES];
                let missing = HEAD_BYTES - self.known;
                let n = ready!(self.poll_read(cx, &mut head[..missing]))?;
                if n == 0 {
                    return Poll::Ready(Ok(OutputRead::End));
                }
                self.head[self.known..self.known + n].copy_from_slice(&head[..n]);
                self.known += n;
                if self.known == HEAD_BYTES {
                    let [_, length @ ..] = self.head;
                    let length = u32::from_be_bytes(length);
                    self.left = usize::try_from(length).unwrap_or(usize::MAX);
                }
                continue;
            };
            if channel == END {
                if self.left > MAX_END_BYTES {
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
                if self.left == 0 {
                    self.finish_command();
                    return Poll::Ready(Ok(OutputRead::End));
                }
                let mut piece = [0; MAX_END_BYTES];
                let wanted = self.left;
                let n = ready!(self.poll_read(cx, &mut piece[..wanted]))?;
                if n == 0 {
                    return Poll::Ready(Ok(OutputRead::End));
                }
                self.last.extend_from_slice(&piece[..n]);
                self.left -= n;
                continue;
            }
            if self.left == 0 {
                self.known = 0;
                continue;
            }
            let room = match channel {
                STDOUT => room.stdout,
                STDERR => room.stderr,
                _ => return Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
            };
            let length = room.min(buffer.len()).min(self.left);
            if length == 0 {
                return Poll::Pending;
            }
            let n = ready!(self.poll_read(cx, &mut buffer[..length]))?;
            if n == 0 {
                return Poll::Ready(Ok(OutputRead::End));
            }
            self.left -= n;
            return Poll::Ready(Ok(match channel {
                STDOUT => OutputRead::Stdout(n),
                _ => OutputRead::Stderr(n),
            }));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_input(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.input_ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(self.poll_sent(cx))?;
        let n = bytes.len().min(MAX_INPUT_BYTES);
        self.queue(STDIN, &bytes[..n]);
        // Bytes that the socket does not take now are sent before the next frame.
        if let Poll::Ready(Err(e)) = self.poll_sent(cx) {
            return Poll::Ready(Err(e));
        }
        Poll::Ready(Ok(n))
    }

    fn end_input(&mut self) {
        if !core::mem::replace(&mut self.input_ended, true) {
            self.queue(STDIN, &[]);
            self.send_now();
        }
    }

    fn resize_terminal(&mut self, columns: u16, rows: u16) {
        if self.waiting.len() < MAX_WAITING_BYTES {
            let size = format!("{{\"columns\": {columns}, \"rows\": {rows}}}");
            self.queue(SIZE, size.as_bytes());
            self.send_now();
        }
    }
}

impl FramedConnection {
    /// Sends the bytes that the socket takes at once; the rest goes with the next poll.
    fn send_now(&mut self) {
        let sent = io::Write::write(&mut self.socket.get_ref(), &self.waiting);
        if let Ok(n) = sent {
            self.waiting.drain(..n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::future::poll_fn;

    const ROOM: OutputRoom = OutputRoom {
        stdout: 1024,
        stderr: 1024,
    };

    fn frame(channel: u8, bytes: &[u8]) -> Vec<u8> {
        let length = u32::try_from(bytes.len()).expect("short");
        [&[channel][..], &length.to_be_bytes(), bytes].concat()
    }

    /// Reads the bytes of a provider in pieces of `size`. Returns output, errors and the end.
    fn heard(sent: &[u8], size: usize) -> (String, String, Result<i32, String>) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let sent = sent.to_vec();
        let writer = std::thread::spawn(move || {
            for piece in sent.chunks(size) {
                io::Write::write_all(&mut &theirs, piece).expect("write");
            }
        });
        let session = FramedConnection::open_session(Async::new(ours).expect("socket"));
        let (mut streams, end) = (session.streams, session.end);
        let heard = smol::block_on(async {
            let (mut out, mut err) = (Vec::new(), Vec::new());
            let mut buffer = [0; 7];
            loop {
                match poll_fn(|cx| streams.poll_output(cx, ROOM, &mut buffer)).await {
                    Ok(OutputRead::Stdout(n)) => out.extend_from_slice(&buffer[..n]),
                    Ok(OutputRead::Stderr(n)) => err.extend_from_slice(&buffer[..n]),
                    Ok(OutputRead::End) => break,
                    Err(e) => return (out, err, Err(e.to_string())),
                }
            }
            (out, err, end.await.map_err(|e| e.to_string()))
        });
        writer.join().expect("writer");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (text(heard.0), text(heard.1), heard.2)
    }

    #[test]
    fn frames_in_any_pieces() {
        let sent = [
            frame(STDOUT, b"hello "),
            frame(STDERR, b"trouble"),
            frame(STDOUT, b""),
            frame(STDOUT, b"world, and more"),
            frame(END, br#"{"exitCode": 3}"#),
        ]
        .concat();
        for size in 1..sent.len() {
            let (out, err, end) = heard(&sent, size);
            let all = (&*out, &*err, end);
            assert_eq!(all, ("hello world, and more", "trouble", Ok(3)), "{size}");
        }
    }

    #[test]
    fn what_is_no_end() {
        for (sent, why) in [
            (frame(STDOUT, b"x"), "without an exit code"),
            (
                frame(END, br#"{"error": "no such command"}"#),
                "no such command",
            ),
            (frame(END, b"nonsense"), "end of the command"),
            (frame(9, b"x"), "invalid data"),
            (frame(END, &[b' '; MAX_END_BYTES + 1]), "invalid data"),
        ] {
            let (_, _, end) = heard(&sent, sent.len());
            assert!(
                end.as_ref().is_err_and(|e| e.contains(why)),
                "{end:?} {why}"
            );
        }
    }

    #[test]
    fn input_and_sizes_are_frames() {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let session = FramedConnection::open_session(Async::new(ours).expect("socket"));
        let mut streams = session.streams;
        smol::block_on(async {
            let n = poll_fn(|cx| streams.poll_input(cx, b"abc")).await;
            assert_eq!(n.expect("taken"), 3);
            streams.resize_terminal(80, 24);
            streams.end_input();
            let refused = poll_fn(|cx| streams.poll_input(cx, b"d")).await;
            assert!(refused.is_err());
        });
        drop(streams);
        let mut all = Vec::new();
        io::Read::read_to_end(&mut &theirs, &mut all).expect("read");
        let size = frame(SIZE, br#"{"columns": 80, "rows": 24}"#);
        assert_eq!(
            all,
            [frame(STDIN, b"abc"), size, frame(STDIN, b"")].concat()
        );
    }
}
