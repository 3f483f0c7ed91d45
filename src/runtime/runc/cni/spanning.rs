//! A network between nodes, as far as the built-in network depends on it: who makes it writes it here (FLAN-05, FLAN-12,
//! FLAN-13).

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Settings of a network between nodes for the pods of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpanningSettings {
    /// Reason why pods that want a network must wait; `None`: they need not.
    pub not_ready: Option<String>,
    /// Largest packet of a pod, bytes; 0 leaves it to the kernel.
    pub mtu: u32,
    /// Ranges whose hosts see the pods under their own addresses, such as `10.42.0.0/16`.
    pub reachable: Vec<String>,
}

/// Board for these settings.
#[derive(Debug, Default)]
pub struct SpanningNetwork(Mutex<SpanningSettings>);

impl SpanningNetwork {
    fn lock(&self) -> MutexGuard<'_, SpanningSettings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Settings now.
    #[must_use]
    pub fn current_settings(&self) -> SpanningSettings {
        self.lock().clone()
    }

    /// Puts up other settings. They count for pods that are attached from now on. Returns those before.
    pub fn set_settings(&self, settings: SpanningSettings) -> SpanningSettings {
        core::mem::replace(&mut *self.lock(), settings)
    }
}
