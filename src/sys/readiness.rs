//! Waiting for a descriptor that says only once that it is ready.

use alloc::{sync::Arc, task::Wake};
use core::{
    future::{Future as _, poll_fn},
    pin::pin,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    task::{Context, Poll, Waker},
};
use std::{
    io,
    sync::{Mutex, PoisonError},
};

use async_io::Async;

/// Waker for the reactor: notes that the descriptor is ready, and wakes the task.
#[derive(Debug)]
struct ReadinessWaker {
    is_set: AtomicBool,
    /// Waker of the waiting task.
    task: Mutex<Waker>,
}

impl Wake for ReadinessWaker {
    fn wake(self: Arc<Self>) {
        self.is_set.store(true, Relaxed);
        self.task
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .wake_by_ref();
    }
}

/// Waits until `file` is readable, by the reactor's first word. If the reactor's thread was already waiting for the kernel,
/// [`Async::readable`] takes that word for one that may be old, and waits for the next. Descriptors of which the event is over
/// once it is told (PSI, `/proc/self/mounts`) say it only once, and those that stay readable cost a wake-up more.
///
/// - Errors: the descriptor cannot be waited for.
pub async fn wait_first_readable<T>(file: &Async<T>) -> io::Result<()> {
    let mut readable = pin!(file.readable());
    let mut asked = None::<Arc<ReadinessWaker>>;
    poll_fn(|cx| match &asked {
        Some(heard) => {
            let mut task = heard.task.lock().unwrap_or_else(PoisonError::into_inner);
            task.clone_from(cx.waker());
            // Read after the waker is set: a wake in between reaches this task.
            if heard.is_set.load(Relaxed) {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            }
        }
        None => {
            let heard = Arc::new(ReadinessWaker {
                is_set: AtomicBool::new(false),
                task: Mutex::new(cx.waker().clone()),
            });
            let waker = Waker::from(Arc::clone(&heard));
            asked = Some(heard);
            readable.as_mut().poll(&mut Context::from_waker(&waker))
        }
    })
    .await
}
