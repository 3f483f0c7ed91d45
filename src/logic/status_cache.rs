//! The statuses of all pods as the agent last decided them (SM-01, CLEAN-04). Names follow kubelet
//! `status/status_manager.go`; sending them is not its concern.

use alloc::collections::BTreeMap;

use crate::api::{Pod, PodUid, Wall, pod_status::PodStatus};

use super::status_update::{Update, finish, finished_status, judge};

/// One pod's status.
#[derive(Clone, Debug)]
struct Entry {
    status: PodStatus,
    version: u64,
    finished: bool,
}

/// One status per pod, each with a version that grows with every accepted change.
///
/// - Shape: as many entries as there are configured pods, rejected ones included: their stored `Failed` is what keeps
///   them from starting (LOOP-22), so an entry goes only with [`StatusCache::retain`].
/// - It lives in memory only; after an agent restart the API's status, or the manifest's, is the base again (SYNC-35).
#[derive(Clone, Debug, Default)]
pub struct StatusCache {
    entries: BTreeMap<PodUid, Entry>,
}

impl StatusCache {
    /// The stored status.
    #[must_use]
    pub fn get(&self, uid: &PodUid) -> Option<&PodStatus> {
        self.entries.get(uid).map(|e| &e.status)
    }

    /// Version of the stored status, from 1.
    #[must_use]
    pub fn version(&self, uid: &PodUid) -> Option<u64> {
        self.entries.get(uid).map(|e| e.version)
    }

    /// Whether the pod's termination is finished (SYNC-33).
    #[must_use]
    pub fn is_finished(&self, uid: &PodUid) -> bool {
        self.entries.get(uid).is_some_and(|e| e.finished)
    }

    /// Stores `new` if it says something new and is legal; the answer says which.
    pub fn set(&mut self, pod: &Pod, new: PodStatus, now: Wall) -> Update {
        self.store(pod, new, false, now)
    }

    /// Marks the end of the pod's termination and stores its last status (SM-10, DEL-03). Always a change the first time.
    pub fn finish(&mut self, pod: &Pod, now: Wall) -> Update {
        let uid = &pod.metadata.uid;
        let first = !self.is_finished(uid);
        let last = finished_status(pod, self.get(uid).unwrap_or(&pod.status), now);
        let update = self.store(pod, last, first, now);
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.finished = true;
        }
        update
    }

    /// Drops the statuses of pods that nobody configures any more.
    pub fn retain(&mut self, is_configured: impl Fn(&PodUid) -> bool) {
        self.entries.retain(|uid, _| is_configured(uid));
    }

    /// Drops one status: a finished static pod that is started again under its UID (CLEAN-09).
    pub fn forget(&mut self, uid: &PodUid) {
        self.entries.remove(uid);
    }

    /// All statuses, sorted by UID.
    pub fn iter(&self) -> impl Iterator<Item = (&PodUid, &PodStatus)> {
        self.entries.iter().map(|(uid, e)| (uid, &e.status))
    }

    fn store(&mut self, pod: &Pod, mut new: PodStatus, force: bool, now: Wall) -> Update {
        let uid = &pod.metadata.uid;
        let cached = self.get(uid);
        finish(pod, &mut new, cached.unwrap_or(&pod.status), now);
        let update = judge(pod, cached, &new, force);
        if update == Update::Changed {
            match self.entries.get_mut(uid) {
                Some(entry) => {
                    entry.status = new;
                    entry.version += 1;
                }
                None => {
                    let entry = Entry {
                        status: new,
                        version: 1,
                        finished: false,
                    };
                    self.entries.insert(uid.clone(), entry);
                }
            }
        }
        update
    }
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;

    use super::*;
    use crate::api::pod::RestartPolicy;
    use crate::api::pod_status::{ContainerState, ContainerStatus, Phase, Running, Terminated};
    use crate::testing::pod_with;

    fn status(phase: Phase, running: bool) -> PodStatus {
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
        let uid = pod.metadata.uid.clone();
        let mut cache = StatusCache::default();
        let at = Wall::from_secs;
        let running = || status(Phase::Running, true);
        let ended = || status(Phase::Succeeded, false);
        assert_eq!(cache.set(&pod, running(), at(5)), Update::Changed);
        assert_eq!(cache.set(&pod, running(), at(6)), Update::Same);
        assert_eq!(cache.version(&uid), Some(1));
        assert_eq!(cache.set(&pod, ended(), at(7)), Update::Changed);
        assert!(matches!(
            cache.set(&pod, running(), at(8)),
            Update::Illegal { .. }
        ));
        assert_eq!(cache.version(&uid), Some(2));
        let stored = cache.get(&uid).expect("stored");
        assert_eq!(
            (stored.phase, stored.start_time),
            (Phase::Succeeded, Some(at(5)))
        );
    }

    #[test]
    fn the_end() {
        // SM-10 DEL-03 SYNC-33
        let pod = pod_with(&["a"]);
        let uid = pod.metadata.uid.clone();
        let mut cache = StatusCache::default();
        cache.set(&pod, status(Phase::Succeeded, false), Wall(0));
        assert!(!cache.is_finished(&uid));
        assert_eq!(cache.finish(&pod, Wall(0)), Update::Changed, "forced once");
        assert!(cache.is_finished(&uid));
        assert_eq!(cache.finish(&pod, Wall(0)), Update::Same);
        assert_eq!(cache.version(&uid), Some(2));
    }

    #[test]
    fn dropped_only_with_the_pod() {
        // CLEAN-04 CLEAN-09
        let pod = pod_with(&["a"]);
        let uid = pod.metadata.uid.clone();
        let mut cache = StatusCache::default();
        cache.set(&pod, status(Phase::Failed, false), Wall(0));
        cache.retain(|u| *u == uid);
        assert!(cache.get(&uid).is_some() && cache.iter().count() == 1);
        cache.retain(|_| false);
        assert!(cache.get(&uid).is_none());
        cache.set(&pod, status(Phase::Failed, false), Wall(0));
        cache.forget(&uid);
        assert_eq!(cache.version(&uid), None);
    }
}
