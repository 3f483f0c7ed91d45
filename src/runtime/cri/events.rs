//! The doorbell: the runtime's events, of which only that they came is heeded.
//!
//! A runtime may wait for a subscriber that does not read, and with it every pod (CRI-66): what comes is read as it comes,
//! whoever listens.

use alloc::rc::Rc;
use core::time::Duration;

use smol::{
    LocalExecutor, Timer,
    channel::{Receiver, Sender, bounded},
    future::or,
};

use super::link::Link;
use crate::sys::turn;

/// Pause before a runtime is asked again for events that it did not have (CRI-67), unless it is connected to anew.
const NOT_OFFERED_PAUSE: Duration = Duration::from_secs(300);
/// The same after a subscription that brought something.
const BROKEN_PAUSE: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Bell {
    rings: Receiver<()>,
    ring: Sender<()>,
    connections: Receiver<()>,
}

impl Bell {
    /// A bell, and where new connections are told.
    pub(super) fn new() -> (Self, Sender<()>) {
        // One more than one says nothing more.
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
    pub(super) async fn ring(&self) {
        if self.rings.recv().await.is_err() {
            core::future::pending().await
        }
    }

    /// Listens to what the runtime tells, for as long as the bell is there.
    pub(super) fn follow(&self, link: Rc<Link>, executor: &LocalExecutor<'static>) {
        let (ring, connections) = (self.ring.clone(), self.connections.clone());
        executor.spawn(listen(link, ring, connections)).detach();
    }
}

async fn listen(link: Rc<Link>, ring: Sender<()>, connections: Receiver<()>) {
    // Bounded: each time it waits for a pause, or for a connection.
    while !ring.is_closed() {
        let heard = drain(&link, &ring).await;
        // What changed meanwhile nobody told.
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
            // Nobody tells of more than there are: a link that is gone tells of none.
            if connections.recv().await.is_err() {
                core::future::pending().await
            }
        };
        or(pause, connected).await;
    }
}

/// Reads events until they end. Returns whether there were any.
async fn drain(link: &Link, ring: &Sender<()>) -> bool {
    let mut heard = false;
    let Ok(mut events) = link.subscribe("GetContainerEvents").await else {
        return heard;
    };
    loop {
        match events.next().await {
            Ok(Some(_)) => {
                heard = true;
                let _ = ring.try_send(());
                turn::give().await;
            }
            Ok(None) => return heard,
            Err(status) => {
                log::debug!("events of the runtime end: {}", status.message);
                return heard;
            }
        }
    }
}
