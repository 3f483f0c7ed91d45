//! Pods that only the Node's labels or taints are against: they are held back until it was read once more (ADM-08, ADM-10).
//! Nobody watches the Node here, so what is known of it may be minutes old.

use super::Agent;
use crate::{
    api::{MonoTime, PodUid},
    logic::admission::Rejection,
};

impl Agent {
    /// Has the Node read, and judges pods that need not wait any more.
    pub(super) fn advance_rereads(&mut self, now: MonoTime) {
        if self.sources.rereads.poll_node_read(now)
            && let Some(cluster) = &self.owners.cluster
        {
            cluster.member.request_loop_read();
        }
        while let Some(uid) = self.sources.rereads.poll_ready_pod(now) {
            if self.pods.is_configured(&uid) {
                self.create_again(&uid, false);
            } else {
                self.sources.rereads.release_pod(&uid);
            }
        }
    }

    /// Holds the pod back until the Node was read. Returns whether it is; otherwise it is refused.
    pub(super) fn holds_for_node(&mut self, uid: &PodUid, why: &Rejection, now: MonoTime) -> bool {
        // A node that stands alone has nobody to ask.
        let is_held = self.owners.cluster.is_some() && self.sources.rereads.hold_back(uid, now);
        if is_held {
            log::info!(
                "uid={uid} waits until the Node object has been read: {}",
                why.message
            );
        }
        is_held
    }

    /// Returns true if the pod waits for room or for the Node, or if its record is being read for the judgement after
    /// that.
    pub(super) fn is_held_back(&self, uid: &PodUid) -> bool {
        self.holds_room(uid) || self.sources.rereads.is_held_back(uid)
    }

    /// Returns true if the pod cannot be judged yet.
    pub(super) fn waits_for_verdict(&self, uid: &PodUid) -> bool {
        self.waits_for_room(uid) || self.sources.rereads.is_waiting(uid)
    }

    /// The pod ends, or somebody else has it begin.
    pub(super) fn forget_held_back(&mut self, uid: &PodUid) {
        self.take_room_makers(uid);
        self.sources.rereads.release_pod(uid);
    }
}
