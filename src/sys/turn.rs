//! Turns of tasks on the one thread that everything runs on.
//!
//! A peer that sends fast enough keeps its task always ready, and such a task is never left. So every loop that a peer
//! can keep busy gives the others their turn; `tests/turns.rs` checks that.

/// Lets all other tasks have their turn, and the reactor look for ready descriptors, before the caller goes on.
pub async fn yield_to_others() {
    smol::future::yield_now().await;
}
