//! A client of SPDY: speaks with a runtime's server of streams for clients that do not speak SPDY themselves.

use alloc::rc::Rc;
use core::cell::Cell;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use std::io;

use async_io::Timer;
use smol::io::{AsyncRead, AsyncWrite};

use super::super::carrier::{PAUSE, TURNS};
use super::dial;
use super::{UpstreamConnection, UpstreamError};
use crate::runtime::{OutputRead, OutputRoom, ProcessStreams, RuntimeError, StreamSession};
use crate::server::connection::StreamConnection;
use crate::stream::remote_command::{CommandOutcome, RequestedStreams};
use crate::stream::spdy::{self, SpdyEvent, SpdyStreamId};
use crate::stream::{MAX_OUT_BYTES, OUT_BYTES, PAYLOAD_BYTES, Span};

/// Protocol of forwarded ports.
pub(super) const PORTS_PROTOCOL: &str = "portforward.k8s.io";
/// Protocol of commands: the newest that such servers know.
const COMMAND_PROTOCOL: &str = "v4.channel.k8s.io";
/// Bytes that were read and not yet understood, or not yet passed on.
const INPUT_BYTES: usize = 8 * 1024;
/// Most bytes that are kept of an error stream: the end of a command, or the reason why a port cannot be reached.
const MAX_ERROR_BYTES: usize = 16 * 1024;

/// Makes the server at `url` speak `protocol` over SPDY, within this time.
pub(super) async fn connect_spdy(
    url: &str,
    protocol: &str,
    time: Duration,
) -> Result<UpstreamConnection, UpstreamError> {
    dial::open_upstream(url, time, |url| {
        format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
             X-Stream-Protocol-Version: {protocol}\r\nContent-Length: 0\r\n\r\n",
            url.path, url.authority
        )
    })
    .await
}

/// Data that came and was not taken yet.
#[derive(Clone, Copy, Debug)]
struct PendingStreamData {
    id: SpdyStreamId,
    span: Span,
    /// Bytes of it that were taken.
    done: usize,
    /// Bytes of the input to remove then.
    taken: usize,
}

/// A connection, polled by one task.
struct SpdyWire {
    peer: StreamConnection,
    spdy: spdy::SpdySession,
    input: Box<[u8]>,
    have: usize,
    out: Vec<u8>,
    pending: Option<PendingStreamData>,
    pause: Option<Timer>,
    /// The server has said all that it had to.
    is_whole: bool,
}

impl Drop for SpdyWire {
    fn drop(&mut self) {
        if !self.is_whole {
            self.peer.abort_on_drop();
        }
    }
}

impl SpdyWire {
    fn new(peer: StreamConnection) -> Self {
        Self {
            peer,
            spdy: spdy::SpdySession::new_client(),
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            have: 0,
            out: Vec::with_capacity(MAX_OUT_BYTES),
            pending: None,
            pause: None,
            is_whole: false,
        }
    }

    /// Opens a stream with each of these headers, and waits `time` until all are accepted.
    async fn open_streams(
        &mut self,
        streams: &[&[(&str, &str)]],
        time: Duration,
    ) -> io::Result<Vec<SpdyStreamId>> {
        let refused = || io::Error::other("the runtime refuses a stream");
        let mut ids = Vec::with_capacity(streams.len());
        for headers in streams {
            ids.push(
                self.spdy
                    .open_stream(headers, &mut self.out)
                    .map_err(|_| refused())?,
            );
        }
        let mut missing = ids.len();
        let accepted = core::future::poll_fn(|cx| {
            // Bounded: `poll_event` pauses.
            while missing > 0 {
                match ready!(self.poll_event(cx))? {
                    SpdyEvent::Reply { .. } => missing -= 1,
                    // A server that sends data already has accepted the streams.
                    SpdyEvent::Data { .. } => return Poll::Ready(Ok(())),
                    SpdyEvent::Open { .. }
                    | SpdyEvent::End { .. }
                    | SpdyEvent::Reset { .. }
                    | SpdyEvent::GoAway => {
                        return Poll::Ready(Err(refused()));
                    }
                }
            }
            Poll::Ready(Ok(()))
        });
        let late = async {
            Timer::after(time).await;
            Err(io::ErrorKind::TimedOut.into())
        };
        smol::future::or(accepted, late).await?;
        Ok(ids)
    }

    /// Sends the bytes that are left.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Bounded: by what is buffered.
        while !self.out.is_empty() {
            match ready!(Pin::new(&mut self.peer).poll_write(cx, &self.out))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => drop(self.out.drain(..n)),
            }
        }
        Pin::new(&mut self.peer).poll_flush(cx)
    }

    /// Waits for the server's next event. The same data come again until they are taken; an error at the end.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<SpdyEvent>> {
        if let Some(timer) = &mut self.pause {
            ready!(Future::poll(Pin::new(timer), cx));
            self.pause = None;
        }
        let mut reads = 0;
        // Bounded: each round takes something of the input, or reads; a pause after `TURNS` reads.
        loop {
            if let Some(PendingStreamData { id, span, done, .. }) = self.pending {
                let span = Span {
                    at: span.at + done,
                    len: span.len - done,
                };
                let _ = self.poll_flush(cx)?;
                return Poll::Ready(Ok(SpdyEvent::Data { id, span }));
            }
            let input = self.input.get(..self.have).unwrap_or_default();
            let step = self.spdy.receive_input(input, &mut self.out);
            let step = step.map_err(io::Error::other)?;
            match step.event {
                Some(SpdyEvent::Data { id, span }) => {
                    self.pending = Some(PendingStreamData {
                        id,
                        span,
                        done: 0,
                        taken: step.taken,
                    });
                    continue;
                }
                Some(event) => {
                    self.consume_input(step.taken);
                    return Poll::Ready(Ok(event));
                }
                None => self.consume_input(step.taken),
            }
            let flushed = self.poll_flush(cx)?;
            if !step.is_idle() {
                continue;
            }
            if self.out.len() >= OUT_BYTES {
                ready!(flushed);
                continue;
            }
            if reads == TURNS {
                let pause = self.pause.insert(Timer::after(PAUSE));
                ready!(Future::poll(Pin::new(pause), cx));
                self.pause = None;
                reads = 0;
            }
            let room = self.input.get_mut(self.have..).unwrap_or_default();
            match ready!(Pin::new(&mut self.peer).poll_read(cx, room))? {
                0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                n => self.have += n,
            }
            reads += 1;
        }
    }

    /// The bytes of data that an event told of.
    fn span_bytes(&self, span: Span) -> &[u8] {
        span.slice_of(&self.input)
    }

    /// Marks so many bytes of the data that came as taken.
    fn mark_taken(&mut self, bytes: usize) {
        let Some(pending) = &mut self.pending else {
            return;
        };
        pending.done += bytes;
        let PendingStreamData {
            id,
            span,
            done,
            taken,
        } = *pending;
        self.spdy.record_passed_on(id, bytes, &mut self.out);
        if done >= span.len {
            self.pending = None;
            self.consume_input(taken);
        }
    }

    fn consume_input(&mut self, bytes: usize) {
        self.input.copy_within(bytes..self.have, 0);
        self.have -= bytes;
    }

    /// Sends some of `bytes` on a stream.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        id: SpdyStreamId,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.out.len() >= OUT_BYTES {
            ready!(self.poll_flush(cx))?;
        }
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        if !self.spdy.is_stream_open(id) {
            return Poll::Ready(Err(gone()));
        }
        let n = bytes
            .len()
            .min(PAYLOAD_BYTES)
            .min(self.spdy.sendable_bytes(id));
        if n == 0 {
            // The window opens by a frame that is read, and the task that reads is woken.
            return Poll::Pending;
        }
        let piece = bytes.get(..n).unwrap_or_default();
        self.spdy
            .send_data(id, piece, &mut self.out)
            .map_err(|_| gone())?;
        let _ = self.poll_flush(cx)?;
        Poll::Ready(Ok(n))
    }
}

/// Exit code of a command, or its failure, once it has ended.
type CommandExitCell = Rc<Cell<Option<Result<i32, RuntimeError>>>>;

/// Streams of a command or a container that are at a server of the runtime.
struct UpstreamCommand {
    wire: SpdyWire,
    error: SpdyStreamId,
    stdin: Option<SpdyStreamId>,
    stdout: Option<SpdyStreamId>,
    stderr: Option<SpdyStreamId>,
    resize: Option<SpdyStreamId>,
    /// Bytes of the error stream so far: the status of the command at its end.
    status: Vec<u8>,
    is_over: bool,
    end: CommandExitCell,
}

/// Begins what `url` stands for, with these streams.
pub(in crate::server::streaming) async fn open_command_session(
    url: String,
    wanted: RequestedStreams,
    time: Duration,
) -> Result<StreamSession, RuntimeError> {
    let opened = connect_spdy(&url, COMMAND_PROTOCOL, time).await;
    let opened = opened.map_err(|lost| RuntimeError::Failed(lost.to_string()))?;
    let mut wire = SpdyWire::new(opened.connection);
    let kinds = [
        ("error", true),
        ("stdin", wanted.stdin),
        ("stdout", wanted.stdout),
        ("stderr", wanted.stderr),
        ("resize", wanted.tty),
    ];
    let headers = kinds.map(|(kind, _)| [("streamtype", kind)]);
    let streams: Vec<&[(&str, &str)]> = headers
        .iter()
        .zip(kinds)
        .filter_map(|(headers, (_, is_wanted))| is_wanted.then_some(headers.as_slice()))
        .collect();
    let ids = wire.open_streams(&streams, time).await;
    let ids = ids.map_err(|e| RuntimeError::Failed(format!("streams of the runtime: {e}")))?;
    let mut ids = ids.into_iter();
    let [error, stdin, stdout, stderr, resize] =
        kinds.map(|(_, is_wanted)| is_wanted.then(|| ids.next()).flatten());
    let end = CommandExitCell::default();
    let command = UpstreamCommand {
        wire,
        error: error.unwrap_or_default(),
        stdin,
        stdout,
        stderr,
        resize,
        status: Vec::new(),
        is_over: false,
        end: Rc::clone(&end),
    };
    Ok(StreamSession {
        streams: Box::new(command),
        end: Box::pin(async move { end.take().unwrap_or_else(|| Err(unknown_end_error())) }),
    })
}

fn unknown_end_error() -> RuntimeError {
    RuntimeError::Failed("the runtime ended the streams without a result".into())
}

impl UpstreamCommand {
    /// Keeps bytes of the command's status, and ends the command when the status is complete.
    fn receive_status(&mut self, span: Span) {
        let room = MAX_ERROR_BYTES.saturating_sub(self.status.len());
        let bytes = self.wire.span_bytes(span);
        self.status
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.wire.mark_taken(span.len);
        // All output was sent before it (STREAM-07).
        if let Ok(status) = serde_json::from_slice(&self.status) {
            self.finish_command(parse_exit_code(&status));
        }
    }

    fn finish_command(&mut self, end: Result<i32, RuntimeError>) {
        self.is_over = true;
        self.wire.is_whole = true;
        self.end.set(Some(end));
    }
}

impl ProcessStreams for UpstreamCommand {
    fn poll_output(
        &mut self,
        cx: &mut Context<'_>,
        room: OutputRoom,
        buffer: &mut [u8],
    ) -> Poll<io::Result<OutputRead>> {
        // Bounded: `poll_event` pauses.
        while !self.is_over {
            let event = match ready!(self.wire.poll_event(cx)) {
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    self.finish_command(Err(unknown_end_error()));
                    break;
                }
                event => event?,
            };
            match event {
                SpdyEvent::Data { id, span } => {
                    let is_stderr = Some(id) == self.stderr;
                    let room = match id {
                        _ if id == self.error => {
                            self.receive_status(span);
                            continue;
                        }
                        _ if is_stderr => room.stderr,
                        _ if Some(id) == self.stdout => room.stdout,
                        _ => {
                            self.wire.mark_taken(span.len);
                            continue;
                        }
                    };
                    let n = span.len.min(room).min(buffer.len());
                    if n == 0 {
                        return Poll::Pending;
                    }
                    buffer[..n].copy_from_slice(&self.wire.span_bytes(span)[..n]);
                    self.wire.mark_taken(n);
                    let output = if is_stderr {
                        OutputRead::Stderr
                    } else {
                        OutputRead::Stdout
                    };
                    return Poll::Ready(Ok(output(n)));
                }
                SpdyEvent::End { id } | SpdyEvent::Reset { id } if id == self.error => {
                    self.finish_command(Err(unknown_end_error()));
                }
                SpdyEvent::End { .. }
                | SpdyEvent::Reset { .. }
                | SpdyEvent::Open { .. }
                | SpdyEvent::Reply { .. }
                | SpdyEvent::GoAway => {}
            }
        }
        Poll::Ready(Ok(OutputRead::End))
    }

    fn poll_input(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.stdin {
            Some(id) => self.wire.poll_send(cx, id, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn end_input(&mut self) {
        if let Some(id) = self.stdin.take() {
            // The frame is sent when output is waited for.
            self.wire.spdy.finish_stream(id, &mut self.wire.out);
        }
    }

    fn resize_terminal(&mut self, columns: u16, rows: u16) {
        // A size for which there is no room is dropped: it is of no use later, and another follows.
        if let Some(id) = self.resize.filter(|_| self.wire.out.len() < OUT_BYTES) {
            let size = format!("{{\"Width\":{columns},\"Height\":{rows}}}");
            let _ = self
                .wire
                .spdy
                .send_data(id, size.as_bytes(), &mut self.wire.out);
        }
    }
}

/// Reads the exit code of a command from a `metav1.Status`.
fn parse_exit_code(status: &serde_json::Value) -> Result<i32, RuntimeError> {
    if status["status"] == "Success" {
        return Ok(0);
    }
    let causes = status["details"]["causes"].as_array();
    let code = causes
        .filter(|_| status["reason"] == "NonZeroExitCode")
        .and_then(|all| all.iter().find(|cause| cause["reason"] == "ExitCode"))
        .and_then(|cause| cause["message"].as_str()?.parse().ok());
    if let Some(code) = code {
        return Ok(code);
    }
    let message = status["message"].as_str().unwrap_or("the command failed");
    // The prefix is put before the message again for the client.
    let prefix = CommandOutcome::Failed(String::new()).message_text();
    let message = message.strip_prefix(prefix.as_str()).unwrap_or(message);
    Err(RuntimeError::Failed(message.to_owned()))
}

/// A connection to a port of a pod, at a server of the runtime.
struct UpstreamPort {
    wire: SpdyWire,
    error: SpdyStreamId,
    data: SpdyStreamId,
    /// Bytes of the error stream so far: the reason why the port cannot be reached.
    why: Vec<u8>,
}

/// Connects to a port of the pod that `url` stands for.
pub(in crate::server::streaming) async fn connect_port(
    url: &str,
    port: u16,
    time: Duration,
) -> Result<StreamConnection, UpstreamError> {
    let opened = connect_spdy(url, PORTS_PROTOCOL, time).await?;
    let mut wire = SpdyWire::new(opened.connection);
    let number = port.to_string();
    let headers = |kind| [("port", &*number), ("requestid", "0"), ("streamtype", kind)];
    let (error, data) = (headers("error"), headers("data"));
    let ids = wire.open_streams(&[&error, &data], time).await;
    let ids = ids.map_err(|source| UpstreamError::Broken {
        place: url.to_owned(),
        source,
    })?;
    let [error, data] = ids[..] else {
        return Err(UpstreamError::Broken {
            place: url.to_owned(),
            source: io::ErrorKind::InvalidData.into(),
        });
    };
    // This side sends nothing on the error stream.
    wire.spdy.finish_stream(error, &mut wire.out);
    Ok(StreamConnection::new(UpstreamPort {
        wire,
        error,
        data,
        why: Vec::new(),
    }))
}

impl UpstreamPort {
    /// The end, if the server did not say why there is one.
    fn end_of_data(&self) -> io::Result<usize> {
        match &*self.why {
            [] => Ok(0),
            why => Err(io::Error::other(String::from_utf8_lossy(why).into_owned())),
        }
    }
}

impl AsyncRead for UpstreamPort {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        // Bounded: `poll_event` pauses.
        loop {
            match ready!(self.wire.poll_event(cx))? {
                SpdyEvent::Data { id, span } if id == self.data => {
                    let n = span.len.min(buf.len());
                    buf[..n].copy_from_slice(&self.wire.span_bytes(span)[..n]);
                    self.wire.mark_taken(n);
                    return Poll::Ready(Ok(n));
                }
                SpdyEvent::Data { id, span } => {
                    let room = MAX_ERROR_BYTES.saturating_sub(self.why.len());
                    let bytes = self.wire.span_bytes(span);
                    let bytes = bytes[..bytes.len().min(room)].to_vec();
                    if id == self.error {
                        self.why.extend(bytes);
                    }
                    self.wire.mark_taken(span.len);
                }
                SpdyEvent::End { id } if id == self.data => {
                    self.wire.is_whole = true;
                    return Poll::Ready(self.end_of_data());
                }
                SpdyEvent::End { id } if id == self.error && !self.why.is_empty() => {
                    return Poll::Ready(self.end_of_data());
                }
                SpdyEvent::Reset { id } if id == self.data => {
                    return Poll::Ready(
                        self.end_of_data()
                            .and_then(|_| Err(io::ErrorKind::ConnectionReset.into())),
                    );
                }
                SpdyEvent::End { .. }
                | SpdyEvent::Reset { .. }
                | SpdyEvent::Open { .. }
                | SpdyEvent::Reply { .. }
                | SpdyEvent::GoAway => {}
            }
        }
    }
}

impl AsyncWrite for UpstreamPort {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let data = self.data;
        self.wire.poll_send(cx, data, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.wire.poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.wire.spdy.finish_stream(this.data, &mut this.wire.out);
        this.wire.poll_flush(cx)
    }
}
