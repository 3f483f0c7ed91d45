//! Answers to the calls of one client: [`serve`] runs a [`Handler`] for each of them.
//!
//! A handler is dropped when its client gives the call up, when the call has taken longer than it may, and when the
//! connection ends.

use core::{cell::RefCell, future::poll_fn, pin::Pin};
use std::rc::Rc;

use smol::{LocalExecutor, Task, future::or};

use crate::{
    envelope,
    hpack::Field,
    http2::{Role, StreamId},
    proto::{self, Limits, Message},
    session::{Pipe, Session, Shared, Time, drive},
    status::{Code, Status, timeout, trailers},
    table::Table,
};

/// Function that answers a call. The result of its future is the end of the call.
pub type Handler = Rc<dyn Fn(Exchange) -> Answering>;
/// A call that is being answered.
pub type Answering = Pin<Box<dyn Future<Output = Result<(), Status>>>>;

/// Answers a client until its connection ends, and says why it did.
pub async fn serve(pipe: impl Pipe + 'static, handler: Handler, time: Rc<dyn Time>) -> Status {
    let session = Rc::new(RefCell::new(Session::new(Role::Server)));
    let executor = LocalExecutor::new();
    let driver = drive(Box::pin(pipe), session.clone(), time.clone());
    let mut calls: Table<Task<()>> = Table::new();
    let accept = async {
        // Bounded: each turn waits for what the driver brings, which gives others theirs.
        loop {
            let changes = poll_fn(|cx| session.borrow_mut().poll_changes(cx));
            let (opened, cancelled) = changes.await;
            for id in opened {
                let call = answer(id, session.clone(), handler.clone(), time.clone());
                calls.insert(id, executor.spawn(call));
            }
            for id in cancelled {
                calls.remove(id);
                session.borrow_mut().close(id);
            }
            calls.retain(|_, call| !call.is_finished());
        }
    };
    executor.run(or(driver, accept)).await
}

/// Answers one call.
async fn answer(id: StreamId, session: Shared, handler: Handler, time: Rc<dyn Time>) {
    let asked = Asked::read(session.borrow().fields(id).0);
    let end = match asked {
        Ok(asked) => {
            let late = asked.timeout.map(|timeout| time.sleep(timeout));
            let exchange = Exchange {
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
                Err(Status::new(Code::DEADLINE_EXCEEDED, text))
            };
            let end = trailers(&or(work, late).await);
            // Without an answer, headers and trailers are one.
            if session.borrow().is_begun(id) {
                end
            } else {
                [head(), end].concat()
            }
        }
        Err(refusal) => refusal,
    };
    let mut session = session.borrow_mut();
    session.end(id, end);
    session.close(id);
}

fn head() -> Vec<Field> {
    vec![
        (b":status".to_vec(), b"200".to_vec()),
        (b"content-type".to_vec(), b"application/grpc".to_vec()),
    ]
}

/// Path, timeout and metadata of a call, read from its headers.
struct Asked {
    path: String,
    timeout: Option<core::time::Duration>,
    metadata: Vec<Field>,
}

impl Asked {
    /// Reads the headers of a call. Errors: they are no call's; the fields are the answer.
    fn read(fields: &[Field]) -> Result<Self, Vec<Field>> {
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
            let status = Status::new(Code::INTERNAL, "malformed grpc-timeout");
            [head(), trailers(&Err(status))].concat()
        };
        let limit = value("grpc-timeout").map(|text| timeout(text).ok_or_else(malformed));
        Ok(Self {
            path: String::from_utf8_lossy(value(":path").unwrap_or_default()).into_owned(),
            timeout: limit.transpose()?,
            metadata: fields.to_vec(),
        })
    }
}

/// A call that came in: its question, and the way for its answers.
pub struct Exchange {
    session: Shared,
    id: StreamId,
    asked: Asked,
}

impl Exchange {
    /// `/package.Service/Method`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.asked.path
    }

    /// Header fields of the call, all of them.
    #[must_use]
    pub fn metadata(&self) -> &[Field] {
        &self.asked.metadata
    }

    /// The next message that is asked; `None` after the last.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Status> {
        poll_fn(|cx| self.session.borrow_mut().poll_next(self.id, cx)).await
    }

    /// The only message that is asked.
    pub async fn request<Q: Message + Default>(&mut self) -> Result<Q, Status> {
        let odd = |text: String| Status::new(Code::INTERNAL, text);
        let bytes = self.next().await?;
        let bytes = bytes.ok_or_else(|| odd("the call asks nothing".into()))?;
        if self.next().await?.is_some() {
            return Err(odd("the call asks more than once".into()));
        }
        let mut request = Q::default();
        let done = proto::decode(&mut request, &bytes, Limits::default());
        done.map_err(|e| odd(format!("the question is no message: {e}")))?;
        Ok(request)
    }

    /// Sends an answer, once little of those before it waits to be sent.
    pub async fn answer(&mut self, answer: &mut dyn Message) -> Result<(), Status> {
        self.send(&proto::encode(answer)).await
    }

    /// Sends the bytes of an answer, once little of those before it waits to be sent.
    pub async fn send(&mut self, message: &[u8]) -> Result<(), Status> {
        let mut bytes = envelope::wrap(message);
        self.session.borrow_mut().begin(self.id, &head());
        poll_fn(|cx| {
            let mut session = self.session.borrow_mut();
            session.poll_send(self.id, &mut bytes, cx)
        })
        .await
    }
}
