//! Answers to the calls of one client: [`serve_calls`] runs a [`CallHandler`] for each of them.
//!
//! A handler is dropped when its client gives the call up, when the call has taken longer than it may, and when the
//! connection ends.

use core::{cell::RefCell, future::poll_fn, pin::Pin};
use std::rc::Rc;

use smol::{LocalExecutor, Task, future::or};

use crate::{
    envelope,
    hpack::HeaderField,
    http2::{ConnectionRole, Http2StreamId},
    proto::{self, Limits, Message},
    session::{BytePipe, ConnectionClock, GrpcSession, SharedSession, drive_session},
    status::{GrpcCode, GrpcStatus, parse_timeout, status_trailers},
    table::StreamTable,
};

/// Function that answers a call. The result of its future is the end of the call.
pub type CallHandler = Rc<dyn Fn(ServerCall) -> CallFuture>;
/// A call that is being answered.
pub type CallFuture = Pin<Box<dyn Future<Output = Result<(), GrpcStatus>>>>;

/// Answers a client until its connection ends, and says why it did.
pub async fn serve_calls(
    pipe: impl BytePipe + 'static,
    handler: CallHandler,
    time: Rc<dyn ConnectionClock>,
) -> GrpcStatus {
    let session = Rc::new(RefCell::new(GrpcSession::new(ConnectionRole::Server)));
    let executor = LocalExecutor::new();
    let driver = drive_session(Box::pin(pipe), session.clone(), time.clone());
    let mut calls: StreamTable<Task<()>> = StreamTable::new();
    let accept = async {
        // Bounded: each turn waits for what the driver brings, which gives others theirs.
        loop {
            let changes = poll_fn(|cx| session.borrow_mut().poll_stream_changes(cx));
            let (opened, cancelled) = changes.await;
            for id in opened {
                let call = answer_call(id, session.clone(), handler.clone(), time.clone());
                calls.insert(id, executor.spawn(call));
            }
            for id in cancelled {
                calls.remove(id);
                session.borrow_mut().close_stream(id);
            }
            calls.retain(|_, call| !call.is_finished());
        }
    };
    executor.run(or(driver, accept)).await
}

/// Answers one call.
async fn answer_call(
    id: Http2StreamId,
    session: SharedSession,
    handler: CallHandler,
    time: Rc<dyn ConnectionClock>,
) {
    let asked = CallHeaders::from_fields(session.borrow().stream_fields(id).0);
    let end = match asked {
        Ok(asked) => {
            let late = asked.timeout.map(|timeout| time.sleep(timeout));
            let exchange = ServerCall {
                session: session.clone(),
                id,
                asked,
            };
            let work = async { handler(exchange).await };
            let late = async {
                match late {
                    Some(late) => late.await,
                    None => core::future::pending().await,
                }
                let text = "context deadline exceeded";
                Err(GrpcStatus::new(GrpcCode::DEADLINE_EXCEEDED, text))
            };
            let end = status_trailers(&or(work, late).await);
            // Without an answer, headers and trailers are one.
            if session.borrow().has_sent_headers(id) {
                end
            } else {
                [answer_headers(), end].concat()
            }
        }
        Err(refusal) => refusal,
    };
    let mut session = session.borrow_mut();
    session.end_stream(id, end);
    session.close_stream(id);
}

fn answer_headers() -> Vec<HeaderField> {
    vec![
        (b":status".to_vec(), b"200".to_vec()),
        (b"content-type".to_vec(), b"application/grpc".to_vec()),
    ]
}

/// Path, timeout and metadata of a call, read from its headers.
struct CallHeaders {
    path: String,
    timeout: Option<core::time::Duration>,
    metadata: Vec<HeaderField>,
}

impl CallHeaders {
    /// Reads the headers of a call. Errors: they are no call's; the fields are the answer.
    fn from_fields(fields: &[HeaderField]) -> Result<Self, Vec<HeaderField>> {
        let value = |wanted: &str| {
            let found = fields.iter().find(|(name, _)| name == wanted.as_bytes());
            found.map(|(_, value)| value.as_slice())
        };
        let refused = |status: &str| vec![(b":status".to_vec(), status.as_bytes().to_vec())];
        if value(":method") != Some(b"POST") {
            return Err(refused("405"));
        }
        let kind = value("content-type").unwrap_or_default();
        if !kind.starts_with(b"application/grpc") {
            return Err(refused("415"));
        }
        let malformed = || {
            let status = GrpcStatus::new(GrpcCode::INTERNAL, "malformed grpc-timeout");
            [answer_headers(), status_trailers(&Err(status))].concat()
        };
        let limit = value("grpc-timeout").map(|text| parse_timeout(text).ok_or_else(malformed));
        Ok(Self {
            path: String::from_utf8_lossy(value(":path").unwrap_or_default()).into_owned(),
            timeout: limit.transpose()?,
            metadata: fields.to_vec(),
        })
    }
}

/// A call that came in: its question, and the way for its answers.
pub struct ServerCall {
    session: SharedSession,
    id: Http2StreamId,
    asked: CallHeaders,
}

impl ServerCall {
    /// `/package.Service/Method`.
    #[must_use]
    pub fn method_path(&self) -> &str {
        &self.asked.path
    }

    /// Header fields of the call, all of them.
    #[must_use]
    pub fn metadata(&self) -> &[HeaderField] {
        &self.asked.metadata
    }

    /// The next message that is asked; `None` after the last.
    pub async fn next_message(&mut self) -> Result<Option<Vec<u8>>, GrpcStatus> {
        poll_fn(|cx| self.session.borrow_mut().poll_next_message(self.id, cx)).await
    }

    /// The only message that is asked.
    pub async fn single_request<Q: Message + Default>(&mut self) -> Result<Q, GrpcStatus> {
        let odd = |text: String| GrpcStatus::new(GrpcCode::INTERNAL, text);
        let bytes = self.next_message().await?;
        let bytes = bytes.ok_or_else(|| odd("the call asks nothing".into()))?;
        if self.next_message().await?.is_some() {
            return Err(odd("the call asks more than once".into()));
        }
        let mut request = Q::default();
        let done = proto::decode(&mut request, &bytes, Limits::default());
        done.map_err(|e| odd(format!("the question is no message: {e}")))?;
        Ok(request)
    }

    /// Sends an answer, once little of those before it waits to be sent.
    pub async fn send_answer(&mut self, answer: &mut dyn Message) -> Result<(), GrpcStatus> {
        self.send_message(&proto::encode(answer)).await
    }

    /// Sends the bytes of an answer, once little of those before it waits to be sent.
    pub async fn send_message(&mut self, message: &[u8]) -> Result<(), GrpcStatus> {
        let mut bytes = envelope::wrap_message(message);
        self.session
            .borrow_mut()
            .send_headers_once(self.id, &answer_headers());
        poll_fn(|cx| {
            let mut session = self.session.borrow_mut();
            session.poll_send_message(self.id, &mut bytes, cx)
        })
        .await
    }
}
