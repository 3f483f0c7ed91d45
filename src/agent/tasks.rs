//! What runs on the executor.

use core::pin::Pin;

/// Something that runs as long as the agent, or until its work is done.
pub(super) type Task = Pin<Box<dyn Future<Output = ()>>>;

/// One type for all of them: the executor is compiled once.
pub(super) fn boxed(task: impl Future<Output = ()> + 'static) -> Task {
    Box::pin(task)
}
