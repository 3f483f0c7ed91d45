//! Ending, from another thread, an exchange that may have no end.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use ureq::Agent;

/// Cuts the connection of a watch. One for each thread that watches; usable for one watch after the other.
///
/// The search for an address and the connecting of a socket are not cut; both have a time limit.
#[derive(Default)]
pub struct WatchCancel {
    state: Mutex<WatchCancelState>,
    bell: Condvar,
}

#[derive(Default)]
struct WatchCancelState {
    cancelled: bool,
    agent: Option<Agent>,
}

impl core::fmt::Debug for WatchCancel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Cancel").field(&self.is_cancelled()).finish()
    }
}

impl WatchCancel {
    /// Ends the watch there is, and every later one before it begins.
    pub fn cancel(&self) {
        self.lock().cancelled = true;
        self.bell.notify_all();
        self.interrupt();
    }

    /// Ends the watch there is, as if its link had broken.
    pub fn interrupt(&self) {
        // Not under the lock: the watching thread takes it on its way out.
        let agent = self.lock().agent.take();
        if let Some(agent) = agent {
            agent.shutdown();
        }
    }

    /// Returns true if [`WatchCancel::cancel`] was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.lock().cancelled
    }

    /// Sets the connections to cut. False if it is too late to begin.
    pub(super) fn set_connections(&self, agent: Agent) -> bool {
        let mut state = self.lock();
        if !state.cancelled {
            state.agent = Some(agent);
        }
        !state.cancelled
    }

    /// Forgets the connections: none is open any more.
    pub(super) fn clear_connections(&self) {
        self.lock().agent = None;
    }

    fn lock(&self) -> MutexGuard<'_, WatchCancelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
