//! Decisions of a housekeeping pass. The pass itself, which lists and removes, is the agent's.
//!
//! A [`HousekeepingPass`] holds the lists; each method decides one step from them. Names and rules follow kubelet
//! `kubelet_pods.go`, `HandlePodCleanups`, and `pod_container_deletor.go`.

use crate::api::PodUid;

use super::pod_table::{KnownPod, WorkState};
use super::runtime_cache::RunningPod;

/// Returns true if a pass may run: only after every source has delivered is it known that a pod is not wanted.
#[must_use]
pub const fn may_run_housekeeping(all_sources_ready: bool) -> bool {
    all_sources_ready
}

/// A pod of the configuration (never a mirror).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HousekeepingPod<'a> {
    /// UID.
    pub uid: &'a PodUid,
    /// Static.
    pub is_static: bool,
    /// `dispatch::is_active`.
    pub active: bool,
    /// `PodTable::is_restart_requested`, asked before `sync_known_pods`.
    pub restart_requested: bool,
    /// `metadata.deletionTimestamp` is set.
    pub deletion_requested: bool,
    /// Phase of the API object is terminal.
    pub api_phase_terminal: bool,
}

/// Lists that a pass has made, all sorted by UID.
#[derive(Clone, Copy, Debug)]
pub struct HousekeepingPass<'a> {
    /// Pods of the configuration.
    pub config: &'a [HousekeepingPod<'a>],
    /// UIDs of mirror pods.
    pub mirrors: &'a [PodUid],
    /// Answer of `PodTable::sync_known_pods`.
    pub known: &'a [KnownPod],
    /// Pods that run, listed after that.
    pub running: &'a [RunningPod],
}

/// A pod to create because it is wanted and not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodRestart<'a> {
    /// UID.
    pub uid: &'a PodUid,
    /// Static.
    pub is_static: bool,
    /// Drop its local status first: that is the status of the incarnation before, and would end this one at once.
    pub drop_status: bool,
    /// Set if the pod has ended and only waits for its deletion: it does not count as a restarted pod.
    pub ended: bool,
}

/// Action on a cgroup whose pod is neither syncing nor terminating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupAction {
    /// Volumes are still there: only cut its CPU to the minimum.
    Reduce,
    /// Kill what is in it and remove it, without waiting.
    Destroy,
}

impl<'a> HousekeepingPass<'a> {
    fn config_pod(&self, uid: &PodUid) -> Option<&'a HousekeepingPod<'a>> {
        let at = self.config.binary_search_by(|pod| pod.uid.cmp(uid));
        at.ok().map(|at| &self.config[at])
    }

    fn find_known_pod(&self, uid: &PodUid) -> Option<&'a KnownPod> {
        let at = self.known.binary_search_by(|known| known.uid.cmp(uid));
        at.ok().map(|at| &self.known[at])
    }

    /// Returns true if the pod has a worker.
    #[must_use]
    pub fn has_worker(&self, uid: &PodUid) -> bool {
        self.find_known_pod(uid).is_some()
    }

    fn is_pod_running(&self, uid: &PodUid) -> bool {
        let at = self.running.binary_search_by(|pod| pod.uid.cmp(uid));
        at.is_ok()
    }

    fn may_have_containers(&self, uid: &PodUid) -> bool {
        let ends = |known: &KnownPod| known.state == WorkState::Terminated;
        self.find_known_pod(uid).is_some_and(|known| !ends(known))
    }

    /// Returns true if the pod's probes go on.
    #[must_use]
    pub fn keeps_probes(&self, uid: &PodUid) -> bool {
        self.may_have_containers(uid)
    }

    /// Returns true if the pod's local status is kept. A rejected pod keeps it as long as its UID is configured.
    #[must_use]
    pub fn keeps_status(&self, uid: &PodUid) -> bool {
        self.config_pod(uid).is_some() || self.mirrors.binary_search(uid).is_ok()
    }

    /// Returns true if the pod's directory is an orphan. An orphan still stays while a volume in it is, or may be,
    /// mounted.
    #[must_use]
    pub fn is_orphan_directory(&self, uid: &PodUid) -> bool {
        self.config_pod(uid).is_none() && !self.is_pod_running(uid)
    }

    /// Pods to create: those that are wanted, and those that have ended and wait for their deletion. A kubelet creates
    /// them without admission. Here they are admitted again, because another pod may have taken their share by now.
    pub fn pods_to_restart(&self) -> impl Iterator<Item = PodRestart<'a>> + use<'a> {
        let pass = *self;
        pass.config
            .iter()
            .filter_map(move |pod| pass.find_restart(pod))
    }

    fn find_restart(&self, pod: &HousekeepingPod<'a>) -> Option<PodRestart<'a>> {
        if self.has_worker(pod.uid) {
            return None;
        }
        // A worker has to find that no container is left. The API's own word of the pod's end may be on its way.
        let over = pod.api_phase_terminal || !(pod.active || pod.restart_requested);
        let deleted = pod.deletion_requested && !pod.is_static && !self.is_pod_running(pod.uid);
        (!over || deleted).then_some(PodRestart {
            uid: pod.uid,
            is_static: pod.is_static,
            drop_status: pod.restart_requested,
            ended: over,
        })
    }

    /// Returns true if the pod is one of [`HousekeepingPass::pods_to_restart`].
    fn is_to_restart(&self, uid: &PodUid) -> bool {
        let pod = self.config_pod(uid);
        pod.is_some_and(|pod| self.find_restart(pod).is_some())
    }

    /// Pods that run and have no worker: to be killed with `Update::runtime_only`. Those of
    /// [`HousekeepingPass::pods_to_restart`] have one by now.
    pub fn runtime_orphans(&self) -> impl Iterator<Item = &'a RunningPod> + use<'a> {
        let pass = *self;
        pass.running
            .iter()
            .filter(move |pod| !pass.has_worker(&pod.uid) && !pass.is_to_restart(&pod.uid))
    }

    /// Decides about a pod cgroup that was listed when the pass began; `None` to leave it.
    ///
    /// A kubelet removes cgroups even of pods that were restarted or found running in this very pass. Here a runtime
    /// orphan gets its grace, and a restarted pod keeps the cgroup it is about to use.
    #[must_use]
    pub fn cgroup_action(&self, uid: &PodUid, volumes_present: bool) -> Option<CgroupAction> {
        if self.may_have_containers(uid) || self.is_pod_running(uid) || self.is_to_restart(uid) {
            return None;
        }
        Some(match volumes_present {
            true => CgroupAction::Reduce,
            false => CgroupAction::Destroy,
        })
    }

    /// The gauges of this pass.
    #[must_use]
    pub fn count_pods(&self) -> PodGauges {
        let mut gauges = PodGauges {
            mirrors: self.mirrors.len(),
            ..PodGauges::default()
        };
        for pod in self.config {
            let column = usize::from(pod.is_static);
            gauges.desired[column] += 1;
            gauges.active[column] += usize::from(pod.active);
        }
        for known in self.known {
            let config = match known {
                KnownPod {
                    has_config: false, ..
                } => WorkConfig::RuntimeOnly,
                KnownPod {
                    orphan, is_static, ..
                } => match (orphan, is_static) {
                    (false, false) => WorkConfig::Desired,
                    (false, true) => WorkConfig::DesiredStatic,
                    (true, false) => WorkConfig::Orphan,
                    (true, true) => WorkConfig::OrphanStatic,
                },
            };
            gauges.working[known.state as usize][config as usize] += 1;
        }
        gauges
    }
}

/// Second index of [`PodGauges::working`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkConfig {
    /// `config="desired",static=""`.
    Desired,
    /// `config="desired",static="true"`.
    DesiredStatic,
    /// `config="orphan",static=""`.
    Orphan,
    /// `config="orphan",static="true"`.
    OrphanStatic,
    /// `config="runtime_only",static="unknown"`.
    RuntimeOnly,
}

impl WorkConfig {
    /// Every value, in index order, with its labels `config` and `static`.
    pub const LABELS: [(&'static str, &'static str); 5] = [
        ("desired", ""),
        ("desired", "true"),
        ("orphan", ""),
        ("orphan", "true"),
        ("runtime_only", "unknown"),
    ];
}

/// Pod counters that every pass sets anew. Pairs are (not static, static).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodGauges {
    /// `kubelet_desired_pods`.
    pub desired: [usize; 2],
    /// `kubelet_active_pods`.
    pub active: [usize; 2],
    /// `kubelet_mirror_pods`.
    pub mirrors: usize,
    /// `kubelet_working_pods`, by [`WorkState`] and [`WorkConfig`]: 15 series, zeros included.
    pub working: [[usize; WorkConfig::LABELS.len()]; 3],
    /// `kubelet_pod_pending_resizes`: deferred, infeasible.
    pub pending_resizes: [usize; 2],
    /// `kubelet_pod_in_progress_resizes`.
    pub resizes_in_progress: usize,
}

/// Pod counters that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodTotals {
    /// `kubelet_restarted_pods_total`, (not static, static).
    pub restarted: [u64; 2],
    /// `kubelet_orphaned_runtime_pods_total`; expected to grow only right after a start.
    pub orphaned_runtime: u64,
}

impl PodTotals {
    /// Counts a pod created by [`HousekeepingPass::pods_to_restart`].
    pub const fn count_restart(&mut self, is_static: bool) {
        self.restarted[is_static as usize] += 1;
    }

    /// Counts a pod killed by [`HousekeepingPass::runtime_orphans`].
    pub const fn count_runtime_orphan(&mut self) {
        self.orphaned_runtime += 1;
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn uid(text: &str) -> PodUid {
        text.into()
    }

    fn known(text: &str, state: WorkState) -> KnownPod {
        KnownPod {
            uid: uid(text),
            state,
            orphan: false,
            has_config: true,
            is_static: false,
        }
    }

    fn running(text: &str) -> RunningPod {
        RunningPod {
            uid: uid(text),
            name: "".into(),
            namespace: "".into(),
        }
    }

    const fn wanted(uid: &PodUid) -> HousekeepingPod<'_> {
        HousekeepingPod {
            uid,
            is_static: false,
            active: true,
            restart_requested: false,
            deletion_requested: false,
            api_phase_terminal: false,
        }
    }

    #[test]
    fn only_when_all_sources_are_ready() {
        // LOOP-20 SRC-14
        assert!(may_run_housekeeping(true) && !may_run_housekeeping(false));
    }

    #[test]
    fn what_is_kept() {
        let (config, mirror, ended, stopping) = (uid("a"), uid("m"), uid("e"), uid("s"));
        let pods = [wanted(&config)];
        let pass = HousekeepingPass {
            config: &pods,
            mirrors: core::slice::from_ref(&mirror),
            known: &[
                known("a", WorkState::Sync),
                known("e", WorkState::Terminated),
                known("s", WorkState::Terminating),
            ],
            running: &[running("r")],
        };
        let (orphan, runs) = (uid("x"), uid("r"));
        for (pod, probes, status, directory_is_orphan) in [
            (&config, true, true, false),
            (&mirror, false, true, true),
            (&ended, false, false, true),
            (&stopping, true, false, true),
            (&runs, false, false, false),
            (&orphan, false, false, true),
        ] {
            // CLEAN-03
            assert_eq!(pass.keeps_probes(pod), probes, "{pod}");
            // CLEAN-04 LOOP-22
            assert_eq!(pass.keeps_status(pod), status, "{pod}");
            // CLEAN-05
            assert_eq!(pass.is_orphan_directory(pod), directory_is_orphan, "{pod}");
        }
    }

    #[test]
    fn restarts() {
        let a = uid("a");
        // CLEAN-09 CLEAN-10
        let ended = HousekeepingPod {
            active: false,
            api_phase_terminal: true,
            ..wanted(&a)
        };
        let deleted = HousekeepingPod {
            deletion_requested: true,
            ..ended
        };
        for (name, pod, is_known, restarts) in [
            ("active and missing", wanted(&a), false, true),
            ("active and there", wanted(&a), true, false),
            (
                "inactive",
                HousekeepingPod {
                    active: false,
                    ..wanted(&a)
                },
                false,
                false,
            ),
            (
                "its old status is terminal, but it came back",
                HousekeepingPod {
                    active: false,
                    restart_requested: true,
                    ..wanted(&a)
                },
                false,
                true,
            ),
            (
                "came back, and the old one still ends",
                HousekeepingPod {
                    restart_requested: true,
                    ..wanted(&a)
                },
                true,
                false,
            ),
            ("ended", ended, false, false),
            ("ended, and deleted since", deleted, false, true),
            (
                "ended as far as this node knows, and deleted since",
                HousekeepingPod {
                    api_phase_terminal: false,
                    ..deleted
                },
                false,
                true,
            ),
            (
                "ended, deleted, and its worker is there",
                deleted,
                true,
                false,
            ),
        ] {
            let known = [known("a", WorkState::Terminated)];
            let pass = HousekeepingPass {
                config: &[pod],
                mirrors: &[],
                known: if is_known { &known } else { &[] },
                running: &[],
            };
            let expected = restarts.then_some(PodRestart {
                uid: &a,
                is_static: false,
                drop_status: pod.restart_requested,
                ended: pod.deletion_requested,
            });
            assert_eq!(pass.pods_to_restart().next(), expected, "{name}");
        }
        let pass = HousekeepingPass {
            config: &[deleted],
            mirrors: &[],
            known: &[],
            running: &[running("a")],
        };
        assert_eq!(pass.pods_to_restart().next(), None, "it is ended first");
    }

    #[test]
    fn runtime_orphans_and_cgroups() {
        let a = uid("a");
        let pods = [wanted(&a)];
        let running = [running("a"), running("k"), running("r")];
        let pass = HousekeepingPass {
            config: &pods,
            mirrors: &[],
            known: &[
                known("k", WorkState::Sync),
                known("t", WorkState::Terminated),
            ],
            running: &running,
        };
        // CLEAN-11
        let orphans: Vec<_> = pass.runtime_orphans().map(|pod| &*pod.uid).collect();
        assert_eq!(orphans, ["r"], "known and restarted pods are not");
        // CLEAN-12 CG-06
        for (pod, volumes, action) in [
            ("k", false, None),
            ("t", false, Some(CgroupAction::Destroy)),
            ("t", true, Some(CgroupAction::Reduce)),
            ("x", false, Some(CgroupAction::Destroy)),
            ("r", false, None),
            ("a", false, None),
        ] {
            assert_eq!(pass.cgroup_action(&uid(pod), volumes), action, "{pod}");
        }
    }

    #[test]
    fn counters() {
        // CLEAN-13
        let (a, b) = (uid("a"), uid("b"));
        let pods = [
            HousekeepingPod {
                active: false,
                ..wanted(&a)
            },
            HousekeepingPod {
                is_static: true,
                ..wanted(&b)
            },
        ];
        let row = |orphan, has_config, is_static, state| KnownPod {
            orphan,
            has_config,
            is_static,
            ..known("x", state)
        };
        let pass = HousekeepingPass {
            config: &pods,
            mirrors: &[uid("m")],
            known: &[
                row(false, true, false, WorkState::Sync),
                row(false, true, true, WorkState::Sync),
                row(true, true, false, WorkState::Terminating),
                row(true, true, true, WorkState::Terminated),
                row(true, false, false, WorkState::Terminating),
                row(false, false, false, WorkState::Terminating),
            ],
            running: &[],
        };
        assert_eq!(
            pass.count_pods(),
            PodGauges {
                desired: [1, 1],
                active: [0, 1],
                mirrors: 1,
                working: [[1, 1, 0, 0, 0], [0, 0, 1, 0, 2], [0, 0, 0, 1, 0]],
                ..PodGauges::default()
            }
        );
        let mut totals = PodTotals::default();
        totals.count_restart(true);
        totals.count_runtime_orphan();
        assert_eq!((totals.restarted, totals.orphaned_runtime), ([0, 1], 1));
    }
}
