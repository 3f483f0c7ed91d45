//! Ending, from another thread, an exchange that may have no end.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::client::ServerConnections;

/// Cuts the connection of a watch, and keeps it for the next one. One for each thread that watches; usable for one watch
/// after the other.
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
    connections: Option<ServerConnections>,
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
        if let Some(connections) = self.take_connections() {
            connections.agent.shutdown();
        }
    }

    /// Returns true if [`WatchCancel::cancel`] was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.lock().cancelled
    }

    /// Sets the connections to cut. False if it is too late to begin.
    pub(super) fn set_connections(&self, connections: ServerConnections) -> bool {
        let mut state = self.lock();
        if !state.cancelled {
            state.connections = Some(connections);
        }
        !state.cancelled
    }

    /// Takes the connections: those of the watch before, if it ended well.
    pub(super) fn take_connections(&self) -> Option<ServerConnections> {
        self.lock().connections.take()
    }

    fn lock(&self) -> MutexGuard<'_, WatchCancelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
