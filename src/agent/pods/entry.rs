//! Everything that is known of one pod between events.

use super::PodConfigFacts;
use crate::{
    api::{MonoTime, PodUid, cri::ContainerStatus},
    logic::{
        dispatch::{self, PodActivity},
        pod_table::PodTable,
        resize::PodResize,
        status_cache::StatusCache,
    },
};

/// Everything that is known of one pod. An empty entry is dropped.
#[derive(Debug, Default)]
pub(super) struct PodEntry {
    /// Facts of the pod from its source; `None` if no source has it.
    pub(super) config: Option<PodConfigFacts>,
    /// Status to tell, of configured pods and of pods on their way out.
    pub(super) status: StatusCache,
    /// Time at which the pod became known, as long as it has not run yet.
    pub(super) starting: Option<MonoTime>,
    /// Time when the pod came, until its first sync.
    pub(super) unsynced: Option<MonoTime>,
    /// Number of the pod's records that are being written, or are written and not told to the loop yet. No source need
    /// have the pod then, yet nothing of it may be removed.
    pub(super) arriving: u32,
    /// Containers of the pod that had succeeded a boot ago and that the runtime has forgotten. None as a rule.
    #[expect(clippy::box_collection, reason = "one word for each of many pods")]
    pub(super) succeeded: Option<Box<Vec<ContainerStatus>>>,
    /// Digest of the limits that this agent has given the pod's cgroup.
    pub(super) limits: Option<u32>,
    /// Resize of the pod, if its resources were edited. None as a rule.
    pub(super) resize: Option<Box<PodResize>>,
}

const _: () = assert!(
    size_of::<PodEntry>() <= 192,
    "one per pod: 100 pods are to cost less than 20 KiB here"
);

impl PodEntry {
    /// Returns true if nothing is known of the pod.
    pub(super) fn is_empty(&self) -> bool {
        let Self {
            config,
            status,
            starting,
            unsynced: _,
            arriving,
            succeeded,
            limits,
            resize,
        } = self;
        config.is_none()
            && status.stored_status().is_none()
            && starting.is_none()
            && *arriving == 0
            && succeeded.is_none()
            && limits.is_none()
            && resize.is_none()
    }

    /// Returns true if the pod counts for admission and shares.
    pub(super) fn is_active(&self, uid: &PodUid, table: &PodTable) -> bool {
        let config = self.config.as_ref();
        let ending = table.pod_ending(uid);
        dispatch::is_active(PodActivity {
            known_terminated: ending.terminated,
            restart_requested: ending.restart_requested,
            termination_requested: ending.requested,
            termination_complete: ending.finished,
            api_phase_terminal: config.is_some_and(|c| !c.is_static && c.api_phase_terminal),
            local_phase_terminal: self
                .status
                .stored_status()
                .is_some_and(|s| s.phase.is_terminal()),
        })
    }
}
