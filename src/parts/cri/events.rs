//! The doorbell: the runtime's events. Only their arrival counts, not their content.
//!
//! A runtime may wait for a subscriber that does not read, and with it every pod (CRI-66): events are read as they
//! come, even if no task waits for them.

use alloc::rc::Rc;
use core::time::Duration;

use smol::{
    LocalExecutor, Timer,
    channel::{Receiver, Sender, bounded},
    future::or,
};

use super::link::RuntimeLink;
use crate::sys::turn;

/// Pause before a runtime is asked again for events that it did not have (CRI-67), unless it is connected to anew.
const NOT_OFFERED_PAUSE: Duration = Duration::from_secs(300);
/// Pause after a subscription that brought events.
const BROKEN_PAUSE: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct RuntimeDoorbell {
    rings: Receiver<()>,
    ring: Sender<()>,
    connections: Receiver<()>,
}

impl RuntimeDoorbell {
    /// Makes a bell, and the channel for news of connections.
    pub(super) fn new() -> (Self, Sender<()>) {
        // A second ring would tell no more than the first.
        let (ring, rings) = bounded(1);
        let (connected, connections) = bounded(1);
        let bell = Self {
            rings,
            ring,
            connections,
        };
        (bell, connected)
    }

    /// Waits until it has rung.
    pub(super) async fn wait_for_ring(&self) {
        if self.rings.recv().await.is_err() {
            core::future::pending().await
        }
    }

    /// Listens to the runtime's events for as long as the bell exists.
    pub(super) fn follow_events(&self, link: Rc<RuntimeLink>, executor: &LocalExecutor<'static>) {
        let (ring, connections) = (self.ring.clone(), self.connections.clone());
        executor
            .spawn(ring_on_events(link, ring, connections))
            .detach();
    }
}

async fn ring_on_events(link: Rc<RuntimeLink>, ring: Sender<()>, connections: Receiver<()>) {
    // Bounded: each time it waits for a pause, or for a connection.
    while !ring.is_closed() {
        let heard = drain(&link, &ring).await;
        // Changes between two subscriptions come without event.
        let _ = ring.try_send(());
        let pause = async {
            Timer::after(if heard {
                BROKEN_PAUSE
            } else {
                NOT_OFFERED_PAUSE
            })
            .await;
        };
        let connected = async {
            // A link that is gone tells of no more connections.
            if connections.recv().await.is_err() {
                core::future::pending().await
            }
        };
        or(pause, connected).await;
    }
}

/// Reads events until they end. Returns true if there were any.
async fn drain(link: &RuntimeLink, ring: &Sender<()>) -> bool {
    let mut heard = false;
    let Ok(mut events) = link.subscribe("GetContainerEvents").await else {
        return heard;
    };
    loop {
        match events.next_message().await {
            Ok(Some(_)) => {
                heard = true;
                let _ = ring.try_send(());
                turn::yield_to_others().await;
            }
            Ok(None) => return heard,
            Err(status) => {
                log::debug!("events of the runtime end: {}", status.message);
                return heard;
            }
        }
    }
}
