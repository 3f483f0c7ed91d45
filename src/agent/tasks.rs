//! Tasks of the executor.

use alloc::rc::{Rc, Weak};
use core::pin::Pin;

use smol::LocalExecutor;

/// A task that runs as long as the agent, or until its work is done.
pub(crate) type AgentTask = Pin<Box<dyn Future<Output = ()>>>;

/// Boxes a task, so that the executor is compiled once for all of them.
pub(crate) fn box_task(task: impl Future<Output = ()> + 'static) -> AgentTask {
    Box::pin(task)
}

/// Starts tasks. It does not keep the executor alive: a task that holds one ends with the executor.
#[derive(Clone, Debug)]
pub(crate) struct TaskSpawner(Weak<LocalExecutor<'static>>);

impl TaskSpawner {
    pub(crate) fn new(executor: &Rc<LocalExecutor<'static>>) -> Self {
        Self(Rc::downgrade(executor))
    }

    /// Starts a task that nobody waits for. Once the executor is gone nothing is started.
    pub(crate) fn spawn(&self, task: AgentTask) {
        if let Some(executor) = self.0.upgrade() {
            executor.spawn(task).detach();
        }
    }
}
