//! Turns of tasks on the one thread that everything runs on.
//!
//! Whatever a peer says is there at once if he says it fast enough, and a task that always finds something ready is never
//! left. So every loop that a peer can keep busy gives the others their turn: `tests/turns.rs` holds it.

/// Lets all other tasks have their turn, and the reactor look at what is ready, before it goes on.
pub async fn give() {
    smol::future::yield_now().await;
}
