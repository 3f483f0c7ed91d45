//! A connection within this process: no socket, two bounded queues. The bytes of a source of connections reach the
//! server by it.
//!
//! A writer waits while the queue is full; the bytes of a writer that goes stay in the queue. One thread.

use alloc::{collections::VecDeque, rc::Rc};
use core::cell::RefCell;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::io;

use smol::io::{AsyncRead, AsyncWrite};

/// Capacity that an empty queue may keep, bytes.
const KEPT_BYTES: usize = 0;

/// A queue of bytes in one direction.
#[derive(Default)]
struct PipeQueue {
    bytes: VecDeque<u8>,
    max: usize,
    /// Set if no more bytes will be written.
    is_ended: bool,
    /// Set if the reader has gone.
    is_deaf: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl PipeQueue {
    fn new(max: usize) -> Self {
        Self {
            max,
            ..Self::default()
        }
    }

    fn free_bytes(&self) -> usize {
        self.max.saturating_sub(self.bytes.len())
    }

    /// Puts in as many bytes as there is room for.
    fn put_bytes(&mut self, bytes: &[u8]) -> usize {
        let piece = &bytes[..bytes.len().min(self.free_bytes())];
        self.bytes.extend(piece);
        if !piece.is_empty() {
            wake_waiter(&mut self.reader);
        }
        piece.len()
    }

    /// Takes out as much as `into` holds.
    fn take_bytes(&mut self, into: &mut [u8]) -> usize {
        let (first, second) = self.bytes.as_slices();
        let one = first.len().min(into.len());
        into[..one].copy_from_slice(&first[..one]);
        let two = second.len().min(into.len() - one);
        into[one..one + two].copy_from_slice(&second[..two]);
        self.bytes.drain(..one + two);
        if self.bytes.is_empty() {
            self.bytes.shrink_to(KEPT_BYTES);
        }
        wake_waiter(&mut self.writer);
        one + two
    }

    fn end_writing(&mut self) {
        self.is_ended = true;
        wake_waiter(&mut self.reader);
    }

    fn close_reading(&mut self) {
        self.is_deaf = true;
        self.bytes = VecDeque::new();
        wake_waiter(&mut self.writer);
    }
}

fn wake_waiter(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// Both directions: to the server, and from it.
struct PipeQueues {
    inward: PipeQueue,
    outward: PipeQueue,
}

/// A pipe whose queues hold so many bytes: to the server, and from it.
#[must_use]
pub fn new_pipe(inward: usize, outward: usize) -> (PipeServerEnd, PipeSourceEnd) {
    let ways = Rc::new(RefCell::new(PipeQueues {
        inward: PipeQueue::new(inward),
        outward: PipeQueue::new(outward),
    }));
    (PipeServerEnd(Rc::clone(&ways)), PipeSourceEnd(ways))
}

/// The server's end: a stream as any other.
pub struct PipeServerEnd(Rc<RefCell<PipeQueues>>);

/// A second handle to the server's end, for questions that a stream does not answer.
#[derive(Clone)]
pub(super) struct PipeHandle(Rc<RefCell<PipeQueues>>);

impl PipeServerEnd {
    pub(super) fn second_handle(&self) -> PipeHandle {
        PipeHandle(Rc::clone(&self.0))
    }
}

impl PipeHandle {
    /// Returns true if the other end is gone, or will write no more.
    pub(super) fn has_hung_up(&self) -> bool {
        let ways = self.0.borrow();
        ways.inward.is_ended || ways.outward.is_deaf
    }

    /// Drops the bytes that the other end has not taken yet.
    pub(super) fn drop_pending_bytes(&self) {
        self.0.borrow_mut().outward.bytes = VecDeque::new();
    }

    /// Ends the server's side: no more bytes are written.
    pub(super) fn end_writing(&self) {
        self.0.borrow_mut().outward.end_writing();
    }
}

impl AsyncRead for PipeServerEnd {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let way = &mut self.0.borrow_mut().inward;
        if way.bytes.is_empty() && !way.is_ended && !buf.is_empty() {
            way.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(way.take_bytes(buf)))
    }
}

impl AsyncWrite for PipeServerEnd {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let way = &mut self.0.borrow_mut().outward;
        if way.is_deaf || way.is_ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if way.free_bytes() == 0 && !buf.is_empty() {
            way.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(way.put_bytes(buf)))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().outward.end_writing();
        Poll::Ready(Ok(()))
    }
}

impl Drop for PipeServerEnd {
    fn drop(&mut self) {
        let mut ways = self.0.borrow_mut();
        ways.outward.end_writing();
        ways.inward.close_reading();
    }
}

/// The end of the source.
pub struct PipeSourceEnd(Rc<RefCell<PipeQueues>>);

impl PipeSourceEnd {
    /// Gives the server as many bytes as it has room for; returns their number. A server that has gone takes
    /// everything. If some are left, `cx` is woken when there is room.
    pub fn give_bytes(&self, bytes: &[u8], cx: &Context<'_>) -> usize {
        let way = &mut self.0.borrow_mut().inward;
        if way.is_deaf {
            return bytes.len();
        }
        let given = way.put_bytes(bytes);
        if given < bytes.len() {
            way.writer = Some(cx.waker().clone());
        }
        given
    }

    /// Number of bytes that the server has not taken yet. If they are more than `calm`, `cx` is woken when it takes some.
    #[must_use]
    pub fn waiting_bytes(&self, calm: usize, cx: &Context<'_>) -> usize {
        let way = &mut self.0.borrow_mut().inward;
        let waiting = way.bytes.len();
        if waiting > calm {
            way.writer = Some(cx.waker().clone());
        }
        waiting
    }

    /// Takes the server's bytes into `into`; returns their number, 0 at the end. `None`: no bytes yet; `cx` is woken
    /// then.
    pub fn take_bytes(&self, into: &mut [u8], cx: &Context<'_>) -> Option<usize> {
        let way = &mut self.0.borrow_mut().outward;
        if way.bytes.is_empty() && !way.is_ended {
            way.reader = Some(cx.waker().clone());
            return None;
        }
        Some(way.take_bytes(into))
    }

    /// Returns true if [`Self::take_bytes`] would give bytes or the end. If not, `cx` is woken when it would.
    #[must_use]
    pub fn has_pending_bytes(&self, cx: &Context<'_>) -> bool {
        let way = &mut self.0.borrow_mut().outward;
        let has = way.is_ended || !way.bytes.is_empty();
        if !has {
            way.reader = Some(cx.waker().clone());
        }
        has
    }
}

impl Drop for PipeSourceEnd {
    fn drop(&mut self) {
        let mut ways = self.0.borrow_mut();
        ways.inward.end_writing();
        ways.outward.close_reading();
    }
}

#[cfg(test)]
mod tests {
    use smol::future::{block_on, poll_once};
    use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn taken(far: &PipeSourceEnd, most: usize) -> Option<Vec<u8>> {
        let mut into = vec![0; most];
        let n = far.take_bytes(&mut into, &Context::from_waker(Waker::noop()))?;
        into.truncate(n);
        Some(into)
    }

    #[test]
    fn who_writes_waits_for_room() {
        // TUN-12
        let (mut near, far) = new_pipe(4, 3);
        let cx = Context::from_waker(Waker::noop());
        assert_eq!(far.give_bytes(b"abcdef", &cx), 4);
        assert_eq!(far.give_bytes(b"ef", &cx), 0);
        assert_eq!(far.waiting_bytes(0, &cx), 4);
        block_on(async {
            let mut got = [0; 3];
            near.read_exact(&mut got).await.expect("read");
            assert_eq!(&got, b"abc");
            assert_eq!(far.give_bytes(b"efgh", &cx), 3);
            assert_eq!(taken(&far, 8), None);
            assert!(!far.has_pending_bytes(&cx));
            let mut write = Box::pin(near.write_all(b"12345"));
            assert!(poll_once(&mut write).await.is_none(), "no room");
            assert_eq!(taken(&far, 2), Some(b"12".to_vec()));
            assert!(poll_once(&mut write).await.is_some());
            assert_eq!(taken(&far, 8), Some(b"345".to_vec()));
        });
    }

    #[test]
    fn ends() {
        // TUN-05
        block_on(async {
            // Bytes that were written before the end arrive.
            let (mut near, far) = new_pipe(8, 8);
            near.write_all(b"bye").await.expect("room");
            drop(near);
            assert_eq!(taken(&far, 8), Some(b"bye".to_vec()));
            assert_eq!(taken(&far, 8), Some(Vec::new()));
            let cx = Context::from_waker(Waker::noop());
            assert_eq!(far.give_bytes(&[0; 100], &cx), 100, "nobody reads it");
            // Also the other way.
            let (mut near, far) = new_pipe(8, 8);
            let beside = near.second_handle();
            far.give_bytes(b"ask", &cx);
            assert!(!beside.has_hung_up());
            drop(far);
            assert!(beside.has_hung_up());
            let mut all = Vec::new();
            near.read_to_end(&mut all).await.expect("the end");
            assert_eq!(all, b"ask");
            let failed = near.write(b"x").await.expect_err("nobody is there");
            assert_eq!(failed.kind(), io::ErrorKind::BrokenPipe);
            // A pipe that was cut gives no more bytes.
            let (mut near, far) = new_pipe(8, 8);
            near.write_all(b"lost").await.expect("room");
            near.second_handle().drop_pending_bytes();
            near.close().await.expect("closed");
            assert_eq!(taken(&far, 8), Some(Vec::new()));
            assert!(near.write(b"x").await.is_err());
        });
    }

    #[test]
    fn an_empty_pipe_holds_nothing() {
        let (near, far) = new_pipe(1 << 16, 1 << 16);
        let cx = Context::from_waker(Waker::noop());
        far.give_bytes(&[1; 60_000], &cx);
        let mut near = near;
        block_on(near.read_exact(&mut [0; 60_000])).expect("read");
        assert_eq!(near.0.borrow().inward.bytes.capacity(), 0);
    }
}
