//! The API's pods, as the agent knows them.

use core::cell::RefCell;

use crate::{
    agent::wake::WakeFlag,
    api::{MonoTime, PodUid},
    logic::api_poll::{ApiPoll, DeliveryVerdict, PodListItem, PodObjectSummary},
};

/// Pods that the API has, and the version in which each was read. One task polls ([`super::pods`]). Writers to the API
/// tell their answers here, so that own writes are not read back. At most as many pods as the pod table has places.
pub(super) struct ApiPods {
    poll: RefCell<ApiPoll>,
    /// The poller may have something to ask.
    asks_due: WakeFlag,
}

impl ApiPods {
    /// Begins without a known pod, or with those that `poll` remembers.
    pub(super) fn new(poll: ApiPoll) -> Self {
        Self {
            poll: RefCell::new(poll),
            asks_due: WakeFlag::default(),
        }
    }

    /// For the poller, which decides what is asked.
    pub(super) fn with_poll<T>(&self, look: impl FnOnce(&mut ApiPoll) -> T) -> T {
        look(&mut self.poll.borrow_mut())
    }

    /// Waits until the poller may have something to ask.
    pub(super) async fn wait_for_work(&self) {
        self.asks_due.wait_for_wake().await;
    }

    /// The poller may have something to ask.
    pub(super) fn wake_poller(&self) {
        self.asks_due.wake_waiters();
    }

    /// The API has the pod, and nobody could read it yet.
    pub(super) fn is_unread(&self, uid: &PodUid) -> bool {
        self.poll
            .borrow()
            .unread_pods()
            .any(|known| *known == **uid)
    }

    /// A whole list was told since the agent began.
    pub(super) fn has_complete_list(&self) -> bool {
        self.poll.borrow().has_completed()
    }

    /// Returns true if the pod is known.
    pub(super) fn is_known(&self, uid: &PodUid) -> bool {
        self.poll.borrow().is_delivered(uid)
    }

    /// Namespace and name of a pod.
    pub(super) fn pod_name(&self, uid: &PodUid) -> Option<(String, String)> {
        let poll = self.poll.borrow();
        let (namespace, name) = poll.namespace_and_name(uid)?;
        Some((namespace.into(), name.into()))
    }

    /// A write to the pod begins.
    pub(super) fn note_write_start(&self, uid: &PodUid) {
        self.poll.borrow_mut().on_write_started(uid);
    }

    /// A write ended, with this in the answer. Returns whether that says more than was known.
    pub(super) fn note_write_end(
        &self,
        uid: &PodUid,
        sight: Option<PodObjectSummary>,
        now: MonoTime,
    ) -> bool {
        let verdict = self.poll.borrow_mut().on_write_ended(uid, sight, now);
        verdict == DeliveryVerdict::Deliver
    }

    /// A pod was created by us, or found where one was to be.
    pub(super) fn note_created_pod(
        &self,
        item: &PodListItem,
        sight: PodObjectSummary,
        now: MonoTime,
    ) {
        self.poll.borrow_mut().on_pod_made(item, sight, now);
    }

    /// A pod was deleted by us, and is gone.
    pub(super) fn note_deleted_pod(&self, uid: &PodUid) {
        self.poll.borrow_mut().on_deleted(uid);
    }

    /// Asks for another read of a pod whose state in the API is unknown.
    pub(super) fn request_reread(&self, uid: &PodUid) {
        self.poll.borrow_mut().request_read(uid);
    }
}

#[cfg(test)]
mod testing {
    //! What tests ask.
    impl super::ApiPods {
        /// Describes the memory of the poller, for the report of a failure.
        pub(in crate::agent::cluster) fn describe_memory(&self) -> String {
            format!("{:?}", self.poll.borrow())
        }
    }
}
