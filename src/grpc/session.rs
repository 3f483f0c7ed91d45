//! The part of a connection that client and server share.
//!
//! The task that runs [`drive_session`] reads and writes. It always reads, even while others wait: a message waits in its
//! stream's queue. A full queue shuts the window of its stream only, and its reader loses the stream if it does not
//! read soon: until one of them reads, a peer may hold up all others. Callers and handlers hold the session, too, and
//! wake that task when there is something to send.

use core::{
    cell::RefCell,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use std::{
    collections::{BTreeSet, VecDeque},
    io,
    rc::Rc,
};

use smol::io::{AsyncRead, AsyncWrite};

use crate::{
    envelope::EnvelopeReader,
    hpack::HeaderField,
    http2::{ConnectionRole, Http2Connection, Http2ErrorCode, Http2Event, Http2StreamId},
    status::{GrpcCode, GrpcStatus},
    table::StreamTable,
};

/// Bytes of messages of one stream that wait for their reader, above which it gets no more window; and what each message counts
/// beside its own.
const MAX_UNREAD_BYTES: usize = 128 * 1024;
const MESSAGE_BYTES: usize = 64;
/// Time for which a reader may leave so many bytes unread.
const MAX_UNREAD: Duration = Duration::from_secs(10);
/// Bytes of messages that wait or are on their way, of all streams of a connection.
const MAX_WAITING_BYTES: usize = 32 << 20;
/// Bytes of a stream that wait to be sent, above which its writer waits, too.
const MAX_UNSENT_BYTES: usize = 64 * 1024;
/// Callers that wait for room for a stream.
const MAX_WAITING_CALLS: usize = 1024;
/// Bytes that are read at a time, and pieces after which others have their turn.
const PIECE_BYTES: usize = 4096;
const PIECES_A_TURN: u32 = 16;
/// Capacity that an empty buffer may keep, in bytes.
const KEPT_BYTES: usize = 4096;

/// A wait that is over once.
pub type SleepFuture = Pin<Box<dyn Future<Output = ()>>>;

/// Clock and timers of a connection.
pub trait ConnectionClock {
    /// Time since any fixed moment.
    fn now(&self) -> Duration;
    /// Waits so long.
    fn sleep(&self, time: Duration) -> SleepFuture;
}

/// A way to the peer.
pub trait BytePipe: AsyncRead + AsyncWrite {}
impl<P: AsyncRead + AsyncWrite> BytePipe for P {}

/// Handle to a session; its holders share it.
pub(crate) type SharedSession = Rc<RefCell<GrpcSession>>;

pub(crate) struct GrpcSession {
    http: Http2Connection,
    role: ConnectionRole,
    streams: StreamTable<IncomingStream>,
    /// Streams that the peer opened, and those that are over before they were answered: for the server.
    opened: Vec<Http2StreamId>,
    /// The last opened stream: trailers of one that was answered already open no other.
    newest: Http2StreamId,
    cancelled: BTreeSet<Http2StreamId>,
    /// Tasks to wake: the one that looks at the opened and the cancelled streams, and the one that runs [`drive_session`].
    server: Option<Waker>,
    driver: Option<Waker>,
    /// Tasks that wait for room for a stream.
    waiting: Vec<Waker>,
    /// Time at which bytes last came.
    heard: Duration,
    /// Set if no more streams will be opened by this side.
    is_abandoned: bool,
    over: Option<GrpcStatus>,
}

/// Bytes and events of a stream that have come in.
#[derive(Default)]
struct IncomingStream {
    head: Option<Vec<HeaderField>>,
    /// The server has sent headers.
    is_answered: bool,
    envelopes: EnvelopeReader,
    messages: VecDeque<Vec<u8>>,
    unread_bytes: usize,
    /// Window that is not granted until messages have been read, and since when.
    held_back: usize,
    unread: Option<Duration>,
    /// Set if the reader itself limits the time that it leaves messages unread.
    is_patient: bool,
    /// End of the stream: trailers, or a failure.
    end: Option<Result<Vec<HeaderField>, GrpcStatus>>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl IncomingStream {
    fn held_bytes(&self) -> usize {
        self.unread_bytes + self.envelopes.held_bytes()
    }

    fn wake_tasks(&mut self) {
        wake_task(&mut self.reader);
        wake_task(&mut self.writer);
    }

    /// The first end counts.
    fn set_end(&mut self, end: Result<Vec<HeaderField>, GrpcStatus>) {
        self.end.get_or_insert(end);
        self.wake_tasks();
    }
}

const UNREAD: &str = "messages came faster than they were read";

fn wake_task(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

fn field_slices(fields: &[HeaderField]) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().map(|(n, v)| (n.as_slice(), v.as_slice()))
}

impl GrpcSession {
    pub(crate) fn new(role: ConnectionRole) -> Self {
        Self {
            http: Http2Connection::new(role),
            role,
            streams: StreamTable::new(),
            opened: Vec::new(),
            newest: 0,
            cancelled: BTreeSet::new(),
            server: None,
            driver: None,
            waiting: Vec::new(),
            heard: Duration::ZERO,
            is_abandoned: false,
            over: None,
        }
    }

    /// Returns true if a call can be made on a new connection only.
    pub(crate) const fn is_leaving(&self) -> bool {
        self.over.is_some() || self.http.is_leaving()
    }

    /// Opens a stream as soon as there is room.
    pub(crate) fn poll_open_stream(
        &mut self,
        fields: &[HeaderField],
        cx: &Context<'_>,
    ) -> Poll<Result<Http2StreamId, GrpcStatus>> {
        if let Some(status) = &self.over {
            return Poll::Ready(Err(status.clone()));
        }
        if let Ok(id) = self.http.open_stream(field_slices(fields)) {
            self.streams.insert(id, IncomingStream::default());
            wake_task(&mut self.driver);
            return Poll::Ready(Ok(id));
        }
        if self.is_leaving() {
            let status = GrpcStatus::new(GrpcCode::UNAVAILABLE, "the server went away");
            return Poll::Ready(Err(status));
        }
        if self.waiting.len() >= MAX_WAITING_CALLS {
            let status = GrpcStatus::new(GrpcCode::RESOURCE_EXHAUSTED, "too many calls wait");
            return Poll::Ready(Err(status));
        }
        self.waiting.push(cx.waker().clone());
        Poll::Pending
    }

    /// Sends headers of an answer, unless that has been done.
    pub(crate) fn send_headers_once(&mut self, id: Http2StreamId, fields: &[HeaderField]) {
        if let Some(stream) = self.streams.get_mut(id)
            && !stream.is_answered
        {
            stream.is_answered = true;
            self.http.send_headers(id, field_slices(fields));
        }
    }

    /// Returns true if [`Self::send_headers_once`] has been called.
    pub(crate) fn has_sent_headers(&self, id: Http2StreamId) -> bool {
        self.streams
            .get(id)
            .is_some_and(|stream| stream.is_answered)
    }

    /// Sends a message, once few of the bytes before it still wait. Errors: the stream is over.
    pub(crate) fn poll_send_message(
        &mut self,
        id: Http2StreamId,
        bytes: &mut Vec<u8>,
        cx: &Context<'_>,
    ) -> Poll<Result<(), GrpcStatus>> {
        let Some(stream) = self.streams.get_mut(id) else {
            return Poll::Ready(Err(self.ended_status()));
        };
        if let Some(Err(status)) = &stream.end {
            return Poll::Ready(Err(status.clone()));
        }
        if self.http.waiting_bytes(id) > MAX_UNSENT_BYTES {
            stream.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        self.http.send_payload(id, core::mem::take(bytes));
        wake_task(&mut self.driver);
        Poll::Ready(Ok(()))
    }

    /// Sends it, however much waits before it. Nothing if the stream is over.
    pub(crate) fn push_bytes(&mut self, id: Http2StreamId, bytes: Vec<u8>) {
        self.http.send_payload(id, bytes);
        wake_task(&mut self.driver);
    }

    fn ended_status(&self) -> GrpcStatus {
        let gone = || GrpcStatus::new(GrpcCode::CANCELED, "the call is over");
        self.over.clone().unwrap_or_else(gone)
    }

    /// Ends this side of the stream: only these trailers are still sent.
    pub(crate) fn end_stream(&mut self, id: Http2StreamId, trailers: Vec<HeaderField>) {
        self.http.end_stream(id, trailers);
        wake_task(&mut self.driver);
    }

    /// The next message; `None` at the end, and then the trailers are there.
    pub(crate) fn poll_next_message(
        &mut self,
        id: Http2StreamId,
        cx: &Context<'_>,
    ) -> Poll<Result<Option<Vec<u8>>, GrpcStatus>> {
        let Some(stream) = self.streams.get_mut(id) else {
            return Poll::Ready(Err(self.ended_status()));
        };
        if let Some(message) = stream.messages.pop_front() {
            stream.unread_bytes -= message.len() + MESSAGE_BYTES;
            if stream.messages.is_empty() {
                stream.messages = VecDeque::new();
            }
            if stream.unread.is_some() && stream.unread_bytes <= MAX_UNREAD_BYTES {
                stream.unread = None;
                let bytes = core::mem::take(&mut stream.held_back);
                self.http.release_payload(id, bytes);
                wake_task(&mut self.driver);
            }
            return Poll::Ready(Ok(Some(message)));
        }
        match &stream.end {
            Some(Ok(_)) => Poll::Ready(Ok(None)),
            Some(Err(status)) => Poll::Ready(Err(status.clone())),
            None => {
                stream.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Lets the stream take messages of so many bytes at most from now on, and wait for its reader without end.
    pub(crate) fn make_stream_lasting(&mut self, id: Http2StreamId, max_message: usize) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.is_patient = true;
            stream.envelopes = EnvelopeReader::with_max_bytes(max_message);
        }
    }

    /// Waits for the headers of an answer, or for its end.
    pub(crate) fn poll_head(
        &mut self,
        id: Http2StreamId,
        cx: &Context<'_>,
    ) -> Poll<Result<Vec<HeaderField>, GrpcStatus>> {
        let Some(stream) = self.streams.get_mut(id) else {
            return Poll::Ready(Err(self.ended_status()));
        };
        if let Some(Err(status)) = &stream.end {
            return Poll::Ready(Err(status.clone()));
        }
        if let Some(head) = &stream.head {
            return Poll::Ready(Ok(head.clone()));
        }
        stream.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Time at which bytes last came.
    pub(crate) const fn last_heard(&self) -> Duration {
        self.heard
    }

    /// Asks whether the peer is still there.
    pub(crate) fn send_ping(&mut self) {
        self.http.send_ping();
        wake_task(&mut self.driver);
    }

    /// Returns true while a ping waits for its answer.
    pub(crate) const fn awaits_pong(&self) -> bool {
        self.http.awaits_pong()
    }

    /// Ready if more can be sent without waiting; if not, the task is woken when it can.
    pub(crate) fn poll_send_room(&mut self, id: Http2StreamId, cx: &Context<'_>) -> Poll<()> {
        match self.streams.get_mut(id) {
            Some(stream) if self.http.waiting_bytes(id) > MAX_UNSENT_BYTES => {
                stream.writer = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// Ready if all that was sent has gone out; if not, the task is woken when that may be so.
    pub(crate) fn poll_sent(&mut self, id: Http2StreamId, cx: &Context<'_>) -> Poll<()> {
        match self.streams.get_mut(id) {
            Some(stream) if self.http.waiting_bytes(id) > 0 || self.http.has_output() => {
                stream.writer = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// Headers and trailers of a stream, as far as they are there.
    pub(crate) fn stream_fields(&self, id: Http2StreamId) -> (&[HeaderField], &[HeaderField]) {
        let stream = self.streams.get(id);
        let head = stream.and_then(|stream| stream.head.as_deref());
        let end = stream.and_then(|stream| stream.end.as_ref()?.as_deref().ok());
        (head.unwrap_or_default(), end.unwrap_or_default())
    }

    /// Drops a stream that is no longer wanted. If it is not over, the peer is told.
    pub(crate) fn drop_stream(&mut self, id: Http2StreamId, reason: Http2ErrorCode) {
        self.streams.remove(id);
        self.http.reset_stream(id, reason);
        self.wake_waiting();
        wake_task(&mut self.driver);
    }

    /// Forgets a stream that the server has answered; its bytes still go out.
    pub(crate) fn close_stream(&mut self, id: Http2StreamId) {
        self.streams.remove(id);
    }

    /// Says that no more streams will be opened.
    pub(crate) fn stop_opening(&mut self) {
        self.is_abandoned = true;
        wake_task(&mut self.driver);
    }

    /// Waits until streams were opened or are over before they were answered: those, and those.
    pub(crate) fn poll_stream_changes(
        &mut self,
        cx: &Context<'_>,
    ) -> Poll<(Vec<Http2StreamId>, BTreeSet<Http2StreamId>)> {
        if self.opened.is_empty() && self.cancelled.is_empty() {
            self.server = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let opened = core::mem::take(&mut self.opened);
        Poll::Ready((opened, core::mem::take(&mut self.cancelled)))
    }

    fn wake_waiting(&mut self) {
        for waker in self.waiting.drain(..) {
            waker.wake();
        }
    }

    fn fail_stream(&mut self, id: Http2StreamId, status: GrpcStatus) {
        self.http.reset_stream(id, Http2ErrorCode::CANCEL);
        if let Some(stream) = self.streams.get_mut(id) {
            stream.messages = VecDeque::new();
            stream.unread_bytes = 0;
            stream.unread = None;
            stream.envelopes = EnvelopeReader::default();
            stream.set_end(Err(status));
        }
        if self.role == ConnectionRole::Server {
            self.cancelled.insert(id);
        }
    }

    /// The connection is over, for the first reason that there is.
    fn end_connection(&mut self, status: GrpcStatus) {
        let status = self.over.get_or_insert(status).clone();
        for (_, stream) in self.streams.iter_mut() {
            stream.set_end(Err(status.clone()));
        }
        self.wake_waiting();
    }

    fn handle_event(&mut self, event: Http2Event<'_>, now: Duration) {
        match event {
            Http2Event::Headers { id, fields, is_end } => self.handle_headers(id, fields, is_end),
            Http2Event::Data { id, bytes, is_end } => self.handle_data(id, bytes, is_end, now),
            Http2Event::Reset { id, reason } => {
                if let Some(stream) = self.streams.get_mut(id) {
                    stream.set_end(Err(GrpcStatus::of_reset(reason)));
                }
                if self.role == ConnectionRole::Server {
                    self.cancelled.insert(id);
                }
            }
            Http2Event::GoAway { last, .. } => {
                let status = GrpcStatus::new(GrpcCode::UNAVAILABLE, "the server went away");
                if self.role == ConnectionRole::Client {
                    for (id, stream) in self.streams.iter_mut() {
                        if id > last {
                            stream.set_end(Err(status.clone()));
                        }
                        // The caller of a call that lasts looks for another connection.
                        wake_task(&mut stream.reader);
                    }
                }
            }
        }
    }

    fn handle_headers(
        &mut self,
        id: Http2StreamId,
        fields: Option<Vec<HeaderField>>,
        is_end: bool,
    ) {
        if self.role == ConnectionRole::Server && id > self.newest {
            self.newest = id;
            self.streams.insert(id, IncomingStream::default());
            self.opened.push(id);
        }
        let Some(stream) = self.streams.get_mut(id) else {
            return;
        };
        let Some(fields) = fields else {
            let status = GrpcStatus::new(GrpcCode::RESOURCE_EXHAUSTED, "headers that are too long");
            return self.fail_stream(id, status);
        };
        if stream.head.is_none() {
            stream.head = Some(fields);
            wake_task(&mut stream.reader);
            if is_end {
                stream.set_end(Ok(Vec::new()));
            }
        } else {
            self.end_messages(id, fields);
        }
    }

    fn end_messages(&mut self, id: Http2StreamId, trailers: Vec<HeaderField>) {
        if let Some(stream) = self.streams.get_mut(id) {
            if stream.envelopes.is_between_messages() {
                stream.set_end(Ok(trailers));
            } else {
                stream.set_end(Err(GrpcStatus::new(
                    GrpcCode::INTERNAL,
                    "a message that is cut",
                )));
            }
        }
    }

    fn handle_data(&mut self, id: Http2StreamId, mut bytes: &[u8], is_end: bool, now: Duration) {
        let Some(stream) = self.streams.get_mut(id) else {
            return;
        };
        if stream.end.is_some() {
            // A server's answer says why, once the handler has it.
            return self.http.release_payload(id, bytes.len());
        }
        if stream.unread_bytes <= MAX_UNREAD_BYTES {
            self.http.release_payload(id, bytes.len());
        } else {
            stream.held_back += bytes.len();
            stream.unread.get_or_insert(now);
        }
        while !bytes.is_empty() {
            match stream.envelopes.take_message(&mut bytes) {
                Ok(Some(message)) => {
                    stream.unread_bytes += message.len() + MESSAGE_BYTES;
                    stream.messages.push_back(message);
                }
                Ok(None) => {}
                Err(status) if self.role == ConnectionRole::Server => {
                    stream.envelopes = EnvelopeReader::default();
                    return stream.set_end(Err(status));
                }
                Err(status) => return self.fail_stream(id, status),
            }
        }
        wake_task(&mut stream.reader);
        let all: usize = self
            .streams
            .iter()
            .map(|(_, stream)| stream.held_bytes())
            .sum();
        if all > MAX_WAITING_BYTES {
            return self.fail_stream(id, GrpcStatus::new(GrpcCode::RESOURCE_EXHAUSTED, UNREAD));
        }
        if is_end {
            self.end_messages(id, Vec::new());
        }
    }

    /// Takes the bytes that came, behind those that were left before.
    fn receive_bytes(
        &mut self,
        held: &mut Vec<u8>,
        piece: &[u8],
        now: Duration,
    ) -> Result<(), GrpcStatus> {
        // The bytes of an unfinished frame are kept; mostly there are none.
        let joined = (!held.is_empty()).then(|| {
            held.extend_from_slice(piece);
            core::mem::take(held)
        });
        let mut rest = joined.as_deref().unwrap_or(piece);
        loop {
            let step = self.http.receive_frame(rest, now);
            let step = step.map_err(|fault| {
                GrpcStatus::new(GrpcCode::UNAVAILABLE, format!("connection error: {fault}"))
            })?;
            if step.taken == 0 {
                held.extend_from_slice(rest);
                held.shrink_to(held.len().max(KEPT_BYTES));
                return Ok(());
            }
            rest = &rest[step.taken..];
            if let Some(event) = step.event {
                self.handle_event(event, now);
            }
        }
    }

    /// Reads the bytes that are there. Returns true if there may be more.
    fn read_pipe(
        &mut self,
        pipe: &mut Pin<Box<dyn BytePipe>>,
        held: &mut Vec<u8>,
        now: Duration,
        cx: &mut Context<'_>,
    ) -> Result<bool, GrpcStatus> {
        let mut piece = [0; PIECE_BYTES];
        for _ in 0..PIECES_A_TURN {
            match pipe.as_mut().poll_read(cx, &mut piece) {
                Poll::Ready(Ok(0)) => return Err(connection_error("closed by the peer")),
                Poll::Ready(Ok(len)) => {
                    self.heard = now;
                    self.receive_bytes(held, &piece[..len], now)?;
                }
                Poll::Ready(Err(e)) if e.kind() == io::ErrorKind::Interrupted => {}
                Poll::Ready(Err(e)) => return Err(connection_error(&e.to_string())),
                Poll::Pending => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Writes the bytes that are there. Returns true if there may be more.
    fn write_pipe(
        &mut self,
        pipe: &mut Pin<Box<dyn BytePipe>>,
        now: Duration,
        cx: &mut Context<'_>,
    ) -> Result<bool, GrpcStatus> {
        for _ in 0..PIECES_A_TURN {
            let out = self.http.next_output(now);
            if out.is_empty() {
                return match pipe.as_mut().poll_flush(cx) {
                    Poll::Ready(Err(e)) => Err(connection_error(&e.to_string())),
                    Poll::Ready(Ok(())) | Poll::Pending => Ok(false),
                };
            }
            match pipe.as_mut().poll_write(cx, out) {
                Poll::Ready(Ok(0)) => return Err(connection_error("closed by the peer")),
                Poll::Ready(Ok(len)) => self.http.record_written(len),
                Poll::Ready(Err(e)) if e.kind() == io::ErrorKind::Interrupted => {}
                Poll::Ready(Err(e)) => return Err(connection_error(&e.to_string())),
                Poll::Pending => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Gives up streams of which either side has let the other wait for too long. Returns when to look again.
    fn end_overdue_waits(&mut self, now: Duration) -> Option<Duration> {
        // Bounded: by the streams that there are.
        while let Some(id) = self.http.reset_stalled_stream(now) {
            self.fail_stream(
                id,
                GrpcStatus::new(GrpcCode::UNAVAILABLE, "the peer does not read"),
            );
        }
        let unread = self.streams.iter().filter_map(|(id, stream)| {
            let since = stream.unread.filter(|_| !stream.is_patient)?;
            Some((id, since + MAX_UNREAD))
        });
        let (late, soon): (Vec<_>, Vec<_>) = unread.partition(|(_, due)| *due <= now);
        for (id, _) in late {
            self.fail_stream(id, GrpcStatus::new(GrpcCode::RESOURCE_EXHAUSTED, UNREAD));
        }
        let soon = soon.into_iter().map(|(_, due)| due);
        soon.chain(self.http.next_stall_check()).min()
    }

    /// Wakes all tasks that can go on now.
    fn wake_ready_tasks(&mut self) {
        let http = &self.http;
        for (id, stream) in self.streams.iter_mut() {
            if stream.writer.is_some() && http.waiting_bytes(id) <= MAX_UNSENT_BYTES {
                wake_task(&mut stream.writer);
            }
        }
        if !self.opened.is_empty() || !self.cancelled.is_empty() {
            wake_task(&mut self.server);
        }
        if self.http.has_stream_room() || self.is_leaving() {
            self.wake_waiting();
        }
    }
}

fn connection_error(why: &str) -> GrpcStatus {
    GrpcStatus::new(GrpcCode::UNAVAILABLE, format!("connection error: {why}"))
}

/// Reads and writes until the connection ends, and says why it did. Dropped before, it ends the connection.
pub(crate) async fn drive_session(
    mut pipe: Pin<Box<dyn BytePipe>>,
    session: SharedSession,
    time: Rc<dyn ConnectionClock>,
) -> GrpcStatus {
    struct SessionGuard(SharedSession);
    impl Drop for SessionGuard {
        fn drop(&mut self) {
            self.0
                .borrow_mut()
                .end_connection(connection_error("given up"));
        }
    }
    let guard = SessionGuard(session.clone());
    let mut held = Vec::new();
    let mut timer: Option<(Duration, SleepFuture)> = None;
    let status = poll_fn(|cx| {
        let mut session = session.borrow_mut();
        let session = &mut *session;
        session.driver = Some(cx.waker().clone());
        let now = time.now();
        let read = session.read_pipe(&mut pipe, &mut held, now, cx);
        let due = session.end_overdue_waits(now);
        // Also what is wrong is told, as far as that is possible at once.
        let written = session.write_pipe(&mut pipe, now, cx);
        session.wake_ready_tasks();
        let more = match (read, written) {
            (Ok(read), Ok(written)) => read || written,
            (Err(status), _) | (_, Err(status)) => return Poll::Ready(status),
        };
        if more {
            cx.waker().wake_by_ref();
        }
        if session.is_abandoned && session.streams.is_empty() {
            return Poll::Ready(connection_error("nobody needs it any more"));
        }
        // A timer that is too early does no harm.
        timer = timer
            .take()
            .filter(|(at, _)| due.is_some_and(|due| *at <= due));
        if timer.is_none() {
            timer = due.map(|at| (at, time.sleep(at.saturating_sub(now))));
        }
        let is_up = timer
            .as_mut()
            .is_some_and(|(_, timer)| timer.as_mut().poll(cx).is_ready());
        if is_up {
            timer = None;
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await;
    guard.0.borrow_mut().end_connection(status.clone());
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::wrap_message;

    const NOW: Duration = Duration::from_secs(1);

    fn carry(from: &mut GrpcSession, to: &mut GrpcSession, held: &mut Vec<u8>) {
        let out = from.http.next_output(NOW).to_vec();
        from.http.record_written(out.len());
        for piece in out.chunks(PIECE_BYTES) {
            to.receive_bytes(held, piece, NOW).expect("frames");
        }
    }

    /// A client and a server with one stream of the former, and its number.
    fn opened() -> (GrpcSession, GrpcSession, Http2StreamId) {
        let cx = Context::from_waker(Waker::noop());
        let (mut client, mut server) = (
            GrpcSession::new(ConnectionRole::Client),
            GrpcSession::new(ConnectionRole::Server),
        );
        let field = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        let fields = [field(":method", "POST"), field(":path", "/a.B/C")];
        let Poll::Ready(Ok(id)) = client.poll_open_stream(&fields, &cx) else {
            panic!("there is room");
        };
        carry(&mut client, &mut server, &mut Vec::new());
        (client, server, id)
    }

    /// Counts how often it was woken.
    #[derive(Default)]
    struct Bell(core::sync::atomic::AtomicUsize);

    impl std::task::Wake for Bell {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        }
    }

    #[test]
    fn a_reader_hears_that_the_server_goes_away() {
        // TUN-11
        const GOAWAY: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        let bell = std::sync::Arc::new(Bell::default());
        let waker = Waker::from(bell.clone());
        let cx = Context::from_waker(&waker);
        let (mut client, mut server, id) = opened();
        carry(&mut server, &mut client, &mut Vec::new());
        assert!(client.poll_next_message(id, &cx).is_pending());
        client
            .receive_bytes(&mut Vec::new(), &GOAWAY, NOW)
            .expect("frames");
        assert!(client.is_leaving());
        assert_eq!(bell.0.load(core::sync::atomic::Ordering::Relaxed), 1);
        // The calls under way go on.
        assert!(client.poll_next_message(id, &cx).is_pending());
    }

    #[test]
    fn a_call_that_lasts() {
        // TUN-12 TUN-13
        const LATER: Duration = Duration::from_secs(3600);
        let cx = Context::from_waker(Waker::noop());
        let (mut client, mut server, id) = opened();
        client.make_stream_lasting(id, 100_000);
        assert!(client.poll_head(id, &cx).is_pending());
        server.send_headers_once(id, &[(b":status".to_vec(), b"200".to_vec())]);
        let mut held = Vec::new();
        carry(&mut server, &mut client, &mut held);
        let Poll::Ready(Ok(head)) = client.poll_head(id, &cx) else {
            panic!("the answer has begun");
        };
        assert_eq!(head.len(), 1);
        // Messages that are not read stay, and hold the server back.
        for _ in 0..5 {
            server.push_bytes(id, wrap_message(&[7; 100_000]));
            carry(&mut server, &mut client, &mut held);
        }
        let unread = client.streams.get(id).map_or(0, IncomingStream::held_bytes);
        assert!(unread > MAX_UNREAD_BYTES && unread < 500_000, "{unread}");
        client.end_overdue_waits(LATER);
        assert!(server.poll_sent(id, &cx).is_pending());
        let mut back = Vec::new();
        let mut next = |client: &mut GrpcSession, server: &mut GrpcSession| {
            let mut turns = (0..100).map(|_| {
                carry(server, client, &mut held);
                carry(client, server, &mut back);
                client.poll_next_message(id, &cx)
            });
            turns.find(Poll::is_ready).expect("something comes")
        };
        for _ in 0..5 {
            let Poll::Ready(Ok(Some(message))) = next(&mut client, &mut server) else {
                panic!("a message");
            };
            assert_eq!(message.len(), 100_000);
        }
        assert!(server.poll_sent(id, &cx).is_ready());
        server.push_bytes(id, wrap_message(&[7; 100_001]));
        let Poll::Ready(Err(status)) = next(&mut client, &mut server) else {
            panic!("too long");
        };
        assert_eq!(status.code, GrpcCode::RESOURCE_EXHAUSTED);
        // The call is over: there is nothing to wait for.
        client.push_bytes(id, wrap_message(b"x"));
        assert!(client.poll_send_room(id, &cx).is_ready() && client.poll_head(id, &cx).is_ready());
    }

    #[test]
    fn large_messages_leave_nothing_behind() {
        const BYTES: usize = 3 << 20;
        let cx = Context::from_waker(Waker::noop());
        let (mut client, mut server) = (
            GrpcSession::new(ConnectionRole::Client),
            GrpcSession::new(ConnectionRole::Server),
        );
        let field = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        let fields = [field(":method", "POST"), field(":path", "/a.B/C")];
        let Poll::Ready(Ok(id)) = client.poll_open_stream(&fields, &cx) else {
            panic!("there is room");
        };
        let sent = client.poll_send_message(id, &mut wrap_message(&[7; BYTES]), &cx);
        assert_eq!(sent, Poll::Ready(Ok(())));
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        let message = loop {
            carry(&mut client, &mut server, &mut to_server);
            carry(&mut server, &mut client, &mut to_client);
            if let Poll::Ready(message) = server.poll_next_message(id, &cx) {
                break message;
            }
        };
        assert_eq!(message.expect("well").expect("a message").len(), BYTES);
        assert_eq!(
            server.streams.get(id).map(IncomingStream::held_bytes),
            Some(0)
        );
        assert!(to_server.capacity() <= KEPT_BYTES && to_client.capacity() <= KEPT_BYTES);
    }
}
