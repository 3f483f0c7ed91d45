//! Network of the cluster as its servers tell it, for whoever works with it: the board on which the newest word stands
//! (K3SN-01).

use alloc::rc::Rc;
use core::cell::{Cell, RefCell};

use super::waker_set::WakerSet;
use crate::api::cluster_network::ClusterNetwork;

/// The newest word of a server of k3s about the network; on other nodes there is never one.
#[derive(Debug, Default)]
pub(crate) struct ClusterNetworkBoard {
    network: RefCell<Option<Rc<ClusterNetwork>>>,
    /// Number of changes.
    changes: Cell<u64>,
    waiters: WakerSet,
}

impl ClusterNetworkBoard {
    /// The newest word; `None`: no server has told it, in this boot or before.
    pub(crate) fn current(&self) -> Option<Rc<ClusterNetwork>> {
        self.network.borrow().clone()
    }

    /// Waits for another word than that of the time of this call.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> {
        let before = self.changes.get();
        self.waiters
            .wait_until(move || (self.changes.get() != before).then_some(()))
    }

    /// Puts up another word. One that is the same is no change.
    pub(super) fn set_network(&self, network: ClusterNetwork) {
        if self.network.borrow().as_deref() == Some(&network) {
            return;
        }
        *self.network.borrow_mut() = Some(Rc::new(network));
        self.changes.set(self.changes.get() + 1);
        self.waiters.wake_all();
    }
}
