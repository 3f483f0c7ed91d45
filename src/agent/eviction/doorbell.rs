//! The doorbell of memory as an event of the loop.

use alloc::rc::Rc;

use smol::channel::Sender;

use crate::{
    agent::{clock::Clock, core::AgentEvent},
    cgroup::MemoryDoorbell,
    logic::eviction::MIN_POLL,
};

/// Tells the loop of each ring, at most as often as a look may be made. Ends if the bell cannot ring any more.
pub(in crate::agent) async fn forward_rings(
    mut bell: MemoryDoorbell,
    clock: Rc<dyn Clock>,
    events: Sender<AgentEvent>,
) {
    // Bounded: each round waits for the kernel, and then for a second.
    loop {
        if let Err(e) = bell.wait_for_ring().await {
            log::warn!(
                "cannot wait for the kernel's memory events, so memory is checked every ten seconds: {e}"
            );
            return;
        }
        if events.send(AgentEvent::MemoryBell).await.is_err() {
            return;
        }
        clock.sleep_until(clock.now() + MIN_POLL).await;
    }
}
