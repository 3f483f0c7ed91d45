//! Cache of a pod's status as the agent last decided it (SM-01, CLEAN-04). Does not send it. Names follow kubelet
//! `status/status_manager.go`.

use alloc::boxed::Box;

use crate::api::{Pod, WallTime, pod_status::PodStatus};

use super::{
    clock_history::ClockHistory,
    status_update::{
        StatusVerdict, finished_status, judge_status, keep_container_ends, map_status_times,
        normalise_status,
    },
};

#[derive(Clone, Debug)]
struct CachedStatus {
    status: PodStatus,
    version: u64,
    finished: bool,
}

/// Status of a pod, with a version that grows with every accepted change. Empty until one is stored.
///
/// - The status stays as long as the pod is configured. A rejected pod is no exception: its stored `Failed` keeps it
///   from starting (LOOP-22).
/// - The cache lives in memory only; after an agent restart the API's status, or the manifest's, is the base again
///   (SYNC-35).
#[derive(Clone, Debug, Default)]
pub struct StatusCache(Option<Box<CachedStatus>>);

impl StatusCache {
    /// The stored status.
    #[must_use]
    pub fn stored_status(&self) -> Option<&PodStatus> {
        self.0.as_ref().map(|stored| &stored.status)
    }

    /// Version of the stored status, from 1.
    #[must_use]
    pub fn version(&self) -> Option<u64> {
        self.0.as_ref().map(|stored| stored.version)
    }

    /// Returns true if the pod's termination is finished (SYNC-33).
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.as_ref().is_some_and(|stored| stored.finished)
    }

    /// Stores `new` if it says something new and is legal; the answer says which.
    pub fn store_status(&mut self, pod: &Pod, new: PodStatus, now: WallTime) -> StatusVerdict {
        self.store_if_changed(pod, new, false, now)
    }

    /// Marks the end of the pod's termination and stores its last status (SM-10, DEL-03). Always a change the first
    /// time.
    pub fn store_finished_status(&mut self, pod: &Pod, now: WallTime) -> StatusVerdict {
        let first = !self.is_finished();
        let last = finished_status(pod, self.stored_status().unwrap_or(&pod.status), now);
        let update = self.store_if_changed(pod, last, first, now);
        if let Some(stored) = &mut self.0 {
            stored.finished = true;
        }
        update
    }

    /// Corrects earlier times, when the clock is right for the first time. Always a change.
    pub fn correct_times(&mut self, clock: &ClockHistory) {
        if let Some(stored) = &mut self.0 {
            map_status_times(&mut stored.status, |at| clock.correct_time(at));
            stored.version += 1;
        }
    }

    fn store_if_changed(
        &mut self,
        pod: &Pod,
        mut new: PodStatus,
        force: bool,
        now: WallTime,
    ) -> StatusVerdict {
        let cached = self.stored_status();
        if new.phase.is_terminal() {
            keep_container_ends(pod, cached.unwrap_or(&pod.status), &mut new);
        }
        normalise_status(pod, &mut new, cached.unwrap_or(&pod.status), now);
        let update = judge_status(pod, cached, &new, force);
        if update == StatusVerdict::Changed {
            new.shrink_lists();
            match &mut self.0 {
                Some(stored) => {
                    stored.status = new;
                    stored.version += 1;
                }
                None => {
                    self.0 = Some(Box::new(CachedStatus {
                        status: new,
                        version: 1,
                        finished: false,
                    }));
                }
            }
        }
        update
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pod::RestartPolicy;
    use crate::api::pod_status::{ContainerState, ContainerStatus, PodPhase, Running, Terminated};
    use crate::testing::pod_with;

    fn status(phase: PodPhase, running: bool) -> PodStatus {
        let state = if running {
            ContainerState {
                running: Some(Running::default()),
                ..ContainerState::default()
            }
        } else {
            ContainerState {
                terminated: Some(Box::new(Terminated::default())),
                ..ContainerState::default()
            }
        };
        PodStatus {
            phase,
            container_statuses: vec![ContainerStatus {
                name: "a".into(),
                state,
                ..ContainerStatus::default()
            }],
            ..PodStatus::default()
        }
    }

    #[test]
    fn versions_and_refusals() {
        // SM-01 SM-03 STAT-33
        let mut pod = pod_with(&["a"]);
        pod.spec.restart_policy = RestartPolicy::Never;
        let mut cache = StatusCache::default();
        let at = WallTime::from_unix_seconds;
        let running = || status(PodPhase::Running, true);
        let ended = || status(PodPhase::Succeeded, false);
        assert_eq!(
            cache.store_status(&pod, running(), at(5)),
            StatusVerdict::Changed
        );
        assert_eq!(
            cache.store_status(&pod, running(), at(6)),
            StatusVerdict::Same
        );
        assert_eq!(cache.version(), Some(1));
        assert_eq!(
            cache.store_status(&pod, ended(), at(7)),
            StatusVerdict::Changed
        );
        assert!(matches!(
            cache.store_status(&pod, running(), at(8)),
            StatusVerdict::Illegal { .. }
        ));
        assert_eq!(cache.version(), Some(2));
        let stored = cache.stored_status().expect("stored");
        assert_eq!(
            (stored.phase, stored.start_time),
            (PodPhase::Succeeded, Some(at(5)))
        );
        // The end of an evicted pod is stored all the same, even while its sandbox is made anew.
        let mut evicted = running();
        evicted.phase = PodPhase::Failed;
        assert_eq!(
            cache.store_status(&pod, evicted, at(9)),
            StatusVerdict::Changed
        );
        let stored = cache.stored_status().expect("stored");
        assert_eq!(stored.phase, PodPhase::Failed);
        let end = &stored.container_statuses[0].state;
        assert_eq!(*end, ended().container_statuses[0].state);
    }

    #[test]
    fn the_end() {
        // SM-10 DEL-03 SYNC-33
        let pod = pod_with(&["a"]);
        let mut cache = StatusCache::default();
        cache.store_status(&pod, status(PodPhase::Succeeded, false), WallTime(0));
        assert!(!cache.is_finished());
        assert_eq!(
            cache.store_finished_status(&pod, WallTime(0)),
            StatusVerdict::Changed,
            "forced once"
        );
        assert!(cache.is_finished());
        assert_eq!(
            cache.store_finished_status(&pod, WallTime(0)),
            StatusVerdict::Same
        );
        assert_eq!(cache.version(), Some(2));
    }
}
