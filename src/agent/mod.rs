//! The event loop, sync tasks and the executor.
