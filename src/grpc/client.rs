//! Calls to a server: [`connect`] gives a [`GrpcClient`], which is cheap to clone, and a future that carries all its calls
//! and has to run beside them.
//!
//! A call is given up by dropping it, and the server is told. The answers of a call that streams wait in a queue of
//! [`ClientCall`]; a reader that does not take them loses the call, not the connection.

use core::{
    cell::RefCell,
    future::poll_fn,
    task::{Context, Poll, ready},
    time::Duration,
};
use std::rc::Rc;

use crate::{
    envelope,
    hpack::HeaderField,
    http2::{ConnectionRole, Http2ErrorCode, Http2StreamId},
    proto::{self, Limits, Message},
    session::{BytePipe, ConnectionClock, GrpcSession, SharedSession, SleepFuture, drive_session},
    status::{GrpcCode, GrpcStatus, format_timeout},
};

/// Begins to speak with a server: plain HTTP/2, with prior knowledge. The future is to be run; it says why the connection
/// ended, and ends it if it is dropped.
pub fn connect(
    pipe: impl BytePipe + 'static,
    authority: &str,
    time: Rc<dyn ConnectionClock>,
) -> (GrpcClient, impl Future<Output = GrpcStatus> + 'static) {
    let session = Rc::new(RefCell::new(GrpcSession::new(ConnectionRole::Client)));
    let driver = drive_session(Box::pin(pipe), session.clone(), time.clone());
    let client = GrpcClient(Rc::new(ClientShared {
        session,
        authority: authority.into(),
        time,
    }));
    (client, driver)
}

/// See the module.
#[derive(Clone)]
pub struct GrpcClient(Rc<ClientShared>);

/// Connection that all its clients share. It ends with the last of them.
struct ClientShared {
    session: SharedSession,
    authority: String,
    time: Rc<dyn ConnectionClock>,
}

impl Drop for ClientShared {
    fn drop(&mut self) {
        self.session.borrow_mut().stop_opening();
    }
}

/// Options of a call.
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    /// Time that the call may take in all; the server is told.
    pub timeout: Option<Duration>,
    /// Header fields of its own. Names are in lower case.
    pub metadata: Vec<HeaderField>,
    /// The connection is one of TLS.
    pub is_encrypted: bool,
}

impl GrpcClient {
    /// Returns true if calls need another connection: this one has ended, or takes no more of them.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.0.session.borrow().is_leaving()
    }

    /// Time of the last bytes from the server, by the clock that was given.
    #[must_use]
    pub fn last_heard(&self) -> Duration {
        self.0.session.borrow().last_heard()
    }

    /// Asks whether the server is still there. The answer is heard, as anything else is.
    pub fn send_ping(&self) {
        self.0.session.borrow_mut().send_ping();
    }

    /// Returns true while a ping waits for its answer.
    #[must_use]
    pub fn awaits_pong(&self) -> bool {
        self.0.session.borrow().awaits_pong()
    }

    /// Asks once, and is answered once. `path` is `/package.Service/Method`.
    ///
    /// Errors: the status of the server; `Unavailable` if the connection ended; `DeadlineExceeded`; `ResourceExhausted`
    /// if the answer is too large; `Internal` if it is no message.
    pub fn call_unary<'a, A: Message + Default>(
        &'a self,
        path: &'a str,
        request: &mut dyn Message,
        options: &'a CallOptions,
    ) -> impl Future<Output = Result<A, GrpcStatus>> + use<'a, A> {
        let request = proto::encode(request);
        async move {
            let mut answer = A::default();
            self.call_unary_encoded(path, request, &mut answer, options)
                .await?;
            Ok(answer)
        }
    }

    /// Makes a call whose request is encoded already: one function for answers of any kind.
    pub async fn call_unary_encoded(
        &self,
        path: &str,
        request: Vec<u8>,
        answer: &mut dyn Message,
        options: &CallOptions,
    ) -> Result<(), GrpcStatus> {
        let bytes = self.call_unary_bytes(path, request, options).await?;
        decode_answer(answer, &bytes)
    }

    async fn call_unary_bytes(
        &self,
        path: &str,
        request: Vec<u8>,
        options: &CallOptions,
    ) -> Result<Vec<u8>, GrpcStatus> {
        let mut call = self.begin_call(path, options).await?;
        call.send_message(&request).await?;
        call.finish_sending();
        let odd = |text| GrpcStatus::new(GrpcCode::INTERNAL, text);
        let answer = call.next_message().await?;
        let answer = answer.ok_or_else(|| odd("the server answered nothing"))?;
        match call.next_message().await? {
            None => Ok(answer),
            Some(_) => Err(odd("the server answered more than once")),
        }
    }

    /// Asks once, and is answered any number of times: see [`ClientCall::next_answer`].
    pub fn call_streaming<'a>(
        &'a self,
        path: &'a str,
        request: &mut dyn Message,
        options: &'a CallOptions,
    ) -> impl Future<Output = Result<ClientCall, GrpcStatus>> + use<'a> {
        let request = proto::encode(request);
        async move {
            let mut call = self.begin_call(path, options).await?;
            call.send_message(&request).await?;
            call.finish_sending();
            Ok(call)
        }
    }

    /// Begins a call, as soon as the server has room for one.
    pub async fn begin_call(
        &self,
        path: &str,
        options: &CallOptions,
    ) -> Result<ClientCall, GrpcStatus> {
        let scheme = if options.is_encrypted {
            "https"
        } else {
            "http"
        };
        let mut fields = vec![
            header_field(":method", "POST"),
            header_field(":scheme", scheme),
            header_field(":path", path),
            header_field(":authority", &self.0.authority),
            header_field("content-type", "application/grpc"),
            header_field("te", "trailers"),
        ];
        if let Some(timeout) = options.timeout {
            fields.push(header_field("grpc-timeout", &format_timeout(timeout)));
        }
        fields.extend(options.metadata.iter().cloned());
        let mut late = options.timeout.map(|timeout| self.0.time.sleep(timeout));
        let id = poll_fn(|cx| {
            if late
                .as_mut()
                .is_some_and(|late| late.as_mut().poll(cx).is_ready())
            {
                return Poll::Ready(Err(deadline_exceeded()));
            }
            self.0.session.borrow_mut().poll_open_stream(&fields, cx)
        });
        let id = id.await?;
        Ok(ClientCall {
            client: self.0.clone(),
            id,
            late,
        })
    }
}

fn header_field(name: &str, value: &str) -> HeaderField {
    (name.as_bytes().to_vec(), value.as_bytes().to_vec())
}

fn deadline_exceeded() -> GrpcStatus {
    GrpcStatus::new(GrpcCode::DEADLINE_EXCEEDED, "context deadline exceeded")
}

fn decode_answer(message: &mut dyn Message, bytes: &[u8]) -> Result<(), GrpcStatus> {
    let done = proto::decode(message, bytes, Limits::default());
    done.map_err(|e| match e {
        proto::Error::TooMuch => GrpcStatus::new(GrpcCode::RESOURCE_EXHAUSTED, e.to_string()),
        _ => GrpcStatus::new(GrpcCode::INTERNAL, format!("the answer is no message: {e}")),
    })
}

/// A call under way. Dropped before its end, it is given up, and the server is told.
pub struct ClientCall {
    client: Rc<ClientShared>,
    id: Http2StreamId,
    /// Ready once it has taken too long.
    late: Option<SleepFuture>,
}

impl ClientCall {
    /// Sends a message, once little of those before it waits to be sent.
    pub async fn send_message(&mut self, message: &[u8]) -> Result<(), GrpcStatus> {
        let mut bytes = envelope::wrap_message(message);
        self.wait_with_deadline(|session, id, cx| session.poll_send_message(id, &mut bytes, cx))
            .await
    }

    /// Makes the call one that lasts, in which both sides send as they like: messages of so many bytes at most are
    /// taken, and the reader may leave them for any time. That holds the server back; the reader has to see to an end
    /// of it.
    pub fn make_lasting(&mut self, max_message: usize) {
        let mut session = self.client.session.borrow_mut();
        session.make_stream_lasting(self.id, max_message);
    }

    /// The headers of the answer, which come before its first message. Errors: there is none.
    pub async fn answer_headers(&mut self) -> Result<Vec<HeaderField>, GrpcStatus> {
        self.wait_with_deadline(GrpcSession::poll_head).await
    }

    /// Waits until few of the sent bytes wait to go out.
    pub fn poll_send_room(&self, cx: &Context<'_>) -> Poll<()> {
        self.client.session.borrow_mut().poll_send_room(self.id, cx)
    }

    /// Waits until all that was sent has gone out.
    pub fn poll_sent(&self, cx: &Context<'_>) -> Poll<()> {
        self.client.session.borrow_mut().poll_sent(self.id, cx)
    }

    /// Sends a message, whatever waits before it. Nothing if the call is over.
    pub fn push_message(&self, message: &[u8]) {
        let mut session = self.client.session.borrow_mut();
        session.push_bytes(self.id, envelope::wrap_message(message));
    }

    /// The next message, as of [`Self::next_message`]; the call's time is not looked at.
    pub fn poll_next_message(&self, cx: &Context<'_>) -> Poll<Result<Option<Vec<u8>>, GrpcStatus>> {
        let message = ready!(
            self.client
                .session
                .borrow_mut()
                .poll_next_message(self.id, cx)
        );
        Poll::Ready(message.and_then(|message| self.check_end_status(message)))
    }

    /// A call that ends well says so.
    fn check_end_status(&self, message: Option<Vec<u8>>) -> Result<Option<Vec<u8>>, GrpcStatus> {
        if message.is_none() {
            let session = self.client.session.borrow();
            let (head, trailers) = session.stream_fields(self.id);
            GrpcStatus::check_answer(head, trailers)?;
        }
        Ok(message)
    }

    /// Says that nothing more is sent.
    pub fn finish_sending(&mut self) {
        self.client
            .session
            .borrow_mut()
            .end_stream(self.id, Vec::new());
    }

    /// The next message as it is; `None` at a good end.
    pub async fn next_message(&mut self) -> Result<Option<Vec<u8>>, GrpcStatus> {
        let message = self
            .wait_with_deadline(GrpcSession::poll_next_message)
            .await?;
        self.check_end_status(message)
    }

    /// The next message; `None` at a good end.
    pub async fn next_answer<A: Message + Default>(&mut self) -> Result<Option<A>, GrpcStatus> {
        let Some(bytes) = self.next_message().await? else {
            return Ok(None);
        };
        let mut answer = A::default();
        decode_answer(&mut answer, &bytes)?;
        Ok(Some(answer))
    }

    /// Waits for the session, but no longer than the call may take.
    async fn wait_with_deadline<T>(
        &mut self,
        mut ask: impl FnMut(
            &mut GrpcSession,
            Http2StreamId,
            &Context<'_>,
        ) -> Poll<Result<T, GrpcStatus>>,
    ) -> Result<T, GrpcStatus> {
        let (id, late) = (self.id, &mut self.late);
        poll_fn(|cx| {
            let answer = ask(&mut self.client.session.borrow_mut(), id, cx);
            if answer.is_ready() {
                return answer;
            }
            if late
                .as_mut()
                .is_some_and(|late| late.as_mut().poll(cx).is_ready())
            {
                // A future must not be polled again once it was ready.
                *late = Some(Box::pin(core::future::ready(())));
                return Poll::Ready(Err(deadline_exceeded()));
            }
            Poll::Pending
        })
        .await
    }
}

impl Drop for ClientCall {
    fn drop(&mut self) {
        let mut session = self.client.session.borrow_mut();
        session.drop_stream(self.id, Http2ErrorCode::CANCEL);
    }
}
